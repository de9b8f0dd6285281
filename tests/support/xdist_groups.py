"""Tests that run one after the other on one worker, while other groups run on others.

A group is a module, whose fixtures are then made once, or several modules that share a server, a cache or built images,
or that use the same names in the engine. A test of one group must not count what another makes in the engine.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "small images": ("test_build_many", "test_build_survives", "test_ordinary_user", "test_rebuilds"),
    "volumes": ("test_cache", "test_cpu_intents"),
    "stand-ins": ("test_hardening", "test_one_command", "test_standins"),
    "server": ("test_cpu_bench", "test_cpu_guard", "test_cpu_memory", "test_cpu_serves", "test_cpu_tools"),
    "topologies": ("test_cpu_fabric", "test_cpu_topology", "test_router"),
}
"""Group → modules of tests/engine, the groups that take longest first. Any other module is a group by itself."""
MANUALS = "tests/manuals"
"""A folder that is a group: the commands of the manuals are run once for all its modules."""
RANKS = {name: rank for rank, name in enumerate((*GROUPS, MANUALS))}
GROUP_OF = {f"tests/engine/{module}.py": name for name, modules in GROUPS.items() for module in modules}


class ByGroup(LoadScopeScheduling):
    """Gives each group to one worker. xdist 3.8 ignores its own marks with pytest 9.2 (pytest-xdist issue 1386)."""

    def _split_scope(self, nodeid: str) -> str:
        return find_group(nodeid.partition("::")[0])

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker a group that takes long before those that fill the time that is left."""
        self.workqueue.move_to_end(min(self.workqueue, key=rank_group), last=False)
        super()._assign_work_unit(node)


def find_group(path: str) -> str:
    """Return the group of a test's module."""
    return MANUALS if path.startswith(MANUALS) else GROUP_OF.get(path, path)


def rank_group(group: str) -> tuple[int, bool]:
    """Return when a group's turn is: modules that start the CPU image come before those of the registry."""
    return RANKS.get(group, len(RANKS)), PurePosixPath(group).parts[:2] != ("tests", "engine")
