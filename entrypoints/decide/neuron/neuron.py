"""Neuron: cores, lengths, what is compiled, and where the compiled model is kept. Pure.

Three engines of vLLM on Neuron differ in how they keep the KV cache and name their buckets: transformers-neuronx
(vLLM 0.3 to 0.7), NxD Inference (the plugin to 0.5, vLLM 0.9 to 0.16) and vLLM Neuron (the plugin from SDK 2.31, vLLM
0.21 and later). The stack's threshold `engine` says which. Source: Neuron SDK documentation 2.32, vLLM User Guide for
NxD Inference, and vLLM Neuron's configuration options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import notice
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Notice
from entrypoints.decide.neuron.cores import COUNT, as_cores, choose_cores
from entrypoints.decide.records import Decision, Thresholds, Value, gib
from entrypoints.decide.spread.fit import Fit, Rules, fit
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import Flag, UserFlags

LENGTH = "--max-model-len"
SEQUENCES = "--max-num-seqs"
BATCHED = "--max-num-batched-tokens"
TENSOR = "--tensor-parallel-size"
BLOCK = "--block-size"
BLOCKS = "--num-gpu-blocks-override"
CONFIG = "--additional-config"
PREFIXES = "--enable-prefix-caching"
UTILISATION = "--gpu-memory-utilization"
CACHE_BYTES = "--kv-cache-memory-bytes"
KV_CAP = "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"

GUIDE = "vLLM User Guide for NxD Inference"


class NeuronCase(NamedTuple):
    """Everything that an engine's own settings follow from."""

    facts: Facts
    model: ModelFacts
    given: UserFlags
    thresholds: Thresholds
    fitted: Fit
    length: int | None
    """--max-model-len in force."""
    sequences: int
    """--max-num-seqs in force."""

    @property
    def block(self) -> int:
        """Tokens of one KV cache block."""
        return self.given.number(BLOCK) or self.thresholds.whole("block")

    @property
    def chunk(self) -> int:
        """Tokens of a prompt that are computed at once."""
        most = self.given.number(BATCHED) or self.thresholds.whole("prefill_tokens")
        return most if self.length is None else min(most, self.length)


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not.

    Raises HOST without a usable device or its memory, MODEL, DOES_NOT_FIT, USAGE.
    """
    thresholds = Thresholds(profile["thresholds"])
    engine = ENGINES[str(thresholds.table["engine"]["value"])]
    cores = as_cores(facts, given)
    shorter, length = _unasked(model, given, thresholds)
    asked = _aimed(_capped(cores.facts, cores.given, thresholds) if engine.capped else cores.given)
    fitted = fit(cores.facts, shorter, asked, _rules(cores.facts, thresholds, engine))
    in_force = fitted.length or _unknown_length(thresholds, engine)
    sequences = _sequences(fitted, in_force, thresholds)
    case = NeuronCase(facts, model, given, thresholds, fitted, in_force, sequences)
    values = {
        "--dtype": Value("bfloat16", "Neuron computes float16 and bfloat16, and bfloat16 holds every weight's range"),
        **_lengths(case, length),
        **_ranks(fitted, given),
        **engine.settings(case),
        **({} if given.variable(COUNT) else choose_cores(cores.facts.devices, fitted.devices, fitted.tensor)),
    }
    return Decision(values, (*fitted.findings, *_advice(case, engine), *_left_out(cores.left_out)))


# --- what fits ------------------------------------------------------------------------------------------------------


def _rules(facts: Facts, thresholds: Thresholds, engine: Engine) -> Rules:
    """Return what the devices here allow; data parallelism is left to several servers behind a router."""
    architecture = next((device.architecture for device in facts.devices if device.architecture), "")
    sizes = thresholds.table.get(f"tensor_sizes_{architecture}", {}).get("value", ())
    usable = thresholds.number("usable_share")
    smallest = min((device.memory_total or 0 for device in facts.devices), default=0)
    return Rules(
        usable=usable,
        reserved=int(smallest * (1 - usable)) if engine.capped else thresholds.bytes("runtime_memory_gib"),
        activations=0 if engine.capped else thresholds.bytes("activations_gib"),
        block=thresholds.whole("block"),
        sizes=tuple(int(size) for size in sizes),
        pads_heads=engine.pads_heads,
        pipeline=False,
        shortest_context=thresholds.whole("shortest_context"),
        data=False,
        executors=(),
        chunk=thresholds.whole("prefill_tokens"),
    )


def _capped(facts: Facts, given: UserFlags, thresholds: Thresholds) -> UserFlags:
    """State the KV cache's size as vLLM Neuron caps it, so that what is planned is what it takes."""
    sizes = [device.memory_total for device in facts.devices if device.memory_total]
    if CACHE_BYTES in given.flags or not sizes:
        return given
    try:
        share = float(given.variable(KV_CAP) or thresholds.number("kv_share"))
        usable = float(given.flag(UTILISATION) or thresholds.number("usable_share"))
    except ValueError:  # vLLM's to refuse
        return given
    size = str(int(min(sizes) * usable * share))
    return given._replace(flags={**given.flags, CACHE_BYTES: Flag(CACHE_BYTES, size, KV_CAP)})


