"""`adopt`: an image of others becomes a row of the project, and one of drydock's images in a registry. IO.

The row is a stack whose base is that image by digest, and that adds no packages. So `lock`, `build`, `verify`,
`publish`, `plan`, `outdated` and `bundle` know it as any other row.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from drydock.attest import licences
from drydock.attest.cosign import Trust
from drydock.build import adoption, build
from drydock.build.build_job import BuildOptions, choose_platform, prepare_job
from drydock.config import matrix
from drydock.config.project_layers import read_layers
from drydock.config.rows import MATRIX, VARIANTS, list_rows
from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import make_record, validate_document
from drydock.core.console import log
from drydock.core.errors import InputError, suggest_nearest
from drydock.core.files import format_json, hold_lock_file, parse_json_object, read_bounded, restore_files
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.core.yaml_writer import write_yaml
from drydock.inputs.store import default_store
from drydock.lock import base_lists, lockfile, resolution, vllm_lists
from drydock.lock.base_lists import BaseLists
from drydock.model.bases import GLIBC, ImageBase
from drydock.model.record import IDENTIFIER, IDENTIFIER_AT_MOST, Digest, Record, dump_record
from drydock.model.variant import Stack, Variant
from drydock.oci.reference import Reference
from drydock.projects import row_record_file
from drydock.publish import adopt, base_image, tags, upstream
from drydock.publish.adopt import AdoptedImage, AssembledImage
from drydock.publish.base_image import BaseContents, BaseFacts, BaseImage
from drydock.publish.engine_base import open_engine_base
from drydock.publish.push import PublishOptions

WRITTEN = "# Written by `./inv adopt`, which writes it again for another digest of the same image.\n"
"""First line of a stack that `adopt` may replace."""
ROW_FILES = ("lock.json", "Dockerfile", row_record_file.FILE, base_lists.FILE)
"""Files of a row in its folder below images/."""
LARGEST_FACTS = 1 << 20
"""Bytes of a file for --facts; what `adopt --json` prints has 0.2 million, most of it lists of vLLM."""
OLDEST_PYTHON = Version("3.10")
"""The oldest Python that runs the entrypoint."""
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
    to: str = ""
    """REGISTRY/NAME, with or without a tag; where the row's image was written before if empty."""
    row: str = ""
    """Id of the row; made of the image's name if empty."""
    facts: BaseFacts = BaseFacts()
    """What the user states of the image."""
    glibc: str = ""
    """Version of its glibc, for a release that drydock does not know."""
    platform: str = ""
    """The only platform; else each of the image's."""
    read_layers: bool = False
    facts_file: str = ""
    """File that says what is in the image, instead of its layers: `--json` prints it."""
    lists: BaseLists | None = None
    """What that file says of the image's vLLM."""
    load: bool = False
    """Whether the engine gets the image; without `to`, no registry does."""
    from_engine: bool = False
    """Whether the image of others is one that this machine's engine has. No registry is asked for it."""
    trust: Trust = Trust()
    """Whose signature the base must have; anyone's, or none, if it names no one."""
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
    """Write a row for an image of others with its lock, and the image that it makes into a registry or the engine.

    If anything fails, the project is as it was. Raises InputError for what the image does not say, UntrustedError for a
    base without the signature that the user requires, LicenceError, RegistryError, CredentialsError, and StaleError
    with `check`.
    """
    if options.check and options.load:
        raise InputError("--check writes nothing, and --load does", hint="leave one of them out")
    if options.facts_file and options.read_layers:
        raise InputError("--facts and --read-layers both say what is in the image", hint="leave one of them out")
    project.check_writable(MATRIX)
    base = _open_base(options)
    log(f"base: {base.reference}")
    is_verified = upstream.check_signature(base, options.trust)
    _refuse_base(project, base)
    options = _read_facts_file(options._replace(row=options.row or _name_row(base)), base)
    written_to = _find_written_to(project, options)
    destination = adopt.parse_destination(written_to) if options.to or not options.load else None
    contents = _find_contents(project, base, options)
    row = _make_row(project, base, contents.facts, options, written_to)
    names = (MATRIX, row.file, *(f"images/{row.id}/{name}" for name in ROW_FILES))
    lock = cache_home() / "adopt" / f"{hashlib.sha256(os.fsencode(project.root.resolve())).hexdigest()}.lock"
    # One at a time: putting matrix.yaml back would remove a row that another run has added.
    with hold_lock_file(lock), restore_files((project.root / name for name in names), always=options.check):
        written = _write_row(project, row, base) + _write_lists(project, row, contents.lists)
        variant = matrix.find_variant(matrix.read_matrix(project), row.id)
        assembled = adopt.assemble_image(project, variant, base)
        if options.check and destination:
            adopt.check_image(assembled, variant, destination, insecure=options.publish.insecure)
        described = adopt.describe_image(
            assembled,
            variant,
            base,
            destination or base.repository.where,
            bytes_read=_count_read(base, options),
            facts=_dump_facts(contents, options.glibc, base),
            lists=_count_entries(contents.lists),
            not_in_effect=contents.shell_variables,
            upstream_verified=is_verified,
        )
        format_json(dump_record(described))  # before anything is written: what cannot be printed is not pushed either
        if options.check:
            return described
        written += _lock_row(project, variant)
        adopted = _deliver_image(project, described, assembled, base, options, destination)
    return adopted.model_copy(update={"written": tuple(written)})


