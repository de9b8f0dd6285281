"""Cache entries as an image layout: export, import, and errors."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from entrypoints.cache.artifact import KIND, pack_layout
from entrypoints.cache.entries import list_entries, read_entry_manifest
from entrypoints.core.errors import EntrypointError
from entrypoints.core.tar import members, open_tar
from entrypoints.request.arguments import parse_arguments
from entrypoints.verbs.cache_verb import run_cache
from tests.support.damage import fuzz, survives_damage
from tests.support.small_disk import small_disk
from tests.unit.entrypoints.cache.test_entries import ENTRY, READY, names, put


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = put(tmp_path / "source", kernel="compiled", lock="")
    (path / "deep").mkdir()
    (path / "deep" / "launch.sh").write_text("run")
    (path / "deep" / "launch.sh").chmod(0o750)
    os.utime(path / "deep" / "launch.sh", (1000, 1000))
    put(tmp_path / "source", {**READY, "ready": 0}, "unfinished")
    return tmp_path / "source"


def cache(root: Path, *tokens: str) -> None:
    assert run_cache(parse_arguments(("cache", *tokens)), {"DRYDOCK_CACHE_DIR": str(root)}) == 0


@pytest.mark.parametrize("name", ["cache.tar", "cache"])
def test_an_exported_entry_is_imported_unchanged(
    source: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cache(source, "export", str(tmp_path / name))
    cache(tmp_path / "target", "import", str(tmp_path / name))
    imported_entry = tmp_path / "target" / "compiled" / ENTRY.name
    assert read_entry_manifest(str(imported_entry)) == READY
    assert (imported_entry / "kernel").read_text() == "compiled"
    assert (imported_entry / "deep" / "launch.sh").stat().st_mtime == 1000
    assert os.access(imported_entry / "deep" / "launch.sh", os.X_OK)
    assert not (imported_entry / "lock").exists()
    assert [Path(entry.path).name for entry in list_entries(str(tmp_path / "target"))] == [ENTRY.name]
    assert f"{ENTRY.name}: imported" in capsys.readouterr().err
    assert not list(tmp_path.rglob(".*"))
    cache(tmp_path / "target", "import", str(tmp_path / name))
    assert f"{ENTRY.name}: skipped: already present" in capsys.readouterr().err


def test_the_same_entry_gives_the_same_artifact(source: Path, tmp_path: Path) -> None:
    for name in ("one.tar", "other.tar"):
        cache(source, "export", str(tmp_path / name))
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "other.tar").read_bytes()


def test_the_layout_is_as_the_specification_says(source: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    cache(source, "export", str(layout))
    index = json.loads((layout / "index.json").read_text())
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    manifest = blob(layout, index["manifests"][0])
    config = blob(layout, manifest["config"])
    assert manifest["artifactType"] == index["manifests"][0]["artifactType"] == KIND
    (layer,) = manifest["layers"]
    packed = (layout / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")).read_bytes()
    assert len(packed) == layer["size"]
    plain = gzip.decompress(packed)
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        tar_members = tar.getmembers()
    assert {member.name.split("/")[1] for member in tar_members} == {ENTRY.name}
    assert {(member.uid, member.gid) for member in tar_members} == {(0, 0)}


def blob(layout: Path, descriptor: dict[str, Any]) -> Any:
    data = (layout / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")).read_bytes()
    assert len(data) == descriptor["size"]
    return json.loads(data)


def test_only_ready_entries_are_exported(tmp_path: Path) -> None:
    put(tmp_path, {**READY, "ready": 0}, "unfinished")
    with pytest.raises(EntrypointError, match="no ready entries"):
        cache(tmp_path, "export", "-")
    put(tmp_path)
    with pytest.raises(EntrypointError, match="no ready entry 'unfinished'"):
        cache(tmp_path, "export", "-", "unfinished")


# --- what others made -----------------------------------------------------------------------------------------------


def made(
    layout: Path, contents: Iterable[tarfile.TarInfo], kind: str = "application/vnd.oci.image.layer.v1.tar"
) -> None:
    """Write a layout of one layer with these members, each with the bytes of a ready manifest."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    buffer = io.BytesIO()
    data = json.dumps(READY).encode()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in contents:
            member.size = len(data) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(data))
    layer = stored(layout, buffer.getvalue())
    manifest = stored(layout, json.dumps({"layers": [{**layer, "mediaType": kind}]}).encode())
    nested = stored(layout, json.dumps({"manifests": [manifest]}).encode())
    (layout / "index.json").write_text(json.dumps({"manifests": [nested]}))


