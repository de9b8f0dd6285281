"""AWS Trainium and Inferentia: device files, the driver's sysfs, then neuron-ls. Facts only, no opinions.

A device file is a Neuron device (chip); vLLM counts its logical NeuronCores. The driver's files tell physical cores,
links and errors, but no memory and no grouping of cores: those only neuron-ls tells. Source: Neuron SDK documentation,
Neuron Sysfs User Guide and Neuron LS User Guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from entrypoints.core.parse import parse_line, parse_number
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.tools import TIMEOUT, run_tool
from entrypoints.facts.probes.neuron.neuron_ls import Listing, Row, parse_json, parse_table
from entrypoints.host.commands import NOT_FOUND
from entrypoints.host.host import Host, Result, Run

TOOLS = ("neuron-ls", "/opt/aws/neuron/bin/neuron-ls")
"""On PATH, and where aws-neuronx-tools installs it."""

_SYSFS = "/sys/devices/virtual/neuron_device/neuron{}"
_DRIVER = "/sys/module/neuron/version"
_PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
_ERRORS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")
"""Counters of errors that no repair undoes; mem_ecc_repairable_uncorrected goes away with a reset."""

_FAMILY = re.compile(r"(trn|inf)\d")
_NOTHING = Row(-1, 0, None, "")


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the Neuron devices that have a device file here."""
    del env  # which cores a container may use is for the runtime to apply, and for the plan to heed
    numbers = tuple(int(path.rpartition("neuron")[2]) for path in host.glob("/dev/neuron[0-9]*") if _is_device(path))
    if not numbers:
        return ProbeResult()
    listing = _list(host, run)
    rows = {row.number: row for row in listing.rows}
    missing = [number for number in numbers if rows and number not in rows]
    if missing:
        host.fail(TOOLS[0], f"no line for device {missing[0]}", "a line for each device file /dev/neuron*")
    instance = listing.instance or host.parsed(_PRODUCT, parse_line, "")
    devices = tuple(_device(host, number, rows.get(number, _NOTHING), instance) for number in numbers)
    links = {number: rows[number].connected if number in rows else _connected(host, number) for number in numbers}
    return ProbeResult(devices, tuple(_links(links)), _versions(host, listing, instance))


def _is_device(path: str) -> bool:
    return path.rpartition("neuron")[2].isdecimal()


def _list(host: Host, run: Run) -> Listing:
    """Ask neuron-ls, as JSON where it knows how; without it, memory is not known, which is a failure."""
    for tool in TOOLS:
        answer = run((tool, "-j"), TIMEOUT)
        if answer.rc == NOT_FOUND:
            continue
        if not answer.rc:
            return run_tool(host, _again(answer), (tool, "-j"), parse_json) or Listing(())
        return run_tool(host, run, (tool,), parse_table) or Listing(())
    found = "no such command, so the devices' memory and logical cores are not known"
    host.fail(TOOLS[0], found, "the package aws-neuronx-tools in the image, with /opt/aws/neuron/bin in PATH")
    return Listing(())


def _again(answer: Result) -> Run:
    """Return what gives an answer that came already."""

    def run(argv: tuple[str, ...], timeout: float) -> Result:
        del argv, timeout
        return answer

    return run


def _device(host: Host, number: int, row: Row, instance: str) -> Device:
    node, cpus = pci.near(host, row.bus) if row.bus else (None, ())
    family = _FAMILY.match(instance.lower() or _word(host, number, "info/architecture/instance_type").lower())
    architecture = family[0] if family else ""
    return Device(
        number=number,
        name=_word(host, number, "info/architecture/device_name") or architecture,
        memory_total=row.memory,
        memory_used=_used(host, number),
        node=row.node if node is None else node,
        health=_health(host, number),
        busy=None if row is _NOTHING else row.processes > 0,
        bus=row.bus,
        cpus=cpus or row.cpus,
        architecture=architecture,
        path=f"/dev/neuron{number}",
        cores=row.cores or 1,
    )


def _word(host: Host, number: int, file: str) -> str:
    return host.parsed(f"{_SYSFS.format(number)}/{file}", parse_line, "")


def _used(host: Host, number: int) -> int | None:
    """Add up what the runtime keeps in the device's memory for each core; None where the driver does not tell."""
    paths = host.glob(f"{_SYSFS.format(number)}/neuron_core*/stats/memory_usage/device_mem/present")
    sizes = [host.parsed(path, parse_number, 0) for path in paths]
    return sum(sizes) if sizes else None


def _health(host: Host, number: int) -> str:
    """Return ok, or the counters of errors that are not zero; empty where the driver keeps none."""
    counts: dict[str, int] = {}
    for name in _ERRORS:
        path = f"{_SYSFS.format(number)}/stats/hardware/{name}"
        counter = f"{path}/total"  # like the other counters; the manual's tree draws it as a file
        count = host.parsed(counter if host.exists(counter) else path, parse_number, None)
        if count is not None:
            counts[name] = count
    wrong = [f"{name} {count}" for name, count in counts.items() if count]
    return ", ".join(wrong) or ("ok" if counts else "")


def _connected(host: Host, number: int) -> tuple[int, ...]:
    """Read the neighbours from the driver's own file."""
    nothing: tuple[int, ...] = ()
    return host.parsed(f"{_SYSFS.format(number)}/connected_devices", parse_connected, nothing)


def parse_connected(text: str) -> tuple[int, ...]:
    """Parse `12, 3, 4, 1`, or nothing for a device by itself. Raises ValueError."""
    return tuple(parse_number(part) for part in text.replace(",", " ").split())


def _links(neighbours: Mapping[int, tuple[int, ...]]) -> Iterable[Link]:
    """Yield each pair once, of devices that are here."""
    pairs = {(min(one, other), max(one, other)) for one, others in neighbours.items() for other in others}
    return (Link(*pair, "NeuronLink") for pair in sorted(pairs) if pair[0] != pair[1] and set(pair) <= set(neighbours))


def _versions(host: Host, listing: Listing, instance: str) -> dict[str, str]:
    found = {
        "driver": host.parsed(_DRIVER, parse_line, ""),
        "runtime": next((row.runtime for row in listing.rows if row.runtime), ""),
        "instance": instance,
        "logical_neuroncore_config": listing.grouping,
    }
    return {part: version for part, version in found.items() if version}
