"""What is expected of each recorded host: `./inv generate --only hosts` writes it; read the difference.

facts.json, findings.json and plan.json: a plan for each model of host_models.py, or the error that there is none. A
finding is written without what its check says of it in the profile. host.json is written as `facts --record`
writes it, because most of them are edited by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT))

from drydock.build import render  # noqa: E402 - after the path is set
from drydock.config.matrix import find_variant, read_matrix  # noqa: E402
from drydock.config.project_choice import DRYDOCK  # noqa: E402
from drydock.topology.size import read_rows_of_hosts  # noqa: E402
from entrypoints.checks.grants import examine_facts  # noqa: E402
from entrypoints.core.errors import EntrypointError  # noqa: E402
from entrypoints.core.records import Facts, to_json  # noqa: E402
from entrypoints.facts.facts import collect_facts  # noqa: E402
from entrypoints.facts.record import (  # noqa: E402
    FILE,
    dump_recorded_host,
    open_host,
    parse_record,
)
from entrypoints.host.commands import Commands  # noqa: E402
from entrypoints.host.host import Host  # noqa: E402
from entrypoints.model.read import ModelFacts  # noqa: E402
from entrypoints.plan.plan import find_host_refusal, make_serve_plan  # noqa: E402 - after the path is set
from entrypoints.plan.plan_text import make_plan_document  # noqa: E402 - after the path is set
from entrypoints.request.vllm_flags import parse_user_flags  # noqa: E402
from tests.support.hosts.host_models import MODELS  # noqa: E402
from tests.support.hosts.trees import HOSTS  # noqa: E402

VARIANTS = read_matrix(DRYDOCK)
WIDTH = 120
"""Characters of a line of a committed file: what fits into one is written as one."""


def names() -> list[str]:
    """Return every recorded host."""
    hosts = sorted(path.parent.name for path in HOSTS.glob(f"*/{FILE}"))
    assert hosts  # tests of all hosts loop over them
    return hosts


def expected(name: str) -> dict[str, Any]:
    """Compute the three files of one host."""
    profile = profile_of(name)
    facts = read(name, profile)
    return {
        "facts.json": to_json(facts),
        "findings.json": brief(
            to_json([*find_host_refusal(profile, facts, {}), *examine_facts(profile, facts)]), profile
        ),
        "plan.json": {model: _plan(profile, facts, MODELS[model]) for model in MODELS},
    }


def profile_of(name: str) -> dict[str, Any]:
    """Return the profile that a host is planned with."""
    return profile_in(read_rows_of_hosts().get(name, {}).get("planned", name.partition("-")[0]))


def profile_in(target: str) -> dict[str, Any]:
    profile: dict[str, Any] = json.loads(render.profile_text(find_variant(VARIANTS, target)))
    return profile


def read(name: str, profile: dict[str, Any]) -> Facts:
    """Read a recorded host's facts."""
    return look(open_host(str(HOSTS / name)), profile)


def look(host: Host, profile: dict[str, Any]) -> Facts:
    return collect_facts(host, Commands(host), profile, {})


def document(name: str) -> dict[str, Any]:
    """Return what host.json of a recorded host holds, to be changed."""
    loaded: dict[str, Any] = json.loads((HOSTS / name / FILE).read_text())
    return loaded


def opened(changed: dict[str, Any]) -> Host:
    return Host(source=parse_record(json.dumps(changed)))


def brief(findings: list[dict[str, Any]], profile: dict[str, Any]) -> list[dict[str, Any]]:
    """Return findings as they print, without what is the same in the profile, in the check of the same id."""
    checks = {check["id"]: check for check in profile["checks"]}
    return [
        _brief(finding, _said(check, finding, profile["facts"]) if (check := checks.get(finding["id"])) else {})
        for finding in findings
    ]


def _said(check: dict[str, Any], finding: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    constant = {key: check[key] for key in ("remediation", "scope", "source")}
    text = check["passed" if finding["severity"] == "PASS" else "text"]
    constant["stops"] = check["stops"] and finding["severity"] != "PASS"
    return {**constant, "text": text, "read": places.get(check["fact"], ""), "fix": {}}


def _brief(finding: dict[str, Any], profile_values: dict[str, Any]) -> dict[str, Any]:
    stated = {key: value for key, value in finding.items() if key != "stops" or value}
    return {key: value for key, value in stated.items() if key not in profile_values or value != profile_values[key]}


def _plan(profile: dict[str, Any], facts: Facts, model: ModelFacts) -> dict[str, Any]:
    try:
        plan = make_plan_document(make_serve_plan(profile, facts, model, parse_user_flags((model.name,), {})))
    except EntrypointError as error:
        return {"code": error.code, "error": error.message, "hint": error.hint}
    return {key: plan[key] for key in ("argv", "env", "reasons", "uses")}


def dumps(value: Any, file: str) -> str:
    """Format as the files are committed: what fits into a line, and each list of numbers, takes one.

    In facts.json so does each device, each CPU, and whatever else is an entry of a list or a table.
    """
    return _lines(value, "", deepest=2 if file == "facts.json" else None) + "\n"


def _lines(value: Any, indent: str, key: str = "", *, deepest: int | None = None) -> str:
    line = f"{indent}{key}{json.dumps(value, sort_keys=True, ensure_ascii=False)}"
    if not isinstance(value, (dict, list)) or len(line) < WIDTH or all(isinstance(item, int) for item in value):
        return line
    if len(indent) == deepest:
        return line
    if isinstance(value, dict):
        items = [_lines(value[name], f"{indent} ", f"{json.dumps(name)}: ", deepest=deepest) for name in sorted(value)]
        return "\n".join((f"{indent}{key}{{", ",\n".join(items), f"{indent}}}"))
    items = [_lines(item, f"{indent} ", deepest=deepest) for item in value]
    return "\n".join((f"{indent}{key}[", ",\n".join(items), f"{indent}]"))


def render_expected_files() -> dict[Path, str]:
    """Return path → text of every host's expectations, and of the host itself as it is recorded."""
    texts: dict[Path, str] = {}
    for name in names():
        texts[HOSTS / name / FILE] = dump_recorded_host(document(name))
        texts |= {HOSTS / name / file: dumps(value, file) for file, value in expected(name).items()}
    return texts
