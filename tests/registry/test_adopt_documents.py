"""Documents about other images that a base carries are not attached in the user's repository."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.core.project import Project
from drydock.registry.manifests import Manifests
from drydock.verbs import adopt_verb
from tests.registry.test_adopt import fetch, options, project, upstream
from tests.support.servers import Registry
from tests.support.upstream_image import FILES, INDEX, OCI_MANIFEST, Upstream, digest_of, make_layer

__all__ = ["project", "upstream"]  # fixtures

Attack = Callable[[Upstream, dict[str, Any], dict[str, Any]], None]
"""What a publisher does with its repository, given the base and the image that is attacked."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


def put_document(upstream: Upstream, subject: dict[str, Any] | None, tag: str, **changes: Any) -> dict[str, Any]:
    """Put a bill of materials about a subject, or about none, under a tag; return its descriptor."""
    kind = "application/spdx+json"
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": kind,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", **upstream.put_blob(b"{}")},
        "layers": [{"mediaType": kind, **upstream.put_blob(b"hostile")}],
    }
    if subject:
        manifest["subject"] = {name: subject[name] for name in ("mediaType", "digest", "size")} | changes
    digest = upstream.put_manifest(manifest, tag)
    return {"mediaType": OCI_MANIFEST, "digest": digest, "size": len(json.dumps(manifest).encode())}


def list_as_referrer(upstream: Upstream, base: dict[str, Any], victim: dict[str, Any]) -> None:
    tag = base["digest"].replace(":", "-")
    upstream.push_index(tag, [{**put_document(upstream, victim, "evil"), "artifactType": "application/spdx+json"}])


def list_with_another_size(upstream: Upstream, base: dict[str, Any], _: dict[str, Any]) -> None:
    entry = put_document(upstream, base, "evil", size=base["size"] + 1)
    upstream.push_index(base["digest"].replace(":", "-"), [{**entry, "artifactType": "application/spdx+json"}])


def list_with_another_type(upstream: Upstream, base: dict[str, Any], _: dict[str, Any]) -> None:
    entry = put_document(upstream, base, "evil", mediaType=INDEX)
    upstream.push_index(base["digest"].replace(":", "-"), [{**entry, "artifactType": "application/spdx+json"}])


def put_under_cosigns_tag(upstream: Upstream, base: dict[str, Any], victim: dict[str, Any]) -> None:
    for end in ("sbom", "att", "sig"):
        put_document(upstream, victim, f"{base['digest'].replace(':', '-')}.{end}")


def attest_as_buildkit_does(upstream: Upstream, base: dict[str, Any], victim: dict[str, Any]) -> None:
    annotations = {
        "vnd.docker.reference.type": "attestation-manifest",
        "vnd.docker.reference.digest": base["digest"],
    }
    unknown = {"os": "unknown", "architecture": "unknown"}
    entry = {**put_document(upstream, victim, "evil"), "annotations": annotations, "platform": unknown}
    upstream.push_index("v0.33.0", [base, entry])


def make_base_a_document(upstream: Upstream, _: dict[str, Any], victim: dict[str, Any]) -> None:
    subject = {name: victim[name] for name in ("mediaType", "digest", "size")}
    upstream.push("v0.33.0", manifest={"subject": subject, "artifactType": "application/spdx+json"})


def make_index_a_document(upstream: Upstream, base: dict[str, Any], victim: dict[str, Any]) -> None:
    subject = {name: victim[name] for name in ("mediaType", "digest", "size")}
    content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [base], "subject": subject}
    upstream.put_manifest({**content, "artifactType": "application/spdx+json"}, "v0.33.0")


@pytest.mark.parametrize(
    "attack",
    [
        list_as_referrer,
        list_with_another_size,
        list_with_another_type,
        put_under_cosigns_tag,
        attest_as_buildkit_does,
        make_base_a_document,
        make_index_a_document,
    ],
)
def test_a_base_attaches_nothing_to_another_image_of_the_repository(
    project: Project, upstream: Upstream, other_registry: Registry, attack: Attack, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Upstream(other_registry.host, f"acme/{attack.__name__}")
    victim = repository.push("mine", [make_layer(FILES, salt="mine")])
    attack(upstream, upstream.push("v0.33.0"), victim)
    adopted = adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/{repository.name}:adopted"))
    assert adopted.upstream == ()
    assert "not carried along" in capsys.readouterr().err
    assert list_subjects(other_registry, repository) <= {adopted.digest, *adopted.platforms.values()}


def list_subjects(registry: Registry, repository: Upstream) -> set[str]:
    """Return what the manifests in a repository are attached to, whoever lists them."""
    folder = registry.folder / "data/docker/registry/v2/repositories" / repository.name / "_manifests/revisions/sha256"
    manifests = [
        fetch(registry.host, repository.name, f"manifests/sha256:{path.name}").json() for path in folder.iterdir()
    ]
    return {manifest["subject"]["digest"] for manifest in manifests if "subject" in manifest}


def test_a_document_that_the_user_put_under_the_tag_of_the_base_stays(
    project: Project, upstream: Upstream, other_registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    base = upstream.push("v0.33.0")
    repository, tag = Upstream(other_registry.host, "acme/kept"), f"{base['digest'].replace(':', '-')}.sig"
    put_document(upstream, None, tag)
    repository.push("mirror")
    mine = repository.push(tag, [make_layer({"mine": b""})])["digest"]
    adopted = adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/{repository.name}:adopted"))
    assert adopted.upstream == ()
    assert "not carried along" in capsys.readouterr().err
    assert digest_of(fetch(other_registry.host, repository.name, f"manifests/{tag}").content) == mine


def test_a_list_of_documents_that_the_registry_does_not_have_ends(
    project: Project, upstream: Upstream, other_registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    base = upstream.push("v0.33.0")
    put_document(upstream, base, f"{base['digest'].replace(':', '-')}.sbom")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drydock.adopt.upstream_documents.MOST_DOCUMENTS", 2)
        absent = [{"digest": digest_of(bytes([number])), "artifactType": "x"} for number in range(9)]
        patch.setattr(Manifests, "referrers", lambda *_: absent)
        adopted = adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/acme/endless"))
    assert adopted.upstream == ()
    assert "more than 2 documents" in capsys.readouterr().err
