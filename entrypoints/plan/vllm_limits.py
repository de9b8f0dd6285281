"""What this vLLM would refuse, by what it says of itself: found before vLLM is started. Pure.

The lists are read from vLLM's own files (templates/tools/read_vllm.py). A list of this vLLM refuses. A list that is
only assumed, because no image was built yet, warns. `--vllm-accepts NAME` overrules both.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import Facts, Notice
from entrypoints.decide.parallelism.multimodal import LIMITS, TEXT_ONLY
from entrypoints.model.read import ModelFacts
from entrypoints.plan.kernel_limits import find_attention_refusals, find_cpu_refusals
from entrypoints.plan.option_rules import find_broken_rules
from entrypoints.plan.other_rows import describe_taking_rows
from entrypoints.plan.parsers import find_tool_refusals
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import (
    ADAPTERS,
    DATA_BACKEND,
    DTYPE,
    EXECUTOR,
    IMPLEMENTATION,
    KV_BACKEND,
    KV_OFFLOAD,
    KV_TRANSFER,
    LOAD_FORMAT,
    OF_ADAPTERS,
    OVERRIDES,
    QUANTIZATION,
    REASONING_PARSER,
    REMOTE_CODE,
    SPECULATION,
    TOOL_PARSER,
)
from entrypoints.request.option_values import is_switched_on, read_json_option
from entrypoints.request.speculative import parse_speculation
from entrypoints.request.vllm_flags import UserFlags
from entrypoints.request.vllm_lists import ACCEPT, BOOLEAN, VllmLists
from entrypoints.request.vllm_successors import SUCCESSORS, describe_successor

Settings = Mapping[str, str | bool]
FALLBACK = "TransformersForCausalLM"
"""vLLM's class for architectures that only the library transformers has.
Source: vllm/model_executor/models/registry.py, _try_resolve_transformers."""
CONVERTED_SUFFIXES = (
    *("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel", "ForTextEncoding", "EmbeddingModel"),
    *("ForSequenceClassification", "ForTokenClassification", "ForAudioClassification", "ForImageClassification"),
    *("ForVideoClassification", "ClassificationModel", "ForRewardModeling", "RewardModel", "Model"),
)
"""Ends of names between which vLLM with the fallback converts: a classifier runs on the generating class.
Source: vllm/config/model.py, _SUFFIX_TO_DEFAULTS, in this order."""
METHOD_NAMES = {"compressed_tensors": ("compressed-tensors",), "auto-round": ("auto-round", "inc")}
"""`quant_method` of a config.json → vLLM's names of it. Source: vllm/config/model.py, _parse_quant_hf_config, and
override_quantization_method in layers/quantization/inc.py."""
PACKAGES = {
    (EXECUTOR, "ray"): ("ray",),
    (DATA_BACKEND, "ray"): ("ray",),
    (LOAD_FORMAT, "runai_streamer"): ("runai-model-streamer",),
    (LOAD_FORMAT, "runai_streamer_sharded"): ("runai-model-streamer",),
    (LOAD_FORMAT, "tensorizer"): ("tensorizer",),
    (LOAD_FORMAT, "fastsafetensors"): ("fastsafetensors",),
    (LOAD_FORMAT, "gguf"): ("gguf",),
    (QUANTIZATION, "bitsandbytes"): ("bitsandbytes",),
    (SPECULATION, "suffix"): ("arctic-inference",),
    (KV_BACKEND, "lmcache"): ("lmcache",),
    (KV_TRANSFER, "NixlConnector"): ("nixl", "nixl-cu12", "nixl-cu13"),
    (KV_TRANSFER, "LMCacheConnectorV1"): ("lmcache",),
    (KV_TRANSFER, "LMCacheMPConnector"): ("lmcache",),
    (KV_TRANSFER, "MooncakeConnector"): ("mooncake-transfer-engine",),
}
"""Option and value → distributions of which vLLM imports one. Source: vllm/executor, model_executor/model_loader,
distributed/kv_transfer, and the extras in setup.py."""
PLUGINS = {TOOL_PARSER: "--tool-parser-plugin", REASONING_PARSER: "--reasoning-parser-plugin"}
"""Option → the option with which a user's file adds to its names."""
RUNNER = "--runner"
OF_HIDDEN_STATES = "eagle3"
"""The method for which the model hands out hidden states of several layers. Source: models/interfaces.py."""
OF_VLLM, OF_TRANSFORMERS = ("auto", "vllm"), "transformers"
"""Values of --model-impl that take vLLM's classes first, and the one that takes those of transformers."""
SERVED = re.compile(r"\w+(?:ForCausalLM|ForConditionalGeneration|LMHeadModel|For(?:Sequence|Token)Classification)")
"""Classes of transformers that are listed, by the ends of their names (templates/tools/read_vllm.py)."""
FLOAT16 = ("float16", "half")
"""vLLM's two names of the type."""
SHORTENED = re.compile(r"(?<=\d)[kKmMgG]\b")
"""Numbers such as 4k, which vLLM takes in JSON too. Source: vllm/engine/arg_utils.py."""
EXTENDED = ("--device", QUANTIZATION, "--kv-cache-dtype", "--load-format")
"""Flags whose words plugins and forks add to; those of backends are others. Source: vllm_gcu/gcu.py,
vllm_ascend/platform.py, vllm-fork config.py."""
_STOOD_IN = ("torchvision",)
"""Packages for which drydock's plugin stands in, where text needs none of it: shown for them alone."""
_STAND_IN = "drydock-absent"
"""The plugin's name, for VLLM_PLUGINS."""
_SUGGESTED = 0.75
"""Likeness from 0 to 1 at which a name of vLLM's is suggested for an unknown one."""


