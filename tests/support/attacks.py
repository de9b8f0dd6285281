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

| attack or fault | before | now | test |
|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    rows = (
        f"| {what} | {before} | {after} | `{path.relative_to(ROOT)}::{name}` |\n"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name, what, before, after in _marked(path)
    )
    return INTRODUCTION + "".join(rows)


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
