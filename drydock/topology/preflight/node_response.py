"""What a machine answered → a record, strictly and in bounds. Pure.

A machine may be damaged or hostile: nothing of its answer is a path, a command or a template here, and every text is
made printable where it is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from drydock.core.files import parse_any_json
from drydock.model.record import Record
from entrypoints.core.records import Finding

AT_MOST = 16 << 20
"""Characters of an answer."""
FINDINGS_AT_MOST = 4096
TEXT_AT_MOST = 4096
_SEVERITIES = ("PASS", "INFO", "WARN", "FAIL", "UNKNOWN")
Text = Annotated[str, StringConstraints(max_length=TEXT_AT_MOST)]
Name = Annotated[str, StringConstraints(max_length=512)]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Whole = Annotated[int, Field(ge=0, lt=1 << 62)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Output(Record):
    """What a command printed."""

    rc: int
    stdout: Annotated[str, StringConstraints(max_length=8 << 20)]
    stderr: Text


class NodeImage(Record):
    """An image in the machine's engine."""

    id: Digest | Annotated[str, StringConstraints(max_length=0)]
    digests: Annotated[tuple[Digest, ...], Field(max_length=64)]
    failure: Text


class Model(Record):
    """A model's folder."""

    files: Annotated[dict[Name, tuple[Whole, Sha256]], Field(max_length=4096)]
    failure: Text
    free: Whole


class Chip(Record):
    """What hccn_tool says of a chip."""

    ip: Output
    link: Output
    tls: Output
    ping: Annotated[dict[Name, Output], Field(max_length=1024)]


class NodeResponse(Record):
    """What one machine answered."""

    images: Annotated[dict[Name, NodeImage], Field(max_length=64)]
    model: Model | None
    ports: Annotated[dict[Name, Text], Field(max_length=4096)]
    chips: Annotated[dict[Name, Chip], Field(max_length=256)]
    check: Output
    facts: Output
    fabric: Output | None


def read_answer(text: str) -> NodeResponse:
    """Parse an answer. Raises ValueError that says what is wrong with it."""
    if len(text) > AT_MOST:
        raise ValueError(f"found {len(text)} characters, expected at most {AT_MOST}")
    try:
        return NodeResponse.model_validate(parse_any_json(text))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))[:200]}: {first['msg']}") from error


def read_findings(output: Output) -> tuple[Finding, ...]:
    """Parse what the image's `check --json` or `fabric --json` printed. Raises ValueError."""
    content = parse_any_json(output.stdout)
    content = content.get("findings") if isinstance(content, dict) else content
    if not isinstance(content, list) or len(content) > FINDINGS_AT_MOST:
        raise ValueError("expected a list of findings")
    return tuple(map(_parse_node_finding, content))


def _parse_node_finding(entry: Any) -> Finding:
    if not isinstance(entry, Mapping) or entry.get("severity") not in _SEVERITIES:
        raise ValueError("found an entry that is no finding")
    number, severity, text, observed, expected, remediation, scope, source = (
        str(entry.get(name, ""))[:TEXT_AT_MOST] for name in Finding._fields[:8]
    )
    return Finding(number, severity, text, observed, expected, remediation, scope, source)


def read_facts(output: Output) -> Mapping[str, Any]:
    """Parse what the image's `facts --json` printed. Raises ValueError."""
    facts = parse_any_json(output.stdout)
    if isinstance(facts, dict):
        return facts
    raise ValueError("expected an object")