def check_limits(
    profile: Mapping[str, Any], facts: Facts, model: ModelFacts, user_flags: UserFlags, settings: Settings
) -> tuple[Notice, ...]:
    """Return notices of what this vLLM may refuse. Raises REFUSED or USAGE for what it does refuse.

    `settings` are all settings of the plan by name, whoever chose them.
    """
    notices = []
    accelerator, lists, drafting = profile["accelerator"], user_flags.vllm, parse_speculation(user_flags)
    refusals = (
        *find_refusals(lists, model, user_flags, settings, drafting),
        *_refused_of_platform(accelerator, model, user_flags, settings),
        *find_broken_rules(profile, model, user_flags, settings, drafting),
        *find_tool_refusals(settings),
        *find_attention_refusals(profile, facts, model, lists, settings),
        *(find_cpu_refusals(profile["vllm"], facts, model, settings) if accelerator == "cpu" else ()),
    )
    for refusal in refusals:
        if refusal.name in user_flags.accepted:
            notices.append(make_notice("PLAN-152", refusal.problem, refusal.expected, name=refusal.name))
        elif (user_flags.vllm.assumed and not refusal.is_of_release) or not refusal.certain:
            origin = user_flags.vllm.assumed or "of this vLLM alone, which falls back on the library transformers"
            notices.append(make_notice("PLAN-150", refusal.problem, refusal.expected, origin=origin))
        else:
            whose = f" (its list is {user_flags.vllm.assumed})" if user_flags.vllm.assumed else ""
            message = f"{refusal.problem}: vLLM {profile['vllm']} would refuse it; expected {refusal.expected}{whose}"
            if refusal.words:
                message = (
                    f"{refusal.problem}: vLLM {profile['vllm']} refuses it: {refusal.words}"
                    f" (asked with {refusal.expected})"
                )
            hint = _make_refusal_hint(refusal, user_flags.vllm, facts, profile["variant"])
            raise EntrypointError(refusal.code, message, hint)
    return (*notices, *note_fallback(user_flags.vllm, model, settings), *unknown_variables(user_flags))


