"""vLLM's CPU platform, except that it keeps how processes are started as the plan chose it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

from . import METHOD

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # which is half imported when this is

THEIRS, OURS = "vllm.v1.worker.cpu_worker.CPUWorker", "drydock_plugin.worker.Worker"


class ForkingCpuPlatform(CpuPlatform):  # type: ignore[misc]  # vLLM is not installed where this is checked
    """The CPU platform, whose engine core is forked from the API server instead of importing all of it again.

    CpuPlatform sets `spawn` whatever the user said (vLLM 0.32 platforms/cpu.py), for the OpenMP settings of worker
    processes, which an engine core that computes itself has none of.
    """

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Settle the configuration as vLLM does, then restore the method."""
        method = os.environ.get(METHOD)
        super().check_and_update_config(vllm_config)
        if method:
            os.environ[METHOD] = method
        if vllm_config.parallel_config.worker_cls == THEIRS:
            vllm_config.parallel_config.worker_cls = OURS
