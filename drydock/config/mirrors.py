"""mirrors.yaml: the mirrors of registries, git hosts and indexes that this machine uses. Pure, except read_mirrors.

It configures a machine, as pip.conf does: nothing of it enters a lock or an image, and it holds no credentials.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from drydock.config.strict_yaml import read_yaml
from drydock.config.validation import validate_document
from drydock.core.errors import InputError
from drydock.core.files import has_file
from drydock.core.ownership import find_writer
from drydock.core.paths import find_home_folder
from drydock.model.record import Record

NAME = "mirrors.yaml"
VARIABLE = "DRYDOCK_MIRRORS"
"""Names another file."""
DEFAULT = "default"
"""The key in `indexes` for the index that pip uses if its configuration names none."""
DEBIAN = "debian"
"""The key in `indexes` for the Debian archive of a machine whose apt names none."""
HINT = "credentials come from ~/.netrc (or the file that NETRC names), a registry's from docker login"


def _without_credentials(value: str) -> str:
    if "@" in value.partition("://")[2].partition("/")[0] or "@" in value.partition("/")[0]:
        raise ValueError("an address without user and password")
    return value


def _redact_user_info(text: str) -> str:
    return re.sub(r"""(//|["'\s])[^\s"']{0,1000}@""", r"\1", text)


def _check_url(value: str) -> str:
    parts = urlsplit(_without_credentials(value))
    if parts.scheme not in ("https", "http", "file") or not (parts.netloc or parts.scheme == "file"):
        raise ValueError("an address with https://, http:// or file://")
    return value


def _check_registry(value: str) -> str:
    if "://" in _without_credentials(value):
        raise ValueError("HOST[:PORT][/PATH] without https://")
    return value


Url = Annotated[str, AfterValidator(_check_url)]
RegistryAddress = Annotated[str, AfterValidator(_check_registry)]


class Mirrors(Record):
    """mirrors.yaml: where to take things from instead. If several keys are a prefix of a name, the longest is used."""

    schema_: Literal[1] = Field(alias="schema", default=1)
    """Version of this file's layout."""
    registries: Mapping[str, RegistryAddress] = {}
    """Registry, with or without a path → HOST[:PORT][/PATH] of its mirror."""
    git: Mapping[Url, Url] = {}
    """Prefix of a repository's URL → the prefix that replaces it."""
    indexes: Mapping[str, Url] = {}
    """Prefix of the URL of an index, a Debian archive or a file → the prefix that replaces it.
    `default` is the index that pip uses without configuration, `debian` the Debian archive if apt names none."""


NONE = Mirrors()


def read_mirrors(env: Mapping[str, str] = os.environ) -> Mirrors:
    """Return the machine's mirrors; none if there is no file. Raises InputError."""
    path = find_mirrors_file(env)
    if not has_file(path):
        if env.get(VARIABLE):
            raise InputError(f"DRYDOCK_MIRRORS={path}: no such file")
        return NONE
    if not env.get(VARIABLE) and (writer := find_writer(path)):
        hint = f"it decides where packages come from; chown it and chmod go-w, or name it: {VARIABLE}={path}"
        raise InputError(writer, hint=hint)
    try:
        return validate_document(Mirrors, read_yaml(path, str(path)))
    except InputError as error:
        blamed = HINT if b"@" in path.read_bytes() else "docs/lock.md#mirrors shows each key"
        raise InputError(*map(_redact_user_info, error.problems), hint=error.hint or blamed) from None


def find_mirrors_file(env: Mapping[str, str]) -> Path:
    """Return the path of the file, whether it exists or not."""
    if env.get(VARIABLE):
        return Path(env[VARIABLE])
    return Path(env.get("XDG_CONFIG_HOME") or find_home_folder(env) / ".config") / "drydock" / NAME


def rewrite_url(url: str, prefixes: Mapping[str, str]) -> str:
    """Return a URL with its longest known prefix replaced. A prefix ends at the end of a path segment.

    User and password are removed: they belong to the original host.
    """
    bare, longest_first = _strip_user_info(url), sorted(prefixes, key=len, reverse=True)
    match = next(
        (prefix for prefix in longest_first if prefix not in (DEFAULT, DEBIAN) and _is_prefix(bare, prefix)), None
    )
    return _join_url(prefixes[match], bare[len(match) :]) if match is not None else url


def git_environment(mirrors: Mirrors, env: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make git use the mirrors, in addition to its own configuration.

    Source: git-config(1), GIT_CONFIG_COUNT and url.<base>.insteadOf.
    """
    first = int(env.get("GIT_CONFIG_COUNT") or 0)
    added = {
        name: value
        for number, (prefix, mirror) in enumerate(sorted(mirrors.git.items()), first)
        for name, value in (
            (f"GIT_CONFIG_KEY_{number}", f"url.{mirror}.insteadOf"),
            (f"GIT_CONFIG_VALUE_{number}", prefix),
        )
    }
    return {**added, "GIT_CONFIG_COUNT": str(first + len(mirrors.git))} if mirrors.git else {}


def _strip_user_info(url: str) -> str:
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _is_prefix(url: str, prefix: str) -> bool:
    return url.startswith(prefix) and (prefix.endswith("/") or url[len(prefix) :][:1] in ("", "/"))


def _join_url(mirror: str, rest: str) -> str:
    """Join two parts of a URL with one slash."""
    return f"{mirror.rstrip('/')}/{rest.lstrip('/')}" if rest.strip("/") else mirror
