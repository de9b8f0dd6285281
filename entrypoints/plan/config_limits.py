"""What vLLM's configuration classes refuse of options that do not fit together, whatever the hardware is. Pure.

Each rule is a `raise` that a user's options reach. Source: vLLM 0.21 to 0.33, config/*.py and engine/arg_utils.py; the
docstring of a rule names the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_version_numbers
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import (
    ADAPTERS_AT_ONCE,
    ATTENTION_BACKEND,
    ATTENTION_CONFIG,
    CONTEXT,
    DATA,
    EPLB,
    EXECUTOR,
    KV_TRANSFER,
    LENGTH,
    LOCAL,
    NUMA,
    PIPELINE,
    PREFILL_CONTEXT,
    QUANTIZATION,
    SEQUENCES,
    SPECULATION,
    TENSOR,
)
from entrypoints.request.option_values import TRUE, is_switched_on, read_json_key
from entrypoints.request.speculative import parse_speculation
from entrypoints.request.vllm_flags import UserFlags

EPLB_CONFIG, ELASTIC = "--eplb-config", "--enable-elastic-ep"
EXTERNAL, HYBRID, RANK = "--data-parallel-external-lb", "--data-parallel-hybrid-lb", "--data-parallel-rank"
CPU_ADAPTERS, MEDIA_ADAPTERS = "--max-cpu-loras", "--default-mm-loras"
TRACES, TRACES_TO = "--collect-detailed-traces", "--otlp-traces-endpoint"
SIZES, LARGEST = "--cudagraph-capture-sizes", "--max-cudagraph-capture-size"
ROUNDING, STATE_TYPE = "--enable-mamba-cache-stochastic-rounding", "--mamba-ssm-cache-dtype"
STATE_ALGORITHM, STATE_BACKEND = "--mamba-ssu-algorithm", "--mamba-backend"
STRUCTURED, PROFILER, ENCODERS = "--structured-outputs-config", "--profiler-config", "--ec-transfer-config"
TOWER_BACKEND = "--mm-encoder-attn-backend"
SLEEP, ROUTED, OLD_METHODS = "--enable-sleep-mode", "--enable-return-routed-experts", "--allow-deprecated-quantization"
ASYNC, METRICS = "--async-scheduling", "--per-request-spec-decode-metrics"
UNSYNCHRONISED = ("ngram", "[ngram]", "suffix", "medusa", "mlp_speculator")
"""Methods that draft on the host between two steps, which --async-scheduling takes since 0.33."""
ANY_METHOD_FROM = (0, 33)
FROM, ROUTED_FROM = (0, 21), (0, 32)
"""The first versions that have all these rules, but for the ones on --enable-return-routed-experts."""


class Options(NamedTuple):
    """What the rules look at."""

    vllm: tuple[int, ...]
    accelerator: str
    model: ModelFacts
    user_flags: UserFlags
    settings: Mapping[str, str | bool]

    def has(self, *names: str) -> bool:
        """Return whether the user or the plan sets one of these options."""
        return any(self.settings.get(name) not in (None, "", False, "false", "False") for name in names)

    def is_on(self, name: str) -> bool:
        """Return whether a switch is set."""
        return is_switched_on(self.settings, name)

    def count(self, name: str, default: int = 0) -> int:
        """Return a whole number; the default for what is none."""
        value = self.settings.get(name)
        text = value if isinstance(value, str) else ""
        return int(text) if text.isdecimal() and len(text) <= 9 else default  # noqa: PLR2004

    def field(self, option: str, name: str) -> Any:
        """Return a key of an option that takes JSON; None without it."""
        return read_json_key(self.settings, option, name)


class Fault(NamedTuple):
    """Options that do not fit together."""

    name: str
    """The option that is at fault."""
    problem: str
    expected: str


def find_config_refusals(
    profile: Mapping[str, Any], model: ModelFacts, user_flags: UserFlags, settings: Mapping[str, str | bool]
) -> Iterator[Refusal]:
    """Yield options that vLLM's configuration refuses together."""
    options = Options(parse_version_numbers(profile["vllm"])[:2], profile["accelerator"], model, user_flags, settings)
    for rule in RULES if options.vllm >= FROM else ():
        for name, problem, expected in rule(options):
            yield Refusal(name, problem, expected, is_of_release=True)


