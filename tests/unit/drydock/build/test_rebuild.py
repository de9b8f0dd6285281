"""What verification reports, and what it lets into the lock."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from drydock.build import build, rebuild
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import BuildError, NotReproducibleError
from drydock.lock import proof
from drydock.lock.image_record import PlatformRecord, make_evidence
from drydock.oci.layout_diff import LayoutDifference
from tests.support.foundations import record, write

DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'c' * 64}"


def verified(committed: str | None, second: str = DIGEST, foundation: str | None = None) -> rebuild.Verified:
    """Return what two builds gave, and the committed digest."""
    difference = LayoutDifference("layer 3", "opt/file", "mtime", "1", "2")
    return rebuild.Verified(
        reproducible=second == DIGEST,
        first=DIGEST,
        second=second,
        committed=committed,
        matches_committed=None if committed is None else committed == DIGEST,
        differences=() if second == DIGEST else (difference._asdict(),),
        foundation=foundation,
    )


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Collect what would be written into the repository's own lock."""
    record_calls: list[object] = []
    monkeypatch.setattr(rebuild, "record_digests", lambda *arguments: record_calls.append(arguments))
    return record_calls


@pytest.mark.parametrize("recording", [False, True])
def test_a_digest_that_did_not_reproduce_is_an_error_and_never_recorded(recording: bool) -> None:
    with pytest.raises(NotReproducibleError, match="layer 3: opt/file: mtime: 1 → 2"):
        rebuild.settle_verification(prepare_job(DRYDOCK, "cpu"), verified(None, OTHER), recording=recording)


@pytest.mark.parametrize(("recording", "env"), [(False, {}), (False, {"CI": "true"}), (True, {"CI": "true"})])
def test_two_equal_builds_that_differ_from_the_committed_digest_are_an_error(
    recording: bool, env: Mapping[str, str]
) -> None:
    with pytest.raises(NotReproducibleError, match="its record has sha256:c"):
        rebuild.settle_verification(prepare_job(DRYDOCK, "cpu"), verified(OTHER), recording=recording, env=env)


@pytest.mark.parametrize(
    ("committed", "env", "written"),
    [(None, {"CI": "true"}, True), (DIGEST, {"CI": "true"}, False), (OTHER, {}, True)],
)
def test_a_digest_is_recorded_where_none_is_or_in_place_of_another_outside_ci(
    committed: str | None, env: Mapping[str, str], written: bool, recorded: list[object]
) -> None:
    rebuild.settle_verification(prepare_job(DRYDOCK, "cpu"), verified(committed), recording=True, env=env)
    assert bool(recorded) == written


@pytest.mark.parametrize(("of_both", "written"), [(OTHER, True), (DIGEST, False), (None, False)])
def test_a_foundation_is_recorded_where_the_record_has_only_the_image(
    of_both: str | None, written: bool, recorded: list[object]
) -> None:
    job = record(prepare_job(DRYDOCK, "cpu"), DIGEST)
    rebuild.settle_verification(job, verified(DIGEST, foundation=of_both), recording=True, env={})
    assert bool(recorded) == written


@pytest.mark.parametrize("here", [DIGEST, OTHER, None])
def test_the_digest_of_a_foundation_is_that_of_both_builds(
    here: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    job = prepare_job(DRYDOCK, "cpu")
    image = write(tmp_path / "image")
    digests = {job.foundation: here}
    monkeypatch.setattr(rebuild, "_read_sound_digest", lambda layout: digests.get(layout, DIGEST))
    built = {"digest": image, "layout": str(tmp_path / "image")}
    values = {"variant": "v", "platform": "p", "image": "i", "inputs_sha256": "0", "seconds": 0, "phases": {}}
    how: list[bool] = []
    fetches: list[object] = []
    monkeypatch.setattr(build, "fetch_contexts", fetches.append)

    def first(*_: object, no_cache: bool, **__: object) -> build.Built:
        how.append(no_cache)
        return build.Built(**values, **built)

    monkeypatch.setattr(build, "build_image", first)
    monkeypatch.setattr(rebuild, "run_to_end", lambda *_, **__: b"")
    monkeypatch.setattr(rebuild, "_build_elsewhere", lambda *_, **__: built)

    assert rebuild.verify_build(job, recording=True).foundation == (DIGEST if here == DIGEST else None)
    assert rebuild.verify_build(job).reproducible
    assert how == [True, False]  # no foundation is kept, but one is to be recorded
    assert fetches == [job, job]  # the second build uses no network; a kept foundation may have come without its inputs


def test_vllm_is_imported_once_for_a_foundation(monkeypatch: pytest.MonkeyPatch) -> None:
    job, containers = prepare_job(DRYDOCK, "cpu"), list[object]()
    monkeypatch.setattr(rebuild, "run_to_end", lambda image, words, **_: containers.append((image, words[1:])))
    job.__dict__["record"] = PlatformRecord()
    rebuild.import_vllm(job, "an-image")
    evidence = make_evidence(DRYDOCK, DIGEST, job.foundation_key, ())
    job.__dict__["record"] = PlatformRecord(foundation={proof.IMPORTED: evidence})
    rebuild.import_vllm(job, "the-same-foundation")
    rebuild.import_vllm(prepare_job(DRYDOCK, "router0.1"), "an-image-without-vllm")

    assert containers == [("an-image", ("-c", "import vllm"))]


def test_the_second_build_unpacks_source_code_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    commit = "1" * 40
    for name in ("sources", "contexts", "bases", "store"):
        (tmp_path / "cache" / name / commit).mkdir(parents=True)
    listings: list[list[str]] = []

    def run(*_: object, env: Mapping[str, str], **__: object) -> subprocess.CompletedProcess[str]:
        cache = Path(env["DRYDOCK_CACHE"])
        listings.append(sorted(str(path.relative_to(cache)) for path in cache.rglob("*")))
        listings.append(sorted(path.name for path in (cache / "store").iterdir()))
        return subprocess.CompletedProcess([], 1)

    monkeypatch.setattr(rebuild.subprocess, "run", run)
    with pytest.raises(BuildError):
        rebuild._build_elsewhere(prepare_job(DRYDOCK, "cpu"), tmp_path / "elsewhere", None)
    assert listings == [["store"], [commit]]
