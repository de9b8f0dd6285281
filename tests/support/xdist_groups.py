"""Engine tests that run one after the other on one worker, while other groups run on others: `--dist=loadgroup`.

A test of one group must not count what another makes in the engine.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling

BUILDS = {
    "test_build_survives.py",
    "test_hardening.py",
    "test_layers.py",
    "test_one_command.py",
    "test_ordinary_user.py",
    "test_project_page.py",
    "test_rebuilds.py",
    "test_router.py",
    "test_standins.py",
}
"""Modules of tests/engine that build other images; the others start the CPU image."""


class ByGroup(LoadScopeScheduling):
    """Gives each group to one worker. xdist 3.8 ignores its own marks with pytest 9.2 (pytest-xdist issue 1386)."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


def group_of(path: str) -> str:
    """Return the group of a test's module; a module of no group is one by itself."""
    folder, name = PurePosixPath(path).parent.as_posix(), PurePosixPath(path).name
    if folder == "tests/engine":
        return "builds" if name in BUILDS else "cpu image"
    return "registry" if folder == "tests/registry" else path
