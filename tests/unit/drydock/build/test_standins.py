"""Stubs for what only vendors have: what a Dockerfile asks for is there, and the image is never the row's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from debian.debfile import DebFile

from drydock.build import standins
from drydock.build.build_job import BuildOptions, prepare_job
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, UntrustedError
from drydock.inputs import fetch
from drydock.model.variant import Variant
from drydock.oci import image_layout
from entrypoints.serve.watch import parse_running

ROWS = [variant for variant in read_matrix(DRYDOCK) if variant.serves]
DIGEST = f"sha256:{'ab' * 32}"
STUB = Path(standins.__file__).with_name("stub_vllm.py")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root that has Python, in a cache of its own; nothing is fetched."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        tar.addfile(tarfile.TarInfo("./usr/bin/python3"))
    image_layout.write_layout(tmp_path / "root", layer, "linux/amd64", 0, "a test")
    monkeypatch.setattr(fetch, "fetch_inputs", lambda *_, **__: {"base": f"oci-layout://{tmp_path / 'root'}@sha256:0"})
    return tmp_path / "root"


def base(variant: Variant) -> tuple[str, list[str]]:
    """Return the context of a base, and the paths in its last layer."""
    context = standins.make_stand_in_base(variant, prepare_job(DRYDOCK, "cpu"))
    layout = Path(context.removeprefix("oci-layout://").partition("@")[0])
    layers = image_layout.read_manifest(layout)["layers"]
    assert (len(layers), image_layout.is_intact_layout(layout)) == (2, True)
    with tarfile.open(image_layout.path_of_blob(layout, layers[1]["digest"])) as tar:
        return context, tar.getnames()


@pytest.mark.parametrize("variant", ROWS, ids=lambda variant: variant.id)
def test_each_row_gets_every_context_and_vllm_from_one_of_them(variant: Variant) -> None:
    contexts = standins.make_stubs(variant)
    context_names = {"wheels", *(item.name for item in (*variant.sources, *variant.supplied))}
    _, names = base(variant)

    assert contexts.keys() == context_names
    server = variant.module.rpartition(".")[2].encode()
    bringing = [name for name, folder in contexts.items()
                if any(server in path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())]  # fmt: skip
    in_base = any(name.endswith(f"{server.decode()}.py") for name in names)
    assert len(bringing) + in_base == 1, (bringing, names)
    assert all(script[1:] in names for script in variant.setup)
    assert (variant.interpreter[1:] in names) == (variant.interpreter != "/usr/bin/python3")


def test_the_same_row_gives_the_same_stubs() -> None:
    for variant in ROWS:
        assert standins.make_stubs(variant) == standins.make_stubs(variant)
        assert base(variant) == base(variant)


def test_a_stand_in_is_never_the_rows_image() -> None:
    job, stand_in = prepare_job(DRYDOCK, "mi300x"), standins.stand_in(DRYDOCK, "mi300x")

    assert stand_in.image(DIGEST) == "drydock-stand-in/rocm7.2-vllm0.27:abababababab"
    assert stand_in.stand_in_labels == {"io.drydock.stand-in": "base,wheels"}
    assert stand_in.sources == job.sources  # the committed Dockerfile
    assert stand_in.layout != job.layout
    assert (stand_in.recorded_digest, job.kept_layout) == (None, None)
    with pytest.raises(UntrustedError, match="records no digest for these inputs"):
        stand_in.require_recorded(DIGEST)


def test_a_context_that_the_user_has_stays(tmp_path: Path) -> None:
    build_options = BuildOptions(context_overrides={"base": str(tmp_path)})

    assert standins.stand_in(DRYDOCK, "mi300x", build_options).context_overrides["base"] == str(tmp_path)


def test_a_row_for_another_processor_is_built_for_that_of_the_root() -> None:
    assert standins.stand_in(DRYDOCK, "cpu-s390x-vllm0.27").platform == "linux/amd64"
    with pytest.raises(InputError, match="--platform linux/arm64: stand-ins are for linux/amd64"):
        standins.stand_in(DRYDOCK, "ascend-a3", BuildOptions(platform="linux/arm64"))


def test_an_empty_package_is_one_that_dpkg_reads(tmp_path: Path) -> None:
    (tmp_path / "stub.deb").write_bytes(standins._make_empty_deb(ROWS[0], "*.deb", 3)[1])

    assert DebFile(tmp_path / "stub.deb").debcontrol()["Package"] == "stub-3"


# --- the stub of vLLM -------------------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[str]:
    """The URL of a running stub; it has said what it was started with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(STUB), "--host", "127.0.0.1", f"--port={port}", "--served-model-name", "small"]
    env = {**os.environ, "STUB_VLLM": "serve", "VLLM_API_KEY": "s3cret"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        stub_report = json.loads(process.stdout.readline())
        assert (stub_report["argv"], stub_report["env"]["VLLM_API_KEY"]) == (command[1:], "***")
        end = time.monotonic() + 10
        while answer(f"http://127.0.0.1:{port}/health")[0] != 200 and time.monotonic() < end:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        assert process.wait(timeout=10) == 0


def answer(url: str, body: bytes | None = None, key: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


def test_the_stub_answers_as_a_server_that_is_ready(served: str) -> None:
    assert '"small"' in answer(f"{served}/v1/models", key="s3cret")[1]
    assert answer(f"{served}/v1/models")[0] == 401
    assert "stand-in" in answer(f"{served}/v1/chat/completions", b"{}", "s3cret")[1]
    assert parse_running(answer(f"{served}/metrics")[1]) == 0  # so that it is stopped at once
    assert answer(f"{served}/v1/completions", b"{}", "s3cret")[0] == 404  # the known-answer test compares nothing


def test_the_stub_starts_only_if_it_is_asked_to() -> None:
    env = {name: value for name, value in os.environ.items() if name != "STUB_VLLM"}
    result = subprocess.run([sys.executable, str(STUB)], env=env, capture_output=True, text=True, check=False)

    assert (result.returncode, "Failed to infer device type" in result.stderr) == (1, True)
