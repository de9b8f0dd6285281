"""Docker Compose, the plug-in `docker compose`: found, or on Debian installed as the engine is. IO."""

from __future__ import annotations

import os
import shutil
import subprocess

from drydock.core.errors import EngineError
from drydock.core.files import hold_lock_file
from drydock.core.paths import cache_home
from drydock.engine import debian
from drydock.engine.daemon import parse_version, refuse_podman

MINIMUM = (2, 36)
"""First release that gives a container's interface a name, which several nodes of one engine need (Compose's release
notes, 2.36.0: interface_name)."""
PACKAGE = "docker-compose"
HINT = "install Docker Compose 2.36 or newer, the plug-in docker-compose-plugin; `docker compose version` shows it"


def find_compose() -> str:
    """Return the version of the plug-in; empty if there is none."""
    if not shutil.which("docker"):
        return ""
    command = ["docker", "compose", "version", "--short"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ".".join(map(str, parse_version(result.stdout))) if result.returncode == 0 else ""


def ensure_compose() -> str:
    """Return the version of the plug-in; as root on Debian, install it if it is missing or too old.

    Raises EngineError that says what was found and how to get it.
    """
    with hold_lock_file(cache_home() / "engine" / "lock"):
        version = find_compose()
        if parse_version(version) >= MINIMUM:
            return version
        if os.geteuid() != 0 or not debian.is_debian():
            raise EngineError(f"docker compose: found {version or 'none'}, expected 2.36 or newer", hint=HINT)
        refuse_podman()
        debian.install_packages(PACKAGE, minimum={PACKAGE: MINIMUM})
        version = find_compose()
        if parse_version(version) < MINIMUM:
            raise EngineError(f"docker compose: found {version or 'none'} after it was installed", hint=HINT)
        return version
