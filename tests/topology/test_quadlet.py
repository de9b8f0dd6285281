"""Units that Podman's own generator for systemd reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.run import podman
from drydock.run.container import Container, RunRequest, make_container
from tests.support.containers import recorded
from tests.support.systemd import unquoted
from tests.support.topologies import IMAGE

GENERATOR = Path("usr/libexec/podman/quadlet")
OLDEST = (4, 9)
HOSTS = {"cuda": "cuda-h100-8x", "gaudi2": "habana-gaudi2-8x", "cpu": "cpu-xeon8380-2s"}
HOSTILE = "{{ x }} \"q\" 'r' $HOME ${HOME} 100% %n \\n \t"
QUADLETS_OWN = ("--replace", "--rm", "--cgroups=split", "--sdnotify=conmon", "-d")


@pytest.fixture(scope="session")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the generator of the installed Podman, or that of Debian testing's package, which is only unpacked."""
    if Path("/", GENERATOR).exists():
        return Path("/", GENERATOR)
    folder = tmp_path_factory.mktemp("podman")
    commands = [("apt-get", "download", "podman/testing"), ("sh", "-c", "dpkg-deb --extract podman_*.deb .")]
    for command in commands:
        if not shutil.which(command[0]) or subprocess.run(command, cwd=folder, check=False).returncode:
            pytest.skip(f"no Podman {OLDEST[0]}.{OLDEST[1]}: `{' '.join(command)}` failed")
    return folder / GENERATOR


def started(generator: Path, container_spec: Container, folder: Path) -> list[str]:
    """Return the command of the service that the generator makes of a unit."""
    (folder / f"{container_spec.name}.container").write_text(podman.quadlet_text(container_spec))
    result = subprocess.run(
        (str(generator), "--dryrun"),
        env={**os.environ, "QUADLET_UNIT_DIRS": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "WARN" not in result.stderr.upper(), result.stderr
    (command,) = re.findall(r"^ExecStart=(.*)", result.stdout, re.MULTILINE)
    return unquoted(command)


@pytest.mark.parametrize("target", HOSTS)
def test_systemd_starts_what_run_says(generator: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "units").mkdir()
    request = RunRequest(
        model=str(tmp_path), image=IMAGE, address="0.0.0.0", env=(f"VLLM_X={HOSTILE}",), arguments=("--x", HOSTILE)
    )
    container_spec = podman.use_cdi_devices(
        make_container(find_variant(read_matrix(DRYDOCK), target), request, recorded(HOSTS[target], tmp_path))
    )
    words = started(generator, container_spec, tmp_path / "units")
    place = words.index(container_spec.image)

    assert words[:2] == ["/usr/bin/podman", "run"]
    assert words[place + 1 :] == list(container_spec.arguments)
    options = [word for option in podman.list_podman_options(container_spec) for word in option]
    key = options.index("VLLM_API_KEY")
    options[key - 1 : key + 1] = ["--secret", "VLLM_API_KEY,type=env"]
    option_words = [word for word in words[2:place] if word not in QUADLETS_OWN]
    assert sorted(map(str.lower, spelled(option_words))) == sorted(map(str.lower, spelled(options)))


def spelled(words: list[str]) -> list[str]:
    """Split --flag=value, as the generator writes some."""
    return [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
