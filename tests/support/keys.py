"""Keys to sign with."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from drydock.engine import debian


def key_pair(folder: Path) -> Path:
    """Make a key pair of cosign's, which is installed where it is missing; return the private key's file."""
    if not shutil.which("cosign"):
        debian.install("cosign", minimum={"cosign": (2, 6)})
    environment = {**os.environ, "COSIGN_PASSWORD": ""}
    subprocess.run(["cosign", "generate-key-pair"], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "cosign.key"
