"""vLLM on Gaudi: cards, execution mode, graphs and their warm-up, quantisation, cores. Pure.

The rules are from the fork's scripts/utils.sh and quickstart/start_vllm.sh (aice/v1.21.0 at 277a33c, aice/v1.22.0
at 1dd4da7 and 17a7946, deepseek_r1 at 016b6bd), its README_GAUDI.md, and the docs of vllm-gaudi 0.26. Differences
between stacks are in their thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.cache.plan import choose_cache_folders
from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import DOES_NOT_FIT, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.records import Device, Facts, Notice, Value
from entrypoints.core.text import format_count
from entrypoints.decide.habana.execution_modes import (
    LINKED,
    NICS,
    QUANT,
    SKIP,
    HabanaCase,
    choose_execution_mode,
    choose_quantisation,
    find_gaudi_notices,
    halving_hint,
    is_pcie,
    keeps_bfloat16_cache,
    model_settings,
)
from entrypoints.decide.habana.graphs import BLOCK, Warmup, choose_graphs
from entrypoints.decide.habana.lengths import choose_gaudi_lengths, make_graph_demand
from entrypoints.decide.habana.manual_limits import check_manual_limits
from entrypoints.decide.habana.profiler import choose_gaudi_profiler
from entrypoints.decide.parallelism.devices import find_smallest_memory
from entrypoints.decide.parallelism.fit import Fit, fit_model
from entrypoints.decide.parallelism.hosts import CARDS, make_reach_fields
from entrypoints.decide.parallelism.rules import Rules
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BLOCK_SIZE, EXPERT, LENGTH, NODES, QUANTIZATION, UTILISATION
from entrypoints.request.vllm_flags import UserFlags

MODULES, MODULE = "HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"
CPUS = "DRYDOCK_CPUS"
_TRIES = 4
"""The largest number of fits: one for each doubling of the cards."""


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set. Raises as `fit_model`, and USAGE for invalid numbers."""
    case = HabanaCase(profile, _select_user_modules(facts, user_flags), model, user_flags)
    card_fit = _fit_cards(case)
    demand = make_graph_demand(case, card_fit)
    warmup = choose_graphs(demand, case.thresholds, user_flags.env)
    folder = f"{_find_cache_root(case)}/buckets"
    values = {
        **_choose_parallelism(case, card_fit),
        **_choose_gaudi_utilisation(case, card_fit),
        **choose_gaudi_lengths(case, card_fit, demand),
        **_resolve_bucket_files(warmup, folder),
        **_choose_warmup(case, warmup),
        **choose_execution_mode(case, card_fit),
        **_choose_gaudi_modules(card_fit.devices),
        **_choose_bound_cores(case, card_fit.devices),
        **choose_quantisation(case, card_fit),
        **model_settings(case),
        **choose_gaudi_profiler(case, _find_cache_root(case)),
    }
    files = {f"{folder}/{name}": text for name, text in warmup.files.items()}
    findings = (
        *card_fit.findings,
        *find_gaudi_notices(case, card_fit),
        *check_manual_limits(case, card_fit, demand),
        *_slow_start(case, warmup),
    )
    return Decision(values, findings, files, card_fit.uses)


def _select_user_modules(facts: Facts, user_flags: UserFlags) -> Facts:
    """Return the facts with the cards whose modules the user's variable names. Raises USAGE."""
    text = user_flags.variable(MODULES) or user_flags.variable(MODULE)
    if text is None or text.lower() == "all":
        return facts
    try:
        selected = parse_id_list(text)
    except ValueError as error:
        raise EntrypointError(USAGE, f"{MODULES}={text}: expected module numbers, such as 0,1,2,3") from error
    modules = {device.module_id for device in facts.devices}
    missing = [module for module in selected if module not in modules]
    if missing:
        module_numbers = ", ".join(map(str, sorted(module for module in modules if module is not None)))
        raise EntrypointError(
            USAGE, f"{MODULES}={text}: no module {missing[0]}", f"available modules: {module_numbers}"
        )
    return facts._replace(devices=tuple(device for device in facts.devices if device.module_id in selected))


