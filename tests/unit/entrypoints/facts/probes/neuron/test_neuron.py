"""neuron-ls's layouts, and what becomes of them on a host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.records import Link, ProbeResult
from entrypoints.facts.probes.neuron import neuron
from entrypoints.facts.probes.neuron.neuron_ls import (
    NeuronLsDevice,
    bus_address,
    parse_neuron_json,
    parse_neuron_size,
    parse_neuron_table,
)
from entrypoints.host.commands import TIMED_OUT, Commands
from entrypoints.host.host import Host
from tests.support.hosts.trees import Tree, pci, sample, write_tree

GIB = 1 << 30
TRN2N = sample("neuron/neuron-ls.trn2n.txt")
POD = sample("neuron/neuron-ls-j.trn2.48xlarge-pod.txt")
SYSFS = "sys/devices/virtual/neuron_device"


def json_of(*devices: dict[str, object]) -> str:
    return json.dumps([{"neuron_device": 0, "nc_count": 2, "memory_size": 34359738368, **item} for item in devices])


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "instance", "grouping", "first"),
    [
        ("neuron-ls.trn2n", 16, "trn2n.48xlarge", "2", (4, 96, "0000:cc:00.0", (12, 3, 4, 1), 1, 0)),
        ("neuron-ls-t.trn2n", 16, "trn2n.48xlarge", "2", (4, 96, "0000:cc:00.0", (12, 3, 4, 1), None, 0)),
        ("neuron-ls-t.trn2n.2.21", 3, "", "", (4, 96, "0000:cc:00.0", (12, 3, 4, 1), None, 0)),
        ("neuron-ls-t.trn1.32xlarge", 16, "", "", (2, 32, "0000:10:1c.0", (12, 3, 4, 1), None, 0)),
        ("neuron-ls.trn2.48xlarge-pod", 1, "trn2.48xlarge", "2", (4, 96, "0000:e1:00.0", (12, 1, 9, 14), 1, 2)),
        ("neuron-ls.trn1.2xlarge-busy", 1, "trn1.2xlarge", "", (2, 32, "0000:00:1e.0", (), None, 1)),
        ("neuron-ls.trn1.2xlarge.2023", 1, "trn1.2xlarge", "", (2, 32, "0000:00:1e.0", (), None, 0)),
        ("neuron-ls.inf2.24xlarge", 6, "inf2.24xlarge", "", (2, 32, "0000:20:1e.0", (1,), 1, 0)),
        ("neuron-ls.inf2.xlarge-busy", 1, "inf2.xlarge", "", (2, 32, "0000:00:1f.0", (), None, 1)),
        ("neuron-ls.inf1.6xlarge-busy", 2, "", "", (4, 8, "0000:00:1c.0", (1,), None, 2)),
    ],
)
def test_every_layout_of_the_table_is_read(
    name: str, count: int, instance: str, grouping: str, first: tuple[object, ...]
) -> None:
    listing = parse_neuron_table(sample(f"neuron/{name}.txt"))

    row = listing.rows[0]
    assert (len(listing.rows), listing.instance, listing.grouping) == (count, instance, grouping)
    assert (row.cores, (row.memory or 0) // GIB, row.bus, row.connected, row.node, row.processes) == first


def test_columns_are_known_by_their_headings_in_any_order_and_width() -> None:
    text = (
        "| PCI        | NEURON | NEW | NEURON    | NEURON |\n"
        "| BDF        | MEMORY |     | CORES     | DEVICE |\n"
        "| 00:1e.0    | 32 GiB | x   | 2         | 7      |\n"
    )

    assert parse_neuron_table(text).rows == (NeuronLsDevice(7, 2, 32 * GIB, "0000:00:1e.0"),)


def test_the_runtime_of_the_process_that_holds_a_device_is_told() -> None:
    assert parse_neuron_table(sample("neuron/neuron-ls.inf2.xlarge-busy.txt")).rows[0].runtime == "2.28.23"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "''"),
        ("neuron-ls: no neuron device found\n", "no neuron device found"),
        (TRN2N.replace("| 3      | 4      |", "| 3      | four   |"), "four"),
        (TRN2N.replace("| 96 GB  |", "| lots   |"), "lots"),
        (TRN2N.replace("| 5      | 4      |", "| 5      |"), "5"),
        (TRN2N.replace("DEVICE", "THING "), "THING"),
        (sample("neuron/neuron-ls.trn1.2xlarge.2023.txt").replace("00:1e.0", "here   "), "here"),
        ("|  PCI BDF  | LOGICAL | MEMORY |\n| 0000:00:1f.0 | 0 | 4096 MB |\n", "PCI BDF"),
    ],
)
def test_an_unknown_table_is_an_error_that_quotes_the_line(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        parse_neuron_table(text)

    assert quoted in str(caught.value) or not quoted


# --- JSON -----------------------------------------------------------------------------------------------------------


def test_json_tells_cores_memory_neighbours_and_who_holds_a_device() -> None:
    listing = parse_neuron_json(POD)

    cpus = (*range(48, 96), *range(144, 192))
    assert listing.rows == (NeuronLsDevice(0, 4, 96 * GIB, "0000:e1:00.0", (12, 1, 9, 14), cpus, 1, 2, "2.34.10"),)
    assert (listing.instance, listing.grouping) == ("trn2.48xlarge", "2")


def test_json_of_a_machine_with_one_device_has_no_neighbours_and_no_node() -> None:
    listing = parse_neuron_json(sample("neuron/neuron-ls-j.trn1.2xlarge.txt"))

    assert listing.rows == (NeuronLsDevice(0, 2, 32 * GIB, "0000:00:1e.0", (), tuple(range(8)), None, 0, ""),)


def test_the_documented_json_is_read_once_what_was_left_out_of_it_is_out() -> None:
    text = sample("neuron/neuron-ls-j.trn2n.txt").replace("  ...\n", "")

    assert [(row.number, row.bus, row.connected) for row in parse_neuron_json(text).rows] == [
        (0, "0000:cc:00.0", (12, 3, 4, 1)),
        (15, "0000:f7:00.0", (11, 14, 3, 12)),
    ]


def test_words_before_the_list_and_numbers_as_text_do_not_matter() -> None:
    text = "instance-type: trn1.2xlarge\n" + json_of({"neuron_device": "0", "numa_node": 1, "connected_to": ["1"]})

    row = parse_neuron_json(text).rows[0]
    assert (row.number, row.node, row.connected, row.memory) == (0, 1, (1,), 32 * GIB)


def test_older_tools_that_list_no_core_numbers_count_them() -> None:
    assert parse_neuron_json(json_of({"neuroncore_ids": None, "memory_size": None})).rows == (
        NeuronLsDevice(0, 2, None, ""),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "{}",
        "[1]",
        "[" * 100_000,
        '[{"neuron_device": 0}]',
        json_of({"neuron_device": True}),
        json_of({"memory_size": "big"}),
        json_of({"connected_to": 3}),
        json_of({"cpu_affinity": "all"}),
        json_of({"bdf": "here"}),
        sample("neuron/neuron-ls-j.trn2n.txt"),
    ],
)
def test_json_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_neuron_json(text)


def test_addresses_and_sizes() -> None:
    assert bus_address("00000000:CC:00.0") == "0000:cc:00.0"
    assert [parse_neuron_size(text) for text in ("96 GB", "32GiB", "4096 MB", "7")] == [96 * GIB, 32 * GIB, 4 * GIB, 7]


# --- a host ---------------------------------------------------------------------------------------------------------


def probe(tmp_path: Path, tree: Tree, answers: dict[str, tuple[int, str]]) -> tuple[ProbeResult, Host]:
    recorded = {name: {"rc": rc, "stdout": text, "stderr": ""} for name, (rc, text) in answers.items()}
    host = Host(str(write_tree(tmp_path, {**tree, "commands.json": json.dumps(recorded)})))
    return neuron.probe(host, Commands(host).run, {}), host


def test_without_a_device_file_there_is_nothing_and_nothing_failed(tmp_path: Path) -> None:
    result, host = probe(tmp_path, {f"{SYSFS}/neuron0/core_count": "8\n"}, {"neuron-ls -j": (0, POD)})

    assert result == ProbeResult()
    assert not host.failures


def test_device_files_driver_and_tool_make_a_device(tmp_path: Path) -> None:
    tree = {
        "dev/neuron0": "",
        "dev/neuron_wakeup": "",
        "sys/module/neuron/version": "2.26.26.0\n",
        f"{SYSFS}/neuron0/info/architecture/device_name": "Trainium2\n",
        f"{SYSFS}/neuron0/neuron_core0/stats/memory_usage/device_mem/present": f"{GIB}\n",
        f"{SYSFS}/neuron0/neuron_core1/stats/memory_usage/device_mem/present": f"{GIB}\n",
        f"{SYSFS}/neuron0/stats/hardware/mem_ecc_uncorrected/total": "0\n",
        f"{SYSFS}/neuron0/stats/hardware/sram_ecc_uncorrected": "0\n",
        **pci("0000:e1:00.0", "0x1d0f", "0x7364", "0x088000", 1, "48-95"),
    }
    result, host = probe(tmp_path, tree, {"neuron-ls -j": (0, POD)})

    device = result.devices[0]
    assert not host.failures
    assert (device.name, device.architecture, device.cores) == ("Trainium2", "trn2", 4)
    assert (device.memory_total, device.memory_used) == (96 * GIB, 2 * GIB)
    assert (device.bus, device.node, device.cpus) == ("0000:e1:00.0", 1, tuple(range(48, 96)))
    assert (device.health, device.busy, device.path) == ("ok", True, "/dev/neuron0")
    assert result.versions == {
        "driver": "2.26.26.0",
        "runtime": "2.34.10",
        "instance": "trn2.48xlarge",
        "logical_neuroncore_config": "2",
    }


def test_errors_that_nothing_repairs_make_a_device_unhealthy(tmp_path: Path) -> None:
    tree = {"dev/neuron0": "", f"{SYSFS}/neuron0/stats/hardware/sram_ecc_uncorrected/total": "3\n"}

    assert probe(tmp_path, tree, {"neuron-ls -j": (0, POD)})[0].devices[0].health == "sram_ecc_uncorrected 3"


def test_a_tool_without_json_is_asked_for_its_table(tmp_path: Path) -> None:
    tree = {f"dev/neuron{number}": "" for number in range(16)}
    result, host = probe(tmp_path, tree, {"neuron-ls -j": (1, "unknown flag"), "neuron-ls": (0, TRN2N)})

    assert not host.failures
    assert [device.number for device in result.devices] == list(range(16))
    assert len(result.links) == 32
    assert result.links[0] == Link(0, 1, "NeuronLink")


def test_the_tool_is_found_where_its_package_puts_it(tmp_path: Path) -> None:
    result, host = probe(tmp_path, {"dev/neuron0": ""}, {"/opt/aws/neuron/bin/neuron-ls -j": (0, POD)})

    assert not host.failures
    assert result.devices[0].memory_total == 96 * GIB


def test_neighbours_outside_the_container_are_no_links(tmp_path: Path) -> None:
    assert probe(tmp_path, {"dev/neuron0": ""}, {"neuron-ls -j": (0, POD)})[0].links == ()


def test_without_the_tool_files_tell_what_they_can_and_the_rest_is_a_failure(tmp_path: Path) -> None:
    tree = {
        "dev/neuron0": "",
        "dev/neuron1": "",
        f"{SYSFS}/neuron0/connected_devices": "1\n",
        f"{SYSFS}/neuron1/connected_devices": "0\n",
        "sys/devices/virtual/dmi/id/product_name": "inf2.24xlarge\n",
    }
    result, host = probe(tmp_path, tree, {})

    assert [device.architecture for device in result.devices] == ["inf2", "inf2"]
    assert result.links == (Link(0, 1, "NeuronLink"),)
    assert result.devices[0].memory_total is None
    assert "aws-neuronx-tools" in host.failures[0].expected


@pytest.mark.parametrize(
    ("json_answer", "table_answer", "message"),
    [
        ((1, "no driver"), (1, "no driver"), "no driver"),
        ((TIMED_OUT, ""), (TIMED_OUT, ""), "exit 124"),
        ((0, ""), None, "expected"),
        ((0, "\ufffd\ufffd"), None, "expected"),
        ((1, ""), (0, "\ufffd"), "expected"),
    ],
)
def test_a_tool_that_fails_hangs_or_babbles_is_a_failure(
    tmp_path: Path, json_answer: tuple[int, str], table_answer: tuple[int, str] | None, message: str
) -> None:
    answers = {"neuron-ls -j": json_answer} | ({"neuron-ls": table_answer} if table_answer else {})
    result, host = probe(tmp_path, {"dev/neuron0": ""}, answers)

    assert len(result.devices) == 1
    assert message in host.failures[0].found


def test_a_device_file_that_the_tool_does_not_list_is_a_failure(tmp_path: Path) -> None:
    result, host = probe(tmp_path, {"dev/neuron0": "", "dev/neuron1": ""}, {"neuron-ls -j": (0, POD)})

    assert result.devices[1].busy is None
    assert host.failures[0].found == "no row for device 1"
    _, host = probe(tmp_path, {}, {"neuron-ls -j": (0, "[]")})
    assert host.failures[0].found == "no row for device 0"
