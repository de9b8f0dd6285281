"""Which options vLLM's configuration refuses together: rules, each with an example that a vLLM was asked about. Pure.

A rule holds for the releases that refused its example and took the near miss (refused_examples.json, written by
`python -m drydock.lock.ask_rules`), and quotes their words. It says nothing about the others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_untrusted_json
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import (
    ADAPTERS_AT_ONCE,
    ATTENTION_BACKEND,
    ATTENTION_CONFIG,
    BATCHED,
    CONTEXT,
    DATA,
    DTYPE,
    EPLB,
    EXPERT,
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
from entrypoints.request.option_values import TRUE, is_switched_on, read_json_key, read_json_option
from entrypoints.request.speculative import parse_drafting, parse_speculation
from entrypoints.request.vllm_flags import UserFlags

ANSWERS = os.path.join(os.path.dirname(__file__), "refused_examples.json")
"""Version of vLLM → example → vLLM's words; empty words if it took the example."""
TEXT, EXPERTS, DRAFTING = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-R1"
"""Models of the examples, by their names in drydock/run/configurations.json."""
EPLB_CONFIG, ELASTIC, REDUNDANT = "--eplb-config", "--enable-elastic-ep", "num_redundant_experts"
EXTERNAL, HYBRID, RANK = "--data-parallel-external-lb", "--data-parallel-hybrid-lb", "--data-parallel-rank"
CPU_ADAPTERS, THRESHOLD = "--max-cpu-loras", "--long-prefill-token-threshold"
STRUCTURED, PROFILER, TRACES_IN = "--structured-outputs-config", "--profiler-config", "torch_profiler_dir"
TRACES, TRACES_TO = "--collect-detailed-traces", "--otlp-traces-endpoint"
SLEEP, ASYNC, CHUNKED = "--enable-sleep-mode", "--async-scheduling", "--enable-chunked-prefill"
ADAPTERS, SHORT = "--enable-lora --max-loras 4", "--max-model-len 4096"
WHOLE = f"{SHORT} --no-enable-chunked-prefill --max-num-batched-tokens"
NGRAM = '{"method":"ngram","num_speculative_tokens":2}'
OWN_LAYERS = f'{SPECULATION} {{"method":"mtp","num_speculative_tokens":1}}'
WEIGHTS = '{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true}'
GPTQ = f'--hf-overrides {{"quantization_config":{WEIGHTS}}}'
"""Parts of examples. The last makes the configuration say that weights are quantised."""
CPU_BATCH = 2048
"""Tokens of a batch on CPUs, where the command sets none: the example is refused with this number."""
WITHOUT_BALANCE = ("cpu", "tpu")
"""Accelerators whose platforms neither balance experts nor free their memory while a server sleeps."""
LOOKUP = ("ngram", "[ngram]", "ngram_gpu", "extract_hidden_states")
"""Methods without a model, which know no number of tokens of their own."""
UNSYNCHRONISED = ("ngram", "[ngram]", "suffix", "medusa", "mlp_speculator")
"""Methods that draft on the host between two steps."""
WITHOUT_DRAFT = (*LOOKUP, "suffix", "dspark", "custom_class")
"""Methods that vLLM takes without `model`. DSpark's layers may be a part of the model."""
OF_ONE_FORM = ("awq", "awq_marlin", "gptq", "gptq_marlin", "modelopt", "modelopt_fp4", "modelopt_mxfp8")
"""Methods that read how the weights were quantised, and take weights of their own form only."""
OF_FILES = (
    *OF_ONE_FORM,
    *("auto_awq", "auto_gptq", "compressed-tensors", "modelopt_mixed", "moe_wna16", "quark", "torchao"),
)
"""Methods that fail for weights that were not quantised: vLLM 0.32 was asked about each of its 30 methods. Of these,
Gaudi's plugin quantises with `inc` while it loads."""
STAGED_DRAFTS = ("glm_ocr", "nemotron_h", "qwen4_exp")
"""Types of models whose drafting layers may have stages where those of others may not. Source: vLLM 0.16 to 0.29,
classes of model_executor/models/*mtp*.py with SupportsPP among their bases."""


