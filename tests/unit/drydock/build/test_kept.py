"""A kept image is used only if it is whole and the one that is recorded; else it is built again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build, foundation
from drydock.core.errors import EngineError, FetchError
from drydock.engine import daemon, image_loading
from drydock.inputs import wheels
from drydock.oci import image_layout
from tests.support import layouts
from tests.support.local_registry import PLATFORMS, LocalRepository

PLATFORM = PLATFORMS[0]
OTHER = f"sha256:{'0' * 64}"


class Kept:
    """A repository with a kept image, and how often BuildKit was asked to build it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.local = LocalRepository(folder, platforms=(PLATFORM,))
        self.job = self.local.job(PLATFORM)
        self.builds = 0
        self._true = shutil.copytree(self.job.layout, folder / "true")
        self.digest = image_layout.read_digest(self._true)
        patch.setattr(daemon, "ensure_engine", lambda **_: None)
        patch.setattr(daemon, "list_builder_platforms", lambda _: frozenset({PLATFORM}))
        patch.setattr(build, "fetch_contexts", lambda *_, **__: {"entrypoints": ""})
        patch.setattr(build, "bake_file", lambda *_: {})
        patch.setattr(foundation, "build_foundation", lambda _, layout, __: layouts.write(layout, b""))
        patch.setattr(foundation, "complete_image", self._complete)

    def _complete(self, _: Any, layout: Path, *__: Any) -> None:
        self.builds += 1
        shutil.copytree(self._true, layout, dirs_exist_ok=True)

    @property
    def layer(self) -> Path:
        layer = image_layout.read_manifest(self.job.layout)["layers"][0]
        return image_layout.path_of_blob(self.job.layout, layer["digest"])

    def build(self) -> str:
        return build.build_image(self.local.job(PLATFORM), into_engine=False).digest


@pytest.fixture
def kept_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return Kept(tmp_path, monkeypatch)


def test_a_whole_image_is_not_built_again(kept_image: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    assert (kept_image.build(), kept_image.builds) == (kept_image.digest, 0)
    assert "up to date" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_image_is_built_again(damage: str, kept_image: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    data = kept_image.layer.read_bytes()
    kept_image.layer.unlink()
    if damage != "missing":
        kept_image.layer.write_bytes(data[:-1] if damage == "truncated" else b"x" + data[1:])
    assert (kept_image.build(), kept_image.builds) == (kept_image.digest, 1)
    assert "is damaged: a blob is missing or was changed on the disk" in capsys.readouterr().err
    assert image_layout.is_sound_layout(kept_image.job.layout)


def test_a_planted_image_is_built_again(kept_image: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    kept_image.local.record(PLATFORM, kept_image.digest)
    kept_image.local.write_build(PLATFORM, lambda layers, _: layers[2].update({"usr/local/bin/python3": b"evil"}))
    assert image_layout.read_digest(kept_image.job.layout) != kept_image.digest
    assert (kept_image.build(), kept_image.builds) == (kept_image.digest, 1)
    assert f"expected {kept_image.digest}, which" in capsys.readouterr().err


def test_a_build_that_gives_another_digest_than_the_recorded_one_says_so(
    kept_image: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_image.local.record(PLATFORM, OTHER)
    assert (kept_image.build(), kept_image.builds) == (kept_image.digest, 1)
    assert f"built {kept_image.digest}, but {OTHER} is recorded" in capsys.readouterr().err


def test_an_image_that_the_engine_has_is_checked_by_the_sizes_of_its_blobs(
    kept_image: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(image_layout, "is_sound_layout", lambda layout: bool(hashed.append(layout)))
    monkeypatch.setattr(image_loading, "tag_latest", lambda _: None)
    monkeypatch.setattr(image_loading, "list_names_if_running", lambda image, _: {image})
    assert build.build_image(kept_image.job).digest == kept_image.digest
    assert hashed == []
    kept_image.layer.write_bytes(b"short")
    monkeypatch.setattr(image_loading, "has_complete_image", lambda *_: True)
    assert build.build_image(kept_image.job).digest == kept_image.digest
    assert kept_image.builds == 1


def test_a_platform_that_no_builder_runs_is_refused_before_anything_is_fetched(
    kept_image: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "is_native_platform", lambda _: False)
    monkeypatch.setattr(daemon, "list_builder_platforms", lambda _: frozenset({"linux/s390x"}))
    monkeypatch.setattr(build, "fetch_contexts", lambda *_, **__: pytest.fail("it fetches"))
    shutil.rmtree(kept_image.job.layout)
    with pytest.raises(
        EngineError, match=f"^{PLATFORM}: no builder has a node for it: the default builder has linux/s390x"
    ):
        kept_image.build()


def test_an_offline_build_does_not_let_buildkit_pull(kept_image: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = {"entrypoints": "", "base": "docker-image://registry.example/base@sha256:1"}
    monkeypatch.setattr(build, "fetch_contexts", lambda *_, **__: remote)
    shutil.rmtree(kept_image.job.layout)
    with pytest.raises(FetchError, match=r"not in the store: base docker-image://registry\.example/base"):
        build.build_image(kept_image.local.job(PLATFORM), into_engine=False, may_use_network=False)
    assert kept_image.builds == 0
    assert kept_image.build() == kept_image.digest
