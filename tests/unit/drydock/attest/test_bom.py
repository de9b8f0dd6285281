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


def test_the_document_is_valid_spdx() -> None:
    assert bom.find_spdx_violations(bom.make_bom(SUBJECT, PARTS)) == ()


def test_an_invalid_document_is_detected() -> None:
    document = json.loads(bom.make_bom(SUBJECT, PARTS))
    document["packages"][0]["SPDXID"] = "not an identifier"
    assert bom.find_spdx_violations(json.dumps(document))
    document["packages"][0].pop("downloadLocation")
    with pytest.raises(Exception, match=r"downloadLocation|download_location"):
        bom.find_spdx_violations(json.dumps(document))


def test_the_document_is_reproducible_and_lists_every_component() -> None:
    text = bom.make_bom(SUBJECT, PARTS)
    assert bom.make_bom(SUBJECT, PARTS) == text
    document = json.loads(text)
    assert len(document["packages"]) == len(PARTS) + 1
    packages = bom.list_bom_packages(document)
    assert {purl for purl, _ in packages} == {part.purl for part in PARTS}
    assert ("pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64", "b" * 64) in packages
    assert ("pkg:pypi/torch@2.13.0%2Bcpu", "c" * 64) in packages