def _make_refusal_hint(refusal: Refusal, lists: VllmLists, facts: Facts, variant: str) -> str:
    """Return the rows that take it, or what else to do, and how to overrule it."""
    overrule = f"{ACCEPT} {refusal.name} starts it all the same"
    if refusal.code == USAGE or refusal.is_misspelt:
        return overrule
    differs_by_row = refusal.kind or refusal.taken_by
    advice = describe_taking_rows(lists, refusal, facts, variant) if differs_by_row else refusal.instead
    return f"{advice}; {overrule}" if advice else overrule


def find_refusals(
    lists: VllmLists, model: ModelFacts, user_flags: UserFlags, settings: Settings, drafting: Mapping[str, Any]
) -> Iterator[Refusal]:
    """Yield what the lists do not have. What is not known is not refused. `drafting`: of speculative decoding."""
    yield from _refused_architecture(lists, model, settings)
    yield from _missing_model_packages(lists, model, user_flags, settings)
    yield from _refused_model_type(lists, model, settings)
    yield from _refused_quantisation(lists, model, settings)
    yield from _refused_float16(lists, model, settings)
    if settings.get(RUNNER) == "generate" and model.architecture in (lists.names("pooling_architectures") or ()):
        problem = f"{RUNNER} generate for {model.architecture}, which generates no text"
        yield Refusal(RUNNER, problem, f"{RUNNER} pooling, or without it", is_of_release=True)
    yield from _refused_drafting(lists, model, settings, drafting)
    yield from _refused_names(lists, settings)
    yield from _missing_packages(lists, model, settings, str(drafting.get("method")))
    for name, flag in user_flags.flags.items():
        if "flags" in lists.lists:
            yield from find_refused_value(lists.lists["flags"].get(name, ""), name, flag.value, flag.given)
        else:
            yield from _refused_by_release(lists, name, flag.value, flag.given)
        if name not in OF_ADAPTERS or is_switched_on(settings, ADAPTERS):
            yield from _refused_by_range(lists, name, flag.value, flag.given)
        yield from _refused_keys(lists, name, flag.value)


def _refused_by_range(lists: VllmLists, name: str, value: str | bool, flag_text: str) -> Iterator[Refusal]:
    """Yield a number that is smaller or greater than vLLM's configuration takes."""
    limits: Mapping[str, float] = lists.read_table("ranges").get(name, {})
    try:
        number = float(value)
    except ValueError:
        return
    for comparison, words in (("gt", "more than"), ("ge", "at least"), ("lt", "less than"), ("le", "at most")):
        limit = limits.get(comparison)
        if limit is not None and not getattr(operator, comparison)(number, limit):
            yield Refusal(name, f"{flag_text}: invalid value", f"{words} {limit:g}", USAGE)


def _refused_keys(lists: VllmLists, name: str, value: str | bool) -> Iterator[Refusal]:
    """Yield a key of an option that takes JSON, or a word of a key, that vLLM's configuration does not have.

    Forks add keys, and seldom words. Source: vLLM, config/utils.py, config, which refuses other keys.
    """
    option, dot, key = name.partition(".")
    keys: Mapping[str, list[str]] = lists.read_table("keys").get(option, {})
    stated = {key.partition(".")[0].replace("-", "_"): value} if dot else read_json_option({option: value}, option)
    for key, word in stated.items() if keys else ():
        if key not in keys and "keys" in lists.lists:
            yield Refusal(option, f"{option}: key {key}", _find_close_names(key, keys), USAGE)
        words = keys.get(key)
        is_number = dot and isinstance(word, str) and word.isdecimal()  # vLLM reads -cc.mode 3 as JSON
        if words and isinstance(word, str) and not is_number and not all(item.isdecimal() for item in words):
            words = [item for item in words if not item.isdecimal()]  # vLLM takes 0 and "NONE", but not "0"
        if words and isinstance(word, (str, int)) and str(word).lower() not in (item.lower() for item in words):
            yield Refusal(option, f"{option}: {key} {word}", f"one of {', '.join(words)}", USAGE, is_of_release=True)


