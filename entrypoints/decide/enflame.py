"""vLLM-GCU on Enflame S60: supported models and quantisations, type, parallelism, cards. Pure.

Sources: the plugin's gcu.py and kernels/quantization at tags v0.8.0 and v0.9.2. The vendor's tables of models and
quantisations are in the stack's thresholds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.decide.decision_input import Case, element_bytes
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_model
from entrypoints.decide.parallelism.hosts import make_reach_fields
from entrypoints.decide.parallelism.visible import restricted_by_number
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import BATCHED, BLOCK_SIZE, QUANTIZATION
from entrypoints.request.vllm_flags import UserFlags, parse_count

VISIBLE = "TOPS_VISIBLE_DEVICES"
TABLE = "vLLM-GCU, list of supported models"

_ROUTING = 16 + 16
"""Numbers that are sent with each token's hidden state between experts: its top experts and their weights."""


class EnflameCase(Case):
    """The input, with look-ups in the vendor's tables."""

    __slots__ = ()

    def lists(self, table: str) -> bool:
        """Return whether one of the vendor's tables contains this model's architecture."""
        return self.model.architecture in self.thresholds.words(f"models_{table}")

    @property
    def methods(self) -> tuple[str, ...]:
        """The quantisations: the model's own, and another one of the user's --quantization."""
        names = (self.model.quantization, self.user_flags.flag(QUANTIZATION) or "")
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def schemes(self) -> tuple[str, ...]:
        """The vendor's tables for the quantisations; not each kernel has one."""
        tables = (find_vendor_table(self.model._replace(quantization=method)) for method in self.methods)
        return tuple(dict.fromkeys(table for table in tables if table))


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags) -> Decision:
    """Choose every setting that the user did not set.

    Raises MODEL for a quantisation, or a pair of model and type, that the vendor does not support, unless the user set
    --quantization; and the errors of `fit_model`.
    """
    case = EnflameCase(profile, restricted_by_number(facts, user_flags, VISIBLE), model, user_flags)
    unsupported = tuple(_require_supported(case))
    dtype = choose_dtype(case)
    fit_result = fit_model(
        case.facts, model, user_flags, make_enflame_rules(case, str(user_flags.flag("--dtype") or dtype.value))
    )
    values = {
        "--dtype": dtype,
        **_choose_expert_kernels(case),
        **fit_result.values,
        **_choose_enflame_cards(case, fit_result),
        **_choose_exchange_buffer(case),
    }
    return Decision(values, (*unsupported, *_find_enflame_notices(case), *fit_result.findings), uses=fit_result.uses)


def make_enflame_rules(case: EnflameCase, dtype: str) -> Rules:
    """Return the rules for S60 cards."""
    numbers = case.thresholds
    share = "usable_share_of_experts" if _spreads_experts(case) else "usable_share"
    cache = case.user_flags.flag("--kv-cache-dtype") or "auto"
    return Rules(
        **make_reach_fields(numbers),
        usable=numbers.number(share),
        reserved=numbers.bytes("reserved_gib"),
        activations=numbers.bytes("activations_gib"),
        element=element_bytes(dtype),
        kv_element=1 if cache.startswith(("int8", "fp8")) else element_bytes(dtype),
        block=case.user_flags.number(BLOCK_SIZE) or 64,
        expert="needed",
        data=False,  # each engine is a separate server that reads its rank from VLLM_DP_RANK
    )


def _spreads_experts(case: EnflameCase) -> bool:
    return case.user_flags.flag("--enable-expert-parallel") == "True"


# --- models and quantisations ---------------------------------------------------------------------------------------


def find_vendor_table(model: ModelFacts) -> str:
    """Return the vendor's table for a model's quantisation; empty if there is none."""
    method = model.quantization.removesuffix("_gcu")
    if method == "gptq":
        return "gptq_8bit" if model.bits == 8 else "gptq_4bit"  # noqa: PLR2004 - the table's own columns
    return {"awq": "awq", "w8a16": "w8a16", "w8a8": "w8a8", "compressed-tensors": "w8a8"}.get(method, "")


def _require_supported(case: EnflameCase) -> Iterator[Notice]:
    """Raise MODEL for what the vendor does not support, or yield a FAIL notice if the user set --quantization."""
    for problem, value, expected, hint in (*_bad_quantisation(case), *_bad_pair(case)):
        if case.user_flags.flag(QUANTIZATION) is None:
            raise EntrypointError(MODEL, f"{case.model.name}: {problem}: found {value}, expected {expected}", hint)
        yield make_notice("GCU-030", value, expected, what=problem)


Problem = tuple[str, str, str, str]
"""What is wrong, what was found, what was expected, a hint."""


