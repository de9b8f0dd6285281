"""Whether vLLM's worker is a process of its own, and how its threads are then bound. Pure.

vLLM 0.32 gives the CPU backend a worker process, since only there it can bind threads (utils/ompmultiprocessing.py),
unless VLLM_ENABLE_V1_MULTIPROCESSING=0 (platforms/cpu.py): then the engine core computes itself. That saves one of four
imports of torch and vLLM, and the ring buffers in /dev/shm, for which Docker's 64 MiB are too few.
"""

from __future__ import annotations

from entrypoints.checks.findings import notice
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import parse_id_list
from entrypoints.core.records import Facts, Notice
from entrypoints.decide.records import GIB, Value
from entrypoints.request.flags import EXECUTOR
from entrypoints.request.vllm_flags import UserFlags

BIND = "VLLM_CPU_OMP_THREADS_BIND"
OWN_PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
SEARCHED = "PYTHONPATH"
PLUGIN = "/opt/drydock/entrypoints/plugin"
"""Where images have what makes vLLM's CPU platform keep METHOD (plugin/drydock_plugin)."""

MIB = 1 << 20
WORKER_SHARED_MEMORY = 241 * MIB
"""What a worker's answers need free in /dev/shm: ten chunks of 24 MiB, from vLLM 0.32's MessageQueue."""

_HINT = "docker run --shm-size=4g …, or in Kubernetes an emptyDir with medium Memory at /dev/shm"


def choose_executor(facts: Facts, given: UserFlags, ranks: int, binding: Value) -> dict[str, Value]:
    """Choose the executor, and what binds the threads under it.

    Raises HOST where worker processes are needed, or asked for, and /dev/shm is too small for them.
    """
    free = _shared_memory(facts)
    enough = free >= WORKER_SHARED_MEMORY
    asked = given.flag(EXECUTOR) or given.variable(OWN_PROCESSES) or given.variable(BIND)
    if ranks == 1 and not asked and not (enough and _pins(facts, binding)):
        return _one_process(facts, binding, free) | _forked(facts, given)
    if not enough and given.variable(OWN_PROCESSES) != "0":
        need = f"{WORKER_SHARED_MEMORY // MIB} or more for worker processes"
        raise EntrypointError(HOST, f"shared memory: {free // MIB} MiB free in /dev/shm, expected {need}", _HINT)
    processes = {EXECUTOR: Value("mp", "each rank is a process of its own, bound to its cores")} if ranks > 1 else {}
    return {BIND: binding, **processes}


def _shared_memory(facts: Facts) -> int:
    """Return the bytes free in /dev/shm; enough where that is not known."""
    mount = facts.mounts.get("shm")
    if mount is None:
        return GIB
    return mount.free if mount.writable else 0


def _threads(binding: Value) -> tuple[int, ...]:
    return parse_id_list(str(binding.value).replace("|", ","))


def _pins(facts: Facts, binding: Value) -> bool:
    """Tell whether the threads to bind are fewer than all that may be used, so that binding changes something."""
    return set(_threads(binding)) != {cpu.id for cpu in facts.cpus}


def _one_process(facts: Facts, binding: Value, free: int) -> dict[str, Value]:
    """Let the engine core compute: with as many threads as would have been bound, where the kernel puts them."""
    pins = _pins(facts, binding)
    because = "the one rank may use every core: nothing to bind, and ready after 14 s instead of 19 s (SmolLM2-135M)"
    instead = ("mp: one more process to start, for the same throughput",)
    if pins:
        because = f"a worker process needs {WORKER_SHARED_MEMORY // MIB} MiB in /dev/shm, {free // MIB} are free"
        instead = ("mp: would bind the threads, but could not start",)
    values = {
        EXECUTOR: Value("uni", because, instead),
        OWN_PROCESSES: Value("0", f"the CPU backend takes {EXECUTOR} uni only with this"),
    }
    if facts.files.get("iomp"):
        same = "as vLLM sets it for its workers"
        values |= {"KMP_BLOCKTIME": Value("5", same), "KMP_TPAUSE": Value("0", same)}
    if pins:
        values["OMP_NUM_THREADS"] = Value(str(len(_threads(binding))), f"{binding.because}, though not bound to them")
    return values


def _forked(facts: Facts, given: UserFlags) -> dict[str, Value]:
    """Let the engine core be a fork of the API server, which has imported everything by then.

    Only with Intel's OpenMP runtime, which begins anew in a forked process (its pthread_atfork handlers); GNU's, once
    it has threads, hangs there. A user's own preload may lack it, and own plugins or modules may not stand a fork.
    """
    preload, plugins = given.variable("LD_PRELOAD"), given.variable("VLLM_PLUGINS")
    resets = bool(facts.files.get("iomp")) and "iomp5" in (preload or "iomp5")
    found = not given.variable(SEARCHED) and "drydock" in (plugins or "drydock").split(",")
    if not resets or not found or given.variable(METHOD) == "spawn":
        return {}
    because = "the engine core is a fork of the API server: PyTorch and vLLM are imported once, not three times"
    instead = ("spawn: vLLM's own on a CPU, lest worker processes inherit OpenMP's settings; here are none",)
    return {
        METHOD: Value("fork", because, instead),
        "KMP_AFFINITY": Value(
            "none", "a forked process's threads, and all that they start, would be bound to one core each"
        ),
        SEARCHED: Value(PLUGIN, f"drydock's plugin for vLLM, by which its CPU platform keeps {METHOD}"),
    }


def unbound(facts: Facts, chosen: dict[str, Value]) -> tuple[Notice, ...]:
    """Warn when threads stay unbound for lack of shared memory."""
    if "OMP_NUM_THREADS" not in chosen:
        return ()
    found, expected = f"{_shared_memory(facts) // MIB} MiB free", f"at least {WORKER_SHARED_MEMORY // MIB} MiB"
    return (notice("PLAN-004", found, expected),)
