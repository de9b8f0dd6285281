"""Turns this machine's pip configuration into settings for uv and for downloads. IO; the parsing is pure.

Pip's configuration decides which index serves a file. Unlike pip, drydock takes a package from the first index that
has any version of it, the main one first: an extra index cannot replace a package of the main index.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from drydock.config.mirrors import DEFAULT, Mirrors, find_mirrors_file, read_mirrors, rewrite_url
from drydock.config.server_access import Access
from drydock.core.errors import FetchError
from drydock.core.http import parse_origin
from drydock.inputs.pip_keyring import add_password

SECTIONS = ("global", "download", "install", ":env:")
"""Sections of pip's configuration; later ones win."""


class Indexes(NamedTuple):
    """The sources of Python distributions. Contains secrets: never print it."""

    main: str | None
    """None for the default index of pip and uv."""
    extra: tuple[str, ...]
    find_links: tuple[str, ...]
    no_index: bool
    trusted_hosts: tuple[str, ...]
    certificates: str | None
    client_certificate: str | None
    proxy: str | None
    timeout: float
    keyring: str = "auto"
    """Provider of passwords: auto, disabled, import or subprocess."""
    constraints: tuple[str, ...] = ()
    """Files of pip's constraints, which drydock does not use."""

    def list_link_folders(self) -> list[Path]:
        """Return find-links as folders. One that is an address of a server is no folder that exists."""
        return [Path(link.removeprefix("file://")) for link in self.find_links]


_PIP = ("-P", "-m", "pip")
"""-P: `-m` alone would run a pip.py of the current folder, whoever wrote it."""


def read_indexes(env: Mapping[str, str] = os.environ) -> Indexes:
    """Return pip's configuration, from its files and environment."""
    command = [sys.executable, *_PIP, "config", "list"]
    result = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
    if result.returncode:
        raise FetchError(
            f"pip config list failed:\n{(result.stderr or result.stdout).strip()}", hint="fix pip's configuration"
        )
    return _with_logins(apply_mirrors(parse_config(result.stdout), read_mirrors(env)), env)


def parse_config(text: str) -> Indexes:
    """Parse the output of `pip config list` (section.key='value')."""
    options = _parse_options(text)
    return Indexes(
        main=options.get("index-url") or None,
        extra=_split_words(options.get("extra-index-url")),
        find_links=_split_words(options.get("find-links")),
        no_index=options.get("no-index", "").lower() in ("1", "true", "yes", "on"),
        trusted_hosts=_split_words(options.get("trusted-host")),
        certificates=_expand_home(options.get("cert")),
        client_certificate=_expand_home(options.get("client-cert")),
        proxy=options.get("proxy") or None,
        timeout=float(options.get("timeout") or options.get("default-timeout") or 60),
        keyring=options.get("keyring-provider") or "auto",
        constraints=_split_words(options.get("constraint")),
    )


def apply_mirrors(indexes: Indexes, mirrors: Mirrors) -> Indexes:
    """Return the indexes with their URLs replaced by mirrors."""

    def mirror_of(url: str) -> str:
        return rewrite_url(url, mirrors.indexes)

    return indexes._replace(
        main=mirror_of(indexes.main) if indexes.main else mirrors.indexes.get(DEFAULT),
        extra=tuple(map(mirror_of, indexes.extra)),
        find_links=tuple(map(mirror_of, indexes.find_links)),
    )


def _with_logins(indexes: Indexes, env: Mapping[str, str]) -> Indexes:
    """Return the indexes with the passwords that pip's keyring provider gives."""
    complete = partial(add_password, provider=indexes.keyring, env=env)
    return indexes._replace(
        main=complete(indexes.main) if indexes.main else None,
        extra=tuple(map(complete, indexes.extra)),
        find_links=tuple(map(complete, indexes.find_links)),
    )


