from __future__ import annotations

import json

import pytest

from drydock.attest import bom
from drydock.attest.components import Component

SUBJECT = bom.BomSubject("drydock/cpu", "0.32.0", f"sha256:{'a' * 64}", 1795219200)
PARTS = (
    Component("deb", "libc6", "2.36-9+deb12u10", "amd64", "b" * 64),
    Component("pypi", "torch", "2.13.0+cpu", sha256="c" * 64, licence="BSD-3-Clause"),
    Component("pypi", "intel-openmp", "2026.1", sha256="d" * 64, licence="LicenseRef-Intel-EULA-developer-tools"),
    Component("pypi", "jaraco-text", "4.0", within="setuptools", licence="MIT"),
    Component("pypi", "jaraco-text", "4.0", within="other"),
    Component("git", "vllm", "e" * 40, source="https://github.com/vllm-project/vllm.git"),
    Component("file", "TopsRider_i3x.run", "", sha256="f" * 64),
    Component("oci", "docker.io/library/ubuntu", f"sha256:{'1' * 64}"),
)


def test_both_formats_own_rules_are_kept() -> None:
    assert bom.cyclonedx_problems(bom.cyclonedx(SUBJECT, PARTS)) == ()
    assert bom.spdx_problems(bom.spdx(SUBJECT, PARTS)) == ()


def test_a_broken_document_is_found_out() -> None:
    cyclonedx, spdx = json.loads(bom.cyclonedx(SUBJECT, PARTS)), json.loads(bom.spdx(SUBJECT, PARTS))
    cyclonedx["components"][0]["type"] = "nonsense"
    spdx["packages"][0].pop("downloadLocation")
    assert bom.cyclonedx_problems(json.dumps(cyclonedx))
    with pytest.raises(Exception, match=r"downloadLocation|download_location"):
        bom.spdx_problems(json.dumps(spdx))


def test_they_say_the_same_each_time_and_the_same_as_each_other() -> None:
    cyclonedx, spdx = bom.cyclonedx(SUBJECT, PARTS), bom.spdx(SUBJECT, PARTS)
    assert (bom.cyclonedx(SUBJECT, PARTS), bom.spdx(SUBJECT, PARTS)) == (cyclonedx, spdx)
    packages = bom.cyclonedx_packages(json.loads(cyclonedx))
    assert packages == bom.spdx_packages(json.loads(spdx))
    assert ("pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64", "b" * 64) in packages
    assert ("pkg:pypi/torch@2.13.0%2Bcpu", "c" * 64) in packages
    assert len(json.loads(cyclonedx)["components"]) == len(PARTS)
