"""Ascend: chips, parallelism, HCCL, task queue, binding, graphs; and omni-infer's mixed deployment. Pure.

What vllm-ascend makes of the settings was read in its platform.py, cpu_binding.py and docs at 0.11, 0.18 and 0.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import notice
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.records import Facts, Notice
from entrypoints.decide.case import Case, element_bytes
from entrypoints.decide.records import Decision, Thresholds, Value
from entrypoints.decide.spread.demand import LENGTH
from entrypoints.decide.spread.fit import SEQUENCES, Fit, Rules, fit
from entrypoints.decide.spread.layouts import DATA, EXECUTOR, EXPERT, NODES
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
EAGER = "--enforce-eager"
GRAPHS = "--compilation-config"
BATCHED = "--max-num-batched-tokens"
HCCN = "/etc/hccn.conf"
A2, A3, DUO = "ascend910b", "ascend910_93", "ascend310p"

TUNING = "vllm-ascend docs, optimization and tuning"
GUIDE = "omni-infer's guide"

_MIXED = "architectures_mixed"
"""A threshold that only omni-infer's stacks have: models that its mixed deployment serves."""
_BINDS_ITSELF = (0, 18)
"""vllm-ascend binds workers to CPUs since 0.18, on arm64 alone (cpu_binding.py)."""
_MIXES_GRAPHS = (0, 21)
"""vllm-ascend captures full and piecewise graphs together since then, unless told otherwise (release notes)."""


class AscendCase(Case):
    """What this accelerator's rules ask of the question."""

    __slots__ = ()

    @property
    def version(self) -> tuple[int, ...]:
        """Of vLLM."""
        return _version(self.profile["vllm"])

    @property
    def is_eager(self) -> bool:
        """Whether no graphs are captured: by the user's word, else the stack's."""
        said = self.given.flag(EAGER)
        stack = (item["value"] for item in self.profile["settings"] if item["setting"] == EAGER)
        return next(stack, False) is True if said is None else said == "True"

    @property
    def has_hosts(self) -> bool:
        """Whether the user spreads the server over several hosts."""
        return (self.given.number(NODES) or 1) > 1 or "--data-parallel-address" in self.given.flags


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide all that the user did not. Raises what `fit` raises."""
    case = AscendCase(profile, _visible(facts, given), _capped(profile, facts, model), given)
    if _MIXED in profile["thresholds"]:
        return _omniinfer(case)
    found = fit(case.facts, case.model, given, rules(case))
    values = {
        **found.values,
        **_chips(case, found),
        **_duo(case, found),
        **_communication(case, found),
        **_host_side(case),
        **_graphs(case, found),
        **_network(case),
        **_preload(case),
    }
    mine = {name: value for name, value in values.items() if name not in given.flags}
    return Decision(mine, (*found.findings, *_advice(case, found)))


def rules(case: AscendCase) -> Rules:
    """Return what the chips allow."""
    numbers = case.thresholds
    return Rules(
        usable=numbers.number("usable_memory_share"),
        reserved=numbers.bytes("unseen_memory_gib") + numbers.bytes("runtime_memory_gib"),
        activations=numbers.bytes("activation_memory_gib") + _mask(case),
        element=element_bytes(case.given.flag("--dtype") or ""),
        block=numbers.whole("block_tokens"),
        expert="tp" if case.architecture in (A2, A3) else "",
        shortest_context=numbers.whole("shortest_context"),
    )


def _mask(case: AscendCase) -> int:
    """Return the bytes of 310P's attention mask, twice while it is laid out anew; other chips compress it."""
    if case.architecture != DUO:
        return 0
    length = case.given.number(LENGTH) if (case.given.flag(LENGTH) or "").isdigit() else None
    return 2 * 2 * (length or case.thresholds.whole("longest_context_310p")) ** 2


# --- which chips ----------------------------------------------------------------------------------------------------


