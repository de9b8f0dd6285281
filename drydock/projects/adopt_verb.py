"""`adopt`: an image of others becomes a row of the project, and one of drydock's images in a registry. IO.

The row is a stack whose base is that image by digest, and that adds no packages. So `lock`, `render`, `build`, `plan`,
`outdated` and `bundle` know it as any other row.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from drydock.build import adoption
from drydock.config import matrix
from drydock.config.project_layers import read_layers
from drydock.config.rows import MATRIX, VARIANTS, list_rows
from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate_document
from drydock.core.console import log
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import write_atomically
from drydock.core.project import Project
from drydock.core.yaml_writer import write_yaml
from drydock.model.bases import GLIBC, ImageBase
from drydock.model.record import IDENTIFIER, IDENTIFIER_AT_MOST, dump_record
from drydock.model.variant import Stack, Variant
from drydock.publish import adopt, base_image
from drydock.publish.adopt import AdoptedImage
from drydock.publish.base_image import BaseFacts, BaseImage
from drydock.publish.push import PublishOptions

WRITTEN = "# Written by `./inv adopt`, which writes it again for another digest of the same image.\n"
"""First line of a stack that `adopt` may replace."""
_VARIANTS = re.compile(r"^variants:[ \t]*(?:#.*)?$", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<indent> +)[^ #\n]", re.MULTILINE)
COMPILED, ROCM_ARCHITECTURES = "compiled_architectures", "PYTORCH_ROCM_ARCH"
"""Threshold of ROCm's stacks, and the variable with which vLLM's docker/Dockerfile.rocm_base sets what it states."""
OPTIONS = {
    "accelerator": "--accelerator",
    "vllm": "--vllm",
    "interpreter": "--python",
    "python": "--python-version",
    "release": "--release",
}
"""Fact → the option that states it."""
_MEANING = {
    "accelerator": "which accelerator its vLLM is for",
    "vllm": "its vLLM's version",
    "interpreter": "which Python in it has vLLM, by its path",
    "python": "the version of that Python, such as 3.12",
    "release": "its distribution, such as ubuntu:22.04",
}


class AdoptOptions(NamedTuple):
    """Options of `adopt`."""

    image: str
    to: str
    row: str = ""
    """Id of the row; made of the image's name if empty."""
    facts: BaseFacts = BaseFacts()
    """What the user states of the image."""
    glibc: str = ""
    """Version of its glibc, for a release that drydock does not know."""
    platform: str = ""
    """The only platform; else each of the image's."""
    read_layers: bool = False
    check: bool = False
    """Whether to compare the image in the registry with this one, and write nothing."""
    publish: PublishOptions = PublishOptions("")
    """How the image is signed, and whether plain HTTP is allowed."""


class _AdoptedRow(NamedTuple):
    """A row and its stack, as files of the project."""

    id: str
    accelerator: str
    stack: Mapping[str, Any]
    platforms: Sequence[str]

    @property
    def file(self) -> str:
        """Return the name of the stack's file."""
        return f"templates/{self.accelerator}/stacks/{self.id}.yaml"


def adopt_image(project: Project, options: AdoptOptions) -> AdoptedImage:
    """Write a row for an image of others, and the image that it makes into a registry.

    If anything fails, the project is as it was. Raises InputError for what the image does not say, RegistryError,
    CredentialsError, and StaleError with `check`.
    """
    destination = adopt.parse_destination(options.to)
    project.check_writable(MATRIX)
    base = base_image.open_base(options.image, options.platform, insecure=options.publish.insecure)
    for platform in base.platforms.values():
        adoption.refuse_base(platform.settings, base.where)
    log(f"base: {base.reference}")
    options = options._replace(row=options.row or _name_row(base))
    facts = find_facts(project, base, options)
    row = _make_row(project, base, facts, options)
    with _restore_files(project, (MATRIX, row.file), always=options.check):
        written = _write_row(project, row, base)
        variant = matrix.find_variant(matrix.read_matrix(project), row.id)
        assembled = adopt.assemble_image(project, variant, base)
        if options.check:
            adopt.check_image(assembled, variant, destination, insecure=options.publish.insecure)
            described = adopt.describe_image(assembled, variant, base, destination._replace(tag=""))
            return described.model_copy(update={"bytes_read": _count_read(base, options)})
        pushed = adopt.push_image(assembled, variant, base, destination, options.publish)
    update = {"written": tuple(written), "bytes_read": _count_read(base, options)}
    return pushed.model_copy(update=update)


def _count_read(base: BaseImage, options: AdoptOptions) -> int:
    layers = next(iter(base.platforms.values())).layers
    return sum(layer["size"] for layer in layers) if options.read_layers else 0


# --- what is in the image -------------------------------------------------------------------------------------------


def find_facts(project: Project, base: BaseImage, options: AdoptOptions) -> BaseFacts:
    """Return what is in a base.

    The user's word comes first, then what its files say, then what the row has of the same digest, then its labels and
    variables. Raises InputError that names the option for each fact that nothing says.
    """
    read_facts = base_image.read_layer_facts(base) if options.read_layers else BaseFacts()
    facts = options.facts.over(read_facts).over(_read_written_facts(project, base, options.row))
    facts = facts.over(base_image.read_stated_facts(base))
    missing = [name for name in OPTIONS if not getattr(facts, name)]
    if missing:
        size = sum(layer["size"] for layer in next(iter(base.platforms.values())).layers)
        problems = [
            f"{base.where}: {OPTIONS[name]}: missing: its labels and variables do not say {_MEANING[name]}"
            f"{_propose(name, base)}"
            for name in missing
        ]
        hint = f"or --read-layers, which reads its layers ({size / 1e6:.0f} MB) as a stream and stores nothing"
        raise InputError(*problems, hint="" if options.read_layers else hint)
    _check_facts(facts, base, options)
    return facts


