"""Writes what is expected of each recorded host: `python tests/hosts/expect.py`, then read the difference.

facts.json, findings.json and plan.json: a plan for each model of models.py, or the error that there is none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from entrypoints.command import as_json, command  # noqa: E402 - after the path is set
from entrypoints.commands import Commands  # noqa: E402
from entrypoints.errors import EntrypointError  # noqa: E402
from entrypoints.facts import probe  # noqa: E402
from entrypoints.findings import evaluate  # noqa: E402
from entrypoints.host import Host  # noqa: E402
from entrypoints.model import Facts, to_json  # noqa: E402
from entrypoints.modelfacts import ModelFacts  # noqa: E402
from entrypoints.vllm_flags import parse_given  # noqa: E402
from tests.hosts.models import MODELS  # noqa: E402

HOSTS = Path(__file__).resolve().parent
PROFILES = {"cpu": ROOT / "images" / "cpu-vllm0.32" / "profile.json"}
"""Accelerator, which is how a host's name begins → the profile that it is planned with."""


def names() -> list[str]:
    """Return every recorded host."""
    return sorted(path.parent.name for path in HOSTS.glob("*/commands.json"))


def expected(name: str) -> dict[str, Any]:
    """Compute the three files of one host."""
    profile = json.loads(PROFILES[name.partition("-")[0]].read_text())
    facts = read(name, profile)
    return {
        "facts.json": to_json(facts),
        "findings.json": to_json(evaluate(profile["checks"], facts)),
        "plan.json": {model: _plan(profile, facts, MODELS[model]) for model in MODELS},
    }


def read(name: str, profile: dict[str, Any]) -> Facts:
    """Read a recorded host's facts."""
    host = Host(str(HOSTS / name))
    return probe(host, Commands(host), profile, {})


def _plan(profile: dict[str, Any], facts: Facts, model: ModelFacts) -> dict[str, Any]:
    try:
        plan = as_json(command(profile, facts, model, parse_given((model.name,), {})))
    except EntrypointError as error:
        return {"code": error.code, "error": error.message, "hint": error.hint}
    return {key: plan[key] for key in ("argv", "env", "reasons")}


def dumps(value: Any) -> str:
    """Format as the files are committed."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every host's expectations."""
    for name in names():
        for file, value in expected(name).items():
            (HOSTS / name / file).write_text(dumps(value))


if __name__ == "__main__":
    main()