def _refused_by_release(lists: VllmLists, name: str, value: str | bool, flag_text: str) -> Iterator[Refusal]:
    """Yield a value of a flag that the release does not list of which this vLLM is a fork or a plugin's host."""
    takes = lists.lists.get("flags_of_release", {}).get(name, "")
    is_extended = name in EXTENDED or name.endswith("-backend")
    has_words = isinstance(takes, list) and not is_extended and not any(word.isdecimal() for word in takes)
    # vLLM 0.9 also takes image=5,video=5 where it takes JSON. Source: engine/arg_utils.py, nullable_kvs.
    if has_words or (takes == "json" and str(value).startswith("{")):
        for refusal in find_refused_value(takes, name, value, flag_text):
            yield refusal._replace(is_of_release=True)


def _refused_architecture(lists: VllmLists, model: ModelFacts, settings: Settings) -> Iterator[Refusal]:
    """Yield an architecture for which neither vLLM nor, in its place, transformers has a class.

    Source: vllm/model_executor/models/registry.py, inspect_model_cls and _try_resolve_transformers.
    """
    names = lists.names("architectures")
    implementation = settings.get(IMPLEMENTATION, "auto")
    if names is None or not model.architecture or implementation not in (*OF_VLLM, OF_TRANSFORMERS):
        return
    if implementation == OF_TRANSFORMERS and "fallback_architectures" not in lists.lists:
        return
    if implementation == OF_TRANSFORMERS:
        yield from _refused_fallback(lists, model, settings, f"{IMPLEMENTATION} {OF_TRANSFORMERS}: ")
    elif later := lists.lists.get("later_architectures", {}).get(model.architecture):
        problem = f"architecture {model.architecture}, which vLLM has since {later} or a release before it"
        expected = f"one of the {len(names)} architectures of the release"
        yield Refusal(model.architecture, problem, expected, is_of_release=True, kind="architectures")
    elif not _find_class(model.architecture, names):
        removed = lists.lists.get("removed_architectures", {}).get(model.architecture)
        problem = f"architecture {model.architecture}" + (f", which vLLM had until {removed}" if removed else "")
        if implementation == "auto" and FALLBACK in names:
            yield from _refused_fallback(lists, model, settings, removed=problem.partition(",")[2])
        else:
            expected = f"one of its {len(names)} architectures"
            yield Refusal(model.architecture, problem, expected, kind="architectures")


def _refused_fallback(
    lists: VllmLists, model: ModelFacts, settings: Settings, before: str = "", removed: str = ""
) -> Iterator[Refusal]:
    """Yield an architecture that vLLM cannot run with the class of transformers, or may be unable to."""
    served = lists.names("fallback_architectures")
    problem = f"{before}architecture {model.architecture}" + (f",{removed}" if removed else "")
    own_code = model.remote_code or (model.known_from and settings.get(REMOTE_CODE))
    if served is None or own_code or not SERVED.fullmatch(model.architecture):
        expected = f"one of vLLM's {len(lists.names('architectures') or ())} architectures"
        yield Refusal(model.architecture, problem, expected, certain=False)
    elif model.architecture not in served:
        expected = "an architecture of vLLM, or one that it runs with transformers"
        yield Refusal(model.architecture, problem, expected, kind="architectures")
    elif "mxfp4" in model.quantization:  # source: vllm/model_executor/models/transformers/base.py
        problem = f"{problem} with quantisation {model.quantization}, which vLLM runs with transformers"
        yield Refusal(model.architecture, problem, "another quantisation", instead="use an unquantised copy")


