"""An id of a finding has one meaning and one accelerator's prefix, and a retired one is never used again."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import read_matrix
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.checks import list_placeholders

STACK = """
summary: a stack
vllm: {version: "1", distribution: vllm, origin: somebody}
python: "3.11"
module: vllm.server
requirements: [vllm==1]
layers: [{name: rest}]
compression: {algorithm: zstd, level: 3}
base: {kind: debian, suite: bookworm, packages: [python3]}
"""
MATRIX = """
schema: 1
epoch: 1
variants:
  one-1: {stack: one, default: true, platforms: [linux/amd64]}
  two-1: {stack: two, default: true, platforms: [linux/amd64]}
"""
CHECK = """{id: NUMBER, fact: FACT, operator: present, severity: WARN, scope: host, text: a, passed: b, remediation: r,
  source: s}"""
FACTS = "facts: {a.b: /proc/x, c.d: /proc/x, e.f: /proc/x}\n"
WORDS = "{severity: WARN, scope: host, text: TEXT, remediation: r, source: s}"


def check(number: str, fact: str) -> str:
    return CHECK.replace("NUMBER", number).replace("FACT", fact)


def findings(number: str, text: str) -> str:
    return f"findings:\n  {number}: {WORDS.replace('TEXT', text)}\n"


def read(folder: Path, *, host: str = "", one: str = "", two: str = "", stack: str = "") -> None:
    """Read a matrix of two accelerators with what is added to its files."""
    (folder / "matrix.yaml").write_text(MATRIX)
    for name, more, checks in (("one", one, f"checks: [{stack}]\n"), ("two", two, "")):
        path = folder / "templates" / name / "accelerator.yaml"
        (path.parent / "stacks").mkdir(parents=True)
        (path.parent / "stacks" / f"{name}.yaml").write_text(STACK + checks)
        path.write_text(f"schema: 1\naccelerator: {name}\ntitle: T\nsummary: s\n{more}")
    (folder / "templates" / "host.yaml").write_text(f"schema: 1\n{FACTS}checks: [{check('HOST-001', 'a.b')}]\n{host}")
    read_matrix(Project(folder))


def test_ids_with_one_meaning_are_read(tmp_path: Path) -> None:
    read(
        tmp_path,
        host=findings("PLAN-001", "x"),
        one=f"checks: [{check('HOST-001', 'a.b')}, {check('ONE-001', 'c.d')}]\n{findings('ONE-031', 'y')}",
        two=findings("TWO-031", "y"),
        stack=check("ONE-001", "c.d"),
    )


@pytest.mark.parametrize(
    ("added", "words"),
    [
        (
            {"one": f"checks: [{check('HOST-001', 'c.d')}]\n"},
            ("templates/one/accelerator.yaml: checks[0]: HOST-001", "templates/host.yaml: checks[0]"),
        ),
        (
            {"one": f"checks: [{check('ONE-001', 'c.d')}]\n", "stack": check("ONE-001", "e.f")},
            ("templates/one/stacks/one.yaml: checks[0]: ONE-001", "templates/one/accelerator.yaml: checks[0]"),
        ),
        (
            {"host": findings("PLAN-001", "x"), "two": findings("PLAN-001", "y")},
            ("templates/two/accelerator.yaml: findings.PLAN-001", "templates/host.yaml: findings.PLAN-001"),
        ),
        (
            {"one": f"checks: [{check('ONE-001', 'c.d')}]\n{findings('ONE-001', 'x')}"},
            ("templates/one/accelerator.yaml: findings.ONE-001", "templates/one/accelerator.yaml: checks[0]"),
        ),
        (
            {"host": "retired: [{id: ONE-001, meaning: this}]\n", "one": findings("ONE-001", "x")},
            ("templates/one/accelerator.yaml: findings.ONE-001", "is retired in templates/host.yaml: it meant this"),
        ),
        (
            {"one": findings("ONE-001", "x"), "two": findings("ONE-002", "y")},
            ("templates/two/accelerator.yaml: findings.ONE-002", "has the prefix of one: templates/one/"),
        ),
    ],
)
def test_an_id_with_another_meaning_is_refused_with_both_places(
    tmp_path: Path, added: dict[str, str], words: tuple[str, str]
) -> None:
    with pytest.raises(InputError) as raised:
        read(tmp_path, **added)

    assert all(word in raised.value.problems[0] for word in words)


@pytest.mark.parametrize("text", ["{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>9}", "{", "}"])
def test_words_have_plain_names_in_braces_or_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"findings\.ONE-001\.text"):
        read(tmp_path, one=findings("ONE-001", f'"{text}"'))


def test_a_brace_is_written_twice() -> None:
    assert list_placeholders("{{a}} {b} {c}, {b}") == {"b", "c"}
