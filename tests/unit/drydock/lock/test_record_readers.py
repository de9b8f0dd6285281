"""What reads a record says the same of a row without one, with an old one, and with one of today's inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from drydock.attest import documents, provenance
from drydock.build import engine_images
from drydock.build.build_job import Job
from drydock.bundle import bundle_trust
from drydock.core.errors import InputError, UntrustedError
from drydock.lock.image_record import (
    PlatformRecord,
    VerifiedFoundation,
    VerifiedImage,
    make_evidence,
    write_platform_record,
)
from drydock.pages import matrix_table
from drydock.prove import demo, served_statement
from drydock.publish import foundation_use
from drydock.topology import planned_file
from tests.support.local_registry import PLATFORMS, VARIANT, LocalRepository

Age = Literal["none", "old", "current"]
AGES: tuple[Age, ...] = ("none", "old", "current")
DIGEST, OTHER, BELOW = (f"sha256:{digit * 64}" for digit in "abc")
OLD_KEY = "0" * 64


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRepository]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("row")
        patch.setenv("DRYDOCK_CACHE", str(folder / "cache"))
        yield LocalRepository(folder, platforms=PLATFORMS[:1])


@pytest.fixture(params=AGES)
def age(request: pytest.FixtureRequest) -> Age:
    return request.param  # type: ignore[no-any-return] - one of AGES


@pytest.fixture
def job(local: LocalRepository, age: Age) -> Job:
    """The job of a row whose record is of this age."""
    today = local.job(PLATFORMS[0])
    inputs, key = (today.inputs_sha256, today.foundation_key) if age == "current" else ("1" * 64, OLD_KEY)
    image = VerifiedImage(
        digest=DIGEST,
        inputs_sha256=inputs,
        buildkit="1",
        buildx="1",
        date="2026-11-28",
        foundation=VerifiedFoundation(digest=BELOW, key=key),
    )
    evidence = {"hardware": make_evidence(today.project, DIGEST, inputs, ["a test"])}
    record = PlatformRecord() if age == "none" else PlatformRecord(verified=image, image=evidence)
    write_platform_record(today.project, VARIANT, today.platform, record)
    return local.job(today.platform)


def refuses(check: Any, *arguments: Any) -> bool:
    try:
        check(*arguments)
    except UntrustedError:
        return True
    return False


def test_another_digest_for_the_same_inputs_is_refused(job: Job, age: Age) -> None:
    assert job.recorded_digest == (DIGEST if age == "current" else None)
    assert refuses(job.refuse_other, OTHER) == (age == "current")
    assert not refuses(job.refuse_other, DIGEST)


def test_publish_takes_a_digest_that_is_recorded_for_these_inputs(job: Job, age: Age) -> None:
    assert refuses(job.require_recorded, DIGEST) == (age != "current")
    assert refuses(job.require_recorded, OTHER)


def test_a_foundation_needs_no_key_if_its_digest_is_recorded(job: Job, age: Age) -> None:
    assert job.committed_foundation == (BELOW if age == "current" else None)


def test_a_recorded_foundation_is_not_pruned(job: Job, age: Age) -> None:
    keys = foundation_use.needed_keys(job.project, "")
    assert job.foundation_key in keys
    assert (OLD_KEY in keys) == (age == "old")


def test_a_topology_names_the_recorded_image(job: Job, age: Age) -> None:
    name = planned_file._name_variant_image(job.project, job.variant)
    assert name == f"drydock/{VARIANT}:{'latest' if age == 'none' else 'a' * 12}"
    assert planned_file.is_own_image(job.project, f"registry.example/x@{DIGEST}") == (age != "none")


def test_images_knows_the_recorded_ones(job: Job, age: Age) -> None:
    assert (DIGEST in engine_images._list_committed_digests(job.project)) == (age != "none")


def test_a_bundle_with_another_digest_for_the_same_inputs_is_refused(job: Job, age: Age) -> None:
    bundled: Any = SimpleNamespace(
        variant=VARIANT, platform=job.platform, inputs_sha256=job.inputs_sha256, digest=OTHER
    )
    assert refuses(bundle_trust.check_recorded, bundled, job.project) == (age == "current")


def test_a_statement_is_about_a_recorded_image(job: Job, age: Age, tmp_path: Path) -> None:
    expected = "statement.json" if age == "current" else f"images/{VARIANT} has no digest"
    with pytest.raises((InputError, UntrustedError), match=expected):
        served_statement.verify_row_statement(job.project, VARIANT, str(tmp_path / "statement.json"), "cosign.pub", "")


def test_provenance_names_the_verified_digest_of_these_inputs_only(job: Job, age: Age) -> None:
    assert len(provenance._list_byproducts(job)) == (age == "current")


def test_the_proof_document_has_nothing_of_earlier_inputs(job: Job, age: Age) -> None:
    assert len(documents._make_proof_document(job)) == (age == "current")


def test_matrix_says_what_is_of_earlier_inputs(job: Job, age: Age) -> None:
    state = matrix_table.read_variant_state(job.project, job.variant)
    assert (state.proof, state.earlier_proof.partition(",")[0], state.digest) == {
        "none": ("stand-in", "", ""),
        "old": ("stand-in", "hardware", ""),
        "current": ("hardware", "", DIGEST),
    }[age]


def test_the_demo_and_verify_compare_with_the_record(job: Job, age: Age) -> None:
    built: Any = SimpleNamespace(digest=DIGEST, inputs_sha256=job.inputs_sha256)
    text = demo._compare_with_record(job.record, built)
    assert (
        text
        == {
            "none": "no digest is committed",
            "old": "inputs changed since 2026-11-28",
            "current": "as committed",
        }[age]
    )
