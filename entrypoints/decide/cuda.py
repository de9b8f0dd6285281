"""vLLM on NVIDIA GPUs: devices, type, batches, NUMA binding, all-reduce. Pure.

Sources: vLLM's platforms/cuda.py, engine/arg_utils.py, utils/numa_utils.py and
distributed/device_communicators/custom_all_reduce.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import DOES_NOT_FIT, REFUSED, EntrypointError
from entrypoints.core.records import Device, Facts, Link, Notice, Value
from entrypoints.decide.decision_input import Case, element_bytes
from entrypoints.decide.kernels_by_architecture import choose_kernels
from entrypoints.decide.parallelism.experts import beside_adapters, experts_on_gpus
from entrypoints.decide.parallelism.fit import Concession, Fit, Rules, fit_by_concessions, fit_model
from entrypoints.decide.parallelism.hosts import CARDS, make_reach_fields
from entrypoints.decide.parallelism.offload import SHARED
from entrypoints.decide.parallelism.profiled import read_profiling
from entrypoints.decide.records import Decision, gib
from entrypoints.facts.derived import derive_facts
from entrypoints.facts.probes.cuda.gpu_models import is_unified
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import ALL_REDUCE, BATCHED, EAGER, GRAPHS, NODES, NUMA, OPTIMIZATION, SEQUENCES
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "CUDA_VISIBLE_DEVICES"
LIBRARIES = "LD_LIBRARY_PATH"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

_FP8 = ("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp8")
_FP4 = ("modelopt_fp4", "nvfp4")
_PAIR = 2
_OF_GRAPHS = (EAGER, GRAPHS, OPTIMIZATION)
_FEWEST_TOKENS, _FEWEST_SEQUENCES = 512, 16
"""Tokens and sequences of a step for a model that nearly fits: the smallest with which a GPU still answers several
requests at a time."""
SPARSE = "sparse-attention"
"""What --vllm-accepts names to overrule the check of it."""
_CARDS = {"9": "H100, H200, GH200", "10": "B200, B300, GB200", "12": "RTX PRO 6000, RTX 5090, GB10"}
"""First number of a compute capability → cards of it. Source: NVIDIA, CUDA GPU compute capability."""
_NEWEST_MAJOR = "12"
_JOINED, _JOINED_HOSTS = "GB10", 8
"""A device, so many of whose hosts share each layer over their network cards: ConnectX-7 of 200 Gb/s is fast for a
memory of 273 GB/s. Source: NVIDIA's DGX Spark playbooks, vLLM on two (TP 2) and on four or more over a switch (TP 4);
spark-arena/eugr-recipes, recipes/8x-spark-cluster (TP 8)."""


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set. Raises the errors of `fit_model`."""
    case = Case(profile, _choose_usable_gpus(facts), model, user_flags)
    _check_sparse_attention(case)
    dtype = choose_dtype(case)
    fit_result, smaller = _fit_steps(case, beside_adapters(make_cuda_rules(case, dtype), user_flags, profile["vllm"]))
    values = {
        "--dtype": dtype,
        **smaller,
        **fit_result.values,
        **choose_driver(case),
        **choose_visible(case, fit_result),
        **({} if smaller else choose_batches(case, fit_result)),
        **choose_numa(case, fit_result),
        **choose_all_reduce(case, fit_result),
        **choose_eager(case, fit_result),
        **choose_kernels(profile, {device.architecture for device in fit_result.devices}, model, user_flags),
    }
    return Decision(values, (*fit_result.findings, *_find_cuda_notices(case, fit_result)), uses=fit_result.uses)


def _fit_steps(case: Case, gpu_rules: Rules) -> tuple[Fit, dict[str, Value]]:
    """Fit with the usual steps, else with the smallest, which take less memory; return the settings of these too.

    The smallest are chosen if only they have room for the model, or for its whole length. Raises the errors of
    `fit_model`.
    """
    smaller = _smaller_steps(case, gpu_rules)
    try:
        usual = fit_model(case.facts, case.model, case.user_flags, gpu_rules)
    except EntrypointError as error:
        fit_result = _fit_with_less(case, gpu_rules, smaller) if error.code == DOES_NOT_FIT else None
        if fit_result is None:
            raise
        return fit_result
    if usual.is_shortened and smaller:
        longest = _fit_smallest(case, gpu_rules)
        if not longest.is_shortened:
            return longest, smaller
    return usual, {}


