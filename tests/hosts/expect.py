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

from drydock.config.matrix import find, read_matrix  # noqa: E402 - after the path is set
from entrypoints.command import as_json, command  # noqa: E402 - after the path is set
from entrypoints.commands import Commands  # noqa: E402
from entrypoints.errors import EntrypointError  # noqa: E402
from entrypoints.facts import probe  # noqa: E402
from entrypoints.granted import examine  # noqa: E402
from entrypoints.host import Host  # noqa: E402
from entrypoints.model import Facts, to_json  # noqa: E402
from entrypoints.modelfacts import ModelFacts  # noqa: E402
from entrypoints.vllm_flags import parse_given  # noqa: E402
from tests.hosts.models import MODELS  # noqa: E402

HOSTS = Path(__file__).resolve().parent
VARIANTS = read_matrix(ROOT)
VARIANT = "variant"
"""A host's file that names the variant it is planned with; without it, the default of the accelerator in its name."""


def names() -> list[str]:
    """Return every recorded host."""
    return sorted(path.parent.name for path in HOSTS.glob("*/commands.json"))


def expected(name: str) -> dict[str, Any]:
    """Compute the three files of one host."""
    profile = profile_of(name)
    facts = read(name, profile)
    return {
        "facts.json": to_json(facts),
        "findings.json": to_json(examine(profile, facts)),
        "plan.json": {model: _plan(profile, facts, MODELS[model]) for model in MODELS},
    }


def profile_of(name: str) -> dict[str, Any]:
    """Return the profile that a host is planned with."""
    named = HOSTS / name / VARIANT
    target = named.read_text().strip() if named.is_file() else name.partition("-")[0]
    variant = find(VARIANTS, target)
    profile: dict[str, Any] = json.loads((ROOT / "images" / variant.id / "profile.json").read_text())
    return profile


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
