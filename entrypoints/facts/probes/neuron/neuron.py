"""AWS Trainium and Inferentia: reads device files and the driver's sysfs, then neuron-ls.

A device file is a Neuron device (chip); vLLM counts its logical NeuronCores. The driver's files have physical cores,
links and errors. Only neuron-ls has the memory and the grouping of cores. Source: Neuron SDK documentation, Neuron
Sysfs User Guide and Neuron LS User Guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from entrypoints.core.parse import parse_line, parse_number
from entrypoints.core.records import Device, Link, ProbeResult
from entrypoints.core.units import GIB
from entrypoints.facts.probes.common import pci
from entrypoints.facts.probes.common.steps import drop_empty_values
from entrypoints.facts.probes.common.tools import TIMEOUT, run_tool
from entrypoints.facts.probes.neuron.neuron_ls import Listing, NeuronLsDevice, parse_neuron_json, parse_neuron_table
from entrypoints.host.commands import NOT_FOUND
from entrypoints.host.host import Host, Result, Run

TOOLS = ("neuron-ls", "/opt/aws/neuron/bin/neuron-ls")
DEVICE_TOOL = (TOOLS[1],)
"""By PATH, and where aws-neuronx-tools installs it."""

_SYSFS = "/sys/devices/virtual/neuron_device/neuron{}"
_DRIVER = "/sys/module/neuron/version"
_PRODUCT = "/sys/devices/virtual/dmi/id/product_name"
_ERRORS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")
"""Counters of errors that cannot be repaired. A reset repairs those of mem_ecc_repairable_uncorrected."""

_MEMORY = {"inf2": 32 * GIB, "trn1": 32 * GIB, "trn2": 96 * GIB}
"""Family → bytes that neuron-ls prints for a device, where it does not know them itself."""
_CHIPS = {"trainium": "trn", "inferentia": "inf"}
_FAMILY = re.compile(r"(trn|inf)\d")
_NOTHING = NeuronLsDevice(-1, 0, None, "")


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the Neuron devices that have a device file in this container."""
    del env  # the runtime and the plan apply NEURON_RT_VISIBLE_CORES
    ends = (path.rpartition("neuron")[2] for path in host.glob("/dev/neuron[0-9]*"))
    numbers = tuple(int(end) for end in ends if end.isdecimal())
    if not numbers:
        return ProbeResult()
    failures = len(host.failures)
    listing = _run_neuron_ls(host, run)
    rows = {row.number: row for row in listing.rows}
    missing = [number for number in numbers if number not in rows]
    if missing and len(host.failures) == failures:
        host.fail(TOOLS[0], f"no row for device {missing[0]}", "a row for each device file /dev/neuron*")
    instance = listing.instance or host.parsed(_PRODUCT, parse_line, "")
    devices = tuple(_make_neuron_device(host, number, rows.get(number, _NOTHING), instance) for number in numbers)
    links = {number: rows[number].connected if number in rows else _read_connected(host, number) for number in numbers}
    return ProbeResult(devices, tuple(_list_neuron_links(links)), _read_neuron_versions(host, listing, instance))


def _run_neuron_ls(host: Host, run: Run) -> Listing:
    """Run neuron-ls, with JSON output if it supports that. If it is absent, add a failure: memory is unknown."""
    for tool in TOOLS:
        answer = run((tool, "-j"), TIMEOUT)
        if answer.rc == NOT_FOUND:
            continue
        if not answer.rc:
            return run_tool(host, _replay_answer(answer), (tool, "-j"), parse_neuron_json) or Listing(())
        return run_tool(host, run, (tool,), parse_neuron_table) or Listing(())
    problem = "command not found, so the memory and logical cores of the devices are unknown"
    host.fail(TOOLS[0], problem, "the package aws-neuronx-tools in the image, with /opt/aws/neuron/bin in PATH")
    return Listing(())


def _replay_answer(answer: Result) -> Run:
    """Return a Run that returns this result."""

    def run(argv: tuple[str, ...], timeout: float) -> Result:
        del argv, timeout
        return answer

    return run


