"""What is loaded in addition to the model: a draft model, and the slots of LoRA adapters. Pure.

vLLM 0.32 allocates the slots when it loads the model, whether or not there are adapters: for each linear layer
--max-loras times two matrices of --max-lora-rank (lora/layers/base_linear.py, column_parallel_linear.py, fused_moe.py,
vocab_parallel_embedding.py, logits_processor.py: create_lora_weights). Ranks divide the matrix on the layer's divided
side; with --fully-sharded-loras also the other one. The draft model has no pipeline (config/speculative.py,
create_draft_parallel_config).
"""

from __future__ import annotations

from typing import NamedTuple

from entrypoints.decide.parallelism.rules import Split
from entrypoints.model.parameters import Linear
from entrypoints.model.read import ModelFacts
from entrypoints.request.flags import ADAPTER_RANK, ADAPTER_TARGETS, ADAPTERS, ADAPTERS_AT_ONCE, SHARDED_ADAPTERS
from entrypoints.request.speculative import Drafting, parse_drafting
from entrypoints.request.vllm_flags import UserFlags

_RANK = 16
"""vLLM's default --max-lora-rank."""


class Extras(NamedTuple):
    """What the user's flags load in addition to the model."""

    drafting: Drafting = Drafting()
    adapters: int = 0
    """Adapters that have a slot (--max-loras); 0 without --enable-lora."""
    rank: int = _RANK
    sharded: bool = False
    """Whether ranks divide both matrices of an adapter."""
    targets: tuple[str, ...] = ()
    """Names of the layers that adapters may change; () for all."""

    def draft_bytes(self, model: ModelFacts, ranks: int, element: int) -> int:
        """Return the bytes of the draft model's weights on one of so many ranks; 0 if unknown."""
        if model.draft is None or model.draft.weights is None:
            return 0
        return -(-model.draft.weights.loaded(element) // min(ranks, self.drafting.ranks or ranks))

    def adapter_bytes(self, model: ModelFacts, split: Split, element: int, share: float = 1.0) -> int:
        """Return the bytes of all slots on one device that holds this share of the layers."""
        if not self.adapters:
            return 0
        changed = [one for one in model.linears if not self.targets or not {*self.targets}.isdisjoint(one.names)]
        numbers = sum(self._numbers(one, split) * (share if one.layers > 1 else 1) for one in changed)
        return self.adapters * element * int(numbers)

    def _numbers(self, linear: Linear, split: Split) -> int:
        """Return the numbers of one slot in all layers of a kind, on one device."""
        ranks = 1 if linear.experts and split.experts else split.tensor
        divided = {"inputs": (ranks, ranks if self.sharded else 1), "outputs": (ranks if self.sharded else 1, ranks)}
        first, second = divided.get(linear.divided, (1, 1))
        one = -(-linear.inputs * self.rank * linear.slices // first) + -(-linear.outputs * self.rank // second)
        copies = linear.experts or 1
        if linear.experts and split.experts:
            copies = -(-linear.experts // (split.tensor * split.engines))
        return linear.layers * copies * one


def read_extras(user_flags: UserFlags) -> Extras:
    """Return what the user's flags load in addition. Raises USAGE."""
    drafting = parse_drafting(user_flags)
    if user_flags.flag(ADAPTERS) != "True":
        return Extras(drafting)
    return Extras(
        drafting,
        user_flags.number(ADAPTERS_AT_ONCE) or 1,
        user_flags.number(ADAPTER_RANK) or _RANK,
        user_flags.flag(SHARDED_ADAPTERS) == "True",
        tuple((user_flags.flag(ADAPTER_TARGETS) or "").replace(",", " ").split()),
    )
