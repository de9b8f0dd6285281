from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drydock.oci import image_layout
from drydock.oci.image_layout import read_digest, write_layout
from tests.support import layouts
from tests.support.hashes import sha256

EPOCH = 1795219200


def _layout(folder: Path, content: bytes = b"tar") -> str:
    folder.mkdir()
    layer = folder / "layer.tar"
    layer.write_bytes(content)
    return write_layout(folder, layer, "linux/arm64", EPOCH, "a test")


def test_the_same_layer_gives_the_same_digest_anywhere(tmp_path: Path) -> None:
    assert _layout(tmp_path / "one") == _layout(tmp_path / "two")
    assert _layout(tmp_path / "three", b"other") != _layout(tmp_path / "four")


def test_a_layout_is_whole_and_every_blob_is_what_its_name_says(tmp_path: Path) -> None:
    digest = _layout(tmp_path / "one")
    blobs = {path.name: path.read_bytes() for path in (tmp_path / "one" / "blobs" / "sha256").iterdir()}
    assert all(sha256(data) == name for name, data in blobs.items())
    manifest = json.loads(blobs[digest.removeprefix("sha256:")])
    config = json.loads(blobs[manifest["config"]["digest"].removeprefix("sha256:")])
    assert blobs[manifest["layers"][0]["digest"].removeprefix("sha256:")] == b"tar"
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert (config["architecture"], config["created"]) == ("arm64", "2026-11-21T00:00:00Z")
    assert json.loads((tmp_path / "one" / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    assert read_digest(tmp_path / "one") == digest
    assert not (tmp_path / "one" / "layer.tar").exists()


def _image(folder: Path) -> tuple[Path, Path]:
    """Return a layout and the blob of its layer."""
    layout = layouts.write(folder, b"a layer", suffix="")
    return layout, image_layout.path_of_blob(layout, image_layout.read_manifest(layout)["layers"][0]["digest"])


def _judge_layout(layout: Path) -> tuple[bool, bool, bool]:
    """Return whether a layout has its blobs, of the right sizes, with the right contents."""
    judges = (image_layout.is_sized_layout, image_layout.is_sound_layout, image_layout.is_intact_layout)
    return tuple(judge(layout) for judge in judges)  # type: ignore[return-value]


def test_a_layout_without_a_layer_is_not_whole(tmp_path: Path) -> None:
    layout, layer = _image(tmp_path)
    assert _judge_layout(layout) == (True, True, True)
    layer.unlink()
    assert _judge_layout(layout) == (False, False, False)


def test_a_truncated_layer_is_seen_by_its_size_and_a_changed_one_by_its_hash(tmp_path: Path) -> None:
    layout, layer = _image(tmp_path)
    layer.write_bytes(b"A layer")
    assert _judge_layout(layout) == (True, False, False)
    layer.write_bytes(b"a la")
    assert _judge_layout(layout) == (False, False, False)


@pytest.mark.parametrize(
    "index", ["", "[]", '{"manifests": []}', '{"manifests": [{"digest": "sha256:../../x"}]}', '{"manifests": [1]}']
)
def test_a_damaged_index_is_no_layout_and_no_traceback(tmp_path: Path, index: str) -> None:
    layout, _ = _image(tmp_path)
    (layout / "index.json").write_text(index)
    assert _judge_layout(layout) == (False, False, False)


def test_a_base_of_several_platforms_is_whole_with_one_of_them(tmp_path: Path) -> None:
    layout, layer = _image(tmp_path)
    inner = {"digest": image_layout.read_digest(layout), "size": 1}
    absent = {"digest": f"sha256:{'0' * 64}", "size": 1}
    layouts.name(layout, {"manifests": [absent, inner]})
    assert image_layout.is_intact_layout(layout)
    layer.unlink()
    assert not image_layout.is_intact_layout(layout)


def test_a_digest_that_leads_out_of_a_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid digest"):
        image_layout.path_of_blob(tmp_path, "sha256:../../../etc/passwd")


def test_a_layout_with_a_pipe_is_not_whole(tmp_path: Path) -> None:
    folder = layouts.write(tmp_path, b"layer")
    for item in image_layout.read_descriptors(folder):
        path = image_layout.path_of_blob(folder, item["digest"])
        data = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        assert not image_layout.is_sound_layout(folder)
        assert not image_layout.is_intact_layout(folder)
        path.unlink()
        path.write_bytes(data)
    assert image_layout.is_sound_layout(folder)
