"""The flags of several hosts, read by vLLM itself in the CPU image."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build
from drydock.engine.run_container import run_to_end
from tests.evidence import ranks_page
from tests.evidence.ranks_page import ADDRESS, CLUSTERS

pytestmark = pytest.mark.proves("cpu-vllm0.32", "packages")

READ = """
import json, sys
from vllm.entrypoints.cli import serve
from vllm.entrypoints.launchers.cli_args import make_arg_parser

for argv in json.loads(open(sys.argv[1]).read()):
    parser = serve.FlexibleArgumentParser()
    if argv[3] == "serve":
        serve.cmd_init()[0].subparser_init(parser.add_subparsers(dest="subparser"))
    else:
        make_arg_parser(parser)
    read = parser.parse_args(argv[3:])
    names = ("nnodes", "node_rank", "master_addr", "headless", "data_parallel_size", "data_parallel_start_rank")
    print("READ", json.dumps({name: getattr(read, name) for name in names}))
"""
"""Prints what vLLM's own parsers read of each command."""


def of_vllm() -> list[tuple[str, ...]]:
    """Return the commands of all hosts that are vLLM's, not Ray's, and for a vLLM whose flags this image's has."""
    known_models = ranks_page.models()
    rank_groups = (
        ranks_page.plan(cluster, known_models[cluster.model], "--master-addr", ADDRESS).ranks for cluster in CLUSTERS
    )
    excluded_words = {"ray.scripts.scripts", "--device"}  # vLLM 0.9, of Enflame, has --device
    return [rank.argv for group in rank_groups for rank in group if not excluded_words.intersection(rank.argv)]


def test_vllm_reads_the_command_of_every_host(built: build.Built, tmp_path: Path) -> None:
    commands = of_vllm()
    (tmp_path / "argv.json").write_text(json.dumps(commands))
    (tmp_path / "read.py").write_text(READ)
    tmp_path.chmod(0o755)
    output = run_to_end(
        built.image,
        ["/given/read.py", "/given/argv.json"],
        entrypoint="/opt/venv/bin/python3",
        volumes={str(tmp_path): {"bind": "/given", "mode": "ro"}},
    )
    read = [json.loads(line[5:]) for line in output.decode().splitlines() if line.startswith("READ ")]

    assert len(read) == len(commands)
    for argv, arguments in zip(commands, read, strict=True):
        assert arguments == _expected(argv)


def _expected(argv: tuple[str, ...]) -> dict[str, Any]:
    flags = dict(pairwise(argv))
    start = flags.get("--data-parallel-start-rank")
    return {
        "nnodes": int(flags.get("--nnodes", "1")),
        "node_rank": int(flags.get("--node-rank", "0")),
        "master_addr": flags.get("--master-addr", "127.0.0.1"),
        "headless": "--headless" in argv,
        "data_parallel_size": int(flags.get("--data-parallel-size", "1")),
        "data_parallel_start_rank": None if start is None else int(start),
    }
