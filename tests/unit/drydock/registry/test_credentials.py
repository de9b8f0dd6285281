from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import CredentialsError
from drydock.registry.credentials import Credentials, read_credentials

HOST = "r.example:5000"
SECRET = "do-not-print-me"  # noqa: S105 - looked for in messages


def config(folder: Path, content: Any) -> dict[str, str]:
    (folder / "config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def helper(folder: Path, script: str) -> None:
    program = folder / "docker-credential-mine"
    program.write_text(f"#!/bin/sh\nread host\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": encoded("me:pass:word")}, Credentials("me", "pass:word")),
        ({"username": "me", "password": "p"}, Credentials("me", "p")),
        ({"identitytoken": "t", "auth": encoded("me:")}, Credentials(token="t")),  # noqa: S106
        ({}, None),
    ],
)
def test_entries(tmp_path: Path, entry: dict[str, str], expected: Credentials | None) -> None:
    assert read_credentials(HOST, config(tmp_path, {"auths": {HOST: entry}})) == expected


@pytest.mark.parametrize("key", [HOST, f"https://{HOST}", f"https://{HOST}/v2/"])
def test_keys_of_older_clients(tmp_path: Path, key: str) -> None:
    assert read_credentials(HOST, config(tmp_path, {"auths": {key: {"auth": encoded("a:b")}}})) == ("a", "b", "")


def test_docker_hub_has_its_own_key(tmp_path: Path) -> None:
    env = config(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": encoded("a:b")}}})
    assert read_credentials("docker.io", env) == ("a", "b", "")


def test_no_configuration_means_no_credentials(tmp_path: Path) -> None:
    assert read_credentials(HOST, {"DOCKER_CONFIG": str(tmp_path / "absent")}) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"auths": {"r.example:5000": {"auth": "%%%"}}}'])
def test_broken_configurations(tmp_path: Path, text: str) -> None:
    env = config(tmp_path, text)
    if text == "[]":
        assert read_credentials(HOST, env) is None
        return
    with pytest.raises(CredentialsError, match=r"config\.json"):
        read_credentials(HOST, env)


@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_helpers(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = config(tmp_path, {key: "mine" if key == "credsStore" else {HOST: "mine"}})
    monkeypatch.setenv("PATH", env["PATH"])
    helper(tmp_path, f'[ "$host" = {HOST} ] && echo \'{{"Username":"me","Secret":"{SECRET}"}}\'')
    assert read_credentials(HOST, env) == ("me", SECRET, "")
    helper(tmp_path, f'echo \'{{"Username":"<token>","Secret":"{SECRET}"}}\'')
    assert read_credentials(HOST, env) == ("", "", SECRET)
    helper(tmp_path, "echo credentials not found in native keychain; exit 1")
    assert read_credentials(HOST, env) is None


@pytest.mark.parametrize("script", [f"echo {SECRET}; exit 2", f"echo {SECRET}", f"echo '[\"{SECRET}\"]'"])
def test_a_failing_helper_is_named_and_its_output_is_not_shown(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = config(tmp_path, {"credsStore": "mine"})
    monkeypatch.setenv("PATH", env["PATH"])
    helper(tmp_path, script)
    with pytest.raises(CredentialsError, match="docker-credential-mine") as caught:
        read_credentials(HOST, env)
    assert SECRET not in f"{caught.value}{caught.value!r}"


def test_a_missing_helper_is_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="docker-credential-mine: not found on PATH"):
        read_credentials(HOST, config(tmp_path, {"credsStore": "mine"}))


def test_their_text_form_shows_no_secret() -> None:
    assert SECRET not in repr(Credentials("me", SECRET, SECRET))
