"""NVIDIA GPUs: devices, type, batches, NUMA binding, all-reduce, caches. Pure.

What vLLM makes of these settings was read in its platforms/cuda.py, engine/arg_utils.py, utils/numa_utils.py and
distributed/device_communicators/custom_all_reduce.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.records import Device, Facts, Link, Notice
from entrypoints.decide.case import Case, element_bytes
from entrypoints.decide.records import Decision, Value
from entrypoints.decide.spread.fit import Fit, Rules, fit
from entrypoints.facts.derived import derive
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
BATCHED = "--max-num-batched-tokens"
NUMA = "--numa-bind"
ALL_REDUCE = "--disable-custom-all-reduce"

_FP8 = ("fp8", "fbgemm_fp8", "modelopt", "modelopt_fp8")
_FP4 = ("modelopt_fp4", "nvfp4")
_PAIR = 2


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not. Raises what `fit` raises."""
    case = Case(profile, _usable(facts), model, given)
    dtype = choose_dtype(case)
    found = fit(case.facts, model, given, rules(case, dtype))
    values = {
        "--dtype": dtype,
        **found.values,
        **choose_visible(case, found),
        **choose_batches(case, found),
        **choose_numa(case, found),
        **choose_all_reduce(case, found),
    }
    return Decision(values, (*found.findings, *_advice(case, found)))


def _usable(facts: Facts) -> Facts:
    """Return the facts with one MIG instance at most, since CUDA gives a process no more."""
    parts = [device for device in facts.devices if device.card is not None]
    if not parts or len(facts.devices) == 1:
        return facts
    largest = max(parts, key=lambda device: (device.memory_total or 0, -device.number))
    whole = tuple(device for device in facts.devices if device.card is None)
    return facts._replace(devices=whole or (largest,))


def rules(case: Case, dtype: Value) -> Rules:
    """Return what NVIDIA's GPUs allow."""
    numbers = case.thresholds
    unified = _told(case.facts) and all(device.memory_total is None for device in case.facts.devices)
    return Rules(
        usable=numbers.number("unified_share" if unified else "usable_share"),
        reserved=numbers.bytes("reserved_gib"),
        activations=numbers.bytes("activations_gib"),
        element=element_bytes(case.given.flag("--dtype") or str(dtype.value)),
        expert="needed",
        shortest_context=numbers.whole("shortest_context"),
        memory=case.facts.memory.total if unified else None,
        executors=numbers.words("executors"),
        chunk=_batch(case) or numbers.whole("activations_chunk"),
    )


def _told(facts: Facts) -> bool:
    """Tell whether the tool answered: a GPU without a figure then shares the host's memory (GB10, Jetson)."""
    return all(device.architecture for device in facts.devices)


# --- type -----------------------------------------------------------------------------------------------------------


def choose_dtype(case: Case) -> Value:
    """Choose the model's own type, or float16 where a GPU does not compute bfloat16."""
    oldest = _capability(case.facts)
    if not oldest:
        return Value("auto", "the driver does not tell the GPUs' compute capability, so vLLM decides")
    if oldest < _version(str(case.thresholds.table["bfloat16_from"]["value"])):
        shown = ".".join(map(str, oldest))
        instead = ("auto: vLLM refuses a bfloat16 model here", "float32: twice the memory, and no tensor cores")
        return Value("float16", f"compute capability {shown} has no bfloat16", instead)
    instead = ("float16: less range than bfloat16, for the same memory", "float32: twice the memory")
    return Value("auto", "the type that the model was published in; every GPU here computes it", instead)


def _capability(facts: Facts) -> tuple[int, ...]:
    """Return the lowest compute capability; empty where it is not known of each GPU."""
    found = [_version(device.architecture) for device in facts.devices]
    return min(found) if found and all(found) else ()


def _version(text: str) -> tuple[int, ...]:
    parts = text.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


# --- devices --------------------------------------------------------------------------------------------------------


def choose_visible(case: Case, found: Fit) -> dict[str, Value]:
    """Name the chosen GPUs, where they are not simply the first ones; what the user named stays."""
    chosen = found.devices
    if case.given.variable(VISIBLE) is not None:
        return {}
    if len(chosen) == 1 and chosen[0].card is not None:
        because = f"{chosen[0].name}: CUDA gives a process one MIG instance"
        value = Value(chosen[0].uuid, because, ("several: no tensor parallelism over instances",))
        return {VISIBLE: value} if chosen[0].uuid else {}
    numbers = [device.number for device in chosen]
    if numbers == list(range(len(numbers))):
        return {}
    because = f"the chosen GPUs, in the order of their ranks; {_kinds(case, chosen)}"
    return {VISIBLE: Value(",".join(map(str, numbers)), because)}


def _kinds(case: Case, chosen: tuple[Device, ...]) -> str:
    kinds = sorted({link.kind for link in _links(case, chosen)})
    return f"linked by {', '.join(kinds)}" if kinds else "no links between them are known"


def _links(case: Case, chosen: tuple[Device, ...]) -> Iterator[Link]:
    here = {device.number for device in chosen}
    return (link for link in case.facts.links if link.first in here and link.second in here)


