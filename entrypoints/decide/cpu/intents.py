"""Settings that follow from intents on a CPU: copies of the model, concurrency, length, batches. Pure.

Source: vLLM 0.32's engine/arg_utils.py (get_batch_defaults, --performance-mode).
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.checks.findings import make_notice
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


def wants_copies(user_flags: UserFlags, geometry: Geometry | None, *, small: bool) -> bool:
    """Return whether each NUMA node should get a full copy: higher throughput, but one node computes each answer.

    Models with experts get no copies: their data-parallel engines would wait for each other at every step.
    """
    aim = user_flags.intents.optimize
    if geometry is None or geometry.experts or not (aim == THROUGHPUT or (small and aim is None)):
        return False
    return not {DATA, f"{DATA}-local", PIPELINE} & set(user_flags.flags)


def choose_copies(nodes: int, why: str) -> dict[str, Value]:
    """Give each NUMA node an engine of its own."""
    because = f"{why or '--optimize throughput'}: one engine with all weights on each of {nodes} NUMA nodes"
    one = f"1 with {TENSOR} {nodes}: the nodes would wait for each other at every layer; suits --optimize latency"
    return {DATA: Value(str(nodes), because, (one,)), TENSOR: Value("1", "each engine has its own NUMA node")}


def count_running_sequences(user_flags: UserFlags, shards: int, engines: int) -> int:
    """Return how many sequences one engine runs at a time: by the user's flag, --concurrency, or vLLM's default."""
    if user_flags.number(SEQUENCES):
        return user_flags.number(SEQUENCES) or 0
    if user_flags.intents.concurrency:
        return -(-user_flags.intents.concurrency // engines)
    return _SEQUENCES * shards * _batch_factor(user_flags)


def step_tokens(user_flags: UserFlags, shards: int) -> int:
    """Return how many tokens one step computes at most."""
    return user_flags.number(BATCHED) or _TOKENS * shards * _batch_factor(user_flags)


def choose_length(demand: Demand) -> dict[str, Value]:
    """Return the sum of the upper ends of --input-range and --output-range as the length."""
    return {LENGTH: Value(str(demand.length), demand.because)} if demand.from_intents else {}


def choose_sequences(
    user_flags: UserFlags, shards: int, engines: int, cache_sequences: int | None
) -> tuple[dict[str, Value], tuple[Notice, ...]]:
    """Divide --concurrency over the engines, with a notice if fewer fit; `cache_sequences` fit in the KV cache."""
    concurrency = user_flags.intents.concurrency
    if concurrency is None or SEQUENCES in user_flags.flags:
        return {}, ()
    per_engine, step = -(-concurrency // engines), step_tokens(user_flags, shards)
    fewer = min(per_engine, step, per_engine if cache_sequences is None else max(1, cache_sequences))
    because = f"--concurrency {concurrency}" + (f" over {engines} engines" if engines > 1 else "")
    if fewer == per_engine:
        return {SEQUENCES: Value(str(per_engine), because)}, ()
    limit = "the KV cache holds no more sequences"
    if fewer == step:
        limit = f"a step computes {step} tokens, one for each sequence"
    queued = make_notice("PLAN-026", f"{fewer * engines} at a time", f"{concurrency} at a time", because=limit)
    return {SEQUENCES: Value(str(fewer), f"{because}; {limit}")}, (queued,)


def choose_mode(user_flags: UserFlags) -> dict[str, Value]:
    """Choose vLLM's throughput mode, which doubles its default batches, if this vLLM has it."""
    if _batch_factor(user_flags) == 1:
        return {}
    because = "--optimize throughput: vLLM doubles its defaults for the sequences and tokens of a step"
    instead = ("balanced: answers wait less for other prompts, but the weights are read more often per token",)
    return {MODE: Value(THROUGHPUT, because, instead)}


def count_fitting_sequences(
    space: int | None, geometry: Geometry | None, typical: int | None, size: int, shards: int
) -> int | None:
    """Return how many sequences of mean length fit in `space` bytes of KV cache; None if a figure is unknown."""
    if geometry is None or typical is None or space is None:
        return None
    return space // max(1, geometry.kv_bytes(typical, size, shards))


def _batch_factor(user_flags: UserFlags) -> int:
    """Return 2 in vLLM's throughput mode, else 1."""
    if user_flags.flag(MODE) == THROUGHPUT:
        return 2
    chooses_mode = (
        user_flags.intents.optimize == THROUGHPUT and MODE in user_flags.known and MODE not in user_flags.flags
    )
    return 2 if chooses_mode else 1


def effective_space(values: Mapping[str, Value], user_flags: UserFlags, name: str) -> int | None:
    """Return the KV cache's bytes: the user's, else the chosen ones, else None. `name` is the variable in GiB."""
    user = user_flags.variable(name)
    if user is not None:
        return int(user) * GIB if is_number(user) else None
    if name in values:
        return int(str(values[name].value)) * GIB
    cache_bytes = values.get(CACHE_BYTES)
    return int(str(cache_bytes.value)) if cache_bytes else user_flags.number(CACHE_BYTES)
