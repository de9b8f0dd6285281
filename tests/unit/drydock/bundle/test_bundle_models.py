"""A model travels in a bundle: every file by its hash, into a new folder, and only if someone vouches for it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.bundle import bundle_records
from drydock.bundle.archive import Archive, index_of, write_archive
from drydock.bundle.bundle_records import BundledModel, BundleOrigin, make_artifact, make_blob
from drydock.bundle.create import format_created_bundle
from drydock.bundle.load import format_loaded_bundle
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, InputError
from drydock.core.files import format_json
from drydock.inputs.models import MANIFEST, ModelFile, ModelFolder, read_folder
from drydock.model.record import dump_record
from drydock.publish.model_push import layers_of
from tests.support.called_verbs import create_bundle, load_bundle
from tests.support.hosts.trees import write_tree

FILES = {"config.json": b"{}", "model.safetensors": bytes(1000), "sub/vocab.txt": b"a"}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "here" / "Tiny-1B"
    return write_tree(folder, FILES)


def seal(model: Path) -> None:
    """Write what `model pull` leaves in a folder."""
    files = {name: ModelFile(sha256=make_blob(data).digest[7:], size=len(data)) for name, data in FILES.items()}
    folder = ModelFolder(schema_=1, hub="Hugging Face", name="org/Tiny-1B", revision="0" * 40, files=files)
    (model / MANIFEST).write_text(format_json(dump_record(folder)))


def test_a_pulled_model_arrives_as_it_was_pulled(model: Path, tmp_path: Path) -> None:
    seal(model)
    created = create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[model])
    options = {"digest": created.bundle, "models": tmp_path / "there"}
    loaded = load_bundle(DRYDOCK, tmp_path / "b.tar", options)

    assert f"model Tiny-1B: org/Tiny-1B of Hugging Face at {'0' * 40}" in format_created_bundle(created)
    assert loaded.models == (str(tmp_path / "there" / "Tiny-1B"),)
    assert {name: (tmp_path / "there" / "Tiny-1B" / name).read_bytes() for name in FILES} == FILES
    assert read_folder(tmp_path / "there" / "Tiny-1B") == read_folder(model)
    assert load_bundle(DRYDOCK, tmp_path / "b.tar", options).models == loaded.models
    (tmp_path / "there" / "Tiny-1B" / "config.json").write_text("[]")
    with pytest.raises(FetchError, match=r"config\.json: missing, or changed"):
        load_bundle(DRYDOCK, tmp_path / "b.tar", options)


def test_a_folder_of_no_hub_is_taken_as_it_is(model: Path, tmp_path: Path) -> None:
    created = create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[model])
    load_bundle(DRYDOCK, tmp_path / "b.tar", {"digest": created.bundle, "models": tmp_path / "there"})

    model_folder = read_folder(tmp_path / "there" / "Tiny-1B")
    assert (model_folder.hub, model_folder.files.keys()) == ("", FILES.keys())
    assert [*layers_of(tmp_path / "there" / "Tiny-1B")[1]] == [*layers_of(model)[1]]  # `model push` there: one digest


def piped(model: Path) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda model: (model / "model.safetensors").write_bytes(b"\1" * 1000), FetchError, "was changed on the disk"),
        (lambda model: (model / "code.py").write_text("x"), InputError, "does not list 'code.py'"),
        (lambda model: (model / "config.json").unlink(), InputError, "found no config.json"),
        (piped, InputError, "found a pipe"),
    ],
)
def test_a_pulled_model_that_was_changed_is_not_bundled(
    model: Path, tmp_path: Path, change: Callable[[Path], Any], error: type[Exception], message: str
) -> None:
    seal(model)
    change(model)
    with pytest.raises(error, match=message):
        create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[model])

    assert not (tmp_path / "b.tar").exists()


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(os.path.relpath(path))


ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link to a file of the machine": (
        lambda path: path.symlink_to("/etc/hostname"),
        "a link to /etc/hostname: /etc/hostname is outside of the model's folder",
    ),
    "a link to a folder of the machine": (
        lambda path: path.symlink_to("/etc"),
        "a link to /etc: /etc is outside of the model's folder",
    ),
    "a link to another model": (lambda path: path.symlink_to("../other/key"), "outside of the model's folder"),
    "a link to nothing": (lambda path: path.symlink_to("gone"), "a link to gone: No such file or directory"),
    "a link to itself": (lambda path: path.symlink_to("x"), "Too many levels of symbolic links"),
    "a link to a folder": (lambda path: path.symlink_to("sub"), "a link to sub: expected a file, found a folder"),
    "a pipe": (os.mkfifo, "x: expected a file, found a pipe, socket or device"),
    "a socket": (bind, "x: expected a file, found a pipe, socket or device"),
}


@pytest.mark.parametrize("name", ODD)
def test_only_files_of_the_model_are_bundled(model: Path, tmp_path: Path, name: str) -> None:
    place, message = ODD[name]
    (model.parent / "other").mkdir()
    (model.parent / "other" / "key").write_text("secret")
    place(model / "x")
    with pytest.raises(InputError, match=message):
        create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[model])

    assert not (tmp_path / "b.tar").exists()


def test_a_snapshot_in_the_cache_of_hugging_face_is_bundled_with_the_files_that_it_links_to(
    model: Path, tmp_path: Path
) -> None:
    snapshot = tmp_path / "models--org--Tiny-1B" / "snapshots" / "0123abc"
    for number, name in enumerate(FILES):
        blob_ = snapshot.parents[1] / "blobs" / str(number)
        blob_.parent.mkdir(parents=True, exist_ok=True)
        (model / name).rename(blob_)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(os.path.relpath(blob_, (snapshot / name).parent))
    created = create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[snapshot])
    load_bundle(DRYDOCK, tmp_path / "b.tar", {"digest": created.bundle, "models": tmp_path / "there"})

    there = tmp_path / "there" / "0123abc"
    assert {name: (there / name).read_bytes() for name in FILES} == FILES
    assert not any(path.is_symlink() for path in there.rglob("*"))


def test_two_models_of_one_name_do_not_fit_into_one_folder(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two folders have the name Tiny-1B"):
        create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[model, model])


def test_without_a_folder_models_stay_in_the_bundle(model: Path, tmp_path: Path) -> None:
    created = create_bundle(DRYDOCK, [], tmp_path / "b.tar", models=[model])
    loaded = load_bundle(DRYDOCK, tmp_path / "b.tar", {"digest": created.bundle})

    assert "model Tiny-1B: not written; --models FOLDER writes it" in format_loaded_bundle(loaded)


@pytest.mark.parametrize("name", ["../up", "/etc/cron.d/x", "a/../../b", "a\x1b]0;x"])
def test_a_hostile_name_in_a_bundle_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    data = make_blob(b"x")
    files = {name: {"sha256": data.digest[7:], "size": 1}}
    folder = {"schema": 1, "hub": "", "name": "m", "revision": "", "files": files}
    origin = dump_record(BundleOrigin(repository="", commit="", changed=False))
    bundle = {"schema": 1, "origin": origin, "images": [], "models": [{"name": "m", "folder": folder}]}
    config = make_blob(json.dumps(bundle).encode())
    bundle_artifact = make_artifact(bundle_records.BUNDLE, [], config=config.descriptor(bundle_records.BUNDLE))
    entry = {**bundle_artifact.descriptor(), "artifactType": bundle_records.BUNDLE}
    write_archive(
        tmp_path / "b.tar", index_of({bundle_artifact.digest: entry}), [data, config, make_blob(bundle_artifact.data)]
    )
    digest = Archive(tmp_path / "b.tar").digest
    with pytest.raises(InputError):
        load_bundle(DRYDOCK, tmp_path / "b.tar", {"digest": digest, "models": tmp_path / "there"})

    assert not (tmp_path / "there").exists()
    assert not (tmp_path / "up").exists()


def test_the_name_of_a_models_folder_is_one_plain_name() -> None:
    folder = ModelFolder(schema_=1, hub="", name="m", revision="", files={})
    for name in ("..", "a/b", ".hidden", ""):
        with pytest.raises(ValueError, match="should match pattern"):
            BundledModel(name=name, folder=folder)
