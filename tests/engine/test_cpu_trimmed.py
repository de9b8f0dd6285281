"""What `trim` promises of the CPU image, looked up in the image and in the wheels that it came from."""

from __future__ import annotations

import json
import posixpath
import zipfile
from fnmatch import fnmatchcase

import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.engine.run_container import run_to_end
from drydock.inputs.store import default_store
from drydock.model.distributions import Trim

pytestmark = [pytest.mark.proves("cpu-vllm0.32", "packages"), pytest.mark.of_foundation]

LOOK = """
import base64, csv, hashlib, json, struct, sys
from importlib.metadata import distribution
from pathlib import Path

def symbols(content):
    if content[:4] != b"\\x7fELF":
        return False
    table, (count,) = *struct.unpack_from("<Q", content, 40), struct.unpack_from("<H", content, 60)
    return 2 in [struct.unpack_from("<I", content, table + 64 * number + 4)[0] for number in range(count)]  # SHT_SYMTAB

found = {}
for name in sys.argv[1:]:
    record = found[name] = {}
    for path, checksum, size in csv.reader((distribution(name).read_text("RECORD") or "").splitlines()):
        content = Path(distribution(name).locate_file(path)).read_bytes() if checksum else b""
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        record[path] = {"true": checksum in ("", "sha256=" + digest), "symbols": symbols(content)}
print(json.dumps(found))
"""

Records = dict[str, dict[str, dict[str, bool]]]


@pytest.fixture(scope="module")
def records(job: Job, built: build.Built) -> Records:
    """What RECORD says of each trimmed distribution, and whether that is so."""
    names = [trim.distribution for trim in job.variant.trim]
    command = ["-c", LOOK, *names]
    output = run_to_end(built.image, command, entrypoint="/opt/venv/bin/python3", network_mode="none")
    trim_records: Records = json.loads(output)
    return trim_records


def test_dropped_files_are_in_neither_record_nor_image(job: Job, records: Records) -> None:
    assert job.variant.trim
    for trim in job.variant.trim:
        assert [path for path in records[trim.distribution] if _matches(path, trim.drop)] == []


def test_stripped_files_have_no_symbols_and_record_has_their_new_hash(job: Job, records: Records) -> None:
    assert job.variant.trim
    for trim in job.variant.trim:
        record = records[trim.distribution]
        assert [path for path, of in record.items() if not of["true"]] == []
        assert [path for path, of in record.items() if _matches(path, trim.strip) and of["symbols"]] == []


def test_every_pattern_matches_something_in_the_wheel(job: Job) -> None:
    wheels = {wheel.name: wheel for layer in job.pins.layers.values() for wheel in layer}
    assert job.variant.trim
    for trim in job.variant.trim:
        with zipfile.ZipFile(default_store().path(wheels[trim.distribution].sha256)) as archive:
            assert _idle(trim, [_recorded(name) for name in archive.namelist()]) == []


def _recorded(name: str) -> str:
    """Return what RECORD calls a wheel's file once it is installed; data files go to the environment's own folders."""
    _, data, rest = name.partition(".data/data/")
    return posixpath.relpath(rest, "lib/python3.11/site-packages") if data else name


def _idle(trim: Trim, names: list[str]) -> list[str]:
    """Return the patterns that match none of the names."""
    return [glob for glob in (*trim.drop, *trim.strip) if not any(fnmatchcase(name, glob) for name in names)]


def _matches(path: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, glob) for glob in globs)
