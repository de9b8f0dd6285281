"""What a model and its weights ask of Gaudi: execution mode, quantisation, switches of single models. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from entrypoints.checks.findings import notice
from entrypoints.core.records import Device, Notice
from entrypoints.decide.case import Case
from entrypoints.decide.conversions import conversions, convert_command, other_images, output_name, suitable
from entrypoints.decide.records import Value
from entrypoints.decide.spread.fit import Fit
from entrypoints.decide.spread.layouts import EXECUTOR, EXPERT

LAZY, SKIP, QUANT = "PT_HPU_LAZY_MODE", "VLLM_SKIP_WARMUP", "QUANT_CONFIG"
QUANTIZATION = "--quantization"
SCRIPT = "start_gaudi_vllm_server.sh"
LINKED = 4
"""Gaudi2E cards that their own links join; the manual, 1.2.1."""

_TRUE = ("1", "true", "t", "yes", "y", "on")


class HabanaCase(Case):
    """What this accelerator's rules ask of the question."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The model's last name in lower case, which the vendor's lists of models go by."""
        return self.model.name.rstrip("/").rsplit("/", 1)[-1].lower()

    def named(self, threshold: str) -> bool:
        """Tell whether a list of models has this one."""
        return any(part in self.name for part in self.thresholds.words(threshold))

    def word(self, threshold: str) -> str:
        """Return a threshold that is a word."""
        return str(self.thresholds.table[threshold]["value"])

    def is_on(self, variable: str) -> bool:
        """Tell whether the user switched something on."""
        return (self.given.variable(variable) or "").lower() in _TRUE


def is_pcie(devices: tuple[Device, ...]) -> bool:
    """Tell whether the cards are Gaudi2E, whose own links join LINKED."""
    return any(device.name.startswith("HL-288") for device in devices)


_MODES = {
    ("1", False): "HPU graphs: recorded once, replayed without the host",
    ("1", True): "lazy without graphs: the host traces each step anew",
    ("0", False): "torch.compile",
    ("0", True): "eager: one operation after the other, for debugging",
}
"""Lazy mode and --enforce-eager → what they make together; README_GAUDI.md, execution modes."""


