"""Gaudi's lengths: sequences, prompts and batched tokens of a step, and the longest request. Pure.

A step of the older stacks computes whole prompts, so --max-num-batched-tokens follows from the length.
"""

from __future__ import annotations

from entrypoints.core.records import Value
from entrypoints.decide.habana.execution_modes import SCRIPT, HabanaCase
from entrypoints.decide.habana.graphs import BLOCK, GraphDemand, round_up
from entrypoints.decide.parallelism.fit import Fit
from entrypoints.request.flags import BATCHED, BLOCK_SIZE, LENGTH, SEQUENCES

PREFILLS = "--max-num-prefill-seqs"


def make_graph_demand(case: HabanaCase, chosen: Fit) -> GraphDemand:
    """Return the lengths and batches that graphs are needed for."""
    thresholds, user_flags = case.thresholds, case.user_flags
    length = chosen.length or thresholds.whole("usual_length")
    sequences = chosen.sequences or _choose_decode_batch(case, chosen)
    whole, least = bool(thresholds.number("whole_prompts")), thresholds.whole("batched_tokens")
    budget = user_flags.number(BATCHED) or (round_up(max(length, least), BLOCK) if whole else least)
    prompts = user_flags.number(PREFILLS) or _count_step_prompts(case, budget, sequences)
    block = user_flags.number(BLOCK_SIZE) or BLOCK
    blocks = chosen.kv_tokens // block if chosen.kv_tokens else None
    return GraphDemand(length, sequences, min(prompts, sequences), budget, user_flags.intents, blocks, block, whole)


def _choose_decode_batch(case: HabanaCase, chosen: Fit) -> int:
    """Return the manual's usual batch, or the number of sequences of the given ranges that the KV cache holds."""
    usual, intents = case.thresholds.whole("decode_sequences"), case.user_flags.intents
    if not (intents.input and intents.output and chosen.kv_tokens):
        return usual
    typical = max(1, (sum(intents.input) + sum(intents.output)) // 2)
    return max(1, min(usual, chosen.kv_tokens // typical))


def _count_step_prompts(case: HabanaCase, budget: int, sequences: int) -> int:
    """Return how many prompts one step computes: few for low latency, a full step for high throughput."""
    shortest = case.user_flags.intents.input[0] if case.user_flags.intents.input else 1
    fixed = case.thresholds.whole("prefill_sequences")
    if not fixed:  # 1.21 fills a step with prompts of the shortest length
        return max(1, min(budget // shortest, sequences))
    if case.user_flags.intents.optimize == "throughput":
        return max(1, min(case.thresholds.whole("batched_tokens") // round_up(shortest, BLOCK), sequences))
    return fixed


def choose_gaudi_lengths(case: HabanaCase, chosen: Fit, demand: GraphDemand) -> dict[str, Value]:
    """Return length, batch and tokens of a step, as far as the user left them open."""
    thresholds, values = case.thresholds, {}
    if not chosen.sequences:
        because = "the manual's usual batch for decoding"
        if demand.sequences < thresholds.whole("decode_sequences"):
            because = "the KV cache holds this many sequences of the given ranges; vLLM would preempt more"
        values[SEQUENCES] = Value(
            str(demand.sequences), because, ("256, vLLM's default: twice as many graphs to warm up",)
        )
    model_length = case.model.geometry.max_length if case.model.geometry else None
    if (
        chosen.length
        and model_length
        and chosen.length < model_length
        and not {LENGTH} & {*chosen.values, *case.user_flags.flags}
    ):
        because = "the manual's usual length: one step computes a whole prompt, and each length needs another graph"
        values[LENGTH] = Value(
            str(chosen.length), because, (f"{model_length}, the model's own: set --max-model-len for it",)
        )
    if thresholds.number("whole_prompts") and chosen.length:
        because = f"one step computes a whole prompt: the tokens of the longest one, but at least the value of {SCRIPT}"
        values[BATCHED] = Value(str(demand.budget), because)
    if thresholds.number("prefill_flag"):
        because = "one prompt at a time gives the first token soonest"
        if demand.prompts != 1:
            because = "the number of short prompts that fill one step"
        instead = ("more: a longer wait for the first token; --optimize throughput chooses more",)
        values[PREFILLS] = Value(str(demand.prompts), because, instead if demand.prompts == 1 else ())
    return values
