"""Results of vLLM's benchmarks as a picture; figures are measured in turns, on the machine that is read."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench import bench_machine, results, turns
from drydock.core.errors import InputError

ONE = {"max_concurrency": 1, "output_throughput": 20.0, "median_ttft_ms": 50.0, "median_itl_ms": 10}
EIGHT = {**ONE, "max_concurrency": 8, "output_throughput": 80.0, "median_itl_ms": None}


def folder_of(path: Path, **values: object) -> Path:
    for name, value in values.items():
        (path / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_figure_that_every_run_has_is_drawn_by_concurrency(tmp_path: Path) -> None:
    drawing = ET.fromstring(results.plot_results(folder_of(tmp_path, a=EIGHT, b=ONE)))  # noqa: S314 - our own
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]

    assert [text for text in texts if text in results.METRICS.values()] == ["output tokens/s", "TTFT, median, ms"]
    assert texts[2:6] == ["20", "b", "80", "a"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [({}, "no figure"), ({"a": ONE, "b": {}}, "no figure"), ({"a": [ONE]}, "no figure"), ({"a": "{"}, "a.json: ")],
)
def test_a_folder_without_results_is_refused(tmp_path: Path, values: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        results.plot_results(folder_of(tmp_path, **values))


def test_measures_alternate_and_reverse_their_order() -> None:
    order: list[str] = []
    measures = {name: lambda name=name: float(len(order.append(name) or order)) for name in ("ours", "theirs")}
    figures = turns.in_turns(measures, 2, "s")

    assert order == ["ours", "theirs", "theirs", "ours"]
    assert figures["ours"].values == (1, 4)


def test_the_machine_is_read_from_the_machine() -> None:
    machine = bench_machine.read_machine()
    assert machine.cpus >= 1
    assert machine.memory > 1 << 28
    assert json.loads(machine.model_dump_json())["kernel"]