def stored(layout: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_an_image_of_a_registry_tool_is_imported(tmp_path: Path) -> None:
    made(tmp_path / "layout", [member("./compiled/e/kernel"), member("compiled/e/entry.json"), member("etc/passwd")])
    cache(tmp_path / "cache", "import", str(tmp_path / "layout"))
    assert names(tmp_path / "cache" / "compiled") == ["e"]


@pytest.mark.parametrize("name", ["compiled/../../evil", "/compiled/e/x", "compiled/e/../../../evil"])
def test_paths_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    made(tmp_path / "layout", [member("compiled/e/entry.json"), member(name)])
    with pytest.raises(EntrypointError, match="points outside the folder"):
        cache(tmp_path / "cache", "import", str(tmp_path / "layout"))
    assert not (tmp_path / "cache" / "compiled").exists()


def test_links_and_devices_are_not_extracted(tmp_path: Path) -> None:
    links = (member("compiled/e/l", tarfile.SYMTYPE, "/etc"), member("compiled/e/h", tarfile.LNKTYPE, "/etc/passwd"))
    made(tmp_path / "layout", [member("compiled/e/entry.json"), *links, member("compiled/e/d", tarfile.CHRTYPE)])
    cache(tmp_path / "cache", "import", str(tmp_path / "layout"))
    assert names(tmp_path / "cache" / "compiled" / "e") == ["entry.json"]


def test_a_damaged_blob_is_named(source: Path, tmp_path: Path) -> None:
    cache(source, "export", str(tmp_path / "layout"))
    layer = max((tmp_path / "layout" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    layer.write_bytes(layer.read_bytes()[:-1])
    with pytest.raises(EntrypointError, match=f"{layer.name}: found the digest"):
        cache(tmp_path / "cache", "import", str(tmp_path / "layout"))


def test_an_invalid_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_text("nothing")
    with pytest.raises(EntrypointError, match=r"x\.tar"):
        cache(tmp_path / "cache", "import", str(tmp_path / "x.tar"))
    made(tmp_path / "layout", [member("compiled/e/entry.json")], "application/vnd.oci.image.layer.v1.tar+zstd")
    with pytest.raises(EntrypointError, match="zstd"):
        cache(tmp_path / "cache", "import", str(tmp_path / "layout"))


# --- list and remove ------------------------------------------------------------------------------------------------


def test_entries_are_listed(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache(source, "list", "--json")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[ENTRY.name]["state"] == "ready"
    assert rows["unfinished"]["state"] == "unfinished"
    cache(source)
    assert f"{ENTRY.name}  ready" in capsys.readouterr().out


def test_an_entry_is_removed_by_name(source: Path) -> None:
    cache(source, "remove", "unfinished")
    assert not (source / "compiled" / "unfinished").exists()
    with pytest.raises(EntrypointError, match="no entry 'unfinished'"):
        cache(source, "remove", "unfinished")


def test_an_unknown_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(EntrypointError, match="unknown command 'clear'"):
        cache(tmp_path, "clear")


# --- what an attacker made ------------------------------------------------------------------------------------------


def refusal(tmp_path: Path, source: Path) -> str:
    with pytest.raises(EntrypointError) as error:
        cache(tmp_path / "cache", "import", str(source))
    assert error.value.hint
    assert len(error.value.message) < 1000
    assert not any((tmp_path / "cache").rglob("entry.json"))
    return error.value.message


INDEXES = {
    "a list": ("[]", "expected a JSON object"),
    "nested": ("[" * 100_000, "nested deeper than 64 levels"),
    "manifests that are text": ('{"manifests": "x"}', "manifests: expected a list"),
    "a descriptor that is text": ('{"manifests": ["x"]}', "manifests: expected a list"),
    "a number of 4,000 digits": ('{"manifests": [{"digest": ' + "9" * 4000 + "}]}", "expected sha256:"),
    "a superscript digest": ('{"manifests": [{"digest": "sha256:²"}]}', "expected sha256:"),
    "nothing": ("", "Expecting value"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_of_another_shape_is_refused(tmp_path: Path, name: str) -> None:
    text, expected_error = INDEXES[name]
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout" / "index.json").write_text(text)
    assert expected_error in refusal(tmp_path, tmp_path / "layout")


MANIFESTS = {
    "a list": ("[]", "expected a JSON object"),
    "no JSON": ("{", "Expecting property name"),
    "layers that are text": ('{"layers": "x"}', "layers: expected a list"),
    "another index, again and again": ('{"manifests": [%s]}', "more than 2 nested indexes"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, name: str) -> None:
    text, expected_error = MANIFESTS[name]
    layout = tmp_path / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    inner = json.dumps(stored(layout, b"{}"))
    for _ in range(4):
        inner = json.dumps(stored(layout, (text % inner if "%s" in text else text).encode()))
    (layout / "index.json").write_text(f'{{"manifests": [{inner}]}}')
    assert expected_error in refusal(tmp_path, layout)


def test_pipes_are_never_waited_for(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    os.mkfifo(layout / "index.json")
    assert "not a regular file" in refusal(tmp_path, layout)
    (layout / "index.json").unlink()
    os.mkfifo(layout / "blobs" / "sha256" / ("a" * 64))
    (layout / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:" + "a" * 64}]}))
    assert "not a regular file" in refusal(tmp_path, layout)
    os.mkfifo(tmp_path / "cache.tar")
    assert "not a regular file" in refusal(tmp_path, tmp_path / "cache.tar")


def packed_as(*headers: tarfile.TarInfo, pad: int = 0) -> bytes:
    return b"".join(header.tobuf(tarfile.PAX_FORMAT) for header in headers) + bytes(pad)


def sized(length: int, kind: bytes = tarfile.REGTYPE, **headers: str) -> tarfile.TarInfo:
    info = member("x", kind)
    info.size, info.pax_headers = length, headers
    return info


ARCHIVES = {
    "a header of a gigabyte": (packed_as(sized(1 << 30, tarfile.XHDTYPE)), "a header of 1073741824 bytes"),
    "a name of a gigabyte": (packed_as(sized(1 << 30, tarfile.GNUTYPE_LONGNAME)), "a header of 1073741824 bytes"),
    "a member of a petabyte": (packed_as(sized(0, size=str(1 << 50))), "more than"),
    "a member that leads backwards": (packed_as(sized(0, size="-1536"), pad=4096), "invalid size or position"),
    "a size of 4,000 digits": (packed_as(sized(0, size="9" * 4000), pad=1024), ""),
    "ten thousand headers in a row": (packed_as(*[sized(0, tarfile.XHDTYPE)] * 10_000), ""),
    "sparse numbers": (packed_as(sized(0, tarfile.REGTYPE, **{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"})), ""),
    "compressed rubbish": (b"\x1f\x8b" + bytes(100), ""),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_refused(tmp_path: Path, name: str) -> None:
    data, expected_error = ARCHIVES[name]
    with (tmp_path / "x.tar").open("wb") as file:
        file.write(data)
        file.truncate(max(len(data), 1 << 21))
    assert expected_error in refusal(tmp_path, tmp_path / "x.tar")
    for kind, packed in (("tar", data), ("tar+gzip", gzip.compress(data))):
        layout = tmp_path / kind
        (layout / "blobs" / "sha256").mkdir(parents=True)
        layer = {**stored(layout, packed), "mediaType": f"application/vnd.oci.image.layer.v1.{kind}"}
        manifest = stored(layout, json.dumps({"layers": [layer]}).encode())
        (layout / "index.json").write_text(json.dumps({"manifests": [manifest]}))
        refusal(tmp_path, layout)


def test_zeros_do_not_fill_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "source", name="ready", kernel="k")
    os.truncate(tmp_path / "source" / "compiled" / "ready" / "kernel", 64 << 20)
    cache(tmp_path / "source", "export", str(tmp_path / "layout"), "ready")
    with small_disk(tmp_path / "disk", "8m") as disk:
        with pytest.raises(EntrypointError, match=r"0\.07 GB needed, 0\.01 GB free"):
            cache(disk, "import", str(tmp_path / "layout"))
        put(disk, name="ready")
        cache(disk, "import", str(tmp_path / "layout"))
        (tmp_path / "layout" / "other").touch()
        os.truncate(tmp_path / "layout" / "other", 64 << 20)
        with (tmp_path / "x.tar").open("wb") as file:
            pack_layout(str(tmp_path / "layout"), file)
        cache(disk, "import", str(tmp_path / "x.tar"))
        assert names(disk / "compiled") == ["ready"]
    assert capsys.readouterr().err.count("ready: skipped: already present") == 2


def test_escapes_in_entries_are_not_sent_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, {**READY, "factors": {"model": "m\x1b]0;title\x07\n\u202egnp"}}, "e\x1b[31m\nx")
    put(tmp_path, {**READY, "used": 1 << 52}, "late")
    cache(tmp_path, "list")
    out = capsys.readouterr().out
    assert "e\\u001b[31m\\nx  ready" in out
    assert "m\\u001b]0;title\\u0007\\n\\u202egnp" in out
    assert out.isascii()
    assert "late  unreadable" in out


@fuzz
def test_no_damaged_archive_ends_in_a_traceback(tmp_path: Path) -> None:
    put(tmp_path / "source", kernel="compiled")
    cache(tmp_path / "source", "export", str(tmp_path / "x.tar"))
    (tmp_path / "folder").mkdir()

    def parse(text: str) -> None:
        data = io.BytesIO(text.encode("latin-1", "replace"))
        try:
            with open_tar(data, "r:") as archive:
                for archive_member in members(archive, 1 << 20):
                    archive.extractfile(archive_member)
        except tarfile.TarError as error:
            raise ValueError(str(error) or "damaged") from error

    survives_damage(parse, (tmp_path / "x.tar").read_bytes().decode("latin-1"))
