"""The row of an adopted image, as files of the project: a line of matrix.yaml, its stack, its image's lists. IO.

The row is a stack whose base is that image by digest, and that adds no packages. So `lock`, `build`, `verify`,
`publish`, `plan`, `outdated` and `bundle` know it as any other row.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from drydock.adopt import adopted_image
from drydock.adopt.base_facts import BaseFacts
from drydock.adopt.base_image import BaseImage
from drydock.config import matrix
from drydock.config.project_layers import read_layers
from drydock.config.rows import MATRIX, VARIANTS, list_rows
from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate_document
from drydock.core.console import log
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import format_json, restore_files
from drydock.core.project import Project
from drydock.core.yaml_writer import write_yaml
from drydock.lock import base_lists
from drydock.lock.base_lists import BaseLists
from drydock.model import row_record
from drydock.model.bases import ImageBase
from drydock.model.record import IDENTIFIER, IDENTIFIER_AT_MOST, dump_record
from drydock.model.variant import Stack, Variant

WRITTEN = "# Written by `./inv adopt`, which writes it again for another digest of the same image.\n"
"""First line of a stack that `adopt` may replace."""
ROW_FILES = ("lock.json", "Dockerfile", row_record.FILE, base_lists.FILE)
"""Files of a row in its folder below images/."""
_VARIANTS = re.compile(r"^variants:[ \t]*(?:#.*)?$", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<indent> +)[^ #\n]", re.MULTILINE)
COMPILED, ROCM_ARCHITECTURES = "compiled_architectures", "PYTORCH_ROCM_ARCH"
"""Threshold of ROCm's stacks, and the variable with which vLLM's docker/Dockerfile.rocm_base sets what it states."""


class AdoptedRow(NamedTuple):
    """A row and its stack, as files of the project."""

    id: str
    accelerator: str
    stack: Mapping[str, Any]
    platforms: Sequence[str]

    @property
    def file(self) -> str:
        """Return the name of the stack's file."""
        return f"templates/{self.accelerator}/stacks/{self.id}.yaml"


def name_row(base: BaseImage) -> str:
    """Return an id made of the image's name and its tag, or the beginning of its digest."""
    name = base.reference.repository.rpartition("/")[2]
    end = base.reference.tag or base.digest.removeprefix("sha256:")[:12]
    return f"{name}-{end}".lower()[:IDENTIFIER_AT_MOST]


def find_destination(project: Project, row: str, to: str, *, load: bool) -> str:
    """Return where the row's image is written to, with a tag; empty for one that only the engine gets.

    `to` is as the user named it. Raises InputError if nothing says it.
    """
    if to:
        where = adopted_image.parse_destination(to)
        tagged = where.tagged(adopted_image.choose_tag(where, row))
        return f"{where.scheme}://{tagged}" if where.scheme else str(tagged)
    for variant in matrix.read_matrix(project):
        if variant.id == row and isinstance(variant.base, ImageBase) and variant.base.written_to:
            return variant.base.written_to
    if load:
        return ""
    raise InputError("--to REGISTRY/NAME: missing", hint="or --load, which puts the image into the engine only")


def read_written_facts(project: Project, base: BaseImage, row: str) -> BaseFacts:
    """Return what the project's row says of the same digest, so that a second `adopt` needs no option."""
    for path in project.root.glob(f"templates/*/stacks/{row}.yaml"):
        if _is_of(path, base):
            stack = validate_document(Stack, read_yaml(path, project.shown(path)))
            if isinstance(stack.base, ImageBase) and stack.base.digest == base.digest and stack.vllm:
                base_of_stack = stack.base
                python, release = base_of_stack.python, base_of_stack.release
                return BaseFacts(stack.vllm.version, stack.python or "", python, release, path.parts[-3])
    return BaseFacts()


def read_written_lists(project: Project, base: BaseImage, row: str) -> BaseLists | None:
    """Return what an earlier `adopt` read of the vLLM in the same digest."""
    path = project.root / base_lists.name_file(row)
    lists = base_lists.parse_base_lists(path) if path.is_file() else None
    return lists if lists and lists.digest == base.digest else None