def _open_base(options: AdoptOptions) -> BaseImage:
    """Return the image of others. Raises InputError for options that only an image of a registry can have."""
    if not options.from_engine:
        return base_image.open_base(options.image, options.platform, insecure=options.publish.insecure)
    if options.to or not options.load:
        hint = "`./inv publish` pushes the image later; or push the base with docker, and adopt it in that registry"
        raise InputError("--from-engine needs --load, and takes no --to: no registry has the base", hint=hint)
    if options.trust.required:
        raise InputError("--from-engine: an engine keeps no signatures", hint="leave --verify-key and --identity out")
    return open_engine_base(options.image, options.platform, default_store())


def _refuse_base(project: Project, base: BaseImage) -> None:
    """Raise InputError for a base that no layer makes ours, LicenceError for one that may not be pushed again."""
    policy = licences.read_policy(project)
    for platform in base.platforms.values():
        adoption.refuse_base(platform.settings, base.where)
        licences.refuse_licence(platform.settings.labels.get(adoption.LICENCES, ""), base.where, policy)


def _find_written_to(project: Project, options: AdoptOptions) -> str:
    """Return where the row's image is written to, with a tag; empty for one that only the engine gets.

    Raises InputError if nothing says it.
    """
    if options.to:
        where = adopt.parse_destination(options.to)
        tag = where.tag or tags.format_channel_tags(options.row, tags.EDGE, default=False)[0]
        return f"{where.scheme}://{where.tagged(tag)}" if where.scheme else str(where.tagged(tag))
    for variant in matrix.read_matrix(project):
        if variant.id == options.row and isinstance(variant.base, ImageBase) and variant.base.written_to:
            return variant.base.written_to
    if options.load:
        return ""
    raise InputError("--to REGISTRY/NAME: missing", hint="or --load, which puts the image into the engine only")


def _lock_row(project: Project, variant: Variant) -> list[str]:
    """Lock and render the row; return the names of files that changed. Of the base only the digest is asked for."""
    paths = resolution.resolve_and_write(project, [variant])
    lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    paths += row_record_file.write_row_files(project, variant, lock)
    return [project.name_of(path) for path in paths]


def _deliver_image(
    project: Project,
    adopted: AdoptedImage,
    assembled: AssembledImage,
    base: BaseImage,
    options: AdoptOptions,
    destination: Reference | None,
) -> AdoptedImage:
    """Write an image into a registry, and with --load into the engine; return what was written."""
    jobs = [prepare_job(project, adopted.row, BuildOptions(platform=name)) for name in base.platforms]
    if destination:
        adopted = adopt.push_image(jobs, adopted, assembled, base, destination, options.publish)
    if not options.load:
        return adopted
    platform = choose_platform(jobs[0].variant, options.platform or None)
    built = build.build_image(next(job for job in jobs if job.platform == platform))
    image = adopted.image if destination else built.image
    return adopted.model_copy(update={"loaded": built.image, "image": image})


def _count_read(base: BaseImage, options: AdoptOptions) -> int:
    layers = next(iter(base.platforms.values())).layers
    return sum(layer["size"] for layer in layers) if options.read_layers else 0


# --- what is in the image -------------------------------------------------------------------------------------------


class FactsFile(Record):
    """What `--facts` reads: the options of `adopt` that say what is in an image. All may be missing."""

    digest: Digest | None = None
    """Digest of the image that it is about."""
    accelerator: str = ""
    vllm: str = ""
    python: str = ""
    python_version: str = ""
    release: str = ""
    glibc: str = ""
    vllm_lists: BaseLists | None = None
    """What the vLLM in the image says of itself."""


def _read_facts_file(options: AdoptOptions, base: BaseImage) -> AdoptOptions:
    """Return the options with what a file says where they say nothing. Raises InputError for another image's file."""
    if not options.facts_file:
        return options
    path = Path(options.facts_file)
    try:
        content = parse_json_object(read_bounded(path, LARGEST_FACTS), str(path), InputError)
    except OSError as error:
        raise InputError(f"--facts {path}: {error.strerror or error}") from error
    values = content.get("facts", content)  # of `adopt --json`, only this part
    if not isinstance(values, dict):
        raise InputError(f"--facts {path}: facts: expected a JSON object, found {type(values).__name__}")
    facts = make_record(FactsFile, str(path), values)
    if facts.digest not in (None, base.digest):
        text = f"--facts {path}: is about the image {facts.digest}, and {base.where} is {base.digest}"
        raise InputError(text, hint="--read-layers reads this image")
    of_file = BaseFacts(facts.vllm, facts.python_version, facts.python, facts.release, facts.accelerator)
    lists = facts.vllm_lists
    if lists and lists.digest != base.digest:
        raise InputError(f"--facts {path}: vllm_lists: are about the image {lists.digest}, and this is {base.digest}")
    return options._replace(facts=options.facts.over(of_file), glibc=options.glibc or facts.glibc, lists=lists)


