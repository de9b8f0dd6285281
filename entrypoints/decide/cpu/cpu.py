"""vLLM's CPU backend: type, parallelism, thread binding, memory, preloaded libraries. Pure.

Sources: vLLM 0.32's platforms/cpu.py, v1/worker/cpu_worker.py and utils/ompmultiprocessing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import notice
from entrypoints.core.errors import HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.records import Facts, Notice, Processor, Use, Value
from entrypoints.core.units import GIB
from entrypoints.decide.case import Case, element_bytes
from entrypoints.decide.cpu import intents
from entrypoints.decide.cpu.transfer import require_last_core, transfers
from entrypoints.decide.records import Decision, does_not_fit, gib
from entrypoints.decide.spread import binding as bind
from entrypoints.decide.spread import memory as mem
from entrypoints.decide.spread.demand import Demand, read_demand
from entrypoints.decide.spread.executor import choose_executor, has_room_for_workers, unbound
from entrypoints.decide.spread.hosts import count_hosts
from entrypoints.decide.spread.obstacles import impossible_size, sizes
from entrypoints.decide.spread.room import Rules
from entrypoints.decide.spread.towers import encoder, read_inputs
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import CACHE_BYTES, EXPERT, NODES, UTILISATION
from entrypoints.request.vllm_flags import UserFlags, parse_count

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
VISIBLE = "CPU_VISIBLE_MEMORY_NODES"

MANUAL = "vLLM's CPU installation manual"

RULES = Rules(usable=1, reserved=0, activations=0)
"""For how a model divides, as vLLM itself requires on every platform; experts are whole only on request: vLLM's CPU
manual recommends no expert parallelism, and some kernels refuse it (0.32 fused_moe/experts/cpu_moe.py)."""

_RANKS_PER_CPU = 4
"""More ranks than this per CPU are a typing error."""


class Layout(NamedTuple):
    """The ranks and their parallelism; each data-parallel engine holds a full copy."""

    tensor: int
    pipeline: int
    data: int
    ranks: tuple[bind.Rank, ...]

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the weights."""
        return self.tensor * self.pipeline


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST if figures of CPUs or memory, or shared memory, are missing; MODEL if the model's geometry is needed and
    invalid; DOES_NOT_FIT.
    """
    case = Case(profile, facts, model, given)
    _require_host(facts)
    require_last_core(case)
    dtype = choose_dtype(facts.processor)
    size = element_bytes(given.flag("--dtype") or str(dtype.value))
    layout, parallel = choose_layout(case, size)
    memory = choose_memory(case, layout, size)
    limits, queued = choose_limits(case, layout, size, memory)
    executor = choose_executor(facts, given, max(len(layout.ranks), layout.shards), choose_binding(case, layout))
    values = {"--dtype": dtype, **parallel, **limits, **memory, **executor, **choose_preload(case)}
    findings = (*_notices(case), *queued, *unbound(facts, executor), *_idle(case, layout))
    return Decision(values, findings, uses=tuple(_uses(case, layout, size, memory)))


def _uses(case: Case, layout: Layout, size: int, memory: Mapping[str, Value]) -> Iterator[Use]:
    """Yield how each rank uses its part of the memory of its NUMA node."""
    totals = {node.id: node.memory_total for node in case.facts.nodes}
    homes = [rank.node for rank in layout.ranks]
    taken = _load(case, layout, size)
    cache = intents.effective_space(memory, case.given, KV_SPACE) or 0
    server, worker = case.thresholds.bytes("server_memory_gib"), case.thresholds.bytes("rank_memory_gib")
    other = server // len(homes) + worker + taken.activations
    for number, home in enumerate(homes):
        node = totals.get(home, case.facts.memory.total)
        share = _user_share(case)
        held = max(0, int(node * share) - worker - taken.weights - taken.activations) if share else cache
        yield Use(home, number // layout.shards, node // homes.count(home), taken.weights, other, held)


def _user_share(case: Case) -> float:
    """Return --gpu-memory-utilization: vLLM's worker takes this share of its node, less what it consumed by then."""
    set_otherwise = case.given.flag(CACHE_BYTES) or case.given.variable(KV_SPACE)
    return 0.0 if set_otherwise else float(case.given.flag(UTILISATION) or 0)


