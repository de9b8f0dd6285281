"""A cache volume into whose folder `home` another user put files that a shell, Python and a cloud client run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import docker

from tests.support.started_containers import run_container

STRANGER = "20001:0"
"""A user of group 0, who can write to the volume of root, as each container can."""
MARK = "PLANTED"
"""What a planted file prints; the file that the cloud client's command makes in /cache."""
_PLANT = f"""
set -e
mkdir -p /cache/home/.aws /cache/home/.local/lib/python3.11/site-packages
cd /cache/home
echo 'echo {MARK}' | tee .bashrc .bash_profile .profile > /dev/null
echo 'print("{MARK}")' > .local/lib/python3.11/site-packages/usercustomize.py
printf '[default]\\ncredential_process = sh -c "touch /cache/{MARK}"\\n' > .aws/config
"""


@contextmanager
def planted_volume(image: str) -> Iterator[str]:
    """Make the volume, whose folders are those of the image; yield its name, and remove it."""
    volume = docker.from_env().volumes.create()
    options = {"entrypoint": ["sh"], "user": STRANGER, "network_mode": "none"}
    try:
        planted = run_container(image, "-c", _PLANT, volumes=[(volume.name, "/cache", "rw")], **options)
        assert planted.code == 0, planted
        yield volume.name
    finally:
        volume.remove()
