"""NIXL's progress thread waits for events; without this it keeps a core busy while no request runs.

The thread polls UCX's file descriptors (nixl, src/plugins/ucx/ucx_backend.cpp, nixlUcxSharedThread). `pthrDelay` is the
timeout of the poll; at its end all workers are asked, as some of UCX's events are lost. NIXL's Python API sets it to 0
(src/api/python/_api.py), and vLLM has no option for it (0.32, kv_connector/v1/nixl/base_worker.py).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

BINDINGS = ("nixl_cu12._bindings", "nixl_cu13._bindings")
"""The compiled modules of NIXL's packages; on a CPU either of them is used."""
PAUSE = 1000
"""Microseconds, the shortest pause: NIXL rounds up to whole milliseconds. An event ends it at once."""


def execute_with_pause(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Execute NIXL's bindings; agents that are made with them then pause. Other bindings stay as they are."""
    execute(module)
    make_agent = getattr(module, "nixlAgent", None)
    if make_agent is None or not hasattr(getattr(module, "nixlAgentConfig", None), "pthrDelay"):
        return

    def make_pausing_agent(name: str, config: Any) -> Any:
        config.pthrDelay = config.pthrDelay or PAUSE
        return make_agent(name, config)

    module.nixlAgent = make_pausing_agent  # type: ignore[attr-defined]
