"""vLLM on Ascend: chips, parallelism, HCCL, task queue, binding, graphs; omni-infer's mixed and split deployment. Pure.

Sources: vllm-ascend's platform.py, cpu_binding.py and docs at 0.11, 0.18 and 0.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from posixpath import join, normpath
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import DOES_NOT_FIT, MODEL, USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list, parse_version_numbers
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.decide.decision_input import Case, element_bytes
from entrypoints.decide.parallelism.devices import find_smallest_memory
from entrypoints.decide.parallelism.experts import beside_adapters
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_model
from entrypoints.decide.parallelism.hosts import make_reach_fields
from entrypoints.decide.records import Decision, Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import (
    BATCHED,
    DATA,
    EAGER,
    EXECUTOR,
    EXPERT,
    GRAPHS,
    LENGTH,
    NODES,
    SEQUENCES,
    TENSOR,
)
from entrypoints.request.vllm_flags import UserFlags

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
HCCN = "/etc/hccn.conf"
A2, A3, DUO = "ascend910b", "ascend910_93", "ascend310p"

TUNING = "vllm-ascend docs, optimization and tuning"
GUIDE = "omni-infer's guide"
PROFILES = "VLLM_TORCH_PROFILER_DIR"

_DIES_OF_HOST = 16
"""Dies of an Atlas 800 A3, for which the vendor's guides have engines; those for fewer have one group."""
_LAYOUT = "server_layout"
"""A threshold of omni-infer's stacks only: how a server of a role is laid out over its chips."""
_ONE_ENGINE, _WHOLE_HOST, _ENGINES = "one-engine", "whole-host", "engine-per-device"
_LAYOUTS: Mapping[str, Mapping[str, Any]] = {
    _ONE_ENGINE: {"data": False, "expert": ""},
    _WHOLE_HOST: {"data": False, "whole": True},
    _ENGINES: {"sizes": (1,)},
}
"""Layout → rules of parallelism that it sets: one engine over as many chips as it needs, or over all; one on each."""
_BINDS_ITSELF = (0, 18)
"""Since 0.18 vllm-ascend binds workers to CPUs, on arm64 only (cpu_binding.py)."""
_MIXES_GRAPHS = (0, 21)
"""Since 0.21 vllm-ascend captures full and piecewise graphs together by default (release notes)."""
_FILLS_BLOCKS = (0, 18)
"""Since 0.18 vllm-ascend requires that a recurrent state fills whole blocks of keys (patch_mamba_config.py)."""
_REFUSES_LATENT, _REFUSES_EXPERTS = (0, 18), (0, 23)
"""Since these versions vllm-ascend refuses latent attention and expert parallelism on 310P (_310p/model_runner_310p.py
and _310p/fused_moe/fused_moe.py)."""


