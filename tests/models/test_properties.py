"""What holds for every plan: recorded hosts x models x aims, and pools of which devices are held, broken or smaller.

Sizes are computed again here, as lower bounds, from the model's configuration and the facts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoints.core.errors import EntrypointError
from entrypoints.core.parse import parse_id_list
from entrypoints.core.records import Device, Facts, Finding, ServePlan
from entrypoints.core.units import GIB
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import CACHE_TYPE, DTYPE, LENGTH, UTILISATION
from entrypoints.request.intents import NONE
from tests.evidence.decisions import AIMS, SHOWN
from tests.support.hosts import expect
from tests.support.machines import Machine
from tests.support.planned import Spread, host, models, plan, spread

HOSTS = expect.names()
WITH_DEVICES = [name for name in HOSTS if host(name).facts.devices]
CASES = 300
HELD = 0.5
"""Share of a device's memory above which somebody else's process holds it in these tests."""
CORES, BINDING = "NEURON_RT_VISIBLE_CORES", "VLLM_CPU_OMP_THREADS_BIND"
OTHER_SHARES = ("habana", "neuron")
"""Accelerators whose --gpu-memory-utilization is not a share of the whole memory: Gaudi's is of what weights and graphs
leave, and vLLM Neuron adds what it reserves outside."""
ESTIMATED = 0.97
"""Of a weight count that is an estimate, what is certain (test_models)."""


def planned(machine: Machine, model: ModelFacts, aim: str | None) -> ServePlan | None:
    """Return the plan; None if it is refused."""
    try:
        return plan(machine, model, (), NONE._replace(optimize=aim))
    except EntrypointError:
        return None


@cache
def plan_on_host(name: str, model: str, aim: str | None) -> ServePlan | None:
    """Return the plan of a recorded host as it is, which several tests ask."""
    return planned(host(name), models()[model], aim)


def plans(name: str) -> Iterator[tuple[str, ModelFacts, ServePlan]]:
    """Yield every plan of a recorded host, with what was asked."""
    for model, aim in product(SHOWN, AIMS):
        if serve_plan := plan_on_host(name, model, aim):
            yield f"{model} {aim or 'no aim'}", models()[model], serve_plan


# --- nothing lies idle without a word -------------------------------------------------------------------------------


def is_free(device: Device) -> bool:
    """Tell whether a device could serve."""
    used_share = (device.memory_used or 0) / (device.memory_total or 1)
    return device.health.lower() in ("", "ok") and device.busy is not True and used_share < HELD


def slots(facts: Facts) -> dict[int, Device]:
    """Return what holds one rank each: devices by number, the cores of Neuron devices counted through."""
    if facts.accelerator != "neuron":
        return {device.number: device for device in facts.devices}
    return dict(enumerate(device for device in facts.devices for _ in range(device.cores)))


def serving(facts: Facts, serve_plan: ServePlan) -> set[int]:
    """Return the slots that a plan uses."""
    if facts.accelerator == "neuron":
        return set(parse_id_list(next(reason.value for reason in serve_plan.reasons if reason.setting == CORES)))
    return {use.number for use in serve_plan.uses}


def named(profile: dict[str, Any], serve_plan: ServePlan) -> set[int]:
    """Return the devices that the plan's own findings name: `2-7`, `devices 1-7 of 8`, `3: NVIDIA H100`."""
    checks = {check["id"] for check in profile["checks"]}
    return {number for finding in serve_plan.findings if finding.id not in checks for number in _numbers(finding)}


def _numbers(finding: Finding) -> Iterator[int]:
    for part in finding.found.split("; "):
        leading = re.match(r"(?:(?:NUMA )?[a-z]+ )?(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)(?=$|:| of )", part)
        if leading:
            yield from parse_id_list(leading.group(1))


def idle(machine: Machine, serve_plan: ServePlan) -> list[int]:
    """Return the free slots that neither serve nor are named."""
    free = {number for number, device in slots(machine.facts).items() if is_free(device)}
    return sorted(free - serving(machine.facts, serve_plan) - named(machine.profile, serve_plan))


@pytest.mark.parametrize("name", WITH_DEVICES)
def test_no_free_device_lies_idle_without_a_finding(name: str) -> None:
    idling = ((question, idle(host(name), serve_plan)) for question, _, serve_plan in plans(name))

    assert [(question, numbers) for question, numbers in idling if numbers] == []


