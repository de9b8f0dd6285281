"""Every command of the pages for a start runs, in their order, as a newcomer would type it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.support.ports import free_port

PAGES = sorted((ROOT / "docs" / "start").glob("*.md"))
SLOW = {"air-gap"}
"""It packs and unpacks all inputs of an image."""
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def script(page: Path, container_name: str, port: int, folder: Path) -> str:
    """Return the commands of a page, with a name, ports and folders of a test's own."""
    text = "".join(BLOCK.findall(page.read_text()))
    text = re.sub(r"cpu-vllm0-32|habana1-22-fork0-9-stand-in", container_name, text)
    text = text.replace(":8000/", f":{port}/").replace(":8001/", f":{port + 1}/")
    text = text.replace("./inv run ", f"./inv run --cache {folder / 'cache'} ")
    text = text.replace("--detach", f"--detach --name {container_name} --port {port}")
    text = re.sub(r"-- check\b", "-- check || [ $? = 3 ]", text)  # a machine of tests may be tuned badly
    return text.replace("./inv bundle load", f"export DRYDOCK_CACHE={folder / 'elsewhere'}; ./inv bundle load")


@pytest.mark.checkout
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in SLOW else []) for page in PAGES],
)
def test_every_command_of_a_page_for_a_start_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    for name in ("inv", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    container_name = f"drydock-test-{os.getpid()}"
    commands = script(page, container_name, free_port(), tmp_path)
    try:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, check=False, capture_output=True, text=True
        )
    finally:
        subprocess.run(["docker", "rm", "--force", container_name], check=False, capture_output=True)
        shutil.rmtree(tmp_path, ignore_errors=True)  # gigabytes

    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
