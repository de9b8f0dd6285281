"""The script for Slurm's sbatch, beyond what every format says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drydock.topology.render import list_setup_remarks, ranktable, render_plan, slurm
from tests.support import topologies

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
PLANS = pytest.mark.parametrize("make", topologies.PLANS.values(), ids=list(topologies.PLANS))


def script_of(plan: Any) -> str:
    return render_plan(plan, topologies.variant(plan.variant), "slurm", {})[slurm.SCRIPT]


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not in this environment")
@PLANS
def test_shellcheck_finds_nothing_also_in_the_lines_of_the_tasks(make: Any) -> None:
    script = script_of(make())
    (tasks,) = re.findall(r"<<'NODE'\n(.*)^NODE$", script, re.DOTALL | re.MULTILINE)
    for text in (script, tasks):
        result = subprocess.run(
            [str(SHELLCHECK), "--shell=bash", "-"], input=text, text=True, capture_output=True, check=False
        )
        assert (result.returncode, result.stdout) == (0, "")


def test_a_node_without_a_rank_of_the_plan_starts_nothing() -> None:
    assert topologies.slurm_containers(script_of(topologies.trio()), "other") == {}


def test_the_job_asks_for_the_nodes_and_keeps_secrets_out_of_the_script() -> None:
    plan = topologies.two_nodes()
    script = script_of(plan)
    containers = topologies.slurm_containers(script, "gpu1")

    assert "#SBATCH --nodes=2\n#SBATCH --nodelist=gpu0,gpu1\n#SBATCH --ntasks-per-node=1\n" in script
    (argv,) = containers.values()
    variable_names = [argv[n + 1] for n, word in enumerate(argv) if word == "--env" and "=" not in argv[n + 1]]
    assert variable_names == ["VLLM_API_KEY", "DRYDOCK_GROUP_SECRET"]
    assert "/dev/infiniband" in argv
    assert [argv[n + 1] for n, word in enumerate(argv) if word == "--network"] == ["host"]
    assert not any(name in script for name in ("--publish", "--gpus"))


def test_ranktables_are_mounted_from_the_folder_of_the_job() -> None:
    plan, hosts = topologies.ascend(devices=2)
    table = f"/ranktables/{ranktable.make_local_table_name(plan.replicas[0].ranks[0])}"
    plan = topologies.with_rank(plan, env={"RANK_TABLE_FILE_PATH": table})
    files = render_plan(plan, topologies.variant(plan.variant), "slurm", hosts)

    mounts = [
        argv[n + 1]
        for argv in topologies.slurm_containers(files[slurm.SCRIPT], "p0").values()
        for n, word in enumerate(argv)
        if word == "--volume"
    ]
    assert [mount.partition("/ranktables:")[2] for mount in mounts] == ["/ranktables:ro"]
    assert table.removeprefix("/") in files


def test_podman_is_told_of_what_it_must_have() -> None:
    plan = topologies.two_nodes()
    remark_text = "\n".join(list_setup_remarks(plan, topologies.variant(plan.variant), "slurm"))
    assert "nvidia-ctk cdi generate" in remark_text
    plan = topologies.disaggregated()
    assert plan.router
    plan = plan.model_copy(update={"router": plan.router.model_copy(update={"image": "drydock/router0.1:x"})})
    remark_text = "\n".join(list_setup_remarks(plan, topologies.variant(plan.variant), "slurm"))
    assert "`docker save drydock/router0.1:x | podman load`" in remark_text