def note_fallback(lists: VllmLists, model: ModelFacts, settings: Settings) -> Iterator[Notice]:
    """Yield a notice if vLLM runs an architecture with the class of transformers."""
    names, served = lists.names("architectures"), lists.names("fallback_architectures")
    if names is None or served is None or model.architecture not in served or lists.assumed:
        return
    implementation = settings.get(IMPLEMENTATION, "auto")
    if implementation == OF_TRANSFORMERS or (implementation == "auto" and not _find_class(model.architecture, names)):
        yield make_notice("PLAN-153", model.architecture, "a class of vLLM's own", name=model.architecture)


def _find_class(architecture: str, names: Collection[str]) -> str:
    """Return the architecture on whose class vLLM runs another: itself, or one of its family with another end of name.

    Empty if there is none.
    """
    if architecture in names:
        return architecture
    suffix = next((end for end in CONVERTED_SUFFIXES if architecture.endswith(end)), "")
    if FALLBACK not in names or not suffix:
        return ""
    stem = architecture.removesuffix(suffix)
    return next((stem + end for end in CONVERTED_SUFFIXES if stem + end in names), "")


def _list_lacking_packages(lists: VllmLists, architecture: str) -> list[str]:
    """Return the packages that the image lacks, and without which vLLM cannot import the class of an architecture."""
    needed: list[str] = lists.lists.get("required_packages", {}).get(architecture, [])
    return [package for package in needed if lists.lacks_package(package)]


def find_absent_packages(lists: VllmLists, model: ModelFacts, user_flags: UserFlags) -> list[str]:
    """Return the packages for which drydock's plugin stands in while a model that needs them serves its text.

    vLLM imports the class before it reads --language-model-only, so the switch alone does not help. None if the user
    wants other input, if text alone is of no use, or if this vLLM has no such switch. Source: vLLM 0.32,
    model_executor/models/registry.py, _try_inspect_model_cls; 87 of its 88 architectures were imported so.
    """
    architecture = _find_class(model.architecture, lists.names("architectures") or ())
    packages, flags = _list_lacking_packages(lists, architecture), lists.own_or_assumed("flags") or ()
    plugins = user_flags.variable("VLLM_PLUGINS")
    switch, limits = user_flags.flags.get(TEXT_ONLY), read_json_option(_list_values(user_flags), LIMITS)
    wants_more = (switch and switch.value is False) or any(most != 0 for most in limits.values())
    has_hidden_input = not model.modalities and any("vision" in key or "image" in key for key in model.table)
    if not packages or wants_more or has_hidden_input or TEXT_ONLY not in flags:
        return []
    if (plugins and _STAND_IN not in plugins.split(",")) or re.search("ASR|O(?:CR|cr)", architecture):
        return []
    return packages if {*packages} <= {*_STOOD_IN} else []


def _list_values(user_flags: UserFlags) -> dict[str, str | bool]:
    return {name: flag.value for name, flag in user_flags.flags.items()}


def _missing_model_packages(
    lists: VllmLists, model: ModelFacts, user_flags: UserFlags, settings: Settings
) -> Iterator[Refusal]:
    """Yield packages that the image lacks, and that the class or a constructor imports: of it, or of its processor.

    A server of text alone constructs no processor. Source: vllm/model_executor/models/registry.py,
    _try_inspect_model_cls; multimodal/processing/context.py, get_hf_processor; templates/tools/read_vllm.py.
    """
    names = lists.names("architectures")
    architecture = _find_class(model.architecture, names) if names else model.architecture
    is_of_vllm = settings.get(IMPLEMENTATION, "auto") in OF_VLLM
    if names is None:
        return
    stood_in = find_absent_packages(lists, model, user_flags)
    of_class = _list_lacking_packages(lists, architecture) if is_of_vllm else []
    of_constructor: set[str] = set()
    if architecture and not settings.get(TEXT_ONLY):
        of_constructor = {*lists.lists.get("constructor_packages", {}).get(architecture, ())}
        if is_of_vllm and architecture not in lists.lists.get("own_processors", ()):
            of_constructor |= {*lists.lists.get("processor_packages", {}).get(model.model_type, ())}
    lacking = [(architecture, package, "architectures") for package in of_class if package not in stood_in]
    lacking += [(package, package, "packages") for package in sorted(of_constructor) if lists.lacks_package(package)]
    for name, package, kind in lacking:
        problem = f"architecture {architecture} requires the package {package}, which this image lacks"
        yield Refusal(name, problem, f"the package {package}", instead=_advise_package(package), kind=kind)


