"""The plugin in a Python that has a vLLM of the parts it touches; the real one: tests/engine/test_cpu_serves.py."""

from __future__ import annotations

import configparser
import json
import os
import signal
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from entrypoints.decide.cpu.executor import PLUGIN
from entrypoints.host.processes import is_running
from entrypoints.serve.plugin_files import STACKS_SIGNAL, STACKS_VARIABLE, StacksFolder
from tests.support.waiting import DEADLINE

FOLDER = ROOT / "entrypoints" / "plugin"

VLLM = {
    "platforms/__init__.py": "def cpu_platform_plugin(): return 'vllm.platforms.{known}'\n",
    "platforms/cpu.py": """
import os
class CpuPlatform:
    @classmethod
    def check_and_update_config(cls, config):
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        if config.parallel_config.worker_cls == "auto":
            config.parallel_config.worker_cls = "vllm.v1.worker.cpu_worker.CPUWorker"
""",
    "model_executor/models/registry.py": "def _run_in_subprocess(fn): raise OSError('another process')\n",
}

SCRIPT = """
import gc, json, os
from importlib import import_module
from importlib.metadata import entry_points
from types import SimpleNamespace
found = {group: point.load() for group in ("platform", "general")
         for point in entry_points(group=f"vllm.{group}_plugins") if point.name == "drydock"}
said = {"platform": found["platform"](), "while importing": gc.isenabled()}
if said["platform"]:
    module, _, name = said["platform"].rpartition(".")
    config = SimpleNamespace(parallel_config=SimpleNamespace(worker_cls=os.environ.get("WORKER", "auto")))
    getattr(import_module(module), name).check_and_update_config(config)
    said["worker"] = config.parallel_config.worker_cls
found["general"]()
from vllm.model_executor.models import registry
try:
    said["inspected"] = registry._run_in_subprocess(os.getpid) == os.getpid()
except OSError:
    said["inspected"] = False
print(json.dumps({**said, "imported": gc.isenabled(), "frozen": gc.get_freeze_count() > 0,
                  "method": os.environ.get("VLLM_WORKER_MULTIPROC_METHOD")}))
"""


def run(folder: Path, platform_class: str = "cpu.CpuPlatform", **env: str) -> dict[str, object]:
    """Return what a Python that has the plugin on its path says of it."""
    for name, text in VLLM.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{known}", platform_class))
    whole = {**os.environ, "PYTHONPATH": f"{FOLDER}:{folder}", "PYTHONDONTWRITEBYTECODE": "1", **env}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=whole, capture_output=True, text=True, check=True)
    return dict(json.loads(result.stdout))


def test_a_plan_that_forks_keeps_its_method_and_inspects_here(tmp_path: Path) -> None:
    assert run(tmp_path, VLLM_WORKER_MULTIPROC_METHOD="fork") == {
        "platform": "drydock_plugin.forking.ForkingCpuPlatform",
        "while importing": False,
        "worker": "drydock_plugin.worker.Worker",
        "inspected": True,
        "imported": True,
        "frozen": True,
        "method": "fork",
    }


def test_a_users_worker_stays(tmp_path: Path) -> None:
    assert run(tmp_path, VLLM_WORKER_MULTIPROC_METHOD="fork", WORKER="my.Worker")["worker"] == "my.Worker"


@pytest.mark.parametrize(
    ("known", "env"), [("cpu.CpuPlatform", {}), ("zen_cpu.ZenCpuPlatform", {"VLLM_WORKER_MULTIPROC_METHOD": "fork"})]
)
def test_without_such_a_plan_or_with_another_platform_vllm_stays_as_it_is(
    tmp_path: Path, known: str, env: dict[str, str]
) -> None:
    report = run(tmp_path, known, **env)

    assert (report["platform"], report["while importing"], report["imported"]) == (None, True, True)


def test_a_vllm_whose_platform_is_elsewhere_raises_before_anything_is_changed(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "vllm" / "platforms" / "cpu.py").write_text("")
    script = (
        "import gc\nfrom drydock_plugin import platform\ntry: platform()\nexcept ImportError: print(gc.isenabled())"
    )
    env = {**os.environ, "PYTHONPATH": f"{FOLDER}:{tmp_path}", "VLLM_WORKER_MULTIPROC_METHOD": "fork"}
    result = subprocess.run([sys.executable, "-Bc", script], env=env, capture_output=True, text=True, check=True)

    assert result.stdout == "True\n"


def test_the_metadata_names_what_is_there_and_comes_into_the_image() -> None:
    (distribution,) = distributions(path=[str(FOLDER)])
    points = configparser.ConfigParser()
    points.read_string(distribution.read_text("entry_points.txt") or "")

    assert distribution.name == "drydock-plugin"
    assert set(points.sections()) == {"vllm.platform_plugins", "vllm.general_plugins"}
    copied = {name for name in DRYDOCK.entrypoint if name.startswith("plugin/")}
    assert {"plugin/drydock_plugin/forking.py", "plugin/drydock_plugin-1.dist-info/entry_points.txt"} <= copied
    assert PLUGIN.endswith("/entrypoints/plugin")


FORKS = """
import os, sys, time
child = os.fork()
if not child and sys.argv[1] == "closed":
    os.closerange(3, 1024)
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
def wait_here():
    print(os.getpid(), flush=True)
    time.sleep(60)
wait_here()
"""


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_each_process_writes_its_own_stacks_unless_it_has_closed_the_file(tmp_path: Path, closed: bool) -> None:
    folder = StacksFolder.create({"TMPDIR": str(tmp_path)})
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "PYTHONDONTWRITEBYTECODE": "1", STACKS_VARIABLE: folder.path}
    argv = [sys.executable, "-c", FORKS, "closed" if closed else "open"]
    parent = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout
    try:
        pids = {int(parent.stdout.readline()) for _ in range(2)}
        stacks = {pid: text for pid, text in folder.read_stacks(DEADLINE).items() if text}
        again = {pid: text for pid, text in folder.read_stacks(DEADLINE).items() if text}
        alive = parent.poll() is None and all(map(is_running, pids))
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
        parent.stdout.close()

    assert stacks.keys() == again.keys() == ({parent.pid} if closed else pids)
    assert all("in wait_here" in text for text in (*stacks.values(), *again.values()))
    assert alive
    folder.remove()
    assert not Path(folder.path).exists()


def test_both_sides_know_the_same_signal_and_variable() -> None:
    code = "import drydock_plugin as plugin; print(plugin.STACKS_SIGNAL, plugin.STACKS)"
    env = {**os.environ, "PYTHONPATH": str(FOLDER), "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [str(STACKS_SIGNAL), STACKS_VARIABLE]
