"""Results of vLLM's benchmarks: the table, the comparison, the page; and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.cli.benchpage import bench_page
from entrypoints.cli.benchresults import compared, missing, read_results, table
from entrypoints.core.errors import EntrypointError

ONE = {
    "model_id": "m", "max_concurrency": 1, "completed": 10, "request_throughput": 1.0, "output_throughput": 20.0,
    "median_ttft_ms": 50.0, "p99_ttft_ms": 80.0, "median_itl_ms": 10.0,
}  # fmt: skip
EIGHT = {**ONE, "max_concurrency": 8, "output_throughput": 80.0, "median_ttft_ms": 90.0, "median_itl_ms": 10.05}
BATCH = {"model_id": "m", "avg_latency": 0.5, "percentiles": {"50": 0.4, "99": 0.9}}


def written(folder: Path, value: object, name: str = "a.json") -> str:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_the_table_has_a_column_for_each_run_and_only_figures_that_are_there() -> None:
    lines = table(["concurrency 1", "concurrency 8"], [ONE, EIGHT]).splitlines()

    assert lines[0].split() == ["concurrency", "1", "concurrency", "8"]
    assert "output tokens/s                    20.00             80.00" in lines
    assert not [line for line in lines if "latency" in line]
    assert "latency, 99 %, ms                 900.00" in table(["batch 1"], [BATCH]).splitlines()


def test_a_comparison_tells_which_is_better_and_what_was_different() -> None:
    text = compared([ONE], [EIGHT])

    assert [line.split()[-1] for line in text.splitlines() if line.startswith(("output", "TTFT, median", "ITL"))] == [
        "B", "A", "same",
    ]  # fmt: skip
    assert "differs: max_concurrency: 1, 8" in text
    assert "4.00" in text


def test_sweeps_are_compared_by_their_concurrency() -> None:
    text = compared([ONE, EIGHT], [{**EIGHT, "output_throughput": 40.0}])

    assert "concurrency 8" in text
    assert "concurrency 1 " not in text
    with pytest.raises(EntrypointError, match="no run and no figure in common"):
        compared([ONE], [BATCH])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected a result"),
        ("3", "expected a result"),
        ([ONE] * 33, "expected a result"),
        ({"model_id": "m"}, "no figure"),
        ({**ONE, "output_throughput": "20"}, "expected a number, found '20'"),
        ({**ONE, "output_throughput": -1}, "expected a number"),
        ('{"output_throughput": 1e999}', "expected a number"),
        ("[" * 5000, "nested deeper"),
    ],
)
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, value: object, reason: str) -> None:
    with pytest.raises(EntrypointError) as caught:
        read_results(written(tmp_path, value))
    assert reason in caught.value.message


def test_a_pipe_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "/dev/zero"):
        with pytest.raises(EntrypointError, match="--compare"):
            read_results(path)


def test_requests_that_failed_are_counted() -> None:
    assert missing(ONE, 12) == 2
    assert missing(BATCH, 12) == 0


def test_the_number_of_requests_that_the_user_gave_to_the_benchmark_counts() -> None:
    assert missing({**ONE, "num_prompts": 11}, 80) == 1
    assert missing({**ONE, "num_prompts": "11"}, 12) == 2


def test_the_page_plots_what_every_run_has_and_loads_nothing() -> None:
    page = bench_page("cpu", "<m>", ["concurrency 1", "concurrency 8"], [ONE, {**EIGHT, "median_itl_ms": None}])

    assert page.count("<svg") == 2
    assert "Benchmark of &lt;m&gt;" in page
    assert "<script" not in page
    assert "http:" not in page
    assert "<svg" not in bench_page("cpu", "m", ["concurrency 1"], [ONE])