def _visible(facts: Facts, given: UserFlags) -> Facts:
    """Leave out the chips that the user hides from the runtime; a list that is none is the runtime's to refuse.

    Raises USAGE for a chip that is not here.
    """
    try:
        numbers = parse_id_list(given.variable(VISIBLE) or "")
    except ValueError:
        return facts
    missing = set(numbers) - {device.number for device in facts.devices}
    if missing and facts.devices:
        message = f"{VISIBLE}={given.variable(VISIBLE)} names {min(missing)}: no such chip is here"
        known = format_id_list(tuple(device.number for device in facts.devices))
        raise EntrypointError(USAGE, message, f"there are {known}, as the runtime counts them in this container")
    devices = tuple(device for device in facts.devices if device.number in numbers)
    return facts._replace(devices=devices) if devices else facts


def _chips(case: AscendCase, found: Fit) -> dict[str, Value]:
    """Show the runtime the chosen chips alone, in ascending order as it wants them."""
    numbers = sorted(device.number for device in found.devices)
    if len(numbers) == len(case.facts.devices):
        return {}
    text = ",".join(map(str, numbers))
    are = "chip is" if len(numbers) == 1 else "chips are"
    because = f"{len(numbers)} {are} needed of {len(case.facts.devices)}{_cards(found)}{_near(found)}"
    instead = "all: vLLM would take the first ones, whoever else holds them and wherever they are"
    return {VISIBLE: Value(text, because, (instead,))}


def _cards(found: Fit) -> str:
    """Say which cards the dies are of."""
    cards = sorted({device.card for device in found.devices if device.card is not None})
    return f": dies of card {', '.join(map(str, cards))}" if cards else ""


def _near(found: Fit) -> str:
    """Say which NUMA nodes the chips are near."""
    nodes = sorted({device.node for device in found.devices if device.node is not None})
    return f", near NUMA node {', '.join(map(str, nodes))}" if nodes else ""


# --- 310P -----------------------------------------------------------------------------------------------------------


def _capped(profile: Mapping[str, Any], facts: Facts, model: ModelFacts) -> ModelFacts:
    """Take a model on 310P as no longer than its attention mask may be."""
    is_duo = bool(facts.devices) and facts.devices[0].architecture == DUO
    if not is_duo or model.geometry is None or model.geometry.max_length is None:
        return model
    most = Thresholds(profile["thresholds"]).whole("longest_context_310p")
    return model._replace(geometry=model.geometry._replace(max_length=min(most, model.geometry.max_length)))


def _duo(case: AscendCase, found: Fit) -> dict[str, Value]:
    """Set the lengths that 310P must not be left to find by itself."""
    if case.architecture != DUO:
        return {}
    most = case.thresholds.whole("longest_context_310p")
    sequences = case.thresholds.whole("sequences_310p")
    values = {
        LENGTH: Value(
            str(min(found.length or most, most)),
            "310P lays out a full attention mask of this length squared, so it must be said",
            ("the model's own: the mask alone may exceed the card's memory",),
        ),
        SEQUENCES: Value(str(found.sequences or sequences), "what the vendor's examples give 310P"),
    }
    return {name: value for name, value in values.items() if name not in found.values}


# --- communication --------------------------------------------------------------------------------------------------


def _ranks(found: Fit) -> int:
    return found.tensor * found.pipeline * found.data


def _communication(case: AscendCase, found: Fit) -> dict[str, Value]:
    if _ranks(found) == 1 or case.architecture not in (A2, A3):
        return {}
    because = f"{TUNING} 3.1: vector cores schedule the communication, not the host and its AI CPU"
    values = {"HCCL_OP_EXPANSION_MODE": Value("AIV", because, ("unset: the host launches every step of it",))}
    spreads = EXPERT in found.values or case.given.flag(EXPERT) == "True"
    if spreads:
        size = case.thresholds.whole("buffer_of_experts_mib")
        because = "tokens go to experts of other ranks through these buffers (MiB)"
        values["HCCL_BUFFSIZE"] = Value(str(size), because, ("200, HCCL's own: too small for dispatch and combine",))
    return values