def nodes_without_threads(facts: Facts, serve_plan: ServePlan) -> list[int]:
    """Return the NUMA nodes whose cores no thread is bound to; unbound threads run on all."""
    bound = {reason.value for reason in serve_plan.reasons if reason.setting == BINDING}
    if not bound or bound & {"nobind", "auto", "all"} or facts.cgroup.cpu_quota is not None:
        return []
    cpus = {cpu for ranks in bound for rank in ranks.split("|") for cpu in parse_id_list(rank)}
    here = {cpu.id for cpu in facts.cpus}
    usable = [node for node in facts.nodes if node.memory_total and here & set(node.cpus)]
    return [node.id for node in usable if not cpus & set(node.cpus)]


@pytest.mark.parametrize("name", [name for name in HOSTS if name not in WITH_DEVICES])
def test_no_numa_node_lies_idle_without_a_finding(name: str) -> None:
    there = host(name)
    idling = (
        (question, set(nodes_without_threads(there.facts, serve_plan)) - named(there.profile, serve_plan))
        for question, _, serve_plan in plans(name)
    )

    assert [(question, sorted(nodes)) for question, nodes in idling if nodes] == []


# --- what is planned fits -------------------------------------------------------------------------------------------


def setting(serve_plan: ServePlan, name: str) -> str:
    """Return the value of a setting; empty if the plan leaves it to vLLM."""
    return next((reason.value for reason in serve_plan.reasons if reason.setting == name), "")


def is_known(model: ModelFacts) -> bool:
    """Tell whether the model's sizes are known, so that they can be computed again; else only vLLM knows them."""
    return model.geometry is not None and model.weights is not None


def least_weights(model: ModelFacts, serve_plan: ServePlan, parallelism: Spread) -> float:
    """Return the least bytes of a rank's weights: experts divided among all ranks, the rest among one engine's."""
    assert model.weights
    size = 4 if setting(serve_plan, DTYPE) in ("float32", "float") else 2
    loaded = model.weights.loaded(size) * (ESTIMATED if model.estimated else 1)
    experts = loaded * model.expert_share
    world = parallelism.tensor * parallelism.pipeline
    return (loaded - experts) / world + experts / (world * parallelism.data)


