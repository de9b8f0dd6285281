"""Which foundations a lock needs, now or at a revision; what no lock needs is listed and deleted, and nothing else."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.build.build_job import Job
from drydock.core.errors import InputError, RegistryError
from drydock.inputs import indexes
from drydock.lock import lockfile
from drydock.lock.image_record import PlatformRecord, read_platform_record, write_platform_record
from drydock.lock.proof import Evidence
from drydock.model.record import dump_record
from drydock.publish import foundation_use
from drydock.publish.foundation_use import SharedFoundation, needed_keys
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.foundations import record, row_without_foundation
from tests.support.local_registry import PLATFORMS, VARIANT

PLATFORM = PLATFORMS[0]
OLD, LATER, UNKNOWN = "1" * 64, "2" * 64, "3" * 64
DIGEST = f"sha256:{'0' * 64}"


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A repository whose row had one foundation, then another, then again the first, and none now.

    The first one is in the lock, as drydock wrote it until 0.2.0.
    """
    job = row_without_foundation(tmp_path_factory.mktemp("row"))
    for path in job.project.glob("images/*/record.json"):
        path.unlink()
    git(job, "init", "--quiet", "--initial-branch=main")
    lock = lockfile.path_of_lock(job.project, VARIANT)
    lock_text = lock.read_text()
    content = json.loads(lock_text)
    content["platforms"][PLATFORM]["image"] = dump_record(record(job, DIGEST, OLD).record)["verified"]
    for name, key in (("one", OLD), ("two", LATER), ("three", OLD), ("four", "")):
        foundation = record(job, DIGEST, key).record if key and name != "one" else PlatformRecord()
        write_platform_record(job.project, VARIANT, PLATFORM, foundation)
        lock.write_text(json.dumps(content) if name == "one" else lock_text)
        git(job, "add", "images")
        git(job, "commit", "--quiet", "--message", name)
        git(job, "tag", name)
    return job


def git(job: Job, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=job.project.root, check=True)


@pytest.mark.parametrize(
    ("keep", "keys"),
    [
        ("", set()),
        ("four", set()),
        ("one", {OLD}),
        ("two", {LATER}),
        ("one..", {OLD, LATER}),
        ("one..two", {OLD, LATER}),
        ("three..four", {OLD}),
        ("two..three", {OLD, LATER}),
    ],
)
def test_what_was_recorded_in_a_range_of_revisions_is_needed(keep: str, keys: set[str], row: Job) -> None:
    variants_by_key = needed_keys(row.project, keep)
    assert set(variants_by_key) == {row.foundation_key, *keys}
    assert set(map(tuple, variants_by_key.values())) == {(VARIANT,)}


def test_the_foundations_of_recorded_evidence_are_needed(row: Job) -> None:
    evidence = Evidence(commit="", date="2026-11-28", digest=DIGEST, inputs_sha256=UNKNOWN, tests=("a test",))
    before = read_platform_record(row.project, VARIANT, PLATFORM)
    write_platform_record(row.project, VARIANT, PLATFORM, PlatformRecord(foundation={"packages": evidence}))
    keys = set(needed_keys(row.project, ""))
    write_platform_record(row.project, VARIANT, PLATFORM, before)
    assert keys == {row.foundation_key, UNKNOWN}


@pytest.mark.parametrize(
    "keep", ["none", "none..four", "..", "..four", "one...two", "--output=x", "-n1..two", "one..-n1"]
)
def test_other_revisions_are_errors(keep: str, row: Job) -> None:
    with pytest.raises(InputError, match="--keep"):
        needed_keys(row.project, keep)
    assert not (row.project.root / "x").exists()


class Deleting(Fake):
    """A registry with foundations under three keys, two of which have the same bytes, and a signature of each."""

    def __init__(self, needed_tag: str, status: int) -> None:
        self.tags = {needed_tag: b"{}", OLD: b"{ }", LATER: b"{}", "latest": b"[]"}
        self.tags |= {f"sha256-{digest[7:]}.sig": digest.encode() for digest in map(of, [b"{}", b"{ }"])}
        self.status, self.deleted = status, list[str]()
        super().__init__(self._answer)

    def _answer(self, request: Seen) -> Answer:
        name = request.path.rpartition("/")[2].partition("?")[0]
        if request.method == "DELETE":
            self.deleted.append(name)
            return Answer(self.status)
        if name == "list":
            listed = ", ".join(f'"{tag}"' for tag in [*self.tags, UNKNOWN])
            return Answer(200, {}, f'{{"tags": [{listed}]}}'.encode())
        return Answer(200, {}, self.tags[name]) if name in self.tags else Answer(404)


def of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.fixture
def registry(
    row: Job, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Deleting]:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path))
    monkeypatch.setattr(indexes, "read_indexes", lambda *_: indexes.parse_config(""))
    with Deleting(row.foundation_key, getattr(request, "param", 202)) as fake_registry:
        yield fake_registry


def listed(row: Job, registry: Deleting, keep: str = "") -> list[SharedFoundation]:
    return foundation_use.list_shared_foundations(row.project, f"{registry.host}/f", keep, insecure=False)[1]


def test_only_keys_are_listed_with_who_needs_them(row: Job, registry: Deleting) -> None:
    listed_keys = {entry.key: (entry.digest, entry.needed_by) for entry in listed(row, registry, "one")}
    assert listed_keys == {
        row.foundation_key: (of(b"{}"), (VARIANT,)),
        OLD: (of(b"{ }"), (VARIANT,)),
        LATER: (of(b"{}"), ()),
        UNKNOWN: (None, ()),
    }
    assert f"{LATER}  needed by no lock\n" in foundation_use.format_uses(listed(row, registry))
    assert foundation_use.format_uses([]) == "no foundation\n"


def test_nothing_is_deleted_without_yes_and_no_digest_that_is_needed_under_another_key(
    row: Job, registry: Deleting
) -> None:
    repository, foundations = foundation_use.list_shared_foundations(
        row.project, f"{registry.host}/f", "", insecure=False
    )
    unneeded = foundation_use.prune_foundations(repository, foundations, yes=False)
    assert {entry.key for entry in unneeded} == {OLD, UNKNOWN}
    assert registry.deleted == []
    foundation_use.prune_foundations(repository, foundations, yes=True)
    assert len(registry.deleted) == 2
    assert registry.deleted[0] == of(b"{ }")
    assert registry.deleted[1] == of(of(b"{ }").encode())  # its signature


@pytest.mark.parametrize("registry", [405], indirect=True)
def test_a_registry_that_does_not_delete_is_an_error_that_says_so(row: Job, registry: Deleting) -> None:
    repository, foundations = foundation_use.list_shared_foundations(
        row.project, f"{registry.host}/f", "", insecure=False
    )
    with pytest.raises(RegistryError, match=r"the registry answered 405[^§]*storage\.delete\.enabled"):
        foundation_use.prune_foundations(repository, foundations, yes=True)
