"""matrix.yaml, and the accelerators and stacks in templates/ → variants with every inherited value filled in.

Only read_matrix and the functions named _read do IO. All problems of a stage are collected and raised at once.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.config import finding_ids
from drydock.config.finding_ids import StackFile
from drydock.config.project_choice import FILE as PROJECT_FILE
from drydock.config.project_choice import read_settings
from drydock.config.project_layers import MORE, merge_layers, read_layers
from drydock.config.renamed import with_new_keys
from drydock.config.row_layers import merge_over_host
from drydock.config.rows import MATRIX, own_rows, read_rows
from drydock.config.stack_layers import ROLES, merge_stack_files
from drydock.config.strict_yaml import KeyPath, YamlDocument, read_yaml
from drydock.config.validation import Problem, combine_problems, validate_document
from drydock.core.errors import InputError, TargetError, suggest_nearest
from drydock.core.project import LOWEST, Project
from drydock.model.additions import Additions
from drydock.model.bases import Base, DebianBase
from drydock.model.checks import AnyHost, Check, Retired
from drydock.model.distributions import Layer
from drydock.model.kv_transfer import KvTransfer
from drydock.model.record import IDENTIFIER, Setting, get_inherited_fields
from drydock.model.running import Run
from drydock.model.variant import (
    Accelerator,
    Listed,
    Matrix,
    MatrixRow,
    ResolvedRole,
    ResolvedSetting,
    Role,
    Roles,
    RoleSettings,
    Serving,
    Stack,
    StackContents,
    Threshold,
    Variant,
    settings_of_role,
)
from entrypoints.core.settings_precedence import (
    ACCELERATOR,
    OWN_STACK,
    OWN_VARIANT,
    STACK,
    VARIANT,
    merge_setting_layers,
)
from entrypoints.core.text import VARIABLE_NAME
from entrypoints.request.roles import PLACEHOLDERS

HOST = "templates/host.yaml"
ACCELERATORS = "templates/*/accelerator.yaml"
TRANSLATIONS = ("templates/host.??.yaml", "templates/*/accelerator.??.yaml")
STACKS = "templates/*/stacks/*.y*ml"


def read_matrix(project: Project) -> tuple[Variant, ...]:
    """Read the matrix, every stack, and the accelerators that have stacks; return the variants, sorted by id.

    What was read before is not validated again while no file has changed. Raises InputError with every problem found.
    """
    names = (MATRIX, PROJECT_FILE, HOST, ACCELERATORS, STACKS, *TRANSLATIONS)
    return _read_matrix(project, _read_contents(project, names))


Contents = tuple[tuple[Path, bytes], ...]
"""Files and what is in them: what was made of them holds as long as they are the same."""


def _read_contents(project: Project, names: Sequence[str]) -> Contents:
    paths = sorted(path for layer in project.layers for name in names for path in layer.glob(name) if path.is_file())
    return tuple((path, path.read_bytes()) for path in paths)


@lru_cache(maxsize=4)
def _read_matrix(project: Project, _contents: Contents) -> tuple[Variant, ...]:
    document = read_rows(project)
    matrix = validate_document(Matrix, document)
    files = read_stacks(project)
    matrix = _with_defaults(project, matrix, files, document)
    accelerators = _read_accelerators(project, files)
    stacks = _resolve_inheritance(files)
    used_stacks = {row.stack for row in matrix.variants.values()}
    problems = [
        *_check_stacks(files, stacks, accelerators, used_stacks),
        *_check_rows(matrix, files, document),
        *_check_versions(matrix, stacks, document),
        *_check_names(matrix, accelerators, document),
        *_check_retired(matrix, document),
        *_check_defaults(matrix, files, document),
    ]
    if problems:
        raise combine_problems(problems)
    settings = read_settings(project)
    every = settings.additions if settings else Additions()
    chosen = (
        {*matrix.variants} if not settings or settings.rows == "all" else _choose_rows(project, settings.rows, matrix)
    )
    return tuple(
        _expand_variant(name, matrix, holders.stack, holders.accelerator, every).model_copy(
            update={
                "settings": _resolve_settings(project, name, row, holders, document),
                "roles": _resolve_roles(project, holders),
            }
        )
        for name, row in sorted(matrix.variants.items())
        if name in chosen
        for holders in [_find_holders(row.stack, stacks, files, accelerators)]
    )


def _find_holders(
    stack: str,
    stacks: Mapping[str, Stack],
    files: Mapping[str, StackFile],
    accelerators: Mapping[str, Accelerator],
) -> Holders:
    line, _ = find_lineage(stack, files)
    return Holders(accelerators[files[stack].accelerator], stacks[stack], [files[name] for name in line])


def _choose_rows(project: Project, names: Sequence[str], matrix: Matrix) -> set[str]:
    """Return the rows of a project that takes some of drydock's, with its own. Raises InputError for an unknown one."""
    unknown = [name for name in names if name not in matrix.variants]
    if unknown:
        raise combine_problems([_not_there(name, matrix) for name in unknown])
    return own_rows(project) | {*names}