def _advise_package(package: str) -> str:
    return f"add {package} to the packages of a row of your own (docs/project.md)"


def _refused_model_type(lists: VllmLists, model: ModelFacts, settings: Settings) -> Iterator[Refusal]:
    """Yield a model type that neither vLLM nor transformers can read config.json of.

    Source: vllm/transformers_utils/config.py, HFConfigParser; transformers, AutoConfig.from_pretrained.
    """
    of_vllm, of_transformers = lists.names("config_types"), lists.names("transformers_types")
    if of_vllm is None or of_transformers is None or not model.model_type:
        return
    if model.model_type in of_vllm | of_transformers or settings.get(OVERRIDES):
        return
    if settings.get(REMOTE_CODE) and (model.remote_code or model.known_from):
        return
    expected = f"a model type of transformers or vLLM: {_find_close_names(model.model_type, of_transformers | of_vllm)}"
    if model.known_from:  # a copy of a configuration does not say whether the model brings code
        expected = f"{REMOTE_CODE}, if the model brings code of its own; or {expected}"
    if model.remote_code:
        expected = f"{REMOTE_CODE}, which runs the model's own code to read its configuration"
    yield Refusal(model.model_type, f"model type {model.model_type}", expected, kind="model_types")


def _refused_float16(lists: VllmLists, model: ModelFacts, settings: Settings) -> Iterator[Refusal]:
    """Yield float16 for a model type whose numbers exceed it. Source: vllm/config/model.py, _check_valid_dtype."""
    reason = lists.refuse_float16(model.model_type)
    if reason and settings.get(DTYPE) in FLOAT16:
        problem = f"{DTYPE} {settings[DTYPE]} for model type {model.model_type} ({reason})"
        instead = f"set {DTYPE} float32, which takes twice the memory, or use a device that computes bfloat16"
        yield Refusal("float16", problem, "bfloat16 or float32", is_of_release=True, instead=instead)


def _refused_drafting(
    lists: VllmLists, model: ModelFacts, settings: Settings, drafting: Mapping[str, Any]
) -> Iterator[Refusal]:
    """Yield a method of speculative decoding that this vLLM does not have, or does not have for this model.

    Source: vllm/config/speculative.py (SpeculativeConfig.__post_init__, hf_config_override, _verify_args).
    """
    methods, method = lists.names("drafting_methods"), str(drafting.get("method") or "")
    if methods is None or not method:
        return
    names = {model.model_type, model.architecture}
    drafted, targets = lists.names("drafted_types"), lists.names("drafting_targets")
    if method.strip("[]") not in methods:
        expected = f"one of {', '.join(sorted(methods))}"
        yield Refusal(method, f"{SPECULATION}: method {method}", expected, is_misspelt=True)
    elif method in (lists.names("own_drafting_methods") or ()) and not drafting.get("model"):
        is_known = drafted is not None and all(names) and not settings.get(OVERRIDES)
        if is_known and not model.predictors and not (drafted or set()) & names:
            problem = f"{SPECULATION}: method {method} for {model.architecture}"
            expected = "a model with layers that draft tokens (MTP), a draft model (eagle3), or ngram"
            yield Refusal(SPECULATION, problem, expected, is_of_release=True)
    elif method == OF_HIDDEN_STATES and targets and model.architecture not in targets:
        is_of_vllm = settings.get(IMPLEMENTATION, "auto") in OF_VLLM
        if is_of_vllm and model.architecture in (lists.names("architectures") or ()):
            problem = f"{SPECULATION}: method {method} for {model.architecture}, which hands out no hidden states"
            yield Refusal(SPECULATION, problem, "another method, such as ngram or draft_model", is_of_release=True)