class AscendCase(Case):
    """The input, with properties that Ascend's rules use."""

    __slots__ = ()

    @property
    def version(self) -> tuple[int, ...]:
        """The version of vLLM."""
        return parse_version_numbers(self.profile["vllm"])

    @property
    def is_eager(self) -> bool:
        """Whether no graphs are captured, by the user's flag or else the stack's."""
        flag = self.user_flags.flag(EAGER)
        if flag is not None:
            return flag == "True"
        in_stack = [item["value"] for item in self.profile["settings"] if item["setting"] == EAGER]
        return bool(in_stack) and in_stack[0] is True

    @property
    def has_several_hosts(self) -> bool:
        """Whether the user runs the server on several hosts."""
        return (self.user_flags.number(NODES) or 1) > 1 or "--data-parallel-address" in self.user_flags.flags


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set. Raises the errors of `fit_model`."""
    case = AscendCase(
        profile, _exclude_hidden_chips(facts, user_flags), _limit_length_on_duo(profile, facts, model), user_flags
    )
    if _LAYOUT in profile["thresholds"]:
        return _decide_mixed_deployment(case)
    _refuse_on_duo(case)
    fitted = _fit_by_latent_heads(case)
    values = {
        **fitted.values,
        **_choose_visible_chips(case, fitted),
        **_lengths_of_duo(case, fitted),
        **_choose_hccl_settings(case, fitted),
        **_host_side(case),
        **_choose_graph_mode(case, fitted),
        **_choose_host_interface(case),
        **_choose_jemalloc(case),
    }
    unset_values = {name: value for name, value in values.items() if name not in user_flags.flags}
    return Decision(unset_values, (*fitted.findings, *_find_ascend_notices(case, fitted)), uses=fitted.uses)


def make_ascend_rules(case: AscendCase) -> Rules:
    """Return the rules for the chips; a tensor-parallel size that the user set is not held against latent attention."""
    numbers, is_duo = case.thresholds, case.architecture == DUO
    any_latent = is_duo or case.is_eager or case.user_flags.number(TENSOR) is not None
    return Rules(
        **make_reach_fields(numbers),
        usable=numbers.number("usable_memory_share"),
        reserved=numbers.bytes("unseen_memory_gib") + numbers.bytes("runtime_memory_gib"),
        activations=numbers.bytes("activation_memory_gib") + _compute_mask_bytes(case),
        element=element_bytes(case.user_flags.flag("--dtype") or ""),
        block=numbers.whole("block_tokens"),
        expert="tp" if case.architecture in (A2, A3) else "",
        shortest_context=numbers.whole("shortest_context"),
        latent_heads=() if any_latent else tuple(map(int, numbers.words("latent_heads"))),
        latent_ranks=0 if any_latent else numbers.whole("latent_ranks"),
        engine_ranks=_list_engine_ranks(case),
        engine_weights=int(numbers.number("engine_weights_share") * find_smallest_memory(case.facts)),
        grouped_head_sizes=() if is_duo else tuple(map(int, numbers.words("grouped_head_sizes"))),
        state_block=numbers.whole("block_tokens") if case.version >= _FILLS_BLOCKS and not is_duo else 0,
    )


def _list_engine_ranks(case: AscendCase) -> tuple[int, ...]:
    """Return the ranks of engines that the vendor's guides advise for quantised experts on a whole A3, best first.

    Those for long requests, and for sparse latent attention, are wider, unless the cache is compressed (DeepSeek-V4).
    """
    geometry, numbers = case.model.geometry, case.thresholds
    several = len(case.facts.devices) >= _DIES_OF_HOST and not case.has_several_hosts
    if not (several and case.architecture == A3 and geometry and geometry.experts):
        return ()
    if case.model.quantization not in numbers.words("quantization_methods"):
        return ()
    ranks, intents = tuple(map(int, numbers.words("engine_ranks"))), case.user_flags.intents
    length = (case.user_flags.number(LENGTH) or 0) if (case.user_flags.flag(LENGTH) or "").isdigit() else 0
    if not length and intents.input and intents.output:
        length = intents.input[1] + intents.output[1]
    is_long = length > numbers.whole("long_requests") or bool(geometry.sparse and geometry.latent)
    return ranks[1:] if is_long and not geometry.compressed else ranks


def _fit_by_latent_heads(case: AscendCase) -> Fit:
    """Choose by the documented heads of latent attention, or without this rule if the model fits only then.

    Adapters and whole experts exclude each other (vllm-ascend 0.23 docs, LoRA).
    Raises the errors of `fit_model`.
    """
    chip_rules = beside_adapters(make_ascend_rules(case), case.user_flags, case.profile["vllm"], since=None)
    try:
        return fit_model(case.facts, case.model, case.user_flags, chip_rules)
    except EntrypointError as error:
        if error.code != DOES_NOT_FIT or not chip_rules.latent_heads:
            raise
    return fit_model(case.facts, case.model, case.user_flags, chip_rules._replace(latent_heads=(), latent_ranks=0))


def _compute_mask_bytes(case: AscendCase) -> int:
    """Return the bytes of 310P's attention mask, doubled because building it needs a copy; other chips compress it."""
    if case.architecture != DUO:
        return 0
    length = case.user_flags.number(LENGTH) if (case.user_flags.flag(LENGTH) or "").isdigit() else None
    return 2 * 2 * (length or case.thresholds.whole("longest_context_310p")) ** 2


