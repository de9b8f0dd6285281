"""Gaudi settings that follow from the model: execution mode, quantisation, settings of single models. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from entrypoints.checks.findings import make_notice
from entrypoints.core.records import Device, Notice, Value
from entrypoints.decide.conversions import (
    convert_command,
    find_default_conversion,
    folder_of,
    list_model_conversions,
    other_images,
    output_name,
)
from entrypoints.decide.decision_input import Case
from entrypoints.decide.parallelism.fit import Fit
from entrypoints.request.flags import EXECUTOR, EXPERT, LENGTH, NODES, QUANTIZATION

LAZY, SKIP, QUANT = "PT_HPU_LAZY_MODE", "VLLM_SKIP_WARMUP", "QUANT_CONFIG"
PREFIX, MEASURED = "INC_MEASUREMENT_DUMP_PATH_PREFIX", "scripts/nc_workspace_measure_kvcache"
"""Where measurements are: the folder that the configuration's path starts from, and their folder below it."""
SCRIPT = "start_gaudi_vllm_server.sh"
LINKED = 4
"""The number of Gaudi2E cards that direct links join; the manual, 1.2.1."""
NICS = "/dev/infiniband/uverbs[0-9]*"
"""The device files of the host's network cards, as `run` in accelerator.yaml names them."""

COLLECTIVES = "PT_HPU_ENABLE_LAZY_COLLECTIVES"

_TRUE = ("1", "true", "t", "yes", "y", "on")


class HabanaCase(Case):
    """The input, with look-ups that Gaudi's rules use."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The last part of the model's name in lower case, as in the vendor's lists of models."""
        return self.model.name.rstrip("/").rsplit("/", 1)[-1].lower()

    def named(self, threshold: str) -> bool:
        """Return whether a list of models contains this one."""
        return any(part in self.name for part in self.thresholds.words(threshold))

    def word(self, threshold: str) -> str:
        """Return a threshold that is a word."""
        return str(self.thresholds.table[threshold]["value"])

    def is_on(self, variable: str) -> bool:
        """Return whether the user enabled a variable."""
        return (self.user_flags.variable(variable) or "").lower() in _TRUE


def is_pcie(devices: tuple[Device, ...]) -> bool:
    """Return whether the cards are Gaudi2E, of which direct links join only LINKED."""
    return any(device.name.startswith("HL-288") for device in devices)


_MODES = {
    ("1", False): "HPU graphs, recorded once and replayed without the host",
    ("1", True): "lazy mode without graphs: the host traces each step again",
    ("0", False): "torch.compile",
    ("0", True): "eager mode: one operation at a time, for debugging",
}
"""Lazy mode and --enforce-eager → the resulting execution mode; README_GAUDI.md, execution modes."""


