"""A vLLM plugin: all processes of a server share one import of PyTorch and vLLM; and a middleware (draining.py).

vLLM finds it by its entry points. A plan that uses it adds the parent folder to PYTHONPATH
(decide/cpu/executor.py); otherwise vLLM does not see it. It runs in vLLM's own Python process. If vLLM differs from
what this code expects, vLLM's behaviour is not changed.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
KNOWN = "vllm.platforms.cpu.CpuPlatform"
"""The platform class that ours extends. If vLLM would use another one (AMD's zentorch), it keeps that one."""

_T = TypeVar("_T")


def platform() -> str | None:
    """Return the name of the platform class, or None to leave the choice to vLLM. Called during the import of vLLM.

    It also disables garbage collection until `imported` is called. About 5,000 modules are imported in between. They
    are never freed, and collecting among them takes a fifth of the import time.
    """
    if os.environ.get(METHOD) != "fork":
        return None
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() != KNOWN:
        return None
    import_module("drydock_plugin.forking")  # if it raises, vLLM continues without this plugin
    gc.disable()
    return "drydock_plugin.forking.ForkingCpuPlatform"


def imported() -> None:
    """Enable garbage collection again, and inspect models in this process. Called when all imports are done.

    Objects that exist now are frozen: the collector does not write to them, so forked processes share their memory.
    """
    if os.environ.get(METHOD) != "fork":
        return
    gc.freeze()
    gc.enable()
    from vllm.model_executor.models import registry

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = call_inspector  # noqa: SLF001 - vLLM has no setting for it


def call_inspector(inspect: Callable[[], _T]) -> _T:
    """Inspect a model in this process and return the result.

    vLLM uses a separate process, so that the main one does not initialise CUDA (model_executor/models/registry.py).
    The module of the model would then be imported twice.
    """
    return inspect()