def mode(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Choose among lazy mode, graphs, torch.compile and eager, and what several cards need for it."""
    lazy = str(case.thresholds.whole("lazy_mode"))
    eager = case.given.flag("--enforce-eager") == "True"
    because = case.thresholds.table["lazy_mode"]["because"]
    others = tuple(
        f"{number}{' with --enforce-eager' if slow else ''}: {text}; this stack was validated otherwise"
        for (number, slow), text in _MODES.items()
        if number != lazy
    )
    values = {LAZY: Value(lazy, f"{_MODES[lazy, eager]}; {because}", others)}
    if chosen.tensor * chosen.pipeline > 1:
        because = "several cards with graphs: collectives are recorded into them"
        values["PT_HPU_ENABLE_LAZY_COLLECTIVES"] = Value("true", because)
    if EXPERT in chosen.values and case.thresholds.number("expert_variable"):
        values["VLLM_EP_SIZE"] = Value(str(chosen.tensor), "experts are spread over all ranks of the group")
    if case.given.flag(EXECUTOR) == "mp" or str(chosen.values.get(EXECUTOR, Value("", "")).value) == "mp":
        because = "a forked child inherits the driver's state and hangs at its end"
        values["VLLM_WORKER_MULTIPROC_METHOD"] = Value("spawn", because)
    return values


def quantised(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Return what the weights' type asks for."""
    method = case.model.quantization
    values = {"--dtype": Value("bfloat16", "what the matrix engine computes; vllm-gaudi converts float16 to it")}
    if case.given.variable(QUANT):
        values |= _calibrated(case, chosen)
    elif method in ("awq", "gptq") and case.thresholds.number("own_quantization"):
        values[QUANTIZATION] = Value(
            f"{method}_hpu", f"the weights are {method}, for which Gaudi has a kernel of its own"
        )
    elif _is_float8(case):
        values |= _loaded(case)
    return values


def _loaded(case: HabanaCase) -> dict[str, Value]:
    """Return what is done to float8 weights while Gaudi2 loads them, where the stack does something."""
    how = case.word("fp8_conversion")
    if case.model.converted and how in _SWITCHES:
        because = "the weights are converted already: scaling them again would round them twice"
        return {_SWITCHES[how]: Value("false", because)}
    if how != "variable":
        return {}
    because = "Gaudi2 computes float8 as e4m3fnuz: weights are halved and their scales doubled while loading"
    return {_SWITCHES[how]: Value("true", because, ("false: values above 240 overflow",))}


_SWITCHES = {"variable": "VLLM_HPU_CONVERT_TO_FP8UZ", "itself": "VLLM_SCALE_ADJUSTMENT"}
"""How a stack comes by weights that Gaudi2 computes → the variable that says whether it makes them while loading."""


def _calibrated(case: HabanaCase, chosen: Fit) -> dict[str, Value]:
    """Return what a QUANT_CONFIG of Intel Neural Compressor asks for."""
    because = f"{QUANT} names a quantisation configuration"
    values = {"PT_HPU_WEIGHT_SHARING": Value("0", f"{because}: shared weights would be quantised twice")}
    slow = "compiling fp8 operations takes minutes in a step"
    values["VLLM_ENGINE_ITERATION_TIMEOUT_S"] = Value("3600", slow, ("60, vLLM's own: the engine is declared dead",))
    values["VLLM_RPC_TIMEOUT"] = Value("600000", slow)
    if case.thresholds.number("inc_flags"):
        cache = "auto" if case.named("bfloat16_cache") else "fp8_inc"
        values[QUANTIZATION] = Value("inc", because)
        values["--kv-cache-dtype"] = Value(cache, f"{because}; this model's list says whether its cache is fp8 too")
        values["VLLM_DISABLE_MARK_SCALES_AS_CONST"] = Value("true", "constant scales are compiled into each graph anew")
    weights, device = case.model.weights, chosen.devices[0]
    if weights and device.memory_total and weights.loaded(2) // chosen.tensor > device.memory_total * 0.8:
        because = "in bfloat16 the weights are larger than the cards: they are quantised on the host"
        values["--weights-load-device"] = Value("cpu", because)
    return values


def _is_float8(case: HabanaCase) -> bool:
    """Tell whether the weights are float8 and the card is one whose float8 is another."""
    return case.model.quantization == "fp8" and case.architecture == "gaudi2"


def halved(case: HabanaCase) -> str:
    """Return how an unquantised model's weights could be made half as large, or nothing."""
    script = suitable(case.profile, case.model)
    if script is None or script.takes == "fp8":
        return ""
    return f"; or halve the weights: {convert_command(case.model.name, script)}"


def switches(case: HabanaCase) -> dict[str, Value]:
    """Return what single models and ranges need."""
    values: dict[str, Value] = {}
    if case.named("fp32_softmax_on"):
        values["VLLM_FP32_SOFTMAX"] = Value("true", f"{case.name} answers wrongly without it")
    elif case.named("fp32_softmax_off"):
        values["VLLM_FP32_SOFTMAX"] = Value("false", f"{case.name} is known to answer rightly without it, and faster")
    if any(part in case.model.architecture for part in case.thresholds.words("tensor_cache_architectures")):
        because = f"{case.model.architecture} reads inputs that graphs would otherwise forget"
        values["PT_HPUGRAPH_DISABLE_TENSOR_CACHE"] = Value("false", because)
    if any(part in case.model.architecture for part in case.thresholds.words("hybrid_architectures")):
        because = "hybrid layers compile better with it"
        values["ENABLE_EXPERIMENTAL_FLAGS"] = Value("true", because)
        values["ENABLE_SKIP_REMOVAL_OF_GRAPH_INPUT_IDENTITY_NODES"] = Value("true", because)
    lengths = case.given.intents.input
    if case.thresholds.number("zero_padding"):
        same = lengths is not None and lengths[0] == lengths[1]
        because = "all prompts are equally long" if same else "padding is computed as zeros, which costs less"
        values["VLLM_ZERO_PADDING"] = Value("false" if same else "true", because)
    return values


# --- what the user chose --------------------------------------------------------------------------------------------


def _unnamed(case: HabanaCase) -> Iterator[Notice]:
    """Yield that the platform does not name the weights' quantisation: vLLM then refuses to start."""
    method, methods = case.model.quantization, case.thresholds.words("quantization_methods")
    if method and method not in methods:
        yield notice("HPU-045", method, f"one of {', '.join(methods)}")


def _unconverted(case: HabanaCase) -> Iterator[Notice]:
    """Yield that weights must be converted before they are served."""
    if not _is_float8(case) or case.model.converted or case.word("fp8_conversion") != "beforehand":
        return
    name, script = case.model.name, suitable(case.profile, case.model)
    where = "" if script else f" ({other_images(case.profile)}; this one has none for such weights)"
    command = f"{convert_command(name, script)}{where}"
    yield notice("HPU-041", name, "weights that `convert` wrote", command=command, result=output_name(name))


def _unmeasured(case: HabanaCase) -> Iterator[Notice]:
    """Yield that Intel Neural Compressor was asked for without the measurements that it needs."""
    if case.given.flag(QUANTIZATION) != "inc" or case.given.variable(QUANT):
        return
    script = next((each for each in conversions(case.profile) if each.gives == "measurements"), None)
    how = convert_command(case.model.name, script) if script else other_images(case.profile)
    yield notice("HPU-046", f"no {QUANT}", f"{QUANT}=…/maxabs_quant_g2.json", command=how)


def warnings(case: HabanaCase, chosen: Fit) -> Iterator[Notice]:
    """Yield what is to be said about the model and the user's own choices."""
    yield from _unnamed(case)
    yield from _unconverted(case)
    yield from _unmeasured(case)
    if case.is_on(SKIP):
        yield notice("HPU-042", f"{SKIP}={case.given.variable(SKIP)}", "false")
    if is_pcie(chosen.devices) and chosen.tensor > LINKED and not case.thresholds.number("host_nic"):
        yield notice("HPU-043", f"{chosen.tensor} cards", f"at most {LINKED}, or the variant for host NICs")
    limits = [name for name in case.given.env if name.startswith("VLLM_") and name.endswith("_BUCKET_LIMIT")]
    if limits and "pad" not in case.thresholds.words("bucket_ways"):
        yield notice("HPU-044", f"{limits[0]}={case.given.env[limits[0]]}", "not set", variable=limits[0])
