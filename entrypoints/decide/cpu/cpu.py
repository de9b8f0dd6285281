"""vLLM's CPU backend: type, parallelism, thread binding, memory, preloaded libraries. Pure.

Sources: vLLM 0.32's platforms/cpu.py (CpuPlatform.check_and_update_config), v1/worker/cpu_worker.py
(CPUWorker.init_device, determine_available_memory) and utils/ompmultiprocessing.py (OMPProcessManager).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Facts, Notice, Processor, Value
from entrypoints.decide.cpu import intents
from entrypoints.decide.cpu.binding import (
    Layout,
    count_reserved_cores,
    format_thread_binding,
    list_rank_domains,
    reserved_by_user,
    time_limit,
)
from entrypoints.decide.cpu.executor import can_fork, check_thread_binding, choose_executor, has_room_for_workers
from entrypoints.decide.cpu.layout import choose_layout, describe_cpu_time_limit, visible_nodes
from entrypoints.decide.cpu.memory import (
    KV_SPACE,
    choose_memory,
    kv_element_bytes,
    list_rank_uses,
    read_required_demand,
)
from entrypoints.decide.cpu.transfer import has_kv_transfer, require_last_core
from entrypoints.decide.decision_input import Case, element_bytes
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import PIPELINE
from entrypoints.request.vllm_flags import UserFlags, parse_count

RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"

MANUAL = "vLLM's CPU installation manual"


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST if figures of CPUs or memory, or shared memory, are missing; MODEL if the model's geometry is needed and
    invalid; DOES_NOT_FIT.
    """
    case = Case(profile, facts, model, user_flags)
    _require_host(facts)
    require_last_core(case)
    dtype = choose_dtype(facts.processor)
    size = element_bytes(user_flags.flag("--dtype") or str(dtype.value))
    layout, parallel = choose_layout(case, size)
    memory = choose_memory(case, layout, size)
    limits, queued = choose_limits(case, layout, size, memory)
    executor = choose_executor(facts, user_flags, _count_ranks(layout), choose_binding(case, layout))
    values = {"--dtype": dtype, **parallel, **limits, **memory, **executor, **choose_preload(case)}
    findings = (
        *_find_cpu_notices(case),
        *queued,
        *check_thread_binding(facts, executor),
        *_check_idle_nodes(case, layout),
    )
    return Decision(values, findings, uses=tuple(list_rank_uses(case, layout, size, memory)))


def choose_limits(
    case: Case, layout: Layout, size: int, memory: Mapping[str, Value]
) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Choose length, concurrency and batches from the user's intents."""
    space = intents.effective_space(memory, case.user_flags, KV_SPACE)
    cache_sequences = intents.count_fitting_sequences(
        space, case.model.geometry, read_required_demand(case).typical, kv_element_bytes(case, size), layout.tensor
    )
    sequences, findings = intents.choose_sequences(case.user_flags, layout.shards, layout.data, cache_sequences)
    return {
        **intents.choose_length(read_required_demand(case)),
        **sequences,
        **intents.choose_mode(case.user_flags),
    }, findings


def _require_host(facts: Facts) -> None:
    if facts.cpus and facts.memory.total:
        return
    missing = "; ".join(f"{failure.where}: {failure.found}" for failure in facts.failures)
    raise EntrypointError(HOST, f"the host's CPUs and memory are unknown: {missing}", "run `check` for the details")


# --- type -----------------------------------------------------------------------------------------------------------


def choose_dtype(processor: Processor) -> Value:
    """Choose the type that the processor computes best."""
    flags = set(processor.flags)
    if processor.architecture == "s390x":
        return Value("float32", f"{MANUAL}: s390x supports float32 only")
    if processor.architecture == "x86_64":
        native = next((flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags), None)
        how = "half the memory traffic of float32; converted in registers"
        if native:
            how = f"{native} instructions compute it natively"
        instead = (
            "float16: a smaller range for the same memory",
            "float32: twice the memory traffic, which bounds decoding",
        )
        return Value("bfloat16", how, instead)
    if processor.architecture == "ppc64le":
        return Value("bfloat16", "vLLM uses it on POWER, also for float16 and float32 models")
    if "bf16" in flags:
        return Value(
            "bfloat16", "bf16 instructions compute it natively", ("float16: a smaller range for the same memory",)
        )
    return Value(
        "float32",
        f"this {processor.architecture} processor has no bf16 instructions",
        ("bfloat16: emulated on this processor", "float16: a smaller range than float32"),
    )


# --- threads --------------------------------------------------------------------------------------------------------


