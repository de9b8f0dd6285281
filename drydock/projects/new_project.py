"""The files of a new project, small, to begin with. IO."""

from __future__ import annotations

import platform
import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from drydock.build.build_job import ARCHITECTURES
from drydock.ci import ci_requirements, workflow
from drydock.ci.own_wheel import OwnWheel
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK, PROJECT_FILE
from drydock.core.console import as_lines
from drydock.core.errors import InputError
from drydock.core.files import write_atomically
from drydock.core.paths import PROJECT_OPTION, ROOT
from drydock.core.project import LOWEST, Project
from drydock.core.user_language import translate_lines
from drydock.model.record import IDENTIFIER_AT_MOST
from drydock.model.variant import Variant

NO_CI = "none"
SCHEMAS = ("matrix.schema.json", "stack.schema.json", "accelerator.schema.json", "project.schema.json")
NAMELESS = "project"
"""Name of a project whose folder has no Latin letter and no digit in its name."""
_ROW = "-cpu"
"""End of the id of a project's first row: any machine builds and runs it."""
_PROJECT = """\
# yaml-language-server: $schema=.schemas/project.schema.json
#
# A drydock project: its files lie over drydock's own, and a key that both have is the project's.

schema: 1
name: "{name}"
rows: all # of drydock's rows; or [cuda13.0-vllm0.33, …]. Your own rows are in matrix.yaml
# registry: registry.example/vllm # where `publish` pushes to
# recipes: none # or https://HOST/PATH, or a folder with models/: where `recipes` takes vLLM's published recipes from
# mirrors: mirrors.yaml # of registries, git hosts and package indexes, for everyone who builds this project
additions: {{}} # what every image gets, drydock's rows too, in place of {{}}:
  # certificates: certificates # folder with NAME.crt files: authorities that the image trusts
  # files: {{/etc/motd: files/motd}} # path in the image: file of the project
  # labels: {{com.example.team: inference}}
  # user: "20000:0"
  # dockerfile: # lines that no key expresses
  #   - {{name: scanner, because: our scanner wants it gone, lines: ["RUN rm -f /usr/bin/passwd"]}}
"""
_MATRIX = """\
# yaml-language-server: $schema=.schemas/matrix.schema.json
#
# Your rows. `drydock matrix` lists them with drydock's own; `drydock lock`, `render` and `build` make them.
# `drydock project add PACKAGE` gives a row one more package, `--debian NAME` one of Debian, `--certificate FILE` trust.

schema: 1
variants:
  {row}: # a row of drydock with what differs
    inherits: drydock/{parent}
    # serve: # flags of vLLM, unless the user sets them
    #   --max-num-seqs: {{value: 64, because: our requests are long, source: our benchmark of May}}
  # {name}-cuda: # for NVIDIA's cards
  #   inherits: drydock/{cuda}
"""
_IGNORED = "/.cache/\n/.venv/\n"
_ATTRIBUTES = """\
# LF whatever core.autocrlf says: these files are hashed into locks and images.
* text=auto eol=lf
"""


class NewProject(NamedTuple):
    """A project that was written."""

    files: Sequence[Path]
    commands: Sequence[str]
    """What to run next, to build its first row."""


def write_new_project(folder: Path, ci: str, wheel: OwnWheel | None = None, *, dry_run: bool = False) -> NewProject:
    """Write a project into a folder, which is named after it; with `dry_run` only say which files that would be.

    Raises InputError for a folder that has one, for a file that exists, for a place that cannot be written.
    """
    name = name_project(folder)
    contents = {folder / path: data for path, data in make_project_files(name, wheel).items()}
    paths = [*contents, *(folder / path for server, path in workflow.PATHS.items() if server == ci)]
    if existing := [path for path in paths if path.exists()]:
        raise InputError(*(f"{path}: exists, and is not overwritten" for path in existing), hint="name a new folder")
    try:
        for path, data in contents.items() if not dry_run else ():
            write_atomically(path, data)
        if ci != NO_CI and not dry_run:
            project = Project(folder.absolute(), (ROOT,))
            workflow.write(project, read_matrix(project), ci)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", hint="name another folder") from error
    return NewProject(paths, next_commands(folder, f"{name}{_ROW}"))


def name_project(folder: Path) -> str:
    """Return the name of a folder's project: what a row's id, an image's name and a file's name may contain.

    Raises InputError for the root of all folders.
    """
    of = folder.resolve().name
    if not of:
        raise InputError(f"{folder}: is no folder for a project", hint="name a folder in it")
    ascii_name = unicodedata.normalize("NFKD", of).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9]+", "-", ascii_name)[: IDENTIFIER_AT_MOST - len(_ROW)].strip("-")
    return f"{words}-{NAMELESS}" if words == LOWEST else words or NAMELESS


def make_project_files(name: str, wheel: OwnWheel | None) -> Mapping[str, str | bytes]:
    """Return the files of a new project but for its CI, by their path. Reads the schemas and drydock's rows."""
    variants = read_matrix(DRYDOCK)
    parent, row = choose_parent(variants, "cpu"), f"{name}{_ROW}"
    rows = {"parent": parent.id, "cuda": choose_parent(variants, "cuda").id}
    return {
        PROJECT_FILE: _PROJECT.format(name=name),
        "matrix.yaml": _MATRIX.format(name=name, row=row, **rows),
        ".gitattributes": _ATTRIBUTES,
        ".gitignore": _IGNORED,
        **ci_requirements.make_requirement_files(wheel),
        **read_schemas(),
    }


def read_schemas() -> dict[str, str]:
    """Return the schemas that a project has for its editor, by their path in it."""
    schemas = Path(__file__).parents[1] / "config" / "schemas"
    return {f".schemas/{name}": (schemas / name).read_text(encoding="utf-8") for name in SCHEMAS}


def choose_parent(variants: Sequence[Variant], accelerator: str, machine: str = "") -> Variant:
    """Return the row of an accelerator that this machine builds: the default one, else the one with the newest vLLM."""
    machine_platform = ARCHITECTURES.get(machine or platform.machine(), "")
    rows = [variant for variant in variants if variant.accelerator == accelerator]
    return max(
        rows, key=lambda row: (machine_platform in row.platforms, row.default, row.hermetic, Version(row.vllm.version))
    )


def next_commands(folder: Path, row: str) -> list[str]:
    """Return the commands that lock, render and build a row, as one types them. Pure."""
    program = f"./inv {PROJECT_OPTION} {shlex.quote(str(folder))}"
    return [f"{program} lock --target {row}", f"{program} render", f"{program} build --target {row}"]


def report_project(new_project: NewProject, *, dry_run: bool = False) -> str:
    """Return which files were written, or would be, and what to run next."""
    prefix = "would write" if dry_run else "wrote"
    next_lines = (f"  {line}" for line in new_project.commands)
    return translate_lines(as_lines([*(f"{prefix} {path}" for path in new_project.files), "", "Next:", *next_lines]))