def choose_limits(
    case: Case, layout: Layout, size: int, memory: Mapping[str, Value]
) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Choose length, concurrency and batches from the user's intents."""
    space = intents.effective_space(memory, case.given, KV_SPACE)
    held = intents.held(space, case.model.geometry, _demand(case).typical, _kv_size(case, size), layout.tensor)
    sequences, findings = intents.choose_sequences(case.given, layout.shards, layout.data, held)
    return {**intents.choose_length(_demand(case)), **sequences, **intents.choose_mode(case.given)}, findings


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
        instead = ("float16: unstable in PyTorch on CPU", "float32: twice the memory traffic, which bounds decoding")
        return Value("bfloat16", how, instead)
    if processor.architecture == "ppc64le":
        return Value("bfloat16", "vLLM uses it on POWER, also for float16 and float32 models")
    if "bf16" in flags:
        return Value("bfloat16", "bf16 instructions compute it natively", ("float16: unstable in PyTorch on CPU",))
    return Value(
        "float32",
        f"this {processor.architecture} processor has no bf16 instructions",
        ("bfloat16: emulated on this processor", "float16: unstable in PyTorch on CPU"),
    )


# --- parallelism ----------------------------------------------------------------------------------------------------


def choose_layout(case: Case, size: int) -> tuple[Layout, dict[str, Value]]:
    """Choose the NUMA nodes that the model is split over, or for throughput a copy on each node."""
    domains = bind.domains(case.facts, _visible_nodes(case.given))
    user, hosts = case.given.number(intents.TENSOR), count_hosts(case.given)
    if hosts > 1 and not user:
        return _over_hosts(case, domains, hosts)
    if user:
        chosen, error = _layout(case, domains, user), impossible_size(case.model, RULES, user, _experts(case))
        if error:
            raise error
        return chosen, {intents.TENSOR: Value(str(user), "")}
    copies = _copies(case, domains, size)
    if copies:
        small = "" if case.given.intents.optimize else _too_small(case, size)
        return copies, intents.choose_copies(copies.data, small)
    layout, value = _split(case, domains, size)
    return layout, {intents.TENSOR: value}


def _experts(case: Case) -> bool:
    return case.given.flag(EXPERT) == "True"


def _over_hosts(case: Case, domains: tuple[bind.Domain, ...], hosts: int) -> tuple[Layout, dict[str, Value]]:
    """Return tensor parallelism over several hosts, with one rank per NUMA node where the heads allow it. Raises USAGE.

    vLLM 0.32's CPU backend ends at the first request with pipeline stages on several hosts (measured).
    """
    geometry, most = case.model.geometry, hosts * len(domains)
    possible = [count for count in range(hosts, most + 1, hosts) if geometry is None or geometry.divides(count)]
    if not possible:
        heads = f"{geometry.heads} heads and {geometry.kv_heads} KV heads" if geometry else "its heads"
        message = f"{NODES} {hosts}: {case.model.name} has {heads}, which are not divisible by {hosts}"
        raise EntrypointError(USAGE, message, "change the number of hosts")
    because = f"one rank for each NUMA node of {hosts} hosts, as far as the heads are divisible"
    instead = (f"pipeline stages: vLLM's CPU backend fails at the first request; {most}: the most ranks",)
    return _layout(case, domains, possible[-1]), {intents.TENSOR: Value(str(possible[-1]), because, instead)}


