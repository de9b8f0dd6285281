from __future__ import annotations

import base64
import datetime as dt
import email.utils
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import CredentialsError, InputError, RegistryError
from drydock.oci.reference import parse_reference
from drydock.registry.registry_client import ATTEMPTS, Client, HttpRequest, parse_challenges
from tests.support.fake_registry import Answer, Fake, Seen

QUICK = Access(pause=0.001, timeout=5)
REQUEST = HttpRequest("GET", "/v2/some/image/manifests/v1")
SECRET = "do-not-print-me"  # noqa: S105 - looked for in messages


def client(fake: Fake, folder: Path, entry: dict[str, str] | None = None) -> Client:
    (folder / "config.json").write_text(json.dumps({"auths": {fake.host: entry or {}}}))
    return Client(parse_reference(f"{fake.host}/some/image"), QUICK, env={"DOCKER_CONFIG": str(folder)})


def test_challenges() -> None:
    header = 'Bearer realm="https://a/token?x=\\"1\\"", service=r, scope="repository:a/b:pull,push", Basic realm=x'
    assert parse_challenges(header) == {
        "bearer": {"realm": 'https://a/token?x="1"', "service": "r", "scope": "repository:a/b:pull,push"},
        "basic": {"realm": "x"},
    }
    assert parse_challenges("") == {}


def tokens(fake_url: Callable[[], str], user: str) -> Callable[[Seen], Answer]:
    """Return a registry with a token service; each token is valid for two requests."""
    uses_left: dict[str, int] = {}

    def answer(request: Seen) -> Answer:
        header = request.headers.get("Authorization", "")
        if request.path.startswith("/token"):
            if user and base64.b64encode(user.encode()).decode() not in header:
                return Answer(401)
            token = f"t{len(uses_left)}"
            uses_left[token] = 2
            return Answer(200, body=json.dumps({"token": token}).encode())
        token = header.removeprefix("Bearer ")
        if uses_left.get(token, 0) > 0:
            uses_left[token] -= 1
            return Answer(200, body=b"yes")
        return Answer(401, {"WWW-Authenticate": f'Bearer realm="{fake_url()}/token",service="here"'})

    return answer


@pytest.mark.parametrize("user", ["", "me:secret"])
def test_tokens_are_requested_and_renewed(tmp_path: Path, user: str) -> None:
    with Fake(tokens(lambda: f"http://{fake.host}", user)) as fake:
        registry_client = client(fake, tmp_path, {"auth": base64.b64encode(user.encode()).decode()} if user else None)
        assert [registry_client.request(REQUEST, (200,)).content for _ in range(5)] == [b"yes"] * 5
        queries = [parse_qs(urlsplit(request.path).query) for request in fake.seen if request.path.startswith("/token")]
    assert queries == [{"service": ["here"], "scope": ["repository:some/image:pull"]}] * 3


