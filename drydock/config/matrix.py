"""matrix.yaml and templates/<accelerator>/accelerator.yaml → variants with every inherited value filled in.

IO in read_matrix, the rest is pure. All problems of a stage are collected and shown at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from drydock.config.quick_yaml import KeyPath
from drydock.config.strict_yaml import Document, read_yaml
from drydock.config.validation import Problem, failure, validate
from drydock.core.errors import TargetError, nearest
from drydock.model.checks import AnyHost
from drydock.model.distributions import Layer
from drydock.model.record import Setting
from drydock.model.running import Run
from drydock.model.variant import Accelerator, Matrix, ResolvedSetting, Row, Stack, Variant
from entrypoints.cascade import ACCELERATOR, STACK, VARIANT, cascade

MATRIX = "matrix.yaml"
HOST = "templates/host.yaml"


def read_matrix(root: Path) -> tuple[Variant, ...]:
    """Read the matrix and the accelerators it names; return its variants in the order of their ids.

    Raises InputError with every problem found.
    """
    document = read_yaml(root / MATRIX, MATRIX)
    matrix = validate(Matrix, document)
    accelerators = _read_accelerators(root, matrix, document)
    stacks = _inherit(matrix, document)
    problems = [
        *_check_stacks(stacks, accelerators, matrix, document),
        *_check_rows(matrix, document),
        *_check_names(matrix, document),
        *_check_defaults(matrix, document),
    ]
    if problems:
        raise failure(problems)
    return tuple(
        _expand(name, matrix, stacks[row.stack], accelerators[stacks[row.stack].accelerator])
        for name, row in sorted(matrix.variants.items())
    )


def find(variants: Sequence[Variant], target: str) -> Variant:
    """Return the variant that a target means: its id, an alias, or an accelerator (its default). Raises TargetError."""
    for variant in variants:
        if target == variant.id or target in variant.aliases or (variant.default and target == variant.accelerator):
            return variant
    known = {name for variant in variants for name in (variant.id, variant.accelerator, *variant.aliases)}
    raise TargetError(f"--target: unknown target {target!r}", hint=nearest(target, known))


class State(NamedTuple):
    """What became of a variant: what its lock pins, and what has been shown of it."""

    locked: bool
    unresolved: tuple[str, ...]
    """Contexts that the lock could not pin."""
    proof: str
    """The strongest tier that tests have shown of just these inputs, or rendered, or none."""
    date: str
    """When they did."""
    digest: str
    """That two builds of just these inputs agreed upon, where the lock has one."""


def describe(variant: Variant, state: State) -> dict[str, Any]:
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
        **state._asdict(),
        "unresolved": list(state.unresolved),
    }


# --- accelerators and stacks ----------------------------------------------------------------------------------------


def _read_accelerators(root: Path, matrix: Matrix, document: Document) -> dict[str, Accelerator]:
    folders = {path.parent.name for path in root.glob("templates/*/accelerator.yaml")}
    missing: list[Problem] = [
        (document.problem(("stacks", name, "accelerator"), f"no file templates/{stack.accelerator}/accelerator.yaml"),
         nearest(stack.accelerator, folders))
        for name, stack in matrix.stacks.items()
        if stack.accelerator not in folders
    ]  # fmt: skip
    if missing:
        raise failure(missing)
    common = validate(AnyHost, read_yaml(root / HOST, HOST)) if (root / HOST).is_file() else None
    names = sorted({stack.accelerator for stack in matrix.stacks.values()})
    return {name: _on_any_host(_read_accelerator(root, name), common) for name in names}


def _on_any_host(accelerator: Accelerator, common: AnyHost | None) -> Accelerator:
    """Give an accelerator the checks, caches and readings of any host, except those that it has its own of."""
    if common is None:
        return accelerator
    own = {check.id for check in accelerator.checks}
    checks = (*accelerator.checks, *(check for check in common.checks if check.id not in own))
    return accelerator.model_copy(
        update={
            "checks": checks,
            "facts": {**common.facts, **accelerator.facts},
            "caches": {**common.caches, **accelerator.caches},
        }
    )


def _read_accelerator(root: Path, folder: str) -> Accelerator:
    name = f"templates/{folder}/accelerator.yaml"
    document = read_yaml(root / name, name)
    accelerator = validate(Accelerator, document)
    problems = list(_check_settings((), accelerator, document))
    if accelerator.accelerator != folder:
        text = f"found {accelerator.accelerator!r}, expected the folder's name {folder!r}"
        problems.append((document.problem(("accelerator",), text), ""))
    repeated = _repeated(check.id for check in accelerator.checks)
    problems += [(document.problem(("checks",), f"two checks have the id {check}"), "") for check in repeated]
    if problems:
        raise failure(problems)
    return accelerator


def _inherit(matrix: Matrix, document: Document) -> dict[str, Stack]:
    """Fill every stack from its ancestors; maps are merged key by key, everything else is replaced."""
    problems: list[Problem] = []
    merged: dict[str, Stack] = {}
    for name in matrix.stacks:
        line, problem = _lineage(name, matrix.stacks)
        if problem:
            problems.append((document.problem(("stacks", name, "inherits"), problem[0]), problem[1]))
        else:
            merged[name] = _merge([matrix.stacks[ancestor] for ancestor in reversed(line)])
    if problems:
        raise failure(problems)
    return merged


def _lineage(name: str, stacks: Mapping[str, Stack]) -> tuple[list[str], Problem | None]:
    """Return a stack and its ancestors, youngest first, or what is wrong on the way up."""
    line = [name]
    while parent := stacks[line[-1]].inherits:
        if parent not in stacks:
            return line, (f"unknown stack {parent!r}", nearest(parent, stacks))
        if parent in line:
            cycle = " → ".join([*line[line.index(parent) :], parent])
            return line, (f"a stack cannot inherit from itself: {cycle}", "remove one `inherits`")
        if stacks[parent].accelerator != stacks[name].accelerator:
            text = f"stack {parent!r} is for {stacks[parent].accelerator}, expected {stacks[name].accelerator}"
            return line, (text, "a stack inherits from its own accelerator's stacks only")
        line.append(parent)
    return line, None


_MERGED = ("env", "serve", "caches", "thresholds")
"""Tables: what is inherited stays, key by key."""
_ADDED = ("trim",)
"""Lists that come beside what is inherited; the others replace it."""


def _merge(oldest_first: Sequence[Stack]) -> Stack:
    values: dict[str, Any] = {}
    for stack in oldest_first:
        for field in stack.model_fields_set:
            value = getattr(stack, field)
            if field in _MERGED:
                value = {**values.get(field, {}), **value}
            elif field in _ADDED:
                value = (*values.get(field, ()), *value)
            values[field] = value
    return Stack.model_construct(**values)


# --- checks ---------------------------------------------------------------------------------------------------------

_REQUIRED = ("summary", "vllm", "python", "module", "requirements", "layers", "compression")


def _check_stacks(
    stacks: Mapping[str, Stack], accelerators: Mapping[str, Accelerator], matrix: Matrix, document: Document
) -> Iterator[Problem]:
    """Check each stack as it is written, and after inheritance that those in use are complete."""
    used = {row.stack for row in matrix.variants.values()}
    for name, stack in matrix.stacks.items():
        path: KeyPath = ("stacks", name)
        yield from _check_settings(path, stack, document)
        yield from _check_layers(path, stack.layers or (), document)
        yield from _check_vllm(path, stacks[name], document)
        yield from _check_conversions(path, stacks[name], document)
        if name in used:
            missing = [field for field in _REQUIRED if getattr(stacks[name], field) is None]
            if stacks[name].base is None and accelerators[stack.accelerator].base is None:
                missing.append("base")
            for field in missing:
                text = f"missing key {field!r}, which neither it nor a stack it inherits from has"
                yield document.problem(path, text), ""


def _check_vllm(path: KeyPath, stack: Stack, document: Document) -> Iterator[Problem]:
    """See that the version which labels name is the one that the requirements pin."""
    for requirement in stack.requirements or () if stack.vllm else ():
        name, pinned, version = requirement.partition("==")
        if stack.vllm and pinned and name == stack.vllm.distribution and version.split("+")[0] != stack.vllm.version:
            text = f"{stack.vllm.version!r}, but the requirements pin {requirement}"
            yield document.problem((*path, "vllm", "version"), text), "make the two agree"


def _check_conversions(path: KeyPath, stack: Stack, document: Document) -> Iterator[Problem]:
    """See that each script comes with a source that the stack has."""
    sources = [source.name for source in stack.sources or ()]
    for conversion in stack.conversions or ():
        if conversion.context not in sources:
            text = (
                f"{conversion.kind} comes with {conversion.context!r}, expected one of {', '.join(sources) or 'none'}"
            )
            yield document.problem((*path, "conversions"), text), nearest(conversion.context, sources)


def _check_settings(path: KeyPath, holder: Accelerator | Stack | Row, document: Document) -> Iterator[Problem]:
    for name in holder.serve:
        if not name.startswith("--"):
            yield document.problem((*path, "serve", name), "not a vLLM flag"), f"write --{name}, or move it to env"
    for name in (*holder.env, *(() if isinstance(holder, Row) else holder.caches)):
        if not name.isidentifier():
            part = "env" if name in holder.env else "caches"
            yield document.problem((*path, part, name), "not an environment variable"), "flags belong in serve"


def _check_layers(path: KeyPath, layers: Sequence[Layer], document: Document) -> Iterator[Problem]:
    path = (*path, "layers")
    if layers and sum(not layer.distributions for layer in layers) != 1:
        yield document.problem(path, "expected exactly one layer without distributions, which takes the rest"), ""
    for name in _repeated(layer.name for layer in layers):
        yield document.problem(path, f"two layers are named {name!r}"), ""
    distributions = [distribution for layer in layers for distribution in layer.distributions]
    for name in _repeated(distributions):
        yield document.problem(path, f"distribution {name!r} is named twice"), "a distribution is in one layer only"
    for name in distributions:
        if name != canonicalize_name(name):
            yield document.problem(path, f"distribution {name!r} is not normalised"), f"write {canonicalize_name(name)}"


def _check_rows(matrix: Matrix, document: Document) -> Iterator[Problem]:
    for name, row in matrix.variants.items():
        path: KeyPath = ("variants", name)
        yield from _check_settings(path, row, document)
        if row.stack not in matrix.stacks:
            where = (*path, "stack")
            yield document.problem(where, f"unknown stack {row.stack!r}"), nearest(row.stack, matrix.stacks)
        if not row.platforms:
            yield document.problem((*path, "platforms"), "expected at least one platform"), ""
        if row.hermetic == bool(row.not_hermetic_because):
            text = "hermetic: false and not_hermetic_because come together or not at all"
            yield document.problem(path, text), ""


def _check_names(matrix: Matrix, document: Document) -> Iterator[Problem]:
    """Find names that could mean two variants as a target."""
    accelerators = {stack.accelerator for stack in matrix.stacks.values()}
    owners: dict[str, str] = {name: f"the variant {name!r}" for name in matrix.variants}
    owners |= {name: f"the accelerator {name!r}" for name in accelerators}
    for name, row in matrix.variants.items():
        if name in accelerators:
            yield document.problem(("variants", name), "has the name of an accelerator"), "add its stack to the name"
        for index, alias in enumerate(row.aliases):
            if alias in owners:
                where = ("variants", name, "aliases", index)
                yield document.problem(where, f"alias {alias!r} is taken by {owners[alias]}"), ""
            owners.setdefault(alias, f"an alias of {name!r}")


def _check_defaults(matrix: Matrix, document: Document) -> Iterator[Problem]:
    rows: dict[str, list[str]] = {}
    for name, row in matrix.variants.items():
        if row.stack in matrix.stacks:
            rows.setdefault(matrix.stacks[row.stack].accelerator, []).append(name)
    for accelerator, names in rows.items():
        defaults = [name for name in names if matrix.variants[name].default]
        if len(defaults) > 1:
            text = f"{accelerator} has {len(defaults)} default variants: {', '.join(defaults)}"
            yield document.problem(("variants", defaults[1], "default"), text), "keep one `default: true`"
        if not defaults:
            text = f"{accelerator} has no default variant among {', '.join(names)}"
            yield document.problem(("variants", names[0]), text), "give one of them `default: true`"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


# --- expansion ------------------------------------------------------------------------------------------------------


_LISTS = (
    "overrides",
    "exclude",
    "trim",
    "known_answers",
    "sources",
    "build_requirements",
    "builds",
    "supplied",
    "elsewhere",
    "conversions",
    "setup",
)
_ROW = ("stack", "default", "aliases", "platforms", "hermetic", "not_hermetic_because")


def _expand(name: str, matrix: Matrix, stack: Stack, accelerator: Accelerator) -> Variant:
    row = matrix.variants[name]
    checks = (*accelerator.checks, *(stack.checks or ()))
    return Variant.model_validate(
        {field: getattr(stack, field) for field in (*_REQUIRED, "base")}
        | {field: getattr(stack, field) or () for field in _LISTS}
        | {field: getattr(row, field) for field in _ROW}
        | {field: getattr(accelerator, field) for field in ("accelerator", "title", "libraries")}
        | {
            "id": name,
            "base": stack.base or accelerator.base,
            "checks": checks,
            "facts": {check.fact: accelerator.facts[check.fact] for check in checks if check.fact in accelerator.facts},
            "run": stack.run or accelerator.run or Run(),
            "caches": {**accelerator.caches, **stack.caches},
            "thresholds": {**accelerator.thresholds, **stack.thresholds},
            "settings": _settings((ACCELERATOR, accelerator), (STACK, stack), (VARIANT, row)),
            "epoch": matrix.epoch,
        }
    )


def _settings(*holders: tuple[str, Accelerator | Stack | Row]) -> tuple[ResolvedSetting, ...]:
    chosen = cascade((origin, {**holder.env, **holder.serve}) for origin, holder in holders)
    return tuple(_resolved(name, choice.value, choice.origin) for name, choice in sorted(chosen.items()))


def _resolved(name: str, setting: Setting, origin: str) -> ResolvedSetting:
    return ResolvedSetting(setting=name, origin=origin, **dict(setting))
