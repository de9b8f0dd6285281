"""The files of a release are made of its tag only, twice the same, with what they need and their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from drydock.attest import bom
from drydock.ci.own_wheel import parse_pins
from drydock.cli.version import read_own_version
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.development import release_files
from tests.support.git import git
from tests.support.released import copied

VERSION = read_own_version()
TAG = re.escape(f"v{VERSION}")


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository whose version has a tag."""
    folder = copied(tmp_path_factory.mktemp("tagged") / "drydock", VERSION)
    git(folder, "tag", "--annotate", "--message", VERSION, f"v{VERSION}")
    return folder


def test_they_are_made_of_the_tagged_commit(tagged: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1234567890"}

    release_assets = release_files.make_release_files(Project(tagged), tmp_path / "dist", None, environment)

    assert [path.name for path in release_assets] == [
        f"drydock_images-{VERSION}-py3-none-any.whl",
        f"drydock_images-{VERSION}.tar.gz",
        f"drydock_images-{VERSION}-py3-none-any.spdx.json",
        "SHA256SUMS",
    ]
    assert sorted(release_assets) == sorted((tmp_path / "dist").iterdir())
    sums = dict(line.split("  ")[::-1] for line in release_assets[3].read_text().splitlines())
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in release_assets[:3]}
    text = release_assets[2].read_text()
    assert bom.find_spdx_violations(text) == ()
    document = json.loads(text)
    whole, *parts = document["packages"]
    assert (whole["name"], whole["versionInfo"]) == ("drydock-images", VERSION)
    assert whole["checksums"][0]["checksumValue"] == sums[release_assets[0].name]
    pins = parse_pins((tagged / "requirements-install.txt").read_text())
    names = {part["name"]: part.get("versionInfo") for part in parts}
    assert {"pydantic", "pydantic-core", "docker", "pip"} <= names.keys()
    assert not {"pytest", "mypy", "ruff", "iniconfig"} & names.keys()
    assert {name: version for name, version in names.items() if version != pins.get(name)} == {}
    assert [part["name"] for part in parts if part["licenseDeclared"] == "NOASSERTION"] in ([], ["pywin32"])
    assert {link["relationshipType"] for link in document["relationships"]} == {"DESCRIBES", "DEPENDS_ON"}


def test_another_commit_or_a_changed_tree_is_refused(tagged: Path, tmp_path: Path) -> None:
    (tagged / "new").write_text("")
    with pytest.raises(
        InputError, match=rf"is at [0-9a-f]{{40}} with changed files, expected {TAG} \([0-9a-f]{{40}}\)"
    ):
        release_files.make_release_files(Project(tagged), tmp_path, None)
    git(tagged, "add", "new")
    git(tagged, "commit", "--quiet", "--message", "new")
    with pytest.raises(InputError, match=rf"is at [0-9a-f]{{40}}, expected {TAG} \("):
        release_files.make_release_files(Project(tagged), tmp_path, None)
    git(tagged, "reset", "--quiet", "--hard", f"v{VERSION}")
    git(tagged, "tag", "--delete", f"v{VERSION}")
    with pytest.raises(InputError, match="there is no such tag"):
        release_files.make_release_files(Project(tagged), tmp_path, None)
    git(tagged, "tag", f"v{VERSION}")


def test_a_folder_that_has_files_is_refused(tagged: Path, tmp_path: Path) -> None:
    (tmp_path / "old.whl").write_text("")
    for folder in (tmp_path, tmp_path / "old.whl"):
        with pytest.raises(InputError, match="is not an empty folder"):
            release_files.make_release_files(Project(tagged), folder, None)


def test_what_builds_a_release_has_hashes_and_is_what_everyone_builds_with() -> None:
    build_requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    lines = (ROOT / "requirements-build.in").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == build_requires

    text = (ROOT / "requirements-build.txt").read_text()
    name, version = build_requires[0].split("==")
    assert parse_pins(text)[name] == version
    assert all("--hash=sha256:" in requirement for requirement in re.split(r"\n(?=\w)", text))
