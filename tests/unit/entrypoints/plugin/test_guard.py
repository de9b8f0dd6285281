"""The middleware that closes vLLM's server: keys, routes of every vLLM that drydock ships, bodies, websockets."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drydock.core.paths import ROOT
from entrypoints.plan.guard_settings import ADMIN_VARIABLE, MOST_VARIABLE
from entrypoints.request.access import ADMIN_KEY_VARIABLE, ALLOWED_HOSTS

PLUGIN = ROOT / "entrypoints" / "plugin"
KEYS = ("sk-one", "sk-two")
MOST = 1000
ROUTES: dict[str, list[str]] = json.loads((PLUGIN / "drydock_plugin" / "routes.json").read_text())
OF_VERSIONS: dict[str, str] = json.loads((Path(__file__).parent / "routes.json").read_text())
"""Route → the versions of vLLM whose source code registers it, as drydock/build/routes.py finds them."""
PUBLIC = {"/health", "/load", "/metrics", "/ping", "/version"}

Headers = tuple[tuple[bytes, bytes], ...]
BEARER: Headers = ((b"authorization", b"Bearer sk-two"),)


@pytest.fixture(scope="module")
def guard() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN))
        yield importlib.import_module("drydock_plugin.guard")


class Vllm:
    """Stands in for the application: reads the whole body, then answers."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] | None = None
        self.read = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = dict(scope)
        more = scope["type"] == "http"
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError("the client has gone")
            self.read += len(message["body"])
            more = message["more_body"]
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (await receive())["type"] == "websocket.receive":
                self.read += 1
        else:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"own"})


class Request(NamedTuple):
    """What a client sends, and how the server is set."""

    path: str
    headers: Headers = ()
    method: str = "POST"
    parts: tuple[Any, ...] = (b"x",)
    kind: str = "http"
    root: str = ""
    keys: tuple[str, ...] = KEYS
    admin: str = "0"
    admin_keys: str | None = None
    names: str | None = None
    server: tuple[str, int | None] | None = ("172.17.0.2", 8000)
    """The address at which it arrived; a Unix socket's path, without a port."""


class Asked:
    """One request through the middleware."""

    def __init__(self, guard: ModuleType, request: Request) -> None:
        self.app, self.sent, self.asked_for = Vllm(), list[dict[str, Any]](), 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_API_KEY", "\n".join(request.keys))
            patch.setenv(MOST_VARIABLE, str(MOST))
            patch.setenv(ADMIN_VARIABLE, request.admin)
            if request.admin_keys is not None:
                patch.setenv(ADMIN_KEY_VARIABLE, request.admin_keys)
            if request.names is not None:
                patch.setenv(ALLOWED_HOSTS, request.names)
            middleware = guard.Guard(self.app)
        scope: dict[str, Any] = {"type": request.kind, "path": request.path, "root_path": request.root}
        scope |= {"headers": list(request.headers), "server": request.server}
        scope |= {"method": request.method} if request.kind == "http" else {}
        waiting = list(request.parts)

        async def receive() -> dict[str, Any]:
            self.asked_for += 1
            if request.kind == "websocket":
                return {"type": "websocket.receive", **waiting.pop(0)} if waiting else {"type": "websocket.disconnect"}
            body = waiting.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(waiting)}

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        asyncio.run(middleware(scope, receive, send))

    @property
    def status(self) -> int:
        assert [message["type"] for message in self.sent].count("http.response.start") == 1
        return int(self.sent[0]["status"])


Ask = Callable[..., Asked]


@pytest.fixture(scope="module")
def ask(guard: ModuleType) -> Ask:
    return lambda *arguments, **options: Asked(guard, Request(*arguments, **options))


def concrete(route: str) -> str:
    return "/".join("x" if part.startswith("{") else part for part in route.split("/"))