# --- which chips ----------------------------------------------------------------------------------------------------


def _exclude_hidden_chips(facts: Facts, user_flags: UserFlags) -> Facts:
    """Exclude the chips that the user hides from the runtime; the runtime itself refuses an invalid list.

    Raises USAGE for a missing chip.
    """
    try:
        numbers = parse_id_list(user_flags.variable(VISIBLE) or "")
    except ValueError:
        return facts
    missing = set(numbers) - {device.number for device in facts.devices}
    if missing and facts.devices:
        message = f"{VISIBLE}={user_flags.variable(VISIBLE)} names {min(missing)}: no such chip"
        chip_numbers = format_id_list(tuple(device.number for device in facts.devices))
        raise EntrypointError(
            USAGE, message, f"available chips, as the runtime numbers them in this container: {chip_numbers}"
        )
    devices = tuple(device for device in facts.devices if device.number in numbers)
    return facts._replace(devices=devices) if devices else facts


def _choose_visible_chips(case: AscendCase, fitted: Fit) -> dict[str, Value]:
    """Show the runtime only the chosen chips, in the ascending order that it requires."""
    numbers = sorted(device.number for device in fitted.devices)
    if len(numbers) == len(case.facts.devices):
        return {}
    text = ",".join(map(str, numbers))
    chips = "chip is" if len(numbers) == 1 else "chips are"
    because = f"{len(numbers)} of {len(case.facts.devices)} {chips} needed{_name_cards(fitted)}{_name_nodes(fitted)}"
    instead = "all: vLLM would use the first chips, even if another process holds them or they are far apart"
    return {VISIBLE: Value(text, because, (instead,))}


def _name_cards(fitted: Fit) -> str:
    """Return the cards of the dies, as a part of a reason."""
    cards = sorted({device.card for device in fitted.devices if device.card is not None})
    return f": dies of card {', '.join(map(str, cards))}" if cards else ""


def _name_nodes(fitted: Fit) -> str:
    """Return the NUMA nodes of the chips, as a part of a reason."""
    nodes = sorted({device.node for device in fitted.devices if device.node is not None})
    return f", on NUMA node {', '.join(map(str, nodes))}" if nodes else ""


# --- 310P -----------------------------------------------------------------------------------------------------------


def _refuse_on_duo(case: AscendCase) -> None:
    """Raise MODEL or USAGE for what vllm-ascend refuses on 310P only after the weights are loaded."""
    if case.architecture != DUO:
        return
    if case.model.geometry and case.model.geometry.latent and case.version >= _REFUSES_LATENT:
        message = f"{case.model.name}: vllm-ascend does not support latent attention on 310P"
        raise EntrypointError(MODEL, message, "use a model without it, or a host with Atlas A2 or A3")
    if case.user_flags.flag(EXPERT) == "True" and case.version >= _REFUSES_EXPERTS:
        raise EntrypointError(USAGE, f"{EXPERT}: vllm-ascend does not support it on 310P", f"leave out {EXPERT}")


def _limit_length_on_duo(profile: Mapping[str, Any], facts: Facts, model: ModelFacts) -> ModelFacts:
    """Limit a model's length on 310P to that of the largest attention mask."""
    is_duo = bool(facts.devices) and facts.devices[0].architecture == DUO
    if not is_duo or model.geometry is None or model.geometry.max_length is None:
        return model
    most = Thresholds(profile["thresholds"]).whole("longest_context_310p")
    return model._replace(geometry=model.geometry._replace(max_length=min(most, model.geometry.max_length)))


def _lengths_of_duo(case: AscendCase, fitted: Fit) -> dict[str, Value]:
    """Set the length and the number of sequences explicitly on 310P."""
    if case.architecture != DUO:
        return {}
    most = case.thresholds.whole("longest_context_310p")
    sequences = case.thresholds.whole("sequences_310p")
    values = {
        LENGTH: Value(
            str(min(fitted.length or most, most)),
            "310P stores a full attention mask whose size is this length squared, so the length must be limited",
            ("the model's own: the mask alone can exceed the card's memory",),
        ),
        SEQUENCES: Value(str(fitted.sequences or sequences), "the value of the vendor's examples for 310P"),
    }
    return {name: value for name, value in values.items() if name not in fitted.values}


