"""A project's files lie over drydock's: later wins key by key, and nothing takes a name by accident."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.config.layers import merged
from drydock.config.matrix import find, read_matrix
from drydock.config.strict_yaml import parse_yaml
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project

Write = Callable[..., Project]

ROW = """
schema: 1
variants:
  acme-h100: {stack: acme, inherits: drydock/cuda13.0-vllm0.33, aliases: [acme]}
"""
STACK = """
inherits: drydock/cuda-13.0-0.33
summary: ours, with one more package
requirements+: [structlog==25.1.0]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a project over drydock's own files."""

    def write(**files: str) -> Project:
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Project(tmp_path, (ROOT,))

    return write


def test_a_higher_layer_wins_key_by_key_and_a_plus_adds() -> None:
    below = parse_yaml("env: {A: 1, B: 2}\nlist: [a]\nmore: [a, b]\n", "below")
    above = parse_yaml("env: {B: 3}\nlist: [z]\nmore+: [c]\nnew+: [d]\n", "above")
    found = merged([below, above])
    assert found.data == {"env": {"A": 1, "B": 3}, "list": ["z"], "more": ["a", "b", "c"], "new": ["d"]}
    assert found.problem(("env", "A"), "x") == "below: env.A: x (line 1, column 10)"
    assert found.problem(("env", "B"), "x") == "above: env.B: x (line 1, column 10)"
    assert found.problem(("more", 2), "x") == "above: more[2]: x (line 3, column 9)"


def test_a_row_and_a_stack_say_what_differs(write: Write) -> None:
    project = write(**{"matrix.yaml": ROW, "templates__cuda__stacks__acme.yaml": STACK})
    variants = read_matrix(project)
    ours, theirs = find(variants, "acme"), find(variants, "cuda")
    assert ours.requirements == (*theirs.requirements, "structlog==25.1.0")
    assert (ours.platforms, ours.default, ours.vllm) == (theirs.platforms, False, theirs.vllm)
    assert len(variants) == len(read_matrix(Project(ROOT))) + 1


def test_an_accelerators_keys_are_changed_in_the_project(write: Write) -> None:
    env = "env:\n  CUDA_DEVICE_ORDER: {value: FASTEST_FIRST, because: ours, source: us}\n"
    project = write(**{"matrix.yaml": "schema: 1\n", "templates__cuda__accelerator.yaml": env})
    setting = {each.setting: each.value for each in find(read_matrix(project), "cuda").settings}
    assert setting["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_default_of_the_project_replaces_drydocks(write: Write) -> None:
    row = ROW.replace("aliases: [acme]", "default: true")
    project = write(**{"matrix.yaml": row, "templates__cuda__stacks__acme.yaml": STACK})
    assert find(read_matrix(project), "cuda").id == "acme-h100"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"matrix.yaml": "schema: 1\nvariants:\n  router0.1: {stack: router-0.1, platforms: [linux/amd64]}\n"},
            "drydock has a row 'router0.1'",
        ),
        ({"matrix.yaml": ROW.replace("drydock/cuda13.0", "drydock/cuda14.0")}, "unknown row 'drydock/cuda14.0"),
        (
            {"matrix.yaml": "schema: 1\n", "templates__cuda__stacks__cuda-13.0-0.33.yaml": "summary: ours\n"},
            "drydock has a stack 'cuda-13.0-0.33'",
        ),
        ({"matrix.yaml": "schema: 1\nvariant: {}\n"}, "matrix.yaml: unknown key 'variant' (line 2"),
    ],
)
def test_a_name_is_not_taken_by_accident(write: Write, files: dict[str, str], expected: str) -> None:
    with pytest.raises(InputError, match="") as raised:
        read_matrix(write(**files))
    assert expected in "\n".join([*raised.value.problems, raised.value.hint])