def test_every_route_of_every_version(ask: Ask) -> None:
    known_routes = {path for paths in ROUTES.values() for path in paths}
    assert set(OF_VERSIONS) - known_routes <= {"/static"}
    assert set(ROUTES["public"]) == PUBLIC
    table = ["route | versions | GET, POST without the key | with it | with --admin-endpoints"]
    for route in sorted(known_routes):
        path, admin = concrete(route), route in ROUTES["admin"]
        closed = [ask(path, method="GET"), ask(path), ask(path, ((b"authorization", b"Bearer sk-on"),))]
        opened, administered = ask(path, BEARER), ask(path, BEARER, admin="1")
        assert [response.status for response in closed] == [200 if route in PUBLIC else 401, 401, 401], route
        assert [response.asked_for for response in closed[1:]] == [0, 0], route
        assert (opened.status, opened.asked_for) == ((404, 0) if admin else (200, 1)), route
        assert administered.status == 200, route
        without = ", ".join(str(response.status) for response in closed[:2])
        versions = OF_VERSIONS.get(route, "").split() or ["(a framework's)"]
        table.append(f"{route} | {versions[0]} … {versions[-1]} | {without} | {opened.status} | {administered.status}")
    sys.stdout.write("\n".join((*table, "")))


def test_without_keys_everyone_may_ask_and_administration_stays_closed(ask: Ask) -> None:
    assert ask("/v1/completions", keys=()).status == 200
    assert ask("/pause", keys=()).status == 404
    assert ask("/pause", keys=(), admin="1").status == 200
    assert ask("/v1/new/route", keys=()).status == 404


def host(*values: str) -> Headers:
    return tuple((b"host", value.encode()) for value in values)


NAMES = "localhost,127.0.0.1,[::1],127.0.0.9,LLM.example,[fd00::7]"
MEANT = (
    *("localhost", "localhost:8000", "LocalHost:9000", "localhost.", "localhost.:8000", "localhost:", " localhost\t"),
    *("127.0.0.1", "127.0.0.1:8000", "127.0.0.9:8000", "[::1]", "[::1]:8000", "[FD00::7]:1"),
    *("llm.example", "Llm.Example.:443", "172.17.0.2", "172.17.0.2:8000"),
)
OTHERS = (
    *("evil.example", "evil.example:8000", "localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example"),
    *("", ":8000", ".", "localhost..", "localhost:x", "localhost:8000:8000", "localhost,evil.example", "127.0.0.2"),
    *("user@localhost", "localhost@evil.example", "http://localhost", "localhost/", "local\u017fost", "loc alhost"),
    *("::1", "[::1", "[::1]evil.example", "[::2]", "0.0.0.0", "127.1", "2130706433", "[172.17.0.2]x", "172.17.0.3"),
)


@pytest.mark.parametrize("value", MEANT)
def test_a_server_without_a_key_answers_to_its_names(ask: Ask, value: str) -> None:
    assert ask("/v1/models", host(value), method="GET", keys=(), names=NAMES).status == 200


@pytest.mark.parametrize(
    "values", [*((value,) for value in OTHERS), (), ("localhost", "localhost"), ("a", "localhost")]
)
def test_a_page_whose_own_name_leads_here_gets_nothing(ask: Ask, values: tuple[str, ...]) -> None:
    trusted = ((b"x-forwarded-host", b"localhost"), (b"forwarded", b"host=localhost"), (b"origin", b"http://localhost"))
    response = ask("/v1/models", (*host(*values), *trusted), keys=(), names=NAMES)
    assert (response.status, response.asked_for, response.app.scope) == (421, 0, None)
    assert ALLOWED_HOSTS.encode() in response.sent[1]["body"]


@given(value=st.text(), names=st.sampled_from((NAMES, "", ",", "evil", "a,,b")))
def test_no_other_text_is_a_name(ask: Ask, value: str, names: str) -> None:
    accepted_names = {"localhost", "127.0.0.1", "172.17.0.2", "[::1]", "evil", "a", "b"}
    assert value.strip().lower() in accepted_names or ask("/v1/models", host(value), keys=(), names=names).status == 421


def test_health_and_metrics_answer_to_every_name_and_nothing_else_does(ask: Ask) -> None:
    evil = host("evil.example")
    for route in sorted({path for paths in ROUTES.values() for path in paths} | {"/", "/new"}):
        path = concrete(route)
        statuses = [
            ask(path, evil, method=method, keys=(), names="localhost", admin="1").status for method in ("GET", "HEAD")
        ]
        assert statuses == [200 if route in PUBLIC else 421] * 2, route
        assert ask(path, evil, keys=(), names="localhost", admin="1").status == 421, route
    preflight = (*evil, (b"origin", b"http://evil.example"), (b"access-control-request-method", b"POST"))
    assert ask("/v1/completions", preflight, method="OPTIONS", keys=(), names="localhost").status == 421


