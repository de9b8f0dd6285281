"""Asks the keyring for the passwords of indexes, with the provider that pip's configuration names. IO.

Source: https://pip.pypa.io/en/stable/topics/authentication/ ("Keyring Support"). As with pip, a password in the address
or in ~/.netrc comes first. Unlike pip, drydock asks before the first request, not after a refusal: uv, which asks the
index, gets the password with the address.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import requests

from drydock.core.console import log

ASK_PACKAGE = """import json, sys
try:
    from keyring import get_credential
except ImportError:
    sys.exit(1)
login = get_credential(sys.argv[1], sys.argv[2] or None)
print(json.dumps([login.username, login.password]) if login else "")
"""
TIMEOUT = 60.0
"""Seconds for the program `keyring`, which may wait for a keyring that is locked."""
Login = tuple[str, str]


def add_password(url: str, provider: str, env: Mapping[str, str] = os.environ) -> str:
    """Return an index's address with the password that the keyring has for it; as it is without one.

    `provider` is auto, disabled, import or subprocess. With auto, only an address with a user and no password is looked
    up: pip, too, asks for others only once the index has refused.
    """
    parts = urlsplit(url)
    user = None if parts.username is None else unquote(parts.username)
    if provider == "disabled" or parts.scheme not in ("http", "https") or parts.password is not None:
        return url
    if (provider == "auto" and user is None) or requests.utils.get_netrc_auth(url):
        return url
    host = parts.netloc.rpartition("@")[2]
    page = urlunsplit(parts._replace(netloc=host, path=f"{parts.path.rstrip('/')}/", query="", fragment=""))
    search = env.get("PATH", os.defpath)
    for service in (page, host):
        if login := _find_login(provider, service, user, search):
            return urlunsplit(parts._replace(netloc=f"{quote(login[0], safe='')}:{quote(login[1], safe='')}@{host}"))
    if provider != "auto":
        log(f"warning: {page}: {_explain_absence(provider, user, search)}")
    return url


@functools.cache
def _find_login(provider: str, service: str, user: str | None, search: str) -> Login | None:
    """Return what the keyring has for a service. pip asks the package `keyring` first, then the program."""
    login = None
    if provider in ("import", "auto"):
        login = _ask_package(service, user)
    program = find_program(search)
    if login is None and provider in ("subprocess", "auto") and program and user is not None:
        password = _run_keyring([program, "get", service, user])
        login = (user, password) if password else None
    return login


def _ask_package(service: str, user: str | None) -> Login | None:
    """Ask the package `keyring` of drydock's own Python; -I, since a file keyring.py may lie in the current folder."""
    answer = _run_keyring([sys.executable, "-I", "-c", ASK_PACKAGE, service, user or ""])
    if not answer:
        return None
    name, password = json.loads(answer)
    return str(name), str(password)


def _run_keyring(command: Sequence[str]) -> str:
    """Return what a program prints; "" if it has no password. What it says on standard error is shown."""
    env = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        result = subprocess.run(command, env=env, stdin=none, stdout=pipe, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log(f"warning: {command[0]}: {error}")
        return ""
    return "" if result.returncode else result.stdout.decode(errors="replace").strip("\r\n")


def find_program(search: str) -> str | None:
    """Return the program `keyring` on a PATH, without the folder of drydock's own environment, which pip leaves out."""
    scripts = Path(sysconfig.get_path("scripts")).resolve()
    folders = [folder for folder in search.split(os.pathsep) if folder and Path(folder).resolve() != scripts]
    return shutil.which("keyring", path=os.pathsep.join(folders))


def _explain_absence(provider: str, user: str | None, search: str) -> str:
    """Say why a provider that the user named gives no password."""
    if provider == "import":
        return (
            "the package keyring of drydock's own Python gives no password; PIP_KEYRING_PROVIDER=subprocess asks PATH's"
        )
    if find_program(search) is None:
        return "PIP_KEYRING_PROVIDER=subprocess, but there is no program `keyring` on PATH"
    if user is None:
        return "PIP_KEYRING_PROVIDER=subprocess asks only for a user that the address names"
    return f"`keyring get` has no password of {user}"
