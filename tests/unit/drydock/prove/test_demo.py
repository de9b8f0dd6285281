"""The demo relocks, with a warning, if mirrors no longer have a locked input."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, GoneError
from drydock.core.project import Project
from drydock.lock.image_record import PlatformRecord, VerifiedImage
from drydock.model.variant import Variant
from drydock.prove import demo
from tests.unit.drydock.prove.test_prove import BUILT


def never(_root: Project, _variants: Sequence[Variant]) -> None:
    raise AssertionError


def test_the_demo_does_not_relock_while_the_locked_inputs_are_available() -> None:
    assert demo.build_or_relock(DRYDOCK, lambda _: BUILT, never)[1] == BUILT


def test_the_demo_relocks_once_with_a_warning_if_an_input_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    locked: list[str] = []

    def make(_job: Job) -> build.Built:
        if not locked:
            raise GoneError("libc6 2.36-9 (amd64): gone from every mirror")
        return BUILT

    def relock(_root: Project, variants: Sequence[Variant]) -> None:
        locked.extend(variant.id for variant in variants)

    assert demo.build_or_relock(DRYDOCK, make, relock)[1] == BUILT
    assert locked == ["cpu-vllm0.32"]
    stderr = capsys.readouterr().err
    assert "libc6 2.36-9 (amd64): gone from every mirror" in stderr
    assert "WARNING: locking again" in stderr


def test_an_input_still_gone_after_relocking_is_an_error() -> None:
    def make(_job: Job) -> build.Built:
        raise GoneError("gone")

    with pytest.raises(GoneError, match="gone"):
        demo.build_or_relock(DRYDOCK, make, lambda _root, _variants: None)


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
