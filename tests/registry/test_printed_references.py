"""Whatever a verb pushes and signs is verified by each reference that the verb printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drydock.adopt import adopted_image
from drydock.attest import documents
from drydock.attest.cosign import Signer, Trust
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import UntrustedError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.examine import image, verify_published
from drydock.examine.verify_published import Trusted, VerifyOptions
from drydock.oci.reference import parse_reference
from drydock.publish import foundations, model_push, project_push, push
from drydock.verbs import adopt_verb
from drydock.verbs.model_push_verb import ModelPushOptions, push_folder
from tests.registry.test_adopt import options, project, upstream
from tests.registry.test_foundations import job
from tests.support import model_folder, projects
from tests.support.projects import VENDOR
from tests.support.servers import Registry
from tests.support.signed_image import Signed
from tests.support.upstream_image import Upstream

__all__ = ["job", "project", "upstream"]  # fixtures


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSIGN_PASSWORD", "")


def verify_printed(text: str, repository: str, key: Path, project: Project) -> list[Trusted]:
    """Verify each reference to a repository, and each tag in it, that a verb printed."""
    printed = re.findall(rf"{re.escape(repository)}[\w.:@-]*", text)
    tags = [f"{repository}:{tag}" for tag in re.findall(r"^tag (\S+):", text, re.MULTILINE)]
    assert printed
    return [verify(reference, key, project) for reference in (*printed, *tags)]


def verify(reference: str, key: Path, project: Project) -> Trusted:
    trust = Trust(key=str(key.with_suffix(".pub")))
    return verify_published.verify_reference(project, reference, VerifyOptions(trust, rebuild=False))


@pytest.mark.parametrize("tag", ["", ":one", ":v0.33.0", ":acme-1.0.0"])
def test_an_adopted_image(project: Project, upstream: Upstream, key: Path, tag: str) -> None:
    upstream.push("v0.33.0")
    repository = f"{upstream.host}/{upstream.name.replace('vllm-openai', 'adopted')}"
    settings = options(upstream, f"{repository}{tag}", sign_key=str(key))
    text = adopted_image.format_adopted(adopt_verb.adopt_base(project, settings))
    trusted = verify_printed(text, repository, key, project)
    assert len(trusted) == 2
    assert any("was published with this digest" in line for line in trusted[1].shown)


def test_inspect_reads_the_provenance_of_an_adopted_image(
    project: Project, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    text = image.format_inspected(image.inspect_image(DRYDOCK, adopted.image))
    assert "built    by `adopt` by urn:drydock:builder:local from no commit" in text
    assert "not as drydock writes it" not in capsys.readouterr().err


def test_a_published_image(signed: Signed, key: Path) -> None:
    project = Project(signed.local.root)
    text = push.format_published_image(signed.done)
    assert len(verify_printed(text, signed.where, key, project)) == 4


def test_a_foundation_and_not_an_image_under_its_key(job: Job, registry: Registry, key: Path) -> None:
    repository = f"{registry.host}/own/printed"
    pushed = foundations.push_foundations(job.project, [job.variant], repository, Signer(str(key)), insecure=False)
    text = foundations.format_pushed_foundations(pushed)
    for trusted in verify_printed(text, repository, key, job.project):
        assert any(line.startswith("signature of the key") for line in trusted.shown)
    by_key = f"{repository}:{job.foundation_key}"
    assert verify(by_key, key, job.project).digest == parse_reference(pushed[0].foundation).digest


def test_a_model_by_digest_and_by_tag(registry: Registry, tmp_path: Path, key: Path, project: Project) -> None:
    folder, repository = model_folder.write(tmp_path / "m"), f"{registry.host}/own/printed-model"
    for tag in ("", ":v1", ":tiny-1.0.0"):
        pushed = push_folder(ModelPushOptions(folder=str(folder), name=f"{repository}{tag}", sign_key=str(key)))
        trusted = verify_printed(model_push.format_pushed_model(pushed), repository, key, project)
        assert len(trusted) == 2
        assert "the bill of materials names this digest" in trusted[1].shown


def test_a_project_by_digest_and_by_tag(registry: Registry, tmp_path: Path, key: Path) -> None:
    project = Project(projects.write(tmp_path / "vendor", VENDOR), (ROOT,))
    repository = f"{registry.host}/own/printed-project"
    settings = Signer(str(key))
    for tag in ("", ":v1"):
        pushed = project_push.push_project(project, f"{repository}{tag}", settings)
        assert len(verify_printed(project_push.format_from_line(pushed), repository, key, project)) == 1
        assert verify(f"{repository}:{pushed.tag}", key, project).digest == pushed.digest


def test_an_image_whose_documents_were_removed_is_no_foundation_and_no_model(signed: Signed, key: Path) -> None:
    signed.rewrite_referrers(lambda item: item.get("artifactType") not in documents.ABOUT_IMAGE)
    with pytest.raises(UntrustedError, match=r"no lock\.json is attached"):
        verify(signed.image, key, Project(signed.local.root))
