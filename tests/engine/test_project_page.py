"""The first five commands of the page about projects run as they are written, and leave a project that is green."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.ci.workflow import PROJECT_TESTS
from drydock.core.paths import CACHE, ROOT, cache_home

pytestmark = [pytest.mark.engine, pytest.mark.checkout]
PAGE = ROOT / "docs" / "project.md"


def first_commands(page: Path, count: int) -> list[str]:
    """Return the first commands of a page, without the comments that follow them."""
    lines = re.findall(r"^    (\./inv .*)$", page.read_text(), re.MULTILINE)
    return [line.partition(" #")[0].rstrip() for line in lines[:count]]


class Newcomer:
    """Someone with a home folder of their own, in the checkout."""

    def __init__(self, home: Path) -> None:
        docker = os.environ.get("DOCKER_CONFIG", str(Path.home() / ".docker"))
        self.home, self.printed = home, list[str]()
        self.env = {**os.environ, "HOME": str(home), CACHE: str(cache_home()), "DOCKER_CONFIG": docker}

    def run(self, command: str) -> str:
        """Run a command with a shell; return what it printed."""
        result = subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=self.env, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{command}: {(result.stdout + result.stderr)[-3000:]}"
        return result.stdout


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Newcomer]:
    """Someone who has typed the first five commands of the page."""
    reader = Newcomer(tmp_path_factory.mktemp("newcomer"))
    reader.printed = [reader.run(command) for command in first_commands(PAGE, 5)]
    yield reader
    names = reader.run("docker image ls --format '{{.Repository}}:{{.Tag}}' drydock/acme-cpu").split()
    reader.run(f"docker image rm {' '.join(names)}" if names else "true")
    for kind in ("images", "foundations"):
        shutil.rmtree(cache_home() / kind / "acme-cpu", ignore_errors=True)
    shutil.rmtree(reader.home, ignore_errors=True)


def test_init_prints_the_commands_that_follow_it_on_the_page(newcomer: Newcomer) -> None:
    commands = first_commands(PAGE, 5)
    verbs = [re.sub(r"--project \S+ ", "", command).split()[1] for command in commands]
    assert verbs == ["project", "matrix", "lock", "render", "build"]
    following = "".join(f"  {command}\n" for command in commands[2:])
    assert newcomer.printed[0].endswith(following.replace("~", str(newcomer.home)))
    assert newcomer.printed[4].startswith("drydock/acme-cpu:")


def test_the_project_is_green_after_the_commands_of_the_page(newcomer: Newcomer) -> None:
    newcomer.run("./inv --project ~/acme ci")
    for task in (*PROJECT_TESTS, "upgrade"):
        newcomer.run(f"./inv --project ~/acme {task}")


@pytest.mark.slow
def test_the_project_is_green_after_its_digest_is_recorded(newcomer: Newcomer) -> None:
    newcomer.run("./inv --project ~/acme ci")
    newcomer.run("./inv --project ~/acme verify --target acme-cpu --record")
    assert '"digest": "sha256:' in (newcomer.home / "acme" / "images" / "acme-cpu" / "lock.json").read_text()
    for task in (*PROJECT_TESTS, "upgrade"):
        newcomer.run(f"./inv --project ~/acme {task}")
