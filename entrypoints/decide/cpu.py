"""vLLM's CPU backend: type, parallelism, thread binding, memory, preloaded libraries. Pure.

What vLLM 0.32 makes of these settings was read in its platforms/cpu.py, v1/worker/cpu_worker.py and
utils/ompmultiprocessing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.decide import Decision, Thresholds, Value, advice, does_not_fit, gib
from entrypoints.decide import binding as bind
from entrypoints.decide import memory as mem
from entrypoints.errors import HOST, MODEL, EntrypointError
from entrypoints.findings import GIB
from entrypoints.geometry import Geometry
from entrypoints.model import Facts, Finding, Processor
from entrypoints.modelfacts import ModelFacts
from entrypoints.parse import parse_id_list
from entrypoints.vllm_flags import Given

KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
BIND = "VLLM_CPU_OMP_THREADS_BIND"
RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
VISIBLE = "CPU_VISIBLE_MEMORY_NODES"

MANUAL = "vLLM's CPU installation manual"

_SIZES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "auto": 2}
_SEQUENCES_PER_RANK = 128
"""vLLM's own --max-num-seqs for an API server on CPU, times the world size (engine/arg_utils.py)."""


class Case(NamedTuple):
    """Everything a decision looks at."""

    facts: Facts
    model: ModelFacts
    given: Given
    thresholds: Thresholds
    libraries: Mapping[str, Mapping[str, str]]


class Layout(NamedTuple):
    """How the ranks are laid out; data-parallel engines hold a whole copy each."""

    tensor: int
    pipeline: int
    data: int
    ranks: tuple[bind.Rank, ...]

    @property
    def shards(self) -> int:
        """Ranks that share one copy of the weights."""
        return self.tensor * self.pipeline


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: Given) -> Decision:
    """Decide all that the user did not.

    Raises HOST without CPU or memory figures, MODEL when the geometry is needed and wrong, DOES_NOT_FIT.
    """
    case = Case(facts, model, given, Thresholds(profile["thresholds"]), profile["libraries"])
    _require_host(facts)
    dtype = choose_dtype(facts.processor)
    size = _SIZES.get(given.flag("--dtype") or str(dtype.value), 2)
    layout, tensor = choose_layout(case, size)
    values = {"--dtype": dtype, "--tensor-parallel-size": tensor, BIND: choose_binding(case, layout)}
    if layout.shards * layout.data > 1:
        values["--distributed-executor-backend"] = Value("mp", "each rank is a process of its own, bound to its cores")
    values |= choose_memory(case, layout, size)
    values |= choose_preload(case)
    return Decision(values, tuple(_advice(case)))


def _require_host(facts: Facts) -> None:
    if facts.cpus and facts.memory.total:
        return
    missing = "; ".join(f"{failure.where}: {failure.found}" for failure in facts.failures)
    raise EntrypointError(HOST, f"no plan without the host's CPUs and memory: {missing}", "run `check` for the details")


# --- type -----------------------------------------------------------------------------------------------------------


def choose_dtype(processor: Processor) -> Value:
    """Choose the type the processor computes in."""
    flags = set(processor.flags)
    if processor.architecture == "s390x":
        return Value("float32", f"{MANUAL}: s390x supports float32 only")
    if processor.architecture == "x86_64":
        native = next((flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags), None)
        how = f"{native} computes it natively" if native else "half the memory traffic of float32, converted in registers"
        instead = ("float16: unstable in PyTorch on CPU", "float32: twice the memory traffic, which bounds decoding")
        return Value("bfloat16", how, instead)
    if processor.architecture == "ppc64le":
        return Value("bfloat16", "vLLM itself takes it on POWER, for float16 and float32 models too")
    if "bf16" in flags:
        return Value("bfloat16", "bf16 computes it natively", ("float16: unstable in PyTorch on CPU",))
    return Value(
        "float32",
        f"{processor.architecture} without bf16 instructions",
        ("bfloat16: emulated here", "float16: unstable in PyTorch on CPU"),
    )


