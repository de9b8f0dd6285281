"""vLLM on Neuron: cores, lengths, and the shapes that graphs are compiled for. Pure.

Three engines of vLLM on Neuron differ in how they keep the KV cache and name their buckets: transformers-neuronx
(vLLM 0.3 to 0.7), NxD Inference (the plugin to 0.5, vLLM 0.9 to 0.16) and vLLM Neuron (the plugin from SDK 2.31, vLLM
0.21 and later). The stack's threshold `engine` selects one. Source: Neuron SDK documentation 2.32, vLLM User Guide for
NxD Inference, and vLLM Neuron's configuration options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.records import Device, Facts, Notice, Use, Value
from entrypoints.core.text import format_count
from entrypoints.decide.neuron.cores import COUNT, VISIBLE, as_cores, choose_cores, idle_cores
from entrypoints.decide.parallelism.fit import MOST_SEQUENCES, Fit, Rules, fit_model
from entrypoints.decide.parallelism.hosts import make_reach_fields
from entrypoints.decide.records import Decision, Thresholds, gib
from entrypoints.facts.derived import available_memory
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    BLOCK_SIZE,
    BLOCKS,
    CONFIG,
    DATA,
    EXPERT,
    LENGTH,
    PREFIXES,
    SEQUENCES,
    TENSOR,
    UTILISATION,
)
from entrypoints.request.vllm_flags import UserFlags

KV_CAP = "VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION"

GUIDE = "vLLM User Guide for NxD Inference"


class NeuronCase(NamedTuple):
    """The input of an engine's own settings."""

    facts: Facts
    model: ModelFacts
    user_flags: UserFlags
    thresholds: Thresholds
    fitted: Fit
    length: int | None
    """Effective --max-model-len."""
    sequences: int
    """Effective --max-num-seqs."""

    @property
    def block(self) -> int:
        """Tokens of one KV cache block."""
        return self.user_flags.number(BLOCK_SIZE) or self.thresholds.whole("block")

    @property
    def chunk(self) -> int:
        """Tokens of a prompt that are computed at once."""
        most = self.user_flags.number(BATCHED) or self.thresholds.whole("prefill_tokens")
        return most if self.length is None else min(most, self.length)


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises HOST without a usable device or its memory, MODEL, DOES_NOT_FIT, USAGE.
    """
    thresholds = Thresholds(profile["thresholds"])
    engine = ENGINES[str(thresholds.table["engine"]["value"])]
    cores = as_cores(facts, user_flags)
    limited, length = _default_length(model, user_flags, thresholds)
    if engine.pads_heads and limited.geometry:
        limited = limited._replace(geometry=limited.geometry._replace(padded=True))
    if user_flags.flag(EXPERT) != "True":  # engines of vLLM Neuron share no experts (its data parallelism design)
        limited = limited._replace(expert_share=0.0)
    rules = _make_neuron_rules(cores.facts, limited, cores.user_flags, thresholds, engine)
    fitted = fit_model(cores.facts, limited, _for_latency(cores.user_flags), rules)
    effective = fitted.length or _unknown_length(thresholds, engine)
    sequences = _choose_batch_size(fitted, effective, user_flags, thresholds)
    case = NeuronCase(facts, model, user_flags, thresholds, fitted, effective, sequences)
    values = {
        "--dtype": Value("bfloat16", "Neuron supports it and float16, whose range some weights exceed"),
        **_choose_neuron_lengths(case, length),
        **_explain_core_ranks(fitted, user_flags),
        **engine.settings(case),
    }
    if not user_flags.variable(COUNT):
        values |= choose_cores(fitted.pool, fitted.devices, fitted.tensor, fitted.data)
    idle = idle_cores(fitted.pool, _list_serving_cores(fitted, values), fitted.tensor)
    findings = (*fitted.findings, *idle, *_find_neuron_notices(case, engine), *_left_out(cores.left_out))
    return Decision(values, findings, uses=tuple(_list_core_uses(cores.facts.devices, fitted, values)))


def _list_core_uses(cores: tuple[Device, ...], fitted: Fit, values: Mapping[str, Value]) -> Iterator[Use]:
    """Yield how each chosen core's memory is used, with the number of its device."""
    cores_by_number = {core.number: core for core in cores}
    for number, use in zip(_list_serving_cores(fitted, values), fitted.uses, strict=False):
        core = cores_by_number[number]
        yield use._replace(number=core.card or 0, total=core.memory_total or use.total)


