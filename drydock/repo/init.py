"""`init`: a small project of one's own, to begin with. IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from drydock.config.project import FILE
from drydock.core.errors import InputError, nearest
from drydock.core.files import write_atomically
from drydock.model.record import IDENTIFIER
from drydock.repo import version
from drydock.repo.ci import workflow

NO_CI = "none"
SCHEMAS = ("matrix", "stack", "accelerator", "project")
_PROJECT = """\
# yaml-language-server: $schema=.schemas/project.schema.json
#
# A drydock project: its files lie over drydock's own, and a key that both have is the project's.

schema: 1
name: {name}
rows: all # of drydock's rows; or [cuda13.0-vllm0.33, …]. Your own rows are in matrix.yaml
# registry: registry.example/vllm # where `publish` pushes to
# mirrors: mirrors.yaml # of registries, git hosts and package indexes, for everyone who builds this project
additions: {{}} # what every image gets, in place of {{}}:
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

schema: 1
variants: {{}} # in place of {{}}:
  # {name}-h100: # a row of drydock with what differs
  #   inherits: drydock/cuda13.0-vllm0.33
  #   stack: {name}-cuda # templates/cuda/stacks/{name}-cuda.yaml
  #   aliases: [{name}]
"""
_STACK = """\
# yaml-language-server: $schema=../../../.schemas/stack.schema.json
#
# An example: nothing uses it until a row of matrix.yaml names it.

inherits: drydock/cuda-13.0-0.33 # a stack of drydock; this file says only what differs
summary: drydock's stack with one more package
requirements+: [structlog==25.1.0] # + adds to the list that is inherited
# serve: # flags of vLLM, unless the user sets them
#   --max-num-seqs: {{value: 64, because: our requests are long, source: our benchmark of May}}
# recommended: # flags for a model on some devices
#   - when: {{model: "Qwen/Qwen3-32B*", devices: 8}}
#     serve: {{--tensor-parallel-size: {{value: 4, because: answers sooner here, source: our benchmark of May}}}}
"""
_IGNORED = "/.cache/\n/.venv/\n"
_ATTRIBUTES = """\
# LF whatever core.autocrlf says: these files are hashed into locks and images.
* text=auto eol=lf
"""
_REQUIREMENTS = """\
# What CI installs: `pip install -r requirements.txt`.
drydock=={version}
"""


def files(name: str, ci: str) -> Mapping[str, str]:
    """Return the files of a new project, by their path. Pure, except for reading the schemas.

    Raises InputError for an unknown CI server.
    """
    if ci not in (*workflow.PATHS, NO_CI):
        raise InputError(f"--ci {ci}: unknown", hint=nearest(ci, (*workflow.PATHS, NO_CI)))
    schemas = {f".schemas/{kind}.schema.json": _schema(kind) for kind in SCHEMAS}
    return {
        FILE: _PROJECT.format(name=name),
        "matrix.yaml": _MATRIX.format(name=name),
        f"templates/cuda/stacks/{name}-cuda.yaml": _STACK.format(),
        ".gitattributes": _ATTRIBUTES,
        ".gitignore": _IGNORED,
        workflow.REQUIREMENTS: _REQUIREMENTS.format(version=version.number()),
        **({workflow.PATHS[ci]: workflow.render(ci, (), (), own=True)} if ci != NO_CI else {}),
        **schemas,
    }


def _schema(kind: str) -> str:
    return (Path(__file__).parents[1] / "config" / "schemas" / f"{kind}.schema.json").read_text(encoding="utf-8")


def write(folder: Path, ci: str) -> list[Path]:
    """Write a project into a folder, which is named after it, and return its files.

    Raises InputError for a folder that has one, for a file that exists, for a place that cannot be written,
    and for an unknown CI server.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-")
    if not re.fullmatch(IDENTIFIER, name):
        raise InputError(f"{folder}: expected a folder's name with letters or digits", hint="name another folder")
    made = {folder / path: text for path, text in files(name, ci).items()}
    existing = [path for path in made if path.exists()]
    if existing:
        raise InputError(*(f"{path}: exists, and is not overwritten" for path in existing), hint="name a new folder")
    try:
        for path, text in made.items():
            write_atomically(path, text)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", hint="name another folder") from error
    return [*made]
