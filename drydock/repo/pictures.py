"""What two commands print → pictures of a terminal, docs/pictures/*.svg: `./inv demo` and a `plan`. IO: the plan runs.

docs/pictures/demo.txt is what `./inv demo` printed. A digest follows from the inputs, so the picture has the lock's.
"""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from drydock.config.matrix import find
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.prove.demo import TARGET
from drydock.run import entrypoint

FOLDER = "docs/pictures"
DEMO = f"{FOLDER}/demo.txt"
COLUMNS = 104
PLANNED, HOST, MODEL, SHOWN = "h100", "cuda-h100-8x", "Qwen/Qwen3-8B", "parallel-size ="
TARGETS = (TARGET, PLANNED)
_FONTS = re.compile(r"^ *@font-face \{.*?^ *\}\n", re.DOTALL | re.MULTILINE)
"""What Rich's picture loads from elsewhere."""


def pages(project: Project, variants: Sequence[Variant], digest: str) -> dict[Path, str]:
    """Return path → picture. `digest` is that of the image that the demo builds, empty if none is recorded."""
    found = {"demo.svg": _picture("./inv demo", demo(project, digest))}
    words = f"./inv entrypoint --target {PLANNED} --root tests/hosts/{HOST}/host.json -- plan --model {MODEL}"
    found["plan.svg"] = _picture(f"{words} | grep -A1 '{SHOWN}'", plan(project, find(variants, PLANNED)))
    return {project / FOLDER / name: text for name, text in found.items()}


def demo(project: Project, digest: str) -> str:
    """Return what the demo printed, with a digest."""
    text = re.sub(r"sha256:[0-9a-f]{64}", digest, (project / DEMO).read_text())
    return re.sub(rf"(?<=drydock/{TARGET}-)(\S+):[0-9a-f]{{12}}", rf"\1:{digest.removeprefix('sha256:')[:12]}", text)


def plan(project: Project, variant: Variant) -> str:
    """Return the lines of a recorded machine's plan that say how the model is split, and why."""
    host = project / "tests" / "hosts" / HOST / "host.json"
    argv, env = entrypoint.argv_of(project, variant, ("plan", "--model", MODEL, "--root", str(host)), {})
    printed = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    return "--\n".join(re.findall(rf"^.*{SHOWN}.*\n.*\n", printed, re.MULTILINE))  # as grep writes it


def _picture(command: str, printed: str) -> str:
    """Return a picture of a terminal in which a command has printed something."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
    console.print(Text.assemble(("$ ", "green"), (command, "bold"), "\n", printed.rstrip()))
    return _FONTS.sub("", console.export_svg(title=" "))
