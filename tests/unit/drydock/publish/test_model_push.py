"""A model's folder as layers: they depend on names and bytes alone, and are real tar files."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import DrydockError, FetchError, InputError
from drydock.core.files import format_json
from drydock.inputs.models import MANIFEST, ModelFile, ModelFolder
from drydock.model.record import dump_record
from drydock.publish import model_push
from drydock.publish.model_push import TarContent, layers_of
from drydock.registry.blobs import FileContent
from tests.support.model_folder import FILES, write


def recorded(folder: Path) -> None:
    """Write what `model pull` leaves in a folder."""
    files = {name: ModelFile(sha256=hashlib.sha256(data).hexdigest(), size=len(data)) for name, data in FILES.items()}
    model_folder = ModelFolder(schema_=1, hub="Hugging Face", name="org/Tiny-1B", revision="0" * 40, files=files)
    (folder / MANIFEST).write_text(format_json(dump_record(model_folder)))


def content(layers: Mapping[str, TarContent]) -> list[dict[str, bytes]]:
    """Return the files of each layer, as tarfile reads them."""
    files = []
    for layer in layers.values():
        with tarfile.open(fileobj=io.BytesIO(b"".join(layer.pieces(0, layer.size))), mode="r:") as archive:
            files.append({entry.name: archive.extractfile(entry).read() for entry in archive})  # type: ignore[union-attr]
            entry_fields = {(entry.mode, entry.mtime, entry.uid, entry.uname) for entry in archive}
            assert entry_fields == {(0o644, 0, 0, "")}
    return files


def test_each_file_of_weights_is_a_layer_and_the_small_files_and_their_list_are_the_first(tmp_path: Path) -> None:
    model_folder, layers = layers_of(write(tmp_path / "m"))
    first, *weights = content(layers)
    assert first == {name: data for name, data in FILES.items() if not name.endswith("tensors")} | {
        MANIFEST: format_json(dump_record(model_folder)).encode()
    }
    assert weights == [{name: data} for name, data in sorted(FILES.items()) if name.endswith("tensors")]
    for digest, layer in layers.items():
        assert digest == f"sha256:{hashlib.sha256(b''.join(layer.pieces(0, layer.size))).hexdigest()}"


def reversed_order(folder: Path) -> None:
    for number, name in enumerate(reversed(FILES)):
        path = folder / name
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        path.chmod(0o600 + number)
        os.utime(path, (number, number))


def linked(folder: Path) -> None:
    for name in FILES:
        real = folder / f"{name}.real"
        (folder / name).rename(real)
        (folder.parent.parent / "blobs").mkdir(exist_ok=True)
        real.rename(folder.parent.parent / "blobs" / name.replace("/", "-"))
        (folder / name).symlink_to(folder.parent.parent / "blobs" / name.replace("/", "-"))


def cloned(folder: Path) -> None:
    write(folder, {".git/config": b"https://user:secret@hub.example", ".cache/huggingface/download/a.metadata": b"1"})


@pytest.mark.parametrize("change", [reversed_order, linked, cloned])
def test_the_same_files_have_the_same_digests(tmp_path: Path, change: Callable[[Path], None]) -> None:
    other_folder = write(tmp_path / "other" / "snapshots" / "0123")
    change(other_folder)
    assert [*layers_of(write(tmp_path / "m"))[1]] == [*layers_of(other_folder)[1]]


def test_any_part_of_a_layer_can_be_sent_again(tmp_path: Path) -> None:
    first, *_ = layers_of(write(tmp_path / "m"))[1].values()
    whole = b"".join(first.pieces(0, first.size))
    assert len(whole) == first.size
    for start, end in combinations(range(0, first.size, 211), 2):
        assert b"".join(first.pieces(start, end)) == whole[start:end]


def test_weights_share_layers_where_there_are_more_than_engines_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_push, "MOST_LAYERS", 2)
    names = [f"model-{number}.safetensors" for number in range(5)]
    folder = write(tmp_path / "m", {"config.json": b"{}", **{name: name.encode() for name in names}})
    assert [[*layer] for layer in content(layers_of(folder)[1])] == [["config.json", MANIFEST], names[:3], names[3:]]


def test_a_file_beyond_the_8_gib_of_old_tar_headers_has_a_header(tmp_path: Path) -> None:
    layer = TarContent({"model.safetensors": FileContent(tmp_path / "none", 9 << 30)})
    head = next(layer.pieces(0, 4096))
    with tarfile.open(fileobj=io.BytesIO(head), mode="r|") as archive:
        assert next(iter(archive)).size == 9 << 30


def test_a_file_that_an_engine_takes_for_a_removal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sub/\.wh\.x: not possible in an image"):
        layers_of(write(tmp_path / "m", {**FILES, "sub/.wh.x": b""}))


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, scandir = write(tmp_path / "m"), os.scandir

    def refused(path: str) -> Any:
        if str(path).endswith("/sub"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(InputError, match="m/sub: Permission denied"):
        layers_of(folder)


CHANGED: dict[str, tuple[Callable[[Path], Any], type[DrydockError], str]] = {
    "weights": (lambda model: (model / "a.safetensors").write_bytes(b"x"), FetchError, "a.safetensors: missing, or ch"),
    "a small file": (lambda model: (model / "config.json").write_bytes(b"[]"), FetchError, "config.json: missing, or"),
    "no file": (lambda model: (model / "sub/vocab.txt").unlink(), FetchError, "vocab.txt: missing, or changed"),
    "one more": (lambda model: (model / "code.py").write_text(""), InputError, "does not list 'code.py'"),
    "a link": (lambda model: (model / "x").symlink_to("/etc/hostname"), InputError, "outside of the model's folder"),
    "no model": (lambda model: (model / "config.json").unlink(), InputError, "found no config.json"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_pulled_model_that_was_changed_is_not_pushed(tmp_path: Path, name: str) -> None:
    change, error, message = CHANGED[name]
    folder = write(tmp_path / "m")
    recorded(folder)
    assert layers_of(folder)[0].name == "org/Tiny-1B"
    change(folder)
    with pytest.raises(error, match=message):
        layers_of(folder)
