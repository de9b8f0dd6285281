from __future__ import annotations

import json
from pathlib import Path

from drydock.oci.layout import read_digest, write_layout

EPOCH = 1795219200


def _layout(folder: Path, content: bytes = b"tar") -> str:
    folder.mkdir()
    layer = folder / "layer.tar"
    layer.write_bytes(content)
    return write_layout(folder, layer, "linux/arm64", EPOCH, "a test")


def test_the_same_layer_gives_the_same_digest_anywhere(tmp_path: Path) -> None:
    assert _layout(tmp_path / "one") == _layout(tmp_path / "two")
    assert _layout(tmp_path / "three", b"other") != _layout(tmp_path / "four")


def test_a_layout_is_whole_and_every_blob_is_what_its_name_says(tmp_path: Path, sha256: object) -> None:
    digest = _layout(tmp_path / "one")
    blobs = {path.name: path.read_bytes() for path in (tmp_path / "one" / "blobs" / "sha256").iterdir()}
    assert callable(sha256)
    assert all(sha256(data) == name for name, data in blobs.items())
    manifest = json.loads(blobs[digest.removeprefix("sha256:")])
    config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
    assert blobs[manifest["layers"][0]["digest"].removeprefix("sha256:")] == b"tar"
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert (config["architecture"], config["created"]) == ("arm64", "2026-11-21T00:00:00Z")
    assert json.loads((tmp_path / "one" / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    assert read_digest(tmp_path / "one") == digest
    assert not (tmp_path / "one" / "layer.tar").exists()
