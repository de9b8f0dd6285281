"""Signing keys."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from drydock.engine import debian


def key_pair(folder: Path) -> Path:
    """Create a cosign key pair and return the private key's file; install cosign if needed."""
    if not shutil.which("cosign"):
        debian.install_packages("cosign", minimum={"cosign": (2, 6)})
    environment = {**os.environ, "COSIGN_PASSWORD": ""}
    subprocess.run(["cosign", "generate-key-pair"], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "cosign.key"
