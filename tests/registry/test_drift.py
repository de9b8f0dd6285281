"""Base tags at a real registry: what they name, that they moved, that they or their registry are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core import http
from drydock.core.errors import GoneError, RegistryError
from drydock.lock.drift.ask import LiveUpstream, Tag
from drydock.oci.manifest import Manifest, to_manifest
from drydock.registry.manifests import INDEX
from drydock.registry.registry_client import ATTEMPTS
from tests.registry.test_client import blobs, image, manifests
from tests.support.fake_registry import Answer, Fake
from tests.support.servers import Registry

AMD64 = "linux/amd64"


def push(registry: Registry, folder: Path, *, seed: int) -> Manifest:
    """Push an image of one platform and the index that names it, under the tag base; return the platform's manifest."""
    there = manifests(registry.host, folder, "drift/base")
    manifest = image(blobs(registry.host, folder, "drift/base"), folder, seed)
    there.push(manifest)
    entries = [{**manifest.descriptor(), "platform": {"os": "linux", "architecture": "amd64"}}]
    there.push(to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}), "base")
    return manifest


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"DRYDOCK_CACHE": str(tmp_path / "cache"), "PATH": "/usr/bin:/bin", "DOCKER_CONFIG": str(tmp_path)}


def test_a_tag_names_an_index_and_the_layers_are_the_platforms(
    registry: Registry, tmp_path: Path, env: dict[str, str]
) -> None:
    reference = f"{registry.host}/drift/base:base"
    first = push(registry, tmp_path, seed=1)
    before = LiveUpstream(env).tag(reference, AMD64)
    assert before.layers == tuple(layer["digest"] for layer in first.content["layers"])
    assert before.digest == manifests(registry.host, tmp_path, "drift/base").digest("base") != first.digest
    assert LiveUpstream(env).tag(reference, AMD64) == before

    push(registry, tmp_path, seed=2)
    after = LiveUpstream(env).tag(reference, AMD64)
    assert after.digest != before.digest
    assert after.layers != before.layers
    assert LiveUpstream(env).tag(f"{reference}@{before.digest}", AMD64) == Tag(before.digest, before.layers)


def test_a_tag_that_is_not_there_is_gone(registry: Registry, tmp_path: Path, env: dict[str, str]) -> None:
    push(registry, tmp_path, seed=1)
    with pytest.raises(GoneError, match="the registry has no such image"):
        LiveUpstream(env).tag(f"{registry.host}/drift/base:never", AMD64)


def test_a_registry_that_fails_is_asked_for_one_image(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LONGEST_PAUSE", 0.0)
    with Fake(lambda _: Answer(503)) as server:
        upstream = LiveUpstream(env)
        for number in range(20):
            with pytest.raises(RegistryError, match=f"asked {ATTEMPTS} times"):
                upstream.tag(f"{server.host}/base{number}:1", AMD64)
        assert len(server.seen) == ATTEMPTS