def check_adapters(options: Options) -> Iterator[Fault]:
    """config/lora.py, _validate_lora_config; engine/arg_utils.py."""
    on_host, at_once = options.count(CPU_ADAPTERS), options.count(ADAPTERS_AT_ONCE, 1)
    if on_host and on_host < at_once:
        problem = f"{CPU_ADAPTERS} {on_host} with {ADAPTERS_AT_ONCE} {at_once}"
        yield Fault(CPU_ADAPTERS, problem, "as many as at once, or more")
    if options.has(MEDIA_ADAPTERS) and not options.model.modalities and options.model.geometry:
        yield Fault(MEDIA_ADAPTERS, f"{MEDIA_ADAPTERS} for a model of text alone", "a model that reads images or audio")


def check_scheduler(options: Options) -> Iterator[Fault]:
    """config/scheduler.py, verify_max_model_len."""
    length = options.count(LENGTH) or (options.model.geometry and options.model.geometry.max_length) or 0
    threshold, active = options.count("--long-prefill-token-threshold"), options.count("--max-num-active-seqs")
    if length and threshold > length:
        name = "--long-prefill-token-threshold"
        yield Fault(name, f"{name} {threshold} for requests of {length} tokens", f"{length} or less")
    if active and options.count(SEQUENCES) and active > options.count(SEQUENCES):
        problem = f"--max-num-active-seqs {active} with {SEQUENCES} {options.count(SEQUENCES)}"
        yield Fault("--max-num-active-seqs", problem, f"at most {SEQUENCES}")


def check_data_parallel(options: Options) -> Iterator[Fault]:
    """config/parallel.py, _validate_parallel_config and __post_init__; engine/arg_utils.py, create_engine_config."""
    ranks, local = options.count(DATA, 1), options.count(LOCAL)
    if options.is_on(HYBRID) and options.is_on(EXTERNAL):
        yield Fault(EXTERNAL, f"{HYBRID} with {EXTERNAL}", "one of the two")
    if options.is_on(EXTERNAL) and ranks <= 1:
        yield Fault(EXTERNAL, f"{EXTERNAL} with {DATA} {ranks}", f"{DATA} of 2 or more")
    if local > ranks:
        yield Fault(LOCAL, f"{LOCAL} {local} with {DATA} {ranks}", f"{ranks} or less")
    if options.has(RANK) and options.count(RANK) >= ranks:
        yield Fault(RANK, f"{RANK} {options.count(RANK)} with {DATA} {ranks}", f"a number from 0 to {ranks - 1}")
    has_ranks = options.has(RANK) or options.is_on(EXTERNAL)
    if has_ranks and ranks > 1 and options.model.geometry and not options.model.geometry.experts:
        problem = f"{DATA} {ranks} with a rank for each server, for a model without experts"
        yield Fault(DATA, problem, "servers without it")
    if options.is_on("--ray-workers-use-nsight") and options.settings.get(EXECUTOR) != "ray":
        yield Fault("--ray-workers-use-nsight", "--ray-workers-use-nsight without Ray", f"{EXECUTOR} ray")
    if options.has("--numa-bind-nodes", "--numa-bind-cpus") and not options.is_on(NUMA):
        yield Fault("--numa-bind-nodes", f"--numa-bind-nodes or --numa-bind-cpus without {NUMA}", f"{NUMA} too")


