"""What is taken from a bundle: with nobody's word for it, with `--digest`, and with documents about something else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drydock.attest import documents
from drydock.attest.documents import Attached
from drydock.build.loaded import LOADED, read_loaded
from drydock.bundle.create import create
from drydock.bundle.load import LoadOptions, _Loading, load, report
from drydock.core.errors import InputError, UntrustedError
from drydock.inputs.store import Store
from drydock.oci import layout as oci
from drydock.publish.push import built
from tests.support.filled_registry import StockedRepository
from tests.support.local_registry import PLATFORMS, VARIANT

PLATFORM = PLATFORMS[0]
DOCUMENTS = ["lock.json", "licences.json", "provenance.json", "sbom.spdx.json"]


class Sender:
    """The machine that makes the bundle, which may be an attacker's, and the cache of the one that loads it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self.repository = StockedRepository(folder)
        self.there = folder / "there"

    def bundle(self, invent: Callable[[tuple[Attached, ...]], tuple[Attached, ...]] = tuple) -> tuple[Path, str]:
        """Return a bundle and its digest; `invent` replaces the attached documents."""
        file, true = self._folder / "bundle.tar", documents.documents
        with self._patch.context() as patch:
            patch.setattr(documents, "documents", lambda *arguments: invent(true(*arguments)))
            digest = create([VARIANT], file, root=self.repository.root).bundle
        self._patch.setenv("DRYDOCK_CACHE", str(self.there))
        return file, digest

    def load(self, file: Path, **options: str) -> str:
        return report(load(file, LoadOptions(**options), root=self.repository.root))  # type: ignore[arg-type]

    def attached(self) -> dict[str, Any]:
        """Return what `publish` would attach to the image that was loaded, and sign."""
        (layout,) = built(self.repository.variant, self.repository.root)
        found = documents.documents(layout.job, layout.folder, layout.manifest, "registry.example/cpu")
        return {item.name: json.loads(item.data) for item in found}


@pytest.fixture
def sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sender:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return Sender(tmp_path, monkeypatch)


def other_module(layers: list[dict[str, bytes]], _: dict[str, Any]) -> None:
    layers[2]["opt/drydock/vllm-flags.json"] = b"other flags"


@pytest.mark.attack(
    what="an unsigned bundle holds a changed image under the true checksum of the inputs",
    before="it was loaded, build said 'built before', and publish signed it",
    after="the load is refused, because the lock records another digest for these inputs",
)
def test_an_image_that_is_not_the_recorded_one_is_not_loaded(sender: Sender) -> None:
    true = oci.read_digest(sender.repository.layout(PLATFORM))
    sender.repository.write_build(PLATFORM, other_module)
    file, _ = sender.bundle()
    sender.repository.record(PLATFORM, true)
    with pytest.raises(UntrustedError, match=f"the bundle contains sha256:.*, expected {true}"):
        sender.load(file)
    assert not list(sender.there.rglob("index.json"))


@pytest.mark.attack(
    what="an unsigned bundle brings invented provenance and proof",
    before="publish attached and signed them",
    after="documents come only from a bundle that --key or --digest names; publish refuses the image of another",
)
def test_documents_of_a_bundle_that_nobody_vouched_for_are_not_loaded(sender: Sender) -> None:
    file, digest = sender.bundle(lambda found: (*found, Attached(documents.PROOF, b'{"invented": true}')))
    assert "no one vouched for the bundle" in sender.load(file)
    assert not list(sender.there.rglob("provenance.json"))
    with pytest.raises(UntrustedError, match=f"was loaded from bundle {digest}, for which neither"):
        sender.attached()
    assert "no one vouched" not in sender.load(file, digest=digest)
    assert list(sender.attached()) == DOCUMENTS


def test_the_provenance_of_a_recorded_image_that_nobody_vouched_for_claims_no_build(sender: Sender) -> None:
    sender.repository.record(PLATFORM, oci.read_digest(sender.repository.layout(PLATFORM)))
    file, digest = sender.bundle()
    sender.load(file)
    statement = sender.attached()["provenance.json"]["predicate"]
    assert statement["buildDefinition"]["buildType"] == "urn:drydock:loaded:v1"
    assert statement["buildDefinition"]["internalParameters"]["bundle"] == digest
    assert statement["runDetails"]["builder"] == {"id": "urn:drydock:builder:unknown"}
    assert "metadata" not in statement["runDetails"]


@pytest.mark.attack(
    what="a bundle attaches a release.json, a proof or a bill of materials of its own",
    before="publish signed whatever the bundle attached, and a release.json binds a tag to a digest",
    after="publish takes only lock and provenance from a bundle and makes the other documents itself",
)
def test_only_lock_and_provenance_are_taken(sender: Sender) -> None:
    invented = (documents.RELEASE, documents.PROOF)
    file, digest = sender.bundle(lambda found: (*found, *(Attached(kind, b"{}") for kind in invented)))
    sender.load(file, digest=digest)
    assert list(sender.attached()) == DOCUMENTS
    assert sender.attached()["sbom.spdx.json"]["packages"]


def changed(kind: str, change: Callable[[Any], None]) -> Callable[[tuple[Attached, ...]], tuple[Attached, ...]]:
    """Change the document of one kind."""

    def invent(found: tuple[Attached, ...]) -> tuple[Attached, ...]:
        content = json.loads(next(item.data for item in found if item.media_type == kind))
        change(content)
        forged = Attached(kind, json.dumps(content).encode())
        return tuple(forged if item.media_type == kind else item for item in found)

    return invent


