"""Images built from the real packages, where these can be had: gigabytes, so on demand (`./inv test --kind packages`).

What a variant's packages prove: they install without network on a Debian base, they import together, and vLLM's own
parser tells its flags. Without the device nothing is served. Every image and its layers are removed afterwards.
Rows for another processor are built under emulation where the engine has one (docs/cuda.md says which works).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from drydock.build import build
from drydock.build.build_job import Job, prepare_job
from drydock.build.pins import accept_emulated_base, find_missing_pins
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.engine.daemon import list_builder_platforms
from drydock.inputs.wheels import is_native_platform
from drydock.model.variant import Variant
from drydock.oci.image_layout import read_digest
from tests.engine.test_standins import list_hosts, plan_on_first_host
from tests.support.hosts import expect
from tests.support.sample import write_model
from tests.support.started_containers import CREATED_WITHIN, Ended, run_container

IMPORTS = {
    "cuda": ("torch", "vllm", "flashinfer"),
    "tpu": ("torch", "jax", "libtpu", "vllm"),
    "ascend": ("torch",),
    "cpu": ("torch", "vllm"),
}
"""Accelerator → the modules that must import together, without a device."""
NOT_EVERYWHERE = {"flashinfer": "flashinfer-python"}
"""Module → the distribution that brings it, where some releases of vLLM want none."""

AT_MOST, EMULATED_AT_MOST = 600, 1800
"""Seconds of a command in an image. Under emulation on two cores, vLLM's import takes minutes."""

HEAVY = [
    variant for variant in read_matrix(DRYDOCK) if variant.accelerator in IMPORTS and variant.base.kind == "debian"
]

pytestmark = pytest.mark.packages

Run = Callable[..., Ended]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(variant, id=variant.id, marks=pytest.mark.proves(variant.id, "packages")) for variant in HEAVY
    ],
)
def variant(request: pytest.FixtureRequest) -> Variant:
    """Return one variant after the other; skip those that cannot be built here, with the reason."""
    row: Variant = request.param
    job = prepare_emulated_job(row)
    if job.platform not in list_builder_platforms():
        pytest.skip(f"{row.id}: this engine runs no {job.platform}")
    if lacking := find_missing_pins(job):
        pytest.skip(f"{row.id}: not pinned: {', '.join(sorted(lacking))}")
    return row


def prepare_emulated_job(variant: Variant) -> Job:
    """Return the job of a row, for this machine's platform where the row has it; an emulated base needs no digest."""
    return accept_emulated_base(prepare_job(DRYDOCK, variant.id))


@pytest.fixture(scope="module")
def image(variant: Variant) -> Iterator[build.Built]:
    """Build a variant's image; remove it again, and what BuildKit kept of just this build."""
    before, job = cached(), prepare_emulated_job(variant)
    try:
        built = build.build_image(job)
        yield built
        if not variant.default or variant.accelerator != "cpu":
            images = docker.from_env(timeout=CREATED_WITHIN).images
            images.remove(images.get(built.image).id, force=True)  # by id: `latest` names it too
            shutil.rmtree(built.layout)
            shutil.rmtree(job.foundation, ignore_errors=True)  # not there where the image was kept
    finally:
        forget(cached() - before)


def forget(records: set[str]) -> None:
    """Let BuildKit drop records; one on which others stand goes after them."""
    while records:
        ids = sorted(records)
        # BuildKit compiles the pattern for each record that it has, so one of 851 ids held it for minutes.
        for names in ("|".join(ids[start : start + 50]) for start in range(0, len(ids), 50)):
            command = ["docker", "buildx", "prune", "--all", "--force", "--filter", f"id~=^({names})$"]
            subprocess.run(command, check=False, capture_output=True)
        cached_records = cached() & records
        if cached_records == records:
            return
        records = cached_records


def cached() -> set[str]:
    """Return the ids of what BuildKit keeps."""
    result = subprocess.run(
        ["docker", "buildx", "du", "--format", "{{.ID}}"], check=True, capture_output=True, text=True
    )
    return set(result.stdout.split())


@pytest.fixture
def run(image: build.Built) -> Run:
    """Run a command in the image, without network, as its own user."""

    def _run(*words: str) -> Ended:
        options: dict[str, Any] = {"network_mode": "none", "read_only": True, "tmpfs": ("/tmp",)}
        options |= {"platform": image.platform, "volumes": [(expect.HOSTS, "/hosts")]}
        seconds = AT_MOST if is_native_platform(image.platform) else EMULATED_AT_MOST
        return run_container(image.image, *words, seconds=seconds, **options)

    return _run


@pytest.mark.of_foundation
def test_the_packages_import_together(variant: Variant, run: Run, record_property: Callable[[str, Any], None]) -> None:
    job = prepare_emulated_job(variant)
    record_property("foundation_digest", read_digest(job.foundation))
    profile = expect.profile_in(variant.id)
    locked = {wheel.name for wheels in job.pins.layers.values() for wheel in wheels}
    module_names = (name for name in IMPORTS[variant.accelerator] if NOT_EVERYWHERE.get(name) in {None, *locked})
    modules = ", ".join(module_names)
    ran = run(profile["python"], "-c", f"import {modules}; print({modules.split(', ', maxsplit=1)[0]}.__version__)")

    assert ran.code == 0, ran.stderr[-3000:]


def test_the_image_plans_what_the_repository_plans(
    variant: Variant, image: build.Built, run: Run, tmp_path: Path, record_property: Callable[[str, Any], None]
) -> None:
    record_property("digest", image.digest)
    host, expected = plan_on_first_host(variant, write_model(tmp_path / "stub"))
    ran = run("facts", "--json", "--root", f"/hosts/{host}")

    assert host in list_hosts(variant)
    assert expected.argv
    assert ran.code == 0, ran.stderr[-2000:]
