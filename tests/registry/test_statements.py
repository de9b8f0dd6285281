"""Statements about vulnerabilities travel with a published image: signed, and about that image alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.attest import documents, signing, vex
from drydock.attest.signing import Trust
from drydock.config.access import Access
from drydock.core.errors import UntrustedError
from drydock.examine import trust
from drydock.examine.pulled import open_image
from drydock.oci.reference import parse
from drydock.publish.push import PublishOptions, Repository, publish
from tests.support.local_registry import VARIANT, LocalRepository
from tests.support.servers import Registry

AMD64 = "linux/amd64"


def write_statement(local: LocalRepository) -> str:
    """State something about a wheel of the image; return the wheel's name."""
    wheel = next(wheel for layer in local.lock.platforms[AMD64].layers.values() for wheel in layer)
    (local.root / vex.FILE).write_text(f"""
schema: 1
author: the tests
statements:
- vulnerability: CVE-2026-1
  package: pkg:pypi/{wheel.name}
  versions: ["{wheel.version}"]
  status: not_affected
  justification: vulnerable_code_not_present
  statement: it has no code
  date: "2026-11-22"
""")
    return wheel.name


@pytest.mark.attack(
    what="someone attaches the statements about another image, so that scanners overlook a vulnerability",
    before="no statements were attached",
    after="verify requires that statements are signed and name this image's digest",
)
def test_statements_are_published_signed_and_about_this_image(
    registry: Registry, key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalRepository(tmp_path, platforms=(AMD64,), salt="vex")
    monkeypatch.setenv("DRYDOCK_CACHE", str(local.cache))
    name = write_statement(local)
    options = PublishOptions(f"{registry.host}/vex", release="1.0.0", key=str(key))
    done = publish(VARIANT, options, root=local.root)
    assert "vex.openvex.json" in done.referrers[done.platforms[AMD64]]

    where = f"{registry.host}/vex/cpu"
    image = open_image(f"{where}:{VARIANT}-1.0.0")
    (item,) = image.documents(done.platforms[AMD64], [documents.VEX])
    (statement,) = item.json()["statements"]
    (product,) = statement["products"]
    assert done.platforms[AMD64] in product["@id"]
    assert [part["@id"].partition("@")[0] for part in product["subcomponents"]] == [f"pkg:pypi/{name}"]

    public = Trust(key=str(key.with_suffix(".pub")))
    verification = trust.VerifyOptions(public, rebuild=False)
    found = trust.verify_reference(f"{where}:{VARIANT}-1.0.0", verification, root=local.root)
    assert any("vex.openvex.json" in line for line in found.shown)

    repository = Repository(parse(where), Access(), state=local.cache / "tests")
    other = json.dumps(item.json()).replace(done.platforms[AMD64], f"sha256:{'b' * 64}").encode()
    copied = repository.refer(image.platforms[AMD64], documents.VEX, other, "vex.openvex.json")
    with pytest.raises(UntrustedError, match="signature"):
        trust.verify_reference(f"{where}:{VARIANT}-1.0.0", verification, root=local.root)
    signing.sign([repository.where.at(copied.digest)], signing.Signer(str(key)))
    with pytest.raises(UntrustedError, match=f"about pkg:oci/cpu@sha256:{'b' * 64}"):
        trust.verify_reference(f"{where}:{VARIANT}-1.0.0", verification, root=local.root)