def _bad_quantisation(case: EnflameCase) -> Iterator[Problem]:
    model, methods = case.model, case.thresholds.words("quantization_methods")
    hint = "quantise it with Enflame's TopsCompressor, or use the unquantised model"
    for method in case.methods:
        if method not in methods:
            yield "quantisation not supported by vLLM-GCU", method, f"one of {', '.join(methods)}", hint
    if model.reordered:
        yield "GPTQ with reordered groups (g_idx)", "desc_act without static_groups", "groups in order", hint
    bits = {"gptq": (4, 8), "awq": (4,)}.get(model.quantization.removesuffix("_gcu"), ())
    if bits and model.bits and model.bits not in bits:
        widths = " or ".join(map(str, bits))
        yield f"{model.quantization.upper()} weights of this width", f"{model.bits} bits", f"{widths} bits", hint
    awq, gptq = case.thresholds.words("group_sizes_of_awq"), case.thresholds.whole("group_size_of_gptq")
    if "awq" in case.schemes and model.group and str(model.group) not in map(str, awq):
        yield "AWQ group size", str(model.group), " or ".join(map(str, awq)), hint
    if "gptq_4bit" in case.schemes and model.group and model.group % gptq:
        yield "GPTQ group size", str(model.group), f"{gptq} or a multiple of it", hint


def _bad_pair(case: EnflameCase) -> Iterator[Problem]:
    for table in case.schemes if _is_listed(case) else ():
        if not case.lists(table):
            pair = f"{case.model.architecture} in {_SCHEMES[table]}"
            yield "not supported by the vendor", pair, _format_table_headings(case), f"see {TABLE}"


_FLOATS = {
    "float16": ("bfloat16: three bits less precision per number",),
    "bfloat16": ("float16: values of a bfloat16 model can exceed its range",),
}
"""Type → the reason against the other type."""

_SCHEMES = {
    "float16": "FP16",
    "bfloat16": "BF16",
    "gptq_4bit": "W4A16 GPTQ",
    "gptq_8bit": "W8A16 GPTQ",
    "awq": "W4A16 AWQ",
    "w8a16": "W8A16",
    "w8a8": "W8A8 INT8",
}
"""Table → its heading in the vendor's documentation."""


def _is_listed(case: EnflameCase) -> bool:
    """Return whether any of the vendor's tables contains the architecture."""
    return any(case.lists(table) for table in _SCHEMES)


def choose_dtype(case: EnflameCase) -> Value:
    """Choose the type in which the vendor validated the model."""
    if case.schemes and not (case.model.geometry and case.model.geometry.experts):
        because = "the vendor's quantised kernels compute in float16 (W4A16, W8A16)"
        return Value("float16", because, ("bfloat16: the vendor does not run quantised models in it",))
    unstable = case.user_flags.vllm.refuse_float16(case.model.model_type)
    if unstable:
        return Value("bfloat16", f"vLLM refuses float16 for {case.model.model_type}: {unstable}", ("float16: refused",))
    if not _is_listed(case):
        unlisted = case.model.architecture or "this model"
        return Value("float16", f"the vendor's usual type; {TABLE} does not contain {unlisted}")
    return _validated_type(case)


def _validated_type(case: EnflameCase) -> Value:
    """Choose the stored type if it is validated, else the other one if that is, else the stored one."""
    model_dtype = {"half": "float16"}.get(case.model.dtype, case.model.dtype)
    if model_dtype in _FLOATS and case.lists(model_dtype):
        because = f"{TABLE}: {case.model.architecture} is validated in {_SCHEMES[model_dtype]}, the model's stored type"
        return Value(model_dtype, because, _FLOATS[model_dtype])
    if case.lists("float16"):
        because = f"{TABLE}: {case.model.architecture} is validated in FP16, the type that the vendor serves in"
        return Value("float16", because)
    if case.lists("bfloat16"):
        because = f"{TABLE}: {case.model.architecture} is validated in BF16, not in FP16"
        return Value("bfloat16", because, ("float16: not validated by the vendor",))
    because = f"{TABLE}: {case.model.architecture} is validated in {_format_table_headings(case)}, not in FP16 or BF16"
    return Value(model_dtype if model_dtype in _FLOATS else "float16", because)


def _format_table_headings(case: EnflameCase) -> str:
    """Return the headings of the vendor's tables that contain the architecture."""
    return " or ".join(heading for name, heading in _SCHEMES.items() if case.lists(name))


def _choose_expert_kernels(case: EnflameCase) -> dict[str, Value]:
    """Select the kernels for quantised experts: the plugin uses them only on request."""
    experts = case.model.geometry is not None and case.model.geometry.experts > 0
    if not experts or case.model.quantization not in ("awq", "gptq"):
        return {}
    because = (
        "the experts are quantised, and the plugin uses its kernels for quantised experts only if this flag names them"
    )
    return {
        QUANTIZATION: Value(
            "moe_wna16_gcu", because, (f"{case.model.quantization}: its kernels support dense layers only",)
        )
    }


