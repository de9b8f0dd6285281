"""Whether vLLM's CPU worker is a separate process, and how its threads are bound. Pure.

vLLM 0.32 starts a worker process on the CPU backend, because it can bind threads only there
(utils/ompmultiprocessing.py). With VLLM_ENABLE_V1_MULTIPROCESSING=0 (platforms/cpu.py) the engine core computes itself:
this saves one of four imports of torch and vLLM, and the ring buffers in /dev/shm, for which Docker's default of 64 MiB
is too small.
"""

from __future__ import annotations

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import parse_id_list
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.core.units import GIB, MIB
from entrypoints.request.flags import EXECUTOR
from entrypoints.request.vllm_flags import UserFlags

BIND = "VLLM_CPU_OMP_THREADS_BIND"
OWN_PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
PYTHON_PATH = "PYTHONPATH"
PLUGIN = "/opt/drydock/entrypoints/plugin"
"""Folder of the plugin in an image; the plugin makes vLLM's CPU platform keep METHOD (plugin/drydock_plugin)."""

WORKER_SHARED_MEMORY = 241 * MIB
"""Bytes that a worker's answers need in /dev/shm: ten chunks of 24 MiB, by vLLM 0.32's MessageQueue."""

_HINT = "docker run --shm-size=4g …, or in Kubernetes an emptyDir with medium Memory at /dev/shm"


def choose_executor(facts: Facts, user_flags: UserFlags, ranks: int, binding: Value) -> dict[str, Value]:
    """Choose the executor, and the settings that bind its threads.

    Raises HOST if worker processes are needed or requested, and /dev/shm is too small for them.
    """
    free, enough = _shared_memory(facts), has_room_for_workers(facts)
    worker_pays = enough and _has_unbound_cpus(facts, binding) and len(_parse_bound_threads(binding)) > 1
    if ranks == 1 and not _is_set_by_user(user_flags) and not worker_pays:
        return _one_process(facts, binding, free) | _choose_fork(facts, user_flags)
    if not enough and user_flags.variable(OWN_PROCESSES) != "0":
        need = f"{WORKER_SHARED_MEMORY // MIB} or more for worker processes"
        raise EntrypointError(HOST, f"shared memory: {free // MIB} MiB free in /dev/shm, expected {need}", _HINT)
    if ranks == 1:
        return {BIND: binding}
    return {BIND: binding, EXECUTOR: Value("mp", "each rank is a separate process, bound to its own cores")}


def can_fork(facts: Facts, user_flags: UserFlags, ranks: int) -> bool:
    """Return whether a server that binds every core is one process, forked after its imports, with drydock's plug-in.

    This needs Intel's OpenMP runtime, which restarts in a forked process (its pthread_atfork handlers); GNU's hangs in
    a fork if it has threads. The user's own preload may lack it, and the user's plugins or modules may forbid a fork.
    """
    preload, plugins = user_flags.variable("LD_PRELOAD"), user_flags.variable("VLLM_PLUGINS")
    fork_safe = bool(facts.files.get("iomp")) and (not preload or "iomp5" in preload)
    plugin_loads = not user_flags.variable(PYTHON_PATH) and (not plugins or "drydock" in plugins.split(","))
    by_user = _is_set_by_user(user_flags) or user_flags.variable(METHOD) == "spawn"
    return ranks == 1 and fork_safe and plugin_loads and not by_user


def _is_set_by_user(user_flags: UserFlags) -> bool:
    """Return whether the user chooses the processes or the binding."""
    return bool(user_flags.flag(EXECUTOR) or user_flags.variable(OWN_PROCESSES) or user_flags.variable(BIND))


def has_room_for_workers(facts: Facts) -> bool:
    """Return whether /dev/shm is large enough for worker processes."""
    return _shared_memory(facts) >= WORKER_SHARED_MEMORY


def _shared_memory(facts: Facts) -> int:
    """Return the free bytes of /dev/shm; enough if unknown."""
    mount = facts.mounts.get("shm")
    if mount is None:
        return GIB
    return mount.free if mount.writable else 0


def _parse_bound_threads(binding: Value) -> tuple[int, ...]:
    return parse_id_list(str(binding.value).replace("|", ","))


def _has_unbound_cpus(facts: Facts, binding: Value) -> bool:
    """Return whether the bound threads are fewer than all usable ones, so that binding has an effect."""
    return set(_parse_bound_threads(binding)) != {cpu.id for cpu in facts.cpus}


def _one_process(facts: Facts, binding: Value, free: int) -> dict[str, Value]:
    """Let the engine core compute, with as many threads as would have been bound; the kernel places them."""
    restricts = _has_unbound_cpus(facts, binding)
    because = "one rank uses every core, so there is nothing to bind; ready after 14 s instead of 19 s (SmolLM2-135M)"
    instead = ("mp: starts one more process, for the same throughput",)
    if restricts and has_room_for_workers(facts):
        because = "one thread computes, and a worker process would only be one more that waits with a busy loop"
    elif restricts:
        because = f"a worker process needs {WORKER_SHARED_MEMORY // MIB} MiB in /dev/shm, and {free // MIB} are free"
        instead = ("mp: would bind the threads, but could not start",)
    values = {
        EXECUTOR: Value("uni", because, instead),
        OWN_PROCESSES: Value("0", f"the CPU backend supports {EXECUTOR} uni only with this setting"),
    }
    if facts.files.get("iomp"):
        because_same = "the value that vLLM sets for its workers"
        values |= {"KMP_BLOCKTIME": Value("5", because_same), "KMP_TPAUSE": Value("0", because_same)}
    if restricts:
        because = f"{binding.because}, but not bound to them"
        values["OMP_NUM_THREADS"] = Value(str(len(_parse_bound_threads(binding))), because)
    return values


def _choose_fork(facts: Facts, user_flags: UserFlags) -> dict[str, Value]:
    """Make the engine core a fork of the API server, which has imported all modules by then."""
    if not can_fork(facts, user_flags, 1):
        return {}
    because = "the engine core is a fork of the API server: PyTorch and vLLM are imported once, not three times"
    instead = ("spawn, vLLM's default on a CPU: needed only for worker processes, of which there are none",)
    affinity = "otherwise each thread of a forked process, and the threads that it starts, would be bound to one core"
    return {
        METHOD: Value("fork", because, instead),
        "KMP_AFFINITY": Value("none", affinity),
    }


def check_thread_binding(facts: Facts, chosen: dict[str, Value]) -> tuple[Notice, ...]:
    """Return a notice if threads are not bound because shared memory is too small."""
    if "OMP_NUM_THREADS" not in chosen or has_room_for_workers(facts):
        return ()
    free_memory, expected = f"{_shared_memory(facts) // MIB} MiB free", f"at least {WORKER_SHARED_MEMORY // MIB} MiB"
    return (make_notice("PLAN-004", free_memory, expected),)
