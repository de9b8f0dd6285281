"""The known failures of each accelerator, as images have them, and what `explain` finds with them."""

from __future__ import annotations

from typing import Any

from drydock.config.failures import read_failures
from drydock.config.project_choice import DRYDOCK
from drydock.model.record import dump_record
from entrypoints.checks.symptoms import add_failures, explain_log
from tests.support.sample import KNOWN, PROFILE

ACCELERATORS = ("cuda", "rocm", "ascend", "neuron", "tpu", "habana", "xpu", "cpu", "enflame")
PROFILES: dict[str, dict[str, Any]] = {
    name: add_failures(PROFILE | {"findings": KNOWN}, dump_record(read_failures(DRYDOCK, name)))
    for name in ACCELERATORS
}


def explain_ids(text: str, accelerator: str = "cuda") -> list[str]:
    """Return the names of the failures, and ids of the findings, that are in a text."""
    return [match.id for match in explain_log(text, PROFILES[accelerator])]


def explain_causes(text: str, accelerator: str = "cuda") -> list[str]:
    """Return those that are causes."""
    return [match.id for match in explain_log(text, PROFILES[accelerator]) if match.kind == "cause"]
