"""What vLLM logs of its memory, against a plan. The lines of 0.19 are a public log's; the others follow its sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.records import ServePlan, Use
from entrypoints.core.units import GIB
from entrypoints.serve.measured import (
    KEPT,
    Measured,
    as_document,
    describe_difference,
    keep_document,
    parse_lines,
    read_kept,
)
from entrypoints.serve.plugin_files import ReportFile

# llm-d-incubation/llm-d-planner@d3121e0, google-gemma-3-27b-it--h100-80gb--tp1pp1dp1--8192.log
VLLM_019 = """Model loading took 51.45 GiB memory and 168.6 seconds
Available KV cache memory: 19.53 GiB
GPU KV cache size: 36,560 tokens
Maximum concurrency for 8,192 tokens per request: 4.46x
Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory utilization is (0.95, 75.23 GiB). \
Actual usage is 51.45 GiB for weight, 3.99 GiB for peak activation, 0.26 GiB for non-torch memory, and 1.05 GiB for \
CUDAGraph memory.
"""
# vLLM 0.32 and 0.33: v1/core/kv_cache_utils.py, update_kv_cache_capacity; v1/worker/gpu_worker.py
VLLM_032 = """Model loading took 7.51 GiB memory and 4.105030 seconds
Model loading took 7.52 GiB memory and 4.205030 seconds
Available KV cache memory: 55.44 GiB
Available KV cache memory: 55.40 GiB
GPU KV cache size: 907,600 tokens, Maximum concurrency for 131,072 tokens per request: 6.92x
Free memory on device (78.68/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). \
Actual usage is 9.65 GiB for consumed memory (weights + non-torch), 2.75 GiB for peak activation, and 0.84 GiB for \
CUDAGraph memory.
"""
CPU_032 = """Model loading took 0.25 GiB memory and 0.8 seconds
CPU KV cache size: 186,368 tokens, Maximum concurrency for 8,192 tokens per request: 22.75x
"""
USES = tuple(Use(number, 0, 80 * GIB, int(7.6 * GIB), int(4.9 * GIB), 55 * GIB, 131072, 950_000) for number in range(2))


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        (VLLM_019, Measured(51.45, 4.25, 19.53, 36536)),
        (VLLM_032, Measured(7.52, 4.88, 55.4, 907_600)),
        (CPU_032, Measured(0.25, None, None, 186_368)),
        (VLLM_032.replace("GPU KV", "XPU + host KV"), Measured(7.52, 4.88, 55.4, 907_600)),
        ("# GPU blocks: 2048, # CPU blocks: 512\nMaximum concurrency for 4096 tokens per request: 8.00x\n",
         Measured(tokens=32768)),
        (CPU_032 + CPU_032.replace("186,368", "100,000"), Measured(0.25, None, None, 100_000)),
        ("", Measured()),
        ("Model loading took 1.2.3 GiB\nModel loading took x GiB", Measured(weights=0.0)),
    ],
)  # fmt: skip
def test_the_lines_of_several_versions_are_read(text: str, measured: Measured) -> None:
    figures = parse_lines(text)

    assert figures._replace(rest=None) == measured._replace(rest=None)
    assert figures.rest == pytest.approx(measured.rest)


def test_the_difference_is_said_in_one_sentence() -> None:
    assert describe_difference(parse_lines(VLLM_032), USES) == (
        "KV cache 907,600 tokens, planned 950,000 (-4.5%); weights 7.5 GiB, planned 7.6; "
        "runtime and activations 4.9 GiB, planned 4.9"
    )


def test_what_is_not_planned_or_not_measured_is_no_difference() -> None:
    unknown = (USES[0]._replace(tokens=0, weights=0),)

    assert not describe_difference(Measured(), USES)
    assert describe_difference(Measured(tokens=7), USES) == "KV cache 7 tokens, planned 950,000 (-100.0%)"
    assert describe_difference(Measured(7.5, tokens=7), unknown) == (
        "KV cache 7 tokens, not planned; weights 7.5 GiB, not planned"
    )


def test_the_file_is_made_for_vllm_and_removed_when_it_is_read(tmp_path: Path) -> None:
    file = ReportFile({"TMPDIR": str(tmp_path)})
    Path(file.path).write_text(CPU_032)

    assert Path(file.path).stat().st_mode & 0o777 == 0o600
    assert file.take() == CPU_032
    assert not list(tmp_path.iterdir())
    assert file.take() == ""


def test_without_a_folder_nothing_is_reported() -> None:
    file = ReportFile({"TMPDIR": "/proc/none"})

    assert (file.path, file.take()) == ("", "")


@pytest.mark.parametrize(
    ("name", "kept_name"), [("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"), ("/models/secret", ""), ("s3://b/m", "")]
)
def test_what_is_kept_names_no_folder(tmp_path: Path, name: str, kept_name: str) -> None:
    plan = ServePlan((), {}, (), (), name, "", 8000, uses=USES)
    keep_document(as_document(parse_lines(VLLM_032), plan, {"variant": "h100", "vllm": "0.32.0"}), str(tmp_path))
    document = json.loads(read_kept(str(tmp_path)))

    assert document["model"] == kept_name
    assert document["vllm"] == "0.32.0"
    assert document["measured"]["tokens"] == 907_600
    assert [use["tokens"] for use in document["planned"]] == [950_000, 950_000]


def test_a_kept_file_that_another_user_could_have_written_is_not_read(tmp_path: Path) -> None:
    (tmp_path / KEPT).write_text("{}\n")
    assert read_kept(str(tmp_path)) == "{}\n"
    (tmp_path / KEPT).chmod(0o666)
    assert read_kept(str(tmp_path)) == ""
    keep_document("new", str(tmp_path))
    assert (tmp_path / KEPT).read_text() == "{}\n"
    assert read_kept(str(tmp_path / "none")) == ""
