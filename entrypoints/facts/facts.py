"""A host, live or recorded → Facts. IO, through `Host` and `Commands` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from entrypoints.accelerators import probe_module
from entrypoints.core.parse import parse_fields, parse_line, parse_number
from entrypoints.core.records import Facts, Seen
from entrypoints.facts.probes.common import cpu, knobs, system
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host, Run

MACHINE = "/machine"
"""In a recorded host: the architecture, as `uname -m` says it."""


def probe(host: Host, commands: Commands, profile: Mapping[str, Any], env: Mapping[str, str]) -> Facts:
    """Look at a host. What is wrong with it is in `failures` and nowhere else."""
    architecture = _architecture(host)
    status: dict[str, str] = host.parsed("/proc/self/status", parse_fields, {})
    memory = system.memory(host)
    allowed = cpu.allowed_ids(host, status, "cpus_allowed_list")
    running = cpu.online(host, allowed)
    nodes, members = cpu.nodes(host, status, running, memory)
    cpus = cpu.cpus(host, tuple(sorted(set(allowed) & set(running))), members)
    governor = cpu.governor(host, cpus)
    kernel = knobs.knobs(host, status) | ({"governor": governor} if governor else {})
    seen = _look(profile["accelerator"])(host, commands.run, env)
    if len(seen.devices) > 1:
        from entrypoints.facts.probes.common import acs

        kernel |= acs.redirecting_ports(host)
    facts = Facts(
        accelerator=profile["accelerator"],
        processor=cpu.processor(host, architecture),
        cpus=cpus,
        nodes=nodes,
        memory=memory,
        cgroup=system.cgroup(host),
        limits=system.limits(host),
        mounts=system.mounts(host, env),
        kernel=kernel | dict(seen.knobs),
        devices=seen.devices,
        user=_user(host, status),
        failures=(),
        files=_libraries(host, profile["libraries"], architecture),
        links=seen.links,
        versions=seen.versions,
        capabilities=system.capabilities(status),
        grants=_granted(host, profile.get("run", {})),
    )
    return facts._replace(failures=tuple(host.failures), refused=dict(host.refused))


def _look(accelerator: str) -> Callable[[Host, Run, Mapping[str, str]], Seen]:
    look: Callable[[Host, Run, Mapping[str, str]], Seen] = probe_module(accelerator).look
    return look


def _granted(host: Host, run: Mapping[str, Any]) -> dict[str, bool]:
    """Tell for each device file and mount that the image is run with whether it is there and can be used."""
    nodes = {item["path"]: host.glob(item["path"]) for item in run.get("devices", ())}
    devices = {pattern: bool(paths) and all(map(host.openable, paths)) for pattern, paths in nodes.items()}
    return devices | {item["path"]: host.exists(item["path"]) for item in run.get("mounts", ())}


def _architecture(host: Host) -> str:
    if host.live:
        import os

        return os.uname().machine
    architecture = host.parsed(MACHINE, parse_line, "")
    if not architecture and MACHINE not in host.texts:
        host.fail(MACHINE, "no such file", "a recorded host, which holds what `uname -m` says")
    return architecture


def _user(host: Host, status: Mapping[str, str]) -> tuple[int, int]:
    """Return the effective user and group."""
    try:
        return parse_number(status["uid"].split()[1]), parse_number(status["gid"].split()[1])
    except (KeyError, IndexError, ValueError):
        host.fail("/proc/self/status", "no `Uid:` and `Gid:` lines", "the user's and group's numbers")
        return -1, -1


def _libraries(host: Host, libraries: Mapping[str, Mapping[str, str]], architecture: str) -> dict[str, bool]:
    return {name: host.exists(paths[architecture]) for name, paths in libraries.items() if architecture in paths}