# --- cards ----------------------------------------------------------------------------------------------------------


def _choose_enflame_cards(case: EnflameCase, chosen: Fit) -> dict[str, Value]:
    """Select cards if not all visible ones are needed."""
    all_cards = {device.number for device in case.facts.devices}
    numbers = [device.number for device in chosen.devices]
    if not numbers or set(numbers) == all_cards:
        return {}
    because = f"{format_id_list(tuple(numbers))} of {len(all_cards)} cards; the others stay free for another server"
    return {VISIBLE: Value(",".join(map(str, numbers)), because)}


def _choose_exchange_buffer(case: EnflameCase) -> dict[str, Value]:
    """Set the size of the buffer for the engines' exchange of tokens between experts, by the vendor's formula."""
    engines, tokens = case.user_flags.variable("VLLM_DP_SIZE"), case.user_flags.number(BATCHED)
    tokens = tokens or case.user_flags.number("--max-model-len")
    if not (engines and tokens and case.model.geometry and case.model.geometry.hidden and _spreads_experts(case)):
        return {}
    count, hidden = parse_count(engines, "VLLM_DP_SIZE"), case.model.geometry.hidden
    size = tokens * count * (hidden + _ROUTING) * 2
    because = f"{tokens} tokens of {count} engines, each with {hidden} numbers and its routing, at two bytes per number"
    vendor_value = Value("1", "the vendor sets it to serve experts over several engines")
    return {"ECCL_ALLTOALLV_MAXSIZE": Value(str(size), because), "TORCH_ECCL_AVOID_RECORD_STREAMS": vendor_value}


# --- notices --------------------------------------------------------------------------------------------------------


def _find_enflame_notices(case: EnflameCase) -> Iterator[Notice]:
    """Yield notices about the user's settings that are kept, and about what the vendor has not validated."""
    if case.model.architecture and not _is_listed(case):
        yield make_notice("GCU-031", case.model.architecture, "one of the list")
    yield from _type_notices(case)
    yield from _cache_notices(case)
    yield from _required_notices(case)


DEVICE, BACKEND, METHOD = "--device", "VLLM_ATTENTION_BACKEND", "VLLM_WORKER_MULTIPROC_METHOD"
"""What every start needs; the readme, required parameters."""


def _required_notices(case: EnflameCase) -> Iterator[Notice]:
    """Yield a notice for each value of the user's that the plugin does not work with."""
    stack = {item["setting"]: str(item["value"]) for item in case.profile["settings"]}
    device, backend, method = (
        case.user_flags.flag(DEVICE),
        case.user_flags.variable(BACKEND),
        case.user_flags.variable(METHOD),
    )
    if device not in (None, "gcu"):
        yield make_notice("GCU-039", f"{DEVICE} {device}", "gcu")
    if backend and BACKEND in stack and backend.upper() != stack[BACKEND]:
        yield make_notice("GCU-037", f"{BACKEND}={backend}", stack[BACKEND])
    if method not in (None, "spawn"):
        yield make_notice("GCU-038", f"{METHOD}={method}", "spawn")


def _type_notices(case: EnflameCase) -> Iterator[Notice]:
    """Yield a notice if the vendor has not validated the model in the type that serves it, whoever chose it."""
    stated = case.user_flags.flag("--dtype") or ""
    dtype = {"half": "float16"}.get(stated, stated) or str(choose_dtype(case).value)
    if dtype not in _FLOATS or case.methods or not _is_listed(case) or case.lists(dtype):
        return
    better = next((name for name in _FLOATS if case.lists(name)), "")
    if better:
        yield make_notice("GCU-032", f"--dtype {dtype}", better, dtype=dtype, better=better)
    else:
        yield make_notice(
            "GCU-036",
            f"{case.model.architecture} in {dtype}",
            _format_table_headings(case),
            scheme=_format_table_headings(case),
        )


def _cache_notices(case: EnflameCase) -> Iterator[Notice]:
    cache = case.user_flags.flag("--kv-cache-dtype") or "auto"
    if cache.startswith("fp8"):
        yield make_notice("GCU-033", f"--kv-cache-dtype {cache}", "int8")
    if cache == "auto":
        return
    if case.user_flags.flag("--quantization-param-path") is None:
        yield make_notice("GCU-034", "no --quantization-param-path", "the file of scales")
    if _is_listed(case) and not case.lists("int8_cache"):
        yield make_notice("GCU-035", case.model.architecture, "one of the list")