def _choose_parallelism(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Return the values of `fit_model`, without expert parallelism for models that the vendor excludes from it."""
    excluded = {UTILISATION}
    if case.named("no_expert_parallel"):
        excluded.add(EXPERT)
    return {name: value for name, value in chosen.values.items() if name not in excluded}


# --- cards and memory -----------------------------------------------------------------------------------------------


def _fit_cards(case: HabanaCase) -> Fit:
    """Choose cards, parallelism and lengths."""
    pcie = is_pcie(case.facts.devices)
    if pcie and _prefers_links(case):
        try:
            return _repeat_fit(case, pcie=True)
        except EntrypointError as error:
            if error.code not in (DOES_NOT_FIT, USAGE):  # of more cards than that, or of sizes that the user set
                raise
    pcie = pcie and not case.thresholds.number("host_nic")
    try:
        return _repeat_fit(case, pcie=pcie)
    except EntrypointError as error:
        linked = "; more than four Gaudi2E cards need host NICs: use --target gaudi2e, whose image has libfabric"
        smaller = halving_hint(case) if error.code == DOES_NOT_FIT else ""
        hint = f"{error.hint}{linked if pcie else ''}{smaller}"
        raise EntrypointError(error.code, error.message, hint) from error


def _prefers_links(case: HabanaCase) -> bool:
    """Tell whether to stay within the cards that direct links join, if the model fits: no network card is here.

    A server on several hosts has one, whether or not the container shows it.
    """
    if (case.user_flags.number(NODES) or 1) > 1:
        return False
    small = any(int(size) <= LINKED for size in case.thresholds.words("tensor_sizes"))
    return small and bool(case.thresholds.number("host_nic")) and case.facts.grants.get(NICS) is False


def _repeat_fit(case: HabanaCase, *, pcie: bool) -> Fit:
    """Repeat the fit until the memory reserved for graphs matches the number of cards.

    On Gaudi --gpu-memory-utilization is a share of the memory that is free after loading the weights, and a share of
    that goes to graphs. Both depend on the weights of one card, and so on the number of cards.
    """
    user_flags = case.user_flags._replace(
        flags={name: flag for name, flag in case.user_flags.flags.items() if name != UTILISATION}
    )
    model, ranks, unused = _of_usual_length(case), 0, 0
    for _ in range(_TRIES):
        fit_result = fit_model(case.facts, model, user_flags, _make_habana_rules(case, unused, pcie=pcie))
        if fit_result.tensor * fit_result.pipeline == ranks:
            break
        ranks = fit_result.tensor * fit_result.pipeline
        unused = _compute_withheld_bytes(case, ranks, fit_result.length)
    return fit_result


def _of_usual_length(case: HabanaCase) -> ModelFacts:
    """Return the model, limited to the manual's usual length if a prompt must fit in one step.

    Lengths that the user sets, by flag or by ranges, are kept.
    """
    geometry, usual = case.model.geometry, case.thresholds.whole("usual_length")
    if case.user_flags.flag(LENGTH) or (case.user_flags.intents.input and case.user_flags.intents.output):
        return case.model
    if not case.thresholds.number("whole_prompts") or not geometry or not geometry.max_length:
        return case.model
    return case.model._replace(geometry=geometry._replace(max_length=min(usual, geometry.max_length)))


def _compute_withheld_bytes(case: HabanaCase, ranks: int, length: int | None) -> int:
    """Return the bytes of one card that utilisation and graphs withhold from the KV cache."""
    thresholds, user_flags = case.thresholds, case.user_flags
    text = user_flags.flag(UTILISATION)
    share = _usable_share(case, length) if text is None else _parse_share(text, UTILISATION)
    graphs = _read_share_variable(user_flags, "VLLM_GRAPH_RESERVED_MEM", thresholds.number("graph_memory_share"))
    weights = case.model.weights.loaded(_read_weight_bytes(case)) // ranks if case.model.weights else 0
    unavailable = thresholds.bytes("unavailable_gib") + thresholds.bytes("profile_gib")
    free = find_smallest_memory(case.facts) - unavailable - weights
    return int(max(0, free) * (1 - share * (1 - graphs)))


def _usable_share(case: HabanaCase, length: int | None) -> float:
    """Return the stack's share of the memory, which is smaller for long requests where the vendor says so."""
    long = case.thresholds.whole("long_request")
    return case.thresholds.number("usable_share_of_long" if 0 < long < (length or 0) else "usable_share")


def _read_weight_bytes(case: HabanaCase) -> int:
    """Return the bytes of a weight: one if a calibration converts it to fp8."""
    return 1 if case.user_flags.variable(QUANT) is not None or case.user_flags.flag(QUANTIZATION) == "inc" else 2


def _make_habana_rules(case: HabanaCase, unused: int, *, pcie: bool) -> Rules:
    thresholds, memory = case.thresholds, find_smallest_memory(case.facts)
    sizes = tuple(int(size) for size in thresholds.words("tensor_sizes"))
    element = _read_weight_bytes(case)
    between = {"link": CARDS} if is_pcie(case.facts.devices) else {}
    return Rules(
        **{**make_reach_fields(thresholds), **between},
        usable=1 - thresholds.bytes("unavailable_gib") / memory if memory else thresholds.number("usable_share"),
        reserved=unused,
        activations=thresholds.bytes("profile_gib"),
        element=element,
        kv_element=1 if element == 1 and not keeps_bfloat16_cache(case) else 2,
        block=case.user_flags.number(BLOCK_SIZE) or BLOCK,
        sizes=tuple(size for size in sizes if size <= LINKED) if pcie else sizes,
        pipeline=bool(thresholds.number("pipeline")),
        expert="tp",
        data=bool(thresholds.number("data_parallel")),
        sequences=thresholds.whole("decode_sequences"),
        chunk=1 << 20 if thresholds.number("whole_prompts") else thresholds.whole("batched_tokens"),
    )


def _choose_gaudi_utilisation(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    if case.user_flags.flag(UTILISATION) is not None:
        return {}
    number = _usable_share(case, chosen.length)
    share = f"{number:g}"
    instead = ("more: graphs and collectives would run out of memory and end the server", "less: a smaller KV cache")
    because = "share of the memory that is free after loading the weights and a trial run"
    if number != case.thresholds.number("usable_share"):
        because += f"; requests of more than {case.thresholds.whole('long_request')} tokens need more for activations"
    return {UTILISATION: Value(share, because, instead)}


def _read_share_variable(user_flags: UserFlags, variable: str, default: float) -> float:
    text = user_flags.variable(variable)
    return default if text is None else _parse_share(text, variable)


def _parse_share(text: str, name: str) -> float:
    """Parse a share. Raises USAGE."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise EntrypointError(USAGE, f"{name} {text}: expected a share from 0 to 1")
    return share


def _choose_gaudi_modules(devices: tuple[Device, ...]) -> dict[str, Value]:
    """Select the cards by module, as Gaudi's runtime does; the kernel numbers cards in another order."""
    modules = sorted(device.module_id for device in devices if device.module_id is not None)
    if len(modules) != len(devices):
        return {}
    pairs = ", ".join(f"{device.number} is module {device.module_id}" for device in devices)
    because = f"the chosen cards by module: {pairs}"
    if len(modules) == 1:
        return {MODULE: Value(str(modules[0]), because)}
    return {MODULES: Value(",".join(map(str, modules)), because, ("all: would also use the cards of other servers",))}


def _choose_bound_cores(case: HabanaCase, devices: tuple[Device, ...]) -> dict[str, Value]:
    """Bind to cores of the cards' NUMA node, an equal part for each card, as the vendor's scripts do with numactl."""
    nodes = {device.node for device in devices}
    node = nodes.pop() if len(nodes) == 1 else None
    if node is None:
        return {}
    cores = [cpu.id for cpu in case.facts.cpus if cpu.node == node and cpu.id == min(cpu.siblings)]
    on_node = [device.number for device in case.facts.devices if device.node == node]
    cores_per_card = len(cores) // len(on_node)
    if not cores_per_card:
        return {}
    places = (on_node.index(device.number) for device in devices)
    bound = sorted(core for place in places for core in cores[place * cores_per_card : (place + 1) * cores_per_card])
    cards = format_count(len(on_node), "card")
    shared = f"{format_count(cores_per_card, 'core')} of NUMA node {node} for each of its {cards}"
    because = f"{shared}; CPU speed limits the engine"
    return {
        CPUS: Value(
            format_id_list(tuple(bound)),
            because,
            ("unset: threads move to another node and use its memory over the link",),
        )
    }


# --- graphs ---------------------------------------------------------------------------------------------------------


def _resolve_bucket_files(warmup: Warmup, folder: str) -> dict[str, Value]:
    """Return the variables of the buckets, with a file's name replaced by its path."""
    return {
        name: value._replace(value=f"{folder}/{value.value}") if value.value in warmup.files else value
        for name, value in warmup.values.items()
    }


def _estimate_warmup(case: HabanaCase, warmup: Warmup) -> tuple[float, float]:
    """Return how long the warm-up takes with an empty and with a filled recipe cache."""
    slow = "float8_" if _computes_float8(case) else ""
    seconds = warmup.graphs * case.thresholds.number(f"seconds_per_{slow}graph")
    return seconds, seconds * case.thresholds.number(f"{slow}recipe_share")


def _computes_float8(case: HabanaCase) -> bool:
    return _read_weight_bytes(case) == 1 or case.model.quantization == "fp8"


def _choose_warmup(case: HabanaCase, warmup: Warmup) -> dict[str, Value]:
    """Enable the warm-up, with its duration as the reason."""
    seconds, with_cache = _estimate_warmup(case, warmup)
    because = "graphs are compiled before the first request"
    if seconds:
        because = (
            f"{warmup.graphs} graphs are compiled before the first request: about {_format_time(seconds)}, or about"
            f" {_format_time(with_cache)} with cached recipes"
        )
    instead = (f"true: each of {warmup.graphs} shapes would be compiled during the first request that needs it",)
    return {SKIP: Value("false", because, instead)}


def _slow_start(case: HabanaCase, warmup: Warmup) -> Iterator[Notice]:
    """Yield a notice if loading and warm-up may take longer than the time that the image's health check allows."""
    if case.is_on(SKIP):
        return
    minutes = math.ceil(_estimate_warmup(case, warmup)[0] / 60) + case.thresholds.whole("loading_minutes")
    allowed = int(case.profile["run"]["start"]["value"].removesuffix("m"))
    if minutes > allowed:
        duration = f"{minutes} minutes for {warmup.graphs} graphs and the weights"
        yield make_notice("HPU-050", duration, f"at most {allowed}", minutes=str(minutes), failures=str(6 * minutes))


def _format_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"  # noqa: PLR2004 - both in two digits


def _find_cache_root(case: HabanaCase) -> str:
    return choose_cache_folders(case.user_flags.env, case.facts.mounts, case.facts.user[0], local_model=True).shared
