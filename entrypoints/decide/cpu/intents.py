"""What intents change on a CPU: copies of the model, sequences at a time, length, batches. Pure.

What vLLM 0.32 makes of them was read in its engine/arg_utils.py (get_batch_defaults, --performance-mode).
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.checks.findings import notice
from entrypoints.core.records import Notice
from entrypoints.core.units import GIB
from entrypoints.decide.records import Value
from entrypoints.decide.spread.demand import LENGTH, Demand
from entrypoints.model.geometry import Geometry
from entrypoints.request.vllm_flags import UserFlags

TENSOR, DATA, PIPELINE = "--tensor-parallel-size", "--data-parallel-size", "--pipeline-parallel-size"
SEQUENCES = "--max-num-seqs"
BATCHED = "--max-num-batched-tokens"
MODE = "--performance-mode"
THROUGHPUT = "throughput"

_SEQUENCES, _TOKENS = 128, 2048
"""vLLM's own batch of an API server on CPU, for each rank that shares a copy; throughput doubles both."""


def wants_copies(given: UserFlags, geometry: Geometry | None) -> bool:
    """Tell whether each NUMA node should get a whole copy: more tokens a second, each answer at one node's pace.

    Experts are spread over data-parallel engines, which then wait for each other at every step.
    """
    said = {DATA, f"{DATA}-local", PIPELINE}
    dense = geometry is not None and not geometry.experts
    return dense and given.intents.optimize == THROUGHPUT and not said & set(given.flags)


def choose_copies(nodes: int) -> dict[str, Value]:
    """Give each NUMA node an engine of its own."""
    because = f"--optimize throughput: an engine with all the weights on each of {nodes} NUMA nodes"
    one = f"1, with {TENSOR} {nodes}: the nodes would wait for each other at every layer; for --optimize latency"
    return {DATA: Value(str(nodes), because, (one,)), TENSOR: Value("1", "each engine has a NUMA node to itself")}


def running(given: UserFlags, shards: int, engines: int) -> int:
    """Return how many sequences one engine runs at a time: the user's number, the wished one, or vLLM's own."""
    wished = given.intents.concurrency
    usual = _SEQUENCES * shards * _doubled(given)
    return given.number(SEQUENCES) or (-(-wished // engines) if wished else usual)


def choose_length(demand: Demand) -> dict[str, Value]:
    """State the length that the ranges add up to."""
    return {LENGTH: Value(str(demand.length), demand.because)} if demand.wished else {}


def choose_sequences(
    given: UserFlags, shards: int, engines: int, held: int | None
) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Turn the wished concurrency into each engine's, and say where less fits; `held` is what the KV cache holds."""
    wished = given.intents.concurrency
    if wished is None or SEQUENCES in given.flags:
        return {}, ()
    each, step = -(-wished // engines), given.number(BATCHED) or _TOKENS * shards * _doubled(given)
    fewer = min(each, step, each if held is None else max(1, held))
    because = f"--concurrency {wished}" + (f" over {engines} engines" if engines > 1 else "")
    if fewer == each:
        return {SEQUENCES: Value(str(each), because)}, ()
    limit = f"a step computes {step} tokens, one for each" if fewer == step else "the KV cache holds no more of them"
    queued = notice("PLAN-026", f"{fewer * engines} at a time", f"{wished} at a time", because=limit)
    return {SEQUENCES: Value(str(fewer), f"{because}; {limit}")}, (queued,)


def choose_mode(given: UserFlags) -> dict[str, Value]:
    """Let vLLM double its batches for throughput, where this one can and something is left to double."""
    if _doubled(given) == 1:
        return {}
    because = "--optimize throughput: vLLM doubles the sequences and tokens of a step that nobody set"
    instead = ("balanced: answers wait less for others' prompts, and the weights are read more often for each token",)
    return {MODE: Value(THROUGHPUT, because, instead)}


def held(space: object, geometry: Geometry | None, typical: int | None, size: int, shards: int) -> int | None:
    """Return how many sequences of mean length so many GiB of KV cache hold; None where something is not known."""
    if geometry is None or typical is None or not str(space).isdecimal():
        return None
    return int(str(space)) * GIB // max(1, geometry.kv_bytes(typical, size, shards))


def _doubled(given: UserFlags) -> int:
    wished = given.intents.optimize == THROUGHPUT and MODE in given.known and MODE not in given.flags
    return 2 if wished or given.flag(MODE) == THROUGHPUT else 1


def said_space(values: Mapping[str, Value], given: UserFlags, name: str) -> object:
    """Return the KV cache's GiB in force: the user's, else the chosen ones, else None."""
    user = given.variable(name)
    return user if user is not None else values[name].value if name in values else None