def _fit_with_less(case: Case, gpu_rules: Rules, smaller: dict[str, Value]) -> tuple[Fit, dict[str, Value]] | None:
    """Fit with the smallest steps, then also without graphs, then also with the fewest sequences; None if none fits."""
    if smaller:
        with suppress(EntrypointError):
            return _fit_smallest(case, gpu_rules), smaller
    least = _make_smallest_rules(case, gpu_rules) if smaller else gpu_rules
    conceded = fit_by_concessions(case.facts, case.model, case.user_flags, least, _list_concessions(case, least))
    return (conceded[0], {**smaller, **conceded[1]}) if conceded else None


def _list_concessions(case: Case, least: Rules) -> Iterator[Concession]:
    """Yield what gives way to a model that nearly fits: graphs, then the batch."""
    settings: dict[str, Value] = {}
    profiling, geometry = least.profiling, case.model.geometry
    if profiling and geometry and profiling.graphs and not any(name in case.user_flags.flags for name in _OF_GRAPHS):
        graphs = gib(profiling.graphs + geometry.layers * profiling.graphs_of_layer)
        because = f"captured graphs would take up to {graphs}, and the model fits only without them"
        settings[EAGER] = Value(value=True, because=because, instead=("not set: faster decoding, but does not fit",))
        least = least._replace(profiling=profiling._replace(graphs=0, graphs_of_layer=0))
        yield Concession({**settings}, least)
    if not case.thresholds.whole("batched_tokens_small"):  # a step computes whole prompts
        return
    for name, fewest, usual in ((BATCHED, _FEWEST_TOKENS, least.chunk), (SEQUENCES, _FEWEST_SEQUENCES, least.running)):
        if name not in case.user_flags.flags and fewest < usual:
            because = f"the model fits only with the activations and logits of so few, not of {usual}"
            settings[name] = Value(str(fewest), because, (f"{usual}: does not fit",))
    yield Concession(settings, least._replace(chunk=_FEWEST_TOKENS, running=_FEWEST_SEQUENCES))


def _fit_smallest(case: Case, wanted: Rules) -> Fit:
    """Fit with the smallest steps. Raises the errors of `fit_model`."""
    return fit_model(case.facts, case.model, case.user_flags, _make_smallest_rules(case, wanted))


def _make_smallest_rules(case: Case, gpu_rules: Rules) -> Rules:
    chunk, running = (case.thresholds.whole(name) for name in ("batched_tokens_small", "running_small"))
    return gpu_rules._replace(chunk=chunk or gpu_rules.chunk, running=running)


def _smaller_steps(case: Case, gpu_rules: Rules) -> dict[str, Value]:
    """Return the settings of the smallest steps that the user did not set; none if the steps are the smallest."""
    sizes = (
        (BATCHED, "batched_tokens_small", gpu_rules.chunk, "tokens"),
        (SEQUENCES, "running_small", gpu_rules.running, "sequences"),
    )
    settings = {}
    for name, threshold, usual, unit in sizes:
        least = case.thresholds.whole(threshold)
        if 0 < least < usual and name not in case.user_flags.flags:
            because = f"a step of {usual} {unit}, vLLM's default, leaves no room for the KV cache"
            settings[name] = Value(str(least), because, (f"{usual}: does not fit",))
    return settings


def _choose_usable_gpus(facts: Facts) -> Facts:
    """Return the facts with whole GPUs only, or with the largest MIG instance: CUDA gives a process only one."""
    instances = [device for device in facts.devices if device.card is not None]
    if not instances or len(facts.devices) == 1:
        return facts
    whole_gpus = tuple(device for device in facts.devices if device.card is None)
    if whole_gpus:
        return facts._replace(devices=whole_gpus)
    largest = max(instances, key=lambda device: (device.memory_total or 0, -device.number))
    return facts._replace(devices=(largest,))


