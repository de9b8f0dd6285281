"""HOME of the programs that no plan gives one: no folder that another user can write to."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.folders import choose_private_home
from tests.support.sample import PROFILE

ENTRYPOINT = [sys.executable, "-I", "-S", str(ROOT / "entrypoints")]
SHOW = "import os; print(os.environ['HOME'])"


@pytest.mark.parametrize("home", ["", "/", "/cache/home"])
def test_a_home_that_nobody_chose_is_a_folder_of_this_user_alone(tmp_path: Path, home: str) -> None:
    env = {"TMPDIR": str(tmp_path), "HOME": home}
    folder = choose_private_home(env)
    assert folder == choose_private_home(env) == f"{tmp_path}/drydock-{os.getuid()}/home"
    for path in (Path(folder), Path(folder).parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert path.stat().st_uid == os.getuid()


def test_the_users_home_is_kept(tmp_path: Path) -> None:
    assert choose_private_home({"TMPDIR": str(tmp_path), "HOME": "/home/me"}) == "/home/me"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("planted", ["mode", "link", "file", "owner"])
def test_what_another_user_put_in_its_place_is_not_used(tmp_path: Path, planted: str) -> None:
    root = tmp_path / f"drydock-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    if planted == "link":
        root.symlink_to(tmp_path / "elsewhere")
    elif planted == "file":
        root.touch()
    else:
        root.mkdir()
    if planted == "mode":
        root.chmod(0o777)
    if planted == "owner":
        if os.getuid() != 0:
            pytest.skip("only root can give files to other users")
        os.chown(root, 65534, -1)
    assert choose_private_home({"TMPDIR": str(tmp_path)}) == "/"


def test_without_a_folder_it_is_that_of_the_image(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert choose_private_home({"TMPDIR": str(tmp_path / "file")}) == "/"


def run(tmp_path: Path, home: str, *words: str) -> str:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({**PROFILE, "python": sys.executable}))
    env = {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(profile), "TMPDIR": str(tmp_path), "HOME": home}
    result = subprocess.run([*ENTRYPOINT, *words], env=env, capture_output=True, text=True, check=True)
    return result.stdout


@pytest.mark.parametrize("home", ["/", "/cache/home"])
def test_another_command_gets_it(tmp_path: Path, home: str) -> None:
    assert run(tmp_path, home, sys.executable, "-c", SHOW) == f"{tmp_path}/drydock-{os.getuid()}/home\n"


@pytest.mark.parametrize(("home", "expected"), [("/cache/home", "/"), ("", "/"), ("/home/me", "/home/me")])
def test_vendors_tools_and_clients_get_none_on_the_volume(home: str, expected: str) -> None:
    """They inherit the environment of the entrypoint's process. A container runtime fills an empty HOME in."""
    program = (
        "import os, runpy, sys\nsys.argv[:] = ['entrypoints', 'help']\n"
        f"try:\n    runpy.run_path({str(ROOT / 'entrypoints')!r}, run_name='__main__')\n"
        "except SystemExit:\n    print(os.environ['HOME'])\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": home}
    result = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == expected


def test_no_variable_of_an_image_names_a_folder_of_the_volume() -> None:
    files = sorted(ROOT.glob("images/*/Dockerfile"))
    settings = [line for file in files for line in file.read_text().splitlines() if line.startswith("ENV ")]
    assert len(settings) >= len(files) > 0
    assert [line for line in settings if "=/cache" in line] == []
    assert all(any(" HOME=/ " in line for line in file.read_text().splitlines()) for file in files)
