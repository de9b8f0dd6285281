"""What users rely on is found, and what breaks it is told from what adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.development import surface
from drydock.development.surface import SurfaceChanges, compare_surfaces, find_unnamed_changes


def test_the_surface_has_what_users_rely_on_and_not_what_develops_drydock() -> None:
    current = surface.collect_surface(read_matrix(DRYDOCK))

    assert current["tasks"]["build"] == ""
    assert current["tasks"]["build --target"] == "values"
    assert current["tasks"]["build --offline"] == "nothing"
    assert current["tasks"]["build --context"] == "values"
    assert current["tasks"]["topology check --fabric"] == "nothing"
    assert not [name for name in current["tasks"] if name.split()[0] in ("test", "lint", "ci", "bench", "release")]
    assert current["verbs of an image"]["plan --diff"] == "two values"
    assert "2 InputError" in current["exit codes"]
    assert "3 CHECK_FAILED" in current["exit codes of an image"]
    assert {"HOST-001", "TOPO-001"} <= current["findings"].keys()
    assert {"io.drydock.variant", "io.drydock.support", "io.drydock.stand-in"} <= current["labels"].keys()
    assert current["keys"]["matrix.variants.*.support.until"] == "required, string"
    assert current["keys"]["topology.nodes[].name"] == "required, string"
    assert {'stack.base.kind "debian"', "stack.checks+"} <= current["keys"].keys()
    assert not [name for name in current["keys"] if name.startswith("profile")]


OLD = {"keys": {"a": "object", "a.b": "string", "a.c": "required, string"}, "tasks": {"run": "", "run --x": "nothing"}}


@pytest.mark.parametrize(
    ("kind", "name", "text", "added", "broken"),
    [
        ("keys", "a.b", "integer, string", 0, 0),
        ("keys", "a.b", "integer", 0, 1),
        ("keys", "a.b", "required, string", 0, 1),
        ("keys", "a.c", "string", 0, 0),
        ("keys", "a.d", "string", 1, 0),
        ("keys", "a.d", "required, string", 0, 1),
        ("keys", "z", "required, string", 1, 0),
        ("tasks", "run --x", "a value", 0, 1),
        ("tasks", "run --y", "a value", 1, 0),
        ("tasks", "run --y", "a value, required", 0, 1),
        ("tasks", "stop --y", "a value, required", 1, 0),
        ("labels", "io.x", "", 1, 0),
    ],
)
def test_more_is_added_and_less_or_what_is_required_now_is_broken(
    kind: str, name: str, text: str, added: int, broken: int
) -> None:
    comparison = compare_surfaces(OLD, {**OLD, kind: {**OLD.get(kind, {}), name: text}})
    assert (len(comparison.added), len(comparison.broken)) == (added, broken)


def test_what_is_gone_is_broken() -> None:
    assert compare_surfaces(OLD, {"keys": OLD["keys"]}) == SurfaceChanges((), (("tasks", "run"), ("tasks", "run --x")))


@pytest.mark.parametrize(
    ("kind", "name", "text", "named"),
    [
        ("tasks", "build --relock", "`build --relock` is gone", True),
        ("tasks", "build --relock", "`build --relock-all`", False),
        ("tasks", "build", "the verb build", True),
        ("tasks", "build", "rebuild, build-side, builds", False),
        ("keys", "stack.checks[].fix.wrong", "a fix's `wrong` is `right`", True),
        ("keys", "stack.env.*", "`env` of a stack", True),
        ("keys", "stack.env.*", "an environment", False),
        ("keys", 'stack.base.kind "debian"', "bases of kind `debian`", True),
        ("exit codes", "12 TagError", "exit code 12 is", True),
        ("exit codes", "12 TagError", "Python 3.12 and 12.1", False),
        ("findings", "IMG-001", "IMG-001.", True),
        ("findings", "IMG-001", "IMG-0011", False),
    ],
)
def test_a_changelog_names_the_last_part_of_a_name(kind: str, name: str, text: str, *, named: bool) -> None:
    assert (find_unnamed_changes([(kind, name)], text) == []) == named


def test_what_is_recorded_is_read_or_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"git checkout tests/surface\.json"):
        surface.read_recorded(tmp_path)
    (tmp_path / surface.FILE).parent.mkdir(parents=True)
    (tmp_path / surface.FILE).write_text(surface.format_surface("1.2.0", OLD))
    assert surface.read_recorded(tmp_path) == ("1.2.0", OLD)
    (tmp_path / surface.FILE).write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        surface.read_recorded(tmp_path)
