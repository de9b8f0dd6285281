"""Checks across the rows of matrix.yaml: their stacks, versions, names and defaults. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from drydock.config.setting_checks import check_settings
from drydock.config.stack_files import StackFile
from drydock.config.strict_yaml import KeyPath, YamlDocument
from drydock.config.validation import Problem
from drydock.core.errors import suggest_nearest
from drydock.model.variant import Accelerator, Matrix, Stack


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
