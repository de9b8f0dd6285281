"""`report [MODEL FLAGS]`: prints one page for a bug report, without secrets. IO.

Each section is a heading and lines that are indented by four spaces, as Markdown shows text as it is. So nothing that a
section quotes, such as a log, can begin another section.

In a container that serves (docker exec) it asks the server for its state, its metrics and its stacks, and plans with
the server's own words; in another one it plans with the words that are given. The log comes on standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.checks.findings import format_findings, sort_worst_first
from entrypoints.checks.grants import examine_facts
from entrypoints.core.errors import OK, EntrypointError
from entrypoints.core.identifiers import Redaction, read_machine_values
from entrypoints.core.records import ServePlan
from entrypoints.core.text import (
    HOST_SECTION,
    LOG_SECTION,
    REPORT_INDENT,
    REPORT_TITLE,
    emit_text,
    printable,
    tell_user,
)
from entrypoints.facts.facts import probe_host
from entrypoints.facts.image_files import read_profile
from entrypoints.facts.packages import list_packages
from entrypoints.facts.record import format_recorded_host
from entrypoints.host.processes import command_line
from entrypoints.request.arguments import VERBS, Arguments, parse_arguments
from entrypoints.serve.client import Endpoint, Unreachable, find_flag_value, parse_endpoint, send_request
from entrypoints.serve.hang import STACKS_SECONDS, describe_processes, list_titles
from entrypoints.serve.plugin_files import STACKS_VARIABLE, StacksFolder

LOG_AT_MOST = 256 << 10
"""Bytes of the log's end; the beginning, where a failed start has its cause, has as many."""
METRICS_AT_MOST = 64 << 10
ANSWER_WITHIN = 2.0
"""Seconds for each question to the server."""
_STATUS_PORT = "--status-port"


class Server(NamedTuple):
    """What is known of the server in this container; empty texts without one."""

    words: tuple[str, ...]
    """Of its command line, without the verb."""
    state: str
    stacks: str