def _refused_of_platform(
    accelerator: str, model: ModelFacts, user_flags: UserFlags, settings: Settings
) -> Iterator[Refusal]:
    """Yield a method of quantisation that a platform does not take.

    Source: vllm/platforms/interface.py, verify_quantization.
    """
    method = str(settings.get(QUANTIZATION) or model.quantization)
    methods = user_flags.vllm.read_table("platform_quantisations").get(accelerator, ())
    if QUANTIZATION in user_flags.flags and methods and method not in methods:
        problem = f"{QUANTIZATION} {method} on {accelerator}"
        yield Refusal(method, problem, f"one of {', '.join(methods)}", is_of_release=True)


def _refused_quantisation(lists: VllmLists, model: ModelFacts, settings: Settings) -> Iterator[Refusal]:
    names = lists.names("quantisations")
    stated = settings.get(QUANTIZATION)
    method = str(stated) if stated else model.quantization
    if names is None or not method or {method, *METHOD_NAMES.get(method, ())} & names:
        return
    origin = f"{QUANTIZATION} {method}" if stated else f"quantisation method {method}"
    yield Refusal(method, origin, _find_close_names(method, names), kind="quantisations")


def _refused_names(lists: VllmLists, settings: Settings) -> Iterator[Refusal]:
    """Yield values that name an entry of a list that the parser of the command line does not check."""
    kinds = {
        TOOL_PARSER: "tool_parsers",
        REASONING_PARSER: "reasoning_parsers",
        LOAD_FORMAT: "load_formats",
        EXECUTOR: "executors",
    }
    for option, kind in kinds.items():
        value, names = settings.get(option), lists.names(kind)
        is_own = PLUGINS.get(option) in settings or (option == EXECUTOR and "." in str(value))  # a class of the user's
        if isinstance(value, str) and value and names is not None and value not in names and not is_own:
            yield _refuse_name(value, f"{option} {value}", names, kind)
    connectors = lists.names("connectors")
    for connector in named_connectors(settings) if connectors is not None else ():
        if connector not in (connectors or ()):
            yield _refuse_name(connector, f"{KV_TRANSFER}: connector {connector}", connectors or (), "connectors")


def _refuse_name(name: str, problem: str, names: Collection[str], kind: str) -> Refusal:
    is_misspelt = bool(get_close_matches(name, names, 1, _SUGGESTED))
    return Refusal(name, problem, _find_close_names(name, names), is_misspelt=is_misspelt, kind=kind)


def named_connectors(settings: Settings) -> tuple[str, ...]:
    """Return the connectors that a server uses and does not bring with it; none for text that is no JSON."""
    stated = read_json_option(settings, KV_TRANSFER)
    extra = stated.get("kv_connector_extra_config")
    several = extra.get("connectors") if isinstance(extra, dict) else None
    every = [stated, *(several if isinstance(several, list) else ())]
    return tuple(
        str(item["kv_connector"])
        for item in every
        if isinstance(item, dict) and item.get("kv_connector") and not item.get("kv_connector_module_path")
    )


def _missing_packages(
    lists: VllmLists, model: ModelFacts, settings: Settings, drafting_method: str = ""
) -> Iterator[Refusal]:
    """Yield options whose package the image lacks."""
    packages = lists.names("packages")
    if packages is None:
        return
    stated = {QUANTIZATION: model.quantization, **settings, SPECULATION: drafting_method}
    names = [EXECUTOR, DATA_BACKEND, LOAD_FORMAT, QUANTIZATION, SPECULATION]
    names += [KV_BACKEND] if KV_OFFLOAD in settings else []
    options = [(name, str(stated.get(name))) for name in names]
    options += [(KV_TRANSFER, connector) for connector in named_connectors(settings)]
    for option, value in options:
        distributions = PACKAGES.get((option, value), ())
        if distributions and not packages.intersection(distributions):
            problem = f"{option} {value} requires the package {distributions[0]}, which this image lacks"
            expected, instead = f"the package {' or '.join(distributions)}", _advise_package(distributions[0])
            yield Refusal(distributions[0], problem, expected, instead=instead, kind="packages")


