"""The real CPU image leaves this machine: through a registry to an empty engine, on a disk to one without network."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.small_project import VARIANT
from drydock.attest.cosign import Trust
from drydock.build import build
from drydock.build.build_job import Job
from drydock.bundle.create import create_bundle
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.examine.verify_published import VerifyOptions, verify_reference
from drydock.prove import demo
from drydock.publish.push import Published, PublishOptions, publish_image
from tests.support.cut_off import CutOff
from tests.support.servers import Registry
from tests.support.signing_keys import key_pair
from tests.support.small_image import Small

pytestmark = pytest.mark.slow
STAND_INS = ("cuda13.0-vllm0.33", "tpu-vllm0.21")
RELEASE = "1.0.0"


class Sent(NamedTuple):
    """A variant in the registry."""

    registry: Registry
    done: Published
    root: Path

    @property
    def release(self) -> str:
        """The tag that never moves."""
        return f"{self.done.image.partition('@')[0]}:{self.done.variant}-{RELEASE}"


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_pair(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def sent(
    built: build.Built, job: Job, signer: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Sent]]:
    """The CPU image and two stand-ins, published and signed, in a registry that goes when the tests are done."""
    folder = tmp_path_factory.mktemp("travels")
    registry = Registry(folder / "registry")
    registry.start()
    options = PublishOptions(registry.host, release=RELEASE, key=str(signer))
    try:
        with pytest.MonkeyPatch.context() as patch:  # a change's digest is recorded after its tests
            patch.setattr(Job, "require_recorded", Job.refuse_other)
            sent_images = {job.variant.id: Sent(registry, publish_image(DRYDOCK, built.variant, options), ROOT)}
        build.fetch_contexts(job)  # the base of the small ones
        for row in STAND_INS:
            small = Small(folder / row, job.lock, row)
            small.record(small.build()["digest"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("DRYDOCK_CACHE", str(small.cache))
                sent_images[row] = Sent(registry, publish_image(Project(small.root), VARIANT, options), small.root)
        yield sent_images
    finally:
        registry.stop()
        shutil.rmtree(folder)


def test_an_empty_engine_pulls_it_by_its_digest_and_answers_rightly(
    sent: dict[str, Sent], built: build.Built, model: Path
) -> None:
    image = sent[built.variant].done.image
    assert image.endswith(f"@{built.digest}")
    engine = CutOff()
    try:
        assert engine.docker("images", "--quiet") == ""
        registry = sent[built.variant].registry
        with engine.serving_registry(registry.port, registry.command):
            engine.docker("pull", "--quiet", image)
        with engine.serving(image, model) as container:
            assert demo.EXPECTED in engine.ask(container, demo.QUESTION)
    finally:
        engine.stop()


@pytest.mark.parametrize("row", ["cpu-vllm0.32", *STAND_INS])
def test_whoever_has_the_public_key_verifies_signatures_provenance_and_tag(
    row: str, sent: dict[str, Sent], signer: Path
) -> None:
    trust = Trust(key=str(signer.with_suffix(".pub")))
    verification = verify_reference(Project(sent[row].root), sent[row].release, VerifyOptions(trust, rebuild=False))
    digest = sent[row].done.digest
    assert verification.digest == digest
    assert f"signature of the image ({digest})" in verification.shown
    assert "linux/amd64: provenance names this digest and this lock" in verification.shown
    assert f"tag {sent[row].release.rpartition(':')[2]} was published with this digest" in verification.shown
    assert verification.not_shown == ("rebuild: skipped by --registry-only",)


def test_a_signed_bundle_is_loaded_and_serves_without_any_network(
    built: build.Built, model: Path, signer: Path, tmp_path: Path
) -> None:
    file, there = tmp_path / "cpu.tar", tmp_path / "there"
    create_bundle(DRYDOCK, [built.variant], file, key=str(signer))
    engine = CutOff()
    try:
        load = (sys.executable, "-m", "invoke", "bundle.load", str(file), "--engine", "--json")
        load += ("--verify-key", str(signer.with_suffix(".pub")))
        result = engine.run(*load, cwd=ROOT, env={**os.environ, "DRYDOCK_CACHE": str(there)})
        assert result.returncode == 0, result.stderr[-3000:]
        loaded = json.loads(result.stdout)
        (image,) = loaded["images"]
        assert (image["digest"], image["rebuildable"], loaded["signed"]) == (built.digest, True, True)
        with engine.serving(image["reference"], model) as container:
            assert demo.EXPECTED in engine.ask(container, demo.QUESTION)
    finally:
        engine.stop()
        file.unlink(missing_ok=True)
        shutil.rmtree(there, ignore_errors=True)  # gigabytes, which pytest would keep for three runs
