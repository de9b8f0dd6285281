"""Writes what tests/device/run.sh takes to a machine that has nothing of drydock's but this checkout.

`python tests/device/prepare.py FOLDER [TARGET]`: the files that the image of a target has beside its entrypoint.
Without a target, a folder for each accelerator, with those of its default row: run.sh finds out which one fits.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from drydock.build.render import image_files  # noqa: E402 - after the path is set
from drydock.config.matrix import find_variant, read_matrix  # noqa: E402 - as above
from drydock.config.project_choice import DRYDOCK  # noqa: E402 - as above
from entrypoints.accelerators import ACCELERATORS  # noqa: E402 - as above
from tests.device.device_check import WITHOUT_DEVICES  # noqa: E402 - as above


def prepare(folder: Path, target: str = "") -> None:
    """Write the profile and the failures that an image knows. Raises TargetError."""
    folders = {target: folder} if target else {name: folder / name for name in {*ACCELERATORS} - WITHOUT_DEVICES}
    matrix = read_matrix(DRYDOCK)
    for name, place in folders.items():
        place.mkdir(parents=True, exist_ok=True)
        for file, data in image_files(DRYDOCK, find_variant(matrix, name)).items():
            (place / file).write_bytes(data)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), *sys.argv[2:3])
