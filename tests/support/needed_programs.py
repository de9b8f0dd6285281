"""Programs that tests need beside drydock's own: root installs them, for others the test is skipped."""

from __future__ import annotations

import os
import shutil

import pytest

from drydock.engine import debian


def require_program(name: str, minimum: tuple[int, ...] = ()) -> str:
    """Return the path of a program, whose Debian package has its name; install it as root if it is missing.

    Skips the test for an ordinary user, and on another distribution, where it is missing.
    """
    if path := shutil.which(name):
        return path
    if os.geteuid() != 0 or not debian.is_debian():
        pytest.skip(f"no {name} here: as root, `apt-get install {name}`")
    debian.install_packages(name, minimum={name: minimum} if minimum else None)
    return shutil.which(name) or name
