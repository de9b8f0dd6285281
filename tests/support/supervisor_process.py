"""The process that running_server starts: launch.serve_plan on the stub server. It ends as the entrypoint would.

Like the image's entrypoint, it imports nothing but `entrypoints` and the standard library: each test starts one or
more of it, and what else a test needs takes a second to import.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from entrypoints.core.errors import EntrypointError
from entrypoints.core.folders import locate_private_root
from entrypoints.core.records import CachePlan, Entry, Group, Mount, ServePlan
from entrypoints.request.arguments import Options
from entrypoints.serve import watch
from entrypoints.serve.launch import serve_plan, warm_caches
from tests.support.sample_facts import facts

STUB = Path(__file__).with_name("stub_vllm.py")


class Start(NamedTuple):
    """What a test starts."""

    cache: str
    port: int
    flags: tuple[str, ...] = ()
    verb: str = "serve"
    program: str = sys.executable
    cache_writable: bool = True
    tmp_writable: bool = True
    options: Mapping[str, Any] = {}
    plan_env: Mapping[str, str] = {}
    factors: Mapping[str, str] = {}
    """Of the plan, beside its model."""
    profile: Mapping[str, Any] = {}
    blind: str = ""
    """Nobody reads the log: `closed`, a `pipe` without a reader, or one that is `full` and has one."""
    broken: str = ""
    """A function of entrypoints.serve.watch that fails."""
    stall: float = 0.0
    """Of the plan, in seconds; 0 does not look for progress."""
    group: Mapping[str, Any] = {}
    """The fields of the plan's Group."""


def _cache(start: Start) -> CachePlan:
    """Plan two entries, and a variable in the plan's own."""
    image = {"variant": "cpu-test"}
    factors = {**image, "model": "m", **start.factors}
    name = "-".join(("plan", *start.factors.values()))
    work = start.cache if start.cache_writable else locate_private_root(os.environ, 0)
    return CachePlan(
        volume=start.cache,
        work=work,
        why="" if start.cache_writable else f"{start.cache} cannot be written",
        entries=(Entry("device", image), Entry(name, factors, ("vllm/modelinfos",))),
        folders={"VLLM_CACHE_ROOT": f"{work}/compiled/{name}/vllm"},
    )


def _main() -> int:
    # As __main__.py does, before any thread: SIGTERM would end a process that has a thread in which it is not blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    # Of requests, which an image has not: a handler that waits for standard error at the end.
    atexit.unregister(logging.shutdown)
    start = Start(**json.loads(sys.argv[1]))
    if start.blind == "closed":
        os.close(2)
    if start.broken:
        setattr(watch, start.broken, lambda *_: 1 // 0)
    mounts = {
        "cache": Mount(start.cache, True, start.cache_writable, 0, 0, ""),
        "tmp": Mount("/tmp", True, start.tmp_writable, 0, 0, ""),
    }
    argv = (start.program, str(STUB), "--port", str(start.port), *start.flags)
    cache = _cache(start)
    env = {"VLLM_CACHE_ROOT": cache.folders["VLLM_CACHE_ROOT"], **start.plan_env}
    plan = ServePlan(argv, env, (), (), "/no/such/model", "127.0.0.1", start.port, cache=cache, stall=start.stall)
    if start.group:
        plan = plan._replace(group=Group(**start.group))
    options = Options(**{"status_port": 0, "drain_pause": 0.0, **start.options})
    variables = {"compiling": ["VLLM_"]}
    profile = {
        "accelerator": "cpu",
        "variant": "cpu-test",
        "stack": "cpu-0",
        "vllm": "0.0",
        "variables": variables,
        **start.profile,
    }
    verb = {"serve": serve_plan, "warm": warm_caches}[start.verb]
    try:
        return verb(plan, profile, facts(mounts), dict(os.environ), options)
    except EntrypointError as error:
        sys.stderr.write(f"{error}\n")
        return error.code


if __name__ == "__main__":
    sys.exit(_main())
