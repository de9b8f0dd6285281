"""The cluster leaves its machine alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from drydock.core.paths import ROOT
from tests.cluster.conftest import World, footprint
from tests.support.waiting import wait_until

STARTED = """
import sys, time
from pathlib import Path
from tests.support.kubernetes.cluster_network import networks
print(*(network.holder.pid for network in networks(2, Path(sys.argv[1]))), flush=True)
time.sleep(600)
"""


def test_no_rule_setting_or_folder_of_the_machine_changes(world: World) -> None:
    assert footprint() == world.before


def test_what_was_started_ends_with_a_test_that_is_killed(tmp_path: Path) -> None:
    command = (sys.executable, "-c", STARTED, tmp_path / "log")
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pids = process.stdout.readline().split()
        assert all(Path("/proc", pid, "ns/net").exists() for pid in pids)
        process.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(Path("/proc", pid, "ns/net").exists() for pid in pids), "their end")
