"""The real CPU image leaves this machine: through a registry to an empty engine, on a disk to one without network."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.prove import demo
from tests.support.called_verbs import create_bundle
from tests.support.cut_off import CutOff
from tests.support.local_registry import publish
from tests.support.servers import Registry
from tests.support.sigstore import key_pair

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_pair(tmp_path_factory.mktemp("keys"))


def test_an_empty_engine_pulls_it_by_its_digest_and_answers_rightly(
    built: build.Built, model: Path, signer: Path, registry: Registry
) -> None:
    engine = CutOff()
    try:
        with pytest.MonkeyPatch.context() as patch:  # a change's digest is recorded after its tests
            patch.setattr(Job, "require_recorded", Job.refuse_other)
            words = {"registry": registry.host, "release": "1.0.0", "sign_key": str(signer)}
            image = publish(DRYDOCK, **words, target=built.variant).image
        assert image.endswith(f"@{built.digest}")
        assert engine.docker("images", "--quiet") == ""
        with engine.serving_registry(registry.port, registry.command):
            engine.docker("pull", "--quiet", image)
        with engine.serving(image, model) as container:
            assert demo.EXPECTED in engine.ask(container, demo.QUESTION)
    finally:
        engine.stop()
        registry.stop()
        shutil.rmtree(registry.folder)  # gigabytes, which pytest would keep for three runs


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