@pytest.mark.parametrize(
    ("value", "sent"), [("evil.example", "websocket.close"), ("localhost:8000", "websocket.accept")]
)
def test_a_websocket_needs_a_name_too(ask: Ask, value: str, sent: str) -> None:
    response = ask("/v1/realtime", host(value), kind="websocket", parts=(), keys=(), names="localhost")
    assert [message["type"] for message in response.sent] == [sent]


def test_nothing_is_compared_without_names_or_with_a_key(ask: Ask) -> None:
    for values in (("evil.example",), (), ("a", "b")):
        assert ask("/v1/models", host(*values), keys=()).status == 200
        assert ask("/v1/models", (*host(*values), *BEARER), names="localhost").status == 200
        assert ask("/v1/models", host(*values), names="localhost").status == 401


def test_the_target_of_a_proxys_request_is_no_path_that_is_served(ask: Ask) -> None:
    """h11 passes the whole target on as the path; httptools only its path, and no page sends such a target."""
    target = "http://localhost/v1/models"
    assert ask(target, host("evil.example"), method="GET", keys=(), names="localhost").status == 421
    assert ask(target, host("localhost"), method="GET", keys=(), names="localhost").status == 404


@pytest.mark.parametrize(
    ("server", "value", "status"),
    [
        (("::1", 8000), "[::1]:8000", 200),
        (("fd00::7", 8000), "[fd00::7]", 200),
        (("fd00::7", 8000), "fd00::7", 421),
        (("10.0.0.5", 8000), "10.0.0.5:8000", 200),
        (("/run/vllm.sock", None), "localhost", 200),
        (("/run/vllm.sock", None), "/run/vllm.sock", 421),
        (("", 8000), "", 421),
        (None, "evil.example", 421),
        (None, "localhost", 200),
    ],
)
def test_the_supervisor_is_answered_wherever_the_server_listens(
    ask: Ask, server: tuple[str, int | None] | None, value: str, status: int
) -> None:
    response = ask("/v1/models", host(value), keys=(), names="llm.example", server=server)
    assert response.status == status


SPELLINGS = st.sampled_from(
    (
        *("/{}", "//{}", "/{}/", "/./{}", "/x/../{}", "/{}?", "/{};", "/%2e/{}", "/{}%00", "/{} ", "/{}\n", "{}"),
        *("/health/../{}", "/health/{}", "/health//{}", "/metrics/{}", "/root/root/{}", "/rootroot/{}", "/ROOT/{}"),
    )
)


