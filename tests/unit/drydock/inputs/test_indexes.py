from __future__ import annotations

import os
from pathlib import Path

import pytest
from pip._internal.models.index import PyPI

from drydock.inputs.indexes import (
    make_index_access,
    parse_config,
    pips_default,
    read_indexes,
    split_indexes,
    uv_environment,
)

CONFIG = """\
:env:.find-links='/wheels /more'
:env:.timeout='20'
global.extra-index-url='https://user:se%40cret@one.example/simple\\nfile:///two/simple'
global.find-links='/ignored'
global.index-url='https://global.example/simple'
global.trusted-host='one.example:8443'
install.index-url='https://install.example/simple'
list.index-url='https://unrelated.example/simple'
"""


def test_the_environment_wins_over_install_over_global() -> None:
    indexes = parse_config(CONFIG)
    assert indexes.find_links == ("/wheels", "/more")
    assert indexes.main == "https://install.example/simple"
    assert indexes.extra == ("https://user:se%40cret@one.example/simple", "file:///two/simple")
    assert indexes.timeout == 20
    assert not indexes.no_index


def test_without_configuration_uv_uses_its_default() -> None:
    indexes = parse_config("")
    assert indexes.main is None
    assert "UV_DEFAULT_INDEX" not in uv_environment(indexes, {})


def test_uv_uses_pips_indexes_and_ignores_its_own_configuration() -> None:
    env = {"UV_INDEX_URL": "https://own.example", "UV_CACHE_DIR": "/cache", "PATH": "/bin"}
    variables = uv_environment(parse_config(CONFIG + "global.cert='/ca.pem'\n"), env)
    assert "UV_INDEX_URL" not in variables
    assert variables["UV_CACHE_DIR"] == "/cache"
    assert variables["UV_INDEX"] == "https://install.example/simple https://user:se%40cret@one.example/simple"
    assert variables["UV_DEFAULT_INDEX"] == "file:///two/simple"
    assert variables["UV_FIND_LINKS"] == "/wheels,/more"
    assert variables["SSL_CERT_FILE"] == "/ca.pem"


def test_pips_default_index_comes_before_extra_indexes() -> None:
    variables = uv_environment(parse_config("global.extra-index-url='https://one.example/simple'\n"), {})
    assert variables["UV_INDEX"] == PyPI.simple_url
    assert variables["UV_DEFAULT_INDEX"] == "https://one.example/simple"


def test_credentials_are_kept_per_origin() -> None:
    settings = make_index_access(parse_config(CONFIG), {"REQUESTS_CA_BUNDLE": "/bundle.pem"})
    assert settings.credentials == {"https://one.example:443": ("user", "se@cret")}
    assert settings.insecure_hosts == {"one.example"}
    assert settings.certificates == "/bundle.pem"


def test_each_index_can_be_used_alone() -> None:
    folders, main, one, two = split_indexes(parse_config(CONFIG))
    assert (folders.no_index, folders.find_links) == (True, ("/wheels", "/more"))
    assert [alone.main for alone in (main, one, two)] == [
        "https://install.example/simple",
        "https://user:se%40cret@one.example/simple",
        "file:///two/simple",
    ]
    assert not any(alone.extra or alone.find_links for alone in (main, one, two))
    assert [alone.main for alone in split_indexes(parse_config("global.index-url='https://one.example/simple'"))] == [
        "https://one.example/simple"
    ]


def test_the_configuration_comes_from_pip(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text("[global]\nindex-url = https://file.example/simple\nno-index = true\n")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    indexes = read_indexes({**env, "PIP_CONFIG_FILE": str(config), "PIP_FIND_LINKS": "/wheels"})
    assert (indexes.main, indexes.find_links, indexes.no_index) == ("https://file.example/simple", ("/wheels",), True)


def test_a_pip_of_the_current_folder_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text("raise SystemExit('planted')\n")
    monkeypatch.chdir(tmp_path)
    read_indexes()
    assert pips_default.__wrapped__() == PyPI.simple_url
