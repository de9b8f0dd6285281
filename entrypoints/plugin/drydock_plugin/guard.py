"""A middleware of vLLM's server that is closed by default: keys, names, routes, and the size of bodies.

vLLM checks its key only below /v1, /v2, /inference and /cohere, and reads bodies of any size (its security guide; of
0.33 entrypoints/serve/middleware/authenticate.py). vLLM loads this class by --middleware, after its own middlewares, so
that a request comes here first. Only a route of routes.json is served: a route that the list does not know is closed,
and the build of an image fails for it (drydock/build/routes.py). Its settings, such as the largest body, are chosen in
plan/guard_settings.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .draining import App, Message, Receive, Refusals, Send, send_refusal

KEYS = "VLLM_API_KEY"
"""The keys of clients, one a line. vLLM takes the variable's whole text for one key, and gets it so."""
ADMIN_KEYS = "DRYDOCK_ADMIN_KEY"
"""The keys of administrators, one a line. With one, nothing else administers the server."""
MOST = "DRYDOCK_MAX_REQUEST_BYTES"
ADMIN = "DRYDOCK_ADMIN_ENDPOINTS"
HOSTS = "DRYDOCK_ALLOWED_HOSTS"
"""Names, with commas, by which clients may ask a server without keys. A page in a browser of this machine reaches it
too, if its own name leads to 127.0.0.1 (DNS rebinding); the browser then sends that name as Host."""

ROUTES: Mapping[str, list[str]] = json.loads((Path(__file__).parent / "routes.json").read_text())
PUBLIC = frozenset(ROUTES["public"])
SERVED, ADMINISTERED = (
    re.compile("|".join(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)) for path in ROUTES[kind]))
    for kind in ("serving", "admin")
)
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^][:@/]+?)\.?(?::[0-9]*)?")
"""Name and port (RFC 9112, 3.2). A final dot names the same host. The port may be that of a proxy or a tunnel."""

UNAUTHORIZED = (401, "Unauthorized", "send the server's key as Authorization: Bearer KEY")
MISDIRECTED = (421, "MisdirectedRequest", "without a key, Host must name this server; DRYDOCK_ALLOWED_HOSTS adds names")
"""RFC 9110, 7.4."""
CLOSED = (404, "NotFound", "not found; what administers the server answers only to the key of --admin-key-file")
TOO_LARGE = (413, "PayloadTooLarge", "the body has more bytes than --max-request-bytes")
POLICY, MESSAGE_TOO_BIG = 1008, 1009
"""Codes of RFC 6455, 7.4.1, with which a websocket is closed."""

Scope = dict[str, Any]


class Guard:
    """ASGI middleware: 401 without a key, 421 for another name, 404 for administration, 413 for a large body.

    Administration is open to a key of administrators only, or with --admin-endpoints and without such keys to all.
    """

    def __init__(self, app: App) -> None:
        self._app = Refusals(app)
        self._whole = os.environ.get(KEYS, "").encode()
        self._keys = _hash_keys(self._whole)
        admin_text = os.environ.get(ADMIN_KEYS, "").encode()
        self._has_administrators, self._admin_keys = bool(admin_text), _hash_keys(admin_text)
        self._most = int(os.environ[MOST])
        self._admin = os.environ.get(ADMIN) == "1"
        names = None if self._whole else os.environ.get(HOSTS)
        self._hosts = LOOPBACK.union(_host_name(name) for name in names.split(",")) if names is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path, key_digest = route_path(scope), _read_key(scope)
        is_admin = _matches_key(key_digest, self._admin_keys)
        if not (_is_public(scope, path) or _is_preflight(scope) or self._admits(scope, key_digest, is_admin=is_admin)):
            await _refuse_request(scope, send, *UNAUTHORIZED)
        elif not (_is_public(scope, path) or is_admin or self._is_meant(scope)):
            await _refuse_request(scope, send, *MISDIRECTED)
        elif not (path in PUBLIC or SERVED.fullmatch(path) or self._opens(path, is_admin=is_admin)):
            await _refuse_request(scope, send, *CLOSED)
        elif _read_content_length(scope) > self._most:
            await _refuse_request(scope, send, *TOO_LARGE)
        else:
            await self._pass_on(scope, receive, send)

    def _admits(self, scope: Scope, key_digest: bytes, *, is_admin: bool) -> bool:
        """Tell whether a request has one of the keys, and give vLLM the text that its own check expects."""
        is_client = _matches_key(key_digest, self._keys)
        if not (is_client or is_admin or not self._whole):
            return False
        if self._whole or is_admin:  # a key of an administrator goes no further
            other_headers = [header for header in scope["headers"] if header[0] != b"authorization"]
            server_header = [(b"authorization", b"Bearer " + self._whole)] if self._whole else []
            scope["headers"] = [*other_headers, *server_header]
        return True

    def _opens(self, path: str, *, is_admin: bool) -> bool:
        """Tell whether a route that serves no client is open: to everyone who is let in, or to administrators only.

        With keys of administrators they reach what administers the server, and with --admin-endpoints every other path.
        """
        if self._has_administrators:
            return is_admin and (self._admin or ADMINISTERED.fullmatch(path) is not None)
        return self._admin

    def _is_meant(self, scope: Scope) -> bool:
        """Tell whether a request names this server: as allowed, or by the address at which it arrived here.

        A request without a name, or with two, names none.
        """
        if self._hosts is None:
            return True
        values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        host = _host_name(values[0]) if len(values) == 1 else ""
        address = str((scope.get("server") or ("",))[0])
        return host != "" and (host in self._hosts or host.strip("[]") == address)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(scope, receive, send, self._most)
        try:
            await self._app(scope, body.receive, body.send)
        except Exception:
            if not body.refused:
                raise


