"""vLLM's CPU platform with the start method of processes (fork or spawn) that the plan chose."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vllm.platforms.cpu import CpuPlatform

from . import METHOD

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # not at run time: vLLM is still importing it

THEIRS, OURS = "vllm.v1.worker.cpu_worker.CPUWorker", "drydock_plugin.worker.Worker"


class ForkingCpuPlatform(CpuPlatform):  # type: ignore[misc]  # vLLM is not installed where this is checked
    """The CPU platform, with the engine core forked from the API server so that it does not import everything again.

    CpuPlatform always sets `spawn` (vLLM 0.32 platforms/cpu.py), because of the OpenMP settings of worker processes.
    An engine core that computes in its own process has no worker processes.
    """

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Update the configuration as vLLM does, then restore the start method and set our worker class."""
        method = os.environ.get(METHOD)
        super().check_and_update_config(vllm_config)
        if method:
            os.environ[METHOD] = method
        if vllm_config.parallel_config.worker_cls == THEIRS:
            vllm_config.parallel_config.worker_cls = OURS
