"""The required sequence length and concurrency, from flags, intents and the model. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from entrypoints.core.errors import DOES_NOT_FIT, USAGE, EntrypointError
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import LENGTH, OVERRIDES
from entrypoints.request.vllm_flags import UserFlags

_LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_CHANGES_LENGTH = (OVERRIDES, "--hf-config-path", "--rope-scaling", "--rope-theta", "--config-format")


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

    def tokens(self, engines: int) -> int:
        """Return the number of tokens that each of these engines must hold at once."""
        each = -(-self.concurrency // engines)
        return max(self.length or 0, each * (self.typical or 0))


def read_demand(model: ModelFacts, given: UserFlags, block: int) -> Demand:
    """Return the demand: by the user's flag, else by intents, else by the model's length. Raises DOES_NOT_FIT."""
    intents, most = given.intents, model.geometry.max_length if model.geometry else None
    user, concurrency = given.flag(LENGTH), intents.concurrency or 1
    typical = None
    if intents.input and intents.output:
        typical = -(-(sum(intents.input) + sum(intents.output)) // 2)
    if user in ("-1", "auto"):
        return Demand(most, "", left_to_vllm=True, typical=typical, concurrency=concurrency)
    if user is not None:
        return Demand(given.number(LENGTH), "", fixed=True, typical=typical, concurrency=concurrency)
    if not (intents.input and intents.output):
        return Demand(most, "", typical=typical, concurrency=concurrency)
    longest = intents.input[1] + intents.output[1]
    if given.flag(OVERRIDES) is not None:  # it can change the model's length
        most = None
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
    return Demand(length, because, fixed=True, from_intents=True, typical=typical, concurrency=concurrency)


def check_length(model: ModelFacts, given: UserFlags, settings: Collection[str]) -> None:
    """Raise USAGE for a --max-model-len above the model's positions, which vLLM refuses unless a variable allows it.

    `settings` are the flags and variables that the image sets.
    """
    geometry, user = model.geometry, given.flag(LENGTH)
    if geometry is None or geometry.max_length is None or user in (None, "-1", "auto"):
        return
    longest = max(geometry.max_length, geometry.stated_length)
    overridden = _LONGER in settings or given.variable(_LONGER) or any(name in given.flags for name in _CHANGES_LENGTH)
    if (given.number(LENGTH) or 0) <= longest or overridden:
        return
    message = f"{given.flags[LENGTH].given}: {model.name} supports {longest} tokens"
    raise EntrypointError(USAGE, message, f"lower it, or set {_LONGER}=1 if the model was trained for more")