def check_expert_balance(options: Options) -> Iterator[Fault]:
    """config/parallel.py, _validate_parallel_config and __post_init__."""
    ranks = options.count(TENSOR, 1) * options.count(PREFILL_CONTEXT, 1) * options.count(DATA, 1)
    redundant = options.field(EPLB_CONFIG, "num_redundant_experts")
    if options.is_on(EPLB) and options.accelerator in ("cpu", "tpu"):
        yield Fault(EPLB, f"{EPLB} on {options.accelerator}", "a GPU")
    if options.is_on(EPLB) and ranks <= 1:
        yield Fault(EPLB, f"{EPLB} with one rank", f"{TENSOR} or {DATA} of 2 or more")
    if not options.is_on(EPLB) and redundant not in (None, 0, "0"):
        yield Fault(EPLB_CONFIG, f"{EPLB_CONFIG}: num_redundant_experts {redundant} without {EPLB}", f"{EPLB} too")
    if options.is_on(ELASTIC) and not options.is_on(EPLB):
        yield Fault(ELASTIC, f"{ELASTIC} without {EPLB}", f"{EPLB} too")
    if options.is_on(ELASTIC) and options.count(PIPELINE, 1) > 1:
        yield Fault(ELASTIC, f"{ELASTIC} with {PIPELINE} {options.count(PIPELINE)}", f"{PIPELINE} 1")
    if options.is_on(ROUTED) and options.vllm >= ROUTED_FROM:
        if options.model.geometry and not options.model.geometry.experts:
            yield Fault(ROUTED, f"{ROUTED} for a model without experts", "a model with experts")
        for name in (PIPELINE, CONTEXT, PREFILL_CONTEXT):
            if options.count(name, 1) > 1:
                yield Fault(ROUTED, f"{ROUTED} with {name} {options.count(name)}", f"{name} 1")


def check_connectors(options: Options) -> Iterator[Fault]:
    """config/kv_transfer.py and config/ec_transfer.py, __post_init__."""
    for option, prefix in ((KV_TRANSFER, "kv"), (ENCODERS, "ec")):
        connector, role = options.field(option, f"{prefix}_connector"), options.field(option, f"{prefix}_role")
        roles = tuple(f"{prefix}_{role}" for role in ("producer", "consumer", "both"))
        if connector and role is None:
            problem = f"{option}: {connector} without {prefix}_role"
            yield Fault(option, problem, f"{prefix}_role, one of {', '.join(roles)}")
        elif role is not None and role not in roles:
            yield Fault(option, f"{option}: {prefix}_role {role}", f"one of {', '.join(roles)}")


def check_graphs(options: Options) -> Iterator[Fault]:
    """config/vllm.py, _set_cudagraph_sizes; engine/arg_utils.py, create_engine_config."""
    sizes = [int(word) for word in str(options.settings.get(SIZES, "")).replace(",", " ").split() if word.isdecimal()]
    largest = options.count(LARGEST)
    if sizes and largest and max(sizes) != largest:
        yield Fault(LARGEST, f"{LARGEST} {largest} with {SIZES} up to {max(sizes)}", f"{max(sizes)}, or one of the two")
    if options.has(ATTENTION_BACKEND) and options.field(ATTENTION_CONFIG, "backend") is not None:
        yield Fault(ATTENTION_BACKEND, f"{ATTENTION_BACKEND} with {ATTENTION_CONFIG} backend", "one of the two")


def check_states(options: Options) -> Iterator[Fault]:
    """config/mamba.py, __post_init__ and validate_ssu_algorithm; config/vllm.py, __post_init__."""
    if options.is_on(ROUNDING) and options.accelerator != "cuda":
        yield Fault(ROUNDING, f"{ROUNDING} on {options.accelerator}", "an NVIDIA GPU")
    elif options.is_on(ROUNDING) and options.settings.get(STATE_TYPE) != "float16":
        yield Fault(ROUNDING, f"{ROUNDING} without {STATE_TYPE} float16", f"{STATE_TYPE} float16")
    algorithm = options.settings.get(STATE_ALGORITHM, "auto")
    if algorithm != "auto" and options.settings.get(STATE_BACKEND) != "flashinfer":
        problem = f"{STATE_ALGORITHM} {algorithm} without {STATE_BACKEND} flashinfer"
        yield Fault(STATE_ALGORITHM, problem, f"{STATE_BACKEND} flashinfer")