def _not_there(name: str, matrix: Matrix) -> Problem:
    if name in matrix.retired:
        text, hint = f"drydock retired the row {name!r}", f"name {matrix.retired[name]}, which replaces it"
    else:
        text, hint = (
            f"unknown row {name!r}",
            suggest_nearest(name, matrix.variants, "`./inv matrix` outside of this project lists drydock's rows"),
        )
    return f"{PROJECT_FILE}: rows: {text}", hint


def stack_files(project: Project, variant: Variant) -> list[Path]:
    """Return the files of a variant's stack and of the stacks it inherits from."""
    files = read_stacks(project)
    line, _ = find_lineage(variant.stack, files)
    return [files[name].path for name in line]


def read_retired(project: Project) -> tuple[Retired, ...]:
    """Return the ids of findings that are no longer used. Raises InputError."""
    return _read_host(project)[1].retired


def find_variant(variants: Sequence[Variant], target: str) -> Variant:
    """Return the variant that a target means: its id, an alias, or an accelerator (its default). Raises TargetError."""
    for variant in variants:
        if variant.answers_to(target):
            return variant
    for variant in variants:
        if target in variant.replaces:
            hint = f"use --target {variant.id}; `git log -- images/{target}` lists commits with it"
            raise TargetError(f"--target: the row {target!r} is retired: {variant.id} replaces it", hint=hint)
    if of := [variant.id for variant in variants if variant.accelerator == target]:
        raise TargetError(f"--target: no default row of {target}", hint=f"name a row: {', '.join(of)}")
    targets = sorted({name for variant in variants for name in (variant.id, variant.accelerator, *variant.aliases)})
    raise TargetError(f"--target: unknown target {target!r}", hint=_nearest_target(target, targets))


_LISTED = "name the vendor or the card: nvidia, amd, intel-gpu, huawei …; ./inv matrix lists the targets"
_GENERIC = ("gpu", "accelerator", "card", "device")
"""Words that name no vendor."""
_MISSPELT = 0.75
"""Likeness from 0 to 1 of a misspelt word: cdua and cuda; kunlun and kunpeng, of two vendors, have 0.6."""


def _nearest_target(target: str, targets: Sequence[str]) -> str:
    """Return the closest target of the same vendor, or how to find one: there are too many to print.

    One letter or digit tells cards of vendors apart (npu, xpu; a100, v100; a770, a40). So a card is only like another
    with the same numbers and first letters, and other words keep their first letter.
    """
    if target in _GENERIC:
        return _LISTED
    begin = [name for name in targets if target and name.startswith(target) and not _goes_on(target, name)]
    if begin:
        return f"targets that begin with it: {', '.join(begin)}"
    letters, numbers = _parts(target)
    if "." in target or "vllm" in target:  # an id: its versions may be misspelt
        return suggest_nearest(target, [name for name in targets if _parts(name)[0] == letters], _LISTED)
    if numbers:
        same = [name for name in targets if "." not in name and _parts(name) == (letters, numbers)]
        return f"did you mean {same[0]!r}?" if same else _LISTED
    words = [name for name in targets if name[:1] == target[:1] and not _parts(name)[1]]
    close = get_close_matches(target, words, 1, _MISSPELT)
    return f"did you mean {close[0]!r}?" if close else _LISTED


def _goes_on(target: str, name: str) -> bool:
    """Return whether a name goes on with another digit of the target's last number: a3, a30."""
    return target[-1].isdigit() and name[len(target) : len(target) + 1].isdigit()


def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """Return a name's first letters and its numbers: rtx and 6000 of rtx-6000, and of rtx-pro-6000."""
    return re.split(r"[^a-z]", name, maxsplit=1)[0], tuple(re.findall(r"\d+", name))


def find_matching_variants(variants: Sequence[Variant], words: Sequence[str]) -> list[Variant]:
    """Return the variants that any of the words names: an id, an alias, an accelerator or its beginning; all if none.

    Raises TargetError for a word that names none.
    """
    chosen = []
    for word in words:
        matches = [variant for variant in variants if variant.accelerator == word or variant.id.startswith(word)]
        chosen += matches or [find_variant(variants, word)]
    return [variant for variant in variants if variant in chosen] if words else [*variants]


class State(NamedTuple):
    """The state of a variant: what its lock pins, and what has been shown of it."""

    locked: bool
    unresolved: tuple[str, ...]
    """Contexts that the lock could not pin."""
    proof: str
    """The strongest tier that was shown of today's foundation or image; else stand-in, rendered or none."""
    date: str
    """The day on which it was shown."""
    earlier_proof: str
    """A stronger tier that was shown of earlier inputs only, with its day: `packages, 2026-11-25`; else empty."""
    reproduced: bool
    """Whether two builds of today's foundation had the same digest."""
    digest: str
    """Of two identical builds of the same inputs, if the lock has one."""


