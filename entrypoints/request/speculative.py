"""The draft model that the user's flags name for speculative decoding. Pure.

Source: vLLM 0.32's config/speculative.py (SpeculativeConfig.__post_init__) and engine/arg_utils.py
(create_speculative_config).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.request.flags import SPECULATION
from entrypoints.request.vllm_flags import UserFlags

_FIELDS = {"method": "--spec-method", "model": "--spec-model", "num_speculative_tokens": "--spec-tokens"}
"""Fields that have a flag of their own too."""
_WITHOUT_A_MODEL = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
_OWN = "mtp"
"""The method whose layers are a part of the model itself; each family also has a name that ends in it."""
_CLASS = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
"""A proposer of the user's own, as a Python name."""


class Drafting(NamedTuple):
    """What computes the tokens that the model then checks."""

    model: str = ""
    """The folder or hub id of the draft model; empty if there is none."""
    revision: str | None = None
    ranks: int | None = None
    """Ranks that share the draft model, if the user sets it: 1, or as many as share the model."""
    in_model: bool = False
    """Whether layers of the model itself compute them."""


def parse_drafting(user_flags: UserFlags) -> Drafting:
    """Return the draft model of --speculative-config, of its fields as flags, or of --spec-model. Raises USAGE."""
    return describe_drafting(parse_speculation(user_flags))


def describe_drafting(fields: Mapping[str, Any]) -> Drafting:
    """Return the draft model that the fields of speculative decoding name."""
    method, model = str(fields.get("method") or ""), str(fields.get("model") or "")
    if method.endswith(_OWN):
        return Drafting(in_model=True)
    if method in _WITHOUT_A_MODEL or model in ("", *_WITHOUT_A_MODEL) or re.fullmatch(_CLASS, model):
        return Drafting()
    ranks, revision = str(fields.get("draft_tensor_parallel_size") or ""), fields.get("revision")
    return Drafting(
        model, str(revision) if revision else None, int(ranks) if re.fullmatch("[1-9][0-9]{0,5}", ranks) else None
    )


def parse_speculation(user_flags: UserFlags) -> dict[str, Any]:
    """Return the fields of --speculative-config, of its parts as flags, and of flags for one field. Raises USAGE."""
    text = user_flags.flag(SPECULATION) or "{}"
    try:
        fields = parse_untrusted_json(text)
    except ValueError as error:
        raise _make_speculation_error(text, str(error)) from error
    if not isinstance(fields, dict):
        raise _make_speculation_error(text, "expected an object")
    normal_fields = {name.replace("-", "_"): value for name, value in fields.items()}
    prefix = f"{SPECULATION}."
    dotted = {
        name[len(prefix) :].replace("-", "_"): user_flags.flag(name)
        for name in user_flags.flags
        if name.startswith(prefix)
    }
    flag_fields = {field: user_flags.flag(flag) for field, flag in _FIELDS.items() if flag in user_flags.flags}
    return {**normal_fields, **dotted, **flag_fields}


def _make_speculation_error(text: str, why: str) -> EntrypointError:
    hint = f"""write a JSON object, such as {SPECULATION} '{{"model": "FOLDER", "num_speculative_tokens": 3}}'"""
    return EntrypointError(USAGE, f"{SPECULATION} {text[:80]}: {why}", hint)