def _dump_facts(contents: BaseContents, glibc: str, base: BaseImage) -> dict[str, Any]:
    """Return what is in a base as `--facts` takes it."""
    facts = {OPTIONS[name].removeprefix("--").replace("-", "_"): getattr(contents.facts, name) for name in OPTIONS}
    facts |= {"glibc": glibc} if glibc else {}
    return {"digest": base.digest, **facts, **({"vllm_lists": dump_record(contents.lists)} if contents.lists else {})}


def _count_entries(lists: BaseLists | None) -> dict[str, int]:
    return {name: len(entries) for name, entries in sorted(lists.lists.items())} if lists else {}


def _find_contents(project: Project, base: BaseImage, options: AdoptOptions) -> BaseContents:
    """Return what is in a base.

    The user's word comes first, then what its files say, then what the row has of the same digest, then its labels and
    variables. Raises InputError that names the option for each fact that nothing says.
    """
    contents = BaseContents(BaseFacts(), lists=options.lists or _read_written_lists(project, base, options.row))
    if options.read_layers:
        contents = base_image.read_layer_facts(base, vllm_lists.read_program(project))
    facts = options.facts.over(contents.facts).over(_read_written_facts(project, base, options.row))
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
    return contents._replace(facts=facts)


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


def _read_written_lists(project: Project, base: BaseImage, row: str) -> BaseLists | None:
    """Return what an earlier `adopt` read of the vLLM in the same digest."""
    path = project.root / base_lists.name_file(row)
    lists = base_lists.parse_base_lists(path) if path.is_file() else None
    return lists if lists and lists.digest == base.digest else None


def _propose(name: str, base: BaseImage) -> str:
    """Return what the image's tag makes likely. It is a name only, and so is not believed."""
    version = re.search(r"(?<!\d)\d+\.\d+(?:\.\d+)?(?:\.post\d+)?", base.reference.tag)
    return f"; its tag makes {version[0]} likely" if name == "vllm" and version else ""


def _check_facts(facts: BaseFacts, base: BaseImage, options: AdoptOptions) -> None:
    """Raise InputError for what no row can have."""
    try:
        Version(facts.vllm)
    except InvalidVersion as error:
        raise InputError(f"--vllm {facts.vllm}: expected a version, such as 0.33.0") from error
    if not re.fullmatch(r"3\.\d+", facts.python) or Version(facts.python) < OLDEST_PYTHON:
        problem = f"{base.where}: --python-version {facts.python}: expected {OLDEST_PYTHON} or later, such as 3.12"
        raise InputError(problem, hint="the entrypoint runs on the image's own Python")
    if facts.release not in GLIBC and not options.glibc:
        raise InputError(
            f"{base.where}: --glibc: missing: {facts.release} has a glibc that drydock does not know",
            hint=f"`ldd --version` in the image prints it; known are {', '.join(sorted(GLIBC))}",
        )


# --- the row --------------------------------------------------------------------------------------------------------


def _make_row(
    project: Project, base: BaseImage, facts: BaseFacts, options: AdoptOptions, written_to: str
) -> _AdoptedRow:
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
    if not re.fullmatch(IDENTIFIER, options.row):
        raise InputError(f"--row {options.row}: invalid", hint="small letters, digits, '.', '_' and '-'")
    return _AdoptedRow(
        options.row,
        facts.accelerator,
        _make_stack(project, base, facts, options, sibling, written_to),
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


def _name_row(base: BaseImage) -> str:
    """Return an id made of the image's name and its tag, or the beginning of its digest."""
    name = base.reference.repository.rpartition("/")[2]
    end = base.reference.tag or base.digest.removeprefix("sha256:")[:12]
    return f"{name}-{end}".lower()[:IDENTIFIER_AT_MOST]


def _make_stack(
    project: Project,
    base: BaseImage,
    facts: BaseFacts,
    options: AdoptOptions,
    sibling: Variant,
    written_to: str,
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
    # The stack is renamed first: a stack without a row changes nothing, a row without a stack stops every command.
    contents = {row.file: WRITTEN + "\n" + write_yaml(row.stack), MATRIX: text}
    return [project.name_of(path) for path in project.write_together(contents)]


def _write_lists(project: Project, row: _AdoptedRow, lists: BaseLists | None) -> list[str]:
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
