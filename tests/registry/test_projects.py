"""A project that is pushed to a real registry is taken by its digest in another one, without that registry later."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from drydock.build import render
from drydock.config.added_files import read_added_files
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK, read_settings
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import others
from drydock.publish import project_push
from tests.support.projects import ACME, VENDOR, write
from tests.support.servers import Registry


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


def verb(folder: Path, *words: str, **env: str) -> str:
    """Run a verb in a project; return what it prints."""
    command = [sys.executable, str(ROOT / "tasks.py"), *words]
    path = {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, cwd=folder, env={**os.environ, **path, **env}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_row_of_a_pushed_project_is_listed_inherited_and_rendered(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.start()
    try:
        vendor = write(tmp_path / "vendor", VENDOR)
        tried = verb(vendor, "project", "push", f"{registry.host}/vendor/rows", "--dry-run")
        with urllib.request.urlopen(f"http://{registry.host}/v2/_catalog") as answer:
            assert json.load(answer) == {"repositories": []}
        first, second = (verb(vendor, "project", "push", f"{registry.host}/vendor/rows") for _ in range(2))
        assert first == second == tried
        address = first.removeprefix('from: ["').removesuffix('"]\n')
        (row,) = json.loads(verb(tmp_path, "matrix", "--from", address, "--json"))["variants"]
        assert row["id"] == "vendor-next"
        acme = write(tmp_path / "acme", ACME, address)
        verb(acme, "matrix")
    finally:
        registry.stop()
    explained = verb(acme, "matrix", "acme-cpu", "--explain")
    assert "vendor:templates/cpu/stacks/vendor-cpu.yaml:3" in explained

    project = others.add_other_layers(Project(acme, (ROOT,)), read_settings(Project(acme)))
    variant = find_variant(read_matrix(project), "acme-cpu")
    text = render.render_dockerfile(project, variant)
    assert "RUN touch /vendor" in text
    assert "RUN touch /row" in text
    assert read_added_files(project, variant.additions) == {"project/files/files/motd": b"from the vendor\n"}


def test_what_others_could_not_take_is_not_pushed(registry: Registry, tmp_path: Path) -> None:
    vendor = write(
        tmp_path / "vendor",
        {**VENDOR, "matrix.yaml": "schema: 1\nvariants: {x: {stack: none, platforms: [linux/amd64]}}\n"},
    )
    acme = others.add_other_layers(Project(write(tmp_path / "acme", ACME, "../other"), (ROOT,)), None)
    for project, expected in (
        (Project(vendor, (ROOT,)), "unknown stack 'none'"),
        (acme, "from: ../other is a folder, which others do not have"),
        (DRYDOCK, "found no drydock.yaml"),
    ):
        with pytest.raises(InputError, match=expected):
            project_push.push_project(project, f"{registry.host}/broken")
    (vendor / "files" / "motd").unlink()
    write(vendor, {"matrix.yaml": VENDOR["matrix.yaml"]})
    with pytest.raises(InputError, match="files/motd"):
        project_push.push_project(Project(vendor, (ROOT,)), f"{registry.host}/broken")
