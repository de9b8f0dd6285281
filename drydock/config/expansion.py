"""A row, its stack and its accelerator → the variant, with every inherited value filled in. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from drydock.config.stack_files import StackFile
from drydock.config.strict_yaml import YamlDocument
from drydock.core.project import LOWEST, Project
from drydock.model.additions import Additions
from drydock.model.bases import Base, DebianBase
from drydock.model.kv_transfer import KvTransfer
from drydock.model.record import Setting, get_inherited_fields
from drydock.model.running import Run
from drydock.model.variant import (
    Accelerator,
    Listed,
    Matrix,
    MatrixRow,
    ResolvedRole,
    ResolvedSetting,
    Role,
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

ROLES_OF_SERVERS: tuple[Role, ...] = ("serve", "prefill", "decode")
_FROM_STACK = ("summary", "vllm", "python", "module", "compression")
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


class Inherited(NamedTuple):
    """What a row inherits from."""

    accelerator: Accelerator
    stack: Stack
    """With what it inherits itself."""
    files: Sequence[StackFile]
    """The stack's file and those that it inherits from, the nearest first."""


def expand_row(
    project: Project, name: str, matrix: Matrix, document: YamlDocument, inherited: Inherited, every: Additions
) -> Variant:
    """Return the variant of a row; `every` is added to each image of the project."""
    row, accelerator, stack = matrix.variants[name], inherited.accelerator, inherited.stack
    checks = (*accelerator.checks, *stack.checks, *((row.support.check(),) if row.support else ()))
    thresholds = {**accelerator.thresholds, **stack.thresholds}
    return Variant.model_construct(  # each value was checked in the record that it is from
        **get_inherited_fields(StackContents, stack)
        | get_inherited_fields(Serving, stack)
        | get_inherited_fields(Listed, row)
        | {field: getattr(stack, field) for field in _FROM_STACK}
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
            "settings": _resolve_settings(project, name, row, document, inherited),
            "roles": _resolve_roles(project, inherited),
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


# --- settings: which layer has the strongest, and whether a project or drydock wrote it ------------------------------


def _resolve_settings(
    project: Project, name: str, row: MatrixRow, document: YamlDocument, inherited: Inherited
) -> tuple[ResolvedSetting, ...]:
    """Return the settings of a row. What a project wrote has an origin of its own, which is stronger."""

    def is_own(setting: str) -> bool:
        key = "serve" if setting.startswith("-") else "env"
        place = document.places.get(("variants", name, key, setting))
        return bool(project.below) and project.owner_of(project.root / (place.file if place else "")) != LOWEST

    return _choose_strongest(
        (ACCELERATOR, _collect_settings(inherited.accelerator)),
        *_divide_stack_settings(project, inherited, _collect_settings),
        *_divide_settings(_collect_settings(row), VARIANT, OWN_VARIANT, is_own),
    )


def _resolve_roles(project: Project, inherited: Inherited) -> dict[Role, ResolvedRole]:
    """Return what servers of each role get, with origins as those of a row's settings."""
    resolved: dict[Role, ResolvedRole] = {}
    for role in ROLES_OF_SERVERS:
        of_stack, of_accelerator = (
            settings_of_role(holder.roles, role) for holder in (inherited.stack, inherited.accelerator)
        )
        role_settings = of_accelerator | of_stack
        if role_settings != RoleSettings():
            settings = _choose_strongest(
                (ACCELERATOR, of_accelerator.settings),
                *_divide_stack_settings(project, inherited, functools.partial(_collect_role_settings, role)),
            )
            resolved[role] = ResolvedRole(
                settings=settings, thresholds=role_settings.thresholds, files=role_settings.files
            )
    return resolved


def _choose_strongest(*layers: tuple[str, Mapping[str, Setting]]) -> tuple[ResolvedSetting, ...]:
    """Return each setting of the strongest layer that has it."""
    return tuple(
        ResolvedSetting(setting=setting, origin=choice.origin, **dict(choice.value))
        for setting, choice in sorted(merge_setting_layers(layers).items())
    )


def _collect_settings(holder: Accelerator | Stack | MatrixRow) -> Mapping[str, Setting]:
    return {**holder.env, **holder.serve}


def _collect_role_settings(role: Role, stack: Stack) -> Mapping[str, Setting]:
    return settings_of_role(stack.roles, role).settings


def _divide_stack_settings(
    project: Project, inherited: Inherited, select: Callable[[Stack], Mapping[str, Setting]]
) -> Iterator[tuple[str, dict[str, Setting]]]:
    """Yield those settings of a stack that are drydock's, then those that the nearest file with it has of a project."""

    def is_own(setting: str) -> bool:
        nearest = next(file for file in inherited.files if setting in select(file.stack))
        return bool(project.below) and nearest.layer != LOWEST

    return _divide_settings(select(inherited.stack), STACK, OWN_STACK, is_own)


def _divide_settings(
    settings: Mapping[str, Setting], origin: str, own_origin: str, is_own: Callable[[str], bool]
) -> Iterator[tuple[str, dict[str, Setting]]]:
    """Yield the settings of drydock, then those that a project wrote."""
    yield origin, {name: setting for name, setting in settings.items() if not is_own(name)}
    yield own_origin, {name: setting for name, setting in settings.items() if is_own(name)}
