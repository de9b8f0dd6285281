"""The deferred imports, with a vLLM, a PyTorch and a transformers of the parts they touch; real ones: tests/engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.support.hosts.trees import write_tree

FOLDER = ROOT / "entrypoints" / "plugin"

GUARDED = """
def _patch_inductor_fallback_allow_list():
    try:
        from torch._inductor import lowering
    except ImportError:
        return
    lowering.ALLOWED = {*lowering.ALLOWED, "vllm::all"}
_patch_inductor_fallback_allow_list()
"""
UNGUARDED = GUARDED + "from torch._inductor.lowering import ALLOWED\n"
OTHERWISE = GUARDED.replace("_patch_inductor_fallback_allow_list", "_patch_lowerings")
BROKEN = GUARDED + "import a_module_that_is_missing\n"

LIBRARIES = {
    "torch/__init__.py": "",
    "torch/_inductor/__init__.py": "",
    "torch/_inductor/lowering.py": "print('lowerings')\nALLOWED = {'aten::some'}\n",
    "vllm/__init__.py": "import vllm.env_override\n",
    "transformers/__init__.py": "",
    "transformers/utils/__init__.py": "",
    "transformers/utils/import_utils.py": """
def create_import_structure_from_path(path):
    print("read", path)
    return {path: {"Model"}}
def define_import_structure(path, prefix=None):
    return {prefix: create_import_structure_from_path(path)}
""",
}
SCRIPT = """
import vllm
print("vllm")
from torch._inductor import lowering
print(sorted(lowering.ALLOWED))
from transformers.utils.import_utils import define_import_structure as define
print(define("models"), define("models", "models"))
"""
READ = "read models"
STRUCTURES = "{None: {'models': {'Model'}}} {'models': {'models': {'Model'}}}"
PATCHED = "['aten::some', 'vllm::all']"


def run(folder: Path, override: str, method: str = "fork") -> subprocess.CompletedProcess[str]:
    """Run the script in a Python that has the plugin and the libraries on its path."""
    write_tree(folder, {**LIBRARIES, "vllm/env_override.py": override})
    env = {**os.environ, "PYTHONPATH": f"{FOLDER}:{folder}", "VLLM_WORKER_MULTIPROC_METHOD": method}
    return subprocess.run([sys.executable, "-Bc", SCRIPT], env=env, capture_output=True, text=True, check=False)


def test_the_lowerings_are_imported_and_patched_when_they_are_used_and_models_are_read_once(tmp_path: Path) -> None:
    assert run(tmp_path, GUARDED).stdout.splitlines() == ["vllm", "lowerings", PATCHED, READ, STRUCTURES]


def test_a_plan_that_does_not_fork_changes_no_import(tmp_path: Path) -> None:
    output_lines = run(tmp_path, GUARDED, method="spawn").stdout.splitlines()

    assert output_lines == ["lowerings", "vllm", PATCHED, READ, READ, STRUCTURES]


@pytest.mark.parametrize("override", [UNGUARDED, OTHERWISE])
def test_a_vllm_that_uses_the_lowerings_in_another_way_has_them_at_once(tmp_path: Path, override: str) -> None:
    assert run(tmp_path, override).stdout.splitlines()[:3] == ["lowerings", "vllm", PATCHED]


def test_a_vllm_without_such_a_patch_and_a_module_that_is_missing_stay_as_they_are(tmp_path: Path) -> None:
    assert run(tmp_path, "").stdout.splitlines()[:3] == ["vllm", "lowerings", "['aten::some']"]
    assert "No module named 'a_module_that_is_missing'" in run(tmp_path, BROKEN).stderr


def test_the_hidden_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('of the user')\n")

    assert run(tmp_path, GUARDED).stdout.splitlines()[:2] == ["of the user", "vllm"]


STANDING_IN = """
from importlib.util import find_spec
from drydock_plugin.deferring import stand_in
seen = find_spec("absent")
stand_in()
import absent, json
from absent.transforms import v2
from absent.transforms.v2 import functional as F
class Picture:
    mode: "int | F.Mode" = F.Mode.EXACT
def resize(mode: F.Mode | None = None): ...
print(seen, json.dumps({}), issubclass(F.Mode, object), hasattr(absent, "__version__"))
try:
    v2.Resize(3)
except ImportError as error:
    print(error)
"""


def test_a_package_that_is_absent_is_imported_and_does_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "DRYDOCK_ABSENT_PACKAGES": "absent,json"}
    ran = subprocess.run(
        [sys.executable, "-Bc", STANDING_IN], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )

    assert ran.stdout.splitlines() == [
        "None {} True False",
        "absent.transforms.v2.Resize: the image lacks the package, and serves text only",
    ], ran.stderr


def test_without_the_variable_nothing_is_imported(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(FOLDER)}
    script = "from drydock_plugin.deferring import stand_in; stand_in(); import absent"
    ran = subprocess.run([sys.executable, "-Bc", script], cwd=tmp_path, env=env, capture_output=True, check=False)

    assert b"No module named 'absent'" in ran.stderr
