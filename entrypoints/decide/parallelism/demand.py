"""The required sequence length and concurrency, from flags, intents and the model. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import DOES_NOT_FIT, USAGE, EntrypointError
from entrypoints.core.parse import parse_untrusted_json, parse_version_numbers
from entrypoints.core.records import Notice
from entrypoints.model.config import optional_table
from entrypoints.model.geometry import override_geometry
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import LENGTH, NO_LATENT, NO_WINDOW, OVERRIDES, ROPE, SEQUENCES
from entrypoints.request.vllm_flags import UserFlags

_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_CHANGES_LENGTH = ("--hf-config-path", "--rope-theta", "--config-format")

_USUAL = 2048
"""Tokens of a usual sequence, prompt and answer, if nothing is known of the requests. The mean of the published Azure
LLM inference trace is 1,366 tokens for conversations and 2,075 for code (Splitwise, Patel et al., ISCA 2024)."""


class Demand(NamedTuple):
    """The requirements on one server."""

    length: int | None
    """Tokens of the longest sequence, prompt and answer; None if only vLLM knows it."""
    because: str
    fixed: bool = False
    """Whether the user set the length, so that it must not be shortened."""
    from_intents: bool = False
    """Whether the length follows from intents."""
    left_to_vllm: bool = False
    """Whether the user lets vLLM find the length (auto, -1)."""
    typical: int | None = None
    """Tokens of a sequence of mean length; None if unknown."""
    concurrency: int = 1
    """Sequences that run at a time."""
    by_engine: bool = False
    """Whether every engine runs `concurrency` sequences, instead of all engines together (--concurrency)."""
    requested: bool = False
    """Whether the user set the concurrency; otherwise it is the stack's default."""

    @property
    def usual(self) -> int:
        """Tokens of a sequence of mean length; an estimate if the requests' lengths are unknown."""
        return self.typical or min(self.length or _USUAL, _USUAL)

    def each(self, engines: int) -> int:
        """Return the number of sequences that each of these engines runs at a time."""
        return self.concurrency if self.by_engine else -(-self.concurrency // engines)


def read_demand(model: ModelFacts, user_flags: UserFlags, block: int, default: int = 1) -> Demand:
    """Return the demand: by the user's flag, else by intents, else by the model's length. Raises DOES_NOT_FIT.

    The concurrency is --concurrency of all engines together, else --max-num-seqs or the stack's `default` of each one.
    """
    demand, sequences = _read_length_demand(model, user_flags, block), user_flags.number(SEQUENCES)
    if user_flags.intents.concurrency:
        return demand._replace(concurrency=user_flags.intents.concurrency, requested=True)
    if sequences:
        return demand._replace(concurrency=sequences, requested=True, by_engine=True)
    return demand._replace(concurrency=default, by_engine=True)


def _read_length_demand(model: ModelFacts, user_flags: UserFlags, block: int) -> Demand:
    intents, most = user_flags.intents, model.geometry.max_length if model.geometry else None
    user = user_flags.flag(LENGTH)
    typical = None
    if intents.input and intents.output:
        typical = -(-(sum(intents.input) + sum(intents.output)) // 2)
    if user in ("-1", "auto"):
        return Demand(most, "", left_to_vllm=True, typical=typical)
    if user is not None:
        return Demand(user_flags.number(LENGTH), "", fixed=True, typical=typical)
    if not (intents.input and intents.output):
        return Demand(most, "", typical=typical)
    longest = intents.input[1] + intents.output[1]
    most = most and model.geometry and max(most, model.geometry.rope.asked)
    if most is not None and longest > most:
        message = (
            f"{model.name}: --input-range and --output-range add up to {longest} tokens, the model supports {most}"
        )
        hint = f"shorten them to {most} in total, or use a model with a longer context"
        raise EntrypointError(DOES_NOT_FIT, message, hint)
    rounded = -(-longest // block) * block
    length = rounded if most is None else min(most, rounded)
    because = (
        f"prompts of up to {intents.input[1]} tokens and answers of up to {intents.output[1]} tokens, in whole blocks"
    )
    return Demand(length, because, fixed=True, from_intents=True, typical=typical)


def check_length(model: ModelFacts, user_flags: UserFlags, settings: Collection[str]) -> None:
    """Raise USAGE for a --max-model-len above the model's positions, which vLLM refuses unless a variable allows it.

    `settings` are the flags and variables that the image sets.
    """
    geometry, user = model.geometry, user_flags.flag(LENGTH)
    if geometry is None or geometry.max_length is None or user in (None, "-1", "auto"):
        return
    longest = max(geometry.max_length, geometry.stated_length, geometry.rope.asked)
    overridden = (
        _LONGER in settings or user_flags.variable(_LONGER) or any(name in user_flags.flags for name in _CHANGES_LENGTH)
    )
    if (user_flags.number(LENGTH) or 0) <= longest or overridden:
        return
    message = f"{user_flags.flags[LENGTH].given}: {model.name} supports {longest} tokens"
    hint = f"lower it, or set {_LONGER}=1 if the model was trained for more"
    stretched = int(geometry.rope.original * geometry.rope.factor)
    if geometry.rope.kind in ("yarn", "telechat3-yarn") and stretched > longest:
        hint = f'add "max_position_embeddings": {stretched} to {OVERRIDES}: this vLLM does not apply the factor itself'
    raise EntrypointError(USAGE, message, hint)


def as_overridden(model: ModelFacts, user_flags: UserFlags, vllm: str) -> ModelFacts:
    """Return the model with the length that vLLM derives from it, --hf-overrides and --rope-scaling. Raises USAGE.

    `vllm` is the image's version.
    """
    version = parse_version_numbers(vllm)[:2]
    for flag in (OVERRIDES, ROPE):
        text = user_flags.flag(flag) or "{}"
        if model.geometry is None:
            return model
        try:
            parsed = optional_table({"value": parse_untrusted_json(text)}, "value") or {}
            overrides = parsed if flag == OVERRIDES else {"rope_scaling": parsed}
            model = model._replace(geometry=override_geometry(model.geometry, overrides, version))
        except ValueError as error:
            raise EntrypointError(USAGE, f"{flag}: {error}", "write a JSON object, as in config.json") from error
    if user_flags.variable(NO_LATENT) == "1" and model.geometry:
        model = model._replace(geometry=model.geometry.without_latent)
    return _without_window(model) if user_flags.flag(NO_WINDOW) == "True" else model


def _without_window(model: ModelFacts) -> ModelFacts:
    """Return the model as --disable-sliding-window makes it: every layer attends to all tokens, of a window at most."""
    geometry = model.geometry
    if geometry is None:
        return model
    length = geometry.window if geometry.is_cut_to_window else geometry.max_length
    return model._replace(geometry=geometry._replace(sliding_layers=0, max_length=length))


def length_notices(model: ModelFacts, overridden_model: ModelFacts) -> Iterator[Notice]:
    """Yield a notice if the model's length is not that of the positions in its configuration."""
    before, after = (
        model_facts.geometry and model_facts.geometry.max_length for model_facts in (model, overridden_model)
    )
    if before != after:
        yield make_notice("PLAN-113", f"{after} tokens", f"{before} tokens, as config.json says")
