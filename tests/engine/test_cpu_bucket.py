"""A model in a bucket: vLLM's streamer, as the CUDA row locks it, in the CPU image; S3 and Google on this machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from docker.models.containers import Container

from drydock.build import build, render
from drydock.build.build_job import Job
from drydock.config.project_choice import DRYDOCK
from drydock.lock import lockfile
from drydock.prove import demo
from tests.support import bucket, planted_home
from tests.support.ports import free_port
from tests.support.started_containers import run_container, start_container

STREAMER = (
    *("runai-model-streamer", "runai-model-streamer-s3", "boto3", "botocore", "s3transfer", "jmespath", "humanize"),
    *("python-dateutil", "six", "runai-model-streamer-gcs", "google-api-core", "google-auth", "google-cloud-core"),
    *("google-cloud-storage", "google-crc32c", "google-resumable-media", "googleapis-common-protos", "proto-plus"),
    *("protobuf", "pyasn1", "pyasn1-modules"),
)
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
PROFILE = "/profile.json"


@pytest.fixture(scope="module")
def mounts(job: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Source → target of the streamer's packages, and of a profile that says that they are there."""
    folder = tmp_path_factory.mktemp("streamer")
    lock = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, "cuda13.0-vllm0.33")).platforms["linux/amd64"]
    wheels = [wheel for layer in lock.layers.values() for wheel in layer if wheel.name in STREAMER]
    assert len(wheels) == len(STREAMER)
    lines = [f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}" for wheel in wheels]
    (folder / "requirements.txt").write_text("\n".join(lines))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes"]
    python = ["--python-version", "3.11", "--only-binary", ":all:", "--target", str(folder / "site")]
    subprocess.run([*pip, *python, "--requirement", str(folder / "requirements.txt")], check=True)
    profile = folder / "profile.json"
    profile.write_text(render.profile_text(job.variant.model_copy(update={"buckets": ("s3", "gs")})))
    places = {str(path): f"{PACKAGES}/{path.name}" for path in (folder / "site").iterdir() if path.name != "bin"}
    return {**places, str(profile): PROFILE}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bucket.Bucket]:
    """A bucket with the model in its folder `smol`."""
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "smol").mkdir()
    for file in model.iterdir():
        (folder / "smol" / file.name).symlink_to(file)
    with bucket.Bucket(folder) as bucket_server:
        yield bucket_server


def started(
    image: str, mounts: Mapping[str, str], env: Mapping[str, str], model: str
) -> AbstractContextManager[Container]:
    """Run `serve` with a model, on this machine's network; remove it at the end."""
    words = ("serve", "--model", model, "--port", str(free_port()), "--status-port", str(free_port()))
    options = {"network_mode": "host", "read_only": True, "tmpfs": ("/tmp",)}
    env = {"DRYDOCK_PROFILE": PROFILE, **env}
    return start_container(image, *words, env=env, volumes=[*mounts.items()], **options)


@pytest.mark.parametrize("address", ["s3://models/smol", "gs://models/smol"])
def test_a_model_is_served_from_a_bucket(
    built: build.Built, mounts: dict[str, str], server: bucket.Bucket, address: str
) -> None:
    with started(built.image, mounts, server.env, address) as container:
        demo.wait_until_ready(container)

        assert demo.EXPECTED in demo.ask_chat_question(container, demo.QUESTION, model="smol")
        assert b"Run:ai model config" in container.logs()


@pytest.mark.parametrize(
    ("address", "changed", "message"),
    [
        ("s3://models/smol", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ("s3://absent/smol", {}, "NoSuchBucket"),
        ("s3://models/other", {}, "0 files, and no config.json"),
    ],
)
def test_what_cannot_be_read_ends_the_start_before_vllm(
    built: build.Built,
    mounts: dict[str, str],
    server: bucket.Bucket,
    address: str,
    changed: dict[str, str],
    message: str,
) -> None:
    began = time.monotonic()
    with started(built.image, mounts, {**server.env, **changed}, address) as container:
        code = container.wait(timeout=120)["StatusCode"]
        text = container.logs().decode()

    assert (code, message in text, "AWS_ENDPOINT_URL" in text) == (4, True, True), text
    assert "non-default args" not in text  # vLLM's first line
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("home", ["", "/cache/home/."])
def test_the_client_runs_no_program_that_another_user_named_on_the_volume(
    built: build.Built, mounts: dict[str, str], server: bucket.Bucket, home: str
) -> None:
    """`credential_process` in ~/.aws/config is a command. It runs only for a user whose HOME that is."""
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    env = {name: value for name, value in server.env.items() if name not in keys} | {"HOME": home}
    with planted_home.planted_volume(built.image) as volume:
        planned = run_container(
            built.image,
            *("plan", "s3://models/smol"),
            env={"DRYDOCK_PROFILE": PROFILE, **env},
            volumes=[(volume, "/cache", "rw"), *mounts.items()],
            network_mode="host",
        )
        cache_files = run_container(built.image, "ls", "/cache", volumes=[(volume, "/cache", "ro")]).stdout.split()
    assert planned.code == 4, planned
    assert (planted_home.MARK in cache_files) == bool(home)
