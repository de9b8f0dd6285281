"""Makes the recorded hosts that nobody's machine was at hand for: `python tests/hosts/make.py`.

makers/<accelerator>.py says what they are. Each host's file `origin` says what it was made from and what was added.
Hosts that are not made here were recorded by `facts --record` on the machine itself.
"""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from tests.hosts.pieces import Tree  # noqa: E402 - after the path is set

EXPECTED = ("facts.json", "findings.json", "plan.json")
"""What expect.py writes beside a tree."""


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    makers = sorted(path.stem for path in (HERE / "makers").glob("*.py"))
    return {
        name: tree for maker in makers for name, tree in import_module(f"tests.hosts.makers.{maker}").trees().items()
    }


def read(folder: Path) -> Tree:
    """Read a host's tree back, without what is expected of it."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    texts = {str(path.relative_to(folder)): path.read_text() for path in files}
    return {path: text for path, text in texts.items() if path not in EXPECTED}


def main() -> None:
    """Write every made host anew, keeping what is expected of it."""
    for name, tree in trees().items():
        folder = HERE / name
        kept = {name: (folder / name).read_text() for name in EXPECTED if (folder / name).exists()}
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in {**tree, **kept}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)


if __name__ == "__main__":
    main()
