"""Reading the measured images, and the plain image."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from bench import PARTS, bench_page, build_rows, compared_images, plain_image, run, serve_rows, ship_rows, size_rows
from bench.compared_servers import is_right_answer
from drydock.build.build_job import prepare_job
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock import lockfile
from drydock.model.bases import DebianBase
from drydock.model.locked import LockedDebianBase
from drydock.oci import image_layout
from drydock.prove.demo import QUESTION


def layer(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 700
            archive.addfile(entry, io.BytesIO(bytes(700)))
    return path


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    folder = tmp_path / "layout"
    folder.mkdir()
    image_layout.write_layout(
        folder, layer(tmp_path / "a.tar", "opt/venv/lib/python3.11/site-packages/vllm/x"), "linux/amd64", 0, "a"
    )
    return folder


def test_a_layer_is_read_with_its_sizes_and_whether_vllm_is_in_it(layout: Path) -> None:
    content, config = compared_images.read_blobs(layout)

    assert content.unpacked == 512 + 1024
    assert content.size == image_layout.path_of_blob(layout, content.digest).stat().st_size
    assert content.vllm
    assert config.unpacked == 0


def test_the_plain_image_has_the_same_wheels_and_what_pip_adds() -> None:
    ours = {
        wheel.name: wheel
        for wheels in prepare_job(DRYDOCK, "cpu").lock.platforms[plain_image.PLATFORM].layers.values()
        for wheel in wheels
    }
    theirs = {wheel.name: wheel for wheel in plain_image.list_lock_wheels(plain_image.make_plain_lock())}

    assert theirs.items() >= {name: ours[name] for name in ours.keys() - set(plain_image.UNAVAILABLE)}.items()
    assert not theirs.keys() & set(plain_image.UNAVAILABLE)
    left_out = {exclusion.name for exclusion in prepare_job(DRYDOCK, "cpu").variant.exclude} - set(
        plain_image.UNAVAILABLE
    )
    assert theirs.keys() - ours.keys() >= left_out >= {"triton"}


def test_the_base_of_the_plain_image_has_a_compiler() -> None:
    base = lockfile.read_lock(plain_image.LOCK).platforms[plain_image.PLATFORM].base
    assert isinstance(base, LockedDebianBase)
    assert set(plain_image.PACKAGES) <= {package.name for package in base.packages}
    assert isinstance(plain_image.make_plain_variant().base, DebianBase)


def test_the_plain_build_is_stock_buildx() -> None:
    command = plain_image.make_plain_command(
        Path("somewhere"), {"base": "oci-layout:///b@sha256:1", "wheels": "/w"}, "--load"
    )
    assert command[:3] == ["docker", "buildx", "build"]
    assert "wheels=/w" in command
    assert command[-2:] == ["--load", "somewhere"]


def test_an_edit_changes_one_file_and_each_edit_is_different(tmp_path: Path) -> None:
    first, second = (
        compared_images.copy_edited_entrypoint(tmp_path, 1),
        compared_images.copy_edited_entrypoint(tmp_path, 2),
    )
    before = (ROOT / "entrypoints" / compared_images.EDITED).read_bytes()

    assert (first / compared_images.EDITED).read_bytes() != (second / compared_images.EDITED).read_bytes()
    assert (first / compared_images.EDITED).read_bytes().startswith(before)
    assert (first / "accelerators.py").read_bytes() == (second / "accelerators.py").read_bytes()
    assert (compared_images.copy_edited_plain(tmp_path, 1) / "Dockerfile").read_text() == (
        plain_image.FOLDER / "Dockerfile"
    ).read_text()


def test_layers_in_several_variants_count_as_shared() -> None:
    variants = read_matrix(DRYDOCK)
    rows = {row.what.rpartition(", ")[2]: row for row in size_rows.compare_shared_blobs(variants)}

    assert {"cuda", "ascend linux/arm64"} <= set(rows), "a row for each platform that several variants are locked for"
    assert all(row.theirs and 0 <= row.ours.median <= row.theirs.median for row in rows.values())
    alone = tuple(variant for variant in variants if variant.id == "cpu-vllm0.32")
    assert list(size_rows.compare_shared_blobs(alone)) == []
    (twice,) = size_rows.compare_shared_blobs((*alone, alone[0].model_copy(update={"stack": "again"})))
    assert twice.value == 1
    assert "stores 0.50 of the sum" in twice.note
    assert "one variant only" not in twice.note


def test_an_upgrade_pulls_no_layer_that_the_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    variants = read_matrix(DRYDOCK)
    upgrades = [*size_rows.compare_upgrades(variants)]
    assert all(row.theirs and 0 < row.ours.median <= row.theirs.median for row in upgrades)
    assert upgrades[0].ours.median < 0.75 * (upgrades[0].theirs or upgrades[0].ours).median, (
        "most of CUDA's libraries stay"
    )
    name = size_rows.UPGRADES[0][0]
    monkeypatch.setattr(size_rows, "UPGRADES", [(name, name)])
    assert [row.ours.median for row in size_rows.compare_upgrades(variants)] == [0]


def test_a_layer_depends_on_its_python_version_and_wheels_limit_sharing() -> None:
    (one,) = (variant for variant in read_matrix(DRYDOCK) if variant.id == "cpu-vllm0.32")
    pins = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, one.id)).platforms[size_rows.PLATFORM]
    mine, newer = size_rows.make_held(one, pins), size_rows.make_held(one.model_copy(update={"python": "3.12"}), pins)
    base = sum(deb.size for deb in pins.base.packages) if isinstance(pins.base, LockedDebianBase) else 0

    assert size_rows.count_repeated_bytes([mine.blobs, newer.blobs]) == 2 * base > 0
    assert sum(mine.blobs.values()) == sum(mine.wheels.values())
    bumped = {**pins.layers, "vllm": (pins.layers["vllm"][0].model_copy(update={"sha256": "0" * 64}),)}
    after = size_rows.make_held(one, pins.model_copy(update={"layers": bumped}))
    changed = {key for key in after.blobs if key not in mine.blobs}
    assert [after.blobs[key] for key in changed] == [pins.layers["vllm"][0].size], "a vLLM bump changes its layer alone"


def test_stored_bytes_are_counted_in_a_registrys_folder(tmp_path: Path) -> None:
    blob = tmp_path / "data" / "docker" / "registry" / "v2" / "blobs" / "sha256" / "ab" / "abc" / "data"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(bytes(300))
    assert ship_rows.count_stored_bytes(tmp_path) == 300


def test_every_part_of_the_page_can_be_measured() -> None:
    assert set(run.BENCHES) == set(bench_page.TITLES)
    assert tuple(run.BENCHES) == PARTS
    assert set(build_rows.NOTES) == {
        build_rows.EMPTY,
        build_rows.FIRST,
        build_rows.EDITED,
        build_rows.NOTHING,
        build_rows.PROCESS,
    }


def test_there_are_enough_prompts_and_all_differ() -> None:
    assert len(set(serve_rows.PROMPTS)) == len(serve_rows.PROMPTS) >= max(serve_rows.REQUESTS.values())
    assert QUESTION not in serve_rows.PROMPTS


def test_only_the_answer_that_transformers_gives_is_correct() -> None:
    assert is_right_answer("The capital city of France is Paris.")
    assert not is_right_answer("L'Étoile, la Marseillaise")


def test_visits_become_rows_with_medians_and_answers() -> None:
    ours = serve_rows.Visit("ours", ("a", "b"), {1: 30.0, 8: 200.0, 32: 600.0})
    eager = serve_rows.Visit("plain eager", ("a", "c"), {1: 20.0, 8: 100.0, 32: 500.0})
    default = serve_rows.Visit("plain default", ("a", "b"), {1: 30.0, 8: 100.0, 32: 500.0})
    bare = ours._replace(name="without the guard")
    rows = serve_rows.rows_of([ours, eager, default, bare, ours._replace(speeds={1: 40.0, 8: 200.0, 32: 600.0})])

    assert [(row.what.split(", ")[1], row.against, row.met) for row in rows[:4]] == [
        ("1 client", "plain eager", True),
        ("1 client", "plain default", None),  # 1.0 and 1.33 times: on both sides of 1.1
        ("1 client", "without the guard", True),
        ("8 clients", "plain eager", True),
    ]
    assert rows[0].ours.median == 35
    assert rows[0].note.startswith("1 of 2 greedy answers")
    assert rows[6].met is False
