"""Run records, machines and variants that tests of `run` share: one of each kind that vendors ask for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.model.running import Run
from drydock.model.variant import Variant
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.machine import Machine


def word(value: str, **more: str) -> dict[str, Any]:
    return {"value": value, "because": f"{value} is needed", "source": "a manual", **more}


def node(path: str, **more: bool) -> dict[str, Any]:
    return {"path": path, "because": f"{path} is opened", "source": "a manual", **more}


NODES = Run.model_validate({
    "devices": [node("/dev/davinci[0-9]*", each=True), node("/dev/davinci_manager"), node("/dev/devmm_svm")],
    "usual": 8,
    "visible": word("ASCEND_RT_VISIBLE_DEVICES"),
    "groups": [word("HwHiAiUser")],
    "mounts": [node("/usr/local/Ascend/driver"), node("/etc/ascend_install.info", optional=True)],
    "ulimits": [word("memlock=-1:-1")],
    "shm": word("16g"),
    "env": {"HCCL_OP": {"value": True, "because": "it must be there early", "source": "a manual"}},
    "kubernetes": {"resource": "huawei.com/Ascend910", "source": "a manual"},
})  # fmt: skip
"""Device files, driver mounts, a group, no runtime: as Ascend."""

RUNTIME = Run.model_validate({
    "usual": 8,
    "visible": word("HABANA_VISIBLE_DEVICES=all"),
    "runtime": word("habana"),
    "capabilities": [word("SYS_NICE"), word("cap_sys_ptrace")],
    "security": [word("seccomp=unconfined")],
    "ipc": word("host"),
    "shm": word("16g"),
    "network": word("host"),
    "kubernetes": {"resource": "habana.ai/gaudi", "source": "a manual"},
})  # fmt: skip
"""A container runtime that gives the devices: as Gaudi."""

GPUS = Run.model_validate({"gpus": word("all"), "usual": 8, "visible": word("NVIDIA_VISIBLE_DEVICES=all")})
"""Docker's --gpus: as CUDA."""

PRIVILEGED = Run.model_validate({
    "devices": [node("/dev/accel[0-9]*", each=True)],
    "usual": 4,
    "visible": word("TPU_VISIBLE_CHIPS"),
    "user": word("0:0"),
    "capabilities": [word("SYS_ADMIN")],
    "privileged": {"because": "the driver maps memory.", "instead": "SYS_RAWIO alone fails.", "source": "a manual"},
})  # fmt: skip
"""Nothing less than --privileged: as TPU."""

RECORDS = {"nodes": NODES, "runtime": RUNTIME, "gpus": GPUS, "privileged": PRIVILEGED, "nothing": Run()}


def variant(run: Run) -> Variant:
    """Return the CPU variant, run otherwise."""
    return find_variant(read_matrix(DRYDOCK), "cpu").model_copy(update={"run": run})


def machine(folder: Path, files: Iterable[str] = (), groups: str = "") -> Machine:
    """Make a machine with just these files."""
    for file in (*files, "/etc/group"):
        path = folder / file.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (folder / "etc" / "group").write_text(groups)
    return Machine(folder)


def recorded(name: str, folder: Path, files: Iterable[str] = ()) -> Machine:
    """Write the files of one of tests/hosts below a folder, and empty ones in addition."""
    for path, text in json.loads((ROOT / "tests" / "hosts" / name / "host.json").read_text())["files"].items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return machine(folder, files)


def made(run: Run, here: Machine, **request: Any) -> Container:
    """Return what a container with such a record is started with."""
    return make_container(variant(run), RunRequest(**{"model": "org/model", **request}), here)
