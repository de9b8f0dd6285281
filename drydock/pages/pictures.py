"""What two commands print → pictures of a terminal, docs/pictures/*.svg: `./inv demo` and a `plan`. IO: the plan runs.

docs/pictures/demo.txt is what `./inv demo` printed. The picture has the digest of the last release.
"""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

from rich.console import Console
from rich.text import Text

from drydock.config.matrix import find_variant, read_matrix
from drydock.core.project import Project
from drydock.model.variant import Variant
from drydock.pages import matrix_table
from drydock.prove.demo import TARGET
from drydock.run import entrypoint

FOLDER = "docs/pictures"
DEMO = f"{FOLDER}/demo.txt"
COLUMNS = 104
PLANNED, HOST, MODEL, SHOWN = "h100", "cuda-h100-8x", "Qwen/Qwen3-8B", "parallel-size ="
_FONTS = re.compile(r"^ *@font-face \{.*?^ *\}\n", re.DOTALL | re.MULTILINE)
"""What Rich's picture loads from elsewhere."""


def render_pictures(project: Project) -> dict[Path, str]:
    """Return path → picture."""
    variants = read_matrix(project)
    (built,) = matrix_table.make_recorded_rows(project, [find_variant(variants, TARGET)])
    words = f"./inv entrypoint --target {PLANNED} --root tests/hosts/{HOST}/host.json -- plan --model {MODEL}"
    pictures = {
        "demo.svg": _draw_terminal("./inv demo", read_demo_output(project, built["digest"])),
        "plan.svg": _draw_terminal(
            f"{words} | grep -A1 '{SHOWN}'", run_recorded_plan(project, find_variant(variants, PLANNED))
        ),
    }
    return {project / FOLDER / name: text for name, text in pictures.items()}


def read_demo_output(project: Project, digest: str) -> str:
    """Return what the demo printed, with a digest; as it was if that is empty."""
    text = (project / DEMO).read_text()
    if not digest:
        return text
    short = digest.removeprefix("sha256:")[:12]
    return re.sub(r"sha256:[0-9a-f]{64}", digest, re.sub(r"(image .*):[0-9a-f]{12}", rf"\1:{short}", text))


def run_recorded_plan(project: Project, variant: Variant) -> str:
    """Return the lines of a recorded machine's plan that say how the model is split, and why."""
    host = project / "tests" / "hosts" / HOST / "host.json"
    argv, env = entrypoint.argv_of(project, variant, ("plan", "--model", MODEL, "--root", str(host)), {})
    printed = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    return "--\n".join(re.findall(rf"^.*{SHOWN}.*\n.*\n", printed, re.MULTILINE))  # as grep writes it


def _draw_terminal(command: str, printed: str) -> str:
    """Return a picture of a terminal in which a command has printed something."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
    console.print(Text.assemble(("$ ", "green"), (command, "bold"), "\n", printed.rstrip()))
    return _FONTS.sub("", console.export_svg(title=" "))
