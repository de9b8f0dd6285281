"""A log of any length and from any collector → the same text, within a bound."""

from __future__ import annotations

import io
import json

import pytest

from entrypoints.checks.logs import _TROUBLE, HEAD, MIDDLE, TAIL, clean_log, read_log
from tests.support.known_failures import PROFILES, explain_ids

OOM = "(EngineCore_DP0 pid=84) ERROR 11-26 10:00:00 [core.py:936] torch.OutOfMemoryError: CUDA out of memory. Tried"
ACCESS = '(APIServer pid=1) INFO:     10.0.0.1:{} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
LONGEST = HEAD + MIDDLE + 3 * TAIL
"""Bytes that may remain of a log."""


def fill(size: int) -> str:
    """Return lines of a healthy server."""
    lines = "".join(ACCESS.format(number) for number in range(1000))
    return lines * (size // len(lines) + 1)


@pytest.mark.parametrize("place", ["top", "between", "end"])
def test_a_cause_is_found_wherever_it_is_in_a_long_log(place: str) -> None:
    parts = {"top": ("", 9), "between": (fill(4 << 20), 5), "end": (fill(9 << 20), 0)}
    before, after = parts[place]
    log = read_log(io.BytesIO(f"{before}{OOM}\n{fill(after << 20)}".encode()))

    assert explain_ids(log) == ["cuda-out-of-memory"]
    assert len(log) < LONGEST


def test_errors_of_requests_do_not_crowd_out_the_cause_between_them() -> None:
    requests = "".join(
        f"(APIServer pid=1) ERROR [serving.py:9] Error in request cmpl-{number:x}: ValueError: {number * 7919:x}\n"
        for number in range(60_000)
    )
    log = read_log(io.BytesIO(f"{requests}{OOM}\n{requests}".encode()))

    assert "cuda-out-of-memory" in explain_ids(log)
    assert len(log) < LONGEST


def test_a_line_without_end_is_read_within_the_bound() -> None:
    log = read_log(io.BytesIO(b"x" * (12 << 20) + b" CUDA out of memory"))

    assert len(log) < LONGEST
    assert explain_ids(log) == ["cuda-out-of-memory"]


def test_the_lines_of_a_short_log_are_all_there_and_bytes_that_are_no_text_are_replaced() -> None:
    assert read_log(io.BytesIO(b"one\ntwo\xff\n")).split() == ["one", "two\ufffd"]


def test_most_known_failures_have_a_word_by_which_the_lines_between_are_chosen() -> None:
    symptoms = {
        name: failure["symptom"].encode()
        for profile in PROFILES.values()
        for name, failure in profile["failures"].items()
        if failure["patterns"]
    }
    without = [name for name, symptom in symptoms.items() if not any(word in symptom for word in _TROUBLE)]

    assert len(without) < len(symptoms) / 10


MESSAGE = "ValueError: Invalid value 'flash' for VLLM_WORKER_MULTIPROC_METHOD. Valid options: ['fork']."


@pytest.mark.parametrize(
    "line",
    [
        MESSAGE,
        f"2026-11-26T10:00:00.000000Z stderr F {MESSAGE}",
        f"[pod/vllm-0/server] (Worker_TP3 pid=9) ERROR 11-26 10:00:00 [core.py:1] {MESSAGE}",
        f"vllm-1  | \x1b[0;36m(EngineCore_DP0 pid=84)\x1b[0;0m {MESSAGE.replace(' ', chr(27) + '[0m ')}",
        f"Nov 26 10:00:00 node dockerd[12]: #033[0;36m(EngineCore pid=84)#033[0;0m {MESSAGE}",
        f"^[[0;36m(EngineCore pid=84)^[[0;0m {MESSAGE}",
        json.dumps({"log": f"\x1b[31m{MESSAGE}\n", "stream": "stderr", "time": "2026-11-26T10:00:00Z"}),
        json.dumps({"level": "error", "msg": "cannot start", "error": MESSAGE}),
        json.dumps({"severity": "ERROR", "jsonPayload": {"message": MESSAGE}}),
        json.dumps({"MESSAGE": list(f"\x1b[31m{MESSAGE}".encode()), "_PID": "84"}),
        "2026-11-26 10:00:00 " + json.dumps({"message": MESSAGE}).replace("'", "\\u0027"),
        f"Loading: 10%\rLoading: 20%\r{MESSAGE}",
    ],
    ids=["plain", "containerd", "kubectl", "compose", "rsyslog", "caret", "docker", "structured", "google", "journald",
         "escaped", "progress"],
)  # fmt: skip
def test_what_collectors_add_does_not_hide_a_line(line: str) -> None:
    assert explain_ids(line) == ["variable-value"]


def test_a_level_that_is_apart_from_the_message_is_kept() -> None:
    assert clean_log('{"level": "warning", "msg": "slow"}') == "WARNING slow"


@pytest.mark.parametrize("line", ['{"a": 1}', '{"log": ', '[{"log": "x"}]', '{"log": 5}', '{"error":"Unauthorized"}'])
def test_json_without_a_message_stays_as_it_is(line: str) -> None:
    assert clean_log(line) == line
