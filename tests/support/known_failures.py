"""The known failures of each accelerator, as images have them, and what `explain` finds with them."""

from __future__ import annotations

import json
from typing import Any

from drydock.config.failures import failures_text
from drydock.config.project_choice import DRYDOCK
from entrypoints.checks.symptoms import add_failures, explain_log
from tests.support.sample import KNOWN, PROFILE

ACCELERATORS = ("cuda", "rocm", "ascend", "neuron", "tpu", "habana", "xpu", "cpu", "enflame")
PROFILES: dict[str, dict[str, Any]] = {
    name: add_failures(PROFILE | {"findings": KNOWN}, json.loads(failures_text(DRYDOCK, name))) for name in ACCELERATORS
}


def explain_ids(text: str, accelerator: str = "cuda") -> list[str]:
    """Return the names of the failures, and ids of the findings, that are in a text."""
    return [match.id for match in explain_log(text, PROFILES[accelerator])]


def explain_causes(text: str, accelerator: str = "cuda") -> list[str]:
    return [match.id for match in explain_log(text, PROFILES[accelerator]) if match.kind == "cause"]