def check_media(options: Options) -> Iterator[Fault]:
    """config/multimodal.py; config/model.py, verify_with_parallel_config; get_supported_vit_attn_backends."""
    world = options.count(TENSOR, 1) * options.count(PIPELINE, 1) * options.count(DATA, 1)
    if not options.model.modalities:
        return
    if options.settings.get("--mm-tensor-ipc") == "torch_shm" and world > 1:
        yield Fault("--mm-tensor-ipc", f"--mm-tensor-ipc torch_shm with {world} ranks", "direct_rpc, or one rank")
    largest = "--mm-shm-cache-max-object-size-mb"
    if options.has(largest) and options.settings.get("--mm-processor-cache-type") != "shm":
        yield Fault(largest, f"{largest} without --mm-processor-cache-type shm", "--mm-processor-cache-type shm")
    scales = [name for name in ("--mm-encoder-fp8-scale-path", "--mm-encoder-fp8-scale-save-path") if options.has(name)]
    if scales and options.settings.get("--mm-encoder-attn-dtype") != "fp8":
        yield Fault(scales[0], f"{scales[0]} without --mm-encoder-attn-dtype fp8", "--mm-encoder-attn-dtype fp8")
    backends = options.user_flags.vllm.lists.get("vision_backends", {}).get(options.accelerator)
    backend = str(options.settings.get(TOWER_BACKEND) or "auto").upper()
    if backends and backend not in (*backends, "AUTO"):
        problem = f"{TOWER_BACKEND} {backend} on {options.accelerator}"
        yield Fault(TOWER_BACKEND, problem, f"one of {', '.join(backends)}")


def check_methods(options: Options) -> Iterator[Fault]:
    """config/model.py, _verify_quantization; platforms/interface.py, verify_quantization, is_sleep_mode_available."""
    method = str(options.settings.get(QUANTIZATION) or options.model.quantization)
    lists = options.user_flags.vllm
    if method in (lists.names("deprecated_quantisations") or ()) and not options.is_on(OLD_METHODS):
        yield Fault(method, f"quantisation method {method}, which vLLM will remove", OLD_METHODS)
    of_platform = lists.lists.get("platform_quantisations", {}).get(options.accelerator, ())
    if QUANTIZATION in options.user_flags.flags and of_platform and method not in of_platform:
        expected = f"one of {', '.join(of_platform)}"
        yield Fault(method, f"{QUANTIZATION} {method} on {options.accelerator}", expected)
    if options.is_on(SLEEP) and options.accelerator in ("cpu", "tpu"):
        yield Fault(SLEEP, f"{SLEEP} on {options.accelerator}", "a GPU")


def check_drafting(options: Options) -> Iterator[Fault]:
    """config/vllm.py, __post_init__; engine/arg_utils.py, create_speculative_config."""
    fields = parse_speculation(options.user_flags)
    method = fields.get("method") or fields.get("model")
    if options.is_on(ASYNC) and options.vllm < ANY_METHOD_FROM and method in UNSYNCHRONISED:
        problem = f"{ASYNC} with {SPECULATION}: method {method}"
        yield Fault(ASYNC, problem, "--no-async-scheduling, or a method with a draft model, MTP or ngram_gpu")
    if options.has(METRICS) and options.settings[METRICS] != "none" and not fields:
        yield Fault(METRICS, f"{METRICS} without {SPECULATION}", f"{SPECULATION} too")


def check_reports(options: Options) -> Iterator[Fault]:
    """config/observability.py, structured_outputs.py and profiler.py, the validators."""
    if options.has(TRACES) and not options.has(TRACES_TO):
        yield Fault(TRACES, f"{TRACES} without {TRACES_TO}", f"{TRACES_TO} too")
    backend = options.field(STRUCTURED, "backend") or "auto"
    if options.field(STRUCTURED, "disable_any_whitespace") in TRUE and backend not in ("xgrammar", "guidance"):
        yield Fault(STRUCTURED, f"{STRUCTURED}: disable_any_whitespace with backend {backend}", "xgrammar or guidance")
    if options.field(STRUCTURED, "disable_additional_properties") in TRUE and backend != "guidance":
        yield Fault(STRUCTURED, f"{STRUCTURED}: disable_additional_properties with backend {backend}", "guidance")
    profiler = options.field(PROFILER, "profiler")
    folder = options.field(PROFILER, "torch_profiler_dir")
    if profiler == "torch" and not folder:
        yield Fault(PROFILER, f"{PROFILER}: profiler torch without torch_profiler_dir", "torch_profiler_dir")
    if folder and profiler != "torch":
        yield Fault(PROFILER, f"{PROFILER}: torch_profiler_dir with profiler {profiler}", "profiler torch")


RULES: tuple[Callable[[Options], Iterator[Fault]], ...] = (
    check_adapters,
    check_scheduler,
    check_data_parallel,
    check_expert_balance,
    check_connectors,
    check_graphs,
    check_states,
    check_media,
    check_methods,
    check_drafting,
    check_reports,
)
