"""What is taken from a bundle: nothing without `--verify-key` or `--digest`, else its images with their documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drydock.attest import documents
from drydock.attest.documents import Attached
from drydock.build.build_job import ATTACHED
from drydock.bundle.load import format_loaded_bundle
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, UntrustedError
from drydock.core.project import Project
from drydock.oci import image_layout
from drydock.publish.push import list_built_layouts
from tests.support.called_verbs import create_bundle, load_bundle
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import PLATFORMS, VARIANT

PLATFORM = PLATFORMS[0]


class Sender:
    """The machine that makes the bundle, and the cache of the one that loads it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self.repository = StockedRepository(folder)
        self.there = folder / "there"

    def bundle(self, *more: Attached) -> tuple[Path, str]:
        """Return a bundle and its digest; `more` is attached to the image, too."""
        file, true = self._folder / "bundle.tar", documents.make_documents
        with self._patch.context() as patch:
            patch.setattr(documents, "make_documents", lambda *arguments: (*true(*arguments), *more))
            digest = create_bundle(Project(self.repository.root), [VARIANT], file).bundle
        self._patch.setenv("DRYDOCK_CACHE", str(self.there))
        return file, digest

    def load(self, file: Path, **options: str) -> str:
        return format_loaded_bundle(load_bundle(Project(self.repository.root), file, options))

    def attached(self) -> dict[str, bytes]:
        """Return what `publish` would attach to the kept image, and sign."""
        (layout,) = list_built_layouts(Project(self.repository.root), self.repository.variant)
        attachments = documents.make_documents(layout.job, layout.folder, layout.manifest, "registry.example/cpu")
        return {item.name: item.data for item in attachments}


def other_flags(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
    layers[2]["opt/drydock/vllm.json"] = b"other flags"


@pytest.fixture
def sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sender:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return Sender(tmp_path, monkeypatch)


def test_without_key_and_digest_nothing_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found neither --verify-key nor --digest") as error:
        load_bundle(DRYDOCK, tmp_path / "does-not-exist.tar")
    assert "bundle load" in error.value.hint
    assert "--digest sha256:…" in error.value.hint
    assert "--verify-key cosign.pub" in error.value.hint


def test_another_bundle_than_the_digest_says_is_refused_before_anything_is_parsed(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, digest = sender.bundle()
    monkeypatch.setattr("drydock.bundle.archive.Archive.index", lambda _: pytest.fail("parsed"))
    with pytest.raises(UntrustedError, match=f"digest is {digest}, expected sha256:000"):
        sender.load(file, digest=f"sha256:{'0' * 64}")


def test_an_image_that_is_not_the_recorded_one_is_not_loaded(sender: Sender) -> None:
    true = image_layout.read_digest(sender.repository.layout(PLATFORM))
    other_digest = image_layout.read_digest(sender.repository.write_build(PLATFORM, other_flags))
    sender.repository.record(PLATFORM, other_digest)
    file, digest = sender.bundle()
    sender.repository.record(PLATFORM, true)
    with pytest.raises(UntrustedError, match=f"the bundle contains {other_digest}, expected {true}"):
        sender.load(file, digest=digest)
    assert not list(sender.there.rglob("index.json"))


def test_documents_are_published_as_the_bundle_has_them(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sender.attached()
    file, digest = sender.bundle()
    monkeypatch.setenv("DRYDOCK_BUILDER_ID", "https://another.example/builder")
    sender.load(file, digest=digest)
    after = sender.attached()
    assert list(after) == ["lock.json", "licences.json", "provenance.json", "sbom.spdx.json"]
    assert {name: after[name] for name in ("lock.json", "licences.json")} == {
        name: before[name] for name in ("lock.json", "licences.json")
    }
    assert b"another.example" not in after["provenance.json"]


def test_documents_that_bind_tags_and_those_of_retired_types_are_left_out(sender: Sender) -> None:
    kinds = (documents.TAG, documents.RELEASE, "application/vnd.cyclonedx+json")
    file, digest = sender.bundle(*(Attached(kind, b"{}") for kind in kinds if kind in documents.FILE_NAMES))
    sender.load(file, digest=digest)
    assert not {"tag.json", "release.json"} & sender.attached().keys()


def test_an_image_without_provenance_is_not_loaded(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    true = documents.make_documents
    monkeypatch.setattr(
        documents, "make_documents", lambda *of: tuple(item for item in true(*of) if item.name != "provenance.json")
    )
    file, digest = sender.bundle()
    with pytest.raises(InputError, match=r"the bundle has no application/vnd\.in-toto\+json"):
        sender.load(file, digest=digest)
    assert not list(sender.there.rglob("index.json"))


def test_a_damaged_image_is_loaded_again(sender: Sender) -> None:
    file, digest = sender.bundle()
    sender.load(file, digest=digest)
    (folder,) = sender.there.rglob(ATTACHED)
    blobs = folder.parent / "blobs" / "sha256"
    next(path for path in blobs.iterdir() if path.stat().st_size > 1).write_bytes(b"")
    sender.load(file, digest=digest)
    assert image_layout.is_sound_layout(folder.parent)
    assert (folder / "provenance.json").is_file()
