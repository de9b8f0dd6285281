"""Docker Compose, the plug-in `docker compose`: found, or on Debian installed as the engine is. IO."""

from __future__ import annotations

import os
import shutil
import subprocess

from drydock.core.errors import EngineError
from drydock.core.files import exclusive
from drydock.core.paths import cache_home
from drydock.engine import debian
from drydock.engine.daemon import parse_version, refuse_podman

MINIMUM = (2, 36)
"""First release that gives a container's interface a name, which several nodes of one engine need (Compose's release
notes, 2.36.0: interface_name)."""
PACKAGE = "docker-compose"
HINT = "install Docker Compose 2.36 or newer, the plug-in docker-compose-plugin; `docker compose version` shows it"


def find() -> str:
    """Return the version of the plug-in; empty if there is none."""
    if not shutil.which("docker"):
        return ""
    command = ["docker", "compose", "version", "--short"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return ".".join(map(str, parse_version(done.stdout))) if done.returncode == 0 else ""


def ensure() -> str:
    """Return the version of the plug-in; as root on Debian, install it if it is missing or too old.

    Raises EngineError that says what was found and how to get it.
    """
    with exclusive(cache_home() / "engine" / "lock"):
        found = find()
        if parse_version(found) >= MINIMUM:
            return found
        if os.geteuid() != 0 or not debian.is_debian():
            raise EngineError(f"docker compose: found {found or 'none'}, expected 2.36 or newer", hint=HINT)
        refuse_podman()
        debian.install(PACKAGE, minimum={PACKAGE: MINIMUM})
        found = find()
        if parse_version(found) < MINIMUM:
            raise EngineError(f"docker compose: found {found or 'none'} after it was installed", hint=HINT)
        return found