def describe_variant(variant: Variant, state: State) -> dict[str, Any]:
    """Return one row of `matrix --json`."""
    base = variant.base
    return {
        "id": variant.id,
        "accelerator": variant.accelerator,
        "aliases": list(variant.aliases),
        "stack": variant.stack,
        "vllm": variant.vllm.version,
        "python": variant.python,
        "base": f"debian:{base.suite}" if base.kind == "debian" else base.reference,
        "platforms": list(variant.platforms),
        "hermetic": variant.hermetic,
        "support": variant.support.summary if variant.support else "",
        "oldest_engine": variant.compression.oldest.model_dump(),
        **state._asdict(),
        "unresolved": list(state.unresolved),
    }


# --- accelerators and stacks ----------------------------------------------------------------------------------------


def read_stacks(project: Project) -> dict[str, StackFile]:
    """Read every stack, by id; the file is named for the stack, and the folder for its accelerator.

    A stack that inherits the one of its own name below takes that name. The lower stack is then called LAYER/NAME, such
    as drydock/NAME.
    """
    accelerators = {path.parent.name for path in project.glob(ACCELERATORS)}
    files: dict[str, StackFile] = {}
    problems: list[Problem] = []
    for layer, root in project.named.items():
        for path in sorted(root.glob(STACKS)):
            file, folder, name = project.shown(path), path.parts[-3], path.name.removesuffix(".yaml")
            if path.suffix != ".yaml" or not re.fullmatch(IDENTIFIER, name):
                problems.append(
                    (f"{file}: invalid file name, expected a stack's id and .yaml", f"an id matches {IDENTIFIER}")
                )
            if folder not in accelerators:
                problems.append(
                    (f"{file}: no file templates/{folder}/accelerator.yaml", suggest_nearest(folder, accelerators))
                )
            try:
                read = _read_stack(path, file, layer, path.read_bytes())
            except InputError as error:
                problems += [(problem, error.hint) for problem in error.problems]
                continue
            problems += _check_name(name, read, files)
            if name in files:
                files[f"{files[name].layer}/{name}"] = files[name]
            files[name] = read
    if problems:
        raise combine_problems(problems)
    return files


@lru_cache(maxsize=256)
def _read_stack(path: Path, file: str, layer: str, _content: bytes) -> StackFile:
    """Read a stack's file. Lists whose key ends with + are noted: they add to what is inherited."""
    document = read_yaml(path, file)
    data = document.data if isinstance(document.data, dict) else {}
    adds = frozenset(key.removesuffix(MORE) for key in data if key.endswith(MORE))
    plain = merge_layers([YamlDocument(file, {}, {}), document]) if adds else document
    return StackFile(path.parts[-3], validate_document(Stack, plain), plain, path, layer, adds)


def _check_name(name: str, read: StackFile, files: Mapping[str, StackFile]) -> Iterator[Problem]:
    """Check that a stack does not take the name of another one, unless it inherits from that."""
    namesake = files.get(name)
    if namesake and namesake.layer == read.layer:
        yield f"{read.document.name}: duplicate name of {namesake.document.name}", "rename one of them"
    elif namesake and read.stack.inherits != f"{namesake.layer}/{name}":
        yield (
            read.document.problem((), f"{namesake.layer} has a stack {name!r}"),
            f"rename the file, or write `inherits: {namesake.layer}/{name}` to change that stack",
        )


def _read_accelerators(project: Project, files: Mapping[str, StackFile]) -> dict[str, Accelerator]:
    """Read the accelerators that have stacks, by name."""
    host, common = _read_host(project) if (project / HOST).is_file() else (None, None)
    if host and common and (wrong := [*_check_translations(common, host)]):
        raise combine_problems(wrong)
    read = {name: _read_accelerator(project, name) for name in sorted({file.accelerator for file in files.values()})}
    problems = list(finding_ids.find_id_problems(common, host, read, files))
    if problems:
        raise combine_problems(problems)
    accelerators = {
        name: _on_any_host(with_new_keys(AnyHost.__name__, host), document) if host else accelerator
        for name, (accelerator, document) in read.items()
    }
    for name, (accelerator, document) in read.items():
        problems += _check_places(accelerator.checks, accelerators[name], document)
    if problems:
        raise combine_problems(problems)
    return accelerators


def _read_host(project: Project) -> tuple[YamlDocument, AnyHost]:
    """Read what holds for any host. What was read before is not validated again while no file has changed."""
    return _validate_host(project, _read_contents(project, (HOST, TRANSLATIONS[0])))


