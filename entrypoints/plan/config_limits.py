"""What vLLM's configuration classes refuse of options that do not fit together, whatever the hardware is. Pure.

Each rule is a `raise` that a user's options reach. Source: vLLM 0.21 to 0.33, config/*.py and engine/arg_utils.py; the
docstring of a rule names the method.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_version_numbers
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import (
    ADAPTERS_AT_ONCE,
    CONTEXT,
    DATA,
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
from entrypoints.request.speculative import parse_speculation
from entrypoints.request.vllm_flags import UserFlags

EPLB, EPLB_CONFIG, ELASTIC = "--enable-eplb", "--eplb-config", "--enable-elastic-ep"
EXTERNAL, HYBRID, RANK = "--data-parallel-external-lb", "--data-parallel-hybrid-lb", "--data-parallel-rank"
CPU_ADAPTERS, MEDIA_ADAPTERS = "--max-cpu-loras", "--default-mm-loras"
TRACES, TRACES_TO = "--collect-detailed-traces", "--otlp-traces-endpoint"
SIZES, LARGEST = "--cudagraph-capture-sizes", "--max-cudagraph-capture-size"
ROUNDING, STATE_TYPE = "--enable-mamba-cache-stochastic-rounding", "--mamba-ssm-cache-dtype"
STATE_ALGORITHM, STATE_BACKEND = "--mamba-ssu-algorithm", "--mamba-backend"
STRUCTURED, PROFILER, ENCODERS = "--structured-outputs-config", "--profiler-config", "--ec-transfer-config"
BACKEND, BACKEND_CONFIG, TOWER_BACKEND = "--attention-backend", "--attention-config", "--mm-encoder-attn-backend"
SLEEP, ROUTED, OLD_METHODS = "--enable-sleep-mode", "--enable-return-routed-experts", "--allow-deprecated-quantization"
ASYNC, METRICS = "--async-scheduling", "--per-request-spec-decode-metrics"
TRUE = (True, "true", "True", "1")
UNSYNCHRONISED = ("ngram", "[ngram]", "suffix", "medusa", "mlp_speculator")
"""Methods that draft on the host between two steps, which --async-scheduling takes since 0.33."""
ANY_METHOD_FROM = (0, 33)


FROM, ROUTED_FROM = (0, 21), (0, 32)
"""The first versions that have all these rules, but for the ones on --enable-return-routed-experts."""


class Asked(NamedTuple):
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
        return self.settings.get(name) in TRUE

    def count(self, name: str, default: int = 0) -> int:
        """Return a whole number; the default for what is none."""
        value = self.settings.get(name)
        text = value if isinstance(value, str) else ""
        return int(text) if text.isdecimal() and len(text) <= 9 else default  # noqa: PLR2004

    def field(self, option: str, name: str) -> Any:
        """Return a key of an option that takes JSON, or of its part as an option of its own; None without it."""
        dotted = self.settings.get(f"{option}.{name}", self.settings.get(f"{option}.{name.replace('_', '-')}"))
        if dotted is not None:
            return dotted
        try:
            table = json.loads(str(self.settings.get(option, "{}")))
        except (ValueError, RecursionError):
            return None
        return table.get(name) if isinstance(table, dict) else None


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
    asked = Asked(parse_version_numbers(profile["vllm"])[:2], profile["accelerator"], model, user_flags, settings)
    for rule in RULES if asked.vllm >= FROM else ():
        for name, problem, expected in rule(asked):
            yield Refusal(name, problem, expected, is_of_release=True)


def check_adapters(asked: Asked) -> Iterator[Fault]:
    """config/lora.py, _validate_lora_config; engine/arg_utils.py."""
    on_host, at_once = asked.count(CPU_ADAPTERS), asked.count(ADAPTERS_AT_ONCE, 1)
    if on_host and on_host < at_once:
        problem = f"{CPU_ADAPTERS} {on_host} with {ADAPTERS_AT_ONCE} {at_once}"
        yield Fault(CPU_ADAPTERS, problem, "as many as at once, or more")
    if asked.has(MEDIA_ADAPTERS) and not asked.model.modalities and asked.model.geometry:
        yield Fault(MEDIA_ADAPTERS, f"{MEDIA_ADAPTERS} for a model of text alone", "a model that reads images or audio")


def check_scheduler(asked: Asked) -> Iterator[Fault]:
    """config/scheduler.py, verify_max_model_len."""
    length = asked.count(LENGTH) or (asked.model.geometry and asked.model.geometry.max_length) or 0
    threshold, active = asked.count("--long-prefill-token-threshold"), asked.count("--max-num-active-seqs")
    if length and threshold > length:
        name = "--long-prefill-token-threshold"
        yield Fault(name, f"{name} {threshold} for requests of {length} tokens", f"{length} or less")
    if active and asked.count(SEQUENCES) and active > asked.count(SEQUENCES):
        problem = f"--max-num-active-seqs {active} with {SEQUENCES} {asked.count(SEQUENCES)}"
        yield Fault("--max-num-active-seqs", problem, f"at most {SEQUENCES}")


def check_data_parallel(asked: Asked) -> Iterator[Fault]:
    """config/parallel.py, _validate_parallel_config and __post_init__; engine/arg_utils.py, create_engine_config."""
    ranks, local = asked.count(DATA, 1), asked.count(LOCAL)
    if asked.is_on(HYBRID) and asked.is_on(EXTERNAL):
        yield Fault(EXTERNAL, f"{HYBRID} with {EXTERNAL}", "one of the two")
    if asked.is_on(EXTERNAL) and ranks <= 1:
        yield Fault(EXTERNAL, f"{EXTERNAL} with {DATA} {ranks}", f"{DATA} of 2 or more")
    if local > ranks:
        yield Fault(LOCAL, f"{LOCAL} {local} with {DATA} {ranks}", f"{ranks} or less")
    if asked.has(RANK) and asked.count(RANK) >= ranks:
        yield Fault(RANK, f"{RANK} {asked.count(RANK)} with {DATA} {ranks}", f"a number from 0 to {ranks - 1}")
    has_ranks = asked.has(RANK) or asked.is_on(EXTERNAL)
    if has_ranks and ranks > 1 and asked.model.geometry and not asked.model.geometry.experts:
        problem = f"{DATA} {ranks} with a rank for each server, for a model without experts"
        yield Fault(DATA, problem, "servers without it")
    if asked.is_on("--ray-workers-use-nsight") and asked.settings.get(EXECUTOR) != "ray":
        yield Fault("--ray-workers-use-nsight", "--ray-workers-use-nsight without Ray", f"{EXECUTOR} ray")
    if asked.has("--numa-bind-nodes", "--numa-bind-cpus") and not asked.is_on(NUMA):
        yield Fault("--numa-bind-nodes", f"--numa-bind-nodes or --numa-bind-cpus without {NUMA}", f"{NUMA} too")


def check_expert_balance(asked: Asked) -> Iterator[Fault]:
    """config/parallel.py, _validate_parallel_config and __post_init__."""
    ranks = asked.count(TENSOR, 1) * asked.count(PREFILL_CONTEXT, 1) * asked.count(DATA, 1)
    redundant = asked.field(EPLB_CONFIG, "num_redundant_experts")
    if asked.is_on(EPLB) and asked.accelerator in ("cpu", "tpu"):
        yield Fault(EPLB, f"{EPLB} on {asked.accelerator}", "a GPU")
    if asked.is_on(EPLB) and ranks <= 1:
        yield Fault(EPLB, f"{EPLB} with one rank", f"{TENSOR} or {DATA} of 2 or more")
    if not asked.is_on(EPLB) and redundant not in (None, 0, "0"):
        yield Fault(EPLB_CONFIG, f"{EPLB_CONFIG}: num_redundant_experts {redundant} without {EPLB}", f"{EPLB} too")
    if asked.is_on(ELASTIC) and not asked.is_on(EPLB):
        yield Fault(ELASTIC, f"{ELASTIC} without {EPLB}", f"{EPLB} too")
    if asked.is_on(ELASTIC) and asked.count(PIPELINE, 1) > 1:
        yield Fault(ELASTIC, f"{ELASTIC} with {PIPELINE} {asked.count(PIPELINE)}", f"{PIPELINE} 1")
    if asked.is_on(ROUTED) and asked.vllm >= ROUTED_FROM:
        if asked.model.geometry and not asked.model.geometry.experts:
            yield Fault(ROUTED, f"{ROUTED} for a model without experts", "a model with experts")
        for name in (PIPELINE, CONTEXT, PREFILL_CONTEXT):
            if asked.count(name, 1) > 1:
                yield Fault(ROUTED, f"{ROUTED} with {name} {asked.count(name)}", f"{name} 1")


def check_connectors(asked: Asked) -> Iterator[Fault]:
    """config/kv_transfer.py and config/ec_transfer.py, __post_init__."""
    for option, prefix in ((KV_TRANSFER, "kv"), (ENCODERS, "ec")):
        connector, role = asked.field(option, f"{prefix}_connector"), asked.field(option, f"{prefix}_role")
        roles = tuple(f"{prefix}_{role}" for role in ("producer", "consumer", "both"))
        if connector and role is None:
            problem = f"{option}: {connector} without {prefix}_role"
            yield Fault(option, problem, f"{prefix}_role, one of {', '.join(roles)}")
        elif role is not None and role not in roles:
            yield Fault(option, f"{option}: {prefix}_role {role}", f"one of {', '.join(roles)}")


def check_graphs(asked: Asked) -> Iterator[Fault]:
    """config/vllm.py, _set_cudagraph_sizes; engine/arg_utils.py, create_engine_config."""
    sizes = [int(word) for word in str(asked.settings.get(SIZES, "")).replace(",", " ").split() if word.isdecimal()]
    largest = asked.count(LARGEST)
    if sizes and largest and max(sizes) != largest:
        yield Fault(LARGEST, f"{LARGEST} {largest} with {SIZES} up to {max(sizes)}", f"{max(sizes)}, or one of the two")
    if asked.has(BACKEND) and asked.field(BACKEND_CONFIG, "backend") is not None:
        yield Fault(BACKEND, f"{BACKEND} with {BACKEND_CONFIG} backend", "one of the two")


def check_states(asked: Asked) -> Iterator[Fault]:
    """config/mamba.py, __post_init__ and validate_ssu_algorithm; config/vllm.py, __post_init__."""
    if asked.is_on(ROUNDING) and asked.accelerator != "cuda":
        yield Fault(ROUNDING, f"{ROUNDING} on {asked.accelerator}", "an NVIDIA GPU")
    elif asked.is_on(ROUNDING) and asked.settings.get(STATE_TYPE) != "float16":
        yield Fault(ROUNDING, f"{ROUNDING} without {STATE_TYPE} float16", f"{STATE_TYPE} float16")
    algorithm = asked.settings.get(STATE_ALGORITHM, "auto")
    if algorithm != "auto" and asked.settings.get(STATE_BACKEND) != "flashinfer":
        problem = f"{STATE_ALGORITHM} {algorithm} without {STATE_BACKEND} flashinfer"
        yield Fault(STATE_ALGORITHM, problem, f"{STATE_BACKEND} flashinfer")


def check_media(asked: Asked) -> Iterator[Fault]:
    """config/multimodal.py; config/model.py, verify_with_parallel_config; get_supported_vit_attn_backends."""
    world = asked.count(TENSOR, 1) * asked.count(PIPELINE, 1) * asked.count(DATA, 1)
    if not asked.model.modalities:
        return
    if asked.settings.get("--mm-tensor-ipc") == "torch_shm" and world > 1:
        yield Fault("--mm-tensor-ipc", f"--mm-tensor-ipc torch_shm with {world} ranks", "direct_rpc, or one rank")
    largest = "--mm-shm-cache-max-object-size-mb"
    if asked.has(largest) and asked.settings.get("--mm-processor-cache-type") != "shm":
        yield Fault(largest, f"{largest} without --mm-processor-cache-type shm", "--mm-processor-cache-type shm")
    scales = [name for name in ("--mm-encoder-fp8-scale-path", "--mm-encoder-fp8-scale-save-path") if asked.has(name)]
    if scales and asked.settings.get("--mm-encoder-attn-dtype") != "fp8":
        yield Fault(scales[0], f"{scales[0]} without --mm-encoder-attn-dtype fp8", "--mm-encoder-attn-dtype fp8")
    backends = asked.user_flags.vllm.lists.get("vision_backends", {}).get(asked.accelerator)
    backend = str(asked.settings.get(TOWER_BACKEND) or "auto").upper()
    if backends and backend not in (*backends, "AUTO"):
        yield Fault(TOWER_BACKEND, f"{TOWER_BACKEND} {backend} on {asked.accelerator}", f"one of {', '.join(backends)}")


def check_methods(asked: Asked) -> Iterator[Fault]:
    """config/model.py, _verify_quantization; platforms/interface.py, verify_quantization, is_sleep_mode_available."""
    method = str(asked.settings.get(QUANTIZATION) or asked.model.quantization)
    lists = asked.user_flags.vllm
    if method in (lists.names("deprecated_quantisations") or ()) and not asked.is_on(OLD_METHODS):
        yield Fault(method, f"quantisation method {method}, which vLLM will remove", OLD_METHODS)
    of_platform = lists.lists.get("platform_quantisations", {}).get(asked.accelerator, ())
    if QUANTIZATION in asked.user_flags.flags and of_platform and method not in of_platform:
        expected = f"one of {', '.join(of_platform)}"
        yield Fault(method, f"{QUANTIZATION} {method} on {asked.accelerator}", expected)
    if asked.is_on(SLEEP) and asked.accelerator in ("cpu", "tpu"):
        yield Fault(SLEEP, f"{SLEEP} on {asked.accelerator}", "a GPU")


def check_drafting(asked: Asked) -> Iterator[Fault]:
    """config/vllm.py, __post_init__; engine/arg_utils.py, create_speculative_config."""
    fields = parse_speculation(asked.user_flags)
    method = fields.get("method") or fields.get("model")
    if asked.is_on(ASYNC) and asked.vllm < ANY_METHOD_FROM and method in UNSYNCHRONISED:
        problem = f"{ASYNC} with {SPECULATION}: method {method}"
        yield Fault(ASYNC, problem, "--no-async-scheduling, or a method with a draft model, MTP or ngram_gpu")
    if asked.has(METRICS) and asked.settings[METRICS] != "none" and not fields:
        yield Fault(METRICS, f"{METRICS} without {SPECULATION}", f"{SPECULATION} too")


def check_reports(asked: Asked) -> Iterator[Fault]:
    """config/observability.py, structured_outputs.py and profiler.py, the validators."""
    if asked.has(TRACES) and not asked.has(TRACES_TO):
        yield Fault(TRACES, f"{TRACES} without {TRACES_TO}", f"{TRACES_TO} too")
    backend = asked.field(STRUCTURED, "backend") or "auto"
    if asked.field(STRUCTURED, "disable_any_whitespace") in TRUE and backend not in ("xgrammar", "guidance"):
        yield Fault(STRUCTURED, f"{STRUCTURED}: disable_any_whitespace with backend {backend}", "xgrammar or guidance")
    if asked.field(STRUCTURED, "disable_additional_properties") in TRUE and backend != "guidance":
        yield Fault(STRUCTURED, f"{STRUCTURED}: disable_additional_properties with backend {backend}", "guidance")
    profiler = asked.field(PROFILER, "profiler")
    folder = asked.field(PROFILER, "torch_profiler_dir")
    if profiler == "torch" and not folder:
        yield Fault(PROFILER, f"{PROFILER}: profiler torch without torch_profiler_dir", "torch_profiler_dir")
    if folder and profiler != "torch":
        yield Fault(PROFILER, f"{PROFILER}: torch_profiler_dir with profiler {profiler}", "profiler torch")


RULES: tuple[Callable[[Asked], Iterator[Fault]], ...] = (
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
