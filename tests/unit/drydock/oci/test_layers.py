"""Layers that anyone may have made."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
import zstandard

from drydock.core.errors import UntrustedError
from drydock.oci.layers import read_layer_entries

LAYER = "application/vnd.oci.image.layer.v1.tar"


def header(length: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo("x")
    info.size, info.type = length, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("data", [header(1 << 45), header(3 << 30, tarfile.XHDTYPE) + bytes(1 << 20), header(7)[:100]])
@pytest.mark.parametrize("kind", ["", "+zstd"])
def test_a_hostile_layer_is_an_error(tmp_path: Path, data: bytes, kind: str) -> None:
    (tmp_path / "blob").write_bytes(zstandard.compress(data) if kind else data)
    manifest = {"layers": [{"digest": "sha256:x", "mediaType": LAYER + kind}]}
    with pytest.raises(UntrustedError, match="layer sha256:x: invalid"):
        list(read_layer_entries(manifest, lambda _: tmp_path / "blob"))


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


GOOD = "opt/good"
DAMAGED = {
    "a number in the second header": block(GOOD) + block("x", at_329=b"garbage!") + bytes(1024),
    "a sparse file": block("x", kind=tarfile.GNUTYPE_SPARSE) + bytes(1024),
    "a sparse file of pax": block("h", b"22 GNU.sparse.size=99\n", tarfile.XHDTYPE) + block("x") + bytes(1024),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_or_unusual_header_is_not_the_end_of_a_layer(tmp_path: Path, name: str) -> None:
    (tmp_path / "blob").write_bytes(DAMAGED[name])
    manifest = {"layers": [{"digest": "sha256:x", "mediaType": LAYER}]}
    with pytest.raises(UntrustedError, match="layer sha256:x: invalid"):
        list(read_layer_entries(manifest, lambda _: tmp_path / "blob"))


def test_long_names_of_both_formats_are_read(tmp_path: Path) -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        stream, names = io.BytesIO(), ["short", "long" * 60, f"{'é' * 80}/x"]
        with tarfile.open(fileobj=stream, mode="w", format=form, pax_headers={"comment": "abc"}) as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, "target" * 30
                archive.addfile(info)
        (tmp_path / "blob").write_bytes(stream.getvalue())
        members = list(
            read_layer_entries({"layers": [{"digest": "x", "mediaType": LAYER}]}, lambda _: tmp_path / "blob")
        )
        assert [(entry.path, entry.info.linkname) for entry in members] == [(name, "target" * 30) for name in names]


def test_every_frame_of_a_layer_is_read(tmp_path: Path) -> None:
    parts = block(GOOD), block("evil"), bytes(1024)
    (tmp_path / "blob").write_bytes(b"".join(map(zstandard.compress, parts)))
    members = read_layer_entries(
        {"layers": [{"digest": "x", "mediaType": f"{LAYER}+zstd"}]}, lambda _: tmp_path / "blob"
    )
    assert [entry.path for entry in members] == [GOOD, "evil"]