def _list_serving_cores(fitted: Fit, values: Mapping[str, Value]) -> tuple[int, ...]:
    """Return the numbers of the cores that serve."""
    if VISIBLE in values:
        return parse_id_list(str(values[VISIBLE].value))
    return tuple(core.number for core in fitted.devices)


# --- what fits ------------------------------------------------------------------------------------------------------


def _make_neuron_rules(
    facts: Facts, model: ModelFacts, user_flags: UserFlags, thresholds: Thresholds, engine: Engine
) -> Rules:
    """Return the rules for these devices.

    vLLM Neuron uses spare cores for data parallelism (its features guide); the other engines leave that to several
    servers behind a router. Query heads are padded by NxD Inference only; vLLM Neuron replicates KV heads, and splits
    query heads evenly (its tensor parallelism design).

    For throughput, NxD Inference leaves most of a core's memory to the cache: AWS's recipes for throughput (Llama 3.3
    70B: TP 32, DP 2; Qwen3 235B: TP 64) leave 64 and 53 %, and half as many cores would leave 47 and 25 %. vLLM Neuron
    caps the cache at a share of its own, and its features guide says to take the smallest size that fits and meets the
    latency: without an aim more than 8 ranks have a good part of the weights each, as in its tutorials.
    """
    sliced = engine.capped and model.architecture not in _PADS_EXPERTS
    architecture = next((device.architecture for device in facts.devices if device.architecture), "")
    sizes = thresholds.table.get(f"tensor_sizes_{architecture}", {}).get("value", ())
    has_aim = user_flags.intents.optimize is not None
    return Rules(
        names_idle=False,  # NRN-004 names cores
        **make_reach_fields(thresholds),
        usable=thresholds.number("usable_share"),
        reserved=0 if engine.capped else thresholds.bytes("runtime_memory_gib"),
        activations=0 if engine.capped else thresholds.bytes("activations_gib"),
        block=thresholds.whole("block"),
        sizes=tuple(int(size) for size in sizes),
        pads_heads=engine.pads_heads,
        own_classes=True,
        pipeline=False,
        expert="needed" if sliced else "",
        expert_lanes=thresholds.whole("expert_lanes") if sliced else 0,
        cache_most=_read_kv_share(user_flags, thresholds) if engine.capped else 1.0,
        cache_least=thresholds.bytes("least_cache_gib") if engine.capped else 0,
        wide_read=0 if has_aim or not engine.capped else thresholds.bytes("wide_read_gib"),
        encoder_tokens=thresholds.whole("prefill_tokens" if engine.capped else "unasked_context"),
        cache_share=0.0 if engine.capped else thresholds.number("throughput_cache_share"),
        shortest_context=thresholds.whole("shortest_context"),
        data=engine.data,
        executors=(),
        sequences=thresholds.whole("sequences"),
        chunk=thresholds.whole("prefill_tokens"),
    )


_PADS_EXPERTS = ("GptOssForCausalLM",)
"""Architectures that fill up an expert's width themselves (vLLM Neuron, expert parallelism design: 2880 to 3072)."""

_SEVERAL_SERVERS = (
    "1, and several servers behind a router: the vendor's remedy where data parallelism does not scale (Neuron SDK"
    " 2.32, Llama 3 recipe, known issues)"
)


def _read_kv_share(user_flags: UserFlags, thresholds: Thresholds) -> float:
    """Return the share of its budget to which vLLM Neuron limits the KV cache."""
    try:
        return float(user_flags.variable(KV_CAP) or thresholds.number("kv_share"))
    except ValueError:  # vLLM itself refuses it
        return thresholds.number("kv_share")


