"""A real, small image: built, published, pulled by its digest, and rebuilt by whoever verifies it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.small_project import VARIANT
from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.build.standins import SERVED
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import NotReproducibleError
from drydock.core.project import Project
from drydock.examine import audit
from drydock.examine.verify_published import VerifyOptions, verify_reference
from drydock.model.locked import Lock
from drydock.prove import demo
from drydock.publish.push import Published
from tests.engine.test_standins import MODEL, make_operator_options
from tests.support.local_registry import publish
from tests.support.sample import write_model
from tests.support.servers import Registry
from tests.support.small_image import Small
from tests.support.started_containers import run_container


@pytest.fixture(scope="module")
def real() -> Lock:
    """The CPU variant's lock, whose base is in the store."""
    job = prepare_job(DRYDOCK, "cpu")
    build.fetch_contexts(job)
    return job.lock


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, real: Lock) -> Small:
    small = Small(tmp_path_factory.mktemp("small"), real)
    small.record(small.build()["digest"])
    return small


@pytest.fixture
def done(registry: Registry, small: Small, monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.setenv("DRYDOCK_CACHE", str(small.cache))
    return publish(small.root, f"{registry.host}/small", VARIANT, release="1.0.0")


@contextlib.contextmanager
def pulled(image: str) -> Iterator[str]:
    """Pull an image that the engine lacks, by its digest; remove it again."""
    assert "@sha256:" in image
    assert subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode
    try:
        subprocess.run(["docker", "pull", "--quiet", image], check=True, capture_output=True)
        yield image
    finally:
        subprocess.run(["docker", "image", "rm", image], capture_output=True, check=False)


def test_an_image_is_pulled_by_its_digest_and_serves(done: Published, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    strict: dict[str, Any] = {
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "tmpfs": {"/tmp": ""},
    }
    strict |= {"environment": {SERVED: "1"}}
    with pulled(done.image) as image, demo.run_model_server(image, model, **strict) as container:
        demo.wait_until_ready(container, 60)
        assert "Paris" in demo.ask_chat_question(container, demo.QUESTION, model="stub")


STAND_INS = {"cuda13.0-vllm0.33": "cuda-h100-8x", "tpu-vllm0.21": "tpu-v5e-1x"}
"""Row of the matrix → a recorded host to start its image on."""


@pytest.mark.parametrize("row", STAND_INS)
def test_a_stand_in_variant_is_published_pulled_started_verified_and_audited(
    row: str, registry: Registry, real: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = Small(tmp_path / "small", real, row)
    small.record(small.build()["digest"])
    monkeypatch.setenv("DRYDOCK_CACHE", str(small.cache))
    publication = publish(small.root, f"{registry.host}/stand-ins", VARIANT, release="1.0.0")
    with pulled(publication.image) as image:
        words = ("serve", "--root", f"/hosts/{STAND_INS[row]}", "--exec", "--model", MODEL)
        ran = run_container(image, *words, **make_operator_options(write_model(tmp_path / "model")))
        assert ran.code == 0, ran.stderr[-2000:]
        argv = json.loads(ran.stdout.splitlines()[-1])["argv"]
        assert argv[argv.index("--model") + 1] == MODEL
    tag = f"{publication.image.partition('@')[0]}:{VARIANT}-1.0.0"
    assert verify_reference(Project(small.root), tag, VerifyOptions()).rebuilt == publication.digest
    assert audit.audit_job(prepare_job(Project(small.root), VARIANT)).findings == ()


def test_a_third_party_builds_the_same_digest(done: Published, small: Small, registry: Registry) -> None:
    verification = verify_reference(Project(small.root), f"{registry.host}/small/cpu:{VARIANT}-1.0.0", VerifyOptions())
    assert verification.rebuilt == done.digest


def test_another_entrypoint_is_another_digest_and_the_difference_is_named(
    done: Published, small: Small, registry: Registry
) -> None:
    module: Path = small.root / "entrypoints" / "core" / "errors.py"
    text = module.read_text()
    module.write_text(f"{text}# changed\n")
    try:
        with pytest.raises(NotReproducibleError, match=r"entrypoints/core/errors\.py: content"):
            verify_reference(Project(small.root), f"{registry.host}/small/cpu@{done.digest}", VerifyOptions())
    finally:
        module.write_text(text)
    assert json.loads((small.root / "images" / VARIANT / "lock.json").read_text())["variant"] == VARIANT
