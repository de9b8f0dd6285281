"""What upstream attached to a base is carried along; images of the official ones' shapes, and odd ones, are adopted."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests

from drydock.adopt.adopted_image import AdoptedImage, format_adopted
from drydock.adopt.base_facts import BaseFacts
from drydock.attest import cosign
from drydock.build import adoption
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import CredentialsError, InputError, LicenceError, RegistryError, UntrustedError
from drydock.core.project import Project
from drydock.oci import image_layout
from drydock.oci.manifest import Manifest
from drydock.registry.manifests import Manifests
from drydock.verbs import adopt_verb
from tests.registry.test_adopt import adopted_name, fetch, make_project, options, project, read_files, upstream
from tests.support import layouts
from tests.support.servers import PASSWORD, Registry
from tests.support.upstream_image import FILES, SETTINGS, Layer, Upstream, make_layer, wrap_layer

__all__ = ["project", "upstream"]  # fixtures

UNSAID = BaseFacts()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COSIGN_PASSWORD", "")


def run_cosign(*words: str) -> None:
    subprocess.run(["cosign", *words], check=True, capture_output=True)


def attach_document(upstream: Upstream, subject: dict[str, Any], kind: str, data: bytes) -> str:
    """Attach a document to an image as a referrer, and list it under the fallback tag; return its digest."""
    name = {key: subject[key] for key in ("mediaType", "digest", "size")}
    config = {"mediaType": "application/vnd.oci.empty.v1+json", **upstream.put_blob(b"{}")}
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": kind,
        "config": config,
        "layers": [{"mediaType": kind, **upstream.put_blob(data)}],
        "subject": name,
    }
    digest = upstream.put_manifest(manifest, "document")
    size = len(json.dumps(manifest).encode())
    entry = {"mediaType": manifest["mediaType"], "digest": digest, "size": size, "artifactType": kind}
    upstream.push_index(subject["digest"].replace(":", "-"), [entry])
    return digest


def read_manifest(host: str, name: str, tag: str) -> requests.Response:
    return requests.get(f"http://{host}/v2/{name}/manifests/{tag}", timeout=10)


# --- signatures, attestations, bills of materials -------------------------------------------------------------------


def test_signature_and_bill_of_materials_are_carried_into_another_registry_and_verified_with_a_key(
    project: Project, upstream: Upstream, other_registry: Registry, key: Path
) -> None:
    subject = upstream.push("v0.33.0")
    image = f"{upstream.host}/{upstream.name}@{subject['digest']}"
    bill = attach_document(upstream, subject, "application/spdx+json", b'{"spdxVersion": "SPDX-2.3"}')
    plain = ("--tlog-upload=false", "--use-signing-config=false", "--new-bundle-format=false")
    run_cosign("sign", "--yes", "--allow-http-registry", *plain, "--key", str(key), image)
    trust = cosign.Trust(key=str(key.with_suffix(".pub")))
    adopted = adopt_verb.adopt_base(
        project, options(upstream, f"{other_registry.host}/acme/carried", verify_key=trust.key)
    )
    assert adopted.upstream_verified
    assert {document.kind for document in adopted.upstream} == {"application/spdx+json", "signature"}
    assert {document.subject for document in adopted.upstream} == {subject["digest"]}
    assert "its signature is valid" in format_adopted(adopted)
    copied = fetch(other_registry.host, "acme/carried", f"manifests/{bill}").json()
    assert fetch(other_registry.host, "acme/carried", f"blobs/{copied['layers'][0]['digest']}").json()["spdxVersion"]
    public = ("--insecure-ignore-tlog=true", "--allow-http-registry", "--new-bundle-format=false")
    run_cosign("verify", "--key", trust.key, *public, f"{other_registry.host}/acme/carried@{subject['digest']}")
    label = read_config(other_registry.host, "acme/carried", adopted)["Labels"]["org.opencontainers.image.base.digest"]
    assert label == subject["digest"]


def read_config(host: str, name: str, adopted: AdoptedImage) -> dict[str, Any]:
    manifest = fetch(host, name, f"manifests/{adopted.digest}").json()
    settings: dict[str, Any] = fetch(host, name, f"blobs/{manifest['config']['digest']}").json()["config"]
    return settings


def test_a_base_without_the_signature_that_is_required_is_refused_before_anything_is_written(
    project: Project, upstream: Upstream, key: Path
) -> None:
    upstream.push("v0.33.0")
    trust = cosign.Trust(key=str(key.with_suffix(".pub")))
    before = read_files(project)
    with pytest.raises(UntrustedError, match="no valid signature"):
        adopt_verb.adopt_base(project, options(upstream, verify_key=trust.key))
    assert read_files(project) == before
    assert read_manifest(upstream.host, adopted_name(upstream), "latest").status_code == 404


def test_attestations_of_buildkit_and_the_index_are_carried_if_every_platform_is(
    tmp_path: Path, upstream: Upstream, other_registry: Registry
) -> None:
    images = [upstream.push(name, platform=f"linux/{name}") for name in ("amd64", "arm64")]
    about = {"vnd.docker.reference.type": "attestation-manifest"}
    attested = upstream.push("attested", [make_layer({"statement": b"{}"})], platform="unknown/unknown")
    entry = {**attested, "annotations": {**about, "vnd.docker.reference.digest": images[0]["digest"]}}
    index = upstream.push_index("v0.33.0", [*images, entry])
    both = adopt_verb.adopt_base(make_project(tmp_path / "both"), options(upstream, f"{other_registry.host}/acme/both"))
    assert [document.kind for document in both.upstream] == ["BuildKit's attestation"]
    assert (
        fetch(other_registry.host, "acme/both", f"manifests/{index}").json()["manifests"][2]["digest"]
        == attested["digest"]
    )
    one = options(upstream, f"{other_registry.host}/acme/one", platform="linux/amd64")
    adopt_verb.adopt_base(make_project(tmp_path / "one"), one)
    assert read_manifest(other_registry.host, "acme/one", index).status_code == 404
    assert fetch(other_registry.host, "acme/one", f"manifests/{images[0]['digest']}").ok


def test_a_document_that_the_registry_lost_is_left_out_and_the_image_is_whole(
    project: Project,
    upstream: Upstream,
    registry: Registry,
    other_registry: Registry,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = b"a document that is lost"
    digest = attach_document(upstream, upstream.push("v0.33.0"), "text/plain", data)
    lost = fetch(upstream.host, upstream.name, f"manifests/{digest}").json()["layers"][0]["digest"]
    registry.blob_file(lost).unlink()
    adopted = adopt_verb.adopt_base(project, options(upstream, f"{other_registry.host}/acme/lost"))
    assert adopted.upstream == ()
    assert f"not carried along: document {digest}" in capsys.readouterr().err
    assert fetch(other_registry.host, "acme/lost", f"manifests/{adopted.digest}").ok


def test_a_licence_that_the_policy_denies_is_not_pushed_again(project: Project, upstream: Upstream) -> None:
    labels = {**SETTINGS["Labels"], "org.opencontainers.image.licenses": "Apache-2.0 AND AGPL-3.0-only"}
    upstream.push("v0.33.0", settings={**SETTINGS, "Labels": labels})
    with pytest.raises(LicenceError, match=r"AGPL-3\.0-only"):
        adopt_verb.adopt_base(project, options(upstream))
    labels["org.opencontainers.image.licenses"] = "as in the file LICENSE"
    upstream.push("v0.33.0", settings={**SETTINGS, "Labels": labels})
    adopted = adopt_verb.adopt_base(project, options(upstream))
    assert "licences: as in the file LICENSE" in format_adopted(adopted)


# --- the official images' shapes ------------------------------------------------------------------------------------

PYTHON_OF_CANN = "usr/local/python3.12.13"
CANN = "/usr/local/Ascend"
ASCEND_SETTINGS = {  # Ascend/cann-container-image, cann/9.1.0-beta.3-910b-ubuntu22.04-py3.12; vllm-ascend, Dockerfile
    "Entrypoint": ["/bin/bash", "-c", f'source {CANN}/ascend-toolkit/set_env.sh && exec "$@"', "--"],
    "Cmd": ["/bin/bash"],
    "Shell": ["/bin/bash", "-c"],
    "WorkingDir": "/workspace",
    "Env": [
        f"PATH={CANN}/nnal/atb/latest/atb/cxx_abi_1/bin:/{PYTHON_OF_CANN}/bin:/usr/bin:/bin",
        f"ASCEND_TOOLKIT_HOME={CANN}/cann-9.1.0-beta.3",
        f"LD_LIBRARY_PATH={CANN}/driver/lib64:{CANN}/ascend-toolkit/latest/lib64:/{PYTHON_OF_CANN}/lib",
        f"ATB_HOME_PATH={CANN}/nnal/atb/latest/atb/cxx_abi_1",
        "SOC_VERSION=ascend910b1",
        "OMP_NUM_THREADS=1",
    ],
    "Labels": {"org.opencontainers.image.ref.name": "ubuntu", "org.opencontainers.image.version": "22.04"},
}
ASCEND_FILES = {  # `pip install -e` leaves metadata and a finder; the code is elsewhere
    "etc/os-release": b"ID=ubuntu\nVERSION_ID=22.04\n",
    f"{PYTHON_OF_CANN}/bin/python3": b"",
    f"{PYTHON_OF_CANN}/lib/python3.12/site-packages/vllm-0.23.0+empty.dist-info/METADATA": b"",
    f"{PYTHON_OF_CANN}/lib/python3.12/site-packages/vllm_ascend-0.23.1.dist-info/METADATA": b"",
    "vllm-workspace/vllm/vllm/__init__.py": b"",
    "root/.bashrc": b"# .bashrc\nsource /usr/local/Ascend/ascend-toolkit/set_env.sh\n"
    b"export LD_PRELOAD=/usr/lib/aarch64-linux-gnu/libjemalloc.so.2:\nexport LD_LIBRARY_PATH=/x:/usr/local/lib\n",
}
CUDA_SETTINGS = {  # vLLM docker/Dockerfile, target vllm-openai: no USER
    "Entrypoint": ["vllm", "serve"],
    "WorkingDir": "/vllm-workspace",
    "Env": [
        "PATH=/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin",
        "NVARCH=x86_64",
        "CUDA_VERSION=13.0.1",
        "LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nvidia/lib64",
        "NVIDIA_VISIBLE_DEVICES=all",
        "VLLM_USAGE_SOURCE=production-docker-image",
    ],
    "Labels": {"org.opencontainers.image.ref.name": "ubuntu", "org.opencontainers.image.version": "22.04"},
}
SITE = "usr/local/lib/python3.12/dist-packages"
CUDA_FILES = {
    "etc/os-release": b'ID=ubuntu\nVERSION_ID="22.04"\n',
    "usr/bin/python3": b"",
    f"{SITE}/vllm-0.27.1.dist-info/METADATA": b"",
    f"{SITE}/vllm_router-0.1.0.dist-info/METADATA": b"",
    "usr/local/bin/vllm": b"",
}
XPU_FILES = {
    "etc/os-release": b'ID=ubuntu\nVERSION_ID="24.04"\n',
    "opt/venv/bin/python3": b"",
    "opt/venv/lib/python3.12/site-packages/vllm-0.30.0+xpu.dist-info/METADATA": b"",
    "opt/venv/lib/python3.12/site-packages/vllm_xpu_kernels-0.1.16.dist-info/METADATA": b"",
}


@pytest.mark.parametrize(
    ("files", "settings", "expected"),
    [
        (CUDA_FILES, CUDA_SETTINGS, ("cuda", "0.27.1", "/usr/bin/python3")),
        (ASCEND_FILES, ASCEND_SETTINGS, ("ascend", "0.23.0", f"/{PYTHON_OF_CANN}/bin/python3")),
        (XPU_FILES, {"Env": ["VLLM_TARGET_DEVICE=xpu"]}, ("xpu", "0.30.0", "/opt/venv/bin/python3")),
    ],
    ids=["cuda", "ascend", "xpu"],
)
def test_an_image_of_the_official_ones_shape_says_what_is_in_it(
    project: Project, upstream: Upstream, files: dict[str, bytes], settings: dict[str, Any], expected: tuple[str, ...]
) -> None:
    upstream.push("v1", [make_layer(files)], settings)
    adopted = adopt_verb.adopt_base(project, options(upstream, tag="v1", stated=UNSAID, read_layers=True))
    variant = find_variant(read_matrix(project), adopted.row)
    assert (variant.accelerator, variant.vllm.version, variant.interpreter) == expected
    image = read_config(upstream.host, adopted_name(upstream), adopted)
    assert image["User"] == "10001:0"
    assert {*settings["Env"]} <= {*image["Env"]}
    assert adopted.replaced.get("Entrypoint") == settings.get("Entrypoint")


@pytest.mark.parametrize(
    ("row", "settings", "files"),
    [
        ("cuda-official-vllm0.27", CUDA_SETTINGS, CUDA_FILES),
        ("ascend-official-vllm0.23", ASCEND_SETTINGS, ASCEND_FILES),
    ],
)
def test_drydocks_rows_on_official_images_are_assembled_on_images_of_that_shape(
    tmp_path: Path, row: str, settings: dict[str, Any], files: dict[str, bytes]
) -> None:
    variant = find_variant(read_matrix(DRYDOCK), row)
    assert f"{variant.interpreter[1:]}" in files
    base, layer = tmp_path / "base", make_layer(files)
    config = {"os": "linux", "architecture": "amd64", "config": settings}
    config |= {"rootfs": {"type": "layers", "diff_ids": [layer.diff_id]}}
    described = {
        "mediaType": "application/vnd.oci.image.config.v1+json",
        **layouts.put(base, json.dumps(config).encode()),
    }
    layers = [{"mediaType": layer.descriptor["mediaType"], **layouts.put(base, layer.blob)}]
    manifest = {"schemaVersion": 2, "mediaType": image_layout.MANIFEST, "config": described, "layers": layers}
    descriptor = layouts.put(base, json.dumps(manifest).encode())
    image_layout.write_index(base, {"mediaType": image_layout.MANIFEST, **descriptor})
    adoption.write_layout(DRYDOCK, variant, str(variant.base.digest), base, tmp_path / "made")  # type: ignore[union-attr]
    image_config = image_layout.read_config(tmp_path / "made")["config"]
    assert image_config["Entrypoint"] == [variant.interpreter, "-I", "-S", "/opt/drydock/entrypoints"]
    assert image_config["Labels"]["io.drydock.adopted"] == "true"
    assert image_layout.is_sound_layout(tmp_path / "made")


def test_what_a_shell_would_have_set_is_said_not_to_be_in_effect(project: Project, upstream: Upstream) -> None:
    upstream.push("v1", [make_layer(ASCEND_FILES)], ASCEND_SETTINGS)
    adopted = adopt_verb.adopt_base(project, options(upstream, tag="v1", stated=UNSAID, read_layers=True))
    text = format_adopted(adopted)
    assert "LD_PRELOAD, LD_LIBRARY_PATH, /usr/local/Ascend/ascend-toolkit/set_env.sh of /root/.bashrc" in text
    assert "kept: LD_LIBRARY_PATH" in text


def test_what_an_entrypoint_of_the_base_would_have_set_is_said_too(project: Project, upstream: Upstream) -> None:
    script = {"opt/nvidia/nvidia_entrypoint.sh": b'#!/bin/bash\nexport LD_PRELOAD=/opt/x.so\nexec "$@"\n'}
    script |= {"opt/nvidia/entrypoint.d/50-gpu.sh": b"export NVIDIA_DRIVER=1\n"}
    settings = {**CUDA_SETTINGS, "Entrypoint": ["/opt/nvidia/nvidia_entrypoint.sh"]}
    upstream.push("v1", [make_layer({**CUDA_FILES, **script})], settings)
    adopted = adopt_verb.adopt_base(project, options(upstream, tag="v1", stated=UNSAID, read_layers=True))
    text = format_adopted(adopted)
    assert "started: LD_PRELOAD of /opt/nvidia/nvidia_entrypoint.sh" in text
    assert "started: NVIDIA_DRIVER of /opt/nvidia/entrypoint.d/50-gpu.sh" in text
    again = adopt_verb.adopt_base(project, options(upstream, tag="v1", stated=UNSAID))
    assert "not in effect: what that entrypoint" in format_adopted(again)


def test_the_same_without_the_variables_of_its_scripts_is_refused(project: Project, upstream: Upstream) -> None:
    plain = {**ASCEND_SETTINGS, "Env": ["ASCEND_TOOLKIT_HOME=/usr/local/Ascend/cann-9.1.0"]}
    upstream.push("v1", [make_layer(ASCEND_FILES)], plain)
    with pytest.raises(InputError, match=r"needs the environment that /usr/local/Ascend/ascend-toolkit/set_env\.sh"):
        adopt_verb.adopt_base(project, options(upstream, tag="v1", stated=UNSAID, read_layers=True))


# --- odd images -----------------------------------------------------------------------------------------------------


def test_schema_1_has_its_sentence(project: Project, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"schemaVersion": 1, "name": "vllm", "tag": "v1", "architecture": "amd64", "fsLayers": [], "history": []}
    schema_1 = Manifest(json.dumps(content).encode(), "application/vnd.docker.distribution.manifest.v1+prettyjws")
    monkeypatch.setattr(Manifests, "receive", lambda *_: schema_1)
    with pytest.raises(RegistryError, match=r"schema 1, which engines no longer pull") as caught:
        adopt_verb.adopt_base(project, options(upstream))
    assert "build and push it again" in caught.value.hint


def test_an_index_within_an_index_is_adopted_and_one_within_many_is_not(tmp_path: Path, upstream: Upstream) -> None:
    image = upstream.push("one")
    media_type = "application/vnd.oci.image.index.v1+json"

    def wrap(digest: str, tag: str) -> str:
        size = len(fetch(upstream.host, upstream.name, f"manifests/{digest}").content)
        return upstream.push_index(tag, [{"mediaType": media_type, "digest": digest, "size": size}])

    inner = upstream.push_index("inner", [image])
    outer = wrap(inner, "v0.33.0")
    adopted = adopt_verb.adopt_base(make_project(tmp_path / "two"), options(upstream))
    assert (adopted.base.partition("@")[2], [*adopted.platforms]) == (outer, ["linux/amd64"])
    wrap(wrap(outer, "three"), "v0.34.0")
    with pytest.raises(RegistryError, match="3 indexes within one another"):
        adopt_verb.adopt_base(make_project(tmp_path / "four"), options(upstream, tag="v0.34.0"))


WHITEOUTS = wrap_layer(layouts.tar([("opt/.wh.drydock", b"", {}), (".wh.cache", b"", {})]))


@pytest.mark.parametrize(
    "layers",
    [
        [make_layer({**FILES, "opt/drydock/entrypoints/evil.py": b"x", "cache/home/x": b""}), WHITEOUTS],
        [make_layer(FILES, "application/vnd.oci.image.layer.v1.tar+zstd")],
        [make_layer(FILES, "application/vnd.oci.image.layer.v1.tar")],
    ],
    ids=["whiteouts", "zstd", "plain"],
)
def test_whiteouts_and_each_compression_are_adopted(project: Project, upstream: Upstream, layers: list[Layer]) -> None:
    upstream.push("v0.33.0", layers)
    adopted = adopt_verb.adopt_base(project, options(upstream))
    manifest = fetch(upstream.host, adopted_name(upstream), f"manifests/{adopted.digest}").json()
    assert [layer["digest"] for layer in manifest["layers"][:-2]] == [layer.descriptor["digest"] for layer in layers]


def test_upstreams_health_check_is_replaced_and_shown(project: Project, upstream: Upstream) -> None:
    check = {"Test": ["CMD-SHELL", "curl -f http://localhost:8000/health"], "Interval": 30_000_000_000}
    upstream.push("v0.33.0", settings={**SETTINGS, "Healthcheck": check})
    adopted = adopt_verb.adopt_base(project, options(upstream))
    assert adopted.replaced["Healthcheck"] == check
    assert "replaced: Healthcheck" in format_adopted(adopted)


def test_a_private_base_is_read_with_dockers_credentials_and_refused_without(
    project: Project, guarded: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Upstream(guarded.host, "acme/private")
    private = options(base, f"{guarded.host}/acme/adopted")
    with pytest.raises(CredentialsError, match="requires credentials"):
        adopt_verb.adopt_base(project, private)
    assert not (project.root / "matrix.yaml").exists()
    (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login someone password {PASSWORD!r}\n".replace("'", '"'))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    base.push("v0.33.0")
    monkeypatch.delenv("NETRC")
    auth = base64.b64encode(f"someone:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {guarded.host: {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert adopt_verb.adopt_base(project, private).blobs["mounted"] == 1


@pytest.mark.parametrize("python", ["3.9", "2.7", "3", "3.x"])
def test_a_python_that_does_not_run_the_entrypoint_has_its_sentence(
    project: Project, upstream: Upstream, python: str
) -> None:
    upstream.push("v0.33.0")
    facts = BaseFacts("0.33.0", python, "/usr/bin/python3", "ubuntu:24.04", "cuda")
    with pytest.raises(InputError, match=r"--python-version .*: expected 3\.10 or later"):
        adopt_verb.adopt_base(project, options(upstream, stated=facts))