def test_an_identity_token_is_exchanged(tmp_path: Path) -> None:
    def answer(request: Seen) -> Answer:
        if request.path == "/token":
            form = parse_qs(request.body.decode())
            assert (form["grant_type"], form["refresh_token"]) == (["refresh_token"], [SECRET])
            return Answer(200, body=b'{"access_token": "t"}')
        if request.headers.get("Authorization") == "Bearer t":
            return Answer(200)
        return Answer(401, {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token"'})

    with Fake(answer) as fake:
        client(fake, tmp_path, {"identitytoken": SECRET}).request(REQUEST, (200,))


def test_a_token_service_that_rejects_credentials_is_an_error(tmp_path: Path) -> None:
    with Fake(tokens(lambda: f"http://{fake.host}", "me:right")) as fake:
        registry_client = client(fake, tmp_path, {"auth": base64.b64encode(f"me:{SECRET}".encode()).decode()})
        with pytest.raises(CredentialsError, match="rejected the credentials: 401") as caught:
            registry_client.request(REQUEST, (200,))
    assert SECRET not in f"{caught.value}"


def test_credentials_are_not_sent_to_another_server(tmp_path: Path) -> None:
    with Fake(lambda _: Answer(200)) as other_server:

        def answer(request: Seen) -> Answer:
            if "Authorization" not in request.headers:
                return Answer(401, {"WWW-Authenticate": "Basic realm=x"})
            return Answer(307, {"Location": f"http://localhost:{other_server.server_address[1]}/data"})

        with Fake(answer) as fake:
            client(fake, tmp_path, {"username": "me", "password": SECRET}).request(REQUEST, (200,))
            upload = HttpRequest("PUT", f"http://{other_server.host}/upload", "pull,push")
            client(fake, tmp_path, {"username": "me", "password": SECRET}).request(upload, (200,))
        assert [(request.path, request.headers.get("Authorization")) for request in other_server.seen] == [
            ("/data", None),
            ("/upload", None),
        ]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_transient_failures_are_retried(tmp_path: Path, status: int) -> None:
    with Fake(lambda _: Answer(status) if len(fake.seen) < 4 else Answer(200)) as fake:
        assert client(fake, tmp_path).request(REQUEST, (200,)).ok


def test_a_registry_of_this_machine_that_does_not_run_is_asked_once(tmp_path: Path) -> None:
    pauses: list[int] = []
    with Fake(lambda _: Answer(200)) as fake:
        stopped = client(fake, tmp_path)
    stopped.pause = lambda failures, _: pauses.append(failures)  # type: ignore[method-assign]
    with pytest.raises(RegistryError, match="the connection was refused") as raised:
        stopped.request(REQUEST, (200,))
    assert (pauses, "start the registry" in str(raised.value)) == ([], True)


def test_persistent_failures_are_an_error(tmp_path: Path) -> None:
    with Fake(lambda _: Answer(503)) as fake:
        with pytest.raises(RegistryError, match=rf"503 Service Unavailable \(asked {ATTEMPTS} times\)"):
            client(fake, tmp_path).request(REQUEST, (200,))
        assert len(fake.seen) == ATTEMPTS


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_respected(tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("drydock.core.http.time.sleep", slept.append)
    when = email.utils.format_datetime(dt.datetime.now(dt.UTC) + dt.timedelta(seconds=4), usegmt=True)
    header = {"Retry-After": "3" if form == "seconds" else when}
    with Fake(lambda _: Answer(429, header) if len(fake.seen) < 2 else Answer(200)) as fake:
        client(fake, tmp_path).request(REQUEST, (200,))
    assert len(slept) == 1
    assert 2 <= slept[0] <= 4


def test_the_registrys_error_message_is_shown(tmp_path: Path) -> None:
    body = b'{"errors": [{"code": "DENIED", "message": "no\\n quota"}]}'
    with Fake(lambda _: Answer(403, body=body)) as fake, pytest.raises(CredentialsError, match="403: DENIED no quota"):
        client(fake, tmp_path).request(REQUEST, (200,))


def test_no_plain_http_beyond_this_machine() -> None:
    with pytest.raises(InputError, match="without TLS"):
        Client(parse_reference("http://r.example/a"), QUICK)
    assert (
        Client(parse_reference("r.example/a"), QUICK).absolute("http://r.example/v2/x", "/") == "https://r.example/v2/x"
    )
    assert (
        Client(parse_reference("r.example/a"), QUICK, insecure=True).absolute("/v2/x", "/") == "http://r.example/v2/x"
    )


@pytest.mark.parametrize(
    ("registry", "insecure", "realm", "safe"),
    [
        ("r.example", False, "https://tokens.example/t", True),
        ("r.example", False, "http://r.example/t", False),
        ("r.example", False, "http://127.0.0.1/t", False),
        ("r.example:5000", True, "http://r.example:5001/t", True),
        ("r.example", True, "http://tokens.example/t", False),
        ("127.0.0.1:5000", False, "http://localhost:5001/t", True),
        ("127.0.0.1:5000", False, "http://tokens.example/t", False),
        ("127.0.0.1:5000", False, "", False),
    ],
)
def test_a_token_service_has_tls_or_is_on_the_registrys_own_host(
    registry: str, insecure: bool, realm: str, safe: bool
) -> None:
    assert Client(parse_reference(f"{registry}/a"), QUICK, insecure=insecure)._is_safe(realm) == safe


def test_credentials_are_not_sent_to_another_machine_without_tls(tmp_path: Path) -> None:
    challenge = {"WWW-Authenticate": 'Bearer realm="http://tokens.invalid/t"'}
    with Fake(lambda _: Answer(401, challenge)) as fake:
        registry_client = client(fake, tmp_path, {"username": "me", "password": SECRET})
        with pytest.raises(CredentialsError, match=r"to send credentials to http://tokens\.invalid/t without TLS"):
            registry_client.request(REQUEST, (200,))


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (401, {"WWW-Authenticate": 'Bearer realm="http://["'}, "a token service with an invalid address"),
        (401, {}, "found none, expected Bearer or Basic"),
        (401, {"WWW-Authenticate": 'Digest realm="x"'}, "found digest, expected Bearer or Basic"),
        (307, {"Location": "http://["}, "manifests/v1: an address is invalid"),
        (307, {"Location": "http://tokens.invalid:99999/"}, "manifests/v1: an address is invalid"),
    ],
)
def test_an_address_that_is_none_is_an_error_of_the_registry(
    tmp_path: Path, status: int, headers: dict[str, str], expected: str
) -> None:
    with Fake(lambda _: Answer(status, headers)) as fake, pytest.raises(RegistryError, match=expected):
        client(fake, tmp_path).request(REQUEST, (200,))


def test_an_upload_does_not_continue_at_an_address_that_is_none() -> None:
    with pytest.raises(RegistryError, match="names an invalid address"):
        Client(parse_reference("r.example/a"), QUICK).absolute("http://[", "/")
