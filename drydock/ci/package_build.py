"""drydock's own wheel and source distribution, built from a checkout with pinned build requirements. IO."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from drydock.cli.version import DISTRIBUTION
from drydock.core.errors import BuildError
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import uv_binary

BUILD_REQUIREMENTS, INSTALL_REQUIREMENTS = "requirements-build.txt", "requirements-install.txt"
WHEEL_NAME = DISTRIBUTION.replace("-", "_")
"""How file names spell it (binary distribution format, escaping)."""


def build_packages(
    source: Path, folder: Path, constraints: Path, env: Mapping[str, str], umask: int = 0o022
) -> list[Path]:
    """Build a source distribution, and a wheel from it; return both, sorted. Raises BuildError."""
    # An inherited SOURCE_DATE_EPOCH would give other bytes than everyone else's build.
    environment = uv_environment(read_indexes(env), {k: v for k, v in env.items() if k != "SOURCE_DATE_EPOCH"})
    words = ("build", "--quiet", "--python", sys.executable, "--out-dir", str(folder), "--no-create-gitignore")
    hashed = ("--build-constraints", str(constraints), "--require-hashes")
    result = subprocess.run(
        [str(uv_binary()), *words, *hashed],
        cwd=source,
        env=environment,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise BuildError(f"uv build: exit {result.returncode}: {result.stderr.strip()}")
    return sorted(folder.glob(f"{WHEEL_NAME}-*"))


def parse_pins(text: str) -> dict[str, str]:
    """Return the version of each distribution in a list with hashes."""
    return {
        str(canonicalize_name(name)): pin for name, pin in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    }
