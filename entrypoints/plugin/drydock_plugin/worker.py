"""vLLM's CPU worker, except that its KV cache is not filled with zeros while the server's start waits for it."""

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
    """While it is entered, large flat tensors of zero bytes are memory that the kernel gives as zeros anyway."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer `torch.zeros(bytes, dtype=torch.int8)` of the CPU, and pass everything else on."""
        options = dict(kwargs or {})
        flat = options.keys() == {"dtype", "device"} and options["dtype"] is torch.int8 and is_large(args)
        if func is torch.zeros and flat and torch.device(options["device"]).type == "cpu":
            return torch.frombuffer(reserve(args[0]), dtype=torch.int8)
        return func(*args, **options)


class Worker(CPUWorker):  # type: ignore[misc]  # vLLM is not installed where this is checked
    """The CPU worker, with such a KV cache."""

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the KV cache as vLLM does (v1/worker/utils.py, allocate_kv_cache), with zeros of the kernel's."""
        with ZerosOfTheKernel():
            super().initialize_from_config(kv_cache_config)