def _network(case: AscendCase) -> dict[str, Value]:
    """Bind what meets over TCP to the host's interface, where servers on several hosts meet."""
    names = _interfaces(case.facts)
    if not case.has_hosts or not names:
        return {}
    because = f"the servers meet over the first interface that is up; there are {', '.join(names)}"
    variables = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
    return {name: Value(names[0], because) for name in variables}


def _interfaces(facts: Facts) -> list[str]:
    return facts.kernel.get("interfaces", "").split()


# --- the host's side ------------------------------------------------------------------------------------------------


def _host_side(case: AscendCase) -> dict[str, Value]:
    """Choose how operators are handed to the chips, and who binds the workers."""
    values = {"TASK_QUEUE_ENABLE": _queue(case)}
    if case.facts.processor.architecture != "aarch64" or case.version < _BINDS_ITSELF:
        because = f"{TUNING} 2: torch_npu binds each worker to CPUs; this vllm-ascend does not bind here itself"
        values["CPU_AFFINITY_CONF"] = Value("1", because, ("0: threads wander between NUMA nodes",))
    return values


def _queue(case: AscendCase) -> Value:
    if case.is_eager:
        because = f"{TUNING} 2: without graphs the host launches every operator, and two queues hide half of it"
        return Value("2", because, ("1: the chip waits for the host",))
    because = "graphs launch most of the work at once; this is what the vendor's images and guides set with graphs"
    return Value("1", because, ("2: for eager mode; it takes more memory at its peak",))


def _preload(case: AscendCase) -> dict[str, Value]:
    path = case.profile["libraries"].get("jemalloc", {}).get(case.facts.processor.architecture)
    if not path or not case.facts.files.get("jemalloc"):
        return {}
    return {"LD_PRELOAD": Value(path, f"{TUNING} 1.1: jemalloc locks and fragments less")}


# --- graphs ---------------------------------------------------------------------------------------------------------


def _graphs(case: AscendCase, found: Fit) -> dict[str, Value]:
    """Choose graph mode where vllm-ascend's own would fail."""
    if case.is_eager or {GRAPHS, "--optimization-level"} & set(case.given.flags):
        return {}
    if case.architecture == DUO:
        return {GRAPHS: _graphs_of_duo(case, found)}
    driver = _version(case.facts.versions.get("driver", ""))
    needed = str(case.thresholds.table["driver_for_mixed_graphs"]["value"])
    if not driver or driver >= _version(needed) or case.version < _MIXES_GRAPHS:
        return {}
    because = f"driver {case.facts.versions['driver']} is older than {needed}: it has too few streams for both kinds"
    instead = ("FULL_AND_PIECEWISE, the default: capturing fails with error 207008",)
    return {GRAPHS: Value('{"cudagraph_mode": "FULL_DECODE_ONLY"}', because, instead)}


def _graphs_of_duo(case: AscendCase, found: Fit) -> Value:
    name = "graphs_310p_one" if _ranks(found) == 1 else "graphs_310p_several"
    most = found.sequences or case.thresholds.whole("sequences_310p")
    sizes = [size for size in map(int, case.thresholds.words(name)) if size <= most] or [1]
    because = "310P replays graphs of decoding alone, and has event ids for few of them when ranks communicate"
    text = f'{{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": {sizes}}}'
    return Value(text, because, ("the default modes: not supported on 310P",))


# --- omni-infer -----------------------------------------------------------------------------------------------------


def _omniinfer(case: AscendCase) -> Decision:
    """Start the mixed deployment as the guide does: tensor parallelism, one engine, eager."""
    own = rules(case)._replace(pipeline=False, data=False, expert="", executors=("mp",), chunk=_chunk(case))
    found = fit(case.facts, case.model, case.given, own)
    values = {
        **found.values,
        **_chips(case, found),
        EXECUTOR: Value("mp", f"{GUIDE} starts it so, with one device too"),
        DATA: Value("1", f"{GUIDE} supports one engine in the mixed deployment"),
        **_gloo(case),
        **_profiling(case),
    }
    mine = {name: value for name, value in values.items() if name not in case.given.flags}
    return Decision(mine, (*found.findings, *_mixed_advice(case), *_quantization(case)))


