"""A bare `invoke`, which has none of drydock's packages: the command that has them, and no traceback."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import invoke
import pytest

from drydock.cli.verb import Verb
from drydock.core.paths import ROOT
from drydock.core.verb_options import VerbOptions

pytestmark = pytest.mark.checkout

INVOKE = Path(invoke.__file__).parent
HINT = "\n\nhint: run {command} instead, with Python 3.11 or newer: it first installs what it needs into .venv\n"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has invoke only, as pipx makes one."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in ("invoke", f"invoke-{version('invoke')}.dist-info"):
        shutil.copytree(INVOKE.with_name(name), site / name)
    return folder / "bin" / "python"


def run_bare(python: Path, *words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *words], cwd=folder, env=environment, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("build", "--target", "gaudi2"), "./inv build --target gaudi2"),
        (("model", "--name", "a b"), "./inv model --name 'a b'"),
        (("--list",), "./inv"),
        ((), "./inv"),
    ],
)
def test_a_bare_invoke_names_what_is_missing_and_the_command_to_type(
    bare_python: Path, words: tuple[str, ...], command: str
) -> None:
    done = run_bare(bare_python, "-m", "invoke", *words)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {bare_python} (Python {'.'.join(map(str, sys.version_info[:3]))}) lacks ")
    assert re.search(r": No module named '[a-z]+'\n\n", done.stderr)  # the first that is imported
    assert done.stderr.endswith(HINT.format(command=command))


def test_the_command_has_the_path_of_inv_where_invoke_runs_in_another_folder(bare_python: Path) -> None:
    done = run_bare(bare_python, "-m", "invoke", "matrix", folder=ROOT / "docs")

    assert done.stderr.endswith(HINT.format(command=f"{ROOT / 'inv'} matrix"))


def test_tasks_without_invoke_say_the_same(bare_python: Path) -> None:
    done = run_bare(bare_python, "-S", "tasks.py", "matrix")

    assert done.returncode == 1
    assert done.stderr.endswith(f": No module named 'invoke'{HINT.format(command='./inv matrix')}")


def test_a_package_that_only_one_verb_imports_is_named_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _import_in_a_verb("no_such_package")

    assert ended.value.code == 1
    assert "lacks what drydock needs: No module named 'no_such_package'\n\nhint: run " in capsys.readouterr().err


def test_a_missing_module_of_drydock_is_a_defect_and_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"drydock\.no_such_module"):
        _import_in_a_verb("drydock.no_such_module")


def _import_in_a_verb(module: str) -> None:
    def import_module(_: VerbOptions) -> None:
        importlib.import_module(module)

    Verb(import_module).body(None)
