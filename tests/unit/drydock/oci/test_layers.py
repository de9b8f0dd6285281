"""Layers that anyone may have made."""

from __future__ import annotations

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
