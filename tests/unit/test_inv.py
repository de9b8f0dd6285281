"""`inv` in an empty checkout: creates the environment, or creates it again if outdated, then becomes tasks.py."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from drydock.development.other_pythons import distribution_python
from tests.support.other_users import only_root, reachable_folder

WITHOUT_LOCKS = """
import errno, fcntl, os, runpy, sys
def flock(*_):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
fcntl.flock = flock
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program as on a file system without locks."""
NOBODY = 65534
TASKS = "import json, sys; print(json.dumps(sys.argv[1:]))"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout without requirements, and a tasks.py that prints its arguments."""
    folder = tmp_path_factory.mktemp("a checkout")
    shutil.copy(ROOT / "inv", folder)
    (folder / "requirements.txt").write_text("# nothing\n")
    (folder / "tasks.py").write_text(TASKS)
    return folder


def inv(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(checkout / "inv"), *arguments]
    return subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def both(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> list[subprocess.CompletedProcess[str]]:
    """Two first runs at once, with the umask 0, in a folder with modules that have the names of those that create."""
    shutil.rmtree(checkout / ".venv", ignore_errors=True)
    folder = tmp_path_factory.mktemp("planted")
    for name in ("pip", "venv", "ensurepip"):
        (folder / f"{name}.py").write_text(f"open({str(checkout / 'ran')!r}, 'w')\n")
    command = [sys.executable, str(checkout / "inv"), "matrix"]
    processes = [subprocess.Popen(command, cwd=folder, stdout=-1, stderr=-1, text=True, umask=0) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    return [
        subprocess.CompletedProcess(command, process.returncode, *output)
        for process, output in zip(processes, outputs, strict=True)
    ]


def test_two_processes_create_one_environment(both: list[subprocess.CompletedProcess[str]]) -> None:
    assert [(done.returncode, done.stdout) for done in both] == [(0, '["matrix"]\n')] * 2
    assert sum("inv: creating" in done.stderr for done in both) == 1


@pytest.mark.usefixtures("both")
def test_modules_of_the_current_folder_are_not_run_while_it_is_made(checkout: Path) -> None:
    assert (checkout / ".venv").is_dir()
    assert not (checkout / "ran").exists()


@pytest.mark.usefixtures("both")
def test_no_other_user_can_write_to_it_whatever_the_umask(checkout: Path) -> None:
    files = [path for path in (checkout / ".venv").rglob("*") if not path.is_symlink()]
    assert files
    assert [path for path in files if path.stat().st_mode & 0o022] == []


def test_a_complete_environment_is_not_changed(checkout: Path) -> None:
    inv(checkout, "matrix")
    again = inv(checkout, "matrix", "--json")
    assert again.stderr == ""
    assert again.stdout == '["matrix", "--json"]\n'


@only_root
@pytest.mark.skipif(distribution_python("") is None, reason="no Python that every user can run")
@pytest.mark.parametrize("made_by_root", [".venv", "the checkout"])
def test_where_root_ran_first_it_says_whose_folder_is_in_the_way(checkout: Path, made_by_root: str) -> None:
    with reachable_folder() as folder:
        shutil.copytree(checkout, folder / "co", ignore=shutil.ignore_patterns(".venv"))
        (folder / "co").chmod(0o755)
        if made_by_root == ".venv":
            os.chown(folder / "co", NOBODY, NOBODY)
            (folder / "co" / ".venv").mkdir()
        command = ["/usr/bin/python3", str(folder / "co" / "inv"), "matrix"]
        done = subprocess.run(
            command, cwd=folder, check=False, capture_output=True, text=True, user=NOBODY, group=NOBODY, extra_groups=[]
        )
        place = folder / "co" / ".venv" if made_by_root == ".venv" else folder / "co"
    assert (done.returncode, done.stdout) == (1, "")
    problem, _, hint = done.stderr.partition("\n\nhint: ")
    assert problem.startswith(f"inv: error: {place}: uid 0 owns it")
    assert "\n" not in problem
    assert "as root: " in hint


def test_an_incomplete_environment_is_created_again(checkout: Path) -> None:
    requirements = checkout / "requirements.txt"
    requirements.write_text(f"no-such-thing @ file://{checkout}/absent.whl --hash=sha256:{'0' * 64}\n")
    broken = inv(checkout, "matrix")
    assert broken.returncode == 1
    assert broken.stdout == ""
    assert "inv: error: pip could not install requirements.txt" in broken.stderr
    requirements.write_text("# nothing, still\n")
    assert "inv: creating" in inv(checkout, "matrix").stderr


@pytest.mark.parametrize("part", [".", "bin", "lib/python3.*/site-packages"])
def test_an_environment_that_others_can_write_to_is_not_complete(checkout: Path, part: str) -> None:
    inv(checkout, "matrix")
    (folder,) = (checkout / ".venv").glob(part) if part != "." else [checkout / ".venv"]
    is_complete = runpy.run_path(str(checkout / "inv"), run_name="inv")["complete"]
    assert is_complete()
    folder.chmod(0o775)
    assert not is_complete()
    folder.chmod(0o755)


def test_an_environment_that_others_can_write_to_is_created_again_also_without_locks(checkout: Path) -> None:
    inv(checkout, "matrix")
    folder = checkout / ".venv" / "bin"
    (folder / "planted").touch()
    folder.chmod(0o775)
    command = [sys.executable, "-c", WITHOUT_LOCKS, str(checkout / "inv"), "matrix"]

    again = subprocess.run(command, cwd=checkout, check=False, capture_output=True, text=True)

    assert (again.returncode, again.stdout) == (0, '["matrix"]\n')
    assert f"inv: {checkout}: its file system has no locks (Function not implemented)" in again.stderr
    assert "inv: creating" in again.stderr
    assert not (folder / "planted").exists()
    assert inv(checkout, "matrix").stderr == ""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")
def test_an_environment_of_another_user_is_not_run(checkout: Path) -> None:
    inv(checkout, "matrix")
    os.chown(checkout / ".venv", 65534, -1)
    refused = inv(checkout, "matrix")
    os.chown(checkout / ".venv", 0, -1)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"inv: error: {checkout}/.venv: uid 65534 owns it" in refused.stderr
    assert f"remove {checkout}/.venv" in refused.stderr
    assert "SUDO_UID=65534 ./inv …" in refused.stderr


@pytest.mark.parametrize(("uid", "docker", "is_told"), [(0, "", False), (1000, "", True), (1000, "docker", False)])
def test_a_user_of_debian_without_docker_is_told_what_root_does(
    uid: int, docker: str, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "os-release"
    release.write_text("NAME=x\nID=debian\n")
    module = runpy.run_path(str(ROOT / "inv"))
    monkeypatch.setitem(module["lacks_engine"].__globals__, "OS_RELEASE", release)
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("shutil.which", lambda _: docker or None)
    assert module["lacks_engine"]() is is_told


def test_the_tab_key_creates_no_environment(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv", ignore_errors=True)

    ran = inv(checkout, "complete", "")

    assert (ran.stdout, ran.stderr) == ("", "")
    assert not (checkout / ".venv").exists()