def find_refused_value(takes: Any, name: str, value: str | bool, flag_text: str) -> Iterator[Refusal]:
    """Yield a value that the parser of the command line refuses, by what the flag takes."""
    if isinstance(value, bool) or not takes or value == "None":
        return
    expected = ""
    # A backend's name may have dashes and capitals. Source: engine/arg_utils.py, moe_backend_kwargs.
    if isinstance(takes, list) and not {value, value.lower().replace("-", "_")} & {*takes}:
        expected = _find_close_names(value, takes)
    elif takes == "json" and not _is_json(value):
        expected = 'JSON, such as {"image": 2}'
    elif takes == "switch":
        expected = "no value"
    elif takes == "float" and not re.fullmatch(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?|inf|nan", value):
        expected = "a number"
    elif takes == "int" and not re.fullmatch(r"[+-]?\d+(\.\d+)?[kKmMgGtT]?|auto", value):
        expected = "a whole number"
    if expected:
        yield Refusal(name, f"{flag_text}: invalid value", expected, USAGE)


def find_flag_refusals(lists: VllmLists, name: str, value: str | bool, *, dotted: bool = False) -> Iterator[str]:
    """Yield why this vLLM would not take a flag of a recipe; `dotted`: a key of it."""
    flags = lists.own_or_assumed("flags")
    if flags is not None and name not in flags:
        yield "this vLLM has no such flag"
    elif not dotted:
        takes = lists.lists.get("flags", lists.lists.get("flags_of_release", {})).get(name, "")
        if isinstance(value, bool) and takes not in ("", BOOLEAN, "switch") and value is False:
            yield "this vLLM has it without --no-"
        model = ModelFacts("", local=False, architecture="", quantization="", weights=None, geometry=None, unknown="")
        settings = {name: value}
        refusals = (
            *find_refused_value(takes, name, value, name),
            *_refused_names(lists, settings),
            *(_refused_quantisation(lists, model, settings) if name == QUANTIZATION else ()),
            *_missing_packages(lists, model, settings),
        )
        if refusals:
            yield f"this vLLM does not take {value}"


def _is_json(text: str) -> bool:
    try:
        json.loads(SHORTENED.sub("", text))
    except (ValueError, RecursionError):
        return False
    return True


def _find_close_names(word: str, names: Collection[str]) -> str:
    """Return the names that are like a word; all of them if they are few, or if none is like it."""
    few, several = 12, 60
    close = get_close_matches(word, sorted(names), n=3, cutoff=0.5) if len(names) > few else []
    if close:
        return f"a name such as {', '.join(close)}"
    ordered = sorted(names, key=lambda name: (int(name) if name.isdecimal() else 0, name))
    return f"one of {', '.join(ordered)}" if len(names) <= several else f"one of vLLM's {len(names)} names"


def unknown_variables(user_flags: UserFlags) -> Iterator[Notice]:
    """Yield a notice for each variable VLLM_… that this vLLM does not read, as vLLM itself warns of it.

    Source: vllm/envs.py, validate_environ.
    """
    names = user_flags.vllm.names("variables")
    if names is None or user_flags.vllm.assumed:
        return
    for name in sorted(user_flags.env):
        if name.startswith("VLLM_") and name not in names and name not in user_flags.accepted:
            close = [describe_successor(name)] if name in SUCCESSORS else get_close_matches(name, names, 1, _SUGGESTED)
            yield make_notice("PLAN-151", name, close[0] if close else "a variable of vLLM's envs.py", name=name)
