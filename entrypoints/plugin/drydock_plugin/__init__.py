"""One import of PyTorch and vLLM for all of a server's processes: a plugin that vLLM finds by its entry points.

A plan that wants it puts the folder above on PYTHONPATH (decide/executor.py); without that nobody finds it. This runs
in vLLM's own Python, with whatever that has imported: what is not as expected here is left as vLLM has it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
KNOWN = "vllm.platforms.cpu.CpuPlatform"
"""The platform that ours goes on from; where vLLM would take another one (AMD's zentorch), it does."""

_T = TypeVar("_T")


def platform() -> str | None:
    """Return the platform's class, by name; None leaves the choice to vLLM. Called while vLLM is being imported.

    The 5,000 modules that follow are kept for good, so that looking for garbage among them costs a fifth of their
    import and finds none: `imported` switches that on again.
    """
    if os.environ.get(METHOD) != "fork":
        return None
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() != KNOWN:
        return None
    import_module("drydock_plugin.forking")  # what it raises makes vLLM go on without
    gc.disable()
    return "drydock_plugin.forking.ForkingCpuPlatform"


def imported() -> None:
    """Look for garbage again, though not in modules, and inspect models here. Called once all is imported.

    What is frozen is not written to by the collector, so that forked processes go on sharing its memory.
    """
    gc.freeze()
    gc.enable()
    if os.environ.get(METHOD) == "fork":
        from vllm.model_executor.models import registry

        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = call  # noqa: SLF001 - vLLM has no setting for it


def call(inspect: Callable[[], _T]) -> _T:
    """Return what a model's inspection says, from this very process.

    vLLM inspects in a process of its own lest this one initialise CUDA (model_executor/models/registry.py), and then
    imports the model's module again to serve it.
    """
    return inspect()
