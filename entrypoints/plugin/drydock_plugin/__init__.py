"""A vLLM plugin: all processes of a server share one import of PyTorch and vLLM; stacks; a middleware (draining.py).

vLLM finds it by its entry points. A plan that uses it adds the parent folder to PYTHONPATH
(decide/cpu/executor.py); otherwise vLLM does not see it. It runs in vLLM's own Python process. If vLLM differs from
what this code expects, vLLM's behaviour is not changed.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
from collections.abc import Callable
from importlib import import_module
from typing import TypeVar

METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
KNOWN = "vllm.platforms.cpu.CpuPlatform"
"""The platform class that ours extends. If vLLM would use another one (AMD's zentorch), it keeps that one."""

STACKS = "DRYDOCK_STACKS"
"""Environment variable with the folder in which each process has a file for its stacks (serve/plugin_files.py)."""
STACKS_SIGNAL = 50
"""A real-time signal, for which Python has no name. glibc and musl use 32 to 34 themselves, Java 62, Valgrind 64; vLLM
and PyTorch send and handle none of them."""
HIGH = 800
"""Least number of the file's descriptor. A process that closes all of them gets the lowest numbers for its next files,
and the default limit is 1024."""

_asked_for: list[str] = []
"""The folder, in a process that writes its stacks when it is asked; a forked one does, too."""

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


def write_stacks_when_asked() -> None:
    """Let STACKS_SIGNAL write the stacks of all threads to a file, here and in each process that is forked from this.

    Python's faulthandler does it in the signal's handler, also while another thread holds the interpreter's lock for
    ever. The supervisor sends the signal only to a process that handles it and still has the file open as this
    descriptor, which the file's name ends with (serve/plugin_files.py).
    """
    if os.environ.get(STACKS) and not _asked_for:
        _asked_for.append(os.environ[STACKS])
        _open_stacks_file()
        os.register_at_fork(after_in_child=_open_stacks_file)


def _open_stacks_file() -> None:
    path = f"{_asked_for[0]}/{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        first = os.open(path, flags, 0o600)
        try:
            handle = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, HIGH)
        finally:
            os.close(first)
        os.rename(path, f"{path}.{handle}")
        faulthandler.register(STACKS_SIGNAL, file=handle, all_threads=True)
    except (OSError, RuntimeError, ValueError):  # without the folder, a free descriptor or the signal: no stacks
        return
