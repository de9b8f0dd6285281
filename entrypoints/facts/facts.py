"""Collects the facts about a host, live or recorded. IO only through `Host` and `Commands`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.accelerators import import_probe
from entrypoints.core.parse import parse_fields, parse_line, parse_number
from entrypoints.core.records import Facts, ProbeResult
from entrypoints.facts.probes.common import cpu, kernel_settings, system
from entrypoints.facts.probes.common.system import MACHINE
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host

WSL = "/dev/dxg"
"""The one device file of the Windows Subsystem for Linux, which stands for those of every GPU and its driver."""


class ProbedHost(NamedTuple):
    """The facts about a host, and what they were read from."""

    facts: Facts
    host: Host
    commands: Commands


def probe_host(root: str, profile: Mapping[str, Any], env: Mapping[str, str]) -> ProbedHost:
    """Read the recorded host at `root`, or this machine if that is empty. Raises what `open_host` raises."""
    if root:
        from entrypoints.facts.record import open_host

        host = open_host(root)
    else:
        host = Host()
    commands = Commands(host)
    return ProbedHost(collect_facts(host, commands, profile, env), host, commands)


def collect_facts(host: Host, commands: Commands, profile: Mapping[str, Any], env: Mapping[str, str]) -> Facts:
    """Return the facts about a host. Whatever could not be read is in `failures`."""
    architecture = _read_machine(host)
    status: dict[str, str] = host.parsed("/proc/self/status", parse_fields, {})
    memory = system.read_memory(host)
    allowed = cpu.allowed_ids(host, status, "cpus_allowed_list")
    running = cpu.read_online_cpus(host, allowed)
    nodes, members = cpu.read_numa_nodes(host, status, running, memory)
    cpus = cpu.read_cpus(host, tuple(sorted(set(allowed) & set(running))), members)
    governor = cpu.read_governor(host, cpus)
    kernel = kernel_settings.read_settings(host, status) | ({"governor": governor} if governor else {})
    probed: ProbeResult = import_probe(profile["accelerator"]).probe(host, commands.run, env)
    if len(probed.devices) > 1:
        from entrypoints.facts.probes.common import acs

        kernel |= acs.redirecting_ports(host)
    facts = Facts(
        accelerator=profile["accelerator"],
        processor=cpu.read_processor(host, architecture),
        cpus=cpus,
        nodes=nodes,
        memory=memory,
        cgroup=system.read_cgroup(host),
        limits=system.read_limits(host, status),
        mounts=system.read_mounts(host, env),
        kernel=kernel | dict(probed.knobs),
        devices=probed.devices,
        user=_read_user_ids(host, status),
        failures=(),
        files=_find_libraries(host, profile, architecture),
        links=probed.links,
        versions=probed.versions,
        capabilities=system.read_capabilities(status),
        grants=_list_grants(host, profile.get("run", {})),
    )
    return facts._replace(failures=tuple(host.failures), refused=dict(host.refused))


def _find_libraries(host: Host, profile: Mapping[str, Any], architecture: str) -> dict[str, bool]:
    """Return whether the image has its libraries, by name. Outside an image it is taken to have what it installs."""
    libraries: Mapping[str, Mapping[str, str]] = profile["libraries"]
    paths = {
        name: by_architecture[architecture]
        for name, by_architecture in libraries.items()
        if architecture in by_architecture
    }
    is_image = bool(paths) and host.exists(profile["python"])
    return {name: host.exists(path) or not is_image for name, path in paths.items()}


def _list_grants(host: Host, run: Mapping[str, Any]) -> dict[str, bool]:
    """Return, for each device file and mount that the image needs, whether it exists and can be used."""
    records = (run, *run.get("more", ()))
    nodes = {item["path"]: host.glob(item["path"]) for record in records for item in record.get("devices", ())}
    if host.exists(WSL):
        nodes = {pattern: paths or (WSL,) for pattern, paths in nodes.items()}
    devices = {pattern: bool(paths) and all(map(host.openable, paths)) for pattern, paths in nodes.items()}
    return devices | {item["path"]: host.exists(item["path"]) for item in run.get("mounts", ())}


def _read_machine(host: Host) -> str:
    if host.live:
        import os

        return os.uname().machine
    architecture = host.parsed(MACHINE, parse_line, "")
    if not architecture and MACHINE not in host.texts:
        host.fail(MACHINE, "no such file", "a recorded host, which has the output of `uname -m`")
    return architecture


def _read_user_ids(host: Host, status: Mapping[str, str]) -> tuple[int, int]:
    """Return the effective user and group."""
    try:
        return parse_number(status["uid"].split()[1]), parse_number(status["gid"].split()[1])
    except (KeyError, IndexError, ValueError):
        host.fail("/proc/self/status", "no `Uid:` and `Gid:` lines", "the uid and gid of this process")
        return -1, -1
