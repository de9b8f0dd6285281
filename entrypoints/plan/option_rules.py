"""Which options vLLM's configuration refuses together: rules, each with an example that a vLLM was asked about. Pure.

A rule holds for the releases that refused its example and took the near miss (refused_examples.json, written by
`python -m drydock.lock.ask_rules`), and quotes their words. It says nothing about the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.core.parse import parse_untrusted_json
from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import (
    BATCHED,
    CONTEXT,
    DATA,
    EPLB,
    EXPERT,
    KV_TRANSFER,
    LENGTH,
    LOCAL,
    MODE,
    PIPELINE,
    PREFILL_CONTEXT,
    QUANTIZATION,
    SEQUENCES,
    SPECULATION,
    TENSOR,
)
from entrypoints.request.option_values import is_switched_on, read_json_key, read_json_option
from entrypoints.request.speculative import describe_drafting
from entrypoints.request.vllm_flags import UserFlags

ANSWERS = os.path.join(os.path.dirname(__file__), "refused_examples.json")
"""Version of vLLM → example → vLLM's words; empty words if it took the example."""
TEXT, EXPERTS, DRAFTING = "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-R1"
"""Models of the examples, by their names in drydock/run/configurations.json."""
RANK, SLEEP, CHUNKED = "--data-parallel-rank", "--enable-sleep-mode", "--enable-chunked-prefill"
SHORT = "--max-model-len 4096"
WHOLE = f"{SHORT} --no-enable-chunked-prefill --max-num-batched-tokens"
OWN_LAYERS = f'{SPECULATION} {{"method":"mtp","num_speculative_tokens":1}}'
WEIGHTS = '{"quant_method":"gptq","bits":4,"group_size":128,"desc_act":false,"sym":true}'
GPTQ = f'--hf-overrides {{"quantization_config":{WEIGHTS}}}'
"""Parts of examples. The last makes the configuration say that weights are quantised."""
CPU_BATCH = 2048
"""Tokens of a batch on CPUs for each rank, where the command sets none: the example is refused with this number."""
WITHOUT_BALANCE = ("cpu", "tpu")
"""Accelerators whose platforms neither balance experts nor free their memory while a server sleeps."""
LOOKUP = ("ngram", "[ngram]", "ngram_gpu", "extract_hidden_states")
"""Methods without a model, which know no number of tokens of their own."""
WITHOUT_DRAFT = (*LOOKUP, "suffix", "dspark", "custom_class")
"""Methods that vLLM takes without `model`, whose name the field `model` may have. DSpark's layers may be a part of the
model."""
OF_ONE_FORM = ("awq", "awq_marlin", "gptq", "gptq_marlin", "modelopt", "modelopt_fp4", "modelopt_mxfp8")
"""Methods that read how the weights were quantised, and take weights of their own form only."""
WHILE_LOADING = (
    *("fp8", "fp8_per_block", "fp8_per_channel", "fp8_per_tensor", "mxfp4", "mxfp8", "gpt_oss_mxfp4"),
    *("experts_int8", "int8_per_channel_weight_only", "nvfp4_per_token"),
)
"""Methods that quantise while they load. These and OF_FILES take weights of their own form only: vLLM 0.32 was asked
about each of its 30 methods with weights of FP8, GPTQ, AWQ and compressed-tensors."""
OF_FILES = (
    *OF_ONE_FORM,
    *("auto_awq", "auto_gptq", "compressed-tensors", "modelopt_mixed", "moe_wna16", "online", "quark", "torchao"),
)
"""Methods that fail for weights that were not quantised: vLLM 0.32 was asked about each of its 30 methods. Of these,
Gaudi's plugin quantises with `inc` while it loads."""
OF_SEVERAL_FORMS = ("moe_wna16",)
"""Methods of files that read the forms of GPTQ and AWQ."""
STAGED_DRAFTS = ("glm_ocr", "nemotron_h", "qwen4_exp")
"""Types of models whose drafting layers may have stages where those of others may not. Source: vLLM 0.16 to 0.29,
classes of model_executor/models/*mtp*.py with SupportsPP among their bases."""


class Options(NamedTuple):
    """What the rules look at."""

    accelerator: str
    model: ModelFacts
    user_flags: UserFlags
    settings: Mapping[str, str | bool]
    drafting: Mapping[str, Any]
    """The fields of speculative decoding."""

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
    def drafts_in_model(self) -> bool:
        """Whether layers of the model itself draft tokens."""
        return describe_drafting(self.drafting).in_model


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
    profile: Mapping[str, Any],
    model: ModelFacts,
    user_flags: UserFlags,
    settings: Mapping[str, str | bool],
    drafting: Mapping[str, Any],
) -> Iterator[Refusal]:
    """Yield options that this release of vLLM refuses together, with its words. `drafting`: of speculative decoding."""
    options = Options(profile["accelerator"], model, user_flags, settings, drafting)
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


def _shares_no_copies(options: Options) -> bool:
    """Return whether ranks of context need copies of heads of keys and values, and have none."""
    geometry, ranks, size = options.model.geometry, options.count(CONTEXT, 1), options.count(TENSOR, 1)
    if ranks <= 1 or geometry is None or geometry.latent or not geometry.kv_heads:
        return False
    return size <= geometry.kv_heads or ranks > size // geometry.kv_heads or geometry.heads % ranks != 0


