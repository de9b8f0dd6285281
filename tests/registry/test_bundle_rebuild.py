"""From one machine to another without any network: an empty cache, an engine of its own, the same digest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.second_engine import PROBE
from bench.small_project import VARIANT
from drydock.build import build
from drydock.build.build_job import Job, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.config.server_access import Access
from drydock.core.project import Project
from drydock.inputs import fetch, image_digests, rootfs
from drydock.inputs.store import default_store
from drydock.lock import lockfile
from drydock.lock.drift.ask import LiveUpstream
from drydock.model.bases import ImageBase
from drydock.model.locked import Lock, LockedDebianBase, LockedImageBase
from drydock.oci import image_layout
from drydock.oci.manifest import Manifest
from drydock.oci.reference import parse_reference
from drydock.publish.repository import Repository
from drydock.registry.manifests import MANIFEST
from tests.support.cut_off import CutOff
from tests.support.servers import Registry
from tests.support.small_image import Small

REFERENCE = "registry.example/bases/debian:1"


class OnImage(Small):
    """The small repository on a base that is an image of a registry, which only a mirror serves."""

    def __init__(self, folder: Path, real: Lock, base: Path, mirror: str) -> None:
        self.base = base
        self.mirrors = folder / "mirrors.yaml"
        self.mirrors.write_text(f"registries: {{registry.example: {mirror}}}\n")
        super().__init__(folder, real)

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "DRYDOCK_MIRRORS": str(self.mirrors)}

    def _copy(self, row: str) -> None:
        super()._copy(row)
        path = self.root / "templates" / "cpu" / "accelerator.yaml"
        before, separator, after = path.read_text().partition("\nbase:\n")
        assert separator
        lines = after.splitlines()
        rest_start = next(number for number, line in enumerate(lines) if line and not line.startswith(" "))
        rest = "\n".join(lines[rest_start:])
        path.write_text(f"{before}\nbase:\n  kind: image\n  reference: {REFERENCE}\n  release: bookworm\n{rest}\n")

    def _lock(self, real: Lock) -> None:
        digest = image_layout.read_digest(self.base)
        base = LockedImageBase(kind="image", reference=REFERENCE, digest=digest, verified=True, source="the registry")
        pins = {name: item.model_copy(update={"base": base}) for name, item in real.platforms.items()}
        super()._lock(real.model_copy(update={"platforms": pins}))


@pytest.fixture(scope="module")
def cut_off() -> Iterator[CutOff]:
    engine = CutOff()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def real() -> Job:
    job = prepare_job(DRYDOCK, "cpu")
    build.fetch_contexts(job)  # the small one's base is the real one
    return job


@pytest.fixture(scope="module")
def on_debian(real: Job, tmp_path_factory: pytest.TempPathFactory) -> Small:
    return Small(tmp_path_factory.mktemp("debian"), real.lock)


@pytest.fixture(scope="module")
def on_image(real: Job, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> OnImage:
    layout = base_of(real)
    repository = Repository(parse_reference(f"{registry.host}/mirror/bases/debian"), Access())
    digest = image_layout.read_digest(layout)
    manifest = Manifest(image_layout.path_of_blob(layout, digest).read_bytes(), MANIFEST)
    for item in (manifest.content["config"], *manifest.content["layers"]):
        repository.push_blob(image_layout.path_of_blob(layout, item["digest"]), item["digest"])
    repository.manifests.push(manifest, "1")
    return OnImage(tmp_path_factory.mktemp("image"), real.lock, layout, f"{registry.host}/mirror")


def base_of(job: Job) -> Path:
    base = job.pins.base
    assert isinstance(base, LockedDebianBase)
    return rootfs.base_folder(fetch.rootfs_packages(base, job.platform, job.lock.source_date_epoch), default_store())


def test_there_is_no_network(cut_off: CutOff, registry: Registry, tmp_path: Path) -> None:
    probe = [sys.executable, "-c", PROBE.format(port=registry.port)]
    assert subprocess.run(probe, check=False).returncode == 0
    result = cut_off.run(*probe, cwd=tmp_path, env=os.environ)
    assert "Network is unreachable" in result.stderr or "Cannot assign requested address" in result.stderr


@pytest.mark.parametrize("name", [pytest.param("on_debian", marks=pytest.mark.slow), "on_image"])
def test_load_rebuild_the_same_digest_run(
    name: str, cut_off: CutOff, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    small: Small = request.getfixturevalue(name)
    built = small.build()
    file = tmp_path / "small.tar"
    result = small.invoke("bundle.create", "--target", VARIANT, "--output", str(file), "--json")
    assert result.returncode == 0, result.stderr[-3000:]
    created = json.loads(result.stdout)
    assert created["images"] == {VARIANT: {"linux/amd64": built["digest"]}}

    there = {**small.environment, "DRYDOCK_CACHE": str(tmp_path / "there")}
    there.pop("DRYDOCK_MIRRORS", None)
    invoke = (sys.executable, "-m", "invoke")
    load = ("bundle.load", str(file), "--engine", "--json", "--digest", created["bundle"])
    loaded = cut_off.run(*invoke, *load, cwd=small.root, env=there)
    assert loaded.returncode == 0, loaded.stderr[-3000:]
    (image,) = json.loads(loaded.stdout)["images"]
    assert (image["digest"], image["rebuildable"]) == (built["digest"], True)
    run_result = cut_off.run(
        "docker", "run", "--rm", "--network=none", image["reference"], "version", cwd=tmp_path, env=there
    )
    assert VARIANT in run_result.stdout, run_result.stderr

    verified = cut_off.run(*invoke, "verify", "--target", VARIANT, "--json", cwd=small.root, env=there)
    assert verified.returncode == 0, verified.stderr[-3000:]
    verification = json.loads(verified.stdout)
    assert (verification["first"], verification["second"]) == (built["digest"], built["digest"])

    if name == "on_debian":
        return  # whose base takes the longest: what follows is the same for both
    anew = cut_off.run(
        *invoke, "build", "--target", VARIANT, "--no-cache", "--offline", "--json", cwd=small.root, env=there
    )
    assert anew.returncode == 0, anew.stderr[-3000:]
    assert json.loads(anew.stdout)["digest"] == built["digest"]


def test_a_tag_is_asked_at_the_mirror_and_the_lock_says_so(on_image: OnImage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_MIRRORS", str(on_image.mirrors))
    base_image = image_digests.resolve_image(ImageBase(kind="image", reference=REFERENCE, release="bookworm"))
    assert (base_image.digest, base_image.verified) == (image_layout.read_digest(on_image.base), True)
    assert (base_image.reference, base_image.source) == (REFERENCE, "a mirror of the registry")
    assert LiveUpstream().tag(REFERENCE, "linux/amd64").digest == base_image.digest


def test_a_mirror_leaves_no_trace_in_lock_or_image(on_image: OnImage, registry: Registry) -> None:
    built = on_image.build()
    texts = [path.read_text() for path in (on_image.root / "images" / VARIANT).iterdir()]
    config = json.loads((Path(built["layout"]) / "index.json").read_text())
    assert not [text for text in (*texts, json.dumps(config)) if registry.host in text]
    assert lockfile.read_lock(lockfile.path_of_lock(Project(on_image.root), VARIANT)).platforms[
        "linux/amd64"
    ].base.digest == image_layout.read_digest(on_image.base)