def _check_sparse_attention(case: Case) -> None:
    """Raise REFUSED if vLLM has no kernel of the model's sparse latent attention for any of the GPUs."""
    geometry, majors = case.model.geometry, case.thresholds.words("sparse_attention_on")
    architectures = {device.architecture for device in case.facts.devices}
    if geometry is None or not (geometry.sparse and geometry.latent) or SPARSE in case.user_flags.accepted:
        return
    if (
        not architectures
        or "" in architectures
        or {architecture.partition(".")[0] for architecture in architectures} & {*majors}
    ):
        return
    supported_cards = ", ".join(f"{major}.x ({_CARDS.get(major, '')})" for major in majors)
    message = f"{case.model.name}: vLLM {case.profile['vllm']} has no kernel of sparse latent attention for compute"
    hint = f"use GPUs of {supported_cards}, or a dense model; --vllm-accepts {SPARSE} starts it all the same"
    if _NEWEST_MAJOR not in majors:
        hint = f"{hint}; vLLM since 0.24 takes {_NEWEST_MAJOR}.x too (--target cuda)"
    raise EntrypointError(REFUSED, f"{message} capability {', '.join(sorted(architectures))}", hint)


def make_cuda_rules(case: Case, dtype: Value) -> Rules:
    """Return the rules for NVIDIA's GPUs."""
    numbers = case.thresholds
    unified, memory = _has_unified_memory(case.facts), case.facts.memory
    process_bytes = numbers.bytes("unified_processes_gib")
    pairs = all(_JOINED in device.name for device in case.facts.devices)
    joined = {"link": CARDS} if pairs and (case.user_flags.number(NODES) or 1) <= _JOINED_HOSTS else {}
    return Rules(
        **{**make_reach_fields(numbers), **joined},
        usable=numbers.number("unified_share" if unified else "usable_share"),
        reserved=numbers.bytes("reserved_gib"),
        activations=numbers.bytes("activations_gib"),
        element=element_bytes(case.user_flags.flag("--dtype") or str(dtype.value)),
        expert=experts_on_gpus(case.user_flags),
        shortest_context=numbers.whole("shortest_context"),
        memory=memory.total if unified else None,
        free=max(0, memory.available - process_bytes) if unified else None,
        executors=numbers.words("executors"),
        chunk=_choose_step_tokens(case) or numbers.whole("activations_chunk"),
        profiling=read_profiling(numbers, case.profile["vllm"], eager=case.user_flags.flag(EAGER) == "True"),
        running=numbers.whole("running_large" if _is_large(case) else "running_small"),
        driver=0 if unified or case.facts.devices[0].card is not None else numbers.bytes("driver_gib"),
        offload="" if unified else SHARED,
    )


def _has_unified_memory(facts: Facts) -> bool:
    """Return whether the GPUs share the host's memory (GB10, Jetson): nvidia-smi lists them without a memory size.

    Another GPU without a size is one that the tool may not read, as in a pod with a MIG instance.
    """
    return all(
        device.architecture and is_unified(device.name) and device.memory_total is None for device in facts.devices
    )


# --- type -----------------------------------------------------------------------------------------------------------


def choose_dtype(case: Case) -> Value:
    """Choose the model's own type, or float16 if a GPU does not support bfloat16."""
    oldest = _find_lowest_capability(case.facts)
    if not oldest:
        return Value("auto", "the driver does not report the GPUs' compute capability, so vLLM chooses the type")
    if oldest < _parse_capability(str(case.thresholds.table["bfloat16_from"]["value"])):
        capability = ".".join(map(str, oldest))
        instead = ("auto: vLLM refuses a bfloat16 model on this GPU", "float32: twice the memory, and no tensor cores")
        return Value("float16", f"compute capability {capability} does not support bfloat16", instead)
    instead = ("float16: a smaller range than bfloat16 for the same memory", "float32: twice the memory")
    return Value("auto", "the model's published type; every GPU supports it", instead)


def _find_lowest_capability(facts: Facts) -> tuple[int, ...]:
    """Return the lowest compute capability; empty if it is unknown for any GPU."""
    versions = [_parse_capability(device.architecture) for device in facts.devices]
    return min(versions) if versions and all(versions) else ()


