"""A real, small image: built, published, pulled by its digest, and rebuilt by whoever verifies it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from drydock import build
from drydock.errors import NotReproducibleError
from drydock.publish import Published, Wish, publish
from drydock.trust import Wish as Wanted
from drydock.trust import verify_reference
from tests.images.small import VARIANT, Small
from tests.registry.servers import Registry


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    job = build.prepare("cpu")
    build.inputs(job)  # its base is the real one
    small = Small(tmp_path_factory.mktemp("small"), job.lock)
    small.build()
    return small


@pytest.fixture
def done(registry: Registry, small: Small, monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.setenv("DRYDOCK_CACHE", str(small.cache))
    return publish(VARIANT, Wish(f"{registry.host}/small", release="1.0.0"), root=small.root)


def test_an_image_is_pulled_by_its_digest_and_runs(done: Published) -> None:
    before = subprocess.run(["docker", "image", "inspect", done.image], capture_output=True, check=False)
    assert before.returncode
    try:
        subprocess.run(["docker", "pull", "--quiet", done.image], check=True, capture_output=True)
        command = ["docker", "run", "--rm", "--network=none", done.image, "version"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert VARIANT in said
    finally:
        subprocess.run(["docker", "image", "rm", done.image], capture_output=True, check=False)


def test_a_third_party_builds_the_same_digest(done: Published, small: Small, registry: Registry) -> None:
    found = verify_reference(f"{registry.host}/small/cpu:{VARIANT}-1.0.0", Wanted(), root=small.root)
    assert found.rebuilt == done.digest


def test_another_entrypoint_is_another_digest_and_the_difference_is_named(
    done: Published, small: Small, registry: Registry
) -> None:
    module: Path = small.root / "entrypoints" / "errors.py"
    text = module.read_text()
    module.write_text(f"{text}# changed\n")
    try:
        with pytest.raises(NotReproducibleError, match=r"entrypoints/errors\.py: content"):
            verify_reference(f"{registry.host}/small/cpu@{done.digest}", Wanted(), root=small.root)
    finally:
        module.write_text(text)
    assert json.loads((small.root / "images" / VARIANT / "lock.json").read_text())["variant"] == VARIANT
