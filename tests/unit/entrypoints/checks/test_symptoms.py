"""Lines of a log and exit codes → known failures; no text makes the search slow or reaches a terminal as it is."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest

from drydock.config.failures import read_failures
from drydock.config.project import DRYDOCK
from drydock.model.record import dump
from entrypoints.checks.symptoms import TAIL, as_text, explain, read_tail, with_failures
from tests.support.sample import KNOWN, PROFILE

CUDA = with_failures(PROFILE | {"findings": KNOWN}, dump(read_failures(DRYDOCK, "cuda")))
SLOW = 5.0
"""Seconds that a search in the largest text may take, on a busy machine; 0.1 where this was written."""


def ids(text: str, profile: dict[str, Any] = CUDA) -> list[str]:
    return [match.id for match in explain(text, profile)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("137", ["out-of-memory-killed"]),
        ("-9", ["out-of-memory-killed"]),
        ("server exited with code 137", ["out-of-memory-killed"]),
        ("Exited (139) 3 minutes ago", ["segmentation-fault"]),
        ("      Exit Code:    143", ["terminated"]),
        ('"ExitCode": 135,', ["bus-error"]),
        ("drydock: ended with exit code 12: rank 1 ended", ["exit-group"]),
        ("an exit code 1374 is none", []),
        ("1", ["vllm-error"]),
        ("0", []),
        ("NPU-043 and NET-001, no FOO-001", ["NPU-043", "NET-001"]),
        ("", []),
        ("12345678", []),
    ],
)
def test_exit_codes_are_read_as_engines_write_them_and_ids_of_findings_are_known(
    text: str, expected: list[str]
) -> None:
    assert ids(text) == expected


def test_a_log_is_explained_in_its_order_warnings_last_and_each_failure_once() -> None:
    log = (
        "WARNING: Found ulimit of 20000 and failed to increase it\nINFO fine\n"
        "\x1b[1;31m(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA \x1b[0mout of memory. Tried\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
        "CUDA out of memory\ndrydock: ended with exit code 9: it ended\n"
    )
    first, *more = explain(log, CUDA)

    assert [first.id, *(match.id for match in more)] == [
        "cuda-out-of-memory",
        "cause-above",
        "exit-died",
        "too-many-files",
    ]
    assert first.line == "(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried"
    assert first.page == "docs/failures.md#cuda-out-of-memory"
    assert f"{first.line}\n        {first.cause}\n" in as_text((first,), {})


def test_pieces_of_a_pattern_are_found_in_their_order_on_one_line() -> None:
    assert ids("Free memory on device cuda:1 (3/79 GiB) is less than desired GPU memory utilization (0.9)")
    assert not ids("is less than desired GPU memory utilization; Free memory on device")
    assert not ids("Free memory on device\nis less than desired GPU memory utilization")


@pytest.mark.parametrize(
    "text",
    [
        "Free memory on device" * 50_000,
        "a\n" * 500_000,
        "\n".join(map(str, range(200_000))),
        "\x1b[" * 500_000,
        "exit code exit code " * 50_000,
        bytes(range(256)).decode("latin-1") * 4096,
    ],
    ids=["repeated", "lines", "numbers", "escapes", "codes", "binary"],
)
def test_no_text_makes_the_search_slow(text: str) -> None:
    tail = read_tail(io.BytesIO(text.encode()))
    began = time.monotonic()
    shown = as_text(explain(tail, CUDA), {})

    assert len(tail.encode()) <= TAIL * 3  # what cannot be decoded is three bytes long
    assert time.monotonic() - began < SLOW
    assert "\x1b" not in shown


def test_only_the_end_of_a_long_log_is_read() -> None:
    late = f"CUDA out of memory\n{'x' * TAIL}\nLoRA rank 64 is greater than max_lora_rank 16."

    assert ids(read_tail(io.BytesIO(late.encode()))) == ["lora-rank"]


def test_an_image_without_failures_explains_findings_only() -> None:
    bare = with_failures(PROFILE | {"findings": KNOWN}, {})

    assert ids("exit code 137\nNET-001", bare) == ["NET-001"]
    assert json.dumps([match._asdict() for match in explain("NET-001", bare)])