class Options(NamedTuple):
    """What the rules look at."""

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
        return _read_count(self.settings.get(name), default)

    def field(self, option: str, name: str) -> Any:
        """Return a key of an option that takes JSON; None without it."""
        return read_json_key(self.settings, option, name)

    @property
    def length(self) -> int:
        """The longest request in tokens; 0 if that is not known."""
        of_model = self.model.geometry and self.model.geometry.max_length
        return self.count(LENGTH, of_model or 0)

    @property
    def drafting(self) -> Mapping[str, Any]:
        """The fields of speculative decoding."""
        return parse_speculation(self.user_flags)

    @property
    def method(self) -> str:
        """The method of speculative decoding, also where the field `model` names it."""
        model = str(self.drafting.get("model") or "")
        return str(self.drafting.get("method") or (model if model in LOOKUP else ""))

    def draft_count(self, name: str, default: int = 0) -> int:
        """Return a whole number of the fields of speculative decoding; the default for what is none."""
        return _read_count(str(self.drafting.get(name)), default)


def _read_count(value: str | bool | None, default: int) -> int:
    is_number = isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) <= 9  # noqa: PLR2004 - digits
    return int(value) if is_number and isinstance(value, str) else default


class Rule(NamedTuple):
    """Options that do not fit together."""

    names: tuple[str, ...]
    """The options; the first is at fault."""
    is_broken: Callable[[Options], Any]
    refused: str
    """A command that a vLLM with this rule refuses."""
    taken: str
    """Nearly the same command, which it takes."""
    model: str = TEXT
    platform: str = "cpu"
    """The platform on which the examples are asked."""

    @property
    def example(self) -> str:
        """The key of the rule in refused_examples.json."""
        return f"{self.model} on {self.platform}: {self.refused}"


def find_broken_rules(
    profile: Mapping[str, Any], model: ModelFacts, user_flags: UserFlags, settings: Mapping[str, str | bool]
) -> Iterator[Refusal]:
    """Yield options that this release of vLLM refuses together, with its words."""
    options = Options(profile["accelerator"], model, user_flags, settings)
    broken = [rule for rule in RULES if rule.is_broken(options)]
    answers = read_answers() if broken else {}
    for rule in broken:
        words = answers.get(str(profile["vllm"]), {}).get(rule.example)
        if words:
            taken_by = tuple(version for version in answers if answers[version].get(rule.example) == "")
            problem = _describe_options(rule, settings)
            yield Refusal(
                rule.names[0], problem, rule.refused, is_of_release=True, words=words.rstrip("."), taken_by=taken_by
            )


def read_answers() -> dict[str, dict[str, str]]:
    """Read what each release said to the examples. IO."""
    with open(ANSWERS, encoding="utf-8") as file:
        answers: dict[str, dict[str, str]] = parse_untrusted_json(file.read())
    return answers


def _describe_options(rule: Rule, settings: Mapping[str, str | bool]) -> str:
    """Return the options of a rule as they are set, such as `--a 2 with --b 4`, or `--a without --b`."""
    values = {name: settings.get(name) for name in rule.names}
    absent = [name for name, value in values.items() if value in (None, "", False)]
    stated = [name if value is True else f"{name} {value}" for name, value in values.items() if name not in absent]
    return " without ".join(filter(None, (" with ".join(stated) or rule.names[0], " and ".join(absent))))


# --- when a rule is broken ------------------------------------------------------------------------------------------


def _make_limit_rule(name: str, other: str, refused: str, taken: str, default: int = 0) -> Rule:
    """Return the rule that one number is not greater than another, which may have a default."""

    def is_broken(options: Options) -> bool:
        most = options.count(other, default)
        return most > 0 and options.count(name) > most

    return Rule((name, other), is_broken, refused, taken)


def _make_requirement_rule(
    name: str, other: str, refused: str, taken: str, model: str = TEXT, platform: str = "cpu"
) -> Rule:
    """Return the rule that one option is set only with another."""
    return Rule(
        (name, other), lambda options: options.has(name) and not options.has(other), refused, taken, model, platform
    )


