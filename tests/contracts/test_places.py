"""Where things are: a folder has one subject, walks lead through the code, and groups of engine tests name modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from drydock.core.paths import ROOT
from drydock.pages.folder_tables import read_first_line
from tests.support import xdist_groups

pytestmark = pytest.mark.checkout
STEP = re.compile(r"^\d+\. `([\w/]+\.py): (\w+)`: .+[.:]$")
"""A step of a walk: the file, the function in it, and what it does."""
WALKS = ("One build", "One start")
FLOWS = {
    "drydock/verbs/adopt_verb.py": (
        "open_base",
        "check_signature",
        "require_facts",
        "write_row",
        "assemble_image",
        "push_image",
    ),
    "drydock/verbs/build_verb.py": ("prepare_pinned_job", "build_image", "select_locked_rows", "build_all"),
    "drydock/verbs/bump_verb.py": ("set_version", "lock_and_render"),
    "drydock/verbs/lock_verb.py": ("match_folders", "resolve_and_write", "find_lost_commits", "report_stale_files"),
    "drydock/verbs/publish_verb.py": (
        "list_built_layouts",
        "require_recorded",
        "push_blobs",
        "attach_documents",
        "tag",
    ),
    "entrypoints/verbs/serve_verb.py": ("read_localized_profile", "plan_command_line", "has_failures", "serve_plan"),
}
"""The file of a verb → steps that it calls itself: a flow behind one call would need a second file to be read."""


def test_a_folder_is_one_subject() -> None:
    """A sentence that needs `and` is about two."""
    folders = [path for package in ("drydock", "entrypoints") for path in (ROOT / package).iterdir() if path.is_dir()]
    lines = {
        str(path.relative_to(ROOT)): read_first_line(path).partition(". ")[0]
        for path in folders
        if (path / "__init__.py").is_file()
    }
    assert len(lines) > 30
    assert {name: line for name, line in lines.items() if not line or re.search(r"\band\b", line)} == {}


def read_walk(heading: str) -> Iterator[tuple[str, str]]:
    """Yield file and function of each step of a walk."""
    _, _, text = (ROOT / "ARCHITECTURE.md").read_text().partition(f"\n### {heading}\n")
    for line in text.partition("\n#")[0].splitlines():
        if re.match(r"\d", line):
            step = STEP.match(line)
            assert step, line
            yield step[1], step[2]


def list_names(file: str, function: str) -> set[str]:
    """Return the names that a function uses. Raises StopIteration if the file has no such function."""
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    body = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == function)
    names = {node.attr for node in ast.walk(body) if isinstance(node, ast.Attribute)}
    return names | {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("heading", WALKS)
def test_each_step_of_a_walk_is_called_by_one_before_it(heading: str) -> None:
    steps = [*read_walk(heading)]
    assert len(steps) == 10
    for number, (_, function) in enumerate(steps):
        callers = [list_names(*step) for step in steps[:number]]
        assert number == 0 or any(function in names for names in callers), function


@pytest.mark.parametrize("file", FLOWS)
def test_the_file_of_a_verb_calls_its_steps(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    called |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert {*FLOWS[file]} - called == set()


ENGINE = ROOT / "tests" / "engine"


def test_every_module_of_a_group_exists_and_no_module_is_of_two() -> None:
    modules = [module for group in xdist_groups.GROUPS.values() for module in group]
    assert [module for module in modules if not (ENGINE / f"{module}.py").is_file()] == []
    assert len(modules) == len(set(modules))


def test_long_groups_start_first_and_the_registrys_modules_fill_the_time_that_is_left() -> None:
    paths = ("tests/registry/test_names.py", "tests/engine/test_run.py", "tests/engine/test_cpu_bench.py",
             "tests/engine/test_rebuilds.py", "tests/engine/test_build_many.py")  # fmt: skip
    ordered = sorted(map(xdist_groups.find_group, paths), key=xdist_groups.rank_group)
    assert ordered == ["small images", "small images", "server", "tests/engine/test_run.py", paths[0]]
