"""pip's keyring provider: what is asked for which address, and what an address becomes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.inputs import pip_keyring
from drydock.inputs.indexes import make_index_access, read_indexes
from drydock.inputs.pip_keyring import add_password

URL = "https://user@index.example:8443/simple"
FULL = "https://user:s3%3Acret%2F@index.example:8443/simple"


@pytest.fixture(autouse=True)
def no_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    yield
    pip_keyring._find_login.cache_clear()


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose `keyring` notes what it is asked, and knows one page and one host."""
    program = tmp_path / "keyring"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        'case "$2" in https://index.example:8443/simple/ | host.example) echo "s3:cret/" ;; *) exit 1 ;; esac\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin"}


def asked(env: dict[str, str]) -> list[str]:
    log = Path(env["PATH"].partition(":")[0], "asked")
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("provider", ["subprocess", "auto"])
def test_the_program_is_asked_for_the_address_and_then_for_the_host(provider: str, env: dict[str, str]) -> None:
    assert add_password(URL, provider, env) == FULL
    assert add_password("https://user@host.example/simple/", provider, env).startswith("https://user:s3")
    assert asked(env) == [
        "get https://index.example:8443/simple/ user",
        "get https://host.example/simple/ user",
        "get host.example user",
    ]


@pytest.mark.parametrize(
    ("url", "provider"),
    [
        (URL, "disabled"),
        ("https://user:own@index.example:8443/simple", "subprocess"),
        ("file:///simple", "subprocess"),
        ("https://index.example:8443/simple", "auto"),
        ("/wheels", "subprocess"),
    ],
)
def test_an_address_with_a_password_or_without_a_need_is_not_looked_up(
    url: str, provider: str, env: dict[str, str]
) -> None:
    assert add_password(url, provider, env) == url
    assert not asked(env)


def test_netrc_comes_first_as_with_pip(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine index.example login user password netrc\n")
    assert add_password(URL, "subprocess", env) == URL
    assert not asked(env)


def test_a_provider_that_was_named_and_gives_nothing_says_why(
    env: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = "https://user@stranger.example/simple"
    cases = [
        (stranger, "subprocess", env, "`keyring get` has no password of user"),
        (stranger, "subprocess", {"PATH": "/nowhere"}, "there is no program `keyring` on PATH"),
        ("https://index.example:8443/simple", "subprocess", env, "asks only for a user that the address names"),
        (stranger, "import", env, "gives no password"),
    ]
    for url, provider, variables, expected in cases:
        assert add_password(url, provider, variables) == url
        assert expected in capsys.readouterr().err
    assert add_password(stranger, "auto", env) == stranger
    assert not capsys.readouterr().err


def test_the_package_is_asked_without_a_user_too(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    package = "import sys; name = sys.argv[2] or 'token'; print(f'[\"{name}\", \"for {sys.argv[1]}\"]')"
    monkeypatch.setattr(pip_keyring, "ASK_PACKAGE", package)
    full = "https://token:for%20https%3A%2F%2Findex.example%3A8443%2Fsimple%2F@index.example:8443/simple"
    assert add_password("https://index.example:8443/simple", "import", env) == full
    assert add_password(URL, "auto", env).startswith("https://user:for")
    assert not asked(env)


def test_the_package_is_not_read_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keyring.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    result = subprocess.run(
        [sys.executable, "-I", "-c", pip_keyring.ASK_PACKAGE, "a", "b"], capture_output=True, text=True, check=False
    )
    assert "planted" not in result.stderr
    assert pip_keyring._ask_package("https://index.example/", "user") is None


def test_pips_configuration_chooses_the_provider(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nkeyring-provider = subprocess\nindex-url = {URL}\n")
    variables = {**env, "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "HOME": str(tmp_path)}
    indexes = read_indexes(variables)
    assert (indexes.keyring, indexes.main) == ("subprocess", FULL)
    assert make_index_access(indexes, variables).credentials == {"https://index.example:8443": ("user", "s3:cret/")}