# --- communication --------------------------------------------------------------------------------------------------


def _count_communicating_ranks(case: AscendCase, fitted: Fit) -> int:
    """Return the number of ranks that communicate: engines do only to share experts."""
    shares = case.model.geometry is not None and case.model.geometry.experts > 0
    return fitted.tensor * fitted.pipeline * (fitted.data if shares else 1)


def _choose_hccl_settings(case: AscendCase, fitted: Fit) -> dict[str, Value]:
    """Choose how HCCL schedules communication, and its buffers for experts."""
    if _count_communicating_ranks(case, fitted) == 1 or case.architecture not in (A2, A3):
        return {}
    because = f"{TUNING} 3.1: the vector cores schedule communication, instead of the host and its AI CPU"
    instead = ("unset: the host launches every step of the communication",)
    values = {"HCCL_OP_EXPANSION_MODE": Value("AIV", because, instead)}
    expert_parallel = EXPERT in fitted.values or case.user_flags.flag(EXPERT) == "True"
    if expert_parallel:
        size = case.thresholds.whole("buffer_of_experts_mib")
        because = "tokens are sent to experts on other ranks through these buffers (size in MiB)"
        values["HCCL_BUFFSIZE"] = Value(
            str(size), because, ("200, HCCL's default: too small for dispatch and combine",)
        )
    return values


def _choose_host_interface(case: AscendCase) -> dict[str, Value]:
    """Set the network interface for connections between several hosts."""
    names = _list_interfaces(case.facts)
    if not case.has_several_hosts or not names:
        return {}
    because = f"the servers connect over the first interface that is up, out of {', '.join(names)}"
    variables = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
    return {name: Value(names[0], because) for name in variables}


def _list_interfaces(facts: Facts) -> list[str]:
    return facts.kernel.get("interfaces", "").split()


# --- the host's side ------------------------------------------------------------------------------------------------


def _host_side(case: AscendCase) -> dict[str, Value]:
    """Choose the task queue, and CPU binding by torch_npu where vllm-ascend does not bind."""
    values = {"TASK_QUEUE_ENABLE": _choose_task_queue(case)}
    if case.facts.processor.architecture != "aarch64" or case.version < _BINDS_ITSELF:
        because = (
            f"{TUNING} 2: torch_npu binds each worker to CPUs; vllm-ascend itself does not on this host and version"
        )
        values["CPU_AFFINITY_CONF"] = Value("1", because, ("0: threads move between NUMA nodes",))
    return values


def _choose_task_queue(case: AscendCase) -> Value:
    if case.is_eager:
        because = f"{TUNING} 2: without graphs the host launches every operator, and two queues hide half of that time"
        return Value("2", because, ("1: the chip waits for the host",))
    because = "graphs launch most of the work at once; the vendor's images and guides set this value with graphs"
    return Value("1", because, ("2: for eager mode; its peak memory is higher",))


def _choose_jemalloc(case: AscendCase) -> dict[str, Value]:
    path = case.profile["libraries"].get("jemalloc", {}).get(case.facts.processor.architecture)
    if not path or not case.facts.files.get("jemalloc"):
        return {}
    return {"LD_PRELOAD": Value(path, f"{TUNING} 1.1: jemalloc has less locking and less fragmentation")}


# --- graphs ---------------------------------------------------------------------------------------------------------


