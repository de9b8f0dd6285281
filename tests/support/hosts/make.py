"""Makes the recorded hosts of machines that were not available: `python tests/support/hosts/make.py`.

makers/<accelerator>.py says what they are, as files of a folder. Each host's `origin` says what it was made from and
what was added. Hosts that are not made here were recorded by `facts --record` on the machine itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(ROOT))

from entrypoints.facts.record import FILE, dumps  # noqa: E402 - after the path is set
from tests.support.hosts.pieces import Tree  # noqa: E402

HOSTS = ROOT / "tests" / "hosts"
VARIANT = "variant"
"""The file that names the variant that a host is planned with; without it, the default of its name's accelerator."""
_OWN = {"commands.json", "machine", "mounts.json", "origin", VARIANT}
"""Files of a tree that are not files of the host itself."""


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    makers = sorted(path.stem for path in (HERE / "makers").glob("*.py"))
    return {
        name: tree
        for maker in makers
        for name, tree in import_module(f"tests.support.hosts.makers.{maker}").trees().items()
    }


def document(tree: Mapping[str, str]) -> dict[str, Any]:
    """Return what host.json holds of a host's tree."""
    return {
        "origin": tree.get("origin", "").strip(),
        "machine": tree["machine"].strip(),
        "mounts": json.loads(tree["mounts.json"]),
        "files": {f"/{path}": text for path, text in tree.items() if path not in _OWN},
        "links": {},
        "commands": json.loads(tree["commands.json"]),
    }


def tree(name: str) -> Tree:
    """Return a committed host as the files of a folder, which `--root` reads as well."""
    host = json.loads((HOSTS / name / FILE).read_text())
    return {
        "machine": host["machine"] + "\n",
        "mounts.json": dumps(host["mounts"]),
        "commands.json": dumps(host["commands"]),
        **{path[1:]: text for path, text in host["files"].items()},
    }


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write a tree below a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def read(folder: Path) -> Tree:
    """Read a tree back."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def main() -> None:
    """Write every made host; what is expected of it stays."""
    for name, files in trees().items():
        own = {VARIANT: files[VARIANT]} if VARIANT in files else {}
        write(HOSTS / name, {FILE: dumps(document(files)), **own})


if __name__ == "__main__":
    main()
