"""Write docs/attacks.md, which lists the attacks and faults that tests stage: `python tests/support/attacks.py`.

A test states its row itself: `@pytest.mark.attack(what="…", before="…", after="…")` on the function or the class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "attacks.md"
INTRODUCTION = """# Attacks and faults that the tests stage

Each row is staged by the test that it names. "Before" is what drydock did when the attack was first tried, "now" is
what the test requires. `./inv test` runs all of them. Protections and known limitations: [Security](security.md).
Generated from the tests by `tests/support/attacks.py`.
"""
HEAD = """
| attack or fault | before | now | test |
|---|---|---|---|
"""
SECTIONS = {
    "Inputs": ("unit/drydock/inputs/", "unit/drydock/lock/", "unit/drydock/examine/"),
    "Build machine": tuple(f"unit/drydock/{name}/" for name in ("build", "core", "engine", "oci", "repo")),
    "Bundles": ("unit/drydock/bundle/", "registry/test_bundle"),
    "Registries and published names": (
        "unit/drydock/attest/",
        "unit/drydock/publish/",
        "unit/drydock/registry/",
        "registry/",
    ),
    "Containers": ("",),
}
"""Heading → how the paths of its tests begin; the first that fits counts."""


def page() -> str:
    """Return the whole page."""
    sections: dict[str, list[str]] = {heading: [] for heading in SECTIONS}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        heading = next(heading for heading, begins in SECTIONS.items() if _place(path).startswith(begins))
        for name, what, before, after in _marked(path):
            sections[heading].append(f"| {what} | {before} | {after} | `tests/{_place(path)}::{name}` |\n")
    return INTRODUCTION + "".join(f"\n## {heading}\n{HEAD}{''.join(rows)}" for heading, rows in sections.items())


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT / "tests"))


def _marked(path: Path) -> Iterator[tuple[str, str, str, str]]:
    text = path.read_text()
    if "mark.attack(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.attack":
                said = {word.arg: ast.literal_eval(word.value) for word in mark.keywords}
                yield node.name, said["what"], said["before"], said["after"]


if __name__ == "__main__":
    PAGE.write_text(page())
