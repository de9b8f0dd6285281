"""What identifies a machine is removed from its record, and the record still says all else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoints.core.identifiers import Identifiers, read_machine_values
from entrypoints.core.records import to_json
from entrypoints.facts.record import parse_record
from entrypoints.host.host import Host
from tests.support.hosts import expect

UUID = "3f6c1b2a-90de-4c11-8a5e-1d2f3a4b5c6d"
ZEROS = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"GPU-{UUID}, MIG-{UUID.upper()}", f"GPU-{ZEROS}, MIG-{ZEROS}"),
        ("link/ether 5e:2f:00:aa:bb:cc\n", "link/ether 02:00:00:00:00:00\n"),
        ("node_guid 0c42:a103:0065:4aee", "node_guid 0000:0000:0000:0000"),
        ("/sys/class/net/enx0c42a1654aee/operstate", "/sys/class/net/enx000000000000/operstate"),
        (f"0::/docker/{'ab12' * 16}\n", f"0::/docker/{'0' * 32}\n"),
        ("Serial Number                         : 1654922004412", "Serial Number                         : 000000000"),
        ('"serial_number": "PW0123.7-A"', '"serial_number": "000000000"'),
        ("<serial>1654922004412</serial>", "<serial>000000000</serial>"),
        ("Serial\t\t: 00000000abcdef01", "Serial\t\t: 000000000"),
        ("unique_id: 0x9246aa0b", "unique_id: 000000000"),
        ("PCI Device Serial Number 1c-36-ff-ff-ff-2f-11-00", "PCI Device Serial Number 02-00-00-00-00-00"),
        ("ether 5E-2F-00-AA-BB-CC", "ether 02-00-00-00-00-00"),
        ("| Dev SN : A0A1650510676 |", "| Dev SN : 000000000 |"),
        ("asset tag: 4711-08; S/N=PW0123", "asset tag: 000000000; S/N=000000001"),
        ("Die ID   : B44C11E0.30A8", "Die ID   : 000000000"),
        ("name rack7-gpu03.example.com, RACK7-GPU03", "name removed-0, removed-1"),
    ],
)
def test_an_identifier_is_replaced_in_its_own_form(text: str, expected: str) -> None:
    identifiers = Identifiers(["rack7-gpu03.example.com\n", "rack7-gpu03"])

    assert identifiers.remove(text) == expected
    assert identifiers.remove(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0, NVIDIA H100 80GB HBM3, 00000000:53:00.0, 81559 MiB, 580.95.05",
        "/sys/bus/pci/devices/0000:0e:00.0/numa_node",
        "Serial Number : N/A",
        "CapEff:\t00000000a80425fb",
        "ffffffff,ffffffff,ffffffff",
        "the serial console is ttyS0",
        "rack7-gpu031",
    ],
)
def test_what_identifies_none_stays(text: str) -> None:
    assert Identifiers(["rack7-gpu03", "None", "0", "00:00:00:00:00:00", "cuda"], "cuda cpu").remove(text) == text


def test_a_value_has_the_same_replacement_everywhere() -> None:
    other_uuid = UUID.replace("3", "4")
    removed = Identifiers([]).remove({f"/dev/{UUID}": [UUID, other_uuid, 7, None], "more": other_uuid})

    (first, values), (_, again) = removed.items()
    assert first == f"/dev/{values[0]}"
    assert (values[1], values[2:]) == (again, [7, None])
    assert len({*values[:2], UUID, other_uuid}) == 4


@pytest.mark.parametrize(
    "text",
    [
        "GPU[0] : Serial Number: PCB052211-0097",
        "index, name, serial\n0, MI300X, PCB052211-0097\n",
        '{"board_serial": "PCB052211-0097"}',
        "UUID : PCB052211-0097",
    ],
)
def test_a_serial_number_is_removed_also_where_no_key_says_what_it_is(text: str) -> None:
    identifiers = Identifiers([])
    identifiers.learn([text, ""])

    assert identifiers.remove("found PCB052211-0097!") == "found removed-0!"
    assert identifiers.remaining_in(text) == ["PCB052211-0097"]


def test_a_machine_called_by_a_word_of_drydock_keeps_that_word() -> None:
    assert Identifiers(["cuda"], '{"accelerator": "cuda"}').remove("cuda") == "cuda"


def test_what_remains_is_found_also_after_an_escape_of_json() -> None:
    identifiers = Identifiers(["1654922004412"])

    assert identifiers.remaining_in(json.dumps("x\n1654922004412\tx")) == ["1654922004412"]
    assert identifiers.remaining_in("21654922004412") == []


def test_the_machine_says_its_own_values(tmp_path: Path) -> None:
    for path, text in {
        "etc/hostname": "rack7-gpu03\n",
        "sys/class/dmi/id/board_serial": "PW0123\n",
        "sys/class/net/eth0/address": "5e:2f:00:aa:bb:cc\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)

    assert {"rack7-gpu03\n", "PW0123\n", "5e:2f:00:aa:bb:cc\n"} <= {*read_machine_values(str(tmp_path))}


@pytest.mark.parametrize("name", expect.names())
def test_a_record_without_identifiers_gives_the_same_facts(name: str) -> None:
    profile, identifiers = expect.profile_of(name), Identifiers([])
    record = json.loads((expect.HOSTS / name / expect.FILE).read_text())
    identifiers.learn(answer["stdout"] for answer in record["commands"].values())
    whole, reduced = (
        to_json(expect.look(Host(source=parse_record(json.dumps(value))), profile))
        for value in (record, identifiers.remove(record))
    )

    assert identifiers.remove(whole) == reduced
