"""How a server is closed by default: its keys, its largest body, and the middleware's other settings. Pure.

The middleware (plugin/drydock_plugin/guard.py) checks the keys of every route, or the names by which a server without
keys is asked, closes what administers the server, and limits bodies. vLLM's own check covers a part of the routes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import Notice, Value
from entrypoints.core.units import MIB
from entrypoints.decide.cpu.executor import PLUGIN, PYTHON_PATH
from entrypoints.model.read import ModelFacts
from entrypoints.request.access import (
    ADMIN,
    ADMIN_KEY_FILE,
    ADMIN_KEY_VARIABLE,
    ALLOWED_HOSTS,
    KEY_FILE,
    MOST,
    check_allowed_hosts,
    parse_keys,
)
from entrypoints.request.flags import API_KEY, API_KEY_VARIABLE, MIDDLEWARE
from entrypoints.request.vllm_flags import UserFlags, parse_count, remove_flag

NAME = "drydock_plugin.guard.Guard"
MOST_VARIABLE, ADMIN_VARIABLE = "DRYDOCK_MAX_REQUEST_BYTES", "DRYDOCK_ADMIN_ENDPOINTS"
MAX_BODY_OF_TEXT, MAX_BODY_OF_MEDIA = 32 * MIB, 256 * MIB
"""Bytes of a body. 32 MiB hold the text of a million tokens several times; images and recordings come as base64."""


def read_api_key(user_flags: UserFlags) -> tuple[UserFlags, dict[str, Value], tuple[Notice, ...]]:
    """Move the keys from vLLM's command line to its environment, which other users of the host cannot read.

    Raises USAGE for keys from two places, and for a place without a key that a client can send.
    """
    flag, keys = user_flags.flags.get(API_KEY), user_flags.access.keys
    if keys and flag:
        key_flag = flag.given.partition(" ")[0].partition("=")[0].rstrip(":")
        raise EntrypointError(USAGE, f"{KEY_FILE} and {key_flag}: both give the API key", "give one of them")
    if keys:
        return user_flags, {API_KEY_VARIABLE: Value("\n".join(keys), f"read from {KEY_FILE}")}, ()
    words, rest = remove_flag(API_KEY, user_flags)
    if flag and rest != user_flags.tokens:
        keys = parse_keys("\n".join(words), API_KEY)
        flags = {name: user_flag for name, user_flag in user_flags.flags.items() if name != API_KEY}
        because = f"given as {API_KEY}; vLLM's process gets it as a variable, which the process list does not show"
        exposed = make_notice(
            "PLAN-090", f"{API_KEY} KEY", f"{KEY_FILE} FILE, or {API_KEY_VARIABLE} in the environment"
        )
        moved = user_flags._replace(flags=flags, tokens=rest)
        return moved, {API_KEY_VARIABLE: Value("\n".join(keys), because)}, (exposed,)
    if flag:  # vLLM reads its configuration file itself
        keys = parse_keys(str(flag.value), flag.given)
        return user_flags, {API_KEY_VARIABLE: Value("\n".join(keys), f"as in {flag.given}")}, ()
    variable = user_flags.env.get(API_KEY_VARIABLE)
    if variable is not None:  # vLLM counts an empty one as unset
        parse_keys(variable, API_KEY_VARIABLE)
        return user_flags, {}, ()
    return user_flags, {}, (make_notice("PLAN-092", "no API key", f"{KEY_FILE} FILE, or {API_KEY_VARIABLE}"),)


def add_middleware(user_flags: UserFlags, keyed: bool) -> tuple[UserFlags, tuple[Notice, ...]]:
    """Let vLLM load the middleware after the user's own ones, so that requests come to it first.

    Raises HOST for a vLLM that cannot load it and has a key, which would close a part of the routes only.
    """
    if user_flags.known and MIDDLEWARE not in user_flags.known:
        message = f"this image's vLLM has no {MIDDLEWARE}, by which drydock closes its routes"
        if keyed:
            raise EntrypointError(HOST, message, "use an image with a newer vLLM, or leave the key out")
        return user_flags, (make_notice("PLAN-093", f"no {MIDDLEWARE}", "a newer vLLM"),)
    if MIDDLEWARE in user_flags.flags:
        return user_flags._replace(tokens=(*user_flags.tokens, MIDDLEWARE, NAME)), ()
    return user_flags, ()


def choose_request_limits(model: ModelFacts, user_flags: UserFlags, exported: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings of the middleware."""
    media = " and ".join(model.modalities)
    most, what = (MAX_BODY_OF_MEDIA, f"a request with {media}") if media else (MAX_BODY_OF_TEXT, "a request of text")
    because = f"what administers the server is closed; {ADMIN} opens it"
    if user_flags.access.admin_keys or ADMIN_KEY_VARIABLE in user_flags.env:
        because = f"only a key of {ADMIN_KEY_FILE} administers the server"
    values = {
        MOST_VARIABLE: Value(str(most), f"bytes of the largest body: {what}; {MOST} changes it", ("vLLM: no limit",)),
        ADMIN_VARIABLE: Value("0", because),
        PYTHON_PATH: _python_path(user_flags, exported),
    }
    if not user_flags.known or MIDDLEWARE in user_flags.known:
        because = "drydock's middleware: keys, closed routes, the size of bodies, and 503 while the server stops"
        values[MIDDLEWARE] = Value(NAME, because, ("vLLM checks a key only below /v1, /v2, /inference and /cohere",))
    return values


