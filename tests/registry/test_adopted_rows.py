"""Each verb on a row that `adopt` wrote: it does the adopted thing, and never builds another image on the same base."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drydock.adopt.base_facts import BaseFacts
from drydock.attest import documents
from drydock.build import build, rebuild
from drydock.build.build_job import BuildOptions, Job, prepare_job
from drydock.ci.ci_rows import list_ci_rows
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.server_access import Access
from drydock.core.errors import EngineError, FetchError, InputError, UntrustedError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.engine import image_loading
from drydock.examine import audit, verify_published
from drydock.examine.verify_published import VerifyOptions
from drydock.inputs import overrides
from drydock.oci import image_layout
from drydock.oci.reference import parse_reference
from drydock.publish.repository import Repository
from drydock.run.container import RunRequest
from drydock.verbs import adopt_verb, run_verb
from tests.registry.test_adopt import (
    STATED,
    adopted_name,
    change,
    fetch,
    make_project,
    options,
    project,
    read_files,
    upstream,
)
from tests.registry.test_projects import verb
from tests.support import layouts
from tests.support.called_verbs import create_bundle, load_bundle, run_as
from tests.support.local_registry import publish
from tests.support.servers import Registry
from tests.support.upstream_image import FILES, SETTINGS, Upstream, make_layer
from tests.unit.drydock.verbs.test_run_verb import FakeHere

__all__ = ["project", "upstream"]  # fixtures

ROW = "vllm-openai-v0.33.0"
TOOLS = {**FILES, "usr/bin/gcc": b"", "bin/bash": b"", "root/.bashrc": b""}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def adopted_digest(project: Project, upstream: Upstream) -> str:
    upstream.push("v0.33.0")
    return adopt_verb.adopt_base(project, options(upstream)).digest


def build_row(job: Job) -> str:
    return build.build_image(job, into_engine=False).digest


def record_row(project: Project, row: str = ROW) -> None:
    job = prepare_job(project, row)
    rebuild.settle_verification(job, rebuild.verify_build(job, recording=True), recording=True)


def test_build_assembles_the_image_that_adopt_wrote_and_asks_no_builder(
    project: Project, upstream: Upstream, adopted_digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("BuildKit was asked")

    monkeypatch.setattr("drydock.build.buildx.run_bake", refuse)
    monkeypatch.setattr("drydock.engine.daemon.ensure_engine", refuse)
    job = prepare_job(project, ROW)
    assert build_row(job) == adopted_digest
    layout = job.layout
    (base,) = (path for path in (layout / "blobs/sha256").iterdir() if path.stat().st_nlink > 1)
    assert f"sha256:{base.name}" in fetch(upstream.host, upstream.name, "manifests/v0.33.0").text


def test_each_platform_of_an_index_is_assembled_as_adopt_wrote_it(project: Project, upstream: Upstream) -> None:
    entries = [upstream.push(name, platform=f"linux/{name}") for name in ("amd64", "arm64")]
    upstream.push_index("v0.33.0", entries)
    adopted = adopt_verb.adopt_base(project, options(upstream))
    for platform, digest in adopted.platforms.items():
        assert build_row(prepare_job(project, ROW, BuildOptions(platform=platform))) == digest


def test_a_build_without_network_says_which_base_is_missing_and_takes_it_from_the_store(
    project: Project, adopted_digest: str
) -> None:
    job = prepare_job(project, ROW, BuildOptions(offline=True))
    with pytest.raises(FetchError, match=r"not in the store: base .*vllm-openai:v0\.33\.0@sha256:"):
        build_row(job)
    verb(project.root, "fetch", "--target", ROW)
    assert build_row(job) == adopted_digest


def test_a_stand_in_of_an_adopted_row_is_built_as_others_are(project: Project, adopted_digest: str) -> None:
    assert adopted_digest
    replaced = BuildOptions(context_overrides=overrides.parse_contexts([f"base={project.root}"]))
    assert not prepare_job(project, ROW, replaced).is_adopted


def test_additions_that_need_a_build_are_refused_with_what_builds_them(project: Project, adopted_digest: str) -> None:
    assert adopted_digest
    (project.root / "drydock.yaml").write_text("schema: 1\nname: acme\nadditions: {files: {/etc/motd: motd}}\n")
    (project.root / "motd").write_text("hello\n")
    verb(project.root, "render", "--target", ROW)
    with pytest.raises(InputError, match=r"additions\.files: expected none") as caught:
        build_row(prepare_job(project, ROW))
    assert "adopted: true" in caught.value.hint


def test_bake_has_no_plan_for_what_is_not_built(project: Project, adopted_digest: str) -> None:
    assert adopted_digest
    with pytest.raises(AssertionError, match=rf"adopted[\s\S]*{re.escape(str(ROOT))}/inv build --target"):
        verb(project.root, "bake", "--target", ROW)


def test_verify_assembles_it_in_another_process_and_records_the_digest(project: Project, adopted_digest: str) -> None:
    job = prepare_job(project, ROW)
    verified = rebuild.verify_build(job)
    assert (verified.reproducible, verified.first, verified.second) == (True, adopted_digest, adopted_digest)
    assert verified.committed is None
    record_row(project)
    again = rebuild.verify_build(prepare_job(project, ROW))
    assert (again.committed, again.matches_committed) == (adopted_digest, True)


def test_publish_writes_the_same_digest_and_the_documents_that_adopt_attaches(
    project: Project, upstream: Upstream, adopted_digest: str
) -> None:
    with pytest.raises(InputError, match="no image was built") as caught:
        publish(project, f"{upstream.host}/published", target=ROW)
    assert "./inv adopt" in caught.value.hint
    record_row(project)
    published = publish(project, f"{upstream.host}/published", target=ROW)
    assert published.digest == adopted_digest
    assert published.tags[0].tag == f"{ROW}-edge"
    assert {*published.referrers[adopted_digest]} > {"lock.json", "licences.json", "provenance.json", "sbom.spdx.json"}


def read_documents(upstream: Upstream, digest: str) -> dict[str, Any]:
    """Return the documents that are attached to an adopted image, by file name."""
    repository = Repository(parse_reference(f"{upstream.host}/{adopted_name(upstream)}"), Access())
    attached_items = repository.documents(digest, documents.ABOUT_IMAGE)
    return {documents.FILE_NAMES[item.media_type]: item.json() for item in attached_items}


def test_documents_vouch_for_two_layers_and_only_name_the_base(project: Project, upstream: Upstream) -> None:
    labels = {**SETTINGS["Labels"], "org.opencontainers.image.licenses": "Apache-2.0"}
    upstream.push("v0.33.0", settings={**SETTINGS, "Labels": labels})
    adopted = adopt_verb.adopt_base(project, options(upstream))
    base = adopted.base.partition("@")[2]
    attached = read_documents(upstream, adopted.digest)
    definition = attached["provenance.json"]["predicate"]["buildDefinition"]
    assert definition["buildType"] == "urn:drydock:adopt:v1"
    assert definition["internalParameters"]["base"] == base
    assert definition["internalParameters"]["addedLayers"] == [*adopted.layers]
    packages = {item["name"]: item for item in attached["sbom.spdx.json"]["packages"]}
    named = packages[f"{upstream.host}/{upstream.name}"]
    assert (named["versionInfo"], named["licenseDeclared"]) == (base, "Apache-2.0")
    assert "only names" in named["comment"]
    assert {item["checksums"][0]["checksumValue"] for item in packages.values() if "checksums" in item} >= {
        digest.removeprefix("sha256:") for digest in adopted.layers
    }
    assert attached["licences.json"]["packages"][0]["licence"] == "Apache-2.0"
    again = adopt_verb.adopt_base(project, options(upstream))
    assert (again.bytes_sent, [*again.documents]) == (0, [adopted.digest])


def test_image_verify_checks_signatures_documents_and_base_and_assembles_it_again(
    project: Project, upstream: Upstream, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream, sign_key=str(key)))
    trust = verify_published.cosign.Trust(key=str(key.with_suffix(".pub")))
    trusted = verify_published.verify_reference(project, adopted.image, VerifyOptions(trust))
    assert trusted.rebuilt == adopted.digest
    assert any("names the base" in line for line in trusted.shown)
    assert any("what is in the base" in line for line in trusted.not_shown)


def test_an_image_whose_label_names_another_base_than_its_lock_is_not_trusted(
    project: Project, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    lock = project.root / "images" / ROW / "lock.json"
    other = upstream.push("v0.33.0", [make_layer(FILES, salt="other")])["digest"]
    moved = adopt_verb.adopt_base(project, options(upstream))
    assert other in lock.read_text()
    image = verify_published.open_image(adopted.image)
    check = verify_published._Check(image, VerifyOptions(unsigned=True), verify_published.Signatures(
        verify_published.cosign.Trust(), image.where))  # fmt: skip
    check.lock = verify_published.lockfile.read_lock(lock)
    with pytest.raises(UntrustedError, match="label names the base"):
        check._is_adopted("linux/amd64")
    assert moved.digest != adopted.digest


def test_a_bundle_carries_the_base_and_another_machine_assembles_it_without_network(
    project: Project, adopted_digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_row(project)
    file = tmp_path / "row.tar"
    created = create_bundle(project, [ROW], file)
    assert created.images[ROW] == {"linux/amd64": adopted_digest}
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "other"))
    loaded = load_bundle(project, file, {"digest": created.bundle})
    assert [image.rebuildable for image in loaded.images] == [True]
    job = prepare_job(project, ROW, BuildOptions(offline=True))
    assert build.build_image(job, into_engine=False, no_cache=True).digest == adopted_digest


def test_run_prints_and_pulls_the_reference_that_adopt_wrote(
    project: Project, upstream: Upstream, adopted_digest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert adopted_digest
    here = FakeHere(tmp_path)
    here.project = project
    run_verb.run_on_engine(project, ROW, RunRequest(model="org/model"), run_as(only_print=True), here)
    written_to = f"{upstream.host}/{adopted_name(upstream)}:{ROW}-edge"
    assert written_to in capsys.readouterr().out
    here.images.append(f"drydock/{ROW}:latest")
    run_verb.run_on_engine(project, ROW, RunRequest(model="org/model"), run_as(only_print=True), here)
    assert f"drydock/{ROW}" in capsys.readouterr().out


def test_upgrade_compare_and_ci_know_the_row(project: Project, adopted_digest: str) -> None:
    assert adopted_digest
    upgraded = json.loads(verb(project.root, "project", "upgrade", "--json"))
    assert not upgraded.get("gone")
    command = ("--", "vllm", "serve", "Qwen/Qwen3-0.6B", "--max-model-len", "4096")
    with pytest.raises(AssertionError, match=rf"nothing breaks that is known, .* for {ROW}"):  # of its release it knows
        verb(project.root, "compare", "--from", "cuda13.0-vllm0.27", "--to", ROW, *command)
    built, left_out = list_ci_rows(project, [find_variant(read_matrix(project), ROW)])
    assert not left_out
    assert [(row.variant, row.disk) for row in built] == [(ROW, None)]


def test_audit_lists_what_upstream_brings_and_calls_none_of_it_ours(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0", [make_layer(TOOLS)])
    adopt_verb.adopt_base(project, options(upstream))
    job = prepare_job(project, ROW)
    build_row(job)
    audited = audit.audit_job(job)
    assert {item.path for item in audited.of_base} >= {"usr/bin/gcc"}
    assert not [item for item in audited.findings if item.layer == 0]


@pytest.fixture
def names() -> Iterator[list[str]]:
    """Images of the engine that a test makes, which are removed afterwards."""
    image_names: list[str] = []
    yield image_names
    for name in image_names:
        image_loading.remove_image_name(name)
        image_loading.remove_image_name(f"{name.partition(':')[0]}:latest")


def test_load_puts_the_same_image_into_the_engine_and_writes_no_registry(
    project: Project, upstream: Upstream, names: list[str], other_registry: Registry
) -> None:
    upstream.push("v0.33.0", [make_layer({**FILES, "etc/passwd": b"root:x:0:0::/:/bin/sh\n"})])
    adopted = adopt_verb.adopt_base(project, change(options(upstream, load=True, row="loaded-row"), to=""))
    names.append(adopted.loaded)
    assert adopted.tag is None
    assert image_loading.has_complete_image(adopted.loaded, adopted.digest)
    pushed = adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/acme/loaded", row="loaded-row"))
    assert pushed.digest == adopted.digest


def test_an_image_that_only_the_engine_has_is_adopted_into_it(
    project: Project, upstream: Upstream, names: list[str], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    (base / "layer.tar").write_bytes(layouts.tar([(name, data, {}) for name, data in TOOLS.items()]))
    digest = image_layout.write_layout(base, base / "layer.tar", "linux/amd64", 0, "another team")
    image_loading.load_layout(base, "another-team/vllm:1")
    names.append("another-team/vllm:1")
    local = change(options(upstream, stated=UNSTATED), image="another-team/vllm:1", to="", row="local-row")
    settings = change(local, read_layers=True, load=True, from_engine=True)
    adopted = adopt_verb.adopt_base(project, settings)
    names.append(adopted.loaded)
    assert image_loading.has_complete_image(adopted.loaded, adopted.digest)
    assert (adopted.facts["digest"], adopted.facts["vllm"], adopted.bytes_sent) == (digest, "0.33.0", 0)
    record_row(project, "local-row")
    published = publish(project, f"{upstream.host}/published", target="local-row")
    assert published.digest == adopted.digest
    for changes in ({"to": "reg.example/x"}, {"load": False}, {"verify_key": "k"}):
        with pytest.raises(InputError, match="--from-engine"):
            adopt_verb.adopt_base(project, change(settings, **changes))
    with pytest.raises(EngineError, match="docker save another-team/none"):
        adopt_verb.adopt_base(project, change(settings, image="another-team/none:1"))
    with pytest.raises(InputError, match="expected linux/arm64"):
        adopt_verb.adopt_base(project, change(settings, platform="linux/arm64"))


UNSTATED = BaseFacts(accelerator="cuda")


# --- facts of a file ------------------------------------------------------------------------------------------------


def test_facts_of_a_file_replace_the_reading_of_layers_and_are_what_json_prints(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    read = adopt_verb.adopt_base(
        make_project(tmp_path / "one"), options(upstream, stated=BaseFacts(), read_layers=True)
    )
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({"facts": dict(read.facts)}))
    file_options = options(upstream, stated=BaseFacts(), facts=str(file))
    adopted = adopt_verb.adopt_base(make_project(tmp_path / "two"), file_options)
    assert (adopted.digest, adopted.bytes_read) == (read.digest, 0)
    option = change(file_options, vllm="0.27.1")
    assert adopt_verb.adopt_base(make_project(tmp_path / "three"), option).facts["vllm"] == "0.27.1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"digest": "sha256:' + "0" * 64 + '"}', "is about the image"),
        ('{"vllm": 3}', "vllm"),
        ('{"vlm": "0.33.0"}', "vlm"),
        ("[]", "expected a JSON object"),
        ('{"facts": "all"}', "facts"),
        ('{"vllm": "../x"}', "--vllm"),
    ],
)
def test_facts_of_another_form_have_their_sentence(
    project: Project, upstream: Upstream, tmp_path: Path, text: str, message: str
) -> None:
    upstream.push("v0.33.0")
    file = tmp_path / "facts.json"
    file.write_text(text)
    before = read_files(project)
    unsaid = options(upstream, stated=STATED._replace(vllm=""), facts=str(file))
    with pytest.raises(InputError, match=message):
        adopt_verb.adopt_base(project, unsaid)
    assert read_files(project) == before
    with pytest.raises(InputError, match="No such file"):
        adopt_verb.adopt_base(project, options(upstream, facts=str(tmp_path / "none.json")))
    with pytest.raises(InputError, match="--facts and --read-layers"):
        adopt_verb.adopt_base(project, options(upstream, facts=str(file), read_layers=True))