def least_cache(model: ModelFacts, serve_plan: ServePlan, parallelism: Spread) -> float:
    """Return the least bytes of a rank's cache: a sequence of full length, in the layers that attend to all tokens."""
    geometry = model.geometry
    assert geometry
    length = int(setting(serve_plan, LENGTH) or geometry.max_length or 0)
    size = 1 if setting(serve_plan, CACHE_TYPE).startswith(("fp8", "int8")) else 2
    layers = (geometry.layers - geometry.cacheless - geometry.sliding_layers) / parallelism.pipeline
    layer_elements = geometry.latent or 2 * max(1, geometry.kv_heads // parallelism.tensor) * geometry.head_size
    return layers * length * layer_elements * size


def misfits(there: Machine, model: ModelFacts, serve_plan: ServePlan) -> Iterator[str]:
    """Yield what does not fit: a device's account above its memory, or below what a rank certainly needs."""
    parallelism = spread(serve_plan)
    totals = {device.number: device.memory_total for device in there.facts.devices}
    per_device = Counter(use.number for use in serve_plan.uses) if there.facts.accelerator == "neuron" else {}
    weights, cache = least_weights(model, serve_plan, parallelism), least_cache(model, serve_plan, parallelism)
    reserved = float(there.profile["thresholds"].get("reserved_gib", {}).get("value", 0)) * GIB
    usable = float(setting(serve_plan, UTILISATION) or 1) if there.facts.accelerator not in OTHER_SHARES else 1
    for use in serve_plan.uses:
        total = totals.get(use.number)
        shared = use.total * per_device.get(use.number, 1)
        if use.weights + use.other + use.cache > use.total * usable or (total and shared > total):
            yield f"{use.number}: {use.weights} + {use.other} + {use.cache} of {use.total}"
        if use.other < reserved:
            yield f"{use.number}: {use.other} beside weights and cache, {reserved:.0f} are reserved"
        if use.weights < int(weights):
            yield f"{use.number}: weights {use.weights}, at least {weights:.0f}"
        if use.cache < cache:
            yield f"{use.number}: cache {use.cache}, one sequence needs {cache:.0f}"


@pytest.mark.parametrize("name", HOSTS)
def test_what_is_planned_fits(name: str) -> None:
    there = host(name)
    wrong = (
        (question, [*misfits(there, model, serve_plan)])
        for question, model, serve_plan in plans(name)
        if is_known(model)
    )

    assert [(question, lines) for question, lines in wrong if lines] == []


def pads_heads(machine: Machine) -> bool:
    """Tell whether the engine pads what does not divide (NxD Inference on Neuron)."""
    return bool(machine.profile["thresholds"].get("engine", {}).get("value") == "nxdi")


@pytest.mark.parametrize("name", HOSTS)
def test_sizes_divide_the_model_and_multiply_to_the_devices(name: str) -> None:
    wrong = []
    for question, model, serve_plan in plans(name):
        parallelism = spread(serve_plan)
        if not model.geometry:
            continue
        if not (pads_heads(host(name)) or model.geometry.heads % parallelism.tensor == 0):
            wrong.append(f"{question}: {model.geometry.heads} heads over {parallelism.tensor}")
        if serve_plan.uses and parallelism.tensor * parallelism.pipeline * parallelism.data != len(serve_plan.uses):
            wrong.append(f"{question}: {parallelism.short()} on {len(serve_plan.uses)} devices")

    assert wrong == []


# --- aims are opposites ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HOSTS)
def test_latency_takes_wider_engines_and_throughput_more_of_them(name: str) -> None:
    wrong = []
    for model in SHOWN:
        fast, many = (plan_on_host(name, model, aim) for aim in ("latency", "throughput"))
        if not fast or not many:
            continue
        wide, narrow = spread(fast), spread(many)
        if wide.length != narrow.length:  # the larger steps for throughput can leave too little memory for the length
            continue
        if wide.tensor * wide.pipeline < narrow.tensor * narrow.pipeline or narrow.data < wide.data:
            wrong.append(f"{model}: latency {wide.short()}, throughput {narrow.short()}")

    assert wrong == []


# --- pools as they are found ----------------------------------------------------------------------------------------


STATES = ("as it is", "as it is", "as it is", "busy", "held", "broken", "smaller", "half")


@st.composite
def pools(draw: st.DrawFn) -> tuple[str, tuple[str, ...]]:
    """A recorded host, and the state of each of its devices."""
    name = draw(st.sampled_from(WITH_DEVICES))
    count = len(host(name).facts.devices)
    return name, tuple(draw(st.lists(st.sampled_from(STATES), min_size=count, max_size=count)))


def pool(name: str, states: tuple[str, ...]) -> Machine:
    """Return a recorded host with its devices in these states."""
    there = host(name)
    devices = tuple(map(_changed, there.facts.devices, states))
    return there._replace(facts=there.facts._replace(devices=devices))


def _changed(device: Device, state: str) -> Device:
    """Return a device in another state; memory only changes where it is known."""
    total = device.memory_total
    if state == "busy":
        return device._replace(busy=True)
    if state == "broken":
        return device._replace(health="Critical")
    if total is None or state == "as it is":
        return device
    changes = {"held": (total, int(0.9 * total)), "smaller": (int(0.94 * total), 0), "half": (total // 2, 0)}
    memory, memory_used = changes[state]
    return device._replace(memory_total=memory, memory_used=memory_used)


@settings(max_examples=CASES)
@given(pools(), st.sampled_from(SHOWN), st.sampled_from(AIMS))
def test_a_pool_as_it_is_found_is_used_fits_and_nothing_lies_idle_unnamed(
    found: tuple[str, tuple[str, ...]], name: str, aim: str | None
) -> None:
    there, model = pool(*found), models()[name]
    serve_plan = planned(there, model, aim)
    if not serve_plan:
        return
    broken = {device.number for device in there.facts.devices if device.health == "Critical"}

    assert idle(there, serve_plan) == []
    assert not broken & {use.number for use in serve_plan.uses}
    assert not is_known(model) or [*misfits(there, model, serve_plan)] == []