# --- parallelism ----------------------------------------------------------------------------------------------------


def choose_layout(case: Case, size: int) -> tuple[Layout, Value]:
    """Choose tensor parallelism: as many NUMA nodes as help, and as the model needs."""
    visible = case.given.variable(VISIBLE)
    found = bind.domains(case.facts, None if visible is None else parse_id_list(visible))
    user = case.given.count("--tensor-parallel-size")
    if user:
        return _layout(case, found, user), Value(str(user), "")
    counts, because, instead = _counts(case, found, size)
    layouts = [_layout(case, found, count) for count in counts]
    fitting = [layout for layout in layouts if mem.whole_gib(_room(case, layout, size), _share(case)) >= 1]
    layout = fitting[0] if fitting else max(layouts, key=lambda layout: _room(case, layout, size).left)
    if layout is not layouts[0]:
        because = f"{because}; but the weights need {layout.tensor} nodes' memory"
    return layout, Value(str(layout.tensor), because, instead)


def _counts(case: Case, found: tuple[bind.Domain, ...], size: int) -> tuple[list[int], str, tuple[str, ...]]:
    """Return the possible numbers of ranks, best first, with the reason for the first."""
    nodes = len(found)
    geometry = case.model.geometry
    possible = [count for count in range(1, nodes + 1) if count == 1 or (geometry and geometry.divides(count))]
    if nodes == 1:
        return possible, "there is one NUMA node with cores and memory", ()
    one = _reason_for_one(case, found, size)
    if one:
        return possible, one, (f"{nodes}, one rank a node: every token would wait for the link between sockets",)
    best = possible[-1]
    because = f"one rank for each of {nodes} NUMA nodes, so that no rank reads another node's memory"
    if best < nodes and geometry:
        because = f"the most of {nodes} NUMA nodes that {geometry.heads} heads and {geometry.kv_heads} KV heads divide by"
    instead = ("data parallelism, one server a node behind a balancer: more throughput, but slower single answers",)
    return possible[::-1], because, instead


def _reason_for_one(case: Case, found: tuple[bind.Domain, ...], size: int) -> str:
    """Say why one rank is enough; empty when it is not."""
    limit, cores = bind.time_limit(case.facts), max(len(domain.cores) for domain in found)
    if limit is not None and limit <= cores:
        return f"the container's CPU time covers {limit} cores, and one NUMA node has {cores}"
    if case.model.geometry is None:
        return f"{case.model.unknown}, so nothing is known that could be split; set -tp to use more nodes"
    small = case.thresholds.bytes("one_node_weights_gib")
    if case.model.weights and case.model.weights.loaded(size) < small:
        weights = gib(case.model.weights.loaded(size))
        return f"{weights} of weights are too few to split: below {gib(small)} the link between sockets costs more"
    return ""


def _layout(case: Case, found: tuple[bind.Domain, ...], tensor: int) -> Layout:
    given = case.given
    pipeline = given.count("--pipeline-parallel-size") or 1
    data = given.count("--data-parallel-size-local") or given.count("--data-parallel-size") or 1
    ranks = bind.place(found, tensor * pipeline * data, bind.time_limit(case.facts))
    return Layout(tensor, pipeline, data, ranks)


def choose_binding(case: Case, layout: Layout) -> Value:
    """Bind one thread to each physical core, and keep cores for the server where that pays."""
    power = case.facts.processor.architecture == "ppc64le"
    per_core = case.thresholds.whole("power_threads_per_core") if power else 1
    by_user = case.given.count(RESERVED, 0) if False else _reserved(case)
    keeps = tuple(bind.reserved(rank, case.thresholds) for rank in layout.ranks)
    if by_user is not None:
        keeps = bind.reserved_by_user(by_user, len(layout.ranks))
    value = bind.binding(layout.ranks, keeps, per_core)
    return Value(value, _binding_because(case, layout, keeps, per_core), _binding_instead(case, layout))
