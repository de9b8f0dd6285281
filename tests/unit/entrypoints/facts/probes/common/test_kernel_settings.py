"""The tuning knobs of a host, as a container sees them, and nothing of what must not be recorded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from entrypoints.facts.probes.common import acs
from entrypoints.facts.probes.common.kernel_settings import read_settings
from entrypoints.facts.probes.common.system import read_memory
from entrypoints.host.host import Host
from tests.support.hosts.trees import write_tree

CPU = "sys/devices/system/cpu/cpu0/cpuidle"


def write(root: Path, files: dict[str, str]) -> Host:
    return Host(str(write_tree(root, files)))


def test_the_deepest_sleep_is_the_last_that_is_not_disabled(tmp_path: Path) -> None:
    states = (("POLL", 0, 0), ("C1", 1, 0), ("C1E", 4, 0), ("C6", 170, 1))
    files = {
        f"{CPU}/state{number}/{name}": f"{value}\n"
        for number, state in enumerate(states)
        for name, value in zip(("name", "latency", "disable"), state, strict=True)
    }
    settings = read_settings(write(tmp_path, files), {})

    assert (settings["deepest_idle"], settings["idle_latency_us"]) == ("C1E", "4")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("HugePages_Free: 70\nHugePages_Rsvd: 20\nHugepagesize: 2048 kB\n", ("50", "2048")),
        ("HugePages_Free: 10\nHugePages_Rsvd: 20\nHugepagesize: 1048576 kB\n", ("0", "1048576")),
        ("", (None, None)),
        ("HugePages_Free: many\nHugePages_Rsvd: 20\nHugepagesize: 2048 kB\n", (None, None)),
    ],
)
def test_huge_pages_that_are_reserved_are_not_idle(
    tmp_path: Path, lines: str, expected: tuple[str | None, str | None]
) -> None:
    host = write(tmp_path, {"proc/meminfo": f"MemTotal: 1024 kB\n{lines}"})
    read_memory(host)
    settings = read_settings(host, {})

    assert (settings.get("hugepages_idle"), settings.get("hugepage_kib")) == expected


def test_of_the_command_line_only_known_words_are_kept(tmp_path: Path) -> None:
    host = write(tmp_path, {"proc/cmdline": "pci=realloc=off\n"})

    assert {name: read_settings(host, {}).get(name) for name in ("boot_pci", "init_on_alloc")} == {
        "boot_pci": "realloc=off",
        "init_on_alloc": "default",
    }


def test_a_live_hosts_command_line_and_clock_are_read_but_not_recorded_whole() -> None:
    host = Host("")
    settings = read_settings(host, {})

    assert host.texts["/proc/cmdline"] == "" or host.texts["/proc/cmdline"].startswith(("pci=", "init_on_alloc="))
    assert len(Path("/proc/cmdline").read_text()) > len(host.texts["/proc/cmdline"])
    assert int(settings["clock"]) == pytest.approx(Path("/proc/self").stat().st_mtime, abs=86400)


def test_rdma_devices_are_named(tmp_path: Path) -> None:
    files = {"sys/class/infiniband/mlx5_10/node_type": "1: CA\n", "sys/class/infiniband/mlx5_2/node_type": "1: CA\n"}

    assert read_settings(write(tmp_path, files), {})["rdma_devices"] == "mlx5_2 mlx5_10"


# --- access control -------------------------------------------------------------------------------------------------


def configuration(port: int = 6, control: int = 0x1D, *, size: int = 4096) -> bytes:
    """Make the configuration space of a port: PCI Express at 0x40, another extended capability, then ACS."""
    space = bytearray(size)
    struct.pack_into("<H", space, 0x06, 0x0010)
    space[0x34] = 0x40
    struct.pack_into("<BBH", space, 0x40, 0x10, 0, port << 4 | 2)
    struct.pack_into("<I", space, 0x100, 0x1 | 0x1 << 16 | 0x148 << 20)
    struct.pack_into("<I", space, 0x148, 0xD | 0x1 << 16)
    struct.pack_into("<H", space, 0x14E, control)
    return bytes(space)


def read(space: bytes) -> acs.Read:
    return lambda offset, size: int.from_bytes(space[offset : offset + size], "little")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (configuration(), "0x001d"),
        (configuration(control=0), "0x0000"),
        (configuration(port=4), ""),  # a root port: whatever is below it goes to the processor anyway
        (configuration()[:0x100], ""),  # no extended space
        (bytes(4096), ""),
        (b"\xff" * 4096, ""),  # a port that does not answer
    ],
)
def test_the_control_register_is_that_of_a_switchs_downstream_port(space: bytes, expected: str) -> None:
    assert acs.read_acs_control(read(space)) == expected


def test_a_list_of_capabilities_that_bites_its_tail_ends() -> None:
    space = bytearray(configuration())
    struct.pack_into("<I", space, 0x148, 0x1 | 0x1 << 16 | 0x100 << 20)

    assert acs.read_acs_control(read(bytes(space))) == ""


def ports(root: Path, *answers: str) -> Host:
    return write(root, {f"sys/class/pci_bus/0000:{bus:02x}/device/config": text for bus, text in enumerate(answers)})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (("0x001d\n", "", "0x0011\n", "0x0008\n"), {"acs_redirects": "2"}),
        (("", ""), {"acs_redirects": "0"}),
        (("hidden\n", ""), {}),
        (("not a number\n",), {"acs_redirects": "0"}),
        ((), {}),
    ],
)
def test_ports_that_redirect_are_counted_where_they_can_be_seen(
    tmp_path: Path, answers: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert acs.redirecting_ports(ports(tmp_path, *answers)) == expected


def test_a_live_port_is_read_by_its_bytes_and_a_header_alone_is_hidden(tmp_path: Path) -> None:
    whole, header = tmp_path / "whole", tmp_path / "header"
    whole.write_bytes(configuration())
    header.write_bytes(configuration()[:64])

    assert (acs._read_register(str(whole)), acs._read_register(str(header))) == ("0x001d", "hidden")


# --- what is told instead of recorded ---------------------------------------------------------------------------------


def test_what_is_told_of_a_live_path_is_recorded_in_its_place(tmp_path: Path) -> None:
    host = Host("")

    def refused(path: str) -> str:
        raise OSError(5, "Input/output error", path)

    def absent(path: str) -> str:
        raise FileNotFoundError(path)

    assert host.lookup("/there", lambda path: f"{path} is there") == "/there is there"
    assert host.texts == {"/there": "/there is there"}
    assert host.lookup("/absent", absent) is None
    assert host.failures == []
    assert host.lookup("/broken", refused) is None
    assert [(failure.where, failure.found) for failure in host.failures] == [
        ("/broken", "Input/output error (errno 5)")
    ]
    assert write(tmp_path, {"there": "recorded\n"}).lookup("/there", refused) == "recorded\n"


def test_a_file_that_may_not_be_opened_is_refused_and_a_recorded_host_says_so_too(tmp_path: Path) -> None:
    recorded = write(tmp_path, {"dev/kfd": "crw-rw---- 0:110\n", "dev/dri/renderD128": ""})

    assert (recorded.openable("/dev/kfd"), recorded.openable("/dev/dri/renderD128")) == (False, True)
    assert recorded.refused == {"/dev/kfd": "crw-rw---- 0:110"}
    assert not recorded.openable("/dev/absent")
    assert Host("").openable("/dev/null")
