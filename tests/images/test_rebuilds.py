"""After an edit, only what is new is made and loaded; the image is the one that a whole build makes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from drydock import build, buildx, loading, oci, rewriting
from drydock.errors import EngineError
from tests.images.small import VARIANT, Small

NAME = "drydock-test/rebuilt"


class Rebuilds:
    """Builds the small image from changing entrypoints."""

    def __init__(self, small: Small, folder: Path) -> None:
        self.job = build.prepare(VARIANT, root=small.root)
        self.contexts = build.inputs(self.job)
        self.folder = folder

    def export(self, name: str, entrypoints: Path | None = None, like: Path | None = None) -> Path:
        """Build into a folder of that name."""
        layout = self.folder / name
        layout.mkdir()
        contexts = {**self.contexts, **({"entrypoints": str(entrypoints)} if entrypoints else {})}
        rewriting.export(build.bake_file(self.job, contexts, layout), layout, like)
        return layout

    def edited(self, number: int) -> Path:
        """Return other entrypoints."""
        copy = self.folder / f"entrypoints-{number}"
        shutil.copytree(self.contexts["entrypoints"], copy)
        with (copy / "cli.py").open("a") as module:
            module.write(f"\n# edit {number}\n")
        return copy


@pytest.fixture(scope="module")
def rebuilds(job: build.Job, tmp_path_factory: pytest.TempPathFactory) -> Rebuilds:
    build.inputs(job)  # the small image's base is the real one
    return Rebuilds(Small(tmp_path_factory.mktemp("small"), job.lock), tmp_path_factory.mktemp("rebuilds"))


@pytest.fixture(scope="module")
def first(rebuilds: Rebuilds) -> Path:
    return rebuilds.export("first", rebuilds.edited(0))


@pytest.fixture(scope="module")
def second(rebuilds: Rebuilds, first: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewriting, "WORTH_ASKING", 1)  # the small image's layers are of a few kilobytes
        yield rebuilds.export("second", rebuilds.edited(1), first)


@pytest.fixture
def names() -> Iterator[list[str]]:
    found = [f"{NAME}:{number}" for number in range(2)]
    yield found
    client = docker.from_env()
    for name in found:
        with contextlib.suppress(docker.errors.ImageNotFound):
            client.images.remove(name, force=True)


def test_a_build_after_an_edit_is_the_image_that_a_whole_build_makes(
    rebuilds: Rebuilds, first: Path, second: Path
) -> None:
    whole = rebuilds.export("whole", rebuilds.folder / "entrypoints-1")

    assert oci.read_digest(second) == oci.read_digest(whole) != oci.read_digest(first)
    assert (second / "index.json").read_text().count("sha256:") == 1
    assert oci.intact(second)
    assert sorted(path.name for path in (second / "blobs" / "sha256").iterdir()) == sorted(
        path.name for path in (whole / "blobs" / "sha256").iterdir()
    )


def test_the_layers_below_the_edited_one_were_left_alone(first: Path, second: Path) -> None:
    before, after = (oci.read_manifest(layout)["layers"] for layout in (first, second))
    memory = rewriting.Memory.model_validate_json((second / rewriting.MEMORY).read_bytes())
    kept = [layer.descriptor for layer in memory.usable]

    assert kept == before[: len(kept)] == after[: len(kept)]
    assert before[len(kept)] != after[len(kept)]
    assert [layer.descriptor for layer in memory.layers] == after


def test_the_engine_is_sent_only_what_it_lacks(first: Path, second: Path, names: list[str]) -> None:
    loading.load(first, names[0])
    held = loading.held([first])
    loading.load(second, names[1], [first])
    client = docker.from_env()

    assert {item["digest"] for item in oci.read_manifest(first)["layers"]} <= held
    assert loading.is_whole(oci.read_digest(second))
    said = client.containers.run(names[1], ["tail", "-1", "/opt/drydock/entrypoints/cli.py"], remove=True)
    assert said == b"# edit 1\n"


def test_an_image_that_lost_a_blob_on_the_way_is_not_taken_for_whole(second: Path, names: list[str]) -> None:
    missing = {item["digest"] for item in oci.descriptors(second)[2:]}
    with contextlib.suppress(EngineError):  # some engines say that blobs are missing
        loading.send(second, names[0], missing)
    assert not loading.is_whole(oci.read_digest(second))

    loading.load(second, names[0])
    assert loading.is_whole(oci.read_digest(second))


def test_what_buildx_says_of_a_build_names_the_layers_that_buildkit_holds(rebuilds: Rebuilds, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    layout.mkdir()
    said = buildx.bake(build.bake_file(rebuilds.job, rebuilds.contexts, layout))

    count = len(oci.read_manifest(layout)["layers"])
    assert rewriting.held(said[VARIANT], count) is not None