def _exceeds_default_batch(options: Options) -> bool:
    """Source: vLLM 0.32, engine/arg_utils.py, get_batch_defaults and what follows --performance-mode."""
    if options.accelerator != "cpu" or BATCHED in options.settings:
        return False
    ranks = options.count(TENSOR, 1) * options.count(PIPELINE, 1)
    return options.count(SEQUENCES) > CPU_BATCH * ranks * (2 if options.settings.get(MODE) == "throughput" else 1)


def _names_no_connector(options: Options) -> bool:
    has_keys = any(name.startswith(f"{KV_TRANSFER}.") for name in options.settings)
    has_keys |= bool(read_json_option(options.settings, KV_TRANSFER))
    return has_keys and not options.field(KV_TRANSFER, "kv_connector")


def _cuts_whole_prompts(options: Options) -> bool:
    is_whole = options.settings.get(CHUNKED) in (False, "false", "False")
    return is_whole and BATCHED in options.user_flags.flags and 0 < options.count(BATCHED) < options.length


def _quantises_no_files(options: Options) -> bool:
    is_of_files = QUANTIZATION in options.user_flags.flags and options.settings[QUANTIZATION] in OF_FILES
    return is_of_files and not options.model.quantization


def _contradicts_weights(options: Options) -> bool:
    """Return whether the user names a method, and the weights are quantised with another one."""
    method, of_weights = str(options.settings.get(QUANTIZATION)), options.model.quantization
    is_known = of_weights in (*OF_ONE_FORM, "fp8", "compressed-tensors") and method in (*OF_FILES, *WHILE_LOADING)
    is_other = _get_form(method) != _get_form(of_weights) and method not in OF_SEVERAL_FORMS
    return QUANTIZATION in options.user_flags.flags and is_known and is_other


def _get_form(method: str) -> str:
    """Return the form of weights that a method reads: gptq for auto_gptq and gptq_marlin, modelopt for modelopt_fp4."""
    form = method.removeprefix("auto_").removesuffix("_marlin")
    return form.partition("_")[0] if form.startswith("modelopt") else form


def _lacks_draft_model(options: Options) -> bool:
    method = options.drafting.get("method") or options.drafting.get("model")
    has_draft = options.drafting.get("model") or options.drafts_in_model
    return bool(options.drafting) and not has_draft and method not in WITHOUT_DRAFT


def _counts_no_tokens(options: Options) -> bool:
    method = options.drafting.get("method") or options.drafting.get("model")
    return method in LOOKUP and options.drafting.get("num_speculative_tokens") is None


def _stages_drafting_layers(options: Options) -> bool:
    is_staged = options.count(PIPELINE, 1) > 1 and options.drafts_in_model
    return is_staged and options.model.model_type not in STAGED_DRAFTS


# --- the rules ------------------------------------------------------------------------------------------------------

RULES = (
    _make_limit_rule(
        SEQUENCES, BATCHED, f"{SHORT} --max-num-batched-tokens 64 --max-num-seqs 128", f"{SHORT} --max-num-seqs 128"
    ),
    Rule((SEQUENCES,), _exceeds_default_batch, f"{SHORT} {SEQUENCES} 4096", f"{SHORT} {SEQUENCES} 2048"),
    Rule((BATCHED, LENGTH, CHUNKED), _cuts_whole_prompts, f"{WHOLE} 2048", f"{WHOLE} 4096"),
    # engines that share requests
    _make_limit_rule(LOCAL, DATA, f"-dp 2 {LOCAL} 4", f"-dp 2 {LOCAL} 2", default=1),
    Rule(
        (RANK, DATA),
        lambda options: options.has(RANK) and options.count(RANK) >= options.count(DATA, 1),
        *(f"-dp 2 {RANK} 2", f"-dp 2 {RANK} 1", EXPERTS),
    ),
    # experts
    Rule(
        (EPLB, EXPERT),
        lambda options: options.has(EPLB) and not options.has(EXPERT),
        *(f"-tp 2 {EPLB}", f"-tp 2 {EPLB} {EXPERT}", EXPERTS, "cuda"),
    ),
    Rule(
        (EPLB,),
        lambda options: options.is_on(EPLB) and options.accelerator in WITHOUT_BALANCE,
        *(f"-tp 2 {EPLB} {EXPERT}", f"-tp 2 {EXPERT}", EXPERTS),
    ),
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
    # weights, memory, connectors
    Rule((QUANTIZATION,), _quantises_no_files, "--quantization awq", "--quantization fp8"),
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
    # speculative decoding
    Rule(
        (SPECULATION,),
        _lacks_draft_model,
        f'{SPECULATION} {{"method":"eagle3","num_speculative_tokens":2}}',
        f'{SPECULATION} {{"method":"ngram","num_speculative_tokens":2}}',
    ),
    Rule(
        (SPECULATION,),
        _counts_no_tokens,
        f'{SPECULATION} {{"method":"ngram"}}',
        f'{SPECULATION} {{"method":"ngram","num_speculative_tokens":2}}',
    ),
    Rule((PIPELINE, SPECULATION), _stages_drafting_layers, f"-pp 2 {OWN_LAYERS}", f"-tp 2 {OWN_LAYERS}", DRAFTING),
)
"""What users type: the options of public reports and recipes, and what random commands show most often."""
