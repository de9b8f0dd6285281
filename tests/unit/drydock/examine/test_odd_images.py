"""Images in forms that the specification allows and few tools write, and what is no image."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from drydock.attest import documents
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, RegistryError, UntrustedError
from drydock.core.files import format_json
from drydock.examine import image, image_diff
from drydock.inputs import indexes
from drydock.inputs.image_digests import resolve_image
from drydock.model.bases import ImageBase
from drydock.model.record import dump_record
from drydock.oci.strict import CONFIGS, DOCKER_INDEX, DOCKER_MANIFEST, INDEX, MANIFEST
from tests.support.fake_registry import Answer, Fake, Seen

AMD64, ARM64 = {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64", "variant": "v8"}
UNKNOWN = {"os": "unknown", "architecture": "unknown"}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
PROVENANCE, SPDX = "application/vnd.in-toto+json", "application/spdx+json"
ARTIFACT = "application/vnd.oci.artifact.manifest.v1+json"


class Served:
    """A registry that serves what the test puts into it."""

    def __init__(self) -> None:
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.referrers: list[dict[str, Any]] = []

    def __call__(self, request: Seen) -> Answer:
        kind, _, name = request.path.removeprefix("/v2/acme/odd/").partition("/")
        if kind == "referrers":
            return Answer(200, body=json.dumps({"manifests": self.referrers}).encode())
        if kind == "blobs":
            return Answer(200, body=self.blobs[name]) if name in self.blobs else Answer(404)
        media_type, data = self.manifests.get(name, ("", b""))
        return Answer(200, {"Content-Type": media_type}, data) if data else Answer(404)

    def blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def manifest(self, media_type: str, **content: Any) -> dict[str, Any]:
        """Put a manifest under its digest and the tag `odd`; return its descriptor."""
        data = json.dumps({"schemaVersion": 2, "mediaType": media_type, **content}).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.manifests |= dict.fromkeys((digest, "odd"), (media_type, data))
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def image(
        self,
        platform: dict[str, str],
        *,
        layer: str = LAYER,
        data: bytes = b"",
        media_type: str = MANIFEST,
        **config: Any,
    ) -> dict[str, Any]:
        settings = json.dumps({**platform, "rootfs": {"type": "layers", "diff_ids": []}, **config}).encode()
        kind = CONFIGS[media_type == DOCKER_MANIFEST]
        layers = [self.blob(data or gzip.compress(files(), mtime=0), layer)]
        return self.manifest(media_type, config=self.blob(settings, kind), layers=layers)

    def index(self, *entries: dict[str, Any], media_type: str = INDEX) -> dict[str, Any]:
        return self.manifest(media_type, manifests=[*entries])

    def attach(self, subject: dict[str, Any], kind: str, *documents: bytes, **listed: Any) -> None:
        """List an artifact with documents as a referrer."""
        layers = [self.blob(data, kind) for data in documents]
        config = self.blob(b"{}", "application/vnd.oci.empty.v1+json")
        entry = self.manifest(MANIFEST, artifactType=kind, config=config, layers=layers, subject=subject)
        self.referrers.append({**entry, "artifactType": kind, **listed})
        self.manifests["odd"] = self.manifests[subject["digest"]]


def files() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        info = tarfile.TarInfo("etc/os-release")
        info.size = 10
        archive.addfile(info, io.BytesIO(b"ID=debian\n"))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def configured() -> indexes.Indexes:
    """Pip's configuration: it is asked for by each command, which takes longer than these tests."""
    return indexes.read_indexes()


@pytest.fixture
def served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: indexes.Indexes
) -> Iterator[tuple[Served, str]]:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(indexes, "read_indexes", lambda *_: configured)
    served_image = Served()
    with Fake(served_image) as fake:
        yield served_image, f"{fake.host}/acme/odd:odd"


def platforms(where: str) -> list[str]:
    inspection = image.inspect_image(DRYDOCK, where)
    image.format_inspected(inspection)
    format_json(dump_record(inspection))
    return [*inspection.platforms]