@lru_cache(maxsize=4)
def _validate_host(project: Project, _contents: Contents) -> tuple[YamlDocument, AnyHost]:
    document = _read_translated(project, HOST)
    return document, validate_document(AnyHost, document)


def _read_translated(project: Project, name: str) -> YamlDocument:
    """Read a file of every layer and its translations, such as host.yaml and host.zh.yaml, as one document."""
    translations = [project.name_of(path) for path in project.glob(name.replace(".yaml", ".??.yaml"))]
    return merge_layers(read_layers(project, file_name) for file_name in (name, *translations))


def _on_any_host(host: YamlDocument, document: YamlDocument) -> Accelerator:
    """Return an accelerator with what any host has, such as checks and caches; its own take precedence."""
    return validate_document(Accelerator, merge_over_host(host, with_new_keys(Accelerator.__name__, document)))


def _read_accelerator(project: Project, folder: str) -> tuple[Accelerator, YamlDocument]:
    document = _read_translated(project, f"templates/{folder}/accelerator.yaml")
    accelerator = validate_document(Accelerator, document)
    problems = [*_check_settings((), accelerator, document), *_check_translations(accelerator, document)]
    if accelerator.accelerator != folder:
        text = f"found {accelerator.accelerator!r}, expected the folder's name {folder!r}"
        problems.append((document.problem(("accelerator",), text), ""))
    repeated = _find_repeated(check.id for check in accelerator.checks)
    problems += [(document.problem(("checks",), f"duplicate check id {check}"), "") for check in repeated]
    if problems:
        raise combine_problems(problems)
    return accelerator, document


def _resolve_inheritance(files: Mapping[str, StackFile]) -> dict[str, Stack]:
    """Fill in every stack from those it inherits from; tables are merged key by key, everything else is replaced."""
    problems: list[Problem] = []
    stacks: dict[str, Stack] = {}
    for name, file in files.items():
        line, problem = find_lineage(name, files)
        if problem:
            problems.append((file.document.problem(("inherits",), problem[0]), problem[1]))
        else:
            stacks[name] = _merge_stacks([files[ancestor] for ancestor in reversed(line)])
    if problems:
        raise combine_problems(problems)
    return stacks


def find_lineage(name: str, files: Mapping[str, StackFile]) -> tuple[list[str], Problem | None]:
    """Return a stack and those it inherits from, nearest first, and the problem found on the way, if any."""
    line = [name]
    accelerator = files[name].accelerator
    while parent := files[line[-1]].stack.inherits:
        parent = _known_as(parent, files[line[-1]], files)
        if parent not in files:
            siblings = [stack_id for stack_id, file in files.items() if file.accelerator == accelerator]
            return line, (f"unknown stack {parent!r}", suggest_nearest(parent, siblings))
        if parent in line:
            cycle = " → ".join([*line[line.index(parent) :], parent])
            return line, (f"a stack cannot inherit from itself: {cycle}", "remove one `inherits`")
        if files[parent].accelerator != accelerator:
            text = f"stack {parent!r} is for {files[parent].accelerator}, expected {accelerator}"
            return line, (text, "a stack inherits from its own accelerator's stacks only")
        line.append(parent)
    return line, None


def _known_as(parent: str, heir: StackFile, files: Mapping[str, StackFile]) -> str:
    """Return the name of a stack that another one inherits: drydock/NAME is NAME if only that layer has it."""
    layer, _, name = parent.rpartition("/")
    is_alone = parent not in files and name in files and layer == files[name].layer != heir.layer
    return name if is_alone else parent


ROLES_OF_SERVERS: tuple[Role, ...] = ("serve", "prefill", "decode")


def _merge_stacks(oldest_first: Sequence[StackFile]) -> Stack:
    """Return a stack with what it inherits. Raises InputError."""
    if len(oldest_first) == 1:
        return oldest_first[0].stack
    return validate_document(Stack, merge_stack_files(oldest_first))


# --- checks ---------------------------------------------------------------------------------------------------------

_REQUIRED = ("summary", "vllm", "python", "module", "requirements", "layers", "compression")


def _check_stacks(
    files: Mapping[str, StackFile],
    stacks: Mapping[str, Stack],
    accelerators: Mapping[str, Accelerator],
    used_stacks: Collection[str],
) -> Iterator[Problem]:
    """Check each stack as written and with what it inherits; those in use must be complete."""
    for name, file in files.items():
        yield from _check_settings((), file.stack, file.document)
        yield from _check_layers(file.stack.layers, file.document)
        yield from _check_vllm(stacks[name], file.document)
        yield from _check_conversions(stacks[name], file.document)
        yield from _check_sources(file.stack, file.document)
        if name in used_stacks:
            yield from _check_whole(stacks[name], accelerators[file.accelerator], file.document)


