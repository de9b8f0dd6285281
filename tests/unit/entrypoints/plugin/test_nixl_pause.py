"""The pause of NIXL's progress thread, with bindings of the parts that NIXL's Python API uses; real ones: topology."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT

CONFIG = "class nixlAgentConfig:\n    pthrDelay = 0\n"
AGENT = "class nixlAgent:\n    def __init__(self, name, config):\n        print(name, vars(config))\n"
OLDER = CONFIG.replace("pthrDelay", "delay")
SCRIPT = """
from {package} import _bindings
config = _bindings.nixlAgentConfig()
config.pthrDelay = {delay}
_bindings.nixlAgent("prefill", config)
"""


def make_agent(folder: Path, bindings: str, *, package: str = "nixl_cu12", delay: int = 0, method: str = "fork") -> str:
    """Return what an agent is made of, in a Python that has the plugin and the bindings on its path."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text("")
    (folder / package / "_bindings.py").write_text(bindings)
    path = f"{ROOT / 'entrypoints' / 'plugin'}:{folder}"
    env = {**os.environ, "PYTHONPATH": path, "VLLM_WORKER_MULTIPROC_METHOD": method}
    command = [sys.executable, "-Bc", SCRIPT.format(package=package, delay=delay)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("package", ["nixl_cu12", "nixl_cu13"])
def test_a_thread_without_a_pause_gets_the_shortest(tmp_path: Path, package: str) -> None:
    assert make_agent(tmp_path, CONFIG + AGENT, package=package) == "prefill {'pthrDelay': 1000}"


def test_a_pause_that_nixl_sets_itself_stays(tmp_path: Path) -> None:
    assert make_agent(tmp_path, CONFIG + AGENT, delay=5000) == "prefill {'pthrDelay': 5000}"


def test_a_plan_that_does_not_fork_changes_no_agent(tmp_path: Path) -> None:
    assert make_agent(tmp_path, CONFIG + AGENT, method="spawn") == "prefill {'pthrDelay': 0}"


def test_bindings_without_this_setting_stay_as_they_are(tmp_path: Path) -> None:
    assert make_agent(tmp_path, OLDER + AGENT) == "prefill {'pthrDelay': 0}"