def _read_written_facts(project: Project, base: BaseImage, row: str) -> BaseFacts:
    """Return what the project's row says of the same digest, so that a second `adopt` needs no option."""
    for path in project.root.glob(f"templates/*/stacks/{row}.yaml"):
        if _is_of(path, base):
            stack = validate_document(Stack, read_yaml(path, project.shown(path)))
            if isinstance(stack.base, ImageBase) and stack.base.digest == base.digest and stack.vllm:
                base_of_stack = stack.base
                python, release = base_of_stack.python, base_of_stack.release
                return BaseFacts(stack.vllm.version, stack.python or "", python, release, path.parts[-3])
    return BaseFacts()


def _propose(name: str, base: BaseImage) -> str:
    """Return what the image's tag makes likely. It is a name only, and so is not believed."""
    version = re.search(r"\d+\.\d+(?:\.\d+)?(?:\.post\d+)?", base.reference.tag)
    return f"; its tag makes {version[0]} likely" if name == "vllm" and version else ""


def _check_facts(facts: BaseFacts, base: BaseImage, options: AdoptOptions) -> None:
    """Raise InputError for what no row can have."""
    try:
        Version(facts.vllm)
    except InvalidVersion as error:
        raise InputError(f"--vllm {facts.vllm}: expected a version, such as 0.33.0") from error
    if facts.release not in GLIBC and not options.glibc:
        raise InputError(
            f"{base.where}: --glibc: missing: {facts.release} has a glibc that drydock does not know",
            hint=f"`ldd --version` in the image prints it; known are {', '.join(sorted(GLIBC))}",
        )


# --- the row --------------------------------------------------------------------------------------------------------


def _make_row(project: Project, base: BaseImage, facts: BaseFacts, options: AdoptOptions) -> _AdoptedRow:
    variants = matrix.read_matrix(project)
    accelerators = sorted({variant.accelerator for variant in variants if variant.serves})
    if facts.accelerator not in accelerators:
        raise InputError(
            f"--accelerator {facts.accelerator}: unknown", hint=suggest_nearest(facts.accelerator, accelerators)
        )
    sibling = choose_sibling(variants, facts)
    if sibling.setup:
        raise InputError(
            f"{base.where}: vLLM for {sibling.title} needs the environment that {sibling.setup[0]} exports, and `adopt`"
            " runs no script of the image",
            hint=f"write a stack with this image as `base` and with `setup`, as {sibling.stack} has it, and build it",
        )
    if not re.fullmatch(IDENTIFIER, options.row):
        raise InputError(f"--row {options.row}: invalid", hint="small letters, digits, '.', '_' and '-'")
    return _AdoptedRow(
        options.row, facts.accelerator, _make_stack(project, base, facts, options, sibling), [*base.platforms]
    )


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


def _name_row(base: BaseImage) -> str:
    """Return an id made of the image's name and its tag, or the beginning of its digest."""
    name = base.reference.repository.rpartition("/")[2]
    end = base.reference.tag or base.digest.removeprefix("sha256:")[:12]
    return f"{name}-{end}".lower()[:IDENTIFIER_AT_MOST]


def _make_stack(
    project: Project, base: BaseImage, facts: BaseFacts, options: AdoptOptions, sibling: Variant
) -> dict[str, Any]:
    image = {
        "kind": "image",
        "reference": base.where,
        "digest": base.digest,
        "source": "the registry, when it was adopted",
        "release": facts.release,
        "python": facts.interpreter,
        "adopted": True,
    }
    layers = [layer["mediaType"] for platform in base.platforms.values() for layer in platform.layers]
    is_zstd = any(media_type.endswith("zstd") for media_type in layers)
    stack = {
        "summary": f"vLLM {facts.vllm} for {sibling.title}, in an image of others whose layers stay as they are.",
        "vllm": {"version": facts.vllm, "distribution": "vllm", "origin": f"the publisher of {base.where}"},
        "python": facts.python,
        "module": sibling.module,
        "base": image | ({"glibc": options.glibc} if options.glibc else {}),
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


def _write_row(project: Project, row: _AdoptedRow, base: BaseImage) -> list[str]:
    """Write a row and its stack; return the names of files that changed. Raises InputError for a name that is taken."""
    stack = project.root / row.file
    if stack.is_file() and not _is_of(stack, base):
        hint = "choose another name with --row, or remove that file and its row"
        raise InputError(f"{row.file}: exists, and is not of {base.where}", hint=hint)
    line = f"{row.id}: {{stack: {row.id}, platforms: [{', '.join(row.platforms)}]}}"
    text = _add_row(project, row, line)
    paths = [project.write(row.file, WRITTEN + "\n" + write_yaml(row.stack)), project.write(MATRIX, text)]
    return [project.name_of(path) for path in paths if path]


def _is_of(stack: Path, base: BaseImage) -> bool:
    """Tell whether `adopt` wrote a stack for the same image, whatever its digest was."""
    if not stack.read_text(encoding="utf-8").startswith(WRITTEN):
        return False
    written = read_yaml(stack, stack.name).data
    return isinstance(written, dict) and (written.get("base") or {}).get("reference") == base.where


def _add_row(project: Project, row: _AdoptedRow, line: str) -> str:
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


@contextlib.contextmanager
def _restore_files(project: Project, names: Sequence[str], *, always: bool) -> Iterator[None]:
    """Put files back as they were if the block fails, or `always`."""
    before = {project.root / name: _read(project.root / name) for name in names}
    try:
        yield
    except BaseException:
        always = True
        raise
    finally:
        if always:
            for path, data in before.items():
                _put_back(path, data)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _put_back(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    elif _read(path) != data:
        write_atomically(path, data)
