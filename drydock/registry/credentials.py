"""Credentials for registries, from docker's own configuration and its credential helpers. IO; nothing is printed.

Source: https://docs.docker.com/reference/cli/docker/login/ ("Credential stores", "Credential helpers") and
https://github.com/docker/docker-credential-helpers (the protocol: the server's name in, JSON out).
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.errors import CredentialsError
from drydock.oci.reference import DOCKER_HUB

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
"""What docker login files Docker Hub under."""
HELPER_TIMEOUT = 60
"""Seconds; a helper may ask a cloud's own service."""
TOKEN_USER = "<token>"  # noqa: S105 - the user name that marks an identity token
ABSENT = ("credentials not found", "no credentials", "could not be found")
"""What helpers say where they know nothing of a server; they exit as if something was wrong."""


class Credentials(NamedTuple):
    """A user's, or a token that stands for one. Holds secrets: its text form does not show them."""

    user: str = ""
    secret: str = ""
    token: str = ""
    """An identity token (OAuth2 refresh token) instead of user and secret."""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


def read_credentials(host: str, env: Mapping[str, str]) -> Credentials | None:
    """Return what docker would use for a registry; None where it has nothing. Raises CredentialsError.

    A helper for this very host wins over the general store, and that over the file itself.
    """
    path = config_path(env)
    config = _read(path)
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if helper:
        found = _ask(str(helper), DOCKER_HUB_KEY if host == DOCKER_HUB else host, env)
        if found:
            return found
    auths = config.get("auths", {})
    entry = next((auths[key] for key in _keys(host) if key in auths), None)
    return parse_entry(entry, f"{path}: auths.{host}") if entry else None


def config_path(env: Mapping[str, str]) -> Path:
    """Return where docker keeps its configuration."""
    return Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or Path.home()) / ".docker") / "config.json"


def parse_entry(entry: Mapping[str, Any], where: str) -> Credentials | None:
    """Turn an entry of `auths` into credentials; None for the empty one that a credential store leaves.

    Raises CredentialsError.
    """
    if entry.get("identitytoken"):
        return Credentials(token=str(entry["identitytoken"]))
    if entry.get("username"):
        return Credentials(str(entry["username"]), str(entry.get("password", "")))
    if not entry.get("auth"):
        return None
    try:
        user, colon, secret = base64.b64decode(str(entry["auth"]), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise CredentialsError(f"{where}.auth: not base64 of USER:PASSWORD", hint="docker login writes it") from error
    if not colon:
        raise CredentialsError(f"{where}.auth: holds no ':'", hint="docker login writes it")
    return Credentials(user, secret.rstrip("\0"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{path}: not docker's configuration: {type(error).__name__}") from error
    return config if isinstance(config, dict) else {}


def _keys(host: str) -> tuple[str, ...]:
    """Return what docker versions have filed a host under."""
    hub = (DOCKER_HUB_KEY, "index.docker.io") if host == DOCKER_HUB else ()
    return (*hub, host, f"https://{host}", f"http://{host}", f"https://{host}/v1/", f"https://{host}/v2/")


def _ask(helper: str, server: str, env: Mapping[str, str]) -> Credentials | None:
    """Ask a helper for a server's credentials; what it printed is never shown, since that may be the secret."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=server,
            capture_output=True,
            text=True,
            check=False,
            timeout=HELPER_TIMEOUT,
            env=dict(env),
        )
    except FileNotFoundError as error:
        raise CredentialsError(
            f"{program}: not found on PATH, but docker's configuration names it for {server}",
            hint=f"install it, or take it out of {config_path(env)}",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CredentialsError(f"{program} get: no answer within {HELPER_TIMEOUT} seconds") from error
    if done.returncode:
        if any(words in (done.stdout + done.stderr).lower() for words in ABSENT):
            return None
        raise CredentialsError(
            f"{program} get: exit {done.returncode} for {server}", hint=f"echo {server} | {program} get"
        )
    return _parse_answer(done.stdout, program)


def _parse_answer(text: str, program: str) -> Credentials | None:
    try:
        answer = json.loads(text)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise CredentialsError(f"{program} get: answered something else than JSON with Username and Secret") from error
    if not user and not secret:
        return None
    return Credentials(token=secret) if user == TOKEN_USER else Credentials(user, secret)