def run_report(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Print the report, and on standard error what was removed from it. Raises USAGE."""
    profile = read_profile(env)
    log = _read_log()
    probed = probe_host(arguments.root, profile, env)
    server = _find_server() if probed.host.live else Server((), "", "")
    if server.words and not arguments.vllm:
        arguments = parse_arguments(("serve", *server.words))._replace(idle=True)  # its own memory is used
    plan, plan_text = _make_plan(arguments, env, profile)
    host = json.loads(format_recorded_host(probed.host, probed.commands, probed.facts))
    redaction = Redaction(read_machine_values() if probed.host.live else ())
    redaction.learn((*host["files"].values(), *(answer["stdout"] for answer in host["commands"].values())))
    findings = format_findings(sort_worst_first(examine_facts(profile, probed.facts)))
    clean = redaction.clean_text
    if "/proc/cmdline" in host["files"]:  # a machine that boots from the network has addresses there
        host["files"]["/proc/cmdline"] = clean(host["files"]["/proc/cmdline"])
    sections = (
        ("Versions", clean(_describe_versions(profile, env), names_versions=True)),
        ("Findings", clean(findings, names_versions=True)),
        ("Plan", clean(plan_text)),
        ("State", clean(server.state)),
        ("Metrics", clean(_read_metrics(plan, env) if server.state else "")),
        ("Stacks", clean(server.stacks)),
        (LOG_SECTION, clean(log, is_log=True)),
        (HOST_SECTION, format_host(redaction.clean_json(host))),
    )
    table = redaction.format_table()
    made = f"Made by {profile['variant']} at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}."
    readers = "`explain FILE` explains the log of this file; `plan --root FILE` plans for its host."
    emit_text(format_report(f"{made} {readers}", table, sections))
    tell_user(f"removed from the report; read it before you send it:\n\n{table}")
    return OK


def _read_log() -> str:
    """Return the beginning and the end of what comes on standard input; empty without it."""
    stdin = sys.stdin
    if not stdin or stdin.isatty():
        return ""
    head = stdin.buffer.read(LOG_AT_MOST)
    tail: deque[bytes] = deque(maxlen=5)
    while chunk := stdin.buffer.read(LOG_AT_MOST // 4):
        tail.append(chunk)
    end = b"".join(tail)[-LOG_AT_MOST:]
    parts = (head, b"\n[... lines are left out here ...]\n", end) if len(tail) == tail.maxlen else (head, end)
    return b"".join(parts).decode(errors="replace")


def _make_plan(
    arguments: Arguments, env: Mapping[str, str], profile: Mapping[str, Any]
) -> tuple[ServePlan | None, str]:
    """Return the plan and its text, or why there is none."""
    from entrypoints.plan.command_line_plan import plan_command_line
    from entrypoints.plan.plan_text import format_plan_text

    try:
        plan = plan_command_line(arguments, env, profile).plan
    except EntrypointError as error:
        return None, f"exit code {error.code}: {error}"
    return plan, format_plan_text(plan)


def _describe_versions(profile: Mapping[str, Any], env: Mapping[str, str]) -> str:
    names = ("variant", "accelerator", "stack", "vllm")
    lines = [f"{name} {profile[name]}" for name in names]
    lines += [f"image {env.get('DRYDOCK_IMAGE_DIGEST') or 'digest not known'}", f"kernel {os.uname().release}"]
    return "\n".join((*lines, *(f"{name} {version}" for name, version in list_packages(profile["python"]).items())))


def _find_server() -> Server:
    """Return what the server of this container says of itself."""
    first = command_line(1)
    place = next((number for number, word in enumerate(first) if word.endswith("/entrypoints")), None)
    if place is None:
        return Server((), "", "")
    words = first[place + 1 :]
    words = words[1:] if words[:1] and words[0] in VERBS else words
    port = find_flag_value(words, _STATUS_PORT) or "8001"
    endpoint = Endpoint("127.0.0.1", int(port) if port.isdecimal() else 0)
    answers = (_ask(endpoint, path) for path in ("/readyz", "/livez", "/startupz"))
    return Server(words, "\n".join(answers), _read_stacks())


def _ask(endpoint: Endpoint, path: str) -> str:
    try:
        reply = send_request(endpoint, path, timeout=ANSWER_WITHIN)
    except Unreachable as error:
        return f"{path}: {error.reason}"
    return f"{path} {reply.status} {reply.text.strip()}"


def _read_metrics(plan: ServePlan | None, env: Mapping[str, str]) -> str:
    """Return vLLM's metrics without comments and without the buckets of histograms."""
    if plan is None:
        return ""
    text = _ask(parse_endpoint(plan.argv, plan.host, plan.port, env), "/metrics")
    lines = [line for line in text.splitlines() if not line.startswith("#") and "_bucket{" not in line]
    return "\n".join(lines)[:METRICS_AT_MOST]


def _read_stacks() -> str:
    """Return the stacks of vLLM's processes, which this container's user may ask for."""
    for pid in filter(str.isdecimal, sorted(os.listdir("/proc"))):
        folder = _read_variable(pid, STACKS_VARIABLE)
        if folder:
            leader = os.getsid(int(pid))
            stacks = StacksFolder(folder).read_stacks(STACKS_SECONDS)
            return "\n".join(describe_processes(list_titles(leader), stacks))
    return ""


def _read_variable(pid: str, name: str) -> str:
    """Return a variable of a process; empty if it has none, has ended, or belongs to another user."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return ""
    prefix = f"{name}=".encode()
    return next((os.fsdecode(pair[len(prefix) :]) for pair in pairs if pair.startswith(prefix)), "")


def format_report(introduction: str, table: str, sections: Iterable[tuple[str, str]]) -> str:
    """Return the report; every line of a section is printable and indented."""
    parts = [f"{REPORT_TITLE}\n\n{introduction}\n\n{table}"]
    for name, text in sections:
        lines = printable(text).splitlines() or ["(nothing)"]
        parts.append(f"\n## {name}\n\n" + "".join(f"{REPORT_INDENT}{line}\n" for line in lines))
    return "".join(parts)


def format_host(value: Any) -> str:
    """Return a recorded host as the report has it, in few lines."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
