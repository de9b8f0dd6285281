"""Variables that the user names: their values are passed on by docker, and printed only if they are no secrets."""

from __future__ import annotations

import os

from drydock.core.errors import InputError
from drydock.model.variant import Variant
from drydock.run.container import Container, list_known_variables
from drydock.run.user_options import KnownVariables


def check_named(container: Container) -> None:
    """Check that the shell has the variables that the user named: docker passes nothing without a word. InputError."""
    absent = [name for name in container.named if name not in os.environ]
    if absent:
        raise InputError(
            *(f"--env {name}: your shell has no such variable, or does not export it" for name in absent),
            hint=f"export {absent[0]} first; what is no secret may also be given as NAME=VALUE",
        )


def with_values(container: Container, known_variables: KnownVariables) -> Container:
    """Return the container of a manifest: it has the values of named variables that are known. Raises InputError."""
    public = [name for name in container.named if known_variables.shows(name, os.environ.get(name, ""))]
    check_named(container.model_copy(update={"named": tuple(public)}))
    return container.model_copy(update={
        "given": {**container.given, **{name: os.environ[name] for name in public}},
        "named": tuple(name for name in container.named if name not in public),
    })  # fmt: skip


def hide_values(variant: Variant, container: Container) -> Container:
    """Return the container with only the names of variables that are unknown: their values may be secrets."""
    shows = list_known_variables(variant).shows
    public_values = {name: value for name, value in container.given.items() if shows(name, value)}
    return container.model_copy(update={
        "given": public_values,
        "named": (*container.named, *(name for name in container.given if name not in public_values)),
    })  # fmt: skip
