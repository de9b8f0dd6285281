"""Figures → page and pictures; the committed ones match the committed figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import bench_page, bench_records, run
from bench.bench_records import BenchmarkMachine, Figure, Goal, MeasuredPart, Measurement, Report
from drydock.core.errors import InputError, StaleError

HALF = Goal(compares="ratio", sense="at most", limit=0.5)
MACHINE = BenchmarkMachine(
    processor="Xeon", cpus=2, memory=24 << 30, kernel="6.1", system="Debian", python="3.11.7", engine="", load=0.5
)


def row(ours: tuple[float, ...], theirs: tuple[float, ...], goal: Goal = HALF) -> Measurement:
    return Measurement(
        what="a < b",
        against="plain",
        goal=goal,
        ours=Figure(unit="s", values=ours),
        theirs=Figure(unit="s", values=theirs),
        command="./inv bench tool",
        note="this is the floor",
    )


def part(*rows: Measurement) -> MeasuredPart:
    return MeasuredPart(commit="abc", date="2026-11-21", machine=MACHINE, rounds=3, seconds=90, rows=rows)


REPORT = Report(parts={"tool": part(row((1, 5, 2), (4, 4, 8)))})


@pytest.mark.parametrize(
    ("goal", "ours", "met"),
    [
        (HALF, (2.0,), True),
        (HALF, (2.1,), False),
        (Goal(compares="ratio", sense="at least", limit=1.4), (5.6,), True),
        (Goal(compares="ratio", sense="at least", limit=1.4), (5.5,), False),
        (Goal(compares="ours", sense="at most", limit=3), (3.0,), True),
        (Goal(compares="ours", sense="at most", limit=3), (3.1,), False),
    ],
)
def test_a_goal_is_met_or_not(goal: Goal, ours: tuple[float, ...], met: bool) -> None:
    assert row(ours, (4.0,), goal).met is met


def test_one_outlier_of_many_does_not_decide() -> None:
    figures = row((1, 1, 1, 1, 1, 1, 1, 90), (4,) * 8)
    assert (figures.value, figures.interval, figures.met) == (0.25, (0.25, 0.25), True)


def test_the_ratio_is_that_of_each_round() -> None:
    slower_rounds = row((1, 2, 4), (4, 8, 16))  # the machine was slower and slower: both figures, not their ratio
    assert (slower_rounds.interval, slower_rounds.met) == ((0.25, 0.25), True)


@pytest.mark.parametrize(("count", "left_out"), [(1, 0), (2, 0), (4, 0), (5, 0), (7, 0), (8, 1), (11, 2), (13, 3)])
def test_bounds_leave_out_values_only_where_the_rest_is_certain(count: int, left_out: int) -> None:
    assert bench_records.find_median_bounds(range(count)) == (left_out, count - 1 - left_out)


@pytest.mark.parametrize(
    ("ours", "ratio", "met"),
    [
        ((2, 3, 6), "0.75 (0.5 to 1.2)", "not known"),
        ((1, 1.5, 2), "0.375 (0.25 to 0.4)", "yes"),
        ((3, 3, 3), "0.75 (0.6 to 0.75)", "**no**"),
    ],
)
def test_a_goal_is_met_or_not_only_if_both_bounds_say_so(ours: tuple[float, ...], ratio: str, met: str) -> None:
    cells = bench_page.format_cells(row(ours, (4, 4, 5)))
    assert (cells[-3], cells[-1]) == (f"{ratio} {bench_page.TIMES}", met)


def test_page_and_pictures_are_written_with_the_figures(tmp_path: Path) -> None:
    paths = bench_page.record_parts(tmp_path, REPORT.parts)

    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "docs/benchmarks.json",
        "docs/benchmarks.md",
        "docs/benchmarks/tool.svg",
    ]
    assert bench_page.find_stale_files(tmp_path) == []
    text = paths[1].read_text()
    assert "| a < b | plain | 2 (1 to 5) s | 4 (4 to 8) s |" in text
    assert "this is the floor" in text
    assert "Xeon, 2 CPUs, 24 GiB" in text


def test_recording_a_part_keeps_the_others(tmp_path: Path) -> None:
    bench_page.record_parts(tmp_path, REPORT.parts)
    bench_page.record_parts(tmp_path, {"size": part(row((1,), (2,)))})

    assert sorted(bench_page.read_report(tmp_path).parts) == ["size", "tool"]


def test_an_edited_page_is_stale(tmp_path: Path) -> None:
    bench_page.record_parts(tmp_path, REPORT.parts)
    (tmp_path / bench_page.PAGE).write_text("better")

    assert bench_page.find_stale_files(tmp_path) == [bench_page.PAGE]


def test_a_broken_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / bench_page.RECORDED).write_text("{}")
    with pytest.raises(StaleError, match=r"docs/benchmarks\.json: "):
        bench_page.read_report(tmp_path)


def test_an_unknown_part_is_an_error() -> None:
    with pytest.raises(InputError, match="unknown part 'tol'"):
        run.run_benchmarks("tol", 1, {})


def test_what_was_measured_before_a_part_failed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> list[Measurement]:
        raise InputError("no room")

    benches = {"size": run.Bench(lambda _: [], 3), "ship": run.Bench(fails, 1)}
    monkeypatch.setattr(run, "BENCHES", benches)
    monkeypatch.setattr("bench.plain_image.remove_plain_images", lambda: None)
    parts: dict[str, MeasuredPart] = {}
    with pytest.raises(InputError, match="no room"):
        run.run_benchmarks("", 0, parts)
    assert [(name, part.rounds) for name, part in parts.items()] == [("size", 3)]


def test_the_short_form_measures_the_parts_that_have_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    benches = {
        "size": run.Bench(lambda _: [], 3),
        "growth": run.Bench(lambda _: [], 3, lambda: [row((1,), (4,))]),
    }
    monkeypatch.setattr(run, "BENCHES", benches)
    parts: dict[str, MeasuredPart] = {}
    run.run_benchmarks("", 0, parts, short=True)
    assert {name: part.rounds for name, part in parts.items()} == {"growth": 1}
    table = run.format_parts(parts, json=False, short=True)
    assert table.splitlines()[2:] == [f"| a < b | plain | 0.25 {bench_page.TIMES} |"]
    with pytest.raises(InputError, match="size has no short form"):
        run.run_benchmarks("size", 0, parts, short=True)
