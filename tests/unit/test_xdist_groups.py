"""Which engine tests run side by side."""

from __future__ import annotations

from pathlib import Path

from tests.support import xdist_groups

ENGINE = Path(__file__).parents[1] / "engine"


def test_every_module_of_a_group_exists_and_no_module_is_of_two() -> None:
    modules = [module for group in xdist_groups.GROUPS.values() for module in group]
    assert [module for module in modules if not (ENGINE / f"{module}.py").is_file()] == []
    assert len(modules) == len(set(modules))


def test_long_groups_start_first_and_the_registrys_modules_fill_the_time_that_is_left() -> None:
    paths = ("tests/registry/test_names.py", "tests/engine/test_run.py", "tests/engine/test_cpu_bench.py",
             "tests/engine/test_rebuilds.py", "tests/engine/test_build_many.py")  # fmt: skip
    ordered = sorted(map(xdist_groups.find_group, paths), key=xdist_groups.rank_group)
    assert ordered == ["small images", "small images", "server", "tests/engine/test_run.py", paths[0]]
