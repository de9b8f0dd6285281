"""What no record can check: names that settings share, what the parts of a stack say of one another, rows. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.config.hardening_policy import COMMITTED_HINT
from drydock.config.stack_files import StackFile
from drydock.config.stack_layers import ROLES
from drydock.config.strict_yaml import KeyPath, YamlDocument
from drydock.config.validation import Problem, list_repeated
from drydock.core.errors import suggest_nearest
from drydock.model.bases import DebianBase
from drydock.model.checks import AnyHost, Check
from drydock.model.distributions import Layer
from drydock.model.running import Run
from drydock.model.variant import Accelerator, Matrix, MatrixRow, Roles, RoleSettings, Stack
from entrypoints.core.redact import is_secret
from entrypoints.core.text import VARIABLE_NAME
from entrypoints.request.roles import PLACEHOLDERS

VLLM_IN_ID = re.compile(r"-vllm(\d+(?:\.\d+)+)(?=-|$)")
"""How the id of a row names the version of its vLLM: cpu-vllm0.32."""


def check_settings(path: KeyPath, holder: Accelerator | Stack | MatrixRow, document: YamlDocument) -> Iterator[Problem]:
    """Check the names of flags and variables in what an accelerator, a stack or a row sets."""
    advised = () if isinstance(holder, Accelerator) else holder.recommended
    yield from _check_flags((*path, "serve"), holder.serve, document)
    for place, recommendation in enumerate(advised):
        yield from _check_flags((*path, "recommended", place, "serve"), recommendation.serve, document)
    yield from _check_variables((*path, "env"), holder.env, document)
    yield from _check_secrets(path, holder, document)
    if not isinstance(holder, MatrixRow):
        yield from _check_variables((*path, "caches"), holder.caches, document)
        yield from _check_roles((*path, ROLES), holder.roles, document)


def _check_flags(path: KeyPath, names: Iterable[str], document: YamlDocument) -> Iterator[Problem]:
    for name in names:
        if not name.startswith("--"):
            hint = f"write --{name.replace('_', '-')}, or move it to env"
            yield document.problem((*path, name), "not a vLLM flag"), hint


def _check_variables(path: KeyPath, names: Iterable[str], document: YamlDocument) -> Iterator[Problem]:
    for name in names:
        if not VARIABLE_NAME.fullmatch(name):
            yield document.problem((*path, name), "not an environment variable"), "flags belong in serve"


def _check_secrets(
    path: KeyPath, holder: Accelerator | Stack | MatrixRow | RoleSettings, document: YamlDocument
) -> Iterator[Problem]:
    """Find settings whose name is that of a secret, and which have a text."""
    for key in ("env", "serve"):
        for name, setting in getattr(holder, key).items():
            if is_secret(name) and setting.value and isinstance(setting.value, str):
                yield document.problem((*path, key, name), "contains a secret, by its name"), COMMITTED_HINT


def _check_roles(path: KeyPath, roles: Roles, document: YamlDocument) -> Iterator[Problem]:
    """Check the names of each role's flags and variables, and what its texts name in braces."""
    for role, role_settings in roles.items():
        yield from _check_flags((*path, role, "serve"), role_settings.serve, document)
        yield from _check_variables((*path, role, "env"), role_settings.env, document)
        yield from _check_secrets((*path, role), role_settings, document)
        values = (setting.value for setting in role_settings.settings.values())
        texts = (str(item) for item in (*values, *role_settings.files.values()))
        for name in sorted({name for text in texts for name in re.findall(r"\{([a-z_]+)\}", text)} - {*PLACEHOLDERS}):
            yield document.problem((*path, role), f"unknown name {{{name}}}"), suggest_nearest(name, PLACEHOLDERS)


def check_fact_places(checks: Sequence[Check], accelerator: Accelerator, document: YamlDocument) -> Iterator[Problem]:
    """Check that `facts` says where the fact of each check is read: a finding names that place."""
    for index, check in enumerate(checks):
        if check.fact not in accelerator.facts:
            text = f"found {check.fact!r}, which has no line in `facts`"
            hint = f"write where a container reads it: `facts: {{{check.fact}: /sys/…}}` in accelerator.yaml"
            yield document.problem(("checks", index, "fact"), text), hint


