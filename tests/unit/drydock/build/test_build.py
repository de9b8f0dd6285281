"""How the seconds of a build are counted."""

from __future__ import annotations

from drydock.build import build


def test_the_clock_names_its_laps() -> None:
    clock = build.Clock()
    clock.lap("fetch")
    clock.lap("build")

    assert list(clock.laps) == ["fetch", "build"]
    assert clock.total() >= 0