# --- batches --------------------------------------------------------------------------------------------------------


def choose_batches(case: Case, found: Fit) -> dict[str, Value]:
    """Choose how many tokens a step computes, by the GPU's memory and the aim."""
    tokens = _batch(case)
    if not tokens or BATCHED in case.given.flags:
        return {}
    aim, small = case.given.intents.optimize, case.thresholds.whole("batched_tokens_small")
    because = {
        "throughput": "--optimize throughput: long prompts in fewer, larger steps",
        "latency": "--optimize latency: running answers wait less for a new prompt's steps",
    }.get(aim or "", f"vLLM's own for a server on {found.devices[0].name}")
    instead = () if tokens == small else (f"{small}: shorter waits between tokens, less throughput",)
    return {BATCHED: Value(str(tokens), because, instead)}


def _batch(case: Case) -> int:
    """Return the tokens of one step; 0 leaves them to vLLM."""
    numbers, aim = case.thresholds, case.given.intents.optimize
    if aim == "latency":
        return numbers.whole("batched_tokens_small")
    if aim == "throughput":
        return numbers.whole("batched_tokens_throughput")
    return numbers.whole("batched_tokens_large" if _is_large(case) else "batched_tokens_small")


def _is_large(case: Case) -> bool:
    """Tell whether vLLM takes the GPUs for large ones: from 70 GiB, but no A100."""
    first = case.facts.devices[0]
    memory = case.facts.memory.total if first.memory_total is None else first.memory_total
    return memory >= case.thresholds.bytes("large_device_gib") and "a100" not in first.name.lower()


# --- placing --------------------------------------------------------------------------------------------------------


def choose_numa(case: Case, found: Fit) -> dict[str, Value]:
    """Bind workers to their GPUs' NUMA nodes, where vLLM can and finds what it needs."""
    derived, facts = derive(case.facts), case.facts
    known = NUMA in case.given.known and NUMA not in case.given.flags
    nodes = [device.node for device in found.devices]
    every = {cpu for node in facts.nodes for cpu in node.cpus} == {cpu.id for cpu in facts.cpus}
    if not known or None in nodes or derived.get("numa_nodes", 0) < _PAIR or not every:
        return {}
    if derived.get("mempolicy") != "allowed":
        return {}
    because = f"each worker runs beside its GPU: NUMA nodes {', '.join(sorted({str(node) for node in nodes}))}"
    return {
        NUMA: Value(value=True, because=because, instead=("left out: weights and launches cross the processors' link",))
    }


def choose_all_reduce(case: Case, found: Fit) -> dict[str, Value]:
    """Say beforehand what vLLM would find out: its own all-reduce needs NVLink between more than two GPUs."""
    kinds = {link.kind for link in _links(case, found.devices)}
    if found.tensor <= _PAIR or not kinds or all(kind.startswith("NV") for kind in kinds):
        return {}
    if ALL_REDUCE in case.given.flags:
        return {}
    because = f"vLLM's own all-reduce needs NVLink between more than two GPUs; these have {', '.join(sorted(kinds))}"
    return {
        ALL_REDUCE: Value(value=True, because=because, instead=("left on: vLLM turns it off itself, with a warning",))
    }


# --- what is to be said ---------------------------------------------------------------------------------------------


def _advice(case: Case, found: Fit) -> Iterator[Notice]:
    """Yield what speaks against the user's choices, or the model's type, on these GPUs."""
    yield from _allocator(case)
    yield from _refused(case, found)
    yield from _unpacked(case, found)
    if (case.given.flag("--dtype") or "").lower() == "bfloat16" and choose_dtype(case).value == "float16":
        yield notice("CUDA-031", "--dtype bfloat16", "--dtype float16")


def _allocator(case: Case) -> Iterator[Notice]:
    conf = next((value for name in ALLOCATOR if (value := case.given.variable(name))), "")
    if "expandable_segments:True" in conf and "--enable-sleep-mode" in case.given.flags:
        yield notice("CUDA-032", conf, "no expandable_segments:True")


def _refused(case: Case, found: Fit) -> Iterator[Notice]:
    """Yield that vLLM has no kernel for the weights' type on GPUs that are this old."""
    method, oldest = case.model.quantization, _capability(case.facts)
    needed = str(case.thresholds.table["awq_from"]["value"])
    if method == "awq" and oldest and oldest < _version(needed):
        capability = f"compute capability {'.'.join(map(str, oldest))}"
        yield notice("CUDA-034", capability, f"{needed} or later", method=method, device=found.devices[0].name)


def _unpacked(case: Case, found: Fit) -> Iterator[Notice]:
    """Yield a note where weights of a type that the GPUs do not compute are unpacked for each step."""
    method, oldest = case.model.quantization, _capability(case.facts)
    name = "fp8_from" if method in _FP8 else "fp4_from" if method in _FP4 else ""
    if not name or not oldest:
        return
    needed = str(case.thresholds.table[name]["value"])
    if oldest < _version(needed):
        capability = f"compute capability {'.'.join(map(str, oldest))}"
        yield notice("CUDA-033", capability, f"{needed} or later", method=method, device=found.devices[0].name)