def _check_whole(stack: Stack, accelerator: Accelerator, document: YamlDocument) -> Iterator[Problem]:
    """Check that a stack has all that an image needs, its own or inherited."""
    missing = [field for field in _REQUIRED if field not in stack.model_fields_set or getattr(stack, field) is None]
    if stack.base is None and accelerator.base is None:
        missing.append("base")
    for field in missing:
        yield document.problem((), f"missing key {field!r}, here and in the stacks it inherits from"), ""
    base = stack.base or accelerator.base
    if stack.packages and not isinstance(base, DebianBase):
        text = "the base is an image, and Debian packages are installed with a base of kind debian only"
        yield document.problem(("packages",), text), "supply .deb files: `supplied` with install: debs"
    thresholds = {**accelerator.thresholds, **stack.thresholds}
    run = stack.run or accelerator.run or Run()
    for name in sorted({more.threshold for more in run.more if more.threshold} - set(thresholds)):
        yield document.problem(("run", "more"), f"unknown threshold {name!r}"), suggest_nearest(name, thresholds)
    yield from _check_indexes(stack, document)
    yield from _check_places(stack.checks, accelerator, document)


def _check_places(checks: Sequence[Check], accelerator: Accelerator, document: YamlDocument) -> Iterator[Problem]:
    """Check that `facts` says where the fact of each check is read: a finding names that place."""
    for index, check in enumerate(checks):
        if check.fact not in accelerator.facts:
            text = f"found {check.fact!r}, which has no line in `facts`"
            hint = f"write where a container reads it: `facts: {{{check.fact}: /sys/…}}` in accelerator.yaml"
            yield document.problem(("checks", index, "fact"), text), hint


def _check_indexes(stack: Stack, document: YamlDocument) -> Iterator[Problem]:
    """Check that something of each index is required: otherwise nothing would come from it."""
    if not stack.indexes:
        return
    lines = [*(stack.requirements or ()), *(item.requirement for item in stack.overrides), *stack.build_requirements]
    required = {*map(_name_distribution, lines)}
    for number, index in enumerate(stack.indexes):
        if required.isdisjoint(index.packages):
            text = f"no requirement or override names {' or '.join(index.packages)}"
            yield document.problem(("indexes", number, "packages"), text), suggest_nearest(index.packages[0], required)


@functools.cache
def _name_distribution(requirement: str) -> str:
    """Return the normalised name of what a requirement is about; most lines are in many stacks."""
    return canonicalize_name(Requirement(requirement).name)


def _check_vllm(stack: Stack, document: YamlDocument) -> Iterator[Problem]:
    """Check that the version in the labels is the one that the requirements pin."""
    for requirement in stack.requirements:
        name, pinned, version = requirement.partition("==")
        if stack.vllm and pinned and name == stack.vllm.distribution and version.split("+")[0] != stack.vllm.version:
            text = f"{stack.vllm.version!r}, but the requirements pin {requirement}"
            yield document.problem(("vllm", "version"), text), "use the same version in both"


def _check_conversions(stack: Stack, document: YamlDocument) -> Iterator[Problem]:
    """Check that each script comes from one of the stack's sources."""
    sources = [source.name for source in stack.sources]
    for conversion in stack.conversions:
        if conversion.context not in sources:
            text = (
                f"{conversion.kind} comes from {conversion.context!r}, expected one of {', '.join(sources) or 'none'}"
            )
            yield document.problem(("conversions",), text), suggest_nearest(conversion.context, sources)


def _check_sources(stack: Stack, document: YamlDocument) -> Iterator[Problem]:
    """Check that all source code says where it is: one place each, and for an archive its hash."""
    for key in ("system_sources", "sources"):
        for number, source in enumerate(getattr(stack, key)):
            places = [name for name in ("repository", "sdist", "url") if getattr(source, name)]
            if len(places) != 1:
                actual = " and ".join(places) or "none"
                text = f"{source.name}: found {actual} of repository, sdist and url, expected one"
                yield document.problem((key, number), text), ""
            elif bool(source.url) != (source.sha256 is not None):
                yield document.problem((key, number), f"{source.name}: url and sha256 belong together"), ""


def _check_settings(
    path: KeyPath, holder: Accelerator | Stack | MatrixRow, document: YamlDocument
) -> Iterator[Problem]:
    advised = () if isinstance(holder, Accelerator) else holder.recommended
    flags = [
        (("serve",), holder.serve),
        *((("recommended", place, "serve"), recommendation.serve) for place, recommendation in enumerate(advised)),
    ]
    for where, name in ((where, name) for where, settings in flags for name in settings if not name.startswith("--")):
        hint = f"write --{name.replace('_', '-')}, or move it to env"
        yield document.problem((*path, *where, name), "not a vLLM flag"), hint
    yield from _check_roles(path, {} if isinstance(holder, MatrixRow) else holder.roles, document)
    for name in (*holder.env, *(() if isinstance(holder, MatrixRow) else holder.caches)):
        if not VARIABLE_NAME.fullmatch(name):
            part = "env" if name in holder.env else "caches"
            yield document.problem((*path, part, name), "not an environment variable"), "flags belong in serve"