def _make_neuron_device(host: Host, number: int, row: NeuronLsDevice, instance: str) -> Device:
    node, cpus = pci.read_pci_affinity(host, row.bus) if row.bus else (None, ())
    family = _FAMILY.match(
        instance.lower() or _read_sysfs_word(host, number, "info/architecture/instance_type").lower()
    )
    name = _read_sysfs_word(host, number, "info/architecture/device_name")
    architecture = family[0] if family else _family_of(name)
    return Device(
        number=number,
        name=name or architecture,
        memory_total=row.memory if row is _NOTHING else row.memory or _MEMORY.get(architecture),
        memory_used=_sum_used_memory(host, number),
        node=row.node if node is None else node,
        health=_read_error_counters(host, number),
        busy=None if row is _NOTHING else row.processes > 0,
        bus=row.bus,
        cpus=cpus or row.cpus,
        architecture=architecture,
        path=f"/dev/neuron{number}",
        cores=row.cores or 1,
    )


def _family_of(chip: str) -> str:
    """Return the family of a chip by its name: Trainium2 → trn2, Inferentia → inf1; empty for any other."""
    name = chip.lower().replace(" ", "").rstrip("0123456789")
    kind = _CHIPS.get(name, "")
    return f"{kind}{chip.strip()[-1] if chip.strip()[-1:].isdecimal() else 1}" if kind else ""


def _read_sysfs_word(host: Host, number: int, file: str) -> str:
    return host.parsed(f"{_SYSFS.format(number)}/{file}", parse_line, "")


def _sum_used_memory(host: Host, number: int) -> int | None:
    """Return the bytes that the runtime uses in the device's memory for all cores; None if they are unknown."""
    paths = host.glob(f"{_SYSFS.format(number)}/neuron_core*/stats/memory_usage/device_mem/present")
    sizes = [host.parsed(path, parse_number, 0) for path in paths]
    return sum(sizes) if sizes else None


def _read_error_counters(host: Host, number: int) -> str:
    """Return `ok`, or the error counters that are not zero; empty if the driver has no counters."""
    counts: dict[str, int] = {}
    for name in _ERRORS:
        path = f"{_SYSFS.format(number)}/stats/hardware/{name}"
        counter = f"{path}/total"  # a folder like the other counters, although the manual shows a file
        count = host.parsed(counter if host.exists(counter) else path, parse_number, None)
        if count is not None:
            counts[name] = count
    wrong = [f"{name} {count}" for name, count in counts.items() if count]
    return ", ".join(wrong) or ("ok" if counts else "")


def _read_connected(host: Host, number: int) -> tuple[int, ...]:
    """Return the connected devices from the driver's file."""
    nothing: tuple[int, ...] = ()
    return host.parsed(f"{_SYSFS.format(number)}/connected_devices", parse_connected, nothing)


def parse_connected(text: str) -> tuple[int, ...]:
    """Parse `12, 3, 4, 1`, or an empty text for a device without links. Raises ValueError."""
    return tuple(parse_number(part) for part in text.replace(",", " ").split())


def _list_neuron_links(neighbours: Mapping[int, tuple[int, ...]]) -> Iterable[Link]:
    """Return a link for each pair of connected devices in this container."""
    pairs = {
        (min(one, neighbour), max(one, neighbour))
        for one, device_neighbours in neighbours.items()
        for neighbour in device_neighbours
    }
    return (Link(*pair, "NeuronLink") for pair in sorted(pairs) if pair[0] != pair[1] and set(pair) <= set(neighbours))


def _read_neuron_versions(host: Host, listing: Listing, instance: str) -> dict[str, str]:
    versions = {
        "driver": host.parsed(_DRIVER, parse_line, ""),
        "runtime": next((row.runtime for row in listing.rows if row.runtime), ""),
        "instance": instance,
        "logical_neuroncore_config": listing.grouping,
    }
    return drop_empty_values(versions)