def _copies(case: Case, domains: tuple[bind.Domain, ...], size: int) -> Layout | None:
    """Return a layout with a full copy on each node, if intents call for it and each node has memory and CPU time."""
    nodes, small = len(domains), bool(_too_small(case, size)) and has_room_for_workers(case.facts)
    if nodes == 1 or not intents.wants_copies(case.given, case.model.geometry, small=small) or _covered(case, domains):
        return None
    layout = Layout(1, 1, nodes, bind.place(domains, nodes, bind.time_limit(case.facts)))
    return layout if mem.whole_gib(_room(case, layout, size), _share(case)) >= 1 else None


def _split(case: Case, domains: tuple[bind.Domain, ...], size: int) -> tuple[Layout, Value]:
    counts, because, instead = _counts(case, domains, size)
    layouts = [_layout(case, domains, count) for count in counts]
    fitting = [layout for layout in layouts if mem.whole_gib(_room(case, layout, size), _share(case)) >= 1]
    layout = fitting[0] if fitting else max(layouts, key=lambda layout: _room(case, layout, size).left)
    if layout is not layouts[0]:
        because = f"{because}; but the weights need the memory of {layout.tensor} nodes"
    return layout, Value(str(layout.tensor), because, instead)


def _visible_nodes(given: UserFlags) -> tuple[int, ...] | None:
    """Return the memory nodes that the user selects; None for all. Raises USAGE."""
    visible = given.variable(VISIBLE)
    try:
        return None if visible is None else parse_id_list(visible)
    except ValueError as error:
        raise EntrypointError(USAGE, f"{VISIBLE}={visible}: expected node numbers, such as 0,1") from error


def _counts(case: Case, domains: tuple[bind.Domain, ...], size: int) -> tuple[list[int], str, tuple[str, ...]]:
    """Return the possible numbers of ranks, best first, with the reason for the first and against others."""
    nodes = len(domains)
    geometry = case.model.geometry
    possible = list(sizes(case.model, RULES, nodes)) if geometry else [1]
    if nodes == 1:
        return possible, "the host has one NUMA node with cores and memory", ()
    one = _reason_for_one(case, domains, size)
    if one:
        return possible, one, (f"{nodes}, one rank per node: every token would wait for the link between sockets",)
    best = possible[-1]
    because = f"one rank for each of {nodes} NUMA nodes, so that no rank reads another node's memory"
    if best < nodes and geometry:
        heads = f"{geometry.heads} heads and {geometry.kv_heads} KV heads"
        because = f"the largest number of the {nodes} NUMA nodes by which {heads} are divisible"
    instead = ("data parallelism with --optimize throughput: higher throughput, but each answer is slower",)
    return possible[::-1], because, instead


def _reason_for_one(case: Case, domains: tuple[bind.Domain, ...], size: int) -> str:
    """Return why one rank is enough; empty if it is not."""
    covered = _covered(case, domains)
    if covered:
        return covered
    if case.model.geometry is None:
        return f"{case.model.unknown}, so the model's size is unknown; set -tp to use more nodes"
    return _too_small(case, size)


def _too_small(case: Case, size: int) -> str:
    """Return that the model is too small to be split; empty if it is not, or its size is unknown."""
    small, weights = case.thresholds.bytes("one_node_weights_gib"), case.model.weights
    if not weights or weights.loaded(size) >= small:
        return ""
    loaded = gib(weights.loaded(size))
    return f"{loaded} of weights are too few to split: below {gib(small)} the link between sockets costs more"


def _covered(case: Case, domains: tuple[bind.Domain, ...]) -> str:
    """Return that the container's CPU time keeps only one node busy; empty if it keeps more busy."""
    limit, cores = bind.time_limit(case.facts), max(len(domain.cores) for domain in domains)
    if limit is None or limit > cores:
        return ""
    return f"the container's CPU time covers {limit} cores, and one NUMA node already has {cores}"


