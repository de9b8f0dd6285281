"""Differences of two images, by layer, path and field."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import BuildError
from drydock.oci import image_layout
from drydock.oci.layout_diff import LayoutDifference, compare_layouts
from tests.support import layouts

Files = Mapping[str, tuple[bytes, Mapping[str, Any]]]
SAME: Files = {"opt": (b"", {"type": tarfile.DIRTYPE, "mode": 0o755}), "opt/file": (b"content", {"mtime": 1})}


def layout(folder: Path, *layers: Files, config: Mapping[str, Any] | None = None, suffix: str = "+zstd") -> Path:
    tars = [layouts.tar((name, *rest) for name, rest in files.items()) for files in layers]
    return layouts.write(folder, *tars, config=config, suffix=suffix)


@pytest.mark.parametrize("suffix", layouts.COMPRESSIONS)
def test_equal_images_have_no_differences(tmp_path: Path, suffix: str) -> None:
    first, second = (layout(tmp_path / name, SAME, suffix=suffix) for name in "ab")

    assert compare_layouts(first, second) == ()


@pytest.mark.parametrize("suffix", layouts.COMPRESSIONS)
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
def test_a_difference_is_found(
    tmp_path: Path, suffix: str, path: str, content: bytes, fields: Mapping[str, Any], field: str
) -> None:
    first = layout(tmp_path / "a", SAME, SAME, suffix=suffix)
    second = layout(tmp_path / "b", SAME, {**SAME, path: (content, fields)}, suffix=suffix)

    differences = [difference for difference in compare_layouts(first, second) if difference.where != "manifest"]

    assert [("layer 1", path, field)] == [difference[:3] for difference in differences]


def test_the_order_of_entries_is_compared(tmp_path: Path) -> None:
    swapped = dict(reversed(SAME.items()))

    differences = compare_layouts(layout(tmp_path / "a", SAME), layout(tmp_path / "b", swapped))

    assert LayoutDifference("layer 0", "opt", "order", "0", "1") in differences


def test_the_config_is_compared_by_key_path(tmp_path: Path) -> None:
    first = layout(tmp_path / "a", SAME, config={"config": {"Env": ["A=1", "B=2"]}})
    second = layout(tmp_path / "b", SAME, config={"config": {"Env": ["A=1", "B=3"]}})

    assert LayoutDifference("config", "config.Env[1]", "value", '"B=2"', '"B=3"') in compare_layouts(first, second)


def test_a_missing_layer_is_a_difference_of_the_manifest(tmp_path: Path) -> None:
    differences = compare_layouts(layout(tmp_path / "a", SAME, SAME), layout(tmp_path / "b", SAME))

    assert ("manifest", "layers[1]", "value") in [difference[:3] for difference in differences]


def test_what_an_index_says_is_checked_before_two_layouts_are_equal(tmp_path: Path) -> None:
    first, second = layout(tmp_path / "a", SAME), layout(tmp_path / "b", SAME)
    third = layout(tmp_path / "c", {**SAME, "opt/file": (b"other", {"mtime": 1})})
    manifest = image_layout.path_of_blob(third, image_layout.read_digest(third)).read_bytes()
    image_layout.path_of_blob(second, image_layout.read_digest(second)).write_bytes(manifest)

    with pytest.raises(BuildError, match="b: damaged: a blob is missing or does not match its digest"):
        compare_layouts(first, second)
