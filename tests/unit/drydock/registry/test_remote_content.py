"""A blob that is copied while it arrives: one request for all pieces, and never bytes of another digest to the end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import cast

import pytest

from drydock.core.errors import RegistryError
from drydock.core.http import TransientRequestError
from drydock.registry.blobs import Blobs, RemoteContent

DATA = bytes(range(256)) * 40
DIGEST = f"sha256:{hashlib.sha256(DATA).hexdigest()}"


class Source:
    """A repository that sends a blob in pieces of seven hundred bytes, and ends early once."""

    def __init__(self, data: bytes = DATA, ends: int = 1 << 30) -> None:
        self.data, self.ends, self.starts = data, ends, list[int]()
        self.client = self
        self.where = "registry.example/vllm"

    def receive(self, _: str, have: int = 0) -> Iterator[bytes]:
        self.starts.append(have)
        for at in range(have, min(self.ends, len(self.data)), 700):
            yield self.data[at : min(at + 700, self.ends)]
        self.ends = 1 << 30


def content(source: Source, size: int = len(DATA)) -> RemoteContent:
    return RemoteContent(cast("Blobs", source), DIGEST, size)


@pytest.mark.parametrize("piece", [1000, 700, 699, len(DATA)])
def test_pieces_in_a_row_are_one_request(piece: int) -> None:
    source = Source()
    blob = content(source)
    ends = [*range(piece, len(DATA), piece), len(DATA)]
    parts = [b"".join(blob.pieces(start, end)) for start, end in zip([0, *ends], ends, strict=False)]
    assert b"".join(parts) == DATA
    assert source.starts == [0]


def test_a_piece_that_is_sent_again_is_asked_for_again() -> None:
    source = Source()
    blob = content(source)
    assert b"".join(blob.pieces(0, 2000)) == DATA[:2000]
    assert b"".join(blob.pieces(1000, len(DATA))) == DATA[1000:]
    assert source.starts == [0, 1000]


def test_an_end_too_early_may_be_tried_again() -> None:
    source = Source(ends=900)
    blob = content(source)
    with pytest.raises(TransientRequestError):
        list(blob.pieces(0, len(DATA)))
    assert b"".join(blob.pieces(0, len(DATA))) == DATA


def test_bytes_of_another_digest_are_not_sent_to_their_end() -> None:
    blob = content(Source(DATA[:-1] + b"!"))
    sent: list[bytes] = []
    with pytest.raises(RegistryError, match=r"sent sha256:.* instead"):
        sent.extend(blob.pieces(0, len(DATA)))
    assert sum(map(len, sent)) < len(DATA)
