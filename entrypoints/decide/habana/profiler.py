"""Gaudi's high-level profiler, -f of the vendor's scripts: where its trace is written, and the log it needs. Pure."""

from __future__ import annotations

from entrypoints.core.records import Value
from entrypoints.decide.habana.execution_modes import HabanaCase

PROFILER, TRACE = "VLLM_PROFILER_ENABLED", "VLLM_PROFILE_FILE"
FOLDER = "DRYDOCK_WORK_FOLDER"
"""The folder that vLLM starts in."""
NO_REQUEST_LOG, REQUEST_LOG = "--disable-log-requests", "--enable-log-requests"
"""vLLM's flag up to 0.9, where requests are logged by default, and the one of later versions."""


def choose_gaudi_profiler(case: HabanaCase, folder: str) -> dict[str, Value]:
    """Return what the scripts set with -f, with the trace in a folder that can be written.

    The profiler opens its file before vLLM serves, and ends the server if it cannot. 1.21 and 1.22 read its path from
    the variable; 1.18, deepseek_r1 and the plugin write server_events_….json to the folder that vLLM starts in.
    Sources: -f in start_gaudi_vllm_server.sh; HabanaHighLevelProfiler in profiler.py of vllm-hpu-extension at 4312768,
    0bc6b42, 8afd253 and f5f9ecb, and of vllm-gaudi at da2ce40 and b059f9c.
    """
    if not case.is_on(PROFILER):
        return {}
    because = f"{PROFILER}: the trace is written on the volume, because the root file system may be read-only"
    values = {TRACE: Value(f"{folder}/profile.json", because), FOLDER: Value(folder, because)}
    logged = f"{PROFILER}: requests are logged while the profiler runs, as with -f of the vendor's script"
    if REQUEST_LOG in case.user_flags.known:
        return values | {REQUEST_LOG: Value(value=True, because=logged)}
    return values | {NO_REQUEST_LOG: Value(value=False, because=logged)}
