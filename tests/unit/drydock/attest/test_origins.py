"""The layers of a base from a registry. What else is compared is planted in publish/test_planted.py."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drydock.attest import origins
from drydock.attest.contents import ImageContents, read_contents
from drydock.build.job import Job, prepare
from drydock.inputs import fetch
from drydock.inputs.store import default_store
from drydock.model.locked import LockedImageBase
from drydock.oci import layout as oci
from tests.support import layouts

LAYERS = [layouts.tar([(name, b"vendor", {})]) for name in ("one", "two")]
DIFF_IDS = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in LAYERS]


@pytest.fixture(params=["image", "index"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose base is an image in the store, or an index of images."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    made = layouts.write(tmp_path / "made", *LAYERS, config={"rootfs": {"diff_ids": DIFF_IDS}})
    if request.param == "index":
        own: dict[str, Any] = {"digest": oci.read_digest(made), "platform": {"os": "linux", "architecture": "amd64"}}
        other = {"digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": "arm64"}}
        layouts.name(made, {"manifests": [other, own]})
    digest = oci.read_digest(made)
    folder = fetch.image_folder(digest, "linux/amd64", default_store())
    folder.parent.mkdir(parents=True)
    made.rename(folder)
    base = LockedImageBase(kind="image", reference="r.example/base:1", digest=digest, verified=True, source="tests")
    found = prepare("cpu")
    pins = found.pins.model_copy(update={"base": base})
    return replace(found, lock=found.lock.model_copy(update={"platforms": {found.platform: pins}}))


def read(folder: Path, *layers: bytes) -> ImageContents:
    layout = layouts.write(folder, *layers)
    return read_contents(oci.read_manifest(layout), partial(oci.blob, layout))


def lines(job: Job, found: ImageContents) -> list[str]:
    return [line for line in origins.problems(job, found, {}) if "the lowest" in line]


@pytest.mark.attack(
    what="a layer of the vendor's base is replaced in an image in the cache",
    before="publish compared no layer of a base from a registry",
    after="publish compares them with the base in the store, if it is there",
)
def test_the_layers_of_a_vendors_base_are_compared(job: Job, tmp_path: Path) -> None:
    above = layouts.tar([("three", b"ours", {})])
    assert lines(job, read(tmp_path / "true", *LAYERS, above)) == []
    evil = layouts.tar([("two", b"evil", {})])
    (said,) = lines(job, read(tmp_path / "false", LAYERS[0], evil, above))
    assert said.startswith("the lowest 2 layers are not those of r.example/base:1@sha256:")
    assert lines(job, read(tmp_path / "less", LAYERS[0]))
