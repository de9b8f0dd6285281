"""Layers that anyone may have made."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from drydock.core.errors import UntrustedError
from drydock.oci.layers import entries

LAYER = "application/vnd.oci.image.layer.v1.tar"


def header(length: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo("x")
    info.size, info.type = length, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.attack(
    what="a few bytes of a zstd layer unpack to terabytes, or to a header of gigabytes",
    before="reading the image took days, or all memory",
    after="an error that names the layer",
)
@pytest.mark.parametrize("data", [header(1 << 45), header(3 << 30, tarfile.XHDTYPE) + bytes(1 << 20), header(7)[:100]])
@pytest.mark.parametrize("kind", ["", "+zstd"])
def test_a_hostile_layer_is_an_error(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "blob").write_bytes(zstandard.compress(data) if kind else data)
    manifest = {"layers": [{"digest": "sha256:x", "mediaType": LAYER + kind}]}
    with pytest.raises(UntrustedError, match="layer sha256:x: invalid"):
        list(entries(manifest, lambda _: tmp_path / "blob"))


def block(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **fields: bytes) -> bytes:
    """Return a header and its content; `fields` replaces bytes of the header: at_POSITION=BYTES."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content), kind
    data = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    for field, value in fields.items():
        start = int(field.removeprefix("at_"))
        data[start : start + len(value)] = value
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data)
    return bytes(data) + content + bytes(-len(content) % 512)


def record(name: bytes, value: bytes) -> bytes:
    rest = b" " + name + b"=" + value + b"\n"
    return next(b"%d" % size + rest for size in range(99) if len(b"%d" % size + rest) == size)


def extended(*records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    return block("x", b"".join(records), kind)


GOOD, EVIL = "opt/good", b"etc/evil"
LONG = block("././@LongLink", EVIL + b"\0", tarfile.GNUTYPE_LONGNAME)
NOT_POSIX = {"at_257": bytes(8)}
OTHERWISE = {
    "an end for tarfile only": block(GOOD) + block("evil", **NOT_POSIX, at_329=b"garbage!") + bytes(1024),
    "one block of zeros": block(GOOD) + bytes(512) + block("evil") + bytes(1024),
    "a prefix without a format": block("evil", **NOT_POSIX, at_345=b"opt/good") + bytes(1024),
    "a number that begins with NUL": block(GOOD, b"x" * 512, at_124=b"\0001000") + bytes(1024),
    "two names": extended(record(b"path", GOOD.encode())) + LONG + block("x") + bytes(1024),
    "two names, the other way": LONG + extended(record(b"path", GOOD.encode())) + block("x") + bytes(1024),
    "two extended headers": extended(record(b"path", b"a")) * 2 + block("x") + bytes(1024),
    "a name for all files": extended(record(b"path", b"a"), kind=tarfile.XGLTYPE) + block("evil") + bytes(1024),
    "a name that the global header takes": LONG + extended(kind=tarfile.XGLTYPE) + block("x") + bytes(1024),
    "a sparse file's name": extended(record(b"GNU.sparse.name", b"good")) + block("evil") + bytes(1024),
    "a record after the end of a header": (
        block("x", record(b"comment", b"").ljust(100, b"\0"), tarfile.XHDTYPE) + block("x") + bytes(1024)
    ),
    "an empty size": extended(record(b"size", b"")) + block(GOOD, b"x" * 512) + bytes(1024),
    "a folder that is a file": (
        extended(record(b"path", EVIL)) + block("good/", kind=tarfile.AREGTYPE, at_156=b"\0") + bytes(1024)
    ),
}  # fmt: skip


@pytest.mark.attack(
    what="a layer has a header that Python's tarfile and Go's archive/tar read in two ways, or data after its end",
    before="drydock did not see files that containerd unpacks, or saw them under another name, and signed the image",
    after="the layer is refused",
)
@pytest.mark.parametrize("name", OTHERWISE)
def test_a_layer_that_others_read_in_another_way_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "blob").write_bytes(OTHERWISE[name])
    manifest = {"layers": [{"digest": "sha256:x", "mediaType": LAYER}]}
    with pytest.raises(UntrustedError, match="layer sha256:x: invalid"):
        list(entries(manifest, lambda _: tmp_path / "blob"))


def test_what_all_read_in_one_way_is_read(tmp_path: Path) -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        stream, names = io.BytesIO(), ["short", "long" * 60, f"{'é' * 80}/x"]
        with tarfile.open(fileobj=stream, mode="w", format=form, pax_headers={"comment": "abc"}) as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, "target" * 30
                archive.addfile(info)
        (tmp_path / "blob").write_bytes(stream.getvalue())
        found = list(entries({"layers": [{"digest": "x", "mediaType": LAYER}]}, lambda _: tmp_path / "blob"))
        assert [(entry.path, entry.info.linkname) for entry in found] == [(name, "target" * 30) for name in names]


@pytest.mark.attack(
    what="a zstd layer consists of several frames, and one ends where a header begins",
    before="reading stopped there, and containerd read on",
    after="every frame is read",
)
def test_every_frame_of_a_layer_is_read(tmp_path: Path) -> None:
    parts = block(GOOD), block("evil"), bytes(1024)
    (tmp_path / "blob").write_bytes(b"".join(map(zstandard.compress, parts)))
    found = entries({"layers": [{"digest": "x", "mediaType": f"{LAYER}+zstd"}]}, lambda _: tmp_path / "blob")
    assert [entry.path for entry in found] == [GOOD, "evil"]