def _choose_graph_mode(case: AscendCase, fitted: Fit) -> dict[str, Value]:
    """Choose the graph mode if vllm-ascend's default would fail."""
    if case.is_eager or {GRAPHS, "--optimization-level"} & set(case.user_flags.flags):
        return {}
    if case.architecture == DUO:
        return {GRAPHS: _graphs_of_duo(case, fitted)}
    driver = parse_version_numbers(case.facts.versions.get("driver", ""))
    oldest = str(case.thresholds.table["driver_for_mixed_graphs"]["value"])
    if not driver or driver >= parse_version_numbers(oldest) or case.version < _MIXES_GRAPHS:
        return {}
    because = (
        f"driver {case.facts.versions['driver']}, older than {oldest}, has too few streams for both kinds of graphs"
    )
    instead = ("FULL_AND_PIECEWISE, the default: capturing fails with error 207008",)
    return {GRAPHS: Value('{"cudagraph_mode": "FULL_DECODE_ONLY"}', because, instead)}


def _graphs_of_duo(case: AscendCase, fitted: Fit) -> Value:
    name = "graphs_310p_one" if _count_communicating_ranks(case, fitted) == 1 else "graphs_310p_several"
    most = fitted.sequences or case.thresholds.whole("sequences_310p")
    sizes = [size for size in map(int, case.thresholds.words(name)) if size <= most] or [1]
    because = "310P supports graphs for decoding only, and has event ids for only a few if ranks communicate"
    text = f'{{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": {sizes}}}'
    return Value(text, because, ("the default modes: not supported on 310P",))


# --- omni-infer -----------------------------------------------------------------------------------------------------


def _decide_mixed_deployment(case: AscendCase) -> Decision:
    """Choose settings as in the guide: of the mixed deployment, or of a prefill or decode server of the split one."""
    layout = str(case.thresholds.table[_LAYOUT]["value"])
    role_rules = make_ascend_rules(case)._replace(
        pipeline=False, executors=("mp",), chunk=_read_chunk_size(case), **_LAYOUTS[layout]
    )
    fitted = fit_model(case.facts, case.model, case.user_flags, role_rules)
    values = {
        **fitted.values,
        **_tensor_of(case, layout, fitted),
        **({} if layout == _ONE_ENGINE else _all_visible(case.facts)),
        **_choose_visible_chips(case, fitted),
        EXECUTOR: Value("mp", f"{GUIDE} uses this executor, also for one device"),
        **({} if layout == _ENGINES else {DATA: Value("1", f"{GUIDE} has one engine in such a server")}),
        **_choose_gloo_interface(case),
        **_state_profiler_defaults(case),
    }
    unset_values = {name: value for name, value in values.items() if name not in case.user_flags.flags}
    findings = (*fitted.findings, *_role_notices(case, layout), *_check_ascend_quantization(case))
    return Decision(unset_values, findings, uses=fitted.uses)


def _tensor_of(case: AscendCase, layout: str, fitted: Fit) -> dict[str, Value]:
    """Return the ranks of an engine with the reason of the role's layout, where that fixes them."""
    if layout == _ONE_ENGINE or TENSOR not in fitted.values:
        return {}
    row = case.thresholds.table[_LAYOUT]
    return {TENSOR: Value(fitted.values[TENSOR].value, f"{row['because'].rstrip('.')} ({row['source']})")}


def _all_visible(facts: Facts) -> dict[str, Value]:
    """Name every chip: omni_placement counts those of a host in this variable, and takes 16 without it.

    Source: omni-infer omni/accelerators/placement/omni_planner/omni_planner.py, num_devices_per_host.
    """
    text = ",".join(str(number) for number in sorted(device.number for device in facts.devices))
    return {
        VISIBLE: Value(text, f"{GUIDE} names them for each server; omni_placement counts the chips of a host in it")
    }


def _read_chunk_size(case: AscendCase) -> int:
    settings = {item["setting"]: item["value"] for item in case.profile["settings"]}
    return int(settings.get(BATCHED, Rules(0, 0, 0).chunk))


def _choose_gloo_interface(case: AscendCase) -> dict[str, Value]:
    names = _list_interfaces(case.facts)
    if not names:
        return {}
    because = f"{GUIDE} binds Gloo to one interface of the host: the first that is up, out of {', '.join(names)}"
    return {"GLOO_SOCKET_IFNAME": Value(names[0], because)}


