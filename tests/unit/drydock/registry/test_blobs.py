from __future__ import annotations

import hashlib
import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import RegistryError
from drydock.oci.reference import parse_reference
from drydock.registry.blobs import Blobs
from drydock.registry.registry_client import Client
from tests.support.fake_registry import Answer, Fake, Seen

QUICK = Access(pause=0.001, timeout=5)
DATA = bytes(range(256)) * 40
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


class Uploads:
    """The registry's side of one upload; it answers 503 to the requests whose numbers are in `faults`.

    `chunks`: it accepts PATCH. `keeps`: it tells the offset of an upload. `wrong`: it rejects every digest. `limit`:
    a proxy before it takes no more bytes in a request.
    """

    def __init__(self, *, chunks: bool = True, keeps: bool = True, wrong: bool = False, limit: int = 0) -> None:
        self.limit = limit
        self.data, self.blob, self.received = b"", b"", 0
        self.chunks, self.keeps, self.wrong, self.faults = chunks, keeps, wrong, {3}
        self.requests = 0

    def __call__(self, request: Seen) -> Answer:
        path = urlsplit(request.path)
        if request.method in ("HEAD", "GET") and "/blobs/sha256" in path.path:
            return Answer(200 if self.blob else 404)
        if request.method == "POST":
            self.data = b""
            minimum = {} if self.limit else {"OCI-Chunk-Min-Length": "2048"}
            return Answer(202, {"Location": "/upload?state=1", **minimum})
        if request.method == "GET":
            return (
                Answer(204, {"Location": "/upload?state=1", "Range": f"0-{len(self.data) - 1}"})
                if self.keeps
                else Answer(404)
            )
        return self._take(request, parse_qs(path.query))

    def _take(self, request: Seen, query: dict[str, list[str]]) -> Answer:
        if self.limit and len(request.body) > self.limit:
            return Answer(413)
        self.requests += 1
        self.received += len(request.body)
        if request.method == "PATCH" and not self.chunks:
            return Answer(405)
        self.data += request.body
        if request.method == "PUT":
            if self.wrong or query["digest"] != [f"sha256:{hashlib.sha256(self.data).hexdigest()}"]:
                return Answer(400, body=json.dumps({"errors": [{"code": "DIGEST_INVALID", "message": "m"}]}).encode())
            self.blob = self.data
            return Answer(503 if self.requests in self.faults else 201)
        headers = {"Location": "/upload?state=1", "Range": f"0-{len(self.data) - 1}"}
        return Answer(503) if self.requests in self.faults else Answer(202, headers)


def push(fake: Fake, folder: Path) -> str:
    path = folder / "blob"
    path.write_bytes(DATA)
    return Blobs(Client(parse_reference(f"{fake.host}/a/b"), QUICK), folder / "state").push(path, DIGEST).how


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.registry.blobs.CHUNK", 1024)
    monkeypatch.setattr("drydock.registry.blobs.SMALLEST_CHUNK", 32)


def test_the_minimum_chunk_size_is_respected_and_no_byte_is_sent_twice_after_a_lost_answer(tmp_path: Path) -> None:
    with Fake(uploads := Uploads()) as fake:
        assert push(fake, tmp_path) == "uploaded"
        sizes = [len(request.body) for request in fake.seen if request.method in ("PATCH", "PUT")]
    assert (uploads.blob, sizes) == (DATA, [2048, 2048, 2048, 2048, 2048])


def test_a_lost_answer_to_the_last_request_causes_no_second_upload(tmp_path: Path) -> None:
    uploads = Uploads()
    uploads.faults = {5}
    with Fake(uploads) as fake:
        assert push(fake, tmp_path) == "uploaded"
    assert uploads.received == len(DATA)


def test_a_registry_without_chunked_uploads_gets_the_blob_in_one_piece(tmp_path: Path) -> None:
    with Fake(uploads := Uploads(chunks=False, keeps=False)) as fake:
        assert push(fake, tmp_path) == "uploaded"
    assert uploads.blob == DATA


def test_a_registry_that_keeps_refusing_is_an_error(tmp_path: Path) -> None:
    with Fake(Uploads(wrong=True)) as fake, pytest.raises(RegistryError, match="DIGEST_INVALID"):
        push(fake, tmp_path)


def test_a_pull_resumes_without_range_support(tmp_path: Path) -> None:
    def answer(_: Seen) -> Answer:
        if len(fake.seen) == 1:
            return Answer(200, {"Content-Length": str(len(DATA))}, DATA[:100])
        return Answer(200, body=DATA)

    with Fake(answer) as fake:
        blobs = Blobs(Client(parse_reference(f"{fake.host}/a/b"), Access(pause=0.001, timeout=1)), tmp_path)
        assert b"".join(blobs.pull(DIGEST)) == DATA


def test_a_redirect_to_a_storage_server_means_that_the_blob_exists(tmp_path: Path) -> None:
    def answer(_: Seen) -> Answer:
        return Answer(307, {"Location": f"http://{fake.host}/signed-for-get-alone"})

    with Fake(answer) as fake:
        assert Blobs(Client(parse_reference(f"{fake.host}/a/b"), QUICK), tmp_path).has(DIGEST)
        assert [request.method for request in fake.seen] == ["HEAD"]


@pytest.mark.parametrize("size", [len(DATA), 1000])
def test_what_a_proxy_refuses_is_sent_in_smaller_pieces(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DATA", DATA[:size])
    monkeypatch.setitem(globals(), "DIGEST", f"sha256:{hashlib.sha256(DATA).hexdigest()}")
    with Fake(uploads := Uploads(limit=100)) as fake:
        assert push(fake, tmp_path) == "uploaded"
        refused = [len(request.body) for request in fake.seen if len(request.body) > 100]
    assert uploads.blob == DATA
    assert refused == [min(size, 1024), min(size, 1024) // 4]


@pytest.mark.parametrize("uploads", [Uploads(limit=20), Uploads(limit=100, chunks=False, keeps=False)])
def test_a_limit_of_a_proxy_that_pieces_do_not_help_against_is_explained(tmp_path: Path, uploads: Uploads) -> None:
    with Fake(uploads) as fake, pytest.raises(RegistryError) as caught:
        push(fake, tmp_path)
    assert "takes no request of" in str(caught.value)
    assert "client_max_body_size" in str(caught.value)
