"""What vLLM says of the plans of a topology's nodes: one rank at a time, of the first of equal replicas."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import HostError, InputError
from drydock.topology import rehearsal
from drydock.topology.plan_model import Rank, Replica, TopologyPlan

SAID = {"outcome": "constructed", "vllm": "0.32.0", "checked": ["command line"], "words": [], "because": "",
        "unchecked": ["weights"]}  # fmt: skip


def rank_of(node: str) -> Rank:
    words = ("serve", "owner/model")
    return Rank(node=node, address="10.0.0.1", rank=0, argv=("python3",), words=words, env={}, ports={})


def plan() -> TopologyPlan:
    replicas = tuple(
        Replica(group=group, role="serve", number=number, ranks=(rank_of(f"{group}{number}"),))
        for group, number in (("a", 0), ("a", 1), ("b", 0))
    )
    return TopologyPlan(
        model="owner/model", image="drydock/cpu:1", accelerator="cpu", variant="cpu-vllm0.32", api_key="none",
        replicas=replicas,
    )  # fmt: skip


def test_the_first_of_equal_replicas_is_rehearsed() -> None:
    rehearsed_nodes = [replica.ranks[0].node for replica in rehearsal._list_first_replicas(plan())]

    assert rehearsed_nodes == ["a0", "b0"]


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({}, 0, "vLLM 0.32.0 takes it, by its command line; not asked: weights"),
        ({"outcome": "refused", "words": ["576 is not divisible"]}, 14, "vLLM 0.32.0 refuses it: 576 is not divisible"),
        ({"outcome": "not asked", "because": "no driver"}, 0, "not asked: no driver; vLLM took: command line"),
    ],
)
def test_vllms_answer_is_told(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: int, text: str) -> None:
    program = f"import sys; print({json.dumps({'rehearsal': {**SAID, **changes}})!r}); sys.exit({code})"
    monkeypatch.setattr(rehearsal.docker_command, "docker_argv", lambda _: [sys.executable, "-c", program])

    answer = rehearsal._run_rehearsal(plan().replicas[0], rank_of("a0"), None)  # type: ignore[arg-type] - not looked at

    assert rehearsal.format_rehearsed_rank(answer) == f"a0: group a, rank 0: {text}"


def test_a_plan_that_fails_in_the_container_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.stderr.write('log\\ndrydock: no device\\n\\nhint: look\\n'); sys.exit(6)"
    monkeypatch.setattr(rehearsal.docker_command, "docker_argv", lambda _: [sys.executable, "-c", program])

    with pytest.raises(HostError, match="no device"):
        rehearsal._run_rehearsal(plan().replicas[0], rank_of("a0"), None)  # type: ignore[arg-type] - as above


def test_a_written_plan_has_no_recorded_hosts() -> None:
    with pytest.raises(InputError, match="no recorded hosts"):
        next(rehearsal.rehearse_topology(None, plan(), Path("plan.json"), ""))  # type: ignore[arg-type] - as above
