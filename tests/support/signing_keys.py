"""Signing keys."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.needed_programs import require_program


def key_pair(folder: Path) -> Path:
    """Create a cosign key pair and return the private key's file; cosign is installed if needed."""
    cosign = require_program("cosign", minimum=(2, 6))
    environment = {**os.environ, "COSIGN_PASSWORD": ""}
    subprocess.run([cosign, "generate-key-pair"], cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "cosign.key"
