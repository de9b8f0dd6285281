"""Checks of a stack that its record cannot make: what its parts say of one another, and what an image needs. Pure."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.config.setting_checks import check_fact_places, check_settings
from drydock.config.stack_files import StackFile
from drydock.config.strict_yaml import YamlDocument
from drydock.config.validation import Problem, list_repeated
from drydock.core.errors import suggest_nearest
from drydock.model.bases import DebianBase
from drydock.model.distributions import Layer
from drydock.model.running import Run
from drydock.model.variant import Accelerator, Stack

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
    yield from check_fact_places(stack.checks, accelerator, document)


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