# --- read -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"config": None, "history": None, "created": None},
        {"config": {"Labels": None, "Env": None, "Entrypoint": None, "Volumes": None}},
        {"config": {"Labels": {"io.drydock.variant": None, "io.drydock.support": "x"}}},
        {"created": "0001-01-01T00:00:00Z"},
    ],
)
def test_a_configuration_may_leave_out_what_it_does_not_set(
    served: tuple[Served, str], settings: dict[str, Any]
) -> None:
    registry, where = served
    registry.image(AMD64, **settings)
    assert platforms(where) == ["linux/amd64"]
    assert image_diff.diff_images(where, where).same


@pytest.mark.parametrize(
    ("platform", "expected"),
    [(None, ["linux/amd64"]), ({"os": "linux", "architecture": ""}, ["linux/amd64"]), (ARM64, ["linux/arm64"])],
)
def test_an_entry_without_a_platform_is_for_that_of_its_configuration(
    served: tuple[Served, str], platform: dict[str, str] | None, expected: list[str]
) -> None:
    registry, where = served
    registry.index({**registry.image(AMD64), "platform": platform})
    assert platforms(where) == expected


def test_what_is_no_image_in_an_index_is_left_out(served: tuple[Served, str]) -> None:
    registry, where = served
    attestation = registry.image(UNKNOWN, layer=PROVENANCE)
    chart = registry.manifest(
        MANIFEST, config=registry.blob(b"{}", "application/vnd.cncf.helm.config.v1+json"), layers=[]
    )
    registry.index(
        attestation,
        {**attestation, "platform": UNKNOWN},
        {**attestation, "platform": {"os": "linux", "architecture": ""}},
        {**chart, "platform": AMD64},
        {**chart, "mediaType": ARTIFACT},
        {"mediaType": "application/vnd.x", "digest": f"sha256:{'0' * 64}", "size": 1},
        {"mediaType": MANIFEST, "digest": f"sha512:{'a' * 128}", "size": 5, "platform": AMD64},
        {**registry.image(AMD64), "platform": AMD64},
        {**registry.image(ARM64), "platform": ARM64},
    )
    assert platforms(where) == ["linux/amd64", "linux/arm64"]


def test_of_two_images_for_a_platform_the_first_is_shown(served: tuple[Served, str]) -> None:
    registry, where = served
    first = registry.image(AMD64, created="2024-01-01T00:00:00Z")
    registry.index({**first, "platform": AMD64}, {**registry.image(AMD64), "platform": AMD64})
    assert image.inspect_image(DRYDOCK, where).platforms["linux/amd64"].digest == first["digest"]


def test_an_index_within_an_index_is_read_to_a_depth(served: tuple[Served, str]) -> None:
    registry, where = served
    inner = registry.index({**registry.image(AMD64), "platform": AMD64})
    registry.index(inner)
    assert platforms(where) == ["linux/amd64"]
    for _ in range(3):
        inner = registry.index(inner)
    with pytest.raises(RegistryError, match="3 indexes within one another"):
        image.inspect_image(DRYDOCK, where)


def test_dockers_own_types_are_read(served: tuple[Served, str]) -> None:
    registry, where = served
    layer = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    entry = registry.image(AMD64, layer=layer, media_type=DOCKER_MANIFEST)
    registry.index({**entry, "platform": AMD64}, media_type=DOCKER_INDEX)
    assert platforms(where) == ["linux/amd64"]
    assert image_diff.diff_images(where, where).sizes["files"] == (10, 10)


@pytest.mark.parametrize(
    ("layer", "data"),
    [
        ("application/vnd.oci.image.layer.v1.tar", files()),
        ("application/vnd.oci.image.layer.v1.tar+zstd", zstandard.compress(files())),
        ("application/vnd.oci.image.layer.v1.tar+zstd", gzip.compress(files())),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", gzip.compress(files())),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", files()),
    ],
)
def test_the_first_bytes_say_how_a_layer_is_compressed(served: tuple[Served, str], layer: str, data: bytes) -> None:
    registry, where = served
    registry.image(AMD64, layer=layer, data=data)
    assert image_diff.diff_images(where, where).sizes["files"] == (10, 10)


