"""After an edit, only what is new is made and loaded; the image is the one that a whole build makes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import docker
import pytest

from bench.small_project import VARIANT
from drydock.build import build, buildx
from drydock.build.build_job import STAND_IN, BuildOptions, Job, prepare_job
from drydock.core.errors import EngineError
from drydock.core.project import Project
from drydock.engine import image_loading
from drydock.engine.run_container import run_to_end
from drydock.inputs import rootfs
from drydock.inputs.store import default_store
from drydock.oci import image_layout
from tests.support import layouts
from tests.support.small_image import Small

NAME = "drydock-test/rebuilt"


class Rebuilt(NamedTuple):
    """A build, and a copy of its layout, which the next build drops."""

    said: build.Built
    layout: Path


class Rebuilds:
    """Builds the small image from changing entrypoints."""

    def __init__(self, small: Small, folder: Path) -> None:
        self.small, self.folder = small, folder

    @property
    def job(self) -> Job:
        return prepare_job(Project(self.small.root), VARIANT, BuildOptions(offline=True))

    def build(self, name: str, *, no_cache: bool = False) -> Rebuilt:
        """Build, with the entrypoints as they are."""
        build_result = build.build_image(self.job, no_cache=no_cache, into_engine=False)
        shutil.copytree(build_result.layout, self.folder / name, copy_function=os.link)
        return Rebuilt(build_result, self.folder / name)

    def edit(self, number: int) -> None:
        with (self.small.root / "entrypoints" / "verbs" / "dispatch.py").open("a") as module:
            module.write(f"\n# edit {number}\n")


@pytest.fixture(scope="module")
def rebuilds(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rebuilds]:
    build.fetch_contexts(job)  # the small image's base is the real one
    small = Small(tmp_path_factory.mktemp("small"), job.lock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRYDOCK_CACHE", str(small.cache))
        yield Rebuilds(small, tmp_path_factory.mktemp("rebuilds"))


@pytest.fixture(scope="module")
def first(rebuilds: Rebuilds) -> Rebuilt:
    return rebuilds.build("first")


@pytest.fixture(scope="module")
def second(rebuilds: Rebuilds, first: Rebuilt) -> Rebuilt:
    assert first.said.digest
    rebuilds.edit(1)
    return rebuilds.build("second")


@pytest.fixture
def names() -> Iterator[list[str]]:
    image_names = [f"{NAME}:{number}" for number in range(2)]
    yield image_names
    client = docker.from_env()
    for name in image_names:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.remove(name, force=True)


def layers(layout: Path) -> list[str]:
    return [item["digest"] for item in image_layout.read_manifest(layout)["layers"]]


def test_the_engine_is_sent_only_what_it_lacks(first: Rebuilt, second: Rebuilt, names: list[str]) -> None:
    image_loading.load_layout(first.layout, names[0])
    engine_layers = image_loading.list_held_blobs([first.layout])
    image_loading.load_layout(second.layout, names[1], [first.layout])

    assert set(layers(first.layout)) <= engine_layers
    assert image_loading.is_whole(second.said.digest, names[1])
    last_line = run_to_end(names[1], ["tail", "-1", "/opt/drydock/entrypoints/verbs/dispatch.py"])
    assert last_line == b"# edit 1\n"


def test_an_image_that_lost_a_blob_on_the_way_is_not_taken_for_whole(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "layer.tar").write_bytes(layouts.tar([("new", os.urandom(1000), {})]))
    layout = tmp_path / "layout"  # not of a build: its blobs are in the engine, whose BuildKit wrote them
    digest = image_layout.write_layout(layout, tmp_path / "layer.tar", "linux/amd64", 0, "tests")
    with contextlib.suppress(EngineError):  # some engines say that blobs are missing
        image_loading.send_layout(layout, names[0], set(layers(layout)))
    assert not image_loading.is_whole(digest, names[0])

    image_loading.load_layout(layout, names[0])
    assert image_loading.is_whole(digest, names[0])


def test_after_an_edit_the_foundation_stays_and_one_small_layer_is_new(first: Rebuilt, second: Rebuilt) -> None:
    assert "foundation" in first.said.phases
    assert "foundation" not in second.said.phases
    new = set(layers(second.layout)) - set(layers(first.layout))
    assert len(new) == 1
    assert (
        image_layout.path_of_blob(second.layout, new.pop()).stat().st_size < 2_000_000
    )  # the entrypoint: its sources and their bytecode
    assert len(layers(first.layout)) == len(layers(second.layout))


def test_the_image_is_the_one_that_a_whole_build_makes_and_stock_buildx_too(
    rebuilds: Rebuilds, second: Rebuilt
) -> None:
    in_one_go = rebuilds.folder / "in one go"
    in_one_go.mkdir()
    buildx.run_bake(build.bake_file(rebuilds.job, build.fetch_contexts(rebuilds.job), in_one_go))
    whole = rebuilds.build("whole", no_cache=True)

    assert "foundation" in whole.said.phases
    assert whole.said.digest == second.said.digest == image_layout.read_digest(in_one_go)
    assert (second.layout / "index.json").read_text().count("sha256:") == 1
    assert image_layout.is_sound_layout(second.layout)
    blobs = [
        sorted(path.name for path in layout.rglob("sha256/*")) for layout in (second.layout, whole.layout, in_one_go)
    ]
    assert blobs[0] == blobs[1] == blobs[2]


def test_on_a_foundation_nothing_is_built_of_wheels(rebuilds: Rebuilds, second: Rebuilt) -> None:
    assert image_layout.is_sound_layout(second.layout)
    (wheel,) = rebuilds.job.lock.platforms["linux/amd64"].layers["vllm"]
    path = default_store().path(wheel.sha256)
    wheel_backup = path.rename(rebuilds.folder / "wheel")
    try:
        rebuilds.edit(2)
        third = rebuilds.build("third")
    finally:
        wheel_backup.rename(path)

    assert "foundation" not in third.said.phases
    assert third.said.digest != second.said.digest


def test_on_a_pulled_foundation_nothing_is_built_of_packages_either(
    rebuilds: Rebuilds, second: Rebuilt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert image_layout.is_sound_layout(second.layout)
    job, elsewhere = rebuilds.job, rebuilds.folder / "elsewhere"
    whole = rebuilds.build("before")
    shutil.copytree(job.foundation, elsewhere, copy_function=os.link)
    for folder in (job.foundation, job.layout):
        shutil.rmtree(folder)
    monkeypatch.setattr(rootfs, "_make_base_layout", lambda *_: pytest.fail("the base is made of packages"))
    bases = rebuilds.small.cache / "bases"
    shared = bases.rename(rebuilds.small.cache / "shared bases")
    try:
        pulled = build.build_image(
            job, into_engine=False, pull=lambda to: bool(shutil.copytree(elsewhere, to.foundation))
        )
        shutil.rmtree(bases)
    finally:
        shared.rename(bases)

    assert {"pull", "build"} <= pulled.phases.keys()
    assert "foundation" not in pulled.phases
    assert pulled.digest == whole.said.digest


def test_a_foundation_that_the_disk_changed_is_made_anew(rebuilds: Rebuilds, second: Rebuilt) -> None:
    below = rebuilds.job.foundation
    blob = image_layout.path_of_blob(below, layers(below)[-1])
    content = blob.read_bytes()
    blob.unlink()  # other layouts have the same file
    blob.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    rebuilds.edit(3)
    again = rebuilds.build("again")

    assert "foundation" in again.said.phases
    assert image_layout.is_sound_layout(again.layout)
    assert set(layers(second.layout)) & set(layers(again.layout)) >= set(layers(below))


def test_only_an_image_with_a_replaced_context_has_the_label_that_names_it(rebuilds: Rebuilds, first: Rebuilt) -> None:
    assert first.said.digest
    folder = rebuilds.folder / "my entrypoints"
    shutil.copytree(rebuilds.small.root / "entrypoints", folder)
    job = replace(rebuilds.job, context_overrides={"entrypoints": str(folder)})
    shutil.rmtree(job.foundation)  # a stand-in's build makes it, for others too
    replaced = build.build_image(job, into_engine=False)
    labels = image_layout.read_config(Path(replaced.layout))["config"]["Labels"]
    below = image_layout.read_config(job.foundation)["config"]

    assert labels[STAND_IN] == "entrypoints"
    assert replaced.image.startswith(f"drydock-stand-in/{VARIANT}:")
    assert STAND_IN not in below.get("Labels", {})
    plain = rebuilds.build("without stand-ins")
    assert "foundation" not in plain.said.phases
    assert plain.said.image.startswith(f"drydock/{VARIANT}:")
    image_labels = image_layout.read_config(plain.layout)["config"]["Labels"]
    assert image_labels == {name: value for name, value in labels.items() if name != STAND_IN}