def _chunk(case: AscendCase) -> int:
    settings = {item["setting"]: item["value"] for item in case.profile["settings"]}
    return int(settings.get(BATCHED, Rules(0, 0, 0).chunk))


def _gloo(case: AscendCase) -> dict[str, Value]:
    names = _interfaces(case.facts)
    if not names:
        return {}
    because = f"{GUIDE} binds Gloo to an interface of the host; the first that is up of {', '.join(names)}"
    return {"GLOO_SOCKET_IFNAME": Value(names[0], because)}


def _profiling(case: AscendCase) -> dict[str, Value]:
    """State the defaults of profiling where the user turned it on."""
    if not case.given.variable("VLLM_TORCH_PROFILER_DIR"):
        return {}
    return {
        "PROFILER_TOKEN_THRESHOLD": Value("1", "steps of at least so many tokens are profiled: more picks out prefill"),
        "PROFILER_STOP_STEP": Value("5", "so many steps are profiled"),
    }


def _mixed_advice(case: AscendCase) -> Iterator[Notice]:
    served = case.thresholds.words(_MIXED)
    if case.model.architecture and case.model.architecture not in served:
        yield notice("NPU-041", case.model.architecture, f"one of {', '.join(served)}")
    if (case.given.number(DATA) or 1) > 1:
        yield notice("NPU-042", f"{DATA} {case.given.number(DATA)}", "1")


# --- what is to be said ---------------------------------------------------------------------------------------------


def _advice(case: AscendCase, found: Fit) -> Iterator[Notice]:
    yield from _quantization(case)
    yield from _few_cpus(case, found)
    yield from _long_mask(case)
    yield from _latent(case, found)
    if case.has_hosts and not case.facts.grants.get(HCCN):
        yield notice("NPU-043", f"no {HCCN}", HCCN)


def _quantization(case: AscendCase) -> Iterator[Notice]:
    methods = case.thresholds.words("quantization_methods")
    kind = case.model.quantization
    if kind and kind not in methods:
        yield notice("NPU-044", kind, f"one of {', '.join(methods)}")


def _few_cpus(case: AscendCase, found: Fit) -> Iterator[Notice]:
    """Say where vllm-ascend's binding would give up: it wants so many CPUs for each chip."""
    each, cpus = case.thresholds.whole("cpus_per_device"), len(case.facts.cpus)
    binds = case.facts.processor.architecture == "aarch64" and case.version >= _BINDS_ITSELF
    if binds and cpus < each * len(found.devices):
        yield notice("NPU-045", f"{cpus} CPUs", f"at least {each} for each of {len(found.devices)} chips")


def _latent(case: AscendCase, found: Fit) -> Iterator[Notice]:
    """Say where latent attention's kernel would get too few heads, and how the vendor spreads such a model instead."""
    geometry, least = case.model.geometry, case.thresholds.whole("heads_of_latent_attention")
    if not geometry or not geometry.latent or case.is_eager or geometry.heads // found.tensor >= least:
        return
    tensor = max(1, geometry.heads // least)
    options = f"-tp {tensor} -dp {max(1, _ranks(found) // tensor)} {EXPERT}"
    heads = f"{geometry.heads // found.tensor} with -tp {found.tensor}"
    yield notice("PLAN-047", heads, f"at least {least}", options=options)


def _long_mask(case: AscendCase) -> Iterator[Notice]:
    most = case.thresholds.whole("longest_context_310p")
    length = case.given.flag(LENGTH)
    if case.architecture == DUO and length in ("-1", "auto"):
        yield notice("NPU-046", f"{LENGTH} {length}", f"at most {most}", most=str(most))


def _version(text: str) -> tuple[int, ...]:
    """Return a version's numbers: 25.5.1 and 0.18.0; rc and beta parts count as what they come before."""
    import re

    return tuple(int(number) for number in re.findall(r"\d+", text[:40])[:3])