# --- refused --------------------------------------------------------------------------------------------------------


def test_what_is_no_image_is_refused_by_its_name(served: tuple[Served, str]) -> None:
    registry, where = served

    def refused(problem: str) -> None:
        for read in (lambda: image.inspect_image(DRYDOCK, where), lambda: image_diff.diff_images(where, where)):
            with pytest.raises(RegistryError, match=problem):
                read()

    chart = registry.blob(b'{"name": "x"}', "application/vnd.cncf.helm.config.v1+json")
    registry.manifest(MANIFEST, config=chart, layers=[])
    refused("not an image, but an artifact of type 'application/vnd.cncf.helm.config.v1")
    registry.manifest(MANIFEST, artifactType=SPDX, config=registry.blob(b"{}", MANIFEST), layers=[])
    refused("not an image, but an artifact of type 'application/spdx")
    registry.index()
    refused("not an image, but an index that lists nothing")
    registry.index({**registry.image(UNKNOWN), "platform": UNKNOWN})
    refused("nothing in it is for a platform")
    registry.image(UNKNOWN)
    refused("nothing in it is for a platform")
    registry.manifest(ARTIFACT)
    refused("expected an image or an index, found the media type")
    registry.manifest("application/vnd.docker.distribution.manifest.v1+prettyjws", fsLayers=[])
    refused("schema 1, which engines no longer pull")
    registry.image(AMD64, config=[])
    refused("config: Input should be a valid dictionary|config: ")


@pytest.mark.parametrize(
    ("layer", "data"), [(f"{LAYER}+encrypted", b"x"), (PROVENANCE, b"{}"), (LAYER, b"no archive at all" * 99)]
)
def test_a_layer_that_is_no_archive_is_refused(served: tuple[Served, str], layer: str, data: bytes) -> None:
    registry, where = served
    registry.image(AMD64, layer=layer, data=data)
    with pytest.raises(UntrustedError, match="sha256:"):
        image_diff.diff_images(where, where)


def test_a_base_that_is_no_image_is_not_locked(served: tuple[Served, str]) -> None:
    registry, where = served
    registry.image(AMD64, config=None)
    base = ImageBase.model_validate({"kind": "image", "reference": where, "release": "debian:12"})
    assert str(resolve_image(base).digest) == image.inspect_image(DRYDOCK, where).digest
    registry.manifest(MANIFEST, artifactType="a/b", config=registry.blob(b"{}", MANIFEST), layers=[])
    with pytest.raises(InputError, match="not an image, but an artifact of type 'a/b'"):
        resolve_image(base)


# --- documents of others --------------------------------------------------------------------------------------------


def test_documents_of_others_are_left_out_of_what_is_shown(
    served: tuple[Served, str], capfd: pytest.CaptureFixture[str]
) -> None:
    registry, where = served
    subject = registry.image(AMD64)
    registry.attach(subject, PROVENANCE, b'{"_type": "https://in-toto.io/Statement/v1", "predicate": {}}')
    registry.attach(subject, PROVENANCE, b"[]")
    registry.attach(subject, documents.LOCK, b"\xff")
    registry.attach(subject, documents.PROOF, b"[]")
    registry.attach(subject, SPDX, b"{}", b"{}")
    registry.attach(subject, "another/type", b"{}", artifactType=SPDX)
    registry.attach(subject, SPDX, b"{}", mediaType=ARTIFACT)
    amd64_image = image.inspect_image(DRYDOCK, where).platforms["linux/amd64"]
    assert (amd64_image.built, amd64_image.base, amd64_image.shown) == ((), "", "none")
    assert capfd.readouterr().err.count("left out: ") == 6
