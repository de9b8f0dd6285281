"""Images built for real, looked through as `invoke audit` does: the CPU image, and a stand-in of every accelerator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.attest import bom, components, contents, licences
from drydock.build import build
from drydock.build.build_job import Job
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.examine import audit, hardening
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.model.variant import Variant
from drydock.publish import push
from tests.support.standins import PLATFORM, build_layouts

DEFAULTS = [variant for variant in read_matrix(DRYDOCK) if variant.default and PLATFORM in variant.platforms]
"""A row of each accelerator. test_standins.py builds them too: BuildKit makes their layers once."""


def test_nothing_is_in_the_cpu_image_that_should_not_be(job: Job, built: build.Built) -> None:
    report = audit.audit_layout(job, Path(built.layout))
    assert report.findings == ()
    assert report.of_base == ()
    assert "rights" not in {item.rule for item in report.allowed}


def test_every_file_and_package_of_the_cpu_image_is_accounted_for_in_a_valid_bill(job: Job, built: build.Built) -> None:
    layout, pins = push.read_layout(job, Path(built.layout)), job.lock.platforms[job.platform]
    image_contents = contents.read_contents(layout.manifest.content, layout.blob, components.base_layers(pins))
    assert image_contents.unaccounted() == ()
    assert components.find_lock_mismatches(job.variant, pins, image_contents) == ()
    site = [path for path in image_contents.files if "/site-packages/" in path]
    assert len(site) > 10_000
    assert {image_contents.owners[path].partition(":")[0] for path in site} == {"pypi"}

    inventory = licences.make_licence_inventory(built.digest, image_contents, licences.read_policy(DRYDOCK))
    expected = components.list_locked_components(job.variant, pins)
    parts = components.list_installed_components(image_contents, expected, inventory)
    text = bom.make_bom(bom.BomSubject("cpu", "1", built.digest, job.variant.epoch), parts)
    assert bom.find_spdx_violations(text) == ()
    assert {(part.purl, part.sha256) for part in expected} <= bom.list_bom_packages(json.loads(text))


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A stand-in of each accelerator, as OCI layouts."""
    return build_layouts(tmp_path_factory.mktemp("audited"), DEFAULTS)


@pytest.mark.parametrize("variant", DEFAULTS, ids=lambda variant: variant.id)
def test_nothing_is_in_a_stand_in_that_should_not_be(variant: Variant, layouts: dict[str, Path]) -> None:
    pins = read_lock(path_of_lock(DRYDOCK, variant.id))
    job = Job(variant, pins, PLATFORM, DRYDOCK)
    report = audit.audit_layout(job, layouts[variant.id])
    assert report.findings == ()
    dockerfile = (ROOT / "images" / variant.id / "Dockerfile").read_text()
    assert report.layers - hardening.own_layers(dockerfile) == 2  # the small Debian root, and the base's stubs upon it
