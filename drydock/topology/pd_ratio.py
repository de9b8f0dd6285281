"""How many nodes should compute prompts and how many answers. Pure.

The rule: a node computes five times as many tokens of prompts as of answers in the same time, so prompts of I and
answers of O tokens need nodes in the ratio I / 5 : O. Source: DeepSeek, DeepSeek-V3/R1 Inference System Overview
(open-infra-index, 2025-02-27): on average 73,700 tokens of prompts or 14,800 of answers a second and node. That is one
model on one kind of card with half of the prompts cached, so only a ratio that is off by more than a factor of two is
reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from drydock.topology.findings import format_topology_finding
from drydock.topology.topology_records import Goals, Group

PROMPT_TOKENS_PER_ANSWER_TOKEN = 73_700 / 14_800
TOLERANCE = 2.0


def count_nodes(groups: Sequence[Group], role: str) -> int:
    """Return the number of nodes that have a role."""
    return sum(group.replicas * group.nodes for group in groups if group.role == role)


def suggest_node_ratio(goals: Goals) -> float | None:
    """Return nodes for prompts per node for answers; None if the goals do not name both lengths."""
    if not (goals.input and goals.output):
        return None
    return sum(goals.input) / PROMPT_TOKENS_PER_ANSWER_TOKEN / sum(goals.output)


def check_node_ratio(goals: Goals, groups: Sequence[Group]) -> tuple[str, ...]:
    """Return a finding if the file's ratio is far from what the goals suggest."""
    prefill, decode, ratio = count_nodes(groups, "prefill"), count_nodes(groups, "decode"), suggest_node_ratio(goals)
    if not (prefill and decode and ratio) or 1 / TOLERANCE <= prefill / decode / ratio <= TOLERANCE:
        return ()
    total = prefill + decode
    suggested = min(max(round(total * ratio / (1 + ratio)), 1), total - 1)
    if suggested == prefill:
        return ()
    text = f"{prefill} nodes for prefill and {decode} for decode; goals suggest {suggested} and {total - suggested}"
    return (format_topology_finding("TOPO-003", text),)