def _state_profiler_defaults(case: AscendCase) -> dict[str, Value]:
    """State the profiler's defaults if the user enabled profiling."""
    if not case.user_flags.variable(PROFILES):
        return {}
    return {
        "PROFILER_TOKEN_THRESHOLD": Value(
            "1", "the profiler covers steps of at least this many tokens; a higher value selects prefill"
        ),
        "PROFILER_STOP_STEP": Value("5", "the number of profiled steps"),
    }


def _role_notices(case: AscendCase, layout: str) -> Iterator[Notice]:
    served = case.thresholds.words("served_architectures")
    if case.model.architecture and case.model.architecture not in served:
        yield make_notice("NPU-041", case.model.architecture, f"one of {', '.join(served)}")
    if layout != _ENGINES and (case.user_flags.number(DATA) or 1) > 1:
        yield make_notice("NPU-042", f"{DATA} {case.user_flags.number(DATA)}", "1")
    folder = case.user_flags.variable(PROFILES)
    if folder and not _is_writable(case.facts, folder):
        yield make_notice("NPU-047", f"{PROFILES}={folder}", "a folder below a writable one")


def _is_writable(facts: Facts, folder: str) -> bool:
    """Return whether a folder can be written: as the probe found it, else if it is in a writable one."""
    probed = facts.mounts.get("profiles")
    if probed is not None:
        return probed.writable
    path = normpath(join("/", folder))  # the image's working directory
    return any(mount.writable and f"{path}/".startswith(f"{mount.path}/") for mount in facts.mounts.values())


# --- notices --------------------------------------------------------------------------------------------------------


def _find_ascend_notices(case: AscendCase, fitted: Fit) -> Iterator[Notice]:
    yield from _check_ascend_quantization(case)
    yield from _few_cpus(case, fitted)
    yield from _long_mask(case)
    yield from _check_latent_heads(case, fitted)
    if case.has_several_hosts and not case.facts.grants.get(HCCN):
        yield make_notice("NPU-043", f"no {HCCN}", HCCN)


def _check_ascend_quantization(case: AscendCase) -> Iterator[Notice]:
    methods = case.thresholds.words("quantization_methods")
    kind = case.model.quantization
    if kind and kind not in methods:
        yield make_notice("NPU-044", kind, f"one of {', '.join(methods)}")


def _few_cpus(case: AscendCase, fitted: Fit) -> Iterator[Notice]:
    """Yield a notice if there are too few CPUs per chip for vllm-ascend's binding."""
    cpus_per_device, cpus = case.thresholds.whole("cpus_per_device"), len(case.facts.cpus)
    binds = case.facts.processor.architecture == "aarch64" and case.version >= _BINDS_ITSELF
    if binds and cpus < cpus_per_device * len(fitted.devices):
        yield make_notice(
            "NPU-045", f"{cpus} CPUs", f"at least {cpus_per_device} for each of {len(fitted.devices)} chips"
        )


def _check_latent_heads(case: AscendCase, fitted: Fit) -> Iterator[Notice]:
    """Yield a notice if latent attention has too few heads per rank, with the vendor's parallelism instead."""
    geometry, least = case.model.geometry, min(map(int, case.thresholds.words("latent_heads")))
    if not geometry or not geometry.latent or geometry.sparse or case.is_eager:
        return
    if geometry.heads // fitted.tensor >= least:
        return
    tensor = max(1, min(case.thresholds.whole("latent_ranks"), geometry.heads // least))
    options = f"-tp {tensor} -dp {max(1, _count_communicating_ranks(case, fitted) // tensor)} {EXPERT}"
    heads = f"{geometry.heads // fitted.tensor} with -tp {fitted.tensor}"
    yield make_notice("PLAN-047", heads, f"at least {least}", options=options)


def _long_mask(case: AscendCase) -> Iterator[Notice]:
    most = case.thresholds.whole("longest_context_310p")
    length = case.user_flags.flag(LENGTH)
    if case.architecture == DUO and length in ("-1", "auto"):
        yield make_notice("NPU-046", f"{LENGTH} {length}", f"at most {most}", most=str(most))