def check_translations(holder: AnyHost | Accelerator, document: YamlDocument) -> Iterator[Problem]:
    """Check that a translation has the names in braces of its text, and as many {}, which it may number: {1} {0}."""
    for language, texts in holder.translations.items():
        for text, translation in texts.items():
            actual, expected = (
                sorted(re.findall(r"\{[a-z_]\w*\}|\{(?=\d*\})", words)) for words in (translation, text)
            )
            if actual != expected:
                message = f"found {' '.join(actual) or 'no braces'}, expected {' '.join(expected) or 'no braces'}"
                yield document.problem(("translations", language, text), message), "write each name as in the text"


_REQUIRED = ("summary", "vllm", "python", "module", "requirements", "layers", "compression")


def check_stacks(
    files: Mapping[str, StackFile],
    stacks: Mapping[str, Stack],
    accelerators: Mapping[str, Accelerator],
    used_stacks: Collection[str],
) -> Iterator[Problem]:
    """Check each stack as written and with what it inherits; those in use must be complete."""
    for name, file in files.items():
        yield from check_settings((), file.stack, file.document)
        yield from _check_layers(file.stack.layers, file.document)
        yield from _check_vllm(stacks[name], file.document)
        yield from _check_conversions(stacks[name], file.document)
        yield from _check_sources(file.stack, file.document)
        if name in used_stacks:
            yield from _check_whole(stacks[name], file, accelerators[file.accelerator])


def _check_whole(stack: Stack, file: StackFile, accelerator: Accelerator) -> Iterator[Problem]:
    """Check that a stack has all that an image needs, its own or inherited."""
    document = file.document
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
    yield from _check_indexes(stack, file)
    yield from check_fact_places(stack.checks, accelerator, document)


def _check_indexes(stack: Stack, file: StackFile) -> Iterator[Problem]:
    """Check that something of each index is required: otherwise nothing would come from it."""
    if not stack.indexes:
        return
    lines = [*(stack.requirements or ()), *(item.requirement for item in stack.overrides), *stack.build_requirements]
    required = {*map(_name_distribution, lines)}
    for number, index in enumerate(stack.indexes):
        if required.isdisjoint(index.packages):
            text = f"no requirement or override names {' or '.join(index.packages)}"
            hint = suggest_nearest(index.packages[0], required)
            if is_replaced := file.stack.inherits and "requirements" in file.document.data:
                hint = f"`requirements` replaces the list of {file.stack.inherits}; write `requirements+` to add to it"
            at = ("requirements",) if is_replaced else None
            yield file.document.problem(("indexes", number, "packages"), text, at=at), hint


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


def _check_layers(layers: Sequence[Layer], document: YamlDocument) -> Iterator[Problem]:
    path = ("layers",)
    if layers and sum(not layer.distributions for layer in layers) != 1:
        yield document.problem(path, "expected exactly one layer without distributions, which takes the rest"), ""
    for name in list_repeated(layer.name for layer in layers):
        yield document.problem(path, f"duplicate layer name {name!r}"), ""
    distributions = [distribution for layer in layers for distribution in layer.distributions]
    for name in list_repeated(distributions):
        yield document.problem(path, f"duplicate distribution {name!r}"), "a distribution is in one layer only"
    for name in distributions:
        if name != canonicalize_name(name):
            yield document.problem(path, f"distribution {name!r} is not normalised"), f"write {canonicalize_name(name)}"


def check_matrix(
    matrix: Matrix,
    files: Mapping[str, StackFile],
    stacks: Mapping[str, Stack],
    accelerators: Mapping[str, Accelerator],
    document: YamlDocument,
) -> Iterator[Problem]:
    """Yield what is wrong with rows, each alone and next to the others."""
    yield from _check_rows(matrix, files, document)
    yield from _check_versions(matrix, stacks, document)
    yield from _check_names(matrix, accelerators, document)
    yield from _check_retired(matrix, document)
    yield from _check_defaults(matrix, files, document)


def _check_rows(matrix: Matrix, files: Mapping[str, StackFile], document: YamlDocument) -> Iterator[Problem]:
    for name, row in matrix.variants.items():
        path: KeyPath = ("variants", name)
        yield from check_settings(path, row, document)
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
        match, stack = VLLM_IN_ID.search(name), stacks.get(row.stack)
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
