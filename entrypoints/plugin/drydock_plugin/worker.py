"""vLLM's CPU worker with a KV cache from zeroed kernel memory, so that the start does not wait for it to be filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.v1.worker.cpu_worker import CPUWorker

from .memory import is_large, reserve

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig


class ZerosOfTheKernel(TorchFunctionMode):  # type: ignore[misc]  # torch is not installed where this is checked
    """While this mode is active, large one-dimensional tensors of zero bytes use memory that the kernel has zeroed."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace `torch.zeros(bytes, dtype=torch.int8)` on the CPU; pass every other call on."""
        options = dict(kwargs or {})
        flat = options.keys() == {"dtype", "device"} and options["dtype"] is torch.int8 and is_large(args)
        if func is torch.zeros and flat and torch.device(options["device"]).type == "cpu":
            return torch.frombuffer(reserve(args[0]), dtype=torch.int8)
        return func(*args, **options)


class Worker(CPUWorker):  # type: ignore[misc]  # vLLM is not installed where this is checked
    """The CPU worker with a KV cache from zeroed kernel memory."""

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache as vLLM does (v1/worker/utils.py, allocate_kv_cache), but from zeroed kernel memory."""
        with ZerosOfTheKernel():
            super().initialize_from_config(kv_cache_config)
