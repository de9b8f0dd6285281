"""JSON, files, archives and text of others."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from drydock.core.console import log, write_output
from drydock.core.errors import InputError
from drydock.core.files import (
    make_folder,
    parse_any_json,
    parse_byte_count,
    parse_json_object,
    read_bounded,
    write_atomically,
)
from drydock.core.tar import members, open_tar
from drydock.inputs.store import Store
from entrypoints.core.text import printable
from tests.support.damage import fuzz, survives_damage


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested deeper than 64 levels"),
        ("[" * 65 + "]" * 65, "nested deeper than 64 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested deeper than 64 levels"),
        ('{"a": ' + "9" * 4000 + "}", "a number of 4000 digits"),
        ('{"a": ' + "9" * 5000 + "}", "a number of 5000 digits"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[1]", "expected a JSON object, found list"),
        ("null", "expected a JSON object, found null"),
        ("", "expected a JSON object, found nothing"),
        ("{", "invalid JSON"),
    ],
)
def test_json_of_others_is_bounded(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        parse_json_object(text, "here")
    assert str(error.value).startswith("here: ")
    assert len(str(error.value)) < 200


def test_usual_json_is_unchanged() -> None:
    value = {"a": [1, -2.5, 2**64 - 1, None, True, "x"], "b": {"c": {}}}
    assert parse_any_json(json.dumps(value)) == value
    assert parse_any_json("[" * 64 + "]" * 64) is not None


@pytest.mark.parametrize("text", ["", "-1", "1e3", "\xb2", "9" * 20, "0x1"])
def test_what_is_no_size(text: str) -> None:
    assert parse_byte_count(text) is None


def test_a_size() -> None:
    assert parse_byte_count(" 42 ") == 42


def test_only_regular_files_of_a_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    assert len(read_bounded(tmp_path / "file", 1 << 20)) == 1 << 20
    (tmp_path / "large").write_bytes(b"x" * ((1 << 20) + 1))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for name, message in (("large", "larger than 1 MiB"), ("pipe", "not a regular"), ("device", "not a regular")):
        with pytest.raises(OSError, match=message):
            read_bounded(tmp_path / name, 1 << 20)


# --- archives -------------------------------------------------------------------------------------------------------


def header(length: int, kind: bytes = tarfile.REGTYPE, **pax: str) -> bytes:
    info = tarfile.TarInfo("x")
    info.size, info.type, info.pax_headers = length, kind, pax
    return info.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.parametrize("mode", ["r:", "r|"])
@pytest.mark.parametrize(
    "data",
    [
        header(3 << 30, tarfile.XHDTYPE),
        header(3 << 30, tarfile.GNUTYPE_LONGLINK),
        header(0, tarfile.XHDTYPE) * 5000,
        header(0, size="-1536") + bytes(1024),
        header(0, size=str(1 << 50)) + bytes(1024),
        header(0, size="9" * 4000) + bytes(1024),
        b"".join(header(0, tarfile.XGLTYPE) for _ in range(2)) + b"\xff" * 512,
    ],
)
def test_a_hostile_archive_is_refused(data: bytes, mode: str) -> None:
    with pytest.raises(tarfile.TarError), open_tar(io.BytesIO(data), mode) as archive:  # type: ignore[arg-type]
        list(members(archive))


# --- text -----------------------------------------------------------------------------------------------------------


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert printable("a\x1b]0;t\x07b\rc\x9bd\u202ee\u2066f\ud800") == (
        "a\\u001b]0;t\\u0007b\\u000dc\\u009bd\\u202ee\\u2066f\\ud800"
    )
    plain = "ünï 中文　ok\n\t→ ⚠️ 1 000"
    assert printable(plain) == plain
    value = {"a": "x\x9b\u202e\U000e0001\ud800"}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_logs_and_data_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    log("a\x1b[2J")
    write_output("b\x1b[2J\n")
    assert capsys.readouterr() == ("b\\u001b[2J\n", "a\\u001b[2J\n")


# --- rights ---------------------------------------------------------------------------------------------------------


def test_nobody_else_can_write_to_the_store(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
        store = Store(tmp_path / "home" / "cache")
        sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        store.add([b"abc"], sha256, "abc")
        store.folder({"deep/er/abc": sha256}, {"text": b"text"})
        with store.receiving("0" * 64) as file:
            assert file is not None
            file.write(b"part")
        write_atomically(tmp_path / "home" / "x" / "y", "text")
    finally:
        os.umask(old)
    store_paths = [path for folder in ("a", "home") for path in (tmp_path / folder, *(tmp_path / folder).rglob("*"))]
    assert len(store_paths) > 12
    assert [path for path in store_paths if path.stat().st_mode & 0o022] == []


def test_what_drydock_starts_inherits_a_safe_umask() -> None:
    program = "import os; os.umask(0); from drydock.core.process import short_lived; short_lived(); print(os.umask(0))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(result.stdout) & 0o002


# --- damage ---------------------------------------------------------------------------------------------------------


@fuzz
def test_no_damaged_archive_ends_in_a_traceback() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("a", "b" * 150):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))

    def parse(text: str) -> None:
        data = io.BytesIO(text.encode("latin-1", "replace"))
        try:
            with open_tar(data, "r|") as archive:
                for member in members(archive, 1 << 20):
                    content = archive.extractfile(member) if member.isreg() else None
                    if content:
                        content.read(1 << 20)
        except tarfile.TarError as error:
            raise ValueError(str(error) or "damaged") from error

    survives_damage(parse, buffer.getvalue().decode("latin-1"))


@fuzz
def test_damaged_json_is_a_value_error() -> None:
    survives_damage(parse_any_json, '{"a": [1, -2.5e3, null, "x\\u0041"], "b": {"c": {}}}')