class Body:
    """Passes a body on until it is too large, which ends it: the client gets 413, the application a disconnect."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._left = self._most = most
        self._ended = self._begun = False
        self.refused = False
        """Whether the client got 413 instead of the application's answer."""

    async def receive(self) -> Message:
        """Return the next part, or the end."""
        message: Message = {} if self._ended else await self._receive()
        self._left -= len(message.get("body") or message.get("bytes") or (message.get("text") or "").encode())
        if self._left < 0 and not self._ended:
            self._ended = True
            if not self._begun or self._scope["type"] == "websocket":
                self.refused = True
                await _refuse_request(self._scope, self._send, *TOO_LARGE)
        if self._scope["type"] == "websocket":
            self._left = self._most  # for the next message
            return {"type": "websocket.disconnect", "code": MESSAGE_TOO_BIG} if self._ended else message
        return {"type": "http.disconnect"} if self._ended else message

    async def send(self, message: Message) -> None:
        """Send one part of the answer, unless the client has its answer."""
        self._begun = True
        if not self.refused:
            await self._send(message)


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path by which the application finds a route: without --root-path, as Starlette's get_route_path."""
    path, root = str(scope["path"]), str(scope.get("root_path") or "")
    return path[len(root) :] if root and path.startswith(root + "/") else path


def _is_public(scope: Scope, path: str) -> bool:
    """Tell whether a request is answered without a key, whatever name it has."""
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and path in PUBLIC


def _is_preflight(scope: Scope) -> bool:
    """Tell whether a browser asks which requests a page may send (the CORS preflight), which it does without a key.

    vLLM's CORS middleware answers it, and reads no body.
    """
    asks = {b"origin", b"access-control-request-method"} <= {name for name, _ in scope["headers"]}
    return scope["type"] == "http" and scope["method"] == "OPTIONS" and asks


def _host_name(text: str) -> str:
    """Return the name in a Host header, in lower case and without the port; empty for anything else."""
    parts = HOST.fullmatch(text.strip().lower())
    return parts[1] if parts else ""


def _read_content_length(scope: Scope) -> int:
    """Return the bytes of the body that the headers promise; 0 if they do not tell."""
    values = [value for name, value in scope["headers"] if name == b"content-length"]
    return max((int(value) for value in values if value.isdigit() and len(value) < len(str(1 << 64))), default=0)


def _read_key(scope: Scope) -> bytes:
    """Return what is compared of a request's key; of no key for another scheme, no header, or several."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    return _hash_key(key) if scheme.lower() == b"bearer" and key else b""


def _matches_key(key_digest: bytes, known_digests: Sequence[bytes]) -> bool:
    """Tell whether a key is one of those that are known; all of them are compared, so that none is found sooner."""
    return sum(hmac.compare_digest(key_digest, known_digest) for known_digest in known_digests) > 0


def _hash_keys(text: bytes) -> list[bytes]:
    """Return what is compared of keys, one a line."""
    return [_hash_key(line.strip()) for line in text.splitlines() if line.strip()]


def _hash_key(key: bytes) -> bytes:
    """Return what is compared instead of a key: its length does not show in the time."""
    return hashlib.sha256(key).digest()


async def _refuse_request(scope: Scope, send: Send, status: int, kind: str, message: str) -> None:
    """Refuse a request before its body is read, or close a websocket."""
    if scope["type"] == "websocket":
        code = MESSAGE_TOO_BIG if status == TOO_LARGE[0] else POLICY
        await send({"type": "websocket.close", "code": code})
    else:
        headers = [(b"www-authenticate", b"Bearer")] if status == UNAUTHORIZED[0] else []
        await send_refusal(send, status, kind, message, headers)