def _parse_capability(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


# --- driver ---------------------------------------------------------------------------------------------------------


def choose_driver(case: Case) -> dict[str, Value]:
    """Load NVIDIA's forward compatibility libraries, if the user enabled them and the driver is older.

    vLLM's own variable sets the path in a process that runs already; the dynamic linker reads it only at its start.
    """
    kernel = case.facts.kernel
    driver, compat = case.facts.versions.get("driver", ""), kernel.get("cuda_compat", "")
    if (
        not compat
        or "gpu_brand" in kernel
        or case.user_flags.variable(LIBRARIES)
        or _parse_capability(driver) >= _parse_capability(compat)
    ):
        return {}
    because = f"the driver is {driver}, and CUDA's libraries of {compat} (VLLM_ENABLE_CUDA_COMPATIBILITY) run on it"
    return {
        LIBRARIES: Value(kernel["cuda_compat_folder"], because, ("the driver's own: too old for this image's CUDA",))
    }


# --- devices --------------------------------------------------------------------------------------------------------


def choose_visible(case: Case, fit_result: Fit) -> dict[str, Value]:
    """Set the visible GPUs unless they are the first ones, or the user set them."""
    devices = fit_result.devices
    if case.user_flags.variable(VISIBLE) is not None:
        return {}
    if len(devices) == 1 and devices[0].card is not None:
        because = f"{devices[0].name}: CUDA lets a process use one MIG instance"
        value = Value(devices[0].uuid, because, ("several: MIG instances do not support tensor parallelism",))
        return {VISIBLE: value} if devices[0].uuid else {}
    numbers = [device.number for device in devices]
    if numbers == list(range(len(numbers))):
        return {}
    because = f"the chosen GPUs in rank order, {_link_kinds(case, devices)}"
    return {VISIBLE: Value(",".join(map(str, numbers)), because)}


def _link_kinds(case: Case, chosen: tuple[Device, ...]) -> str:
    kinds = sorted({link.kind for link in _list_chosen_links(case, chosen)})
    return f"linked by {', '.join(kinds)}" if kinds else "no known links between them"


def _list_chosen_links(case: Case, chosen: tuple[Device, ...]) -> Iterator[Link]:
    numbers = {device.number for device in chosen}
    return (link for link in case.facts.links if link.first in numbers and link.second in numbers)


# --- batches --------------------------------------------------------------------------------------------------------


def choose_batches(case: Case, fit_result: Fit) -> dict[str, Value]:
    """Choose the number of tokens per step from the GPU's memory and --optimize."""
    tokens = _choose_step_tokens(case)
    if not tokens or BATCHED in case.user_flags.flags:
        return {}
    aim, small = case.user_flags.intents.optimize, case.thresholds.whole("batched_tokens_small")
    because = f"vLLM's default for a server on {fit_result.devices[0].name}"
    if aim == "throughput":
        because = "--optimize throughput: fewer and larger steps compute long prompts"
    elif aim == "latency":
        because = "--optimize latency: running requests wait less for the prompts of new ones"
    instead = () if tokens == small else (f"{small}: lower latency between tokens, lower throughput",)
    return {BATCHED: Value(str(tokens), because, instead)}


def _choose_step_tokens(case: Case) -> int:
    """Return the number of tokens of one step; 0 leaves it to vLLM."""
    numbers, aim = case.thresholds, case.user_flags.intents.optimize
    if aim == "latency":
        return numbers.whole("batched_tokens_small")
    if aim == "throughput":
        return numbers.whole("batched_tokens_throughput")
    return numbers.whole("batched_tokens_large" if _is_large(case) else "batched_tokens_small")


def _is_large(case: Case) -> bool:
    """Return whether vLLM treats the GPUs as large: at least 70 GiB, except A100."""
    first = case.facts.devices[0]
    memory = case.facts.memory.total if first.memory_total is None else first.memory_total
    return memory >= case.thresholds.bytes("large_device_gib") and "a100" not in first.name.lower()


# --- NUMA and links -------------------------------------------------------------------------------------------------


def choose_numa(case: Case, fit_result: Fit) -> dict[str, Value]:
    """Bind workers to their GPUs' NUMA nodes if vLLM supports it and the container allows it."""
    derived, facts = derive_facts(case.facts), case.facts
    nodes = [device.node for device in fit_result.devices]
    all_cpus_usable = {cpu for node in facts.nodes for cpu in node.cpus} == {cpu.id for cpu in facts.cpus}
    if NUMA not in case.user_flags.known or NUMA in case.user_flags.flags:
        return {}
    if None in nodes or derived.get("numa_nodes", 0) < _PAIR or not all_cpus_usable:
        return {}
    if derived.get("mempolicy") != "allowed":
        return {}
    because = f"each worker runs on its GPU's NUMA node: {', '.join(sorted({str(node) for node in nodes}))}"
    instead = ("not set: weights and kernel launches would cross the link between processors",)
    return {NUMA: Value(value=True, because=because, instead=instead)}


def choose_all_reduce(case: Case, fit_result: Fit) -> dict[str, Value]:
    """Disable vLLM's custom all-reduce for more than two GPUs without NVLink, as vLLM itself would."""
    kinds = {link.kind for link in _list_chosen_links(case, fit_result.devices)}
    if fit_result.tensor <= _PAIR or not kinds or all(kind.startswith("NV") for kind in kinds):
        return {}
    if ALL_REDUCE in case.user_flags.flags:
        return {}
    because = f"vLLM's custom all-reduce over more than two GPUs needs NVLink; these have {', '.join(sorted(kinds))}"
    return {ALL_REDUCE: Value(value=True, because=because, instead=("enabled: vLLM disables it with a warning",))}


# --- graphs ---------------------------------------------------------------------------------------------------------


def choose_eager(case: Case, fit_result: Fit) -> dict[str, Value]:
    """Capture no graphs on a small GPU that weights fill: what is left is worth more as KV cache."""
    numbers = case.thresholds
    if any(name in case.user_flags.flags for name in _OF_GRAPHS):
        return {}
    limit, share = numbers.bytes("eager_device_gib"), numbers.number("eager_weights_share")
    full = [use for use in fit_result.uses if use.total <= limit and use.weights > share * use.total]
    if not full:
        return {}
    weight_share = f"weights take {full[0].weights / full[0].total:.0%} of {gib(full[0].total)}"
    because = f"{weight_share}: graphs would take a part of the rest, and capturing them can run out of memory"
    return {EAGER: Value(value=True, because=because, instead=("not set: faster decoding, if graphs fit too",))}


# --- notices --------------------------------------------------------------------------------------------------------


def _find_cuda_notices(case: Case, fit_result: Fit) -> Iterator[Notice]:
    """Yield notices about the user's settings or the model's type on these GPUs."""
    yield from _check_allocator(case)
    yield from _awq_without_kernel(case, fit_result)
    yield from _emulated_type(case, fit_result)
    if (case.user_flags.flag("--dtype") or "").lower() == "bfloat16" and choose_dtype(case).value == "float16":
        yield make_notice("CUDA-031", "--dtype bfloat16", "--dtype float16")


def _check_allocator(case: Case) -> Iterator[Notice]:
    values = (case.user_flags.variable(name) for name in ALLOCATOR)
    conf = next((value for value in values if value), "")
    if "expandable_segments:True" in conf and "--enable-sleep-mode" in case.user_flags.flags:
        yield make_notice("CUDA-032", conf, "no expandable_segments:True")


def _awq_without_kernel(case: Case, fit_result: Fit) -> Iterator[Notice]:
    """Yield a notice if vLLM has no AWQ kernel for GPUs of this compute capability."""
    method, oldest = case.model.quantization, _find_lowest_capability(case.facts)
    least_capability = str(case.thresholds.table["awq_from"]["value"])
    if method == "awq" and oldest and oldest < _parse_capability(least_capability):
        capability = f"compute capability {'.'.join(map(str, oldest))}"
        yield make_notice(
            "CUDA-034", capability, f"{least_capability} or later", method=method, device=fit_result.devices[0].name
        )


def _emulated_type(case: Case, fit_result: Fit) -> Iterator[Notice]:
    """Yield a notice if the GPUs do not compute the weights' type, so that each step unpacks the weights."""
    method, oldest = case.model.quantization, _find_lowest_capability(case.facts)
    if method in _FP8:
        name = "fp8_from"
    elif method in _FP4:
        name = "fp4_from"
    else:
        return
    if not oldest:
        return
    least_capability = str(case.thresholds.table[name]["value"])
    if oldest < _parse_capability(least_capability):
        capability = f"compute capability {'.'.join(map(str, oldest))}"
        yield make_notice(
            "CUDA-033", capability, f"{least_capability} or later", method=method, device=fit_result.devices[0].name
        )