def _check_roles(path: KeyPath, roles: Roles, document: YamlDocument) -> Iterator[Problem]:
    """Check the names of each role's flags and variables, and what its texts name in braces."""
    for role, role_settings in roles.items():
        where = (*path, ROLES, role)
        for name in (name for name in role_settings.serve if not name.startswith("--")):
            hint = f"write --{name.replace('_', '-')}, or move it to env"
            yield document.problem((*where, "serve", name), "not a vLLM flag"), hint
        for name in (name for name in role_settings.env if not VARIABLE_NAME.fullmatch(name)):
            yield document.problem((*where, "env", name), "not an environment variable"), "flags belong in serve"
        values = (setting.value for setting in role_settings.settings.values())
        texts = (str(item) for item in (*values, *role_settings.files.values()))
        for name in sorted({name for text in texts for name in re.findall(r"\{([a-z_]+)\}", text)} - {*PLACEHOLDERS}):
            yield document.problem(where, f"unknown name {{{name}}}"), suggest_nearest(name, PLACEHOLDERS)


def _check_translations(holder: AnyHost | Accelerator, document: YamlDocument) -> Iterator[Problem]:
    """Check that a translation has the names in braces of its text, and as many {}, which it may number: {1} {0}."""
    for language, texts in holder.translations.items():
        for text, translation in texts.items():
            actual, expected = (
                sorted(re.findall(r"\{[a-z_]\w*\}|\{(?=\d*\})", words)) for words in (translation, text)
            )
            if actual != expected:
                message = f"found {' '.join(actual) or 'no braces'}, expected {' '.join(expected) or 'no braces'}"
                yield document.problem(("translations", language, text), message), "write each name as in the text"


def _check_layers(layers: Sequence[Layer], document: YamlDocument) -> Iterator[Problem]:
    path = ("layers",)
    if layers and sum(not layer.distributions for layer in layers) != 1:
        yield document.problem(path, "expected exactly one layer without distributions, which takes the rest"), ""
    for name in _find_repeated(layer.name for layer in layers):
        yield document.problem(path, f"duplicate layer name {name!r}"), ""
    distributions = [distribution for layer in layers for distribution in layer.distributions]
    for name in _find_repeated(distributions):
        yield document.problem(path, f"duplicate distribution {name!r}"), "a distribution is in one layer only"
    for name in distributions:
        if name != canonicalize_name(name):
            yield document.problem(path, f"distribution {name!r} is not normalised"), f"write {canonicalize_name(name)}"


def _check_rows(matrix: Matrix, files: Mapping[str, StackFile], document: YamlDocument) -> Iterator[Problem]:
    for name, row in matrix.variants.items():
        path: KeyPath = ("variants", name)
        yield from _check_settings(path, row, document)
        if row.stack not in files:
            text = f"no file templates/*/stacks/{row.stack}.yaml"
            hint = suggest_nearest(
                row.stack, files, "write that file; or leave `stack` out: a row has that of the row it inherits"
            )
            yield document.problem((*path, "stack"), f"unknown stack {row.stack!r}: {text}"), hint
        if not row.platforms:
            yield document.problem((*path, "platforms"), "expected at least one platform"), ""
        if row.support and row.support.instead not in {*matrix.variants} - {name}:
            text = f"unknown variant {row.support.instead!r}"
            yield (
                document.problem((*path, "support", "instead"), text),
                suggest_nearest(row.support.instead, {*matrix.variants} - {name}),
            )
        if row.hermetic == bool(row.not_hermetic_because):
            text = "hermetic: false requires not_hermetic_because, and the reverse"
            yield document.problem(path, text), ""


def _check_versions(matrix: Matrix, stacks: Mapping[str, Stack], document: YamlDocument) -> Iterator[Problem]:
    """Check that an id that names a version of vLLM (cpu-vllm0.32) names that of its stack."""
    for name, row in matrix.variants.items():
        match, stack = re.search(r"-vllm(\d+(?:\.\d+)+)(?=-|$)", name), stacks.get(row.stack)
        if match and stack and stack.vllm and not f"{stack.vllm.version}.".startswith(f"{match[1]}."):
            text = f"the id says vLLM {match[1]}, but the stack {row.stack} has {stack.vllm.version}"
            yield document.problem(("variants", name), text), "rename the row, or leave vLLM's version out of its id"