def _aimed(given: UserFlags) -> UserFlags:
    """Aim at short answers unless something else was wished for: the vendor's recipes take as many cores as help."""
    intents = given.intents
    return given if intents.optimize else given._replace(intents=intents._replace(optimize="latency"))


def _ranks(fitted: Fit, given: UserFlags) -> dict[str, Value]:
    """Return what was fitted, in words that say what a device is here."""
    values = {name: value for name, value in fitted.values.items() if name != UTILISATION}
    if TENSOR in values:
        aim = "" if given.intents.optimize else "; nothing wished for, so as the vendor's recipes do"
        because = f"each rank is a logical NeuronCore, called device here{aim}: {values[TENSOR].because}"
        values[TENSOR] = values[TENSOR]._replace(because=because)
    return values


def _unasked(model: ModelFacts, given: UserFlags, thresholds: Thresholds) -> tuple[ModelFacts, Value | None]:
    """Shorten what nobody asked for: each doubling of the length is compiled, and held for every sequence."""
    geometry, most = model.geometry, thresholds.whole("unasked_context")
    asked = given.flag(LENGTH) or given.intents.input
    if asked or geometry is None or geometry.max_length is None or geometry.max_length <= most:
        return model, None
    because = "longer ones are compiled only if asked for: --max-model-len, or --input-range and --output-range"
    value = Value(str(most), because, (f"{geometry.max_length}: the model's own; more graphs and KV cache for each",))
    return model._replace(geometry=geometry._replace(max_length=most)), value


def _unknown_length(thresholds: Thresholds, engine: Engine) -> int | None:
    return thresholds.whole("unknown_context") if engine.needs_length else None


def _lengths(case: NeuronCase, shortened: Value | None) -> dict[str, Value]:
    """State the length and the number of sequences: both are compiled in."""
    batch = Value(str(case.sequences), "sequences at a time, compiled in; the vendor's own examples serve 1 to 8")
    values = {SEQUENCES: batch}
    if shortened is not None:
        return values | {LENGTH: shortened}
    if case.length is None:
        return values
    known = "the model's own" if case.fitted.length else f"{case.model.unknown}; {LENGTH} sets another"
    return values | {LENGTH: Value(str(case.length), f"{known}: it is compiled in")}


