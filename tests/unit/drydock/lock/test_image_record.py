"""A record says what came out of a lock: digests and evidence. It is never wrong for being old."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import StaleError
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import image_record, lockfile
from drydock.lock.image_record import ImageRecord, PlatformRecord, VerifiedFoundation, VerifiedImage
from drydock.lock.proof import Evidence
from drydock.model.record import dump_record

ROW, AMD64 = "cpu-vllm0.32", "linux/amd64"
DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'c' * 64}"
INPUTS, EARLIER = "b" * 64, "d" * 64
VERIFIED = VerifiedImage(
    digest=DIGEST,
    inputs_sha256=INPUTS,
    buildkit="v1",
    buildx="v1",
    foundation=VerifiedFoundation(digest=OTHER, key=INPUTS),
)
EVIDENCE = Evidence(commit="f" * 40, date="2026-11-21", digest=OTHER, inputs_sha256=EARLIER, tests=("a test",))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with a copy of a row's lock, and no record."""
    (tmp_path / "images" / ROW).mkdir(parents=True)
    shutil.copy(lockfile.path_of_lock(DRYDOCK, ROW), tmp_path / "images" / ROW)
    return Project(tmp_path)


def write_earlier_lock(project: Project) -> Path:
    """Write the digest into the lock, as drydock did until 0.2.0."""
    path = lockfile.path_of_lock(project, ROW)
    content = json.loads(path.read_text())
    content["platforms"][AMD64]["image"] = {
        key: value for key, value in dump_record(VERIFIED).items() if key not in ("commit", "date")
    }
    path.write_text(format_json({**content, "content_sha256": lockfile._content_sha256(content)}))
    return path


def write_earlier_proof(project: Project, content: Any) -> Path:
    path = project.root / "images" / ROW / "proof.json"
    path.write_text(format_json(content))
    return path


def test_a_digest_counts_for_its_own_inputs_only() -> None:
    record = PlatformRecord(verified=VERIFIED, image={"hardware": EVIDENCE})

    assert record.find_digest(INPUTS) == record.find_verified_digest(INPUTS) == DIGEST
    assert (record.find_digest(EARLIER), record.find_verified_digest(EARLIER)) == (OTHER, None)
    assert (record.find_foundation(INPUTS), record.find_foundation(EARLIER)) == (OTHER, None)
    assert PlatformRecord().find_digest(INPUTS) is None


def test_what_is_written_is_read_and_other_platforms_stay(project: Project) -> None:
    assert image_record.read_record(project, ROW) == ImageRecord()
    records = {AMD64: PlatformRecord(verified=VERIFIED), "linux/arm64": PlatformRecord(image={"packages": EVIDENCE})}
    for platform, record in records.items():
        assert image_record.write_platform_record(project, ROW, platform, record)
    assert image_record.read_record(project, ROW).platforms == records
    assert image_record.write_platform_record(project, ROW, AMD64, records[AMD64]) is None


def test_the_releases_of_a_digest_are_looked_up(project: Project) -> None:
    record = ImageRecord(platforms={AMD64: PlatformRecord(verified=VERIFIED), "linux/arm64": PlatformRecord()})
    for version in ("0.9.0", "0.10.0"):
        record = image_record.add_release(record, version)
    image_record.write_record(project, ROW, record)
    assert image_record.read_releases(project) == {DIGEST: ("0.9.0", "0.10.0")}
    assert image_record.name_releases(("0.9.0", "0.10.0")) == "drydock 0.9.0, 0.10.0"


def test_what_an_earlier_drydock_wrote_is_read_and_moved(project: Project) -> None:
    path = write_earlier_lock(project)
    evidence = dump_record(EVIDENCE)
    shown = {"foundation": {"packages": evidence}, "image": {"packages": evidence, "stand-in": evidence}}
    proof = write_earlier_proof(project, shown)
    pins = lockfile.read_lock(path)

    expected = PlatformRecord(foundation={"packages": EVIDENCE}, image={"packages": EVIDENCE}, verified=VERIFIED)
    assert image_record.read_platform_record(project, ROW, AMD64) == expected
    record = project.root / image_record.name_of_record(ROW)
    assert image_record.move_earlier_files(project, ROW) == [record, proof, path]
    assert "image" not in json.loads(path.read_text())["platforms"][AMD64]
    assert lockfile.read_lock(path).platforms == pins.platforms
    assert image_record.read_platform_record(project, ROW, AMD64) == expected
    assert image_record.move_earlier_files(project, ROW) == []


def test_the_form_of_before_december_2026_is_read(project: Project) -> None:
    write_earlier_proof(
        project, {"date": "2026-11-21", "digest": OTHER, "inputs_sha256": EARLIER, "shown": {"packages": ["a test"]}}
    )
    (record,) = image_record.read_record(project, ROW).platforms.values()
    assert record.image == {"packages": EVIDENCE.model_copy(update={"commit": ""})}


def test_a_projects_own_earlier_files_come_before_the_record_below(project: Project) -> None:
    above = Project(project.root, (ROOT,))
    assert image_record.read_record(above, ROW) == image_record.read_record(DRYDOCK, ROW)
    write_earlier_lock(project)
    assert image_record.read_platform_record(above, ROW, AMD64).verified == VERIFIED


@pytest.mark.parametrize("text", ["[]", "{}x", '{"platforms": []}', '{"platforms": {"linux/amd64": {"image": 1}}}'])
def test_a_damaged_record_names_its_path_and_what_to_do(project: Project, text: str) -> None:
    path = project.root / image_record.name_of_record(ROW)
    path.write_text(text)

    with pytest.raises(StaleError, match=r"images/cpu-vllm0\.32/record\.json: invalid") as raised:
        image_record.read_record(project, ROW)
    assert f"git checkout {path}" in raised.value.hint


@pytest.mark.parametrize("content", [[], {"shown": []}, {"shown": {"packages": 1}}, {"image": {"x": {}}}])
def test_a_damaged_proof_of_an_earlier_drydock_names_its_path(project: Project, content: Any) -> None:
    write_earlier_proof(project, content)

    with pytest.raises(StaleError, match=r"images/cpu-vllm0\.32/proof\.json: invalid"):
        image_record.read_record(project, ROW)


def test_a_record_does_not_make_the_commit_of_a_checkout_another_one(project: Project) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "--all"), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", "-C", str(project.root), *words], check=True)
    commit = image_record.stamp_today(project)["commit"]
    assert len(commit) == 40
    image_record.write_platform_record(project, ROW, AMD64, PlatformRecord(verified=VERIFIED))
    assert image_record.stamp_today(project)["commit"] == commit
    (project.root / "README.md").write_text("words")
    assert image_record.stamp_today(project)["commit"] == f"{commit}+"