def _for_latency(user_flags: UserFlags) -> UserFlags:
    """Return the intents with latency as the default aim: the vendor's recipes use as many cores as help."""
    if user_flags.intents.optimize:
        return user_flags
    return user_flags._replace(intents=user_flags.intents._replace(optimize="latency"))


def _explain_core_ranks(fitted: Fit, user_flags: UserFlags) -> dict[str, Value]:
    """Return the fitted values; the reason explains that a device is a core."""
    engine_settings = (UTILISATION, *(() if user_flags.intents.concurrency else (SEQUENCES,)))  # those of this engine
    values = {name: value for name, value in fitted.values.items() if name not in engine_settings}
    if TENSOR in values:
        because = f"{values[TENSOR].because}; one rank is one logical NeuronCore, and `device` means such a core here"
        if not user_flags.intents.optimize:
            because = f"{because}; latency is the default on Neuron, as in the vendor's recipes"
        values[TENSOR] = values[TENSOR]._replace(because=because)
    if DATA in values:
        instead = (*values[DATA].instead, _SEVERAL_SERVERS)
        values[DATA] = values[DATA]._replace(instead=instead)
    return values


def _default_length(
    model: ModelFacts, user_flags: UserFlags, thresholds: Thresholds
) -> tuple[ModelFacts, Value | None]:
    """Limit the model's length by default: each doubling needs another graph, and KV cache for every sequence."""
    geometry, most = model.geometry, thresholds.whole("unasked_context")
    set_by_user = user_flags.flag(LENGTH) or user_flags.intents.input
    if set_by_user or geometry is None or geometry.max_length is None or geometry.max_length <= most:
        return model, None
    because = "graphs for longer ones are compiled only if you set --max-model-len, or --input-range and --output-range"
    value = Value(
        str(most), because, (f"{geometry.max_length}, the model's own: more graphs, and more KV cache for each",)
    )
    return model._replace(geometry=geometry._replace(max_length=most)), value


def _unknown_length(thresholds: Thresholds, engine: Engine) -> int | None:
    return thresholds.whole("unknown_context") if engine.needs_length else None


def _choose_neuron_lengths(case: NeuronCase, shortened: Value | None) -> dict[str, Value]:
    """Set the length and the number of sequences: the graphs are compiled for both."""
    because = "graphs are compiled for so many sequences at a time; the vendor's examples use 1 to 8"
    batch = Value(str(case.sequences), because)
    values = {SEQUENCES: batch}
    if shortened is not None:
        return values | {LENGTH: shortened}
    if case.length is None:
        return values
    because = "the model's own length"
    if not case.fitted.length:
        because = f"{case.model.unknown}; set {LENGTH} to change it"
    return values | {LENGTH: Value(str(case.length), f"{because}; the graphs are compiled for this length")}


