"""Credentials for registries, from docker's own configuration and its credential helpers. IO; nothing is printed.

Source: https://docs.docker.com/reference/cli/docker/login/ ("Credential stores", "Credential helpers"),
https://github.com/docker/cli (cli/config/configfile/file.go, cli/config/credentials: what is read, and in which order)
and https://github.com/docker/docker-credential-helpers (the protocol: the server's name in, JSON out).
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from drydock.core.console import log
from drydock.core.errors import CredentialsError
from drydock.core.files import parse_any_json, read_bounded
from drydock.core.paths import find_home_folder
from drydock.oci.reference import DOCKER_HUB

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
"""The key under which `docker login` stores Docker Hub."""
IN_ENVIRONMENT = "DOCKER_AUTH_CONFIG"
"""Variable with a configuration that has `auths` only; docker reads it from 28.3 on, GitLab CI sets it."""
LARGEST = 1 << 20
"""Bytes of docker's configuration."""
HELPER_TIMEOUT = 60
"""Seconds; a helper may ask a cloud service."""
FILE_HINT = "correct it as JSON; or remove it, and run `docker login`, which writes it"
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

    DOCKER_AUTH_CONFIG comes first. Then a credential helper for the host wins over the credential store, which wins
    over the file itself: what one of them does not have is not looked for in the next.
    """
    credentials = _read_environment(host, env)
    if credentials:
        return credentials
    path = config_path(env)
    config = _read_docker_config(path)
    server = DOCKER_HUB_KEY if host == DOCKER_HUB else host
    helpers = _get_object(config, "credhelpers", path)
    helper = next((helpers[name] for name in (server, host) if name in helpers), config.get("credsstore"))
    if helper:
        return _ask_helper(_require_credential_text(helper, f"{path}: the name of a credential helper"), server, env)
    return _find_entry(_get_object(config, "auths", path), host, str(path))


def config_path(env: Mapping[str, str]) -> Path:
    """Return the path of docker's configuration file."""
    return Path(env.get("DOCKER_CONFIG") or find_home_folder(env) / ".docker") / "config.json"


def parse_entry(entry: Any, where: str) -> Credentials | None:
    """Turn an entry of `auths` into credentials; None for an empty entry, which a credential store leaves.

    Raises CredentialsError.
    """
    if not entry:
        return None
    if not isinstance(entry, dict):
        raise CredentialsError(f"{where}: expected an object, found {type(entry).__name__}", hint=LOGIN_HINT)
    fields = {name.lower(): value for name, value in entry.items()}
    if fields.get("identitytoken"):
        return Credentials(token=_require_credential_text(fields["identitytoken"], f"{where}.identitytoken"))
    if fields.get("auth"):
        return _decode_auth(_require_credential_text(fields["auth"], f"{where}.auth"), f"{where}.auth")
    if fields.get("username"):
        user, secret = (
            _require_credential_text(fields.get(name) or "", f"{where}.{name}") for name in ("username", "password")
        )
        return Credentials(user, secret)
    return None


def _decode_auth(auth: str, where: str) -> Credentials:
    """Return what `auth` holds. Line breaks in base64 count for nothing, as in Go's decoder."""
    try:
        user, colon, secret = base64.b64decode(re.sub(r"[\r\n]", "", auth), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError) as error:
        raise CredentialsError(f"{where}: expected base64 of USER:PASSWORD", hint=LOGIN_HINT) from error
    if not colon or not user:
        missing = "no ':'" if not colon else "no user"
        raise CredentialsError(f"{where}: expected base64 of USER:PASSWORD, found {missing}", hint=LOGIN_HINT)
    return Credentials(user, secret.strip("\0"))