def make_adopted_row(project: Project, row: str, base: BaseImage, facts: BaseFacts, written_to: str) -> AdoptedRow:
    """Return the row of a base, whose image is written to a place. Raises InputError for a row that none can be."""
    variants = matrix.read_matrix(project)
    accelerators = sorted({variant.accelerator for variant in variants if variant.serves})
    if facts.accelerator not in accelerators:
        raise InputError(
            f"--accelerator {facts.accelerator}: unknown", hint=suggest_nearest(facts.accelerator, accelerators)
        )
    sibling = choose_sibling(variants, facts)
    if scripts := _list_missing_scripts(sibling, base):
        raise InputError(
            f"{base.where}: vLLM for {sibling.title} needs the environment that {scripts[0]} exports: the variables of"
            " the image do not have it, and `adopt` runs no script of the image",
            hint=f"write a stack with this image as `base` and with `setup`, as {sibling.stack} has it, and build it",
        )
    if not re.fullmatch(IDENTIFIER, row):
        raise InputError(f"--row {row}: invalid", hint="small letters, digits, '.', '_' and '-'")
    return AdoptedRow(
        row,
        facts.accelerator,
        _make_stack(project, base, facts, sibling, written_to),
        [*base.platforms],
    )


def _list_missing_scripts(sibling: Variant, base: BaseImage) -> list[str]:
    """Return the vendor's scripts whose environment the image's own variables do not have.

    Images of CANN have it: their Dockerfiles set what set_env.sh exports. Each script exports paths of its own folder.
    """
    values = [
        part
        for platform in base.platforms.values()
        for value in platform.settings.env.values()
        for part in value.split(":")
    ]
    return [
        script for script in sibling.setup if not any(part.startswith(f"{Path(script).parent}/") for part in values)
    ]


def choose_sibling(variants: Sequence[Variant], facts: BaseFacts) -> Variant:
    """Return the row of an accelerator with the nearest version of vLLM, of several the default one. Pure."""
    rows = [variant for variant in variants if variant.accelerator == facts.accelerator]
    of_base = Version(facts.vllm)

    def distance(variant: Variant) -> tuple[int, int, int, bool]:
        version = Version(variant.vllm.version)
        return (
            abs(version.major - of_base.major),
            abs(version.minor - of_base.minor),
            abs(version.micro - of_base.micro),
            not variant.default,
        )

    return min(rows, key=distance)


def _make_stack(
    project: Project, base: BaseImage, facts: BaseFacts, sibling: Variant, written_to: str
) -> dict[str, Any]:
    image = {
        "kind": "image",
        "reference": base.where,
        "digest": base.digest,
        "source": f"the {'engine' if base.layout else 'registry'}, when it was adopted",
        "release": facts.release,
        "python": facts.interpreter,
        "adopted": True,
    }
    if written_to:
        image["written_to"] = written_to.rpartition("://")[2]
    layers = [layer["mediaType"] for platform in base.platforms.values() for layer in platform.layers]
    is_zstd = any(media_type.endswith("zstd") for media_type in layers)
    stack = {
        "summary": f"vLLM {facts.vllm} for {sibling.title}, in an image of others whose layers stay as they are.",
        "vllm": {"version": facts.vllm, "distribution": "vllm", "origin": f"the publisher of {base.where}"},
        "python": facts.python,
        "module": sibling.module,
        "base": image | ({"glibc": facts.glibc} if facts.glibc else {}),
        "requirements": [],
        "layers": [],
        "compression": {"algorithm": "zstd", "level": 3} if is_zstd else {"algorithm": "gzip", "level": 6},
    }
    answers = [dump_record(answer) for answer in sibling.known_answers]  # of models, whatever image serves them
    thresholds = _find_thresholds(project, base, sibling)
    return stack | {name: value for name, value in (("known_answers", answers), ("thresholds", thresholds)) if value}


