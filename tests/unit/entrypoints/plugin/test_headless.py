"""`vllm serve` without a distribution named vllm, with a stand-in for vLLM's subcommand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from drydock.core.paths import ROOT

STAND_IN = """
from argparse import ArgumentParser as FlexibleArgumentParser


class Serve:
    def subparser_init(self, subparsers):
        parser = subparsers.add_parser("serve")
        parser.add_argument("model")
        parser.add_argument("--headless", action="store_true")

    def validate(self, parsed):
        print("validated", parsed.model)

    def cmd(self, parsed):
        import os
        print("ran", parsed.headless, os.environ["VLLM_WORKER_MULTIPROC_METHOD"])


def cmd_init():
    return [Serve()]
"""


def test_it_validates_and_runs_the_subcommand(tmp_path: Path) -> None:
    folder = tmp_path / "vllm" / "entrypoints" / "cli"
    folder.mkdir(parents=True)
    (folder / "serve.py").write_text(STAND_IN)
    path = f"{tmp_path}:{ROOT / 'entrypoints' / 'plugin'}"
    argv = (sys.executable, "-m", "drydock_plugin.headless", "serve", "/models/m", "--headless")
    ran = subprocess.run(argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)

    assert ran.stdout.splitlines() == ["validated /models/m", "ran True spawn"]
