"""What counts as loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.errors import EngineError
from drydock.engine import loading
from drydock.oci import layout as oci
from tests.support import layouts


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return layouts.write(tmp_path, b"a layer", suffix="")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """An engine that takes everything and has no image before."""
    found: list[Path] = []
    monkeypatch.setattr(loading, "held", lambda _: frozenset())
    monkeypatch.setattr(loading, "send", lambda layout, *_: found.append(layout))
    return found


@pytest.mark.attack(
    what="a damaged layout is loaded into the engine",
    before="docker load accepts an archive that lacks blobs, and the load returned normally",
    after="the layout is hashed first, and the engine is asked afterwards whether it has every part",
)
def test_a_damaged_layout_is_not_sent(layout: Path, sent: list[Path]) -> None:
    oci.blob(layout, oci.read_manifest(layout)["layers"][0]["digest"]).write_bytes(b"another")
    with pytest.raises(EngineError, match=r"damaged: .*; nothing was loaded"):
        loading.load(layout, "drydock/cpu:1")
    assert sent == []


def test_an_image_that_the_engine_has_in_part_is_not_loaded(
    layout: Path, sent: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "is_whole", lambda _: False)
    with pytest.raises(EngineError, match=f"accepted {oci.read_digest(layout)}, but lacks parts of it"):
        loading.load(layout, "drydock/cpu:1")
    assert sent == [layout]
    monkeypatch.setattr(loading, "is_whole", lambda digest: digest == oci.read_digest(layout))
    loading.load(layout, "drydock/cpu:1")


def test_another_layout_that_is_damaged_tells_nothing_about_the_engine(
    layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = layouts.write(tmp_path / "damaged", b"another", suffix="")
    monkeypatch.setattr(loading, "_all_complete_manifests", lambda: frozenset(map(oci.read_digest, (layout, damaged))))
    known = loading.held([layout])
    oci.blob(damaged, oci.read_digest(damaged)).write_bytes(b"[]")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "index.json").write_text("{")
    assert loading.held([layout, damaged, tmp_path / "empty"]) == known != frozenset()
