"""Lines of a log and exit codes → known failures, causes first; no text makes the search slow or reaches a terminal."""

from __future__ import annotations

import io
import json
import re
import time

import pytest

from entrypoints.checks.logs import read_log
from entrypoints.checks.symptoms import add_failures, explain_log, find_first_error, format_matches
from tests.support.cases import for_each
from tests.support.known_failures import PROFILES, explain_causes, explain_ids
from tests.support.sample import KNOWN, PROFILE

CUDA = PROFILES["cuda"]
SLOW = 5.0
"""Seconds of a processor that a search in the largest text may take; 1 or less where this was written."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("137", ["out-of-memory-killed"]),
        ("-9", ["out-of-memory-killed"]),
        ("SIGKILL", ["out-of-memory-killed"]),
        ("signal 9", ["out-of-memory-killed"]),
        ("OOMKilled", ["out-of-memory-killed"]),
        ("CrashLoopBackOff", ["pod-crash-loop"]),
        ("server exited with code 137", ["out-of-memory-killed"]),
        ("Exited (139) 3 minutes ago", ["segmentation-fault"]),
        ("died with <Signals.SIGSEGV: 11>.", ["segmentation-fault"]),
        ("Signal 11 (SIGSEGV) received by PID 12", ["segmentation-fault"]),
        ("vllm.service: Main process exited, code=killed, status=9/KILL", ["out-of-memory-killed"]),
        ("exitcode: -6 (pid: 12)", ["aborted"]),
        ("return code: 135", ["bus-error"]),
        ("      Exit Code:    143", ["terminated"]),
        ('"ExitCode": 135,', ["bus-error"]),
        ("exit 14", ["exit-refused"]),
        ("code 14", ["exit-refused"]),
        ("14", ["exit-refused"]),
        ("13", ["exit-not-known"]),
        ("drydock: ended with exit code 12: rank 1 ended", ["exit-group"]),
        ("worker exited with non-zero code: 139", ["segmentation-fault"]),
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
    assert explain_ids(text) == expected


MAMBA = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (612). Each decode request requires one"
SHAPE = "ValueError: The {} size is not aligned with the quantized weight shape. This can be caused by too large tensor"
MISSES = {
    ("cuda", MAMBA): "mamba-blocks",
    ("cuda", SHAPE.format("input")): "quantised-shape",
    ("enflame", SHAPE.format("output")): "quantised-shape",
    ("cuda", "ValueError: No valid attention backend found for cuda"): "attention-backend-none",
    ("cuda", "NotImplementedError: Pipeline parallelism is not supported for this model."): "pipeline-not-supported",
    ("cuda", "pynvml.NVMLError_LibRmVersionMismatch: RM has detected"): "cuda-driver-library-mismatch",
    ("cuda", "RM has detected an NVML/RM version mismatch."): "cuda-driver-library-mismatch",
    ("cuda", "pynvml.NVMLError_Unknown: Unknown Error"): "cuda-lost-devices",
    ("cuda", "pynvml.NVMLError_GpuIsLost: GPU is lost"): "cuda-off-the-bus",
    ("neuron", "KeyError: 'LOCAL_WORLD_SIZE'"): "neuron-local-world-size",
    ("tpu", "RuntimeError: TPU initialization failed: Failed to get global TPU topology."): "tpu-topology",
    ("ascend", "dcmi module initialize failed. ret is -8005"): "ascend-npu-not-opened",
    ("ascend", "dcmi model initialized failed, because the device is used. ret is -8020"): "ascend-npu-in-use",
    ("ascend", "NPU function error: SUSPECT REMOTE ERROR, error code is 507057"): "ascend-suspect-remote",
    ("ascend", "[ERROR] SUSPECT MEM ERROR"): "ascend-suspect-memory",
    ("cpu", "  20614 10001     20   0 9216m 1.2g 0.3g R 99.3 4.9 5:12.40 VLLM::EngineCor"): "idle-core-busy",
    ("cuda", "VLLM:EngineCore thread consumes 100% CPU idle"): "idle-core-busy",
    ("cuda", "100% CPU usage when idle. While loop in `acquire_read` pegging the CPU."): "idle-core-busy",
    ("rocm", "VLLM::EngineCore busy loop takes 100% of one CPU core, wasting power."): "idle-core-busy",
    ("rocm", "rocr::core::Runtime::AsyncEventsLoop(void*)"): "rocm-idle-core-busy",
    ("ascend", "EZ3002: Optype [MatMulV3] of Ops kernel [AIcoreEngine] is unsupported"): "ascend-operator-unsupported",
}


@for_each([(*line, cause) for line, cause in MISSES.items()], str)
def test_a_line_of_a_public_report_has_one_cause(accelerator: str, line: str, cause: str) -> None:
    assert explain_causes(line, accelerator) == [cause]


def test_progress_of_an_engine_that_starts_is_no_busy_core() -> None:
    assert explain_ids("(EngineCore pid=9) Loading safetensors checkpoint shards: 100% Completed | 2/2") == []


def test_a_queue_that_is_polled_while_requests_run_is_a_note() -> None:
    (match,) = explain_log("    wait (vllm/distributed/device_communicators/shm_broadcast.py:196)", CUDA)

    assert (match.id, match.kind) == ("message-queue-busy", "note")


UNHANDLED = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"


WARNINGS_OF_NCCL = {
    ("cuda", "NCCL WARN Cuda failure 'out of memory'"): "cuda-nccl-out-of-memory",
    ("cuda", "include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'"): "cuda-nccl-out-of-memory",
    ("cuda", "transport/p2p.cc:226 NCCL WARN Cuda failure 2 'out of memory'"): "cuda-nccl-out-of-memory",
    ("cuda", "transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot'"): "cuda-nccl-nvls",
    ("cuda", "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152"): "cuda-nccl-nvls",
    ("cuda", "transport/p2p.cc:275 NCCL WARN Cuda failure 1 'invalid argument'"): "cuda-no-peer-access",
    (
        "cuda",
        "NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
    ): "cuda-no-peer-access",
    ("cuda", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ew"): "shared-memory-full",
    ("cuda", "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both"): "nccl-duplicate-device",
    ("cuda", "NCCL WARN Bootstrap : no socket interface found"): "no-such-interface",
    ("cuda", "NCCL WARN socketStartConnect: Connect to 10.0.0.1<4> failed : No route to host"): "nccl-peer-not-reached",
    ("rocm", "NCCL WARN HIP failure 'out of memory'"): "rocm-nccl-out-of-memory",
    ("rocm", "NCCL WARN HIP failure 'peer access is not supported between these two devices'"): "rocm-no-peer-access",
    ("rocm", "NCCL WARN Mismatched NCCL version detected : rank 1 version 22203"): "nccl-versions-differ",
}


@for_each([(*line, cause) for line, cause in WARNINGS_OF_NCCL.items()], str)
def test_a_line_of_nccl_before_the_error_is_the_cause_and_the_error_follows(
    accelerator: str, line: str, cause: str
) -> None:
    first, second = explain_log(f"{line}\n{UNHANDLED}", PROFILES[accelerator])

    assert (first.id, first.kind) == (cause, "cause")
    assert (second.id, second.kind) == (f"{accelerator}-nccl-cuda-error", "consequence")
    text = format_matches((first, second), {})
    assert second.remedy not in text
    assert "This follows from the cause above." in text


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'",
        "RuntimeError: Insufficient space in /dev/shm for MessageQueue: 40 MiB required, 30 MiB free.",
        "RuntimeError: unable to write to file </torch_21_1532>: No space left on device (28)",
        "FileExistsError: /dev/shm/nccl-x: No space left on device",
        "Fatal Python error: Bus error",
    ],
)
def test_full_shared_memory_is_told_apart_from_a_full_disk(line: str) -> None:
    (match,) = explain_log(f"{line}\nOSError: [Errno 28] No space left on device", CUDA)[:1]

    assert match.id in ("shared-memory-full", "bus-error")
    assert "--shm-size" in match.remedy
    assert "/cache" not in match.remedy + match.cause
    assert "--ipc=host" not in match.remedy


def test_a_full_disk_is_known_by_its_path_or_else_asked_for() -> None:
    assert explain_ids("OSError: [Errno 28] No space left on device: '/cache/hub/x'") == ["disk-full"]
    (match,) = explain_log("OSError: [Errno 28] No space left on device", CUDA)
    assert match.id == "no-space"
    assert "/cache" not in match.remedy


def test_causes_come_before_consequences_and_notes_come_last() -> None:
    log = (
        "WARNING: Found ulimit of 20000 and failed to increase it\nINFO fine\n"
        "ERROR [serving.py:1] At most 1 image(s) may be provided in one prompt.\n"
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above.\n"
        "\x1b[1;31m(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA \x1b[0mout of memory. Tried\n"
        "CUDA out of memory\ndrydock: ended with exit code 9: it ended\n"
    )
    matches = explain_log(log, CUDA)

    assert [(match.id, match.kind) for match in matches] == [
        ("cuda-out-of-memory", "cause"),
        ("cause-above", "consequence"),
        ("exit-died", "consequence"),
        ("too-many-files", "note"),
        ("too-many-images", "note"),
    ]
    first = matches[0]
    assert first.line == "(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried"
    assert first.source.startswith("https://")
    assert f"{first.line}\n        {first.cause}\n" in format_matches((first,), {})


def test_a_finding_that_failed_is_a_cause_and_one_that_warns_is_a_note() -> None:
    log = "WARN    NET-001  no name server fix (host): name one\nFAIL    RUN-005  64 MiB fix (container): more\n"

    assert [(match.id, match.kind) for match in explain_log(log, CUDA)] == [("RUN-005", "cause"), ("NET-001", "note")]


def test_a_value_of_a_finding_is_left_open_where_no_check_has_read_it() -> None:
    number = next(number for number, entry in KNOWN.items() if "{" in entry["text"])
    (match,) = explain_log(number, CUDA)

    assert "…" in match.cause
    assert "{" not in match.cause + match.remedy


def test_the_most_specific_failure_of_a_line_is_the_one() -> None:
    warm = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    assert explain_ids(warm) == ["warm-up-memory"]
    assert explain_ids("EZ9999: numHeads / numKvHeads = 8, MLA only support {32, 64, 128}.", "ascend") == [
        "ascend-mla-heads"
    ]
    assert explain_ids("EZ9999: Inner Error!", "ascend") == ["ascend-operator-failed"]


def test_nothing_that_is_shown_names_a_file_of_the_repository() -> None:
    for profile in PROFILES.values():
        for failure in profile["failures"].values():
            text = format_matches(explain_log(failure["symptom"], profile), {})
            assert not re.search(r"(?m)^ +(?:source|more): (?!https://)", text)


def test_pieces_of_a_pattern_are_found_in_their_order_on_one_line() -> None:
    assert explain_ids("Free memory on device cuda:1 (3/79 GiB) is less than desired GPU memory utilization (0.9)")
    assert not explain_ids("is less than desired GPU memory utilization; Free memory on device")
    assert not explain_ids("Free memory on device\nis less than desired GPU memory utilization")


def test_a_long_line_is_shown_around_its_words() -> None:
    (match,) = explain_log(f"{'x' * 5000} CUDA out of memory {'y' * 5000}", CUDA)

    assert match.line.startswith("…")
    assert "CUDA out of memory" in match.line
    assert len(match.line) < 400


def test_the_first_error_of_an_unknown_log_is_named() -> None:
    log = "INFO ok\n(EngineCore_DP0 pid=3) ERROR 11-26 [core.py:1] foo.bar.StrangeError: no such thing\nKeyError: 'x'\n"

    assert find_first_error(log).endswith("foo.bar.StrangeError: no such thing")
    assert find_first_error("all is well") == ""


@pytest.mark.parametrize(
    "text",
    [
        "Free memory on device" * 150_000,
        "a\n" * 1_500_000,
        "\n".join(map(str, range(400_000))),
        "\x1b[" * 1_000_000,
        "exit code exit code " * 150_000,
        "Free memory on device\n" * 140_000,
        '{"log": ' * 400_000,
        '{"log":"' + "[" * 900_000 + '"}\n',
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "a." * 1_500_000 + "Error",
        bytes(range(256)).decode("latin-1") * 12_000,
    ],
    ids=["repeated", "lines", "numbers", "escapes", "codes", "many", "json", "nested", "deep", "names", "binary"],
)
def test_no_text_makes_the_search_slow(text: str) -> None:
    log = read_log(io.BytesIO(text.encode()))
    began = time.process_time()
    output = format_matches(explain_log(log, CUDA), {}) + find_first_error(log)

    assert time.process_time() - began < SLOW
    assert "\x1b" not in output


def test_an_image_without_failures_explains_findings_only() -> None:
    bare = add_failures(PROFILE | {"findings": KNOWN}, {})

    assert [match.id for match in explain_log("exit code 137\nNET-001", bare)] == ["NET-001"]
    assert json.dumps([match._asdict() for match in explain_log("NET-001", bare)])
