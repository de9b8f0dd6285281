"""`fabric [--peers A,B]`: a collective over the devices of this host or of several, with figures and a finding. IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.checks.findings import PASS, format_findings, make_finding, make_notice
from entrypoints.core.errors import CHECK_FAILED, OK, USAGE, EntrypointError
from entrypoints.core.parse import is_number
from entrypoints.core.records import Facts, Finding
from entrypoints.core.text import emit_text, format_count, tell_user
from entrypoints.decide.cpu.executor import PLUGIN
from entrypoints.facts.facts import probe_host
from entrypoints.facts.image_files import make_program_environment, read_profile
from entrypoints.request.arguments import Arguments
from entrypoints.request.flags import MASTER_PORT, NODE_RANK
from entrypoints.request.network import parse_port
from entrypoints.serve.collective import (
    PORT,
    Job,
    Measured,
    Place,
    address_of,
    find_place,
    measure_collective,
    read_tests,
)

Profile = Mapping[str, Any]

_WORDS = (NODE_RANK, MASTER_PORT)


def run_fabric(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Measure, print the figures and the finding; return the exit code. Raises USAGE, HOST."""
    profile, program_env = read_profile(env), make_program_environment(env)
    return measure_fabric(arguments, program_env, profile, probe_host(arguments.root, profile, env).facts)


def measure_fabric(arguments: Arguments, env: Mapping[str, str], profile: Profile, facts: Facts) -> int:
    """Measure on a host with these facts; `env` is the program's. Raises USAGE, HOST."""
    from entrypoints.host.programs import raise_on_stop_signal

    numbers = parse_fabric_words(arguments.vllm)
    place = find_place(arguments.peers, numbers.get(NODE_RANK), numbers.get(MASTER_PORT, PORT))
    tests = read_tests(profile["thresholds"])
    job = Job(tests, place, count_local_ranks(facts), profile["python"], PLUGIN, env, arguments.peers_wait)
    if job.ranks < 2:  # noqa: PLR2004 - what an exchange takes
        hint = "name this and other hosts: --peers A,B; or give the container more devices"
        raise EntrypointError(USAGE, "fabric: one rank has nothing to exchange", hint)
    tell_user(f"measuring over {format_count(job.ranks, 'rank')} on {format_count(place.hosts, 'host')}")
    with raise_on_stop_signal("fabric"):
        interface = _choose_interface(profile, job)
        measured = measure_collective(job._replace(env={**env, **interface}))
    findings = judge_collective(profile, facts, place, measured)
    _print_figures(measured, findings, as_json=arguments.options.json)
    return OK if all(finding.severity in (PASS, "WARN") for finding in findings) else CHECK_FAILED


def parse_fabric_words(words: tuple[str, ...]) -> dict[str, int]:
    """Return the numbers of vLLM's flags that this verb takes. Raises USAGE."""
    numbers: dict[str, int] = {}
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        value = value if equals else next(remaining, "") if name in _WORDS else ""
        if name not in _WORDS or not is_number(value):
            raise EntrypointError(USAGE, f"fabric: invalid argument {word!r}", "fabric [--peers A,B] [--node-rank N]")
        numbers[name] = parse_port(value, name, least=1) if name == MASTER_PORT else int(value)
    return numbers


def count_local_ranks(facts: Facts) -> int:
    """Return the ranks of this host: its devices, or its NUMA nodes with CPUs, as vLLM's ranks."""
    cores = sum(device.cores for device in facts.devices)
    return cores or sum(bool(node.cpus) for node in facts.nodes) or 1


def _choose_interface(profile: Profile, job: Job) -> dict[str, str]:
    """Return the variables that name the network interface, unless the user set them: the way to another host.

    Raises USAGE if that host has no address.
    """
    place = job.place
    if place.hosts == 1:
        return {}
    from entrypoints.decide.parallelism.hosts import read_reach
    from entrypoints.decide.records import Thresholds
    from entrypoints.serve.network_path import read_route

    name = read_route(address_of(place.other, place.port, job.wait), place.port).interface
    variables = read_reach(Thresholds(profile["thresholds"])).interfaces
    return {variable: name for variable in variables if name and not job.env.get(variable)}


def judge_collective(profile: Profile, facts: Facts, place: Place, measured: Measured) -> tuple[Finding, ...]:
    """Return whether the collective works, and whether it is as fast as published, where the vendor publishes that."""
    words = profile.get("words") or {}
    best = max((figure.bus for figure in measured.figures), default=0.0)
    texts, where = (
        profile.get("findings") or {},
        f"{format_count(measured.ranks, 'rank')} on {format_count(place.hosts, 'host')}",
    )
    observed = measured.failure or (f"{best:.2f} GB/s" if measured.figures else "told by the first host")
    works = make_notice("NET-011", observed, "right sums on every rank", where=where)
    findings = [make_finding(texts, works, good=not measured.failure, words=words)]
    expected = find_published_bandwidth(profile["thresholds"], facts, place)
    if expected and measured.figures and not measured.failure:
        share = float(profile["thresholds"]["fabric_share"]["value"])
        fast = make_notice("NET-012", f"{best:.1f} GB/s", f"at least {share:.0%} of {expected:g} GB/s", where=where)
        findings.append(make_finding(texts, fast, good=best >= share * expected, words=words))
    return tuple(findings)


def find_published_bandwidth(table: Mapping[str, Any], facts: Facts, place: Place) -> float | None:
    """Return the bus bandwidth in GB/s that the vendor publishes for this number of these devices in one host."""
    if place.hosts > 1 or "fabric_published" not in table:
        return None
    for words in table["fabric_published"]["value"]:
        name, count, speed = str(words).split(":")
        if len(facts.devices) == int(count) and all(device.name.startswith(name) for device in facts.devices):
            return float(speed)
    return None


def _print_figures(measured: Measured, findings: tuple[Finding, ...], *, as_json: bool) -> None:
    if as_json:
        import json

        from entrypoints.core.records import to_json

        emit_text(json.dumps({**to_json(measured), "findings": to_json(findings)}, indent=2, sort_keys=True) + "\n")
        return
    rows = [f"all-reduce over {format_count(measured.ranks, 'rank')} ({measured.program})"]
    rows += [f"{'bytes':>12} {'microseconds':>14} {'GB/s (bus)':>12}"] if measured.figures else []
    rows += [f"{figure.bytes:12} {figure.seconds * 1e6:14.1f} {figure.bus:12.3f}" for figure in measured.figures]
    if measured.elsewhere and not measured.failure:
        rows.append("the first host prints the figures")
    emit_text("\n".join(rows) + "\n" + format_findings(findings))