def _check_names(matrix: Matrix, accelerators: Mapping[str, Accelerator], document: YamlDocument) -> Iterator[Problem]:
    """Find names that could mean two variants as a target."""
    owners: dict[str, str] = {name: f"the variant {name!r}" for name in matrix.variants}
    owners |= {name: f"the accelerator {name!r}" for name in accelerators}
    owners |= {"auto": "--target auto, the variant that fits a machine"}
    owners |= {name: "a retired variant" for name in matrix.retired if name not in owners}
    for name, row in matrix.variants.items():
        if name in accelerators:
            yield (
                document.problem(("variants", name), "is also the name of an accelerator"),
                "add its stack to the name",
            )
        for index, alias in enumerate(row.aliases):
            if alias in owners:
                where = ("variants", name, "aliases", index)
                yield document.problem(where, f"alias {alias!r} is taken by {owners[alias]}"), ""
            owners.setdefault(alias, f"an alias of {name!r}")


def _check_retired(matrix: Matrix, document: YamlDocument) -> Iterator[Problem]:
    """Find retired ids that are in use again, and those whose replacement does not exist."""
    for name, instead in matrix.retired.items():
        if name in matrix.variants:
            yield document.problem(("variants", name), "is the id of a retired variant"), "choose another id"
        if instead not in matrix.variants:
            text = f"unknown variant {instead!r}"
            yield document.problem(("retired", name), text), suggest_nearest(instead, matrix.variants)


def _check_defaults(matrix: Matrix, files: Mapping[str, StackFile], document: YamlDocument) -> Iterator[Problem]:
    rows: dict[str, list[str]] = {}
    for name, row in matrix.variants.items():
        if row.stack in files:
            rows.setdefault(files[row.stack].accelerator, []).append(name)
    for accelerator, names in rows.items():
        defaults = [name for name in names if matrix.variants[name].default]
        if len(defaults) > 1:
            text = f"{accelerator} has {len(defaults)} default variants: {', '.join(defaults)}"
            yield document.problem(("variants", defaults[1], "default"), text), "keep one `default: true`"
        if not defaults:
            text = f"{accelerator} has no default variant among {', '.join(names)}"
            yield document.problem(("variants", names[0]), text), "give one of them `default: true`"


def _with_defaults(project: Project, matrix: Matrix, files: Mapping[str, StackFile], document: YamlDocument) -> Matrix:
    """Return the matrix in which a default row of a layer replaces that of lower layers for the same accelerator."""
    layers = [*project.named]

    def height(name: str) -> int:
        place = document.places.get(("variants", name, "default"))
        return layers.index(project.owner_of(project.root / (place.file if place else "")))

    defaults = {name: row for name, row in matrix.variants.items() if row.default and row.stack in files}
    highest: dict[str, int] = {}
    for name, row in defaults.items():
        accelerator = files[row.stack].accelerator
        highest[accelerator] = max(highest.get(accelerator, 0), height(name))
    rows = {
        name: row.model_copy(update={"default": False})
        for name, row in defaults.items()
        if height(name) < highest[files[row.stack].accelerator]
    }
    return matrix.model_copy(update={"variants": {**matrix.variants, **rows}})


def _find_repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


# --- expansion ------------------------------------------------------------------------------------------------------


_FROM_ACCELERATOR = (
    "accelerator",
    "title",
    "libraries",
    "findings",
    "translations",
    "variables",
    "converted_name",
    "serves",
)


def _expand_variant(name: str, matrix: Matrix, stack: Stack, accelerator: Accelerator, every: Additions) -> Variant:
    row = matrix.variants[name]
    checks = (*accelerator.checks, *stack.checks, *((row.support.check(),) if row.support else ()))
    thresholds = {**accelerator.thresholds, **stack.thresholds}
    return Variant.model_construct(  # each value was checked in the record that it is from
        **get_inherited_fields(StackContents, stack)
        | get_inherited_fields(Serving, stack)
        | get_inherited_fields(Listed, row)
        | {field: getattr(stack, field) for field in ("summary", "vllm", "python", "module", "compression")}
        | {field: getattr(accelerator, field) for field in _FROM_ACCELERATOR}
        | {
            "id": name,
            "stack": row.stack,
            "base": _extend_base(stack.base or accelerator.base, stack.packages),
            "additions": row.additions.over(every),
            "sources": (*stack.system_sources, *stack.sources),
            "checks": checks,
            "facts": {check.fact: accelerator.facts[check.fact] for check in checks if check.fact in accelerator.facts},
            "run": _drop_unusable_options(stack.run or accelerator.run or Run(), thresholds),
            "caches": {**accelerator.caches, **stack.caches},
            "thresholds": thresholds,
            "settings": (),
            "epoch": matrix.epoch,
            "inherits": row.inherits.rpartition("/")[2] if row.inherits else None,
            "recommended": (*stack.recommended, *row.recommended),
            "replaces": tuple(sorted(old for old, instead in matrix.retired.items() if instead == name)),
            "kv_transfer": _choose_kv_transfer(stack, accelerator),
        }
    )