def _make_drafting_rule(is_broken: Callable[[Options], Any], refused: str, taken: str, model: str = TEXT) -> Rule:
    """Return a rule on speculative decoding; the examples are JSON."""
    return Rule((SPECULATION,), is_broken, f"{SPECULATION} {refused}", f"{SPECULATION} {taken}", model)


def _has_one_rank(options: Options) -> bool:
    sizes = (options.count(name, 1) for name in (TENSOR, PREFILL_CONTEXT, DATA))
    return options.is_on(EPLB) and math.prod(sizes) <= 1


def _shares_no_copies(options: Options) -> bool:
    """Return whether ranks of context need copies of heads of keys and values, and have none."""
    geometry, ranks, size = options.model.geometry, options.count(CONTEXT, 1), options.count(TENSOR, 1)
    if ranks <= 1 or geometry is None or geometry.latent or not geometry.kv_heads:
        return False
    return size <= geometry.kv_heads or ranks > size // geometry.kv_heads or geometry.heads % ranks != 0


def _exceeds_length(options: Options) -> bool:
    return 0 < options.length < options.count(THRESHOLD)


def _exceeds_default_batch(options: Options) -> bool:
    return options.accelerator == "cpu" and BATCHED not in options.settings and options.count(SEQUENCES) > CPU_BATCH


def _names_no_connector(options: Options) -> bool:
    has_keys = any(name.startswith(f"{KV_TRANSFER}.") for name in options.settings)
    has_keys |= bool(read_json_option(options.settings, KV_TRANSFER))
    return has_keys and not options.field(KV_TRANSFER, "kv_connector")


def _cuts_whole_prompts(options: Options) -> bool:
    is_whole = options.settings.get(CHUNKED) in (False, "false", "False")
    return is_whole and BATCHED in options.user_flags.flags and 0 < options.count(BATCHED) < options.length


def _contradicts_weights(options: Options) -> bool:
    """Return whether the user names a method of quantised weights, and the weights have another, or none."""
    method, of_weights = str(options.settings.get(QUANTIZATION)), options.model.quantization
    is_other = method.partition("_")[0] != of_weights.partition("_")[0] and of_weights in OF_ONE_FORM
    return QUANTIZATION in options.user_flags.flags and method in OF_ONE_FORM and is_other


def _serves_dense_ranks(options: Options) -> bool:
    is_dense = options.model.geometry is not None and not options.model.geometry.experts
    return is_dense and options.count(DATA, 1) > 1 and (options.has(RANK) or options.is_on(EXTERNAL))


def _lacks_draft_model(options: Options) -> bool:
    has_draft = options.drafting.get("model") or parse_drafting(options.user_flags).in_model
    return bool(options.drafting) and not has_draft and options.method not in WITHOUT_DRAFT


def _stages_drafting_layers(options: Options) -> bool:
    is_staged = options.count(PIPELINE, 1) > 1 and parse_drafting(options.user_flags).in_model
    return is_staged and options.model.model_type not in STAGED_DRAFTS


# --- the rules ------------------------------------------------------------------------------------------------------

