"""Credentials for registries, from docker's own configuration and its credential helpers. IO; nothing is printed.

Source: https://docs.docker.com/reference/cli/docker/login/ ("Credential stores", "Credential helpers") and
https://github.com/docker/docker-credential-helpers (the protocol: the server's name in, JSON out).
"""

from __future__ import annotations

import base64
import binascii
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.errors import CredentialsError
from drydock.core.files import loads
from drydock.oci.reference import DOCKER_HUB

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
"""The key under which `docker login` stores Docker Hub."""
HELPER_TIMEOUT = 60
"""Seconds; a helper may ask a cloud service."""
LOGIN_HINT = "run `docker login` again; it writes this file"
TOKEN_USER = "<token>"  # noqa: S105 - the user name that marks an identity token
NOT_FOUND = ("credentials not found", "no credentials", "could not be found")
"""Messages of helpers that have no credentials for a server; they then exit with an error."""


class Credentials(NamedTuple):
    """A user and password, or a token. Contains secrets, which its text form does not show."""

    user: str = ""
    secret: str = ""
    token: str = ""
    """An identity token (OAuth2 refresh token) instead of user and secret."""

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r})"


def read_credentials(host: str, env: Mapping[str, str]) -> Credentials | None:
    """Return the credentials that docker would use for a registry, or None. Raises CredentialsError.

    A credential helper for the host wins over the credential store, which wins over the file itself.
    """
    path = config_path(env)
    config = _read(path)
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if helper:
        credentials = _ask_helper(str(helper), DOCKER_HUB_KEY if host == DOCKER_HUB else host, env)
        if credentials:
            return credentials
    auths = config.get("auths", {})
    for key in _keys(host):
        if key in auths:
            return parse_entry(auths[key], f"{path}: auths.{host}") if auths[key] else None
    return None


def config_path(env: Mapping[str, str]) -> Path:
    """Return the path of docker's configuration file."""
    return Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or Path.home()) / ".docker") / "config.json"


def parse_entry(entry: Mapping[str, Any], where: str) -> Credentials | None:
    """Turn an entry of `auths` into credentials; None for an empty entry, which a credential store leaves.

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
        raise CredentialsError(f"{where}.auth: expected base64 of USER:PASSWORD", hint=LOGIN_HINT) from error
    if not colon:
        raise CredentialsError(f"{where}.auth: expected base64 of USER:PASSWORD, found no ':'", hint=LOGIN_HINT)
    return Credentials(user, secret.rstrip("\0"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CredentialsError(f"{path}: invalid docker configuration: {type(error).__name__}") from error
    return config if isinstance(config, dict) else {}


def _keys(host: str) -> tuple[str, ...]:
    """Return the keys under which versions of docker store a host."""
    hub = (DOCKER_HUB_KEY, "index.docker.io") if host == DOCKER_HUB else ()
    return (*hub, host, f"https://{host}", f"http://{host}", f"https://{host}/v1/", f"https://{host}/v2/")


def _ask_helper(helper: str, server: str, env: Mapping[str, str]) -> Credentials | None:
    """Ask a credential helper for a server's credentials. Its output is never shown: it may contain the secret."""
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
            f"{program}: not found on PATH, but docker's configuration uses it for {server}",
            hint=f"install it, or remove it from {config_path(env)}",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CredentialsError(f"{program} get: no answer within {HELPER_TIMEOUT} seconds") from error
    if done.returncode:
        if any(message in (done.stdout + done.stderr).lower() for message in NOT_FOUND):
            return None
        raise CredentialsError(
            f"{program} get: exit {done.returncode} for {server}", hint=f"to see why: echo {server} | {program} get"
        )
    return _parse_answer(done.stdout, program)


def _parse_answer(text: str, program: str) -> Credentials | None:
    try:
        answer = loads(text)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise CredentialsError(f"{program} get: expected JSON with Username and Secret") from error
    if not user and not secret:
        return None
    return Credentials(token=secret) if user == TOKEN_USER else Credentials(user, secret)
