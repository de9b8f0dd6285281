"""Writes what tests/device/run.sh takes to a machine that has nothing of drydock's but this checkout.

`python tests/device/prepare.py FOLDER [TARGET]`: the files that the image of a target has beside its entrypoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from drydock.build.render import image_files  # noqa: E402 - after the path is set
from drydock.config.matrix import find_variant, read_matrix  # noqa: E402 - as above
from drydock.config.project_choice import DRYDOCK  # noqa: E402 - as above


def prepare(folder: Path, target: str = "cuda") -> None:
    """Write the profile and the failures that an image knows. Raises TargetError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in image_files(DRYDOCK, find_variant(read_matrix(DRYDOCK), target)).items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), *sys.argv[2:3])