def of_another_image(statement: dict[str, Any]) -> None:
    statement["subject"][0]["digest"]["sha256"] = "0" * 64


def of_another_type(statement: dict[str, Any]) -> None:
    statement["predicateType"] = "https://example.com/anything/v1"


def of_other_inputs(statement: dict[str, Any]) -> None:
    statement["predicate"]["buildDefinition"]["internalParameters"]["inputsSha256"] = "0" * 64


def of_another_variant(statement: dict[str, Any]) -> None:
    statement["predicate"]["buildDefinition"]["externalParameters"]["variant"] = "cuda13.0-vllm0.33"


def of_no_shape(statement: dict[str, Any]) -> None:
    statement["predicate"] = "deep"


def of_no_lock(lock: dict[str, Any]) -> None:
    lock["platforms"] = {}


FORGED: Mapping[str, tuple[Callable[[tuple[Attached, ...]], tuple[Attached, ...]], str]] = {
    "another subject": (changed(documents.PROVENANCE, of_another_image), r"subject is .*'000.*expected"),
    "another predicate": (changed(documents.PROVENANCE, of_another_type), "predicateType is 'https://example.com"),
    "other inputs": (changed(documents.PROVENANCE, of_other_inputs), "inputsSha256 is '000"),
    "another variant": (changed(documents.PROVENANCE, of_another_variant), "variant is 'cuda13"),
    "no predicate": (changed(documents.PROVENANCE, of_no_shape), "unexpected content"),
    "an edited lock": (changed(documents.LOCK, of_no_lock), "unexpected content: .*edited by hand"),
    "no lock": (lambda found: found[1:], "expected application/vnd.drydock.lock"),
}


@pytest.mark.attack(
    what="the documents in a vouched bundle are about another image, other inputs, or have another type",
    before="they were attached and signed unread",
    after="the load is refused and says what the document is about",
)
@pytest.mark.parametrize("name", FORGED)
def test_documents_about_something_else_are_refused(name: str, sender: Sender) -> None:
    invent, said = FORGED[name]
    file, digest = sender.bundle(invent)
    with pytest.raises(UntrustedError, match=said):
        sender.load(file, digest=digest)
    assert not list(sender.there.rglob("provenance.json"))


def test_documents_that_were_changed_in_the_cache_are_refused(sender: Sender) -> None:
    file, digest = sender.bundle()
    sender.load(file, digest=digest)
    (path,) = sender.there.rglob("provenance.json")
    path.write_text(path.read_text().replace(PLATFORM, "linux/arm64"))
    with pytest.raises(UntrustedError, match="not the documents of bundle"):
        sender.attached()


@pytest.mark.attack(
    what="someone who can write to the cache says that --key vouched for a loaded image, with provenance of their own",
    before="publish attached and signed that provenance",
    after="the record has a seal of this machine's key, which is not in the cache; without it nothing vouches",
)
@pytest.mark.parametrize("sealed", [False, True])
def test_a_record_in_the_cache_does_not_vouch_for_itself(sender: Sender, sealed: bool) -> None:
    file, digest = sender.bundle()
    sender.load(file, digest=digest if sealed else "")
    (record,) = sender.there.rglob(LOADED)
    content = json.loads(record.read_text())
    invented = record.parent / documents.FOLDER / "provenance.json"
    invented.parent.mkdir(exist_ok=True)
    invented.write_text("{}")
    content["documents"] = {"provenance.json": hashlib.sha256(b"{}").hexdigest()}
    record.write_text(json.dumps({**content, "vouched": True}))

    loaded = read_loaded(record.parent)

    assert loaded
    assert not loaded.vouched


@pytest.mark.attack(
    what="a layer of a loaded image is truncated before the bundle is loaded again",
    before="the load said that it was done, and left the damaged layer",
    after="the load notices it and writes the image again",
)
def test_a_damaged_image_is_loaded_again(sender: Sender) -> None:
    file, digest = sender.bundle()
    sender.load(file, digest=digest)
    (index,) = sender.there.rglob(LOADED)
    layout = index.parent
    next(path for path in (layout / "blobs" / "sha256").iterdir() if path.stat().st_size > 1).write_bytes(b"")
    sender.load(file, digest=digest)
    assert oci.sound(layout)
    loaded = read_loaded(layout)
    assert loaded
    assert loaded.vouched


@pytest.mark.attack(
    what="indexes of a bundle name each other: a few kilobytes stand for more images than there are atoms",
    before="the load never ended, or ended in a RecursionError",
    after="refused: an index names images, and each blob is read once",
)
def test_indexes_that_name_indexes_are_refused(tmp_path: Path) -> None:
    runs_on = {"os": "linux", "architecture": "amd64"}
    blobs = {f"{n}": {"manifests": [{"digest": f"{n + 1}", "platform": runs_on}] * 100} for n in range(5000)}
    blobs["image"] = {"config": {"digest": "config"}, "layers": [{"digest": "layer"}] * 100}
    blobs["index"] = {"manifests": [{"digest": "image", "platform": runs_on}] * 100}
    archive: Any = SimpleNamespace(path=tmp_path, json=blobs.__getitem__)
    loading = _Loading(archive, Store(tmp_path), tmp_path, vouched=False)
    with pytest.raises(InputError, match="found an index in an index"):
        loading._reachable("0", "linux/amd64")
    assert loading._reachable("index", "linux/amd64") == ["index", "image", "config", "layer"]
