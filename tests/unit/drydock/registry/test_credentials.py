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
        ({"Auth": f"{encoded('me:pw')[:4]}\r\n{encoded('me:pw')[4:]}\n"}, Credentials("me", "pw")),
        ({"auth": None, "username": None}, None),
        ({}, None),
        (None, None),
        ("", None),
    ],
)
def test_entries(tmp_path: Path, entry: Any, expected: Credentials | None) -> None:
    assert read_credentials(HOST, config(tmp_path, {"auths": {HOST: entry}})) == expected


@pytest.mark.parametrize(
    "key", [HOST, f"https://{HOST}", f"https://{HOST}/", f"http://{HOST}/v2/", f"{HOST}/acme", f"https://me@{HOST}/v1/"]
)
def test_a_key_is_matched_by_its_host(tmp_path: Path, key: str) -> None:
    auths = {"other.example": "damaged", f"{HOST}0": {}, key: {"auth": encoded("a:b")}}
    assert read_credentials(HOST, config(tmp_path, {"auths": auths})) == ("a", "b", "")


def test_the_host_itself_wins_over_its_other_forms(tmp_path: Path) -> None:
    auths = {f"https://{HOST}/": {"auth": encoded("old:old")}, HOST: {"auth": encoded("a:b")}}
    assert read_credentials(HOST, config(tmp_path, {"auths": auths})) == ("a", "b", "")


def test_docker_hub_has_its_own_key(tmp_path: Path) -> None:
    env = config(tmp_path, {"auths": {"https://index.docker.io/v1/": {"auth": encoded("a:b")}}})
    assert read_credentials("docker.io", env) == ("a", "b", "")


def test_no_configuration_means_no_credentials(tmp_path: Path) -> None:
    assert read_credentials(HOST, {"DOCKER_CONFIG": str(tmp_path / "absent")}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "{}",
        "null",
        '{"auths": null}',
        '{"credHelpers": null, "credsStore": null}',
        '{"auths": {"o.example": "x"}}',
    ],
)
def test_an_empty_configuration_has_no_credentials(tmp_path: Path, text: str) -> None:
    assert read_credentials(HOST, config(tmp_path, text)) is None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "\x00",
        '{"auths": ["x"]}',
        '{"credHelpers": "x"}',
        '{"credsStore": 5}',
        '{"credsStore": "a\\u0000b"}',
        '{"auths": {"r.example:5000": "x"}}',
        '{"auths": {"r.example:5000": {"auth": "%%%"}}}',
        '{"auths": {"r.example:5000": {"auth": 5}}}',
        '{"auths": {"r.example:5000": {"auth": "bm8gY29sb24="}}}',
        '{"auths": {"r.example:5000": {"auth": "OnNlY3JldA=="}}}',
    ],
)
def test_broken_configurations_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(CredentialsError, match=r"config\.json"):
        read_credentials(HOST, config(tmp_path, text))


def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CredentialsError, match=r"config\.json: "):
        read_credentials(HOST, {"DOCKER_CONFIG": str(tmp_path)})
    assert read_credentials(HOST, {"DOCKER_CONFIG": __file__}) is None


# --- DOCKER_AUTH_CONFIG ---------------------------------------------------------------------------------------------


def from_environment(folder: Path, text: str) -> Credentials | None:
    env = config(folder, {"auths": {HOST: {"auth": encoded("file:f")}}})
    return read_credentials(HOST, {**env, "DOCKER_AUTH_CONFIG": text})


def test_the_variable_wins_over_the_file(tmp_path: Path) -> None:
    text = json.dumps({"auths": {f"https://{HOST}/v2/": {"auth": encoded("variable:v")}}})
    assert from_environment(tmp_path, text) == ("variable", "v", "")


@pytest.mark.parametrize(
    "text", ["", "{}", "null", '{"auths": null}', '{"auths": {"other.example": {"auth": "eDp5"}}}']
)
def test_a_variable_without_the_host_leaves_it_to_the_file(
    tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert from_environment(tmp_path, text) == ("file", "f", "")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("text", ["x", "[]", '{"auths": {}, "credsStore": "x"}', '{"auths": {"r.example:5000": "x"}}'])
def test_a_broken_variable_is_named_and_not_used(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert from_environment(tmp_path, text) == ("file", "f", "")
    assert "DOCKER_AUTH_CONFIG" in capfd.readouterr().err


# --- helpers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("helpers", "expected"),
    [
        ({HOST: "mine"}, ("me", SECRET, "")),
        ({HOST: ""}, ("file", "f", "")),
        ({HOST: None}, ("file", "f", "")),
        ({"other.example": "mine"}, None),
    ],
)
def test_a_helper_of_the_host_wins_over_the_store_which_wins_over_the_file(
    tmp_path: Path, helpers: dict[str, str | None], expected: Credentials | None
) -> None:
    env = config(
        tmp_path,
        {"credHelpers": helpers, "credsStore": "empty", "auths": {HOST: {"auth": encoded("file:f")}}},
    )
    helper(tmp_path, f'echo \'{{"Username":"me","Secret":"{SECRET}"}}\'')
    empty = tmp_path / "docker-credential-empty"
    empty.write_text("#!/bin/sh\necho credentials not found in native keychain; exit 1\n")
    empty.chmod(0o755)
    assert read_credentials(HOST, env) == expected


def test_a_helper_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    env = config(tmp_path, {"credsStore": "mine"})
    helper(tmp_path, "exit 0")
    (tmp_path / "docker-credential-mine").write_bytes(b"\x7fELF")
    with pytest.raises(CredentialsError, match="docker-credential-mine: "):
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