def _read_environment(host: str, env: Mapping[str, str]) -> Credentials | None:
    """Return what DOCKER_AUTH_CONFIG has for a host. Of what it cannot read, docker says so, and reads the file."""
    try:
        config = _parse_config_object(env.get(IN_ENVIRONMENT, ""), IN_ENVIRONMENT)
        other_keys = sorted(config.keys() - {"auths"})
        if not other_keys:
            return _find_entry(_get_object(config, "auths", IN_ENVIRONMENT), host, IN_ENVIRONMENT)
        problem = f"{IN_ENVIRONMENT}: expected auths only, found {', '.join(map(ascii, other_keys))}"
    except CredentialsError as error:
        problem = error.problems[0]
    log(f"{problem}; docker's configuration is read instead")
    return None


def _read_docker_config(path: Path) -> dict[str, Any]:
    try:
        data = read_bounded(path, LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CredentialsError(f"{path}: {error.strerror}", hint="docker's configuration must be readable") from error
    return _parse_config_object(data, str(path))


def _parse_config_object(data: str | bytes, where: str) -> dict[str, Any]:
    """Return a configuration with its keys in lower case, as Go compares them; an empty one has none."""
    try:
        config = parse_any_json(data) if data.strip() else None
    except ValueError as error:
        raise CredentialsError(f"{where}: invalid docker configuration: {error}", hint=FILE_HINT) from error
    if config is None:  # Go reads null as nothing
        return {}
    if not isinstance(config, dict):
        raise CredentialsError(f"{where}: expected a JSON object, found {type(config).__name__}", hint=FILE_HINT)
    return {name.lower(): value for name, value in config.items()}


def _get_object(config: Mapping[str, Any], name: str, where: object) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        raise CredentialsError(f"{where}: {name}: expected an object, found {type(value).__name__}", hint=LOGIN_HINT)
    return value


def _require_credential_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise CredentialsError(f"{where}: expected a text, found {type(value).__name__}", hint=LOGIN_HINT)
    return value


def _find_entry(auths: Mapping[str, Any], host: str, where: str) -> Credentials | None:
    """Return the entry of the host itself, or else the first whose key is an address of the host."""
    names = (DOCKER_HUB_KEY, host, "index.docker.io") if host == DOCKER_HUB else (host,)
    addresses = (key for key in auths if _host_of(key) in names)
    key = next((name for name in names if name in auths), None) or next(addresses, None)
    return parse_entry(auths[key], f"{where}: auths.{key}") if key else None


def _host_of(key: str) -> str:
    """Return the host of a key of `auths`: https://HOST/, HOST/path (docker/cli: credentials.ConvertToHostname)."""
    return key.rpartition("://")[2].partition("/")[0].rpartition("@")[2]


def _ask_helper(helper: str, server: str, env: Mapping[str, str]) -> Credentials | None:
    """Ask a credential helper for a server's credentials. Its output is never shown: it may contain the secret."""
    program = f"docker-credential-{helper}"
    try:
        result = subprocess.run(
            [program, "get"],
            input=server,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=HELPER_TIMEOUT,
            env=dict(env),
        )
    except FileNotFoundError as error:
        raise CredentialsError(
            f"{program}: not found on PATH, but docker's configuration uses it for {server}",
            hint=f"install it, or remove it from {config_path(env)}",
        ) from error
    except (OSError, ValueError) as error:  # not executable; or a name that no program can have
        raise CredentialsError(
            f"{program}: {error}", hint=f"docker's configuration names it: {config_path(env)}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise CredentialsError(f"{program} get: no answer within {HELPER_TIMEOUT} seconds") from error
    if result.returncode:
        if any(message in (result.stdout + result.stderr).lower() for message in NOT_FOUND):
            return None
        raise CredentialsError(
            f"{program} get: exit {result.returncode} for {server}", hint=f"to see why: echo {server} | {program} get"
        )
    return _parse_answer(result.stdout, program)


def _parse_answer(text: str, program: str) -> Credentials | None:
    try:
        answer = parse_any_json(text)
        user, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise CredentialsError(f"{program} get: expected JSON with Username and Secret") from error
    if not user and not secret:
        return None
    return Credentials(token=secret) if user == TOKEN_USER else Credentials(user, secret)