def _extend_base(base: Base | None, packages: Sequence[str]) -> Base | None:
    """Return a base with more Debian packages."""
    if not (isinstance(base, DebianBase) and packages):
        return base
    return base.model_copy(update={"packages": (*base.packages, *packages)})


def _drop_unusable_options(run: Run, thresholds: Mapping[str, Threshold]) -> Run:
    """Return the record without the options that this image cannot use."""
    usable = (more for more in run.more if not more.threshold or thresholds[more.threshold].value)
    return run.model_copy(update={"more": tuple(usable)})


def _choose_kv_transfer(stack: Stack, accelerator: Accelerator) -> KvTransfer | None:
    """Return how the stack's vLLM exchanges the KV cache: the first entry for its version, its own before others."""
    version = stack.vllm.version if stack.vllm else ""
    return next(
        (transfer for transfer in (*stack.kv_transfer, *accelerator.kv_transfer) if transfer.fits(version)), None
    )


class Holders(NamedTuple):
    """What a row inherits settings from."""

    accelerator: Accelerator
    stack: Stack
    """With what it inherits."""
    files: Sequence[StackFile]
    """The stack's file and those that it inherits from, the nearest first."""


def _resolve_settings(
    project: Project, name: str, row: MatrixRow, holders: Holders, document: YamlDocument
) -> tuple[ResolvedSetting, ...]:
    """Return the settings of a row. What a project wrote has an origin of its own, which is stronger."""
    is_own_stack = functools.partial(_is_in_own_stack, project, holders.files)
    is_own_row = functools.partial(_is_in_own_row, project, document, name)
    layers = (
        (ACCELERATOR, _collect_settings(holders.accelerator)),
        *_divide_settings(_collect_settings(holders.stack), STACK, OWN_STACK, is_own_stack),
        *_divide_settings(_collect_settings(row), VARIANT, OWN_VARIANT, is_own_row),
    )
    return _resolved(layers)


def _resolved(layers: Iterable[tuple[str, Mapping[str, Setting]]]) -> tuple[ResolvedSetting, ...]:
    """Return each setting of the strongest layer that has it."""
    return tuple(
        ResolvedSetting(setting=setting, origin=choice.origin, **dict(choice.value))
        for setting, choice in sorted(merge_setting_layers(layers).items())
    )


def _resolve_roles(project: Project, holders: Holders) -> dict[Role, ResolvedRole]:
    """Return what servers of each role get. What a project wrote has an origin of its own, as in _resolve_settings."""
    resolved: dict[Role, ResolvedRole] = {}
    for role in ROLES_OF_SERVERS:
        stack_settings, inherited = (
            settings_of_role(holder.roles, role) for holder in (holders.stack, holders.accelerator)
        )
        is_own = functools.partial(_is_in_own_role, project, holders.files, role)
        layers = (
            (ACCELERATOR, inherited.settings),
            *_divide_settings(stack_settings.settings, STACK, OWN_STACK, is_own),
        )
        both = inherited | stack_settings
        if both != RoleSettings():
            resolved[role] = ResolvedRole(settings=_resolved(layers), thresholds=both.thresholds, files=both.files)
    return resolved


def _collect_settings(holder: Accelerator | Stack | MatrixRow) -> dict[str, Setting]:
    return {**holder.env, **holder.serve}


def _divide_settings(
    settings: Mapping[str, Setting], origin: str, own_origin: str, is_own: Callable[[str], bool]
) -> Iterator[tuple[str, dict[str, Setting]]]:
    """Yield the settings of drydock, then those that a project wrote."""
    yield origin, {name: setting for name, setting in settings.items() if not is_own(name)}
    yield own_origin, {name: setting for name, setting in settings.items() if is_own(name)}


def _is_in_own_stack(project: Project, nearest_first: Sequence[StackFile], setting: str) -> bool:
    """Return whether the nearest stack that has a setting is a project's, and not drydock's."""
    holders = (file for file in nearest_first if setting in file.stack.env or setting in file.stack.serve)
    return bool(project.below) and next(holders).layer != LOWEST


def _is_in_own_role(project: Project, nearest_first: Sequence[StackFile], role: Role, setting: str) -> bool:
    """Return whether the nearest stack that has a setting of a role is a project's, and not drydock's."""
    holders = (file for file in nearest_first if setting in settings_of_role(file.stack.roles, role).settings)
    return bool(project.below) and next(holders).layer != LOWEST


def _is_in_own_row(project: Project, document: YamlDocument, row: str, setting: str) -> bool:
    """Return whether a project wrote a setting of a row, and not drydock."""
    key = "serve" if setting.startswith("-") else "env"
    place = document.places.get(("variants", row, key, setting))
    return bool(project.below) and project.owner_of(project.root / (place.file if place else "")) != LOWEST