def _sequences(fitted: Fit, length: int | None, thresholds: Thresholds) -> int:
    """Return how many sequences run at a time: a power of two that the KV cache holds at full length."""
    if fitted.sequences:
        return fitted.sequences
    most = thresholds.whole("sequences")
    held = most if fitted.kv_tokens is None or length is None else max(1, fitted.kv_tokens // length)
    return 1 << (min(most, held).bit_length() - 1)


# --- what is compiled -----------------------------------------------------------------------------------------------


def buckets(shortest: int, longest: int) -> tuple[int, ...]:
    """Return the powers of two from the one that holds `shortest`, and `longest` itself at the end."""
    found = []
    size = 1 << max(0, shortest - 1).bit_length()
    while size < longest:
        found.append(size)
        size *= 2
    return (*found, longest)


def _prompts(case: NeuronCase, longest: int) -> tuple[int, ...]:
    """Return the prompt lengths that are compiled for: those that --input-range leaves, if it is given."""
    smallest = case.thresholds.whole("smallest_bucket")
    wished = case.given.intents.input
    if wished is None:
        return buckets(min(smallest, longest), longest)
    return buckets(min(max(smallest, wished[0]), longest), longest)


def _time(case: NeuronCase, graphs: int) -> str:
    """Say how long compiling takes, the first time."""
    weights = case.model.weights
    if weights is None:
        return f"{graphs} graphs to compile at the first start, minutes each; kept in the cache afterwards"
    minutes = max(1, round(case.thresholds.number("compile_minutes_per_gib") * weights.loaded(2) / (1 << 30)))
    return f"{graphs} graphs to compile, about {minutes} min at the first start; kept in the cache afterwards"


def _json(value: Mapping[str, Any]) -> str:
    import json

    return json.dumps(value)


# --- the engines ----------------------------------------------------------------------------------------------------


def _native(case: NeuronCase) -> dict[str, Value]:
    """Set vLLM Neuron's buckets; it sizes its KV cache itself, and keeps compiled graphs below VLLM_CACHE_ROOT."""
    prompts, batches = _prompts(case, case.chunk), buckets(1, case.sequences)
    config = {"neuron_config": {"num_batched_tokens_buckets": prompts, "num_seqs_buckets": batches}}
    cap = f"{case.thresholds.number('kv_share'):.0%} of it at most for the KV cache, by {KV_CAP}"
    whole = "prompts are computed in pieces of this size; the largest bucket must equal it"
    return {
        BATCHED: Value(str(case.chunk), whole),
        CONFIG: Value(_json(config), _time(case, len(prompts) + len(batches)), (_SAMPLING,)),
        UTILISATION: Value(f"{case.thresholds.number('usable_share'):g}", cap),
    }


_SAMPLING = "on_device_sampling_config: faster, but serves greedy answers only, or few of the sampling parameters"


def _nxdi(case: NeuronCase) -> dict[str, Value]:
    """Set NxD Inference's buckets and block count: it refuses, or overruns, what vLLM would work out by itself."""
    length = case.length or case.thresholds.whole("unknown_context")
    prompts, answers = _prompts(case, length), buckets(min(case.thresholds.whole("smallest_bucket"), length), length)
    override = {
        "enable_bucketing": True,
        "context_encoding_buckets": prompts,
        "token_generation_buckets": answers,
    }
    config = Value(_json({"override_neuron_config": override}), _time(case, len(prompts) + len(answers)))
    return {CONFIG: config, **_blocks(case, length)}


def _blocks(case: NeuronCase, length: int) -> dict[str, Value]:
    """Give vLLM's scheduler the block count that is compiled in; one sequence goes without prefix caching."""
    flag = case.given.flags.get(PREFIXES)
    if (flag is None and case.sequences > 1) or (flag is not None and flag.value is True):
        blocks = -(-length // case.block) * case.sequences
        counted = f"{case.sequences} sequences of {length} tokens in blocks of {case.block}; fewer would be overrun"
        size = "a block of the KV cache with prefix caching; the Neuron kernels' best size"
        return {BLOCKS: Value(str(blocks), counted), BLOCK: Value(str(case.block), size)}
    counted = "without prefix caching a block is a whole sequence, so exactly as many as sequences"
    values = {BLOCKS: Value(str(case.sequences), counted)}
    if flag is None:
        wrong = "with a batch of one, prefix caching gives wrong answers"
        values[f"--no-{PREFIXES[2:]}"] = Value(value=True, because=f"{wrong} (vllm-neuron README, known issues)")
    return values


def _transformers(case: NeuronCase) -> dict[str, Value]:
    """Set transformers-neuronx's buckets, and a block as long as a sequence: it has no paged attention."""
    length = case.length or case.thresholds.whole("unknown_context")
    prompts, answers = _prompts(case, length), buckets(min(case.thresholds.whole("smallest_bucket"), length), length)
    told = _time(case, len(prompts) + len(answers))
    return {
        BLOCK: Value(str(length), "transformers-neuronx keeps a sequence in one block"),
        "NEURON_CONTEXT_LENGTH_BUCKETS": Value(",".join(map(str, prompts)), told),
        "NEURON_TOKEN_GEN_BUCKETS": Value(",".join(map(str, answers)), "powers of two, the last as long as a sequence"),
    }


class Engine(NamedTuple):
    """One way of vLLM to run on Neuron."""

    settings: Callable[[NeuronCase], dict[str, Value]]
    pads_heads: bool
    """Whether heads are padded and replicated, so that they need not divide."""
    capped: bool
    """Whether the KV cache is a share of the memory, rather than all that is left."""
    needs_length: bool
    """Whether --max-model-len must be said."""


ENGINES = {
    "native": Engine(_native, pads_heads=False, capped=True, needs_length=False),
    "nxdi": Engine(_nxdi, pads_heads=True, capped=False, needs_length=True),
    "transformers-neuronx": Engine(_transformers, pads_heads=False, capped=False, needs_length=True),
}


# --- what the user chose --------------------------------------------------------------------------------------------


def _advice(case: NeuronCase, engine: Engine) -> Iterator[Notice]:
    """Say what speaks against choices of the user's, which are kept."""
    tokens, length = case.fitted.kv_tokens, case.length
    if not engine.capped and tokens is not None and length and case.sequences * length > tokens:
        each, held = f"{case.sequences} sequences of {length} tokens", f"at most {tokens // length} sequences"
        yield notice("PLAN-071", each, held, sequences=str(max(1, tokens // length)))
    if case.given.flag("--quantization") == "neuron_quant":
        yield notice("PLAN-072", "--quantization neuron_quant", "no --quantization")
    method, methods = case.model.quantization, case.thresholds.words("quantization_methods")
    if method and method not in methods:
        yield notice("PLAN-075", method, f"one of {', '.join(methods)}")
    weights = case.model.weights
    if weights and case.facts.memory.available < weights.on_disk:
        yield notice("PLAN-073", gib(case.facts.memory.available), f"at least {gib(weights.on_disk)}")


def _left_out(devices: tuple[Device, ...]) -> tuple[Notice, ...]:
    """Say which devices do not serve."""
    if not devices:
        return ()
    numbers = format_id_list(tuple(device.number for device in devices))
    return (notice("PLAN-074", f"devices {numbers}", "all healthy and free"),)
