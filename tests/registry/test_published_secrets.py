"""No secret that a verb is given reaches what it publishes, prints or writes into the project."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.registry.test_adopt import make_project
from tests.support.local_registry import VARIANT, LocalRepository
from tests.support.servers import PASSWORD, Registry
from tests.support.signed_image import AMD64
from tests.support.upstream_image import Upstream

SECRETS = {
    "COSIGN_PASSWORD": "password-of-the-key",
    "HF_TOKEN": "hf_token-of-the-hub",
    "VLLM_API_KEY": "key-of-the-server",
    "PIP_INDEX_URL": "https://someone:password-of-the-index@index.example.com/simple",
    "DRYDOCK_BUILDER_ID": "https://someone:password-of-the-builder@ci.example.com/1",
    "CI_JOB_TOKEN": "token-of-the-job",
}
WORDS = (
    *(value.rpartition("@")[0].rpartition(":")[2] or value for value in SECRETS.values()),
    "password-of-the-remote",
    PASSWORD,
    base64.b64encode(f"someone:{PASSWORD}".encode()).decode(),
)
"""What must be nowhere."""


@pytest.fixture
def environment(tmp_path: Path, guarded: Registry) -> dict[str, str]:
    """Variables with secrets, docker's password for the registry, and a key with a password."""
    auth = base64.b64encode(f"someone:{PASSWORD}".encode()).decode()
    docker = tmp_path / "docker"
    docker.mkdir()
    (docker / "config.json").write_text(json.dumps({"auths": {guarded.host: {"auth": auth}}}))
    env = {**os.environ, **SECRETS, "DOCKER_CONFIG": str(docker), "DRYDOCK_CACHE": str(tmp_path / "cache")}
    subprocess.run(["cosign", "generate-key-pair"], cwd=tmp_path, env=env, check=True, capture_output=True)
    return env


def run_verb(folder: Path, env: dict[str, str], *words: str) -> str:
    tasks = folder / "tasks.py"
    command = [sys.executable, str(tasks if tasks.is_file() else ROOT / "tasks.py"), *words]
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def find_secrets(*places: Path) -> list[tuple[str, str]]:
    files = [path for place in places for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
    return [(str(path), word) for path in files for word in WORDS if word.encode() in path.read_bytes()]


def add_remote(folder: Path) -> None:
    """Make a folder a commit with a remote whose address has a password."""
    remote = "https://someone:password-of-the-remote@git.example.com/acme/images.git"
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("remote", "add", "origin", remote), ("add", "."), (*identity, "commit", "-qm", "a")):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def test_adopt_and_push_publish_no_secret(
    tmp_path: Path, guarded: Registry, registry: Registry, environment: dict[str, str]
) -> None:
    upstream = Upstream(registry.host, "secrets/vllm-openai")
    upstream.push("v0.33.0")
    project = make_project(tmp_path / "acme")
    add_remote(project.root)
    image, key = f"{upstream.host}/{upstream.name}:v0.33.0", str(tmp_path / "cosign.key")
    where = ("--to", f"{guarded.host}/secrets/adopted:one", "--read-layers", "--json")
    printed = run_verb(project.root, environment, "adopt", image, *where, "--sign-key", key)
    printed += run_verb(project.root, environment, "project", "push", f"{guarded.host}/secrets/rows", "--sign-key", key)
    assert [word for word in WORDS if word in printed] == []
    assert find_secrets(project.root / "images", project.root / "templates", guarded.folder / "data") == []


def test_publish_publishes_no_secret(
    tmp_path: Path, guarded: Registry, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", environment["DRYDOCK_CACHE"])
    local = LocalRepository(tmp_path, platforms=(AMD64,), salt="secrets")
    add_remote(local.root)
    env = {**environment, "PYTHONPATH": str(local.root)}
    words = ("--target", VARIANT, "--registry", f"{guarded.host}/secrets", "--sign-key", str(tmp_path / "cosign.key"))
    printed = run_verb(local.root, env, "publish", *words, "--json")
    printed += run_verb(local.root, env, "publish", *words)
    assert [word for word in WORDS if word in printed] == []
    assert find_secrets(local.root / "images", guarded.folder / "data") == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    for number, word in enumerate(WORDS):
        (tmp_path / str(number)).write_text(f"before {word} after")
    assert len(find_secrets(tmp_path)) >= len(WORDS)
