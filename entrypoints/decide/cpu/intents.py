"""Settings that follow from intents on a CPU: copies of the model, concurrency, length, batches. Pure.

Source: vLLM 0.32's engine/arg_utils.py (get_batch_defaults, --performance-mode).
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.checks.findings import notice
from entrypoints.core.parse import is_number
from entrypoints.core.records import Notice, Value
from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.demand import Demand
from entrypoints.model.geometry import Geometry
from entrypoints.request.flags import BATCHED, CACHE_BYTES, LENGTH, MODE, SEQUENCES
from entrypoints.request.vllm_flags import UserFlags

TENSOR, DATA, PIPELINE = "--tensor-parallel-size", "--data-parallel-size", "--pipeline-parallel-size"
THROUGHPUT = "throughput"

_SEQUENCES, _TOKENS = 128, 2048
"""vLLM's default batch for an API server on CPU, for each rank that shares a copy; throughput mode doubles both."""


def wants_copies(given: UserFlags, geometry: Geometry | None, *, small: bool) -> bool:
    """Return whether each NUMA node should get a full copy: higher throughput, but one node computes each answer.

    Models with experts get no copies: their data-parallel engines would wait for each other at every step.
    """
    aim = given.intents.optimize
    if geometry is None or geometry.experts or not (aim == THROUGHPUT or (small and aim is None)):
        return False
    return not {DATA, f"{DATA}-local", PIPELINE} & set(given.flags)


def choose_copies(nodes: int, why: str) -> dict[str, Value]:
    """Give each NUMA node an engine of its own."""
    because = f"{why or '--optimize throughput'}: one engine with all weights on each of {nodes} NUMA nodes"
    one = f"1 with {TENSOR} {nodes}: the nodes would wait for each other at every layer; suits --optimize latency"
    return {DATA: Value(str(nodes), because, (one,)), TENSOR: Value("1", "each engine has its own NUMA node")}


def running(given: UserFlags, shards: int, engines: int) -> int:
    """Return how many sequences one engine runs at a time: by the user's flag, --concurrency, or vLLM's default."""
    if given.number(SEQUENCES):
        return given.number(SEQUENCES) or 0
    if given.intents.concurrency:
        return -(-given.intents.concurrency // engines)
    return _SEQUENCES * shards * _batch_factor(given)


def step_tokens(given: UserFlags, shards: int) -> int:
    """Return how many tokens one step computes at most."""
    return given.number(BATCHED) or _TOKENS * shards * _batch_factor(given)


def choose_length(demand: Demand) -> dict[str, Value]:
    """Return the sum of the upper ends of --input-range and --output-range as the length."""
    return {LENGTH: Value(str(demand.length), demand.because)} if demand.from_intents else {}


def choose_sequences(
    given: UserFlags, shards: int, engines: int, held: int | None
) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Divide --concurrency over the engines, with a notice if fewer fit; `held` sequences fit in the KV cache."""
    concurrency = given.intents.concurrency
    if concurrency is None or SEQUENCES in given.flags:
        return {}, ()
    each, step = -(-concurrency // engines), step_tokens(given, shards)
    fewer = min(each, step, each if held is None else max(1, held))
    because = f"--concurrency {concurrency}" + (f" over {engines} engines" if engines > 1 else "")
    if fewer == each:
        return {SEQUENCES: Value(str(each), because)}, ()
    limit = "the KV cache holds no more sequences"
    if fewer == step:
        limit = f"a step computes {step} tokens, one for each sequence"
    queued = notice("PLAN-026", f"{fewer * engines} at a time", f"{concurrency} at a time", because=limit)
    return {SEQUENCES: Value(str(fewer), f"{because}; {limit}")}, (queued,)


def choose_mode(given: UserFlags) -> dict[str, Value]:
    """Choose vLLM's throughput mode, which doubles its default batches, if this vLLM has it."""
    if _batch_factor(given) == 1:
        return {}
    because = "--optimize throughput: vLLM doubles its defaults for the sequences and tokens of a step"
    instead = ("balanced: answers wait less for other prompts, but the weights are read more often per token",)
    return {MODE: Value(THROUGHPUT, because, instead)}


def held(space: int | None, geometry: Geometry | None, typical: int | None, size: int, shards: int) -> int | None:
    """Return how many sequences of mean length fit in `space` bytes of KV cache; None if a figure is unknown."""
    if geometry is None or typical is None or space is None:
        return None
    return space // max(1, geometry.kv_bytes(typical, size, shards))


def _batch_factor(given: UserFlags) -> int:
    """Return 2 in vLLM's throughput mode, else 1."""
    if given.flag(MODE) == THROUGHPUT:
        return 2
    chosen = given.intents.optimize == THROUGHPUT and MODE in given.known and MODE not in given.flags
    return 2 if chosen else 1


def effective_space(values: Mapping[str, Value], given: UserFlags, name: str) -> int | None:
    """Return the KV cache's bytes: the user's, else the chosen ones, else None. `name` is the variable in GiB."""
    user = given.variable(name)
    if user is not None:
        return int(user) * GIB if is_number(user) else None
    if name in values:
        return int(str(values[name].value)) * GIB
    chosen = values.get(CACHE_BYTES)
    return int(str(chosen.value)) if chosen else given.number(CACHE_BYTES)
