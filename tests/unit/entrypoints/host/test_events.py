"""Which limit of a container the kernel enforced."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoints.host.events import LimitEvents, explain_limit_events, limit_events
from tests.support.hosts.trees import write_tree


def write(root: Path, files: dict[str, str]) -> str:
    return str(write_tree(root, files))


EVENTS = "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n"
LAYOUTS = {
    "version 2, in a namespace": {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.events": EVENTS,
        "sys/fs/cgroup/pids.events": "max 3\n",
    },
    "version 2, without a namespace": {
        "proc/self/cgroup": "0::/kubepods/pod1\n",
        "sys/fs/cgroup/kubepods/pod1/memory.events": EVENTS,
        "sys/fs/cgroup/kubepods/pod1/pids.events": "max 3\n",
        "sys/fs/cgroup/memory.events": EVENTS.replace("oom_kill 2", "oom_kill 77"),
    },
    "version 1, the host's path and the container's mount": {
        "proc/self/cgroup": "8:pids:/docker/1ec3\n4:memory:/docker/1ec3\n1:cpu,cpuacct:/x\n",
        "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        "sys/fs/cgroup/pids/pids.events": "max 3\n",
    },
}


@pytest.mark.parametrize("files", LAYOUTS.values(), ids=list(LAYOUTS))
def test_the_containers_own_counts_are_read(tmp_path: Path, files: dict[str, str]) -> None:
    assert limit_events(write(tmp_path, files)) == LimitEvents(killed=2, refused=3)


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "oom_kill -1\n", "x" * 200_000])
def test_a_kernel_that_tells_nothing_counts_nothing(tmp_path: Path, text: str) -> None:
    root = write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": text})
    assert limit_events(root) == LimitEvents()


def test_only_what_happened_since_the_start_is_named() -> None:
    before = LimitEvents(killed=2, refused=3)
    assert explain_limit_events(before, before) == ""
    assert "OOM killer ended 1 process of" in explain_limit_events(before, LimitEvents(3, 3))
    assert "reached, 4 refused" in explain_limit_events(before, LimitEvents(2, 7))
    assert "--pids-limit" in explain_limit_events(before, LimitEvents(2, 7))