@given(spelling=SPELLINGS, route=st.sampled_from(sorted({*OF_VERSIONS, *PUBLIC})), data=st.data())
def test_no_spelling_of_a_path_opens_anything(ask: Ask, spelling: str, route: str, data: st.DataObject) -> None:
    route_path = spelling.format(concrete(route)[1:])
    path = data.draw(st.sampled_from((route_path, route_path.upper(), route_path.title())))
    root = data.draw(st.sampled_from(("", "/root", "/root/", "/health")))
    method = data.draw(st.sampled_from(("GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "get")))
    response = ask(path, method=method, root=root)
    # What the application would route: Starlette takes away the root path once.
    routed = path[len(root) :] if root and path.startswith(root + "/") else path
    expected = 200 if method in ("GET", "HEAD") and routed in PUBLIC else 401
    assert (response.status, response.app.scope is None) == (expected, expected == 401)


@given(path=st.text(), key=st.binary(), count=st.integers(0, 3))
def test_only_one_of_the_keys_in_one_header_is_let_in(ask: Ask, path: str, key: bytes, count: int) -> None:
    headers = tuple((b"authorization", b"Bearer " + key) for _ in range(count))
    assert ask("/" + path, headers).status == 401


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ((b"Bearer sk-one",), 200),
        ((b"bearer sk-two",), 200),
        ((b"Bearer sk-one", b"Bearer sk-one"), 401),
        ((b"Basic sk-one",), 401),
        ((b"Bearer sk-one ",), 401),
        ((b"Bearer sk-one\nsk-two",), 401),
        ((b"Bearer ",), 401),
        ((b"sk-one",), 401),
        ((), 401),
    ],
)
def test_the_header_of_the_key(ask: Ask, values: tuple[bytes, ...], status: int) -> None:
    response = ask("/v1/models", tuple((b"authorization", value) for value in values), method="GET")
    assert response.status == status
    if status == 200:  # vLLM compares with the variable's whole text
        assert response.app.scope is not None
        assert response.app.scope["headers"] == [(b"authorization", b"Bearer sk-one\nsk-two")]
    else:
        assert (b"www-authenticate", b"Bearer") in response.sent[0]["headers"]


def test_a_variable_without_a_key_in_it_opens_nothing(ask: Ask) -> None:
    assert ask("/v1/models", ((b"authorization", b"Bearer "),), keys=(" ", "")).status == 401


def test_a_browser_may_ask_what_it_may_send(ask: Ask) -> None:
    preflight = ((b"origin", b"https://a"), (b"access-control-request-method", b"POST"))
    assert ask("/v1/completions", preflight, method="OPTIONS").status == 200
    assert ask("/v1/completions", preflight[:1], method="OPTIONS").status == 401
    assert ask("/pause", preflight, method="OPTIONS").status == 404


@pytest.mark.parametrize("keys", [KEYS, ()])
@pytest.mark.parametrize(
    ("length", "parts", "status", "reads"),
    [
        (b"1000", (b"x" * 400, b"x" * 600), 200, 2),
        (b"1001", (b"x" * 1001,), 413, 0),
        (b"200000000", (b"x" * 400,) * 9, 413, 0),
        (b"9" * 5000, (b"x" * 1001,), 413, 1),
        (b"", (b"x" * 400,) * 9, 413, 3),
        (b"", (b"x" * 1000,), 200, 1),
        (b"10", (b"x" * 400,) * 9, 413, 3),
    ],
)
def test_a_body_is_read_up_to_the_limit(
    ask: Ask, keys: tuple[str, ...], length: bytes, parts: tuple[bytes, ...], status: int, reads: int
) -> None:
    headers = ((b"content-length", length),) if length else ()
    response = ask("/v1/completions", BEARER + headers, parts=parts, keys=keys)
    assert (response.status, response.asked_for) == (status, reads)
    assert response.app.read <= MOST


def test_a_failure_of_the_application_stays_one(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setenv(MOST_VARIABLE, "1")
    middleware = guard.Guard(fails)
    with pytest.raises(RuntimeError, match="a defect"):
        asyncio.run(middleware({"type": "http", "method": "GET", "path": "/health", "headers": []}, None, None))


@pytest.mark.parametrize(
    ("path", "headers", "parts", "sent"),
    [
        ("/v1/realtime", (), (), {"type": "websocket.close", "code": 1008}),
        ("/health", (), (), {"type": "websocket.close", "code": 1008}),
        ("/pause", BEARER, (), {"type": "websocket.close", "code": 1008}),
        ("/v1/realtime", BEARER, ({"text": "ä" * 500}, {"bytes": b"x" * 1000}), {"type": "websocket.accept"}),
    ],
)
def test_a_websocket_needs_the_key_before_it_is_accepted(
    ask: Ask, path: str, headers: Headers, parts: tuple[Any, ...], sent: dict[str, Any]
) -> None:
    response = ask(path, headers, kind="websocket", parts=parts)
    assert response.sent == [sent]
    assert response.app.read == len(parts)


@pytest.mark.parametrize("message", [{"text": "ä" * 501}, {"bytes": b"x" * 1001, "text": None}])
def test_a_message_that_is_too_large_closes_its_websocket(ask: Ask, message: dict[str, Any]) -> None:
    response = ask("/v1/realtime", BEARER, kind="websocket", parts=({"text": "a"}, message, {"text": "a"}))
    assert response.sent == [{"type": "websocket.accept"}, {"type": "websocket.close", "code": 1009}]
    assert (response.app.read, response.asked_for) == (1, 2)


# --- the key of an administrator ------------------------------------------------------------------------------------

ADMIN_KEYS = "adm-one\nadm-two"
AS_ADMIN: Headers = ((b"authorization", b"Bearer adm-two"),)


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["clients have keys", "clients have none"])
def test_only_a_key_of_administrators_reaches_what_administers(ask: Ask, keys: tuple[str, ...]) -> None:
    nobody: Headers = ()
    wrong: Headers = ((b"authorization", b"Bearer adm-on"),)
    for route in sorted(ROUTES["admin"]):
        path = concrete(route)
        answers = [
            ask(path, headers, keys=keys, admin=admin, admin_keys=ADMIN_KEYS).status
            for admin in ("0", "1")
            for headers in (nobody, wrong, BEARER, AS_ADMIN)
        ]
        refused = 401 if keys else 404
        assert answers == [refused, refused, 404, 200] * 2, route


def test_a_key_of_administrators_is_a_clients_too_and_goes_no_further(ask: Ask) -> None:
    with_keys = ask("/v1/completions", AS_ADMIN, admin_keys=ADMIN_KEYS)
    without = ask("/v1/completions", AS_ADMIN, keys=(), admin_keys=ADMIN_KEYS)
    assert with_keys.app.scope is not None
    assert without.app.scope is not None
    assert with_keys.app.scope["headers"] == [(b"authorization", b"Bearer sk-one\nsk-two")]
    assert without.app.scope["headers"] == []


def test_a_path_that_no_list_has_needs_both_switches(ask: Ask) -> None:
    paths = ("/of_a_plugin", "//sleep", "/sleep/", "/SLEEP", "/v1/../sleep", "/%73leep", "/sleep;x", "/sleep\n")
    for path in paths:
        assert ask(path, AS_ADMIN, admin_keys=ADMIN_KEYS).status == 404, path
        assert ask(path, AS_ADMIN, admin="1", admin_keys=ADMIN_KEYS).status == 200, path
        assert ask(path, BEARER, admin="1", admin_keys=ADMIN_KEYS).status == 404, path


@given(spelling=SPELLINGS, route=st.sampled_from(sorted(ROUTES["admin"])), data=st.data())
def test_no_spelling_lets_a_client_administer(ask: Ask, spelling: str, route: str, data: st.DataObject) -> None:
    path = spelling.format(concrete(route)[1:])
    root = data.draw(st.sampled_from(("", "/root", "/root/", "/health", "/sleep")))
    method = data.draw(st.sampled_from(("GET", "HEAD", "POST", "PUT", "OPTIONS", "TRACE", "get")))
    admin = data.draw(st.sampled_from(("0", "1")))
    response = ask(path, BEARER, method=method, root=root, admin=admin, admin_keys=ADMIN_KEYS)
    routed = path[len(root) :] if root and path.startswith(root + "/") else path
    serves = routed in PUBLIC or any(concrete(known) == routed for known in ROUTES["serving"])
    assert (response.status, response.app.scope is None) == ((200, False) if serves else (404, True))


@pytest.mark.parametrize(
    "values",
    [
        (b"Bearer adm-one", b"Bearer adm-one"),
        (b"Bearer sk-one", b"Bearer adm-one"),
        (b"Basic adm-one",),
        (b"Bearer adm-one ",),
        (b"Bearer adm-one\nadm-two",),
        (b"Bearer adm-one,Bearer sk-one",),
        (b"Bearer",),
        (b"Bearer ",),
        (b"",),
    ],
)
def test_a_header_that_is_none_administers_nothing(ask: Ask, values: tuple[bytes, ...]) -> None:
    headers = tuple((b"authorization", value) for value in values)
    assert ask("/sleep", headers, admin_keys=ADMIN_KEYS).status == 401
    assert ask("/sleep", headers, keys=(), admin_keys=ADMIN_KEYS).status == 404


def test_with_an_administrators_key_a_server_is_asked_by_any_name(ask: Ask) -> None:
    named: Headers = ((b"host", b"gpu01:8000"),)
    of_admin, of_nobody = (
        ask("/sleep", (*headers, *named), keys=(), admin_keys=ADMIN_KEYS, names="localhost")
        for headers in (AS_ADMIN, ())
    )
    assert (of_admin.status, of_nobody.status) == (200, 421)


def test_a_variable_without_an_administrators_key_closes_all(ask: Ask) -> None:
    assert ask("/sleep", BEARER, admin="1", admin_keys="\n").status == 404
    assert ask("/sleep", ((b"authorization", b"Bearer "),), admin="1", admin_keys="\n").status == 401


def test_a_websocket_that_administers_needs_the_key_too(ask: Ask) -> None:
    for headers, sent in ((BEARER, "websocket.close"), (AS_ADMIN, "websocket.accept")):
        asked = ask("/sleep", headers, kind="websocket", parts=(), admin_keys=ADMIN_KEYS)
        assert asked.sent[0]["type"] == sent
