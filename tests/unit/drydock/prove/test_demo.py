"""The demo takes newer inputs, with a warning, if mirrors no longer have a locked one, and changes no file."""

from __future__ import annotations

import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, GoneError
from drydock.lock.image_record import PlatformRecord, VerifiedImage
from drydock.model.locked import Lock
from drydock.model.variant import Variant
from drydock.prove import demo
from tests.unit.drydock.prove.test_prove import BUILT


def never(_variant: Variant, _lock: Lock) -> Lock:
    raise AssertionError


def test_the_demo_does_not_relock_while_the_locked_inputs_are_available() -> None:
    image = demo.build_or_relock(DRYDOCK, lambda _: BUILT, never)
    assert image.built == BUILT
    assert "no mirror" not in image.describe_digest()


def test_the_demo_builds_from_a_lock_that_is_written_nowhere_if_an_input_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[Lock] = []

    def make(job: Job) -> build.Built:
        made.append(job.lock)
        if len(made) == 1:
            raise GoneError("libc6 2.36-9 (amd64): gone from every mirror")
        return BUILT

    def resolve(variant: Variant, lock: Lock) -> Lock:
        assert (variant.id, lock) == ("cpu-vllm0.32", made[0])
        return lock.model_copy(update={"source_date_epoch": 1})

    locks = {path: path.read_bytes() for path in DRYDOCK.glob("images/*/lock.json")}
    image = demo.build_or_relock(DRYDOCK, make, resolve)
    assert {path: path.read_bytes() for path in DRYDOCK.glob("images/*/lock.json")} == locks
    assert made[1].source_date_epoch == 1
    before = " ".join(capsys.readouterr().err.split())
    assert "libc6 2.36-9 (amd64): gone from every mirror" in before
    assert "image is not the committed one" in before
    assert "1 of the locked inputs, such as libc6 2.36-9 (amd64): gone from every mirror" in image.describe_digest()


def test_an_input_still_gone_after_relocking_is_an_error() -> None:
    def make(_job: Job) -> build.Built:
        raise GoneError("gone")

    with pytest.raises(GoneError, match="gone"):
        demo.build_or_relock(DRYDOCK, make, lambda _, lock: lock)


def test_wrong_bytes_or_a_network_error_do_not_relock() -> None:
    def make(_job: Job) -> build.Built:
        raise FetchError("sha256 is 1, expected 2")

    with pytest.raises(FetchError, match="sha256 is 1, expected 2"):
        demo.build_or_relock(DRYDOCK, make, never)


@pytest.mark.parametrize(
    ("digest", "inputs", "expected"),
    [
        ("sha256:" + "a" * 64, "b" * 64, "as committed"),
        ("sha256:" + "c" * 64, "b" * 64, "committed: sha256:ccc"),
        ("sha256:" + "a" * 64, "d" * 64, "inputs changed since 2026-11-28"),
        ("", "", "no digest is committed"),
    ],
)
def test_the_demo_says_whether_its_digest_is_the_committed_one(digest: str, inputs: str, expected: str) -> None:
    values = {"digest": digest, "inputs_sha256": inputs, "buildkit": "1", "buildx": "1", "date": "2026-11-28"}
    record = PlatformRecord(verified=VerifiedImage(**values) if digest else None)
    built = build.Built.model_construct(digest="sha256:" + "a" * 64, inputs_sha256="b" * 64)
    assert demo._compare_with_record(record, built).startswith(expected)