def uv_environment(indexes: Indexes, env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which uv uses pip's indexes, in order, and ignores its own configuration.

    uv asks UV_INDEX in order, then UV_DEFAULT_INDEX, and stops at the first index that has the package. So pip's
    default index must be named if others come after it.
    The indexes are not arguments because every user of the machine can read the arguments of a process.
    """
    inherited = {name: value for name, value in env.items() if not name.startswith("UV_") or name == "UV_CACHE_DIR"}
    *first, last = (indexes.main or (pips_default() if indexes.extra else None), *indexes.extra)
    uv_variables = {
        "UV_DEFAULT_INDEX": last,
        "UV_INDEX": " ".join(url for url in first if url),
        "UV_FIND_LINKS": ",".join(indexes.find_links),
        "UV_INSECURE_HOST": " ".join(indexes.trusted_hosts),
        "UV_HTTP_TIMEOUT": str(int(indexes.timeout)),
        "UV_HTTP_RETRIES": "1",  # uv is run again, after the time that the server asks for
        "COLUMNS": "1000",  # uv breaks the lines of its errors, which are read
        "SSL_CERT_FILE": indexes.certificates,
        "SSL_CLIENT_CERT": indexes.client_certificate,
        "HTTP_PROXY": indexes.proxy,
        "HTTPS_PROXY": indexes.proxy,
    }
    return inherited | {name: value for name, value in uv_variables.items() if value}


@functools.cache
def pips_default() -> str:
    """Return the index that pip uses without configuration, which its help names. Raises FetchError."""
    command = [sys.executable, *_PIP, "--isolated", "download", "--help"]
    env = {"COLUMNS": "1000", "HOME": "/"}  # without line breaks; and pip needs a home, which not every user id has
    text = subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
    match = re.search(r"--index-url <url>.{0,500}?\(default (https://[^\s()]+)\)", text)
    if not match:
        hint = f"name one in {find_mirrors_file(os.environ)}:\n  indexes: {{{DEFAULT}: https://MIRROR/simple}}"
        raise FetchError("pip does not say which index is its default", hint=hint)
    return match[1]


def page_of(index: str, name: str) -> str:
    """Return the address of an index's page of a package (PEP 503)."""
    return f"{index.rstrip('/')}/{name}/"


def split_indexes(indexes: Indexes) -> tuple[Indexes, ...]:
    """Return one configuration for each index alone, to find a file that another index's same version hides."""
    folders = (indexes._replace(main=None, extra=(), no_index=True),) if indexes.find_links else ()
    if indexes.no_index:
        return folders
    bare = indexes._replace(extra=(), find_links=())
    return (*folders, bare, *(bare._replace(main=url) for url in indexes.extra))


def select_public_index(indexes: Indexes, url: str, env: Mapping[str, str]) -> Indexes:
    """Return the configuration of one public index alone, or of its mirror; of no index if the machine allows none."""
    alone = indexes._replace(extra=(), find_links=())
    return alone if indexes.no_index else alone._replace(main=rewrite_url(url, read_mirrors(env).indexes))


def make_index_access(indexes: Indexes, env: Mapping[str, str]) -> Access:
    """Return the access settings for downloading files."""
    logins = (_parse_credentials(url) for url in (indexes.main, *indexes.extra, *indexes.find_links) if url)
    return Access(
        certificates=indexes.certificates or env.get("REQUESTS_CA_BUNDLE") or env.get("SSL_CERT_FILE"),
        client_certificate=indexes.client_certificate,
        proxies={"http": indexes.proxy, "https": indexes.proxy} if indexes.proxy else {},
        credentials={where: login for where, login in logins if login},
        insecure_hosts=frozenset(host.partition(":")[0] for host in indexes.trusted_hosts),
        timeout=indexes.timeout,
        mirrors=read_mirrors(env).indexes,
    )


def _parse_options(text: str) -> dict[str, str]:
    options: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in SECTIONS and SECTIONS.index(section) >= options.get(key, (0, ""))[0]:
            options[key] = (SECTIONS.index(section), str(ast.literal_eval(value)))
    return {key: value for key, (_, value) in options.items()}


def _expand_home(path: str | None) -> str | None:
    """Return a path as pip reads it, with the home folder for `~`."""
    return os.path.expanduser(path) if path else None  # noqa: PTH111 - keeps a path as it is otherwise


def _split_words(value: str | None) -> tuple[str, ...]:
    return tuple((value or "").split())


def _parse_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    parts = urlsplit(url)
    if parts.username is None:
        return "", None
    return parse_origin(url), (unquote(parts.username), unquote(parts.password or ""))