def read_guard_settings(user_flags: UserFlags) -> dict[str, Value]:
    """Return what the user set for the middleware. Raises USAGE for a number of bytes or a name that is none."""
    values = {}
    text, variable = user_flags.access.most, user_flags.variable(MOST_VARIABLE) or "1"
    if text:
        most = parse_count(text, f"{MOST} {text}", 1, "bytes")
        values[MOST_VARIABLE] = Value(str(most), f"given as {MOST} {text}")
    elif not re.fullmatch("0*[1-9][0-9]{0,17}", variable):
        raise EntrypointError(USAGE, f"{MOST_VARIABLE}={variable}: expected bytes, such as {MAX_BODY_OF_TEXT}")
    hosts = user_flags.env.get(ALLOWED_HOSTS)
    if hosts is not None:
        check_allowed_hosts(hosts)
    if user_flags.access.admin:
        values[ADMIN_VARIABLE] = Value("1", f"given as {ADMIN}")
    if user_flags.access.admin_keys:
        keys = "\n".join(user_flags.access.admin_keys)
        values[ADMIN_KEY_VARIABLE] = Value(keys, f"read from {ADMIN_KEY_FILE}")
    elif ADMIN_KEY_VARIABLE in user_flags.env:
        parse_keys(user_flags.env[ADMIN_KEY_VARIABLE], ADMIN_KEY_VARIABLE)
    if MIDDLEWARE in user_flags.flags:
        user_middleware = user_flags.flags[MIDDLEWARE]
        values[MIDDLEWARE] = Value(
            f"{user_middleware.value}, {NAME}", f"given as {user_middleware.given}; requests come to drydock's first"
        )
    return values


def check_admin_keys(user_flags: UserFlags, exported: Mapping[str, Value]) -> None:
    """Raise USAGE for a key that is a client's and an administrator's, and for one that nothing would check."""
    key_texts = {
        name: str(exported[name].value) if name in exported else user_flags.env.get(name, "")
        for name in (API_KEY_VARIABLE, ADMIN_KEY_VARIABLE)
    }
    clients, administrators = ({line.strip() for line in text.splitlines()} for text in key_texts.values())
    if (clients & administrators) - {""}:
        message = f"{ADMIN_KEY_FILE}: a key of it is also a key of clients, who would administer the server"
        raise EntrypointError(USAGE, message, "make another one: openssl rand -hex 32")
    if administrators - {""} and user_flags.known and MIDDLEWARE not in user_flags.known:
        message = f"{ADMIN_KEY_FILE}: this image's vLLM has no {MIDDLEWARE}, by which drydock checks it"
        raise EntrypointError(HOST, message, "use an image with a newer vLLM, or leave it out")


def _python_path(user_flags: UserFlags, exported: Mapping[str, Value]) -> Value:
    """Return the path with the plugin's folder, after the folders of the user or the base image."""
    exported_path = exported.get(
        PYTHON_PATH, Value(user_flags.variable(PYTHON_PATH) or "", "set in the container's environment")
    )
    folders = [folder for folder in str(exported_path.value).split(":") if folder not in ("", PLUGIN)]
    because = f"{exported_path.because}; and " if folders else ""
    return Value(":".join((*folders, PLUGIN)), f"{because}the folder of drydock's plugin for vLLM")
