"""What this vLLM refuses of speculative decoding, by its own lists of methods and of models. Pure.

Source: vLLM 0.16 to 0.33, config/speculative.py (SpeculativeConfig.__post_init__, _verify_args).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from entrypoints.model.read import ModelFacts
from entrypoints.plan.refusal import Refusal
from entrypoints.request.flags import IMPLEMENTATION, OVERRIDES, SPECULATION, TENSOR
from entrypoints.request.speculative import parse_speculation
from entrypoints.request.vllm_flags import UserFlags
from entrypoints.request.vllm_lists import VllmLists

Settings = Mapping[str, str | bool]
LOOKUP = ("ngram", "[ngram]", "ngram_gpu")
WITHOUT_DRAFT = (*LOOKUP, "suffix", "extract_hidden_states", "dspark")
"""Methods that vLLM takes without `model`. DSpark's layers may be a part of the model."""
WITHOUT_DEFAULT = (*LOOKUP, "extract_hidden_states")
"""Methods that know no number of tokens of their own."""
SUFFIX_PACKAGE = "arctic-inference"
"""Source: config/speculative.py, _validate_suffix_decoding."""
OF_HIDDEN_STATES = "eagle3"
"""The method for which the model hands out hidden states of several layers. Source: models/interfaces.py."""


def find_drafting_refusals(
    lists: VllmLists, model: ModelFacts, user_flags: UserFlags, settings: Settings
) -> Iterator[Refusal]:
    """Yield a method, or a setting of one, with which this vLLM does not start."""
    fields = parse_speculation(user_flags)
    methods = lists.names("drafting_methods")
    if not fields or methods is None:
        return
    draft = str(fields.get("model") or "")
    method = str(fields.get("method") or (draft if draft in LOOKUP else ""))
    if method and method.strip("[]") not in methods:
        expected = f"one of {', '.join(sorted(methods))}"
        yield Refusal(method, f"{SPECULATION}: method {method}", expected, is_misspelt=True)
    elif method in (lists.names("own_drafting_methods") or ()):
        if not draft:
            yield from _refused_own_layers(lists, model, settings, method)
    elif not draft and method not in WITHOUT_DRAFT:
        problem = f"{SPECULATION}: {f'method {method}' if method else 'no method and'} without a draft model"
        yield _refuse(problem, "model, the folder or hub id of the draft model")
    else:
        yield from _refused_without_layers(lists, model, settings, method, fields)
    yield from _refused_fields(fields, settings)


def _refused_own_layers(lists: VllmLists, model: ModelFacts, settings: Settings, method: str) -> Iterator[Refusal]:
    """Yield a model that has no layers of its own that draft tokens."""
    drafted = lists.names("drafted_types")
    if drafted is None or model.predictors or settings.get(OVERRIDES):
        return
    if not drafted & {model.model_type, model.architecture} and model.model_type and model.architecture:
        what = f"{model.architecture}, which has no layers that draft tokens (MTP)"
        problem = f"{SPECULATION}: method {method} for {what}"
        yield _refuse(problem, "a draft model (eagle3), or ngram, which needs none")


def _refused_without_layers(
    lists: VllmLists, model: ModelFacts, settings: Settings, method: str, fields: Mapping[str, Any]
) -> Iterator[Refusal]:
    """Yield what methods without layers of the model lack: a number of tokens, a package, hidden states."""
    if method in WITHOUT_DEFAULT and fields.get("num_speculative_tokens") is None:
        yield _refuse(f"{SPECULATION}: method {method} without num_speculative_tokens", "num_speculative_tokens")
    if method == "suffix" and lists.lacks_package(SUFFIX_PACKAGE):
        problem = f"{SPECULATION}: method suffix requires the package {SUFFIX_PACKAGE}, which this image lacks"
        instead = f"add {SUFFIX_PACKAGE} to the packages of a row of your own (docs/project.md)"
        yield Refusal(SUFFIX_PACKAGE, problem, f"the package {SUFFIX_PACKAGE}", instead=instead, kind="packages")
    targets, names = lists.names("drafting_targets"), lists.names("architectures") or ()
    is_of_vllm = model.architecture in names and settings.get(IMPLEMENTATION, "auto") in ("auto", "vllm")
    if method == OF_HIDDEN_STATES and targets and is_of_vllm and model.architecture not in targets:
        problem = f"{SPECULATION}: method {method} for {model.architecture}, which hands out no hidden states"
        yield _refuse(problem, "another method, such as ngram or draft_model")


def _refused_fields(fields: Mapping[str, Any], settings: Settings) -> Iterator[Refusal]:
    least, most = _read_number(fields, "prompt_lookup_min"), _read_number(fields, "prompt_lookup_max")
    if least and most and least > most:
        yield _refuse(f"{SPECULATION}: prompt_lookup_min {least} and prompt_lookup_max {most}", "the least first")
    tokens = _read_number(fields, "num_speculative_tokens")
    if tokens is not None and tokens <= 0:
        yield _refuse(f"{SPECULATION}: num_speculative_tokens {tokens}", "1 or more")
    if fields.get("tensor_parallel_size") is not None:
        yield _refuse(f"{SPECULATION}: tensor_parallel_size", "draft_tensor_parallel_size")
    ranks, size = _read_number(fields, "draft_tensor_parallel_size"), str(settings.get(TENSOR, "1"))
    if ranks is not None and str(ranks) not in ("1", size):
        yield _refuse(f"{SPECULATION}: draft_tensor_parallel_size {ranks} with {TENSOR} {size}", f"1 or {size}")


def _refuse(problem: str, expected: str) -> Refusal:
    return Refusal(SPECULATION, problem, expected, is_of_release=True)


def _read_number(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    text = str(value)
    is_number = not isinstance(value, bool) and text.lstrip("-").isdecimal() and len(text) <= 9  # noqa: PLR2004
    return int(text) if is_number else None
