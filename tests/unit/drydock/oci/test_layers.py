"""Layers that anyone may have made."""

from __future__ import annotations

import io
import posixpath
import tarfile
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import zstandard

from drydock.core.errors import UntrustedError
from drydock.oci import layers
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


class Placed(NamedTuple):
    layer: int


def whiteout(layer: int, path: str) -> layers.Entry:
    return layers.Entry(layer, path, tarfile.TarInfo(path), None)


def hide_by_looking_at_each(below: dict[str, Placed], entry: layers.Entry) -> None:
    """The rule of the specification, read literally: every path is compared with the whiteout."""
    folder, _, name = entry.path.rpartition("/")
    opaque = name == layers.OPAQUE
    hidden = folder if opaque else posixpath.join(folder, name.removeprefix(layers.WHITEOUT))
    for path in [path for path in below if not hidden or path == hidden or path.startswith(f"{hidden}/")]:
        if not opaque or below[path].layer < entry.layer:
            del below[path]


def test_whiteouts_hide_what_the_specification_says() -> None:
    random = Random(5)  # noqa: S311 - a test
    names = ["a", "b", "c/d", "a/b", "a/b/c", "b/a", "c", "a/c/d/e"]
    for _ in range(300):
        below, expected = layers.LayeredPaths[Placed](), dict[str, Placed]()
        for step in range(40):
            path, layer = random.choice(names), step // 10
            folder, _, name = path.rpartition("/")
            hiding = posixpath.join(folder, random.choice([f".wh.{name}", layers.OPAQUE]))
            match random.randrange(4):
                case 0:
                    entry = whiteout(layer, hiding)
                    layers.apply_whiteout(below, entry)
                    hide_by_looking_at_each(expected, entry)
                case 1:
                    assert below.pop(path, None) == expected.pop(path, None)
                case _:
                    below[path] = expected[path] = Placed(layer)
            assert dict(below) == expected


@pytest.mark.parametrize("hiding", ["zz/.wh.{}", ".wh..wh..opq", "x/.wh..wh..opq", "x{}/bin/.wh..wh..opq"])
def test_a_million_whiteouts_of_few_files_take_seconds(hiding: str) -> None:
    below = layers.LayeredPaths[Placed]()
    for number in range(5000):
        below[f"x/{number}/bin/python3"] = Placed(1)
    started = time.process_time()
    for number in range(30_000):
        layers.apply_whiteout(below, whiteout(1, hiding.format(number)))
    assert time.process_time() - started < 5  # comparing each path with each whiteout takes 14 s
    assert len(below) == 5000
