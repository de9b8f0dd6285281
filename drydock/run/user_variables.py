"""Variables of the user's: whether they are set, whether their values are shown, and the key for clients. IO."""

from __future__ import annotations

import os
from collections.abc import Sequence

from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.model.variant import Variant
from drydock.run import access, user_options
from drydock.run.container import LISTENING, Container, RunRequest, list_known_variables, make_container
from drydock.run.machine import Machine
from drydock.run.user_options import KnownVariables
from entrypoints.request.access import ALLOWED_HOSTS


def check_named(container: Container) -> None:
    """Check that the shell has the variables that the user named: docker passes nothing without a word. InputError."""
    absent = [name for name in container.passed_names if name not in os.environ]
    if absent:
        raise InputError(
            *(f"--env {name}: your shell has no such variable, or does not export it" for name in absent),
            hint=f"export {absent[0]} first; what is no secret may also be given as NAME=VALUE",
        )


def with_values(container: Container, known_variables: KnownVariables) -> Container:
    """Return the container of a manifest: it has the values of named variables that are known. Raises InputError."""
    public = [name for name in container.passed_names if known_variables.shows(name, os.environ.get(name, ""))]
    check_named(container.model_copy(update={"passed_names": tuple(public)}))
    return container.model_copy(update={
        "user_env": {**container.user_env, **{name: os.environ[name] for name in public}},
        "passed_names": tuple(name for name in container.passed_names if name not in public),
    })  # fmt: skip


def hide_values(variant: Variant, container: Container) -> Container:
    """Return the container with only the names of variables that are unknown: their values may be secrets."""
    shows = list_known_variables(variant).shows
    public_values = {name: value for name, value in container.user_env.items() if shows(name, value)}
    return container.model_copy(update={
        "user_env": public_values,
        "passed_names": (*container.passed_names, *(name for name in container.user_env if name not in public_values)),
    })  # fmt: skip


def make_without_key(
    variant: Variant, request: RunRequest, machine: Machine, *, cluster: bool
) -> tuple[Container, Sequence[str]]:
    """Return the container without the keys of --api-key, and the keys. Raises InputError.

    Docker and compose pass the keys on by name, Kubernetes takes them from a secret.
    """
    takes_key = user_options.split_verb(request.arguments)[0] in LISTENING  # another command's --api-key is its own
    arguments, keys = access.without_key(request.arguments) if takes_key else (request.arguments, ())
    if keys and request.api_key_file:
        raise InputError("--api-key-file and --api-key: both give the key that clients must send", hint="give one")
    address = access.EVERY_ADDRESS if cluster else request.address
    new_container = make_container(
        variant, request.model_copy(update={"arguments": arguments, "address": address}), machine
    )
    return new_container.model_copy(update={"key_required": bool(keys) or new_container.key_required}), keys


def with_allowed_hosts(container: Container) -> Container:
    """Return the container; on loopback and without a required key, its server answers only to names of this machine.

    A container that gets the key by name all the same does not compare names (plugin/drydock_plugin/guard.py).
    """
    if (
        container.ends_by_itself
        or container.key_required
        or container.network == "none"
        or access.is_exposed(container.address)
    ):
        return container
    of_engine = () if container.network == user_options.HOST else (container.name,)  # other containers of its network
    names = dict.fromkeys((*access.NAMES_HERE, access.bracket_address(container.address), *of_engine))
    return container.model_copy(update={"env": {**container.env, ALLOWED_HOSTS: ",".join(names)}})


def set_key(container: Container, request: RunRequest, keys: Sequence[str]) -> None:
    """Put the API key into the environment, from which docker passes it on by name. Raises InputError."""
    if request.api_key_file:
        os.environ[access.API_KEY] = "\n".join(access.read_keys(request.api_key_file))
    elif keys:
        os.environ[access.API_KEY] = "\n".join(keys)
        log(
            f"the key of {access.FLAG} is passed as {access.API_KEY}; set that variable or use --api-key-file, or your"
            " shell's history keeps the key"
        )
    if not container.ends_by_itself:
        access.check_variable()
    if container.key_required:
        access.require_key(container.address, container.port)