def choose_binding(case: Case, layout: Layout) -> Value:
    """Bind one thread to each physical core, and reserve cores for the KV cache's exchange and a busy API server."""
    power = case.facts.processor.architecture == "ppc64le"
    per_core = case.thresholds.whole("power_threads_per_core") if power else 1
    user = case.user_flags.variable(RESERVED)
    keeps = tuple(count_reserved_cores(rank, case.thresholds) for rank in layout.ranks)
    if has_kv_transfer(case) and (any(keeps) or not can_fork(case.facts, case.user_flags, _count_ranks(layout))):
        keeps = tuple(keep + case.thresholds.whole("transfer_cores") for keep in keeps)  # else NIXL's thread pauses
    if user is not None:
        keeps = reserved_by_user(parse_count(user, RESERVED, 0), len(layout.ranks))
    value = format_thread_binding(layout.ranks, keeps, per_core)
    return Value(value, _binding_because(case, layout, keeps, per_core), _binding_instead(case.facts))


def _count_ranks(layout: Layout) -> int:
    """Return the ranks of this host, or those of the whole server if other hosts have some."""
    return max(len(layout.ranks), layout.shards)


def _binding_because(case: Case, layout: Layout, keeps: tuple[int, ...], per_core: int) -> str:
    bound = sum(max(1, len(rank.cores) - keep) for rank, keep in zip(layout.ranks, keeps, strict=True))
    nodes = ", ".join(str(node) for node in sorted({rank.node for rank in layout.ranks}))
    threads = "one thread" if per_core == 1 else f"{per_core} threads"
    parts = [f"{threads} on each of {bound} physical cores of NUMA node {nodes}"]
    if sum(keeps):
        core_users = "the API server and the exchange of the KV cache" if has_kv_transfer(case) else "the API server"
        parts.append(f"{sum(keeps)} reserved for {core_users}")
    limit = time_limit(case.facts)
    if limit is not None:
        parts.append(f"the container's CPU time ({case.facts.cgroup.cpu_quota:g} CPUs) covers {limit}")
    return "; ".join(parts)


def _binding_instead(facts: Facts) -> tuple[str, ...]:
    auto = "auto: vLLM reserves a core even of two (297 tok/s with both bound, 207 tok/s with auto, SmolLM2-135M)"
    limit = time_limit(facts)
    if limit is None:
        return (auto, "nobind: the kernel moves threads between cores and away from their memory")
    nobind = f"nobind with OMP_NUM_THREADS={limit}: better only if several such containers share the same cores"
    return (auto, nobind)


# --- libraries ------------------------------------------------------------------------------------------------------


def choose_preload(case: Case) -> dict[str, Value]:
    """Preload the image's allocator and OpenMP runtime for this architecture."""
    paths = _find_preload_libraries(case)
    if not paths:
        return {}
    because = f"{MANUAL}: preload {' and '.join(paths)} for memory allocation and thread binding"
    return {"LD_PRELOAD": Value(":".join(paths.values()), because)}


def _find_preload_libraries(case: Case) -> dict[str, str]:
    architecture = case.facts.processor.architecture
    libraries = case.profile["libraries"].items()
    by_name = {name: paths[architecture] for name, paths in libraries if paths.get(architecture)}
    return {name: path for name, path in by_name.items() if case.facts.files.get(name)}


# --- notices --------------------------------------------------------------------------------------------------------


def _check_idle_nodes(case: Case, layout: Layout) -> Iterator[Notice]:
    """Yield a notice with the NUMA nodes that no rank uses, unless the container's CPU time does not cover them."""
    domains = list_rank_domains(case.facts, visible_nodes(case.user_flags))
    idle = tuple(domain.node for domain in domains if domain.node not in {rank.node for rank in layout.ranks})
    if not idle or describe_cpu_time_limit(case, domains):
        return
    because = f"{len(layout.ranks)} of {len(domains)} NUMA nodes run a rank"
    use = f"start another container for them with --cpuset-mems {format_id_list(idle)} and their --cpuset-cpus"
    if not has_room_for_workers(case.facts):
        because = f"{because}, since /dev/shm is too small for worker processes"
        use = f"docker run --shm-size=4g …, or {use}"
    yield make_notice("PLAN-025", f"NUMA nodes {format_id_list(idle)}", "none", because=because, use=use)


def _find_cpu_notices(case: Case) -> Iterator[Notice]:
    """Yield notices about settings of the user that are kept but have a cost."""
    user_flags, processor = case.user_flags, case.facts.processor
    preload = user_flags.variable("LD_PRELOAD")
    missing = [
        path for path in _find_preload_libraries(case).values() if preload and path.rsplit("/", 1)[-1] not in preload
    ]
    if missing:
        better = ":".join([*missing, str(preload)])
        yield make_notice("PLAN-001", f"LD_PRELOAD={preload}", "those of this image among them", preload=better)
    dtype = user_flags.flag("--dtype")
    if processor.architecture == "s390x" and dtype not in (None, "float", "float32"):
        better = str(choose_dtype(processor).value)
        yield make_notice("PLAN-002", f"--dtype {dtype}", better, dtype=str(dtype), better=better)
    stages = user_flags.number(PIPELINE) or 1
    if stages > 1:
        yield make_notice("PLAN-005", f"{PIPELINE} {stages}", "1")
    methods = case.thresholds.words("quantization_methods")
    if case.model.quantization and case.model.quantization not in methods:
        yield make_notice("PLAN-003", case.model.quantization, f"one of {', '.join(methods)}")
