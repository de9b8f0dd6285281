"""A kept image is used only if it is whole and the one that is recorded; else it is built again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.filesize import decimal

from drydock.build import build, build_preview, foundation, rebuild
from drydock.build.build_job import BuildOptions
from drydock.config.project_choice import DRYDOCK
from drydock.core import http
from drydock.core.errors import EngineError, FetchError, UnresolvedError
from drydock.engine import daemon, image_loading
from drydock.inputs import fetch, wheels
from drydock.inputs.store import default_store
from drydock.oci import image_layout
from drydock.projects import pinned_job
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


# --- what a build would do ------------------------------------------------------------------------------------------


def preview(kept_image: Kept, **options: Any) -> list[str]:
    return build_preview.format_build_preview(build_preview.preview_build(kept_image.job, **options)).splitlines()


def test_a_preview_says_that_a_kept_image_needs_nothing(kept_image: Kept) -> None:
    row = f"{kept_image.job.variant.id} ({PLATFORM})"
    assert preview(kept_image) == [
        "would download nothing",
        f"would build nothing: {row} is built from the same inputs: {kept_image.digest}",
    ]


def test_a_preview_counts_what_is_downloaded_and_the_disk_and_names_the_digest(kept_image: Kept) -> None:
    job, row = kept_image.job, f"{kept_image.job.variant.id} ({PLATFORM})"
    needed = fetch.select_needed_inputs(job.lock, PLATFORM, default_store())
    files = {item.sha256: item.size for item in (*needed.wheels, *needed.debs)}
    downloads, builds, digest, disk = preview(kept_image, no_cache=True)
    assert downloads == f"would download {len(files)} files: {decimal(sum(files.values()))}"
    assert builds == f"would build the foundation and the image of {row}"
    assert digest == f"expected digest: {kept_image.digest}, which is recorded for the same inputs"
    assert disk.startswith(f"disk: about {decimal(build_preview.estimate_needed_bytes(job.pins))} needed, ")


def test_a_preview_knows_that_a_kept_foundation_needs_neither_wheels_nor_its_base(kept_image: Kept) -> None:
    shutil.copytree(kept_image.job.layout, kept_image.job.foundation)
    shutil.rmtree(kept_image.job.layout)
    row = f"{kept_image.job.variant.id} ({PLATFORM})"
    assert preview(kept_image)[:2] == [
        "would download nothing",
        f"would build the image of {row} on the kept foundation",
    ]


def test_a_dry_run_pins_downloads_and_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The lock of gaudi2 lacks its base: a build would pin it."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    for name in ("build_image", "fetch_contexts"):
        monkeypatch.setattr(build, name, None)
    monkeypatch.setattr(http.Session, "request", None)
    job = pinned_job.prepare_previewed_job(DRYDOCK, "gaudi2", BuildOptions())
    first, _, code, *_ = build_preview.format_build_preview(build_preview.preview_build(job)).splitlines()
    assert first == f"would pin and download what images/{job.variant.id}/lock.json lacks: base"
    assert code.startswith("would download code of unknown size: ")
    with pytest.raises(UnresolvedError, match="not pinned"):
        pinned_job.prepare_previewed_job(DRYDOCK, "gaudi2", BuildOptions(), locked=True)
    with pytest.raises(UnresolvedError, match="base is unresolved"):
        rebuild.preview_verification(job)
    assert not list((tmp_path / "cache").glob("store/*"))


def test_a_preview_of_verify_reads_what_both_builds_need(kept_image: Kept) -> None:
    job = kept_image.job
    lines = rebuild.format_verification_preview(rebuild.preview_verification(job), 12_000_000_000).splitlines()
    assert lines[0].startswith("would download ")
    assert lines[0] != "would download nothing", "the second build is from nothing, and uses no network"
    assert lines[-2] == "would build the image again, from nothing, and compare both digests"
    assert lines[-1].startswith("disk: about 12.0 GB needed, ")
