"""Differences of two images are named by layer, path and field."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from drydock.ocidiff import Difference, compare

Files = Mapping[str, tuple[bytes, Mapping[str, Any]]]
SAME: Files = {"opt": (b"", {"type": tarfile.DIRTYPE, "mode": 0o755}), "opt/file": (b"content", {"mtime": 1})}
COMPRESSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "+gzip": lambda data: gzip.compress(data, mtime=0),
    "+zstd": zstandard.ZstdCompressor().compress,
}


def layer(files: Files) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, (content, fields) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for field, value in fields.items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def layout(folder: Path, *layers: Files, config: Mapping[str, Any] | None = None, suffix: str = "+zstd") -> Path:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, Any]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    compress = COMPRESSIONS[suffix]
    entries = [
        {**put(compress(layer(files))), "mediaType": f"application/vnd.oci.image.layer.v1.tar{suffix}"}
        for files in layers
    ]
    manifest = {"config": put(json.dumps(config or {}).encode()), "layers": entries}
    (folder / "index.json").write_text(json.dumps({"manifests": [put(json.dumps(manifest).encode())]}))
    return folder


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_equal_images_have_no_differences(tmp_path: Path, suffix: str) -> None:
    first, second = (layout(tmp_path / name, SAME, suffix=suffix) for name in "ab")

    assert compare(first, second) == ()


@pytest.mark.parametrize("suffix", COMPRESSIONS)
@pytest.mark.parametrize(
    ("path", "content", "fields", "field"),
    [
        ("opt/file", b"Content", {"mtime": 1}, "content"),
        ("opt/file", b"content", {"mtime": 2}, "mtime"),
        ("opt/file", b"content", {"mtime": 1, "mode": 0o600}, "mode"),
        ("opt/file", b"content", {"mtime": 1, "uid": 7}, "uid"),
        ("opt/file", b"content", {"mtime": 1, "gid": 7}, "gid"),
        ("opt/new", b"", {}, "presence"),
    ],
)
def test_a_planted_difference_is_named(
    tmp_path: Path, suffix: str, path: str, content: bytes, fields: Mapping[str, Any], field: str
) -> None:
    first = layout(tmp_path / "a", SAME, SAME, suffix=suffix)
    second = layout(tmp_path / "b", SAME, {**SAME, path: (content, fields)}, suffix=suffix)

    found = [difference for difference in compare(first, second) if difference.where != "manifest"]

    assert [("layer 1", path, field)] == [difference[:3] for difference in found]


def test_the_order_of_a_layer_counts_too(tmp_path: Path) -> None:
    swapped = dict(reversed(SAME.items()))

    found = compare(layout(tmp_path / "a", SAME), layout(tmp_path / "b", swapped))

    assert Difference("layer 0", "opt", "order", "0", "1") in found


def test_the_config_is_compared_by_key_path(tmp_path: Path) -> None:
    first = layout(tmp_path / "a", SAME, config={"config": {"Env": ["A=1", "B=2"]}})
    second = layout(tmp_path / "b", SAME, config={"config": {"Env": ["A=1", "B=3"]}})

    assert Difference("config", "config.Env[1]", "value", '"B=2"', '"B=3"') in compare(first, second)


def test_a_missing_layer_is_seen_in_the_manifest(tmp_path: Path) -> None:
    found = compare(layout(tmp_path / "a", SAME, SAME), layout(tmp_path / "b", SAME))

    assert ("manifest", "layers[1]", "value") in [difference[:3] for difference in found]
