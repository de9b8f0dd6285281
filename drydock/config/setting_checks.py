"""Checks of names that accelerators, stacks and rows share: flags, variables, facts, and names in braces. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from drydock.config.stack_layers import ROLES
from drydock.config.strict_yaml import KeyPath, YamlDocument
from drydock.config.validation import Problem
from drydock.core.errors import suggest_nearest
from drydock.model.checks import AnyHost, Check
from drydock.model.variant import Accelerator, MatrixRow, Roles, Stack
from entrypoints.core.text import VARIABLE_NAME
from entrypoints.request.roles import PLACEHOLDERS


def check_settings(path: KeyPath, holder: Accelerator | Stack | MatrixRow, document: YamlDocument) -> Iterator[Problem]:
    """Check the names of flags and variables in what an accelerator, a stack or a row sets."""
    advised = () if isinstance(holder, Accelerator) else holder.recommended
    yield from _check_flags((*path, "serve"), holder.serve, document)
    for place, recommendation in enumerate(advised):
        yield from _check_flags((*path, "recommended", place, "serve"), recommendation.serve, document)
    yield from _check_variables((*path, "env"), holder.env, document)
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


def _check_roles(path: KeyPath, roles: Roles, document: YamlDocument) -> Iterator[Problem]:
    """Check the names of each role's flags and variables, and what its texts name in braces."""
    for role, role_settings in roles.items():
        yield from _check_flags((*path, role, "serve"), role_settings.serve, document)
        yield from _check_variables((*path, role, "env"), role_settings.env, document)
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