def _layout(case: Case, domains: tuple[bind.Domain, ...], tensor: int) -> Layout:
    given = case.given
    pipeline = given.number("--pipeline-parallel-size") or 1
    data = given.number("--data-parallel-size-local") or given.number("--data-parallel-size") or 1
    count, most = max(1, tensor * pipeline * data // count_hosts(given)), _RANKS_PER_CPU * len(case.facts.cpus)
    if count > most:
        message = f"-tp {tensor} -pp {pipeline} -dp {data}: {count} ranks, expected at most {most}"
        raise EntrypointError(USAGE, message, f"lower -tp, -pp or -dp: {len(case.facts.cpus)} CPUs are available")
    ranks = bind.place(domains, count, bind.time_limit(case.facts))
    return Layout(tensor, pipeline, data, ranks)


# --- threads --------------------------------------------------------------------------------------------------------


def choose_binding(case: Case, layout: Layout) -> Value:
    """Bind one thread to each physical core, and reserve cores for the KV cache's exchange and a busy API server."""
    power = case.facts.processor.architecture == "ppc64le"
    per_core = case.thresholds.whole("power_threads_per_core") if power else 1
    user = case.given.variable(RESERVED)
    exchange = case.thresholds.whole("transfer_cores") if transfers(case) else 0
    keeps = tuple(bind.reserved(rank, case.thresholds) + exchange for rank in layout.ranks)
    if user is not None:
        keeps = bind.reserved_by_user(parse_count(user, RESERVED, 0), len(layout.ranks))
    value = bind.binding(layout.ranks, keeps, per_core)
    return Value(value, _binding_because(case, layout, keeps, per_core), _binding_instead(case.facts))


def _binding_because(case: Case, layout: Layout, keeps: tuple[int, ...], per_core: int) -> str:
    bound = sum(max(1, len(rank.cores) - keep) for rank, keep in zip(layout.ranks, keeps, strict=True))
    nodes = ", ".join(str(node) for node in sorted({rank.node for rank in layout.ranks}))
    threads = "one thread" if per_core == 1 else f"{per_core} threads"
    parts = [f"{threads} on each of {bound} physical cores of NUMA node {nodes}"]
    if sum(keeps):
        exchange = "the exchange of the KV cache and " if transfers(case) else ""
        parts.append(f"{sum(keeps)} reserved for {exchange}the API server")
    limit = bind.time_limit(case.facts)
    if limit is not None:
        parts.append(f"the container's CPU time ({case.facts.cgroup.cpu_quota:g} CPUs) covers {limit}")
    return "; ".join(parts)


def _binding_instead(facts: Facts) -> tuple[str, ...]:
    auto = "auto: vLLM reserves a core even of two (297 tok/s with both bound, 207 tok/s with auto, SmolLM2-135M)"
    limit = bind.time_limit(facts)
    if limit is None:
        return (auto, "nobind: the kernel moves threads between cores and away from their memory")
    nobind = f"nobind with OMP_NUM_THREADS={limit}: better only if several such containers share the same cores"
    return (auto, nobind)


# --- memory ---------------------------------------------------------------------------------------------------------


def choose_memory(case: Case, layout: Layout, size: int) -> dict[str, Value]:
    """Choose the KV cache's size, and a shorter --max-model-len only if one full sequence would not fit."""
    given, model = case.given, case.model
    if given.flag(CACHE_BYTES) or given.flag("--gpu-memory-utilization"):
        return {}  # the user chose vLLM's own way of sizing the cache; the variable would override it
    user = given.variable(KV_SPACE)
    if user is None and model.problem:
        hint = f"complete the file, or set {KV_SPACE} (GiB) and -tp yourself"
        raise EntrypointError(MODEL, model.problem, hint)
    geometry = model.geometry
    if user is not None:
        return _shortened(case, layout, size, parse_count(user, KV_SPACE) * GIB, geometry) if geometry else {}
    room = _room(case, layout, size)
    share = _share(case)
    smallest = _smallest_cache(case, layout, size)
    most = mem.cache_size(room, share)
    if most < smallest:
        raise _does_not_fit(case, room, size, smallest)
    because = f"{room.describe()}; {share:.0%} of the remaining {gib(room.left)} is for the KV cache"
    if geometry is None:
        return _cache(most, f"{because}; {model.unknown}")
    use = _useful(case, layout, size, geometry)
    if use.space * GIB < most:
        instead = (f"{most // GIB}: would fit, but allocating it only delays the start",)
        return {KV_SPACE: Value(str(use.space), f"{use.because}; {room.describe()}", instead)}
    return _cache(most, because) | _shortened(case, layout, size, most, geometry)


def _cache(size: int, because: str) -> dict[str, Value]:
    """Set the KV cache's size; the variable takes whole GiB only."""
    if size >= GIB:
        return {KV_SPACE: Value(str(size // GIB), because)}
    return {CACHE_BYTES: Value(str(size), because, (f"{KV_SPACE}: takes whole GiB only",))}


def _smallest_cache(case: Case, layout: Layout, size: int) -> int:
    """Return the bytes of the smallest useful KV cache; 1 GiB if this vLLM or what is known allows no fraction."""
    known, geometry = case.given.known, case.model.geometry
    if geometry is None or (known and CACHE_BYTES not in known):
        return GIB
    shortest = case.thresholds.whole("shortest_context") + mem.BLOCK  # vLLM takes one block itself
    return min(GIB, geometry.kv_bytes(shortest, _kv_size(case, size), layout.tensor))


def _room(case: Case, layout: Layout, size: int) -> mem.RankRoom:
    return mem.smallest_room(case.facts, layout.ranks, _load(case, layout, size), case.thresholds)


def _load(case: Case, layout: Layout, size: int) -> mem.Load:
    tokens = intents.step_tokens(case.given, layout.shards)
    sequences = intents.running(case.given, layout.shards, layout.data)
    geometry = case.model.geometry
    step = mem.activations(geometry, tokens, sequences, size, layout.tensor) if geometry else 0
    towers = encoder(case.model, read_inputs(case.given, tokens), size)
    step = max(step, towers.activations) + towers.cache
    return mem.load(case.model.weights, size, layout.shards, len(layout.ranks), step)


def _share(case: Case) -> float:
    return case.thresholds.number("kv_memory_share" if case.model.weights else "kv_share_of_unknown_model")


def _demand(case: Case) -> Demand:
    """Return the required length and concurrency. Raises DOES_NOT_FIT."""
    return read_demand(case.model, case.given, mem.BLOCK)


def _kv_size(case: Case, size: int) -> int:
    """Return the bytes of one number in the KV cache."""
    return 1 if (case.given.flag("--kv-cache-dtype") or "").startswith("fp8") else size


def _useful(case: Case, layout: Layout, size: int, geometry: Geometry) -> mem.Use:
    length = _demand(case).length
    if length is None:
        return mem.Use(1 << 40, "")
    sequences = intents.running(case.given, layout.shards, layout.data)
    cores = sum(len(rank.cores) for rank in layout.ranks) // layout.data or 1
    tokens = cores * case.thresholds.whole("kv_tokens_per_core")
    kv_size, demand = _kv_size(case, size), mem.CacheDemand(length, sequences, tokens)
    block = geometry.kv_bytes(mem.BLOCK, kv_size, layout.tensor)
    return mem.useful(geometry, demand, kv_size, layout.tensor, block)


def _shortened(case: Case, layout: Layout, size: int, space: int, geometry: Geometry) -> dict[str, Value]:
    """Return a shorter --max-model-len if one full sequence does not fit in `space` bytes. Raises DOES_NOT_FIT."""
    length = _demand(case).length
    kv_size = _kv_size(case, size)
    longest = mem.longest(geometry, space, kv_size, layout.tensor)
    if length is None or length <= longest:
        return {}
    need = gib(geometry.kv_bytes(length, kv_size, layout.tensor))
    if _demand(case).left_to_vllm:
        return {}
    if _demand(case).fixed or longest < case.thresholds.whole("shortest_context"):
        raise does_not_fit(
            f"{case.model.name}: {length} tokens need {need} of KV cache per rank, {gib(space)} are available",
            f"--max-model-len {longest} fits; or use an fp8 KV cache (--kv-cache-dtype fp8_e5m2), or more memory",
        )
    because = (
        f"one sequence of the model's {length} tokens needs {need} of KV cache, and vLLM keeps one block more;"
        f" {gib(space)} are available"
    )
    instead = f"{length}: vLLM would refuse to start, or never run a sequence of this length"
    return {"--max-model-len": Value(str(longest), because, (instead,))}


def _does_not_fit(case: Case, room: mem.RankRoom, size: int, smallest: int) -> EntrypointError:
    need = room.taken + smallest / _share(case)
    smaller = "a quantised model" if size == element_bytes("bfloat16") else "--dtype bfloat16, or a quantised model"
    return does_not_fit(
        f"{case.model.name}: needs {gib(need)} per rank: weights and processes take {gib(room.taken)}, and the smallest"
        f" useful KV cache takes {gib(smallest)}; {room.pool} has {gib(room.available)}",
        f"possible: {gib(need - room.available)} more memory per rank, {smaller}",
    )


# --- libraries ------------------------------------------------------------------------------------------------------


def choose_preload(case: Case) -> dict[str, Value]:
    """Preload the image's allocator and OpenMP runtime for this architecture."""
    paths = _preload(case)
    if not paths:
        return {}
    because = f"{MANUAL}: preload {' and '.join(paths)} for memory allocation and thread binding"
    return {"LD_PRELOAD": Value(":".join(paths.values()), because)}


def _preload(case: Case) -> dict[str, str]:
    architecture = case.facts.processor.architecture
    libraries = case.profile["libraries"].items()
    by_name = {name: paths[architecture] for name, paths in libraries if paths.get(architecture)}
    return {name: path for name, path in by_name.items() if case.facts.files.get(name)}


# --- notices --------------------------------------------------------------------------------------------------------


def _idle(case: Case, layout: Layout) -> Iterator[Notice]:
    """Yield a notice with the NUMA nodes that no rank uses, unless the container's CPU time does not cover them."""
    domains = bind.domains(case.facts, _visible_nodes(case.given))
    idle = tuple(domain.node for domain in domains if domain.node not in {rank.node for rank in layout.ranks})
    if not idle or _covered(case, domains):
        return
    because = f"{len(layout.ranks)} of {len(domains)} NUMA nodes run a rank"
    use = f"start another container for them with --cpuset-mems {format_id_list(idle)} and their --cpuset-cpus"
    if not has_room_for_workers(case.facts):
        because = f"{because}, since /dev/shm is too small for worker processes"
        use = f"docker run --shm-size=4g …, or {use}"
    yield notice("PLAN-025", f"NUMA nodes {format_id_list(idle)}", "none", because=because, use=use)


def _notices(case: Case) -> Iterator[Notice]:
    """Yield notices about settings of the user that are kept but have a cost."""
    given, processor = case.given, case.facts.processor
    preload = given.variable("LD_PRELOAD")
    missing = [path for path in _preload(case).values() if preload and path.rsplit("/", 1)[-1] not in preload]
    if missing:
        better = ":".join([*missing, str(preload)])
        yield notice("PLAN-001", f"LD_PRELOAD={preload}", "those of this image among them", preload=better)
    dtype = given.flag("--dtype")
    if dtype in ("half", "float16") or (processor.architecture == "s390x" and dtype not in (None, "float", "float32")):
        better = str(choose_dtype(processor).value)
        yield notice("PLAN-002", f"--dtype {dtype}", better, dtype=str(dtype), better=better)
    methods = case.thresholds.words("quantization_methods")
    if case.model.quantization and case.model.quantization not in methods:
        yield notice("PLAN-003", case.model.quantization, f"one of {', '.join(methods)}")