def choose_execution_mode(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Choose among lazy mode, graphs, torch.compile and eager mode, with the settings for several cards."""
    lazy = str(case.thresholds.whole("lazy_mode"))
    eager = is_eager(case)
    because = case.thresholds.table["lazy_mode"]["because"]
    other_modes = tuple(
        f"{number}{' with --enforce-eager' if slow else ''}: {text}; this stack was not validated with it"
        for (number, slow), text in _MODES.items()
        if number != lazy
    )
    values = {LAZY: Value(lazy, f"{_MODES[lazy, eager]}; {because}", other_modes)}
    if chosen.tensor * chosen.pipeline > 1:
        because = "several cards with graphs: the graphs include the collectives"
        values[COLLECTIVES] = Value("true", because)
    if EXPERT in chosen.values and case.thresholds.number("expert_variable"):
        values["VLLM_EP_SIZE"] = Value(str(chosen.tensor), "the experts are distributed over all ranks of the group")
    if case.user_flags.flag(EXECUTOR) == "mp" or str(chosen.values.get(EXECUTOR, Value("", "")).value) == "mp":
        because = "a forked process inherits the driver's state and hangs when it ends"
        values["VLLM_WORKER_MULTIPROC_METHOD"] = Value("spawn", because)
    return values


def is_eager(case: HabanaCase) -> bool:
    """Return whether the user turned graphs off."""
    return case.user_flags.flag("--enforce-eager") == "True"


def choose_quantisation(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Return the settings for the weights' type."""
    method = case.model.quantization
    values = {"--dtype": Value("bfloat16", "the matrix engine computes in bfloat16; vllm-gaudi converts float16 to it")}
    if case.user_flags.variable(QUANT):
        values |= _choose_calibration(case, chosen)
    elif method in ("awq", "gptq") and case.thresholds.number("own_quantization"):
        values[QUANTIZATION] = Value(f"{method}_hpu", f"Gaudi has its own kernel for {method} weights")
    elif _is_float8(case):
        values |= _float8_conversion(case)
    return values


def _float8_conversion(case: HabanaCase) -> dict[str, Value]:
    """Return the settings that control the conversion of float8 weights while Gaudi2 loads them."""
    how = case.word("fp8_conversion")
    if case.model.converted and how in _SWITCHES:
        because = "the weights are converted already; a second scaling would round them twice"
        return {_SWITCHES[how]: Value("false", because)}
    if how != "variable":
        return {}
    because = "Gaudi2 computes float8 as e4m3fnuz, so loading halves the weights and doubles their scales"
    return {_SWITCHES[how]: Value("true", because, ("false: values above 240 overflow",))}


_SWITCHES = {"variable": "VLLM_HPU_CONVERT_TO_FP8UZ", "itself": "VLLM_SCALE_ADJUSTMENT"}
"""The stack's way to convert float8 weights → the variable that enables the conversion while loading."""


def _choose_calibration(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Return the settings for a QUANT_CONFIG of Intel Neural Compressor: all that the vendor's -q sets.

    Sources: set_dtype in the fork's scripts/utils.sh; -q in scripts/quickstart/start_vllm.sh of deepseek_r1;
    vllm-gaudi's docs/configuration/quantization/inc.md.
    """
    because = f"{QUANT} names a quantisation configuration"
    values = {"PT_HPU_WEIGHT_SHARING": Value("0", f"{because}, and shared weights would be quantised twice")}
    slow = "one step can take minutes, because it compiles fp8 operations"
    instead = ("60, vLLM's default: vLLM would declare the engine dead",)
    values["VLLM_ENGINE_ITERATION_TIMEOUT_S"] = Value("3600", slow, instead)
    values["VLLM_RPC_TIMEOUT"] = Value("600000", slow)
    again = is_requantised(case)
    if case.thresholds.number("inc_flags"):
        cache = "auto" if keeps_bfloat16_cache(case) else "fp8_inc"
        if not case.model.quantization:  # vLLM refuses a method other than that of the model
            values[QUANTIZATION] = Value("inc", because)
        values["--kv-cache-dtype"] = Value(
            cache, f"{because}; the vendor's list of models, or its name (bf16kv), decides whether the cache is fp8 too"
        )
    values |= _choose_constant_scales(case)
    if again:
        return values | _choose_requantisation(case)
    weights, device = case.model.weights, chosen.devices[0]
    if weights and device.memory_total and weights.loaded(2) // chosen.tensor > device.memory_total * 0.8:
        because = "in bfloat16 the weights are larger than the cards' memory, so they are quantised on the host"
        values["--weights-load-device"] = Value("cpu", because)
    return values


def keeps_bfloat16_cache(case: HabanaCase) -> bool:
    """Return whether the KV cache stays in bfloat16: the vendor's list of models, or the configuration, says so.

    The vendor names such configurations so: inc_quant_per_channel_bf16kv.json in scripts/quant_configs of deepseek_r1.
    """
    name = (case.user_flags.variable(QUANT) or "").rpartition("/")[2].lower()
    return case.named("bfloat16_cache") or "bf16kv" in name


_SCALES = {"VLLM_DISABLE_MARK_SCALES_AS_CONST": "true", "VLLM_HPU_MARK_SCALES_AS_CONST": "false"}
"""The stack's variable for constant scales → the value that turns them off."""


def _choose_constant_scales(case: HabanaCase) -> dict[str, Value]:
    """Return the setting without which the warm-up compiles each graph for its own scales."""
    variable = case.word("constant_scales")
    if variable not in _SCALES:
        return {}
    return {variable: Value(_SCALES[variable], "constant scales would be compiled into each graph again")}


def is_requantised(case: HabanaCase) -> bool:
    """Return whether QUANT_CONFIG quantises float8 weights again, with the scales that were measured."""
    stack = bool(case.thresholds.number("requantise_float8"))
    return stack and case.user_flags.variable(QUANT) is not None and case.model.quantization == "fp8"


def _choose_requantisation(case: HabanaCase) -> dict[str, Value]:
    """Return the variables of start_vllm.sh -q that make vLLM apply the measurements to float8 weights."""
    why = f"{QUANT} applies to float8 weights only with this variable (-q of start_vllm.sh)"
    sliced = ("8, as without measurements: vLLM stops, as it expects 1 with VLLM_REQUANT_FP8_INC",)
    naive = ("0: scales aligned to the hardware, which are faster and less accurate",)
    values = {
        "VLLM_REQUANT_FP8_INC": Value("1", why),
        "VLLM_ENABLE_RUNTIME_DEQUANT": Value("1", f"{why}: weights with scales per block are dequantised as needed"),
        "VLLM_MOE_N_SLICE": Value("1", "with measurements the experts are computed in one slice", sliced),
        "INC_FORCE_NAIVE_SCALING": Value("1", "the measured scales, unchanged, are more accurate", naive),
    }
    root = measured_root(case)
    if root and not case.user_flags.variable(PREFIX):
        because = f"{QUANT} is in the vendor's layout: its measurements are below this folder, in {MEASURED}"
        values[PREFIX] = Value(root, because)
    return values


def measured_root(case: HabanaCase) -> str:
    """Return the folder that a configuration's relative path of measurements starts from; empty if it is not known."""
    root, layout, _ = (case.user_flags.variable(QUANT) or "").rpartition("/scripts/quant_configs/")
    return root if layout else ""


def _is_float8(case: HabanaCase) -> bool:
    """Return whether the weights are float8 on Gaudi2, whose float8 format differs."""
    return case.model.quantization == "fp8" and case.architecture == "gaudi2"


def halving_hint(case: HabanaCase) -> str:
    """Return a hint to convert an unquantised model to weights of half the size; empty if there is no script."""
    script = find_default_conversion(case.profile, case.model)
    if script is None or script.takes == "fp8":
        return ""
    return f"; or halve the weights: {convert_command(case.profile, case.model.name, script)}"


def model_settings(case: HabanaCase) -> dict[str, Value]:
    """Return settings for single models and for input ranges."""
    values: dict[str, Value] = {}
    if case.named("fp32_softmax_on"):
        values["VLLM_FP32_SOFTMAX"] = Value("true", f"{case.name} gives wrong answers without it")
    elif case.named("fp32_softmax_off"):
        values["VLLM_FP32_SOFTMAX"] = Value("false", f"{case.name} gives correct answers without it, and is faster")
    if any(part in case.model.architecture for part in case.thresholds.words("tensor_cache_architectures")):
        because = f"{case.model.architecture} reads inputs that graphs would otherwise discard"
        values["PT_HPUGRAPH_DISABLE_TENSOR_CACHE"] = Value("false", because)
    if any(part in case.model.architecture for part in case.thresholds.words("hybrid_architectures")):
        because = "hybrid layers compile better with this setting"
        values["ENABLE_EXPERIMENTAL_FLAGS"] = Value("true", because)
        values["ENABLE_SKIP_REMOVAL_OF_GRAPH_INPUT_IDENTITY_NODES"] = Value("true", because)
    lengths = case.user_flags.intents.input
    if case.thresholds.number("zero_padding"):
        has_equal_lengths = lengths is not None and lengths[0] == lengths[1]
        because = "all prompts have the same length" if has_equal_lengths else "padding with zeros costs less"
        values["VLLM_ZERO_PADDING"] = Value("false" if has_equal_lengths else "true", because)
    return values


# --- notices --------------------------------------------------------------------------------------------------------


def _unsupported_quantisation(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice for a quantisation that the platform does not list: vLLM refuses to start with it."""
    method, methods = case.model.quantization, case.thresholds.words("quantization_methods")
    if method and method not in methods:
        yield make_notice("HPU-045", method, f"one of {', '.join(methods)}" if methods else "an unquantised model")


def _refused_quantisation(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice for --quantization inc for a quantised model: vLLM's _verify_quantization refuses it."""
    method = case.model.quantization
    if case.user_flags.flag(QUANTIZATION) == "inc" and method not in ("", "inc"):
        yield make_notice("HPU-052", f"{QUANTIZATION} inc", f"no {QUANTIZATION}, or {method}", method=method)


def _check_conversion(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice if the weights must be converted before serving."""
    if not _is_float8(case) or case.model.converted or case.word("fp8_conversion") != "beforehand":
        return
    name, script = case.model.name, find_default_conversion(case.profile, case.model)
    where = "" if script else f" ({other_images(case.profile)}; this image has none for these weights)"
    command = f"{convert_command(case.profile, name, script)}{where}"
    output = output_name(case.profile, folder_of(name))
    yield make_notice("HPU-041", name, "weights that `convert` wrote", command=command, result=output)


def _check_measurements(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice if Intel Neural Compressor is selected without its measurements."""
    if case.user_flags.variable(QUANT):
        if is_requantised(case) and not measured_root(case) and not case.user_flags.variable(PREFIX):
            yield make_notice("HPU-048", f"{QUANT}={case.user_flags.variable(QUANT)}, no {PREFIX}", PREFIX)
        return
    repository = _find_measurements(case)
    if repository:
        yield make_notice("HPU-047", f"no {QUANT}", f"{QUANT} and {repository}", repository=repository)
    if case.user_flags.flag(QUANTIZATION) != "inc":
        return
    scripts = (script for script in list_model_conversions(case.profile) if script.gives == "measurements")
    script = next(scripts, None)
    command = convert_command(case.profile, case.model.name, script) if script else other_images(case.profile)
    yield make_notice("HPU-046", f"no {QUANT}", f"{QUANT}=…/maxabs_quant_g2.json", command=command)


def _find_measurements(case: HabanaCase) -> str:
    """Return the repository of the measurements that the vendor publishes for the model; empty if there is none."""
    pairs = (entry.partition("=") for entry in case.thresholds.words("measurements"))
    return next((repository for name, _, repository in pairs if _is_model(case, name)), "")


def _is_model(case: HabanaCase, name: str) -> bool:
    """Return whether the model has this name, as published or converted: DeepSeek-R1-G2, but not a distilled one."""
    return case.name.removesuffix(f"-{case.profile['converted_name'].lower()}") == name


_FEATURES = {
    "lora": ("LoRA adapters", "--enable-lora"),
    "chunked-prefill": ("chunked prefill", "--enable-chunked-prefill"),
    "quantization": ("quantisation", QUANTIZATION),
}
"""Feature → its name, and the flag that asks for it."""


def _check_stack_features(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice for each feature that the user asks for and the stack lacks."""
    for feature in case.thresholds.words("unsupported"):
        what, flag = _FEATURES[feature]
        requested = case.user_flags.flag(flag)
        if requested not in (None, "False"):
            setting = flag if requested == "True" else f"{flag} {requested}"
            yield make_notice("HPU-051", setting, f"no {flag}", what=what, flag=flag)


def _too_long(case: HabanaCase, chosen: Fit) -> Iterator[Notice]:
    """Yield a notice for a length beyond the vendor's largest on one host."""
    most, length = case.thresholds.whole("longest_on_one_host"), chosen.length or 0
    if 0 < most < length and case.user_flags.number(NODES) in (None, 1):
        yield make_notice("HPU-049", f"{LENGTH} {length}", f"at most {most}", most=str(most))


def _check_host_nics(case: HabanaCase, chosen: Fit) -> Iterator[Notice]:
    """Yield a notice if more PCIe cards than links join lack the libraries, or the device files, of host NICs."""
    if not case.thresholds.number("host_nic"):
        yield make_notice("HPU-043", f"{chosen.tensor} cards", f"at most {LINKED}, or the variant with host NICs")
    elif case.facts.grants.get(NICS) is False:
        yield make_notice(
            "HPU-053", f"{NICS}: none to open, for {chosen.tensor} cards", "a device file for each network card"
        )


def find_gaudi_notices(case: HabanaCase, chosen: Fit) -> Iterator[Notice]:
    """Yield notices about the model and the user's settings."""
    yield from _unsupported_quantisation(case)
    yield from _refused_quantisation(case)
    yield from _check_conversion(case)
    yield from _check_measurements(case)
    yield from _check_stack_features(case)
    yield from _too_long(case, chosen)
    if case.is_on(SKIP):
        yield make_notice("HPU-042", f"{SKIP}={case.user_flags.variable(SKIP)}", "false")
    if is_pcie(chosen.devices) and chosen.tensor > LINKED:
        yield from _check_host_nics(case, chosen)
    limits = [name for name in case.user_flags.env if name.startswith("VLLM_") and name.endswith("_BUCKET_LIMIT")]
    if limits and "pad" not in case.thresholds.words("bucket_ways"):
        yield make_notice("HPU-044", f"{limits[0]}={case.user_flags.env[limits[0]]}", "not set", variable=limits[0])
