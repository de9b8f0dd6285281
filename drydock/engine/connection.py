"""Which engine the docker command talks to, and a client of the same one. IO.

docker's own order: DOCKER_HOST, then DOCKER_CONTEXT, then the context that `docker context use` has chosen. docker-py
knows the first only, or reads contexts from the current folder if there is no configuration.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import docker
from docker.context.config import get_current_context_name
from docker.tls import TLSConfig

from drydock.core.errors import EngineError
from drydock.core.network_settings import is_loopback
from drydock.engine import debian

HOST, CONTEXT = "DOCKER_HOST", "DOCKER_CONTEXT"
DEFAULT = "default"

ANSWERED_WITHIN = 60
"""Seconds of an answer of the engine that says what it has."""
UNPACKED_WITHIN = 600
"""Seconds of one that writes: it unpacks a large image for its first container, and removes one. During a build, 10 GB
took more than 60 s."""


class Endpoint(NamedTuple):
    """The engine of a docker context."""

    address: str
    certificates: Path | None = None
    """Folder with ca.pem, cert.pem and key.pem."""
    checks_server: bool = True


def read_engine_address(env: Mapping[str, str] = os.environ) -> str:
    """Return the address of the engine that the user has named, such as ssh://host; empty for the default socket.

    Raises EngineError for a context that does not exist.
    """
    if env.get(HOST):
        return env[HOST]
    context = _chosen_context(env)
    return read_context(context).address if context else ""


def _chosen_context(env: Mapping[str, str]) -> str:
    """Return the name of the context in use; empty for the default one."""
    name = env.get(CONTEXT) or get_current_context_name()
    return "" if name == DEFAULT else name


def read_context(name: str) -> Endpoint:
    """Return the engine of a docker context. Raises EngineError."""
    command = ["docker", "context", "inspect", "--", name]
    hint = "`docker context ls` lists the contexts; docker context use default"
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if result.returncode:
            problem = (result.stderr.strip() or f"exit {result.returncode}").splitlines()[-1]
            raise EngineError(f"docker context {name}: {problem}", hint=hint)
        (context,) = json.loads(result.stdout)
        endpoint = context["Endpoints"]["docker"]
        has_certificates = "docker" in (context.get("TLSMaterial") or {})
        folder = Path(context["Storage"]["TLSPath"], "docker") if has_certificates else None
        return Endpoint(str(endpoint["Host"]), folder, not endpoint.get("SkipTLSVerify", False))
    except FileNotFoundError as error:
        raise EngineError("docker: not found on PATH", hint=debian.explain_engine_setup()) from error
    except (ValueError, LookupError, TypeError) as error:
        raise EngineError(f"docker context {name}: it names no engine: {error}", hint=hint) from error


def name_engine(env: Mapping[str, str] = os.environ) -> str:
    """Return how the user has named the engine, for messages; empty if it is the default one. Raises EngineError."""
    address = read_engine_address(env)
    variable = next((name for name in (HOST, CONTEXT) if env.get(name)), "")
    if variable and address:
        return f"{variable}={env[variable]}"
    return f"the docker context in use ({address})" if address else ""


def is_remote(address: str) -> bool:
    """Tell whether an engine's address is of another machine. Pure."""
    parts = urlsplit(address)
    return parts.scheme == "ssh" or (parts.scheme in ("tcp", "http", "https") and not is_loopback(parts.hostname or ""))


def refuse_ssh() -> None:
    """Raise EngineError for an engine over ssh, which only the docker command reaches, not docker-py."""
    address = read_engine_address()
    if address.startswith("ssh:"):
        raise EngineError(
            f"{name_engine()}: drydock reaches no engine over ssh itself",
            hint=f"forward its socket: ssh -nNT -L /tmp/docker.sock:/var/run/docker.sock {address.removeprefix('ssh://')}"
            " and set DOCKER_HOST=unix:///tmp/docker.sock",
        )


def connect_engine(version: str | None = None, seconds: int = ANSWERED_WITHIN) -> docker.DockerClient:
    """Return a client of the engine. Raises EngineError, and docker's own DockerException if it does not answer.

    With a `version` of its API, such as 1.47, the engine is not asked which it has: that costs as much as a question.
    An answer that takes longer than `seconds` is an OSError of requests.
    """
    refuse_ssh()
    context = "" if os.environ.get(HOST) else _chosen_context(os.environ)
    if not context:
        return docker.from_env(version=version, timeout=seconds)
    endpoint = read_context(context)
    return docker.DockerClient(
        base_url=endpoint.address, version=version, timeout=seconds, tls=_make_tls_config(endpoint)
    )


def inspect_images(
    client: docker.DockerClient, name: str = "", label: str = "", *, intermediate: bool = False
) -> list[dict[str, Any]]:
    """Return what the engine reports of its images, of all or of those with a name or a label.

    docker-py's own list fails if another process removes an image between its two requests. Raises DockerException.
    """
    filters = {"label": label} if label else {}
    images = []
    for digest in client.api.images(name or None, quiet=True, all=intermediate, filters=filters):
        with contextlib.suppress(docker.errors.ImageNotFound):
            images.append(client.images.get(digest).attrs)
    return images


def _make_tls_config(endpoint: Endpoint) -> TLSConfig | bool:
    if not endpoint.certificates:
        return False
    certificate, key, authority = (str(endpoint.certificates / f"{name}.pem") for name in ("cert", "key", "ca"))
    return TLSConfig(client_cert=(certificate, key), ca_cert=authority, verify=endpoint.checks_server)