def _find_thresholds(project: Project, base: BaseImage, sibling: Variant) -> dict[str, Any]:
    """Return the thresholds that decisions need and only stacks state: the base's own, else the sibling's."""
    document = read_layers(project, f"templates/{sibling.accelerator}/accelerator.yaml")
    missing = [name for name in sibling.thresholds if name not in (document.data.get("thresholds") or {})]
    thresholds = {name: dump_record(sibling.thresholds[name]) for name in missing}
    env = next(iter(base.platforms.values())).settings.env
    if COMPILED in thresholds and re.fullmatch(r"gfx[0-9a-f]+(;gfx[0-9a-f]+)*", env.get(ROCM_ARCHITECTURES, "")):
        thresholds[COMPILED] = {
            "value": env[ROCM_ARCHITECTURES].split(";"),
            "because": "the image has kernels for these architectures only; other GPUs are not used.",
            "source": f"{ROCM_ARCHITECTURES} in the image",
        }
        missing.remove(COMPILED)
    if missing:
        log(f"assumed as in the stack {sibling.stack}, which has the nearest vLLM: {', '.join(missing)}")
    return thresholds


@contextlib.contextmanager
def restore_row_files(project: Project, row: AdoptedRow, *, always: bool) -> Iterator[None]:
    """Put the files of a row back if the block fails, or always.

    One run at a time: putting matrix.yaml back would remove a row that another run has added.
    """
    names = (MATRIX, row.file, *(f"images/{row.id}/{name}" for name in ROW_FILES))
    with project.hold_files(), restore_files((project.root / name for name in names), always=always):
        yield


def write_row(project: Project, row: AdoptedRow, base: BaseImage) -> list[str]:
    """Write a row and its stack; return the names of files that changed. Raises InputError for a name that is taken."""
    stack = project.root / row.file
    if stack.is_file() and not _is_of(stack, base):
        hint = "choose another name with --row, or remove that file and its row"
        raise InputError(f"{row.file}: exists, and is not of {base.where}", hint=hint)
    line = f"{row.id}: {{stack: {row.id}, platforms: [{', '.join(row.platforms)}]}}"
    text = _add_row(project, row, line)
    # The stack is renamed first: a stack without a row changes nothing, a row without a stack stops every command.
    contents = {row.file: WRITTEN + "\n" + write_yaml(row.stack), MATRIX: text}
    return [project.name_of(path) for path in project.write_together(contents)]


def write_lists(project: Project, row: AdoptedRow, lists: BaseLists | None) -> list[str]:
    """Write what the base's vLLM says of itself next to the row's lock; remove what an older digest's said."""
    name = base_lists.name_file(row.id)
    if lists is None:
        (project.root / name).unlink(missing_ok=True)
        return []
    path = project.write(name, format_json(dump_record(lists)))
    return [project.name_of(path)] if path else []


def _is_of(stack: Path, base: BaseImage) -> bool:
    """Tell whether `adopt` wrote a stack for the same image, whatever its digest was."""
    if not stack.read_text(encoding="utf-8").startswith(WRITTEN):
        return False
    written = read_yaml(stack, stack.name).data
    return isinstance(written, dict) and (written.get("base") or {}).get("reference") == base.where


def _add_row(project: Project, row: AdoptedRow, line: str) -> str:
    """Return the text of the project's matrix.yaml with a row, unless it has it. Raises InputError for another row."""
    path = project.root / MATRIX
    if not path.is_file():
        return f"schema: 1\nvariants:\n  {line}\n"
    text = path.read_text(encoding="utf-8")
    row_of_project = list_rows(read_yaml(path, MATRIX)).get(row.id)
    if row_of_project is not None:
        if (row_of_project.get("stack"), row_of_project.get("platforms")) != (row.id, [*row.platforms]):
            text = f"{MATRIX}: {VARIANTS}.{row.id}: is another row than `{line}`"
            raise InputError(text, hint="choose another name with --row, or change that row")
        return text
    heading = _VARIANTS.search(text)
    if not heading:
        problem = f"{MATRIX}: found no line `variants:`, expected one with rows below it"
        raise InputError(problem, hint=f"add the row {line}")
    entry = _ENTRY.match(text[heading.end() :].lstrip("\n")) or _ENTRY.search(text, heading.end())
    indent = entry["indent"] if entry else "  "
    return f"{text[: heading.end()]}\n{indent}{line}{text[heading.end() :]}"
