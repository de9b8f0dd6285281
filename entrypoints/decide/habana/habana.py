"""vLLM on Gaudi: cards, execution mode, graphs and their warm-up, recipe cache, quantisation, cores. Pure.

The rules are those of the fork's scripts/utils.sh and quickstart/start_vllm.sh (aice/v1.21.0 at 277a33c, aice/v1.22.0
at 1dd4da7 and 17a7946, deepseek_r1 at 016b6bd), its README_GAUDI.md, and the docs of vllm-gaudi 0.26. What differs
between stacks is in their thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.cache.plan import places
from entrypoints.core.errors import DOES_NOT_FIT, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.records import Device, Facts
from entrypoints.decide.habana.graphs import BLOCK, Asked, Warmup, choose_graphs, up
from entrypoints.decide.habana.lengths import (
    LINKED,
    QUANT,
    QUANTIZATION,
    SCRIPT,
    SKIP,
    HabanaCase,
    halved,
    is_pcie,
    mode,
    quantised,
    switches,
    warnings,
)
from entrypoints.decide.records import Decision, Value
from entrypoints.decide.spread.choice import UTILISATION
from entrypoints.decide.spread.demand import LENGTH
from entrypoints.decide.spread.fit import Fit, fit
from entrypoints.decide.spread.layouts import EXPERT
from entrypoints.decide.spread.room import Rules
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

MODULES, MODULE = "HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"
BATCHED, PREFILLS = "--max-num-batched-tokens", "--max-num-prefill-seqs"
SEQUENCES = "--max-num-seqs"
CPUS = "DRYDOCK_CPUS"
_TRIES = 4
"""Fits, at most: one for each doubling of the cards."""


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not. Raises what `fit` raises, and USAGE for variables that are no numbers."""
    case = HabanaCase(profile, _visible(facts, given), model, given)
    chosen = _fitted(case)
    asked = _asked(case, chosen)
    warmup = choose_graphs(asked, case.thresholds, given.env)
    folder = f"{_root(case)}/buckets"
    values = {
        **_parallelism(case, chosen),
        **_utilisation(case),
        **_lengths(case, chosen, asked),
        **_graphs(warmup, folder),
        **_warmup(case, warmup),
        **mode(case, chosen),
        **_cards(chosen.devices),
        **_cores(case, chosen.devices),
        **quantised(case, chosen),
        **switches(case),
    }
    files = {f"{folder}/{name}": text for name, text in warmup.files.items()}
    return Decision(values, (*chosen.findings, *warnings(case, chosen)), files)


def _visible(facts: Facts, given: UserFlags) -> Facts:
    """Leave the cards that the user's own variable names, by module. Raises USAGE."""
    text = given.variable(MODULES) or given.variable(MODULE)
    if text is None or text.lower() == "all":
        return facts
    try:
        wanted = parse_id_list(text)
    except ValueError as error:
        raise EntrypointError(USAGE, f"{MODULES}={text}: expected module numbers, such as 0,1,2,3") from error
    there = {device.module_id for device in facts.devices}
    missing = [module for module in wanted if module not in there]
    if missing:
        known = ", ".join(str(module) for module in sorted(module for module in there if module is not None))
        raise EntrypointError(USAGE, f"{MODULES}={text}: no module {missing[0]} is here", f"there are {known}")
    return facts._replace(devices=tuple(device for device in facts.devices if device.module_id in wanted))