def _choose_batch_size(fitted: Fit, length: int | None, user_flags: UserFlags, thresholds: Thresholds) -> int:
    """Return the number of concurrent sequences: a power of two that fits in the KV cache at full length."""
    if fitted.sequences and (SEQUENCES in user_flags.flags or user_flags.intents.concurrency):
        return fitted.sequences
    most = min(thresholds.whole("sequences"), fitted.sequences or MOST_SEQUENCES)
    cache_sequences = most if fitted.kv_tokens is None or length is None else max(1, fitted.kv_tokens // length)
    return 1 << (min(most, cache_sequences).bit_length() - 1)


# --- compiled shapes ------------------------------------------------------------------------------------------------


def make_doubling_buckets(shortest: int, longest: int) -> tuple[int, ...]:
    """Return the powers of two from `shortest` rounded up, below `longest`, and `longest` itself."""
    sizes = []
    size = 1 << max(0, shortest - 1).bit_length()
    while size < longest:
        sizes.append(size)
        size *= 2
    return (*sizes, longest)


def _list_prompt_buckets(case: NeuronCase, longest: int) -> tuple[int, ...]:
    """Return the prompt lengths that graphs are compiled for, from the shortest of --input-range."""
    smallest = case.thresholds.whole("smallest_bucket")
    if case.user_flags.intents.input is not None:
        smallest = max(smallest, case.user_flags.intents.input[0])
    return make_doubling_buckets(min(smallest, longest), longest)


def _list_buckets(case: NeuronCase, length: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lengths of prompts and of answers that graphs are compiled for."""
    smallest = min(case.thresholds.whole("smallest_bucket"), length)
    return _list_prompt_buckets(case, length), make_doubling_buckets(smallest, length)


def _explain_compilation(case: NeuronCase, graphs: int) -> str:
    """Return the duration of the first compilation as a reason."""
    weights = case.model.weights
    if weights is None:
        return f"the first start compiles {graphs} graphs in some minutes each; the cache keeps them"
    minutes = max(1, round(case.thresholds.number("compile_minutes_per_gib") * weights.loaded(2) / (1 << 30)))
    return f"the first start compiles {graphs} graphs in about {minutes} min; the cache keeps them"


def _dump_json(value: Mapping[str, Any]) -> str:
    import json

    return json.dumps(value)


# --- the engines ----------------------------------------------------------------------------------------------------


def _choose_native_settings(case: NeuronCase) -> dict[str, Value]:
    """Return vLLM Neuron's settings: it sizes its KV cache itself and keeps graphs below VLLM_CACHE_ROOT."""
    prompts, batches = _list_prompt_buckets(case, case.chunk), make_doubling_buckets(1, case.sequences)
    config = {"neuron_config": {"num_batched_tokens_buckets": prompts, "num_seqs_buckets": batches}}
    cap = f"{KV_CAP} limits the KV cache to {case.thresholds.number('kv_share'):.0%} of this share"
    chunk = "prompts are computed in chunks of this size, which must equal the largest bucket"
    return {
        BATCHED: Value(str(case.chunk), chunk),
        CONFIG: Value(_dump_json(config), _explain_compilation(case, len(prompts) + len(batches)), (_SAMPLING,)),
        UTILISATION: Value(f"{case.thresholds.number('usable_share'):g}", cap),
    }


_SAMPLING = "on_device_sampling_config: faster, but supports only greedy sampling, or few sampling parameters"


def _choose_nxdi_settings(case: NeuronCase) -> dict[str, Value]:
    """Return NxD Inference's buckets and block count: it refuses or overruns vLLM's own values."""
    length = case.length or case.thresholds.whole("unknown_context")
    prompts, answers = _list_buckets(case, length)
    override = {
        "enable_bucketing": True,
        "context_encoding_buckets": prompts,
        "token_generation_buckets": answers,
    }
    config = Value(
        _dump_json({"override_neuron_config": override}), _explain_compilation(case, len(prompts) + len(answers))
    )
    return {CONFIG: config, **_choose_block_count(case, length)}


def _choose_block_count(case: NeuronCase, length: int) -> dict[str, Value]:
    """Return the compiled block count for vLLM's scheduler; a batch of one runs without prefix caching."""
    flag = case.user_flags.flags.get(PREFIXES)
    prefix_caching = case.sequences > 1 if flag is None else flag.value is True
    if prefix_caching:
        blocks = -(-length // case.block) * case.sequences
        block_reason = f"{format_count(case.sequences, 'sequence')} of {length} tokens in blocks of {case.block}"
        size = "the best size of a KV cache block for the Neuron kernels with prefix caching"
        return {
            BLOCKS: Value(
                str(blocks), f"{block_reason}; with fewer blocks the engine would write past the end of its cache"
            ),
            BLOCK_SIZE: Value(str(case.block), size),
        }
    because = "without prefix caching a block holds a whole sequence, so there is one block per sequence"
    values = {BLOCKS: Value(str(case.sequences), because)}
    if flag is None:
        because = "prefix caching gives wrong answers with a batch of one (vllm-neuron README, known issues)"
        values[f"--no-{PREFIXES[2:]}"] = Value(value=True, because=because)
    return values


def _choose_transformers_neuronx(case: NeuronCase) -> dict[str, Value]:
    """Return transformers-neuronx's buckets, and a block as long as a sequence: it has no paged attention."""
    length = case.length or case.thresholds.whole("unknown_context")
    prompts, answers = _list_buckets(case, length)
    time = _explain_compilation(case, len(prompts) + len(answers))
    return {
        BLOCK_SIZE: Value(str(length), "transformers-neuronx keeps a sequence in one block"),
        "NEURON_CONTEXT_LENGTH_BUCKETS": Value(",".join(map(str, prompts)), time),
        "NEURON_TOKEN_GEN_BUCKETS": Value(
            ",".join(map(str, answers)), "powers of two, the last with the length of a sequence"
        ),
    }


class Engine(NamedTuple):
    """One of vLLM's engines for Neuron."""

    settings: Callable[[NeuronCase], dict[str, Value]]
    pads_heads: bool
    """Whether the engine pads and replicates heads, so that their number need not be divisible."""
    capped: bool
    """Whether the KV cache is a share of the memory, instead of all remaining memory."""
    needs_length: bool
    """Whether --max-model-len must be set."""
    data: bool = False
    """Whether the engine supports --data-parallel-size."""


ENGINES = {
    "native": Engine(_choose_native_settings, pads_heads=False, capped=True, needs_length=False, data=True),
    "nxdi": Engine(_choose_nxdi_settings, pads_heads=True, capped=False, needs_length=True),
    "transformers-neuronx": Engine(_choose_transformers_neuronx, pads_heads=False, capped=False, needs_length=True),
}


# --- notices --------------------------------------------------------------------------------------------------------


def _find_neuron_notices(case: NeuronCase, engine: Engine) -> Iterator[Notice]:
    """Yield notices about settings of the user that are kept but have a cost."""
    tokens, length = case.fitted.kv_tokens, case.length
    if not engine.capped and tokens is not None and length and case.sequences * length > tokens:
        batch = f"{format_count(case.sequences, 'sequence')} of {length} tokens"
        capacity = f"at most {format_count(tokens // length, 'sequence')}"
        yield make_notice("PLAN-071", batch, capacity, sequences=str(max(1, tokens // length)))
    if case.user_flags.flag("--quantization") == "neuron_quant":
        yield make_notice("PLAN-072", "--quantization neuron_quant", "no --quantization")
    method, methods = case.model.quantization, case.thresholds.words("quantization_methods")
    if method and method not in methods:
        yield make_notice("PLAN-075", method, f"one of {', '.join(methods)}")
    yield from _unsupported_settings(case)
    weights = case.model.weights
    free = available_memory(case.facts)
    if weights and free < weights.on_disk:
        yield make_notice("PLAN-073", gib(free), f"at least {gib(weights.on_disk)}")


_CHUNKED = "--enable-chunked-prefill"
_SAME_TYPES = {"float": "float32", "half": "float16"}
"""vLLM's other names of types."""


def _unsupported_settings(case: NeuronCase) -> Iterator[Notice]:
    """Yield a notice for a type, and for chunked prefill, if the stack's SDK lacks them."""
    text = case.user_flags.flag("--dtype") or "auto"
    dtype, types = _SAME_TYPES.get(text, text), case.thresholds.words("number_types")
    if types and dtype not in ("auto", *types):
        yield make_notice("NRN-005", f"--dtype {text}", f"one of {', '.join(types)}")
    if case.user_flags.flag(_CHUNKED) == "True" and not case.thresholds.number("chunked_prefill"):
        yield make_notice("NRN-006", _CHUNKED, f"no {_CHUNKED}")


def _left_out(devices: tuple[Device, ...]) -> tuple[Notice, ...]:
    """Return a notice with the devices that do not serve."""
    if not devices:
        return ()
    numbers = format_id_list(tuple(device.number for device in devices))
    return (make_notice("PLAN-074", f"devices {numbers}", "all healthy and free"),)