RULES = (
    _make_limit_rule(ADAPTERS_AT_ONCE, CPU_ADAPTERS, f"{ADAPTERS} {CPU_ADAPTERS} 2", ADAPTERS),
    _make_limit_rule(
        SEQUENCES, BATCHED, f"{SHORT} --max-num-batched-tokens 64 --max-num-seqs 128", f"{SHORT} --max-num-seqs 128"
    ),
    Rule((SEQUENCES,), _exceeds_default_batch, f"{SHORT} {SEQUENCES} 4096", f"{SHORT} {SEQUENCES} 2048"),
    Rule((THRESHOLD, LENGTH), _exceeds_length, f"{SHORT} {THRESHOLD} 8192", f"{SHORT} {THRESHOLD} 2048"),
    _make_limit_rule(LOCAL, DATA, f"-dp 2 {LOCAL} 4", f"-dp 2 {LOCAL} 2", default=1),
    Rule((BATCHED, LENGTH, CHUNKED), _cuts_whole_prompts, f"{WHOLE} 2048", f"{WHOLE} 4096"),
    # engines that share requests
    _make_requirement_rule(EXTERNAL, DATA, EXTERNAL, f"-dp 2 {EXTERNAL} {RANK} 0", EXPERTS),
    Rule(
        (EXTERNAL, HYBRID),
        lambda options: options.is_on(HYBRID) and options.is_on(EXTERNAL),
        *(f"-dp 2 {HYBRID} {EXTERNAL} {RANK} 0", f"-dp 2 {EXTERNAL} {RANK} 0", EXPERTS),
    ),
    Rule(
        (RANK, DATA),
        lambda options: options.has(RANK) and options.count(RANK) >= options.count(DATA, 1),
        *(f"-dp 2 {RANK} 2", f"-dp 2 {RANK} 1", EXPERTS),
    ),
    Rule((DATA, RANK), _serves_dense_ranks, f"-dp 2 {RANK} 1", "-dp 2"),
    _make_requirement_rule("--numa-bind-nodes", NUMA, "--numa-bind-nodes 0", "--seed 1"),
    # experts
    _make_requirement_rule(EPLB, EXPERT, f"-tp 2 {EPLB}", f"-tp 2 {EPLB} {EXPERT}", EXPERTS, "cuda"),
    Rule((EPLB, TENSOR, DATA), _has_one_rank, f"{EPLB} {EXPERT}", f"-tp 2 {EPLB} {EXPERT}", EXPERTS, "cuda"),
    Rule(
        (EPLB,),
        lambda options: options.is_on(EPLB) and options.accelerator in WITHOUT_BALANCE,
        *(f"-tp 2 {EPLB} {EXPERT}", f"-tp 2 {EXPERT}", EXPERTS),
    ),
    Rule(
        (EPLB_CONFIG, EPLB),
        lambda options: not options.is_on(EPLB) and options.field(EPLB_CONFIG, REDUNDANT) not in (None, 0, "0"),
        *(f'{EPLB_CONFIG} {{"{REDUNDANT}":2}}', f'{EPLB_CONFIG} {{"{REDUNDANT}":0}}', EXPERTS),
    ),
    _make_requirement_rule(ELASTIC, EPLB, f"-dp 2 {EXPERT} {ELASTIC}", f"-dp 2 {EXPERT}", EXPERTS),
    # ranks that share a request's context
    Rule(
        (CONTEXT, TENSOR),
        lambda options: options.count(TENSOR, 1) % max(1, options.count(CONTEXT, 1)) != 0,
        *(f"-tp 2 {CONTEXT} 3", f"-tp 2 {CONTEXT} 2", DRAFTING),
    ),
    Rule((CONTEXT, TENSOR), _shares_no_copies, f"-tp 2 {CONTEXT} 2", f"-tp 16 {CONTEXT} 2"),
    Rule(
        (PREFILL_CONTEXT,),
        lambda options: options.accelerator == "cpu" and options.count(PREFILL_CONTEXT, 1) > 1,
        *(f"-tp 2 {PREFILL_CONTEXT} 2", "-tp 2"),
    ),
    # weights, memory, connectors, kernels
    Rule(
        (QUANTIZATION,),
        lambda options: (
            QUANTIZATION in options.user_flags.flags
            and options.settings[QUANTIZATION] in OF_FILES
            and not options.model.quantization
        ),
        *("--quantization awq", "--quantization fp8"),
    ),
    Rule((QUANTIZATION,), _contradicts_weights, f"{GPTQ} --quantization awq", f"{GPTQ} --quantization gptq"),
    Rule((SLEEP,), lambda options: options.is_on(SLEEP) and options.accelerator in WITHOUT_BALANCE, SLEEP, "--seed 1"),
    Rule(
        (KV_TRANSFER,),
        lambda options: options.field(KV_TRANSFER, "kv_connector") and not options.field(KV_TRANSFER, "kv_role"),
        f'{KV_TRANSFER} {{"kv_connector":"NixlConnector"}}',
        f'{KV_TRANSFER} {{"kv_connector":"NixlConnector","kv_role":"kv_both"}}',
    ),
    Rule(
        (KV_TRANSFER,),
        _names_no_connector,
        f'{KV_TRANSFER} {{"kv_role":"kv_both"}}',
        f'{KV_TRANSFER} {{"kv_connector":"NixlConnector","kv_role":"kv_both"}}',
    ),
    Rule(
        (DTYPE,),
        lambda options: options.settings.get(DTYPE) in ("float", "float32") and options.model.quantization == "fp8",
        *(f"{DTYPE} float32", f"{DTYPE} bfloat16", DRAFTING),
    ),
    Rule(
        (ATTENTION_BACKEND, ATTENTION_CONFIG),
        lambda options: options.has(ATTENTION_BACKEND) and options.field(ATTENTION_CONFIG, "backend"),
        f'{ATTENTION_BACKEND} FLASH_ATTN {ATTENTION_CONFIG} {{"backend":"FLASH_ATTN"}}',
        f'{ATTENTION_CONFIG} {{"backend":"FLASH_ATTN"}}',
    ),
    # speculative decoding
    _make_drafting_rule(_lacks_draft_model, '{"method":"eagle3","num_speculative_tokens":2}', NGRAM),
    _make_drafting_rule(
        lambda options: options.method in LOOKUP and options.drafting.get("num_speculative_tokens") is None,
        '{"method":"ngram"}',
        NGRAM,
    ),
    _make_drafting_rule(
        lambda options: (options.draft_count("num_speculative_tokens", 1)) <= 0,
        '{"method":"ngram","num_speculative_tokens":0}',
        NGRAM,
    ),
    _make_drafting_rule(
        lambda options: 0 < options.draft_count("prompt_lookup_max") < options.draft_count("prompt_lookup_min"),
        '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_min":4,"prompt_lookup_max":2}',
        '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_min":2,"prompt_lookup_max":4}',
    ),
    _make_drafting_rule(
        lambda options: options.draft_count("draft_tensor_parallel_size", 1) not in (1, options.count(TENSOR, 1)),
        '{"method":"mtp","num_speculative_tokens":1,"draft_tensor_parallel_size":2} -tp 4',
        '{"method":"mtp","num_speculative_tokens":1,"draft_tensor_parallel_size":4} -tp 4',
        DRAFTING,
    ),
    _make_drafting_rule(
        lambda options: options.drafting.get("tensor_parallel_size") is not None,
        '{"method":"mtp","num_speculative_tokens":1,"tensor_parallel_size":4} -tp 4',
        '{"method":"mtp","num_speculative_tokens":1} -tp 4',
        DRAFTING,
    ),
    Rule((PIPELINE, SPECULATION), _stages_drafting_layers, f"-pp 2 {OWN_LAYERS}", f"-tp 2 {OWN_LAYERS}", DRAFTING),
    Rule(
        (ASYNC, SPECULATION),
        lambda options: options.is_on(ASYNC) and options.method in UNSYNCHRONISED,
        *(f"{ASYNC} {SPECULATION} {NGRAM}", f"{SPECULATION} {NGRAM}"),
    ),
    # reports and structured output
    _make_requirement_rule(TRACES, TRACES_TO, f"{TRACES} model", "--seed 1"),
    Rule(
        (PROFILER,),
        lambda options: options.field(PROFILER, "profiler") == "torch" and not options.field(PROFILER, TRACES_IN),
        *(f'{PROFILER} {{"profiler":"torch"}}', f'{PROFILER} {{"profiler":"torch","{TRACES_IN}":"/cache/traces"}}'),
    ),
    Rule(
        (STRUCTURED,),
        lambda options: (
            options.field(STRUCTURED, "disable_any_whitespace") in TRUE
            and options.field(STRUCTURED, "backend") not in ("xgrammar", "guidance")
        ),
        f'{STRUCTURED} {{"disable_any_whitespace":true}}',
        f'{STRUCTURED} {{"disable_any_whitespace":true,"backend":"xgrammar"}}',
    ),
    Rule(
        (STRUCTURED,),
        lambda options: (
            options.field(STRUCTURED, "disable_additional_properties") in TRUE
            and options.field(STRUCTURED, "backend") != "guidance"
        ),
        f'{STRUCTURED} {{"disable_additional_properties":true}}',
        f'{STRUCTURED} {{"disable_additional_properties":true,"backend":"guidance"}}',
    ),
)