def _parallelism(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Return what `fit` chose, without expert parallelism for the models that the vendor takes out of it."""
    without = (UTILISATION, *((EXPERT,) if case.named("no_expert_parallel") else ()))
    return {name: value for name, value in chosen.values.items() if name not in without}


# --- cards and memory -----------------------------------------------------------------------------------------------


def _fitted(case: HabanaCase) -> Fit:
    """Choose cards, parallelism and lengths."""
    pcie = is_pcie(case.facts.devices) and not case.thresholds.number("host_nic")
    try:
        return _settled(case, pcie=pcie)
    except EntrypointError as error:
        linked = "; more than four Gaudi2E cards work together over host NICs only: the -hnic image"
        smaller = halved(case) if error.code == DOES_NOT_FIT else ""
        hint = f"{error.hint}{linked if pcie else ''}{smaller}"
        raise EntrypointError(error.code, error.message, hint) from error


def _settled(case: HabanaCase, *, pcie: bool) -> Fit:
    """Fit again until what stays free for graphs goes with the number of cards.

    On Gaudi --gpu-memory-utilization is a share of what is free once the weights are loaded, and a share of that goes
    to graphs: what both leave unused follows from the weights of one card, which follow from the number of cards.
    """
    given = case.given._replace(flags={name: flag for name, flag in case.given.flags.items() if name != UTILISATION})
    model, ranks, unused = _of_usual_length(case), 0, 0
    for _ in range(_TRIES):
        chosen = fit(case.facts, model, given, _rules(case, unused, pcie=pcie))
        if chosen.tensor * chosen.pipeline == ranks:
            break
        ranks = chosen.tensor * chosen.pipeline
        unused = _unused(case, ranks)
    return chosen


def _of_usual_length(case: HabanaCase) -> ModelFacts:
    """Return the model, no longer than the manual's usual length where a prompt must fit one step.

    What the user says of lengths, by flag or by range, is taken as it is.
    """
    geometry, usual = case.model.geometry, case.thresholds.whole("usual_length")
    said = case.given.flag(LENGTH) or (case.given.intents.input and case.given.intents.output)
    if said or not case.thresholds.number("whole_prompts") or not (geometry and geometry.max_length):
        return case.model
    return case.model._replace(geometry=geometry._replace(max_length=min(usual, geometry.max_length)))


def _unused(case: HabanaCase, ranks: int) -> int:
    """Return the bytes of one card that utilisation and graphs keep from the KV cache."""
    thresholds, given = case.thresholds, case.given
    text = given.flag(UTILISATION)
    share = thresholds.number("usable_share") if text is None else _number(text, UTILISATION)
    graphs = _share(given, "VLLM_GRAPH_RESERVED_MEM", thresholds.number("graph_memory_share"))
    weights = case.model.weights.loaded(_element(case)) // ranks if case.model.weights else 0
    free = _memory(case) - thresholds.bytes("unavailable_gib") - thresholds.bytes("profile_gib") - weights
    return int(max(0, free) * (1 - share * (1 - graphs)))


def _memory(case: HabanaCase) -> int:
    """Return the bytes of the smallest card; 0 where nothing tells."""
    return min((device.memory_total or 0 for device in case.facts.devices), default=0)


def _element(case: HabanaCase) -> int:
    """Return the bytes of a weight: one where a calibration makes it fp8."""
    return 1 if case.given.variable(QUANT) is not None or case.given.flag(QUANTIZATION) == "inc" else 2


def _rules(case: HabanaCase, unused: int, *, pcie: bool) -> Rules:
    thresholds, memory = case.thresholds, _memory(case)
    sizes = tuple(int(size) for size in thresholds.words("tensor_sizes"))
    element = _element(case)
    return Rules(
        usable=1 - thresholds.bytes("unavailable_gib") / memory if memory else thresholds.number("usable_share"),
        reserved=unused,
        activations=thresholds.bytes("profile_gib"),
        element=element,
        kv_element=1 if element == 1 and not case.named("bfloat16_cache") else 2,
        block=BLOCK,
        sizes=tuple(size for size in sizes if size <= LINKED) if pcie else sizes,
        pipeline=bool(thresholds.number("pipeline")),
        expert="tp",
        data=bool(thresholds.number("data_parallel")),
        chunk=1 << 20 if thresholds.number("whole_prompts") else thresholds.whole("batched_tokens"),
    )


def _utilisation(case: HabanaCase) -> dict[str, Value]:
    if case.given.flag(UTILISATION) is not None:
        return {}
    share = f"{case.thresholds.number('usable_share'):g}"
    instead = ("more: what graphs and collectives take beside their share ends the server", "less: a smaller KV cache")
    return {UTILISATION: Value(share, "of what is free once weights are loaded and a trial run has ended", instead)}


def _share(given: UserFlags, variable: str, default: float) -> float:
    text = given.variable(variable)
    return default if text is None else _number(text, variable)


def _number(text: str, name: str) -> float:
    """Parse a share. Raises USAGE."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise EntrypointError(USAGE, f"{name} {text}: expected a share from 0 to 1")
    return share


def _cards(devices: tuple[Device, ...]) -> dict[str, Value]:
    """Name the cards by module, which is how Gaudi's runtime counts; the order is the kernel's, not the modules'."""
    modules = sorted(device.module_id for device in devices if device.module_id is not None)
    if len(modules) != len(devices):
        return {}
    pairs = ", ".join(f"{device.number} is module {device.module_id}" for device in devices)
    because = f"the cards that were chosen, by module: {pairs}"
    if len(modules) == 1:
        return {MODULE: Value(str(modules[0]), because)}
    return {MODULES: Value(",".join(map(str, modules)), because, ("all: others' cards would be taken too",))}


def _cores(case: HabanaCase, devices: tuple[Device, ...]) -> dict[str, Value]:
    """Bind to the cores beside the cards, a part of the node's for each: what numactl does in the vendor's scripts."""
    nodes = {device.node for device in devices}
    node = nodes.pop() if len(nodes) == 1 else None
    if node is None:
        return {}
    cores = [cpu.id for cpu in case.facts.cpus if cpu.node == node and cpu.id == min(cpu.siblings)]
    mates = [device.number for device in case.facts.devices if device.node == node]
    each = len(cores) // len(mates)
    if not each:
        return {}
    places = (mates.index(device.number) for device in devices)
    bound = sorted(core for place in places for core in cores[place * each : (place + 1) * each])
    because = f"{each} cores of NUMA node {node} for each of its {len(mates)} cards; the engine is bound by its CPU"
    return {CPUS: Value(format_id_list(tuple(bound)), because, ("none: threads move to the other node's memory",))}


# --- lengths and graphs ---------------------------------------------------------------------------------------------


def _asked(case: HabanaCase, chosen: Fit) -> Asked:
    thresholds, given = case.thresholds, case.given
    length = chosen.length or thresholds.whole("usual_length")
    sequences = chosen.sequences or _sequences(case, chosen)
    whole, least = bool(thresholds.number("whole_prompts")), thresholds.whole("batched_tokens")
    budget = given.number(BATCHED) or (up(max(length, least), BLOCK) if whole else least)
    prompts = given.number(PREFILLS) or _prompts(case, budget, sequences)
    blocks = chosen.kv_tokens // BLOCK if chosen.kv_tokens else None
    return Asked(length, sequences, min(prompts, sequences), budget, given.intents, blocks, whole)


def _sequences(case: HabanaCase, chosen: Fit) -> int:
    """Return the manual's usual batch, or as many sequences of the wished lengths as the KV cache holds."""
    usual, intents = case.thresholds.whole("decode_sequences"), case.given.intents
    if not (intents.input and intents.output and chosen.kv_tokens):
        return usual
    typical = max(1, (sum(intents.input) + sum(intents.output)) // 2)
    return max(1, min(usual, chosen.kv_tokens // typical))


def _prompts(case: HabanaCase, budget: int, sequences: int) -> int:
    """Return how many prompts one step computes: few answer soonest, a full step's worth computes most."""
    shortest = case.given.intents.input[0] if case.given.intents.input else 1
    fixed = case.thresholds.whole("prefill_sequences")
    if not fixed:  # 1.21 filled a step with as many of the shortest as it holds
        return max(1, min(budget // shortest, sequences))
    if case.given.intents.optimize == "throughput":
        return max(1, min(case.thresholds.whole("batched_tokens") // up(shortest, BLOCK), sequences))
    return fixed


def _lengths(case: HabanaCase, chosen: Fit, asked: Asked) -> dict[str, Value]:
    thresholds, values = case.thresholds, {}
    if not chosen.sequences:
        because = "the manual's usual batch for decoding"
        if asked.sequences < thresholds.whole("decode_sequences"):
            because = "as many sequences of the wished lengths as the KV cache holds: more would be preempted"
        values[SEQUENCES] = Value(str(asked.sequences), because, ("256, vLLM's own: twice the graphs to warm up",))
    own = case.model.geometry.max_length if case.model.geometry else None
    if chosen.length and own and chosen.length < own and not {LENGTH} & {*chosen.values, *case.given.flags}:
        because = "the manual's usual length: a prompt is computed in one step, and each length is a graph more"
        values[LENGTH] = Value(str(chosen.length), because, (f"{own}, the model's own: --max-model-len asks for it",))
    if thresholds.number("whole_prompts") and chosen.length:
        because = f"a prompt is computed in one step: as many tokens as the longest, and no fewer than {SCRIPT} takes"
        values[BATCHED] = Value(str(asked.budget), because)
    if thresholds.number("prefill_flag"):
        because = "one prompt at a time answers soonest" if asked.prompts == 1 else "a step's worth of short prompts"
        instead = ("more: longer waits for the first token; --optimize throughput allows them",)
        values[PREFILLS] = Value(str(asked.prompts), because, instead if asked.prompts == 1 else ())
    return values


def _graphs(warmup: Warmup, folder: str) -> dict[str, Value]:
    """Return the buckets' variables; a file's name becomes its path."""
    return {
        name: value._replace(value=f"{folder}/{value.value}") if value.value in warmup.files else value
        for name, value in warmup.values.items()
    }


def _warmup(case: HabanaCase, warmup: Warmup) -> dict[str, Value]:
    """Say how long the warm-up takes, and keep what it compiles."""
    seconds = warmup.graphs * case.thresholds.number("seconds_per_graph")
    again = seconds * case.thresholds.number("recipe_share")
    because = f"{warmup.graphs} graphs are compiled before the first request: about {_time(seconds)}" if seconds else ""
    because = because or "graphs are compiled before the first request"
    instead = (f"true: each of {warmup.graphs} shapes is compiled when a request first needs it",)
    kept = f"; with the recipes that are kept, about {_time(again)}" if seconds else ""
    return {SKIP: Value("false", because + kept, instead)}


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - both in two digits


def _root(case: HabanaCase) -> str:
    return places(case.given.env, case.facts.mounts, case.facts.user[0], local_model=True).shared
