"""Variables that a CI server gives the jobs: the commands that set them, and which ones a release lacks.

Jobs of pull requests need none.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from drydock.ci import publishing
from drydock.core.errors import InputError
from drydock.core.network_settings import is_loopback
from drydock.oci.reference import parse_reference
from drydock.registry.credentials import read_credentials

REGISTRY, KEY, KEY_PASSWORD = "DRYDOCK_REGISTRY", "DRYDOCK_COSIGN_KEY", "COSIGN_PASSWORD"
TOKEN = "DRYDOCK_PUSH_TOKEN"  # noqa: S105 - a name
KEYLESS = ("https://github.com", "https://gitlab.com")
"""Servers whose identities Sigstore's public services accept."""


class Variable(NamedTuple):
    """A variable to set on a CI server."""

    name: str
    value: str
    """An example; empty for a secret."""
    scope: str = ""
    """The environment of the jobs that may read it; empty: every job."""


class VariableGroup(NamedTuple):
    """Variables that are set together."""

    when: str
    variables: tuple[Variable, ...]


REACHES = "to lock each night what is not locked, on a runner that reaches the vendors"
FASTER = "so that a request starts from the foundations that releases pushed"
REVIEWS = "so that each request says what breaks with an image that comes instead"
REVIEWED = Variable("DRYDOCK_REVIEW_TO", "docker.io/vllm/vllm-openai:v0.33.0")
LOGIN = Variable(publishing.PASSWORD, "", "release")
GROUPS = {
    "github": (
        VariableGroup(
            "to publish to a registry other than ghcr.io",
            (Variable(REGISTRY, "registry.example/acme"), Variable(publishing.USER, "NAME"), LOGIN),
        ),
        VariableGroup(
            "to build variants that need more disk than hosted runners have",
            (Variable("DRYDOCK_RUNNER_AMD64", "LABEL"), Variable("DRYDOCK_RELEASE_RUNNER_AMD64", "OTHER-LABEL")),
        ),
        VariableGroup(REACHES, (Variable("DRYDOCK_RELEASE_RUNNER_VENDORS", "LABEL"),)),
        VariableGroup(FASTER, (Variable("DRYDOCK_FOUNDATIONS", "ghcr.io/acme/foundations"),)),
        VariableGroup(REVIEWS, (REVIEWED,)),
        VariableGroup("so that nightly pull requests start workflows", (Variable(TOKEN, "", "locks"),)),
    ),
    "gitlab": (
        VariableGroup("for the nightly merge request", (Variable(TOKEN, "", "locks"),)),
        VariableGroup(
            "to sign, unless the server is gitlab.com",
            (Variable(KEY, "", "release"), Variable(KEY_PASSWORD, "", "release")),
        ),
        VariableGroup(
            "to publish to a registry other than the project's",
            (Variable(REGISTRY, "registry.example/acme"), Variable(publishing.USER, "NAME", "release"), LOGIN),
        ),
        VariableGroup(
            "to build variants that need more disk than hosted runners have",
            (Variable("DRYDOCK_LARGE_RUNNERS", "amd64"),),
        ),
        VariableGroup(REACHES, (Variable("DRYDOCK_RELEASE_RUNNER_VENDORS", "yes"),)),
        VariableGroup(FASTER, (Variable("DRYDOCK_FOUNDATIONS", "registry.example/acme/foundations"),)),
        VariableGroup(REVIEWS, (REVIEWED,)),
    ),
}
"""Server → its variables, each group for one purpose. Without any, releases work on github.com."""


def format_all_variables(form: str) -> str:
    """Return the commands that set every variable of a server, with their purposes. Raises InputError. Pure."""
    groups = GROUPS[form]
    return (
        "\n".join("\n".join((f"# {group.when}", *make_variable_commands(form, group.variables))) for group in groups)
        + "\n"
    )


def make_variable_commands(form: str, variables: Collection[Variable]) -> Iterator[str]:
    """Yield the command that sets each variable, with the server's own client. Pure."""
    for variable in variables:
        if form == "gitlab":
            masked = "" if variable.value else " --masked"
            protected = f" --protected --scope {variable.scope}" if variable.scope else ""
            yield f"glab variable set {variable.name} {variable.value or 'VALUE'}{masked}{protected}"
        elif variable.scope:
            yield f"gh secret set {variable.name} --env {variable.scope}"
        else:
            yield f"gh variable set {variable.name} --body {variable.value}"


def check_release_variables(form: str, registry: str, env: Mapping[str, str] = os.environ) -> None:
    """Raise one InputError with what a release lacks, and the commands that set it.

    A release calls this before it builds, because it would fail hours later.
    """
    lacks = dict(find_missing_variables(form, registry, env))
    if lacks:
        problems = [f"{' and '.join(names)}: not set: {why}" for names, why in lacks.items()]
        raise InputError(*problems, hint=how_to_set(form, {name for names in lacks for name in names}))


def how_to_set(form: str, names: Collection[str]) -> str:
    """Return a hint with the commands that set these variables. Pure."""
    variables_by_name = {item.name: item for group in GROUPS[form] for item in group.variables if item.name in names}
    lines = "".join(f"\n  {line}" for line in make_variable_commands(form, variables_by_name.values()))
    return f"set it, then start the job again; docs/ci.md explains each:{lines}"


def find_missing_variables(form: str, registry: str, env: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the variables that a release lacks, and why it needs them. Reads docker's configuration."""
    if not registry:
        yield (REGISTRY,), "the project has no registry of its own"
    else:
        host = parse_reference(f"{registry.lower()}/x").host
        has_credentials = (
            all(publishing.choose_credentials(host, env)) or is_loopback(host) or read_credentials(host, env)
        )
        if not has_credentials:
            yield (publishing.USER, publishing.PASSWORD), f"no credentials for {host}"
    server = env.get("CI_SERVER_URL", "") if form == "gitlab" else KEYLESS[0]
    if not env.get(KEY) and server not in KEYLESS:
        yield (KEY, KEY_PASSWORD), f"Sigstore accepts no identity of {server or 'this server'}, so a key must sign"
