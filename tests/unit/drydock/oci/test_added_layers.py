"""Layers on a base: their bytes depend on files alone, and a base's documents are checked before anything is made."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from drydock.core.errors import RegistryError
from drydock.oci.added_layers import MOST_LAYERS, AddedLayer, extend_image, list_layers, make_tar

EPOCH = 1795219200
LAYER = {
    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "digest": f"sha256:{'1' * 64}",
    "size": 7,
}


def test_a_tar_has_its_folders_with_their_modes_and_no_parent_of_them() -> None:
    data = make_tar({"opt/drydock": 0o755, "cache": 0o1775}, {"opt/drydock/a/b": b"text"}, EPOCH)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        entries = {entry.name: (entry.mode, entry.uid, entry.gid, entry.mtime) for entry in archive}
    assert entries == {
        "cache": (0o1775, 0, 0, EPOCH),
        "cache/.wh..wh..opq": (0o644, 0, 0, EPOCH),
        "opt/drydock": (0o755, 0, 0, EPOCH),
        "opt/drydock/.wh..wh..opq": (0o644, 0, 0, EPOCH),
        "opt/drydock/a": (0o755, 0, 0, EPOCH),
        "opt/drydock/a/b": (0o644, 0, 0, EPOCH),
    }


def test_a_file_whose_folder_is_in_a_lower_layer_brings_no_folder() -> None:
    with tarfile.open(fileobj=io.BytesIO(make_tar({}, {"opt/drydock/a": b""}, EPOCH))) as archive:
        assert archive.getnames() == ["opt/drydock/a"]


def test_the_order_in_which_files_are_given_does_not_matter() -> None:
    files = {"a/b": b"1", "a/c": b"2", "a/d/e": b"3"}
    assert make_tar({"a": 0o755}, files, EPOCH) == make_tar({"a": 0o755}, dict(reversed(files.items())), EPOCH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"urls": ["https://vendor.example/layer"]}, "only its vendor"),
        ({"mediaType": "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"}, "only its vendor"),
        ({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"}, "expected a layer of files"),
        ({"mediaType": "\x1b[2J"}, r"expected a layer of files, found '\\x1b"),
        ({"size": 1 << 40}, "expected at most"),
    ],
)  # fmt: skip
def test_a_layer_that_may_not_be_copied_or_is_none_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        list_layers({"layers": [LAYER, {**LAYER, **change}]}, "image")


def test_an_image_has_at_most_as_many_layers_as_engines_mount() -> None:
    added = [AddedLayer(b"tar", "drydock")]
    layers = [LAYER] * MOST_LAYERS
    config = {"os": "linux", "rootfs": {"diff_ids": [LAYER["digest"]] * MOST_LAYERS}}
    with pytest.raises(RegistryError, match="more than the 127"):
        extend_image(layers, config, added, {}, EPOCH, "image")
    config["rootfs"] = {"diff_ids": [LAYER["digest"]] * (MOST_LAYERS - 1)}
    image = extend_image(layers[1:], config, added, {}, EPOCH, "image")
    assert len(image.manifest["layers"]) == MOST_LAYERS
    assert b"2026-11-21T00:00:00Z" in image.config
