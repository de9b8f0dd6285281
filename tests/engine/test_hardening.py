"""Images built for real, looked through as `invoke audit` does: the CPU image, and a stand-in of every accelerator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.attest import bom, components, contents, licences
from drydock.build import build
from drydock.build.job import Job
from drydock.config.matrix import read_matrix
from drydock.config.project import DRYDOCK
from drydock.core.paths import ROOT
from drydock.examine import audit, hardening
from drydock.lock.lockfile import path_of, read_lock
from drydock.model.variant import Variant
from drydock.publish import push
from tests.support.standins import PLATFORM, build_layouts

FIRST = {variant.accelerator: variant for variant in reversed(read_matrix(DRYDOCK)) if PLATFORM in variant.platforms}


def test_nothing_is_in_the_cpu_image_that_should_not_be(job: Job, built: build.Built) -> None:
    found = audit.examine(job, Path(built.layout))
    assert found.findings == ()
    assert found.of_base == ()
    assert "rights" not in {item.rule for item in found.allowed}


def test_every_file_and_package_of_the_cpu_image_is_accounted_for_in_a_valid_bill(job: Job, built: build.Built) -> None:
    layout, pins = push.read_layout(job, Path(built.layout)), job.lock.platforms[job.platform]
    found = contents.read_contents(layout.manifest.content, layout.blob, components.base_layers(pins))
    assert found.unaccounted() == ()
    assert components.mismatches(job.variant, pins, found) == ()
    site = [path for path in found.files if "/site-packages/" in path]
    assert len(site) > 10_000
    assert {found.owners[path].partition(":")[0] for path in site} == {"pypi"}

    inventory = licences.inventory(built.digest, found, licences.read_policy(DRYDOCK))
    expected = components.locked(job.variant, pins)
    parts = components.installed(found, expected, inventory)
    text = bom.write(bom.BomSubject("cpu", "1", built.digest, job.variant.epoch), parts)
    assert bom.problems(text) == ()
    assert {(part.purl, part.sha256) for part in expected} <= bom.packages(json.loads(text))


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One stand-in of each accelerator, as OCI layouts."""
    return build_layouts(tmp_path_factory.mktemp("audited"), [*FIRST.values()])


@pytest.mark.parametrize("variant", FIRST.values(), ids=lambda variant: variant.id)
def test_nothing_is_in_a_stand_in_that_should_not_be(variant: Variant, layouts: dict[str, Path]) -> None:
    pins = read_lock(path_of(DRYDOCK, variant.id))
    job = Job(variant, pins, PLATFORM, DRYDOCK)
    found = audit.examine(job, layouts[variant.id])
    assert found.findings == ()
    dockerfile = (ROOT / "images" / variant.id / "Dockerfile").read_text()
    assert found.layers - hardening.own_layers(dockerfile) == 2  # the small Debian root, and the base's stubs upon it
