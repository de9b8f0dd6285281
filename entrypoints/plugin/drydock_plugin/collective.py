"""An all-reduce over all ranks, timed for several sizes: `torchrun … -m drydock_plugin.collective --backend gloo …`.

It runs in the image's own Python, on the backend that vLLM uses there. The first rank of each host prints one line of
JSON, which `fabric` reads (serve/collective.py). Each all-reduce is checked once: the sum of ones is the number of
ranks. The time of a size is that of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib import import_module
from typing import Any

MARK = "drydock-collective "
"""Begins the line with the figures, among the lines of other programs."""
ENOUGH = 1 << 30
"""Bytes that are reduced for each size."""
LEAST, MOST = 5, 50
"""All-reduces for each size."""
WARM = 10


def main(words: list[str]) -> int:
    """Measure, print, and return the exit code: 1 if a sum was wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--imports", default="", help="modules that register the device and the backend")
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    arguments = parser.parse_args(words)
    import torch

    for name in filter(None, arguments.imports.split(",")):
        import_module(name)
    from torch import distributed

    rank = int(os.environ["LOCAL_RANK"])
    device = (
        torch.device(arguments.device) if arguments.device in ("cpu", "hpu") else torch.device(arguments.device, rank)
    )
    module: Any = getattr(torch, arguments.device, None)
    if device.index is not None:
        module.set_device(device)
    distributed.init_process_group(arguments.backend)
    try:
        figures = [measure_all_reduce(torch, module, device, int(size)) for size in arguments.sizes.split(",")]
        ranks = distributed.get_world_size()
    finally:
        distributed.destroy_process_group()
    if rank == 0:
        sys.stdout.write(f"{MARK}{json.dumps({'ranks': ranks, 'figures': figures})}\n")
    return 0 if all(figure["right"] for figure in figures) else 1


def measure_all_reduce(torch: Any, module: Any, device: Any, size: int) -> dict[str, Any]:
    """Return the seconds of one all-reduce of `size` bytes per rank, and whether the sum is right on every rank."""
    reduce_all, ranks = torch.distributed.all_reduce, torch.distributed.get_world_size()
    data = torch.ones(max(1, size // 4), dtype=torch.float32, device=device)
    reduce_all(data)
    wrong = torch.tensor([float(bool((data != ranks).any()))], dtype=torch.float32, device=device)
    reduce_all(wrong)
    data.zero_()  # ones would grow with each sum
    for _ in range(WARM):
        reduce_all(data)
    wait_for_device(module)
    count = max(LEAST, min(MOST, ENOUGH // size))
    began = time.perf_counter()
    for _ in range(count):
        reduce_all(data)
    wait_for_device(module)
    seconds = torch.tensor([(time.perf_counter() - began) / count], dtype=torch.float32, device=device)
    reduce_all(seconds, op=torch.distributed.ReduceOp.MAX)
    return {"bytes": 4 * data.numel(), "seconds": float(seconds[0]), "right": not float(wrong[0])}


def wait_for_device(module: Any) -> None:
    """Wait for the device, which computes while the program goes on; a CPU does not."""
    if hasattr(module, "synchronize"):
        module.synchronize()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
