"""Registries that never end, never answer, or answer with what takes a parser apart: each is a short error."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import CredentialsError, RegistryError
from drydock.oci.reference import parse_reference
from drydock.registry.blobs import Blobs
from drydock.registry.manifests import MANIFEST, MOST_PAGES, Manifests
from drydock.registry.registry_client import LARGEST, Client, HttpRequest, parse_challenges
from tests.support.fake_registry import Answer, Fake, Seen

PATIENT = Access(pause=0.001, timeout=60, patience=60)
"""What ends a test of this kind is never the clock, whatever else the machine does."""
HASTY = PATIENT._replace(timeout=5, patience=1)
MIB = b" " * (1 << 20)
DATA = b"a blob" * 1000
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


def drip() -> Iterator[bytes]:
    """Give a byte now and then, for longer than any test waits. Other tests patch time.sleep."""
    for _ in range(1200):
        threading.Event().wait(0.05)
        yield b" "


def manifests(fake: Fake, folder: Path, access: Access = PATIENT) -> Manifests:
    return Manifests(Client(parse_reference(f"{fake.host}/a/b"), access, env={"HOME": str(folder)}), folder)


def blobs(fake: Fake, folder: Path, access: Access = PATIENT) -> Blobs:
    return Blobs(Client(parse_reference(f"{fake.host}/a/b"), access, env={"HOME": str(folder)}), folder)


def always(*, status: int = 200, headers: dict[str, str] | None = None, body: Iterable[bytes] | bytes = b"") -> Fake:
    return Fake(lambda _: Answer(status, headers or {}, body))


ENDLESS: dict[str, tuple[Callable[[], Answer], str]] = {
    "without end": (lambda: Answer(200, {}, itertools.repeat(MIB)), "larger than 4194304 bytes"),
    "compressed zeros": (
        lambda: Answer(200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(8 << 20))),
        "larger than 4194304 bytes",
    ),
    "nested": (lambda: Answer(200, {"Content-Type": MANIFEST}, b"[" * 100_000), "nested deeper than 64 levels"),
    "a number": (
        lambda: Answer(200, {"Content-Type": MANIFEST}, b'{"size": ' + b"9" * 4000 + b"}"),
        "a number of 4000 digits, expected at most 20",
    ),
    "a redirect": (lambda: Answer(307, {"Location": "/elsewhere"}, itertools.repeat(MIB)), "redirects more than 30"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_manifest_is_an_error(name: str, tmp_path: Path) -> None:
    answer, message = ENDLESS[name]
    with Fake(lambda _: answer()) as fake, pytest.raises(RegistryError, match=message):
        manifests(fake, tmp_path).find("v1")


def test_a_byte_now_and_then_is_an_error(tmp_path: Path) -> None:
    with always(body=drip()) as fake, pytest.raises(RegistryError, match="no complete answer in 1 s"):
        manifests(fake, tmp_path, HASTY).find("v1")


def test_an_endless_error_is_cut(tmp_path: Path) -> None:
    with always(status=400, body=itertools.repeat(MIB)) as fake, pytest.raises(RegistryError, match=r"answered 400$"):
        manifests(fake, tmp_path).find("v1")


def test_endless_interim_answers_are_an_error(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            try:
                for _ in range(1200):
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    threading.Event().wait(0.05)
            except OSError:
                return

    threading.Thread(target=answer, daemon=True).start()
    where = parse_reference(f"127.0.0.1:{server.getsockname()[1]}/a/b")
    with server, pytest.raises(RegistryError, match="no complete answer in 1 s"):
        Manifests(Client(where, HASTY, env={"HOME": str(tmp_path)}), tmp_path).find("v1")


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"


@pytest.mark.parametrize("head", [HEAD, HEAD + b"Transfer-Encoding: chunked\r\n"])
@pytest.mark.parametrize("what", ["manifest", "blob"])
def test_a_body_that_does_not_come_is_an_error(head: bytes, what: str, tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                connections.append(server.accept()[0])
                connections[-1].recv(4096)
                connections[-1].sendall(head + b"\r\n{}")

    threading.Thread(target=answer, daemon=True).start()
    where = parse_reference(f"127.0.0.1:{server.getsockname()[1]}/a/b")
    client = Client(where, HASTY._replace(timeout=0.4), env={"HOME": str(tmp_path)})
    pull = Blobs(client, tmp_path).pull if what == "blob" else Manifests(client, tmp_path).find
    with server, pytest.raises(RegistryError, match="no complete answer in 1 s"):
        list(pull(DIGEST) or ())
    assert len(connections) <= 4


def test_a_list_without_end_is_an_error(tmp_path: Path) -> None:
    pages = itertools.count()

    def answer(_: Seen) -> Answer:
        return Answer(200, {"Link": f'</v2/a/b/tags/list?last={next(pages)}>; rel="next"'}, b'{"tags": ["v1"]}')

    with Fake(answer) as fake, pytest.raises(RegistryError, match="the list tags/list does not end"):
        manifests(fake, tmp_path).tags()
    assert next(pages) <= MOST_PAGES


@pytest.mark.parametrize(
    "page", ["[]", "3", '{"tags": 3, "manifests": 3}', '{"tags": null, "manifests": [1, {}, {"digest": {}}]}']
)
def test_a_page_that_is_no_list_counts_as_empty(page: str, tmp_path: Path) -> None:
    def answer(request: Seen) -> Answer:
        return Answer(404) if "/manifests/" in request.path else Answer(200, body=page.encode())

    with Fake(answer) as fake:
        assert manifests(fake, tmp_path).tags() == ()
        assert manifests(fake, tmp_path).referrers(DIGEST) == ()


def test_a_blob_without_end_is_an_error(tmp_path: Path) -> None:
    with (
        always(body=itertools.repeat(MIB)) as fake,
        pytest.raises(RegistryError, match=f"more than the {len(DATA)} bytes expected"),
    ):
        list(blobs(fake, tmp_path).pull(DIGEST, len(DATA)))


def test_a_blob_that_hardly_arrives_is_an_error(tmp_path: Path) -> None:
    with always(body=drip()) as fake, pytest.raises(RegistryError, match="slower than 10000 bytes in a second"):
        list(blobs(fake, tmp_path, HASTY).pull(DIGEST, 1 << 30))


@pytest.mark.parametrize("length", ["many", "-1", "\xb2", "9" * 5000, ""])
def test_a_wrong_length_does_no_harm(length: str, tmp_path: Path) -> None:
    with always(headers={"Content-Length": length}, body=iter([DATA])) as fake:
        assert b"".join(blobs(fake, tmp_path).pull(DIGEST)) == DATA


@pytest.mark.parametrize("value", ["\xb2", "9" * 5000, "Mon, 01 Jan 2024 00:00:00 +99999999999999"])
def test_an_invalid_retry_after_is_ignored(value: str, tmp_path: Path) -> None:
    with always(status=503, headers={"Retry-After": value}) as fake, pytest.raises(RegistryError, match="8 times"):
        manifests(fake, tmp_path).find("v1")


def test_a_registry_that_asks_for_a_day_is_asked_once(tmp_path: Path) -> None:
    with (
        always(status=429, headers={"Retry-After": "86400"}) as fake,
        pytest.raises(RegistryError, match="asks to wait 86400 s"),
    ):
        manifests(fake, tmp_path).find("v1")
    assert len(fake.seen) == 1


PAGE = b"<!DOCTYPE html><title>Sign in</title>"
IMAGE = b'{"schemaVersion": 2, "config": {}, "layers": []}'


@pytest.mark.parametrize(
    ("kind", "body", "message", "hint"),
    [
        ("text/html; charset=utf-8", PAGE, "a web page came instead of an answer of a registry", "docker login"),
        ("application/json", IMAGE, "says that it is application/json, not which manifest", "pass its Content-Type"),
        ("text/plain", IMAGE, "says that it is text/plain, not which manifest", "pass its Content-Type"),
    ],
)
def test_what_stands_before_a_registry_is_named(
    kind: str, body: bytes, message: str, hint: str, tmp_path: Path
) -> None:
    with (
        always(headers={"Content-Type": kind}, body=body) as fake,
        pytest.raises(RegistryError, match=message) as caught,
    ):
        manifests(fake, tmp_path).find("v1")
    assert hint in caught.value.hint
    assert "invalid JSON" not in str(caught.value)


def test_a_login_page_is_no_list_of_tags_but_may_stand_for_a_missing_list_of_referrers(tmp_path: Path) -> None:
    page = Answer(200, {"Content-Type": "text/html"}, PAGE)
    with Fake(lambda seen: Answer(404) if "manifests/" in seen.path else page) as fake:
        assert manifests(fake, tmp_path).referrers(DIGEST) == ()
        with pytest.raises(RegistryError, match="a web page"):
            manifests(fake, tmp_path).tags()


@pytest.mark.parametrize("realm", ["/token", "token", "//r.example/token"])
def test_a_relative_token_service_is_named(realm: str, tmp_path: Path) -> None:
    with (
        always(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="r"'}) as fake,
        pytest.raises(CredentialsError, match=r"names the token service .*, expected its whole address") as caught,
    ):
        manifests(fake, tmp_path).find("v1")
    assert "TLS" not in str(caught.value)


@pytest.mark.parametrize("token", ["a\nb: c", "a b", "\u4e2d", "", 5, None])
def test_a_token_that_is_no_word_is_none(token: object, tmp_path: Path) -> None:
    def answer(request: Seen) -> Answer:
        if request.path.startswith("/token"):
            return Answer(200, body=json.dumps({"token": token}).encode())
        return Answer(401, {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token"'})

    with Fake(answer) as fake, pytest.raises(CredentialsError, match="contains no token"):
        manifests(fake, tmp_path).find("v1")


def test_a_header_of_spaces_takes_no_time() -> None:
    start = time.thread_time()
    for header in (" " * 60_000, "a" * 60_000, "a " * 30_000, 'a="' * 20_000, "-" * 60_000):
        parse_challenges(header)
    assert time.thread_time() - start < 2


def test_a_largest_manifest_is_accepted(tmp_path: Path) -> None:
    config = {"mediaType": "a/b", "digest": DIGEST, "size": 7}
    content = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": []}
    body = json.dumps(content).encode()
    body += b" " * (LARGEST - len(body))
    with always(headers={"Content-Type": MANIFEST}, body=body) as fake:
        assert manifests(fake, tmp_path).find("v1") is not None


def test_an_answer_in_time_is_used_by_the_same_connection(tmp_path: Path) -> None:
    with always(body=b"{}") as fake:
        client = Client(parse_reference(f"{fake.host}/a/b"), HASTY, env={"HOME": str(tmp_path)})
        answers = [client.request(HttpRequest("GET", "/v2/"), (200,)) for _ in range(3)]
    assert [answer.content for answer in answers] == [b"{}"] * 3
