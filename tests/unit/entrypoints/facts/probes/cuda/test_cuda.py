from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from entrypoints.core.records import Link, ProbeResult
from entrypoints.facts.probes.cuda import cuda
from entrypoints.facts.probes.cuda.nvidia_smi import (
    parse_fabric,
    parse_list,
    parse_nvidia_table,
    parse_nvidia_topology,
    parse_query,
)
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts.trees import sample, write_tree

MIB = 1 << 20
FULL = f"nvidia-smi --query-gpu={','.join(cuda.FULL)} --format=csv"
OLD = f"nvidia-smi --query-gpu={','.join(cuda.OLD)} --format=csv"
LEAST = f"nvidia-smi --query-gpu={','.join(cuda.LEAST)} --format=csv"
TABLES = (
    *("nvidia-smi.t4.r418.txt", "nvidia-smi.h100.r535.txt", "nvidia-smi.a100-mig.r550.txt"),
    *("nvidia-smi.h100-1x.r580.txt", "nvidia-smi.gb10.r580.txt", "nvidia-smi.gtx1650.r610.txt"),
)
MATRICES = (
    *("nvidia-smi-topo-m.h100-8x.txt", "nvidia-smi-topo-m.a100-4x-nic.txt", "nvidia-smi-topo-m.v100-8x.r470.txt"),
    "nvidia-smi-topo-m.gb200-4x.txt",
)
QUERIES = ("nvidia-smi-query.rtx4090-8x.csv.txt", "nvidia-smi-query.a100-4x.csv.txt")


def probe(
    folder: Path, answers: Mapping[str, object], files: dict[str, str] | None = None, env: dict[str, str] | None = None
) -> tuple[ProbeResult, Host]:
    commands = {name: {"rc": 0, "stdout": text} if isinstance(text, str) else text for name, text in answers.items()}
    host = Host(str(write_tree(folder, {"commands.json": json.dumps(commands), **(files or {})})))
    return cuda.probe(host, Commands(host).run, env or {}), host


# --- layouts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "driver", "newest", "gpu", "total", "used"),
    [
        ("nvidia-smi.t4.r418.txt", "418.152.00", "10.1", "Tesla T4", 15079, 0),
        ("nvidia-smi.h100.r535.txt", "535.104.12", "12.2", "NVIDIA H100 80GB HBM3", 81559, 2),
        ("nvidia-smi.a100-mig.r550.txt", "550.163.01", "12.4", "NVIDIA A100 80GB PCIe", 81920, 829),
        ("nvidia-smi.h100-1x.r580.txt", "580.173.02", "13.0", "NVIDIA H100 80GB HBM3", 81559, 70323),
        ("nvidia-smi.gtx1650.r610.txt", "610.57.04", "13.3", "NVIDIA GeForce GTX 1650", 4096, 580),
    ],
)
def test_every_table_is_understood(name: str, driver: str, newest: str, gpu: str, total: int, used: int) -> None:
    table = parse_nvidia_table(sample(f"cuda/{name}"))
    first_gpu = table.gpus[0]
    assert (table.driver, table.cuda, first_gpu.name) == (driver, newest, gpu)
    assert (first_gpu.memory_total, first_gpu.memory_used) == (total * MIB, used * MIB)
    assert first_gpu.health == "ok"


def test_unified_memory_has_no_figure() -> None:
    first_gpu = parse_nvidia_table(sample("cuda/nvidia-smi.gb10.r580.txt")).gpus[0]
    assert (first_gpu.name, first_gpu.memory_total, first_gpu.bus) == ("NVIDIA GB10", None, "000f:01:00.0")


def test_the_table_says_who_computes_and_what_is_split() -> None:
    busy = parse_nvidia_table(sample("cuda/nvidia-smi.h100-1x.r580.txt"))
    assert (busy.computing, busy.gpus[0].mig, busy.gpus[0].compute_mode) == (frozenset({0}), False, "Default")
    shared = parse_nvidia_table(
        sample("cuda/nvidia-smi.h100-1x.r580.txt").replace("VLLM::EngineCore", "nvidia-cuda-mps-server")
    )
    assert shared.computing == frozenset()
    drawing = parse_nvidia_table(sample("cuda/nvidia-smi.gb10.r580.txt"))
    assert drawing.computing == frozenset()
    split = parse_nvidia_table(sample("cuda/nvidia-smi.a100-mig.r550.txt"))
    assert (split.gpus[0].mig, split.slices[0].memory_total) == (True, 9728 * MIB)


def test_a_lost_gpu_is_told_by_err() -> None:
    text = sample("cuda/nvidia-smi.h100.r535.txt").replace("                    0 |", "                 ERR! |")
    assert parse_nvidia_table(text).gpus[0].health == "ERR!"


def test_uncorrected_errors_are_told() -> None:
    text = sample("cuda/nvidia-smi.h100.r535.txt").replace("                    0 |", "                    3 |")
    assert parse_nvidia_table(text).gpus[0].health == "3 uncorrected ECC errors"


def test_columns_in_another_order_and_without_units() -> None:
    text = "name, memory.total [MiB], index\nNVIDIA H200, 143771, 0\n"
    assert parse_query(text)[0][:2] == (0, "NVIDIA H200")
    assert parse_query(text)[0].memory_total == 143771 * MIB


@pytest.mark.parametrize("word", ["[N/A]", "N/A", "[Not Supported]", "[Insufficient Permissions]"])
def test_what_a_column_does_not_tell_is_none(word: str) -> None:
    first_gpu = parse_query(f"index, name, memory.total [MiB], compute_cap\n0, NVIDIA GB10, {word}, 12.1\n")[0]
    assert (first_gpu.memory_total, first_gpu.capability, first_gpu.health) == (None, "12.1", "ok")


def test_a_gpu_that_needs_a_reset_is_not_ok() -> None:
    text = "index, name, memory.total [MiB]\n0, NVIDIA A100-SXM4-80GB, [GPU requires reset]\n"
    assert parse_query(text)[0].health == "GPU requires reset"


LOST = "Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error"


@pytest.mark.parametrize(
    ("answer", "rc"),
    [
        ({"stdout": f"{LOST}\n{sample('cuda/nvidia-smi-query.rtx4090-8x.csv.txt')}"}, 0),
        ({"stdout": sample("cuda/nvidia-smi-query.rtx4090-8x.csv.txt"), "stderr": f"{LOST}\n"}, 0),
        ({"stdout": f"{LOST}\n{sample('cuda/nvidia-smi-query.rtx4090-8x.csv.txt')}"}, 15),
    ],
)
def test_a_lost_gpu_is_told_whatever_the_exit_code_and_the_others_are_seen(
    tmp_path: Path, answer: dict[str, str], rc: int
) -> None:
    result, host = probe(tmp_path, {FULL: {**answer, "rc": rc}})

    assert len(result.devices) == 8
    assert any("GPU3: 0000:5F:00.0: Unknown Error" in failure.found for failure in host.failures)


def test_a_gpu_that_prints_errors_only_is_sick_and_its_neighbour_is_not() -> None:
    well, lost_gpu = parse_nvidia_table(sample("cuda/nvidia-smi.a40-lost.r525.txt")).gpus

    assert (well.number, well.health) == (3, "ok")
    assert (lost_gpu.number, lost_gpu.health, lost_gpu.memory_total) == (4, "ERR!", 46068 * MIB)


def test_numbers_with_a_gap_stay_as_the_tool_counts() -> None:
    gpus = parse_query(sample("cuda/nvidia-smi-query.rtx3080-8x-lost.csv.txt"))

    assert [gpu.number for gpu in gpus] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "header"),
        ("No devices were found\n", "No devices"),
        ("index, name\n0, NVIDIA H100, 1\n", "NVIDIA H100"),
        ("index, name, memory.total\n0, NVIDIA H100, much\n", "much"),
        ("index, name\nUnable to determine the device handle for GPU 0000:8D:00.0\n", "Unable to determine"),
    ],
)
def test_a_query_that_is_not_understood_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        parse_query(text)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "Driver Version"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "has failed"),
        ("| NVIDIA-SMI 580.1  Driver Version: 580.1  CUDA Version: 13.0 |\n", "each GPU"),
        ("\n".join(sample("cuda/nvidia-smi.h100.r535.txt").splitlines()[:8]), "used / total"),
    ],
)
def test_a_table_that_is_not_understood_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        parse_nvidia_table(text)


def test_topologies() -> None:
    h100 = parse_nvidia_topology(sample("cuda/nvidia-smi-topo-m.h100-8x.txt"))
    assert {link.kind for link in h100.links} == {"NV18"}
    assert len(h100.links) == 28
    assert (h100.nodes[7], h100.cpus[7][0], len(h100.cpus[7])) == (1, 48, 96)
    mesh = parse_nvidia_topology(sample("cuda/nvidia-smi-topo-m.v100-8x.r470.txt"))
    assert (Link(0, 2, "NV2") in mesh.links, Link(0, 4, "SYS") in mesh.links) == (True, True)
    cards = parse_nvidia_topology(sample("cuda/nvidia-smi-topo-m.a100-4x-nic.txt"))
    assert (len(cards.links), cards.nodes[3]) == (6, 1)
    grace = parse_nvidia_topology(sample("cuda/nvidia-smi-topo-m.gb200-4x.txt"))
    assert (grace.cpus[2][0], len(grace.cpus[2]), grace.nodes) == (72, 72, {})  # memory of GPUs is no processor's node


def test_an_underlined_header_is_a_header() -> None:
    text = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    assert parse_nvidia_topology(text).links == (Link(0, 1, "PHB"),)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("", "header GPU0"),
        ("GPU0 GPU1\nGPU0 X\n", "row for GPU1"),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 NV4\n", "X for itself"),
        ("GPU0 GPU1\nGPU0 X\nGPU1 NV4 X\n", "X for itself"),
    ],
)
def test_a_topology_that_is_not_understood_is_quoted(text: str, quoted: str) -> None:
    with pytest.raises(ValueError, match=quoted):
        parse_nvidia_topology(text)


def test_the_list_names_instances() -> None:
    instances = parse_list(sample("cuda/nvidia-smi-L.a100-mig.txt"))
    assert [item.profile for item in instances] == ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]
    with pytest.raises(ValueError, match="lost"):
        parse_list("GPU is lost\n")


# --- hosts ----------------------------------------------------------------------------------------------------------


def test_gpus_without_the_tool_are_a_failure_that_says_what_to_pass(tmp_path: Path) -> None:
    information = "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-1\nDevice Minor: \t 3\n"
    files = {
        "dev/nvidia3": "",
        "proc/driver/nvidia/gpus/0000:8d:00.0/information": information,
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release\n",
    }
    result, host = probe(tmp_path, {}, files)
    device = result.devices[0]
    assert (device.name, device.bus, device.path, device.uuid) == (
        *("NVIDIA H100 80GB HBM3", "0000:8d:00.0", "/dev/nvidia3", "GPU-1"),
    )
    assert result.versions == {"driver": "580.65.06"}
    assert "--gpus all" in host.failures[0].expected


def test_an_old_driver_is_asked_for_fewer_columns(tmp_path: Path) -> None:
    refused = {"rc": 2, "stdout": 'Field "compute_cap" is not a valid field to query.\n'}
    result, host = probe(
        tmp_path, {FULL: refused, OLD: refused, LEAST: sample("cuda/nvidia-smi-query.rtx4090-8x.csv.txt")}
    )
    assert (len(result.devices), result.devices[7].memory_total, host.failures) == (8, 24564 * MIB, [])


CLUSTER = "5f2c1a7e-9d3b-4c8a-8e61-0b7d4f2a9c15"
HGX = "00000000-0000-0000-0000-000000000000"


def listed(*gpus: tuple[str, str, str]) -> str:
    """Return a part of the output of `nvidia-smi -q`; each GPU has a state, a cluster and a clique."""
    return "".join(
        f"GPU 00000008:0{number}:00.0\n    Product Name                          : NVIDIA GB200\n    Fabric\n"
        f"        State                             : {state}\n        Status                            : Success\n"
        f"        CliqueId                          : {clique}\n        ClusterUUID                       : {cluster}\n"
        "        Health\n            Bandwidth                     : Full\n    Processes\n"
        "        State                             : None\n"
        for number, (state, cluster, clique) in enumerate(gpus)
    )


@pytest.mark.parametrize(
    ("gpus", "place"),
    [
        ([("Completed", CLUSTER, "32766")] * 4, f"{CLUSTER}/32766"),
        ([("Completed", CLUSTER, "1"), ("Completed", CLUSTER, "2")], ""),
        ([("In Progress", CLUSTER, "1")] * 2, ""),
        ([("Completed", CLUSTER, "1"), ("In Progress", CLUSTER, "1")], ""),
        ([("Completed", HGX, "0")] * 8, ""),
        ([("N/A", "N/A", "N/A")] * 2, ""),
        ([("Completed", "; reboot", "1")] * 2, ""),
        ([], ""),
    ],
)
def test_gpus_are_in_a_cluster_if_all_are_ready_in_the_same_clique(
    gpus: list[tuple[str, str, str]], place: str
) -> None:
    assert parse_fabric(listed(*gpus)) == place


@pytest.mark.parametrize(("name", "has_cluster"), [("NVIDIA GB200", True), ("NVIDIA H100 80GB HBM3", False)])
def test_only_trays_of_racks_are_asked_for_their_cluster(tmp_path: Path, name: str, has_cluster: bool) -> None:
    columns = f"index, name, uuid, memory.total [MiB], compute_cap\n0, {name}, GPU-1, 189471 MiB, 10.0\n"
    result, host = probe(tmp_path, {FULL: columns, "nvidia-smi -q": listed(("Completed", CLUSTER, "7"))})

    assert result.knobs.get("nvlink_cluster", "") == (f"{CLUSTER}/7" if has_cluster else "")
    assert host.failures == []


def test_columns_and_table_complete_each_other(tmp_path: Path) -> None:
    answers = {
        FULL: "index, name, uuid, memory.total [MiB], compute_cap\n0, NVIDIA H100 80GB HBM3, GPU-1, 81559 MiB, 9.0\n",
        "nvidia-smi": sample("cuda/nvidia-smi.h100-1x.r580.txt"),
    }
    files = {"sys/bus/pci/devices/0000:8d:00.0/numa_node": "1\n"}
    result, _ = probe(tmp_path, answers, files)
    device = result.devices[0]
    assert (device.architecture, device.busy, device.node, device.bus) == ("9.0", True, 1, "0000:8d:00.0")
    assert result.versions["cuda"] == "13.0"
    assert result.knobs == {"gpu_persistence_mode": "On", "gpu_compute_mode": "Default"}


def test_a_split_gpu_without_instances_is_a_failure(tmp_path: Path) -> None:
    text = sample("cuda/nvidia-smi.a100-mig.r550.txt").replace("|  0   12   0   0  |", "|  No MIG devices |")
    result, host = probe(tmp_path, {"nvidia-smi": text})
    assert (result.devices, "no instance" in host.failures[0].found) == ((), True)


@pytest.mark.parametrize(
    ("env", "compat_library"),
    [
        ({}, None),
        ({cuda.COMPAT: "0"}, None),
        ({cuda.COMPAT: "1"}, ("/usr/local/cuda-13.0/compat", "580.95.05")),
        ({cuda.COMPAT: "True", cuda.COMPAT_FOLDER: "/own"}, ("/own", "580.173.02")),
        ({cuda.COMPAT: "1", cuda.COMPAT_FOLDER: "/nowhere"}, None),
    ],
)
def test_forward_compatibility_is_read_if_the_user_enables_it(
    tmp_path: Path, env: dict[str, str], compat_library: tuple[str, str] | None
) -> None:
    names = (
        "cuda-12.9/compat/libcuda.so.575.57.08",
        "cuda-13.0/compat/libcuda.so.1",
        "cuda-13.0/compat/libcuda.so.580.95.05",
    )
    files = {**{f"usr/local/{name}": "" for name in names}, "own/libcuda.so.580.173.02": ""}
    result, _ = probe(tmp_path, {"nvidia-smi": sample("cuda/nvidia-smi.h100.r535.txt")}, files, env)
    folder, version = compat_library or (None, None)
    assert (result.knobs.get("cuda_compat_folder"), result.knobs.get("cuda_compat")) == (folder, version)
    assert (result.versions["driver_branch"], "gpu_brand" in result.knobs) == ("535", False)


def test_a_geforce_is_told_by_its_name(tmp_path: Path) -> None:
    result, _ = probe(tmp_path, {FULL: sample("cuda/nvidia-smi-query.rtx4090-8x.csv.txt")})
    assert result.knobs["gpu_brand"] == "GeForce"


@pytest.mark.parametrize(
    ("chosen", "numbers"),
    [
        (None, "0123"),
        ("2,3", "23"),
        ("GPU-b,0", "10"),
        ("3,9,1", "3"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("GPU-", ""),
    ],
)
def test_cuda_visible_devices_narrows_and_numbers(tmp_path: Path, chosen: str | None, numbers: str) -> None:
    rows = "".join(f"{number}, GPU {number}, GPU-{letter}{number}, 1024 MiB\n" for number, letter in enumerate("abcd"))
    env = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    result, _ = probe(tmp_path, {FULL: "index, name, uuid, memory.total [MiB]\n" + rows}, env=env)
    assert [device.name for device in result.devices] == [f"GPU {number}" for number in numbers]
    assert [device.number for device in result.devices] == list(range(len(numbers)))


def test_links_follow_the_visible_numbers(tmp_path: Path) -> None:
    answers = {
        FULL: "index, name, memory.total [MiB]\n" + "".join(f"{number}, V100, 32768 MiB\n" for number in range(8)),
        "nvidia-smi topo -m": sample("cuda/nvidia-smi-topo-m.v100-8x.r470.txt"),
    }
    result, _ = probe(tmp_path, answers, env={"CUDA_VISIBLE_DEVICES": "4,0,7"})
    assert result.links == (Link(0, 1, "SYS"), Link(0, 2, "NV1"), Link(1, 2, "NV2"))
    assert [device.node for device in result.devices] == [1, 0, 1]


# --- cells that the tool may not read -------------------------------------------------------------------------------

UNREADABLE = ("N/A", "[N/A]", "Not Supported", "Insufficient Permissions", "Unknown Error", "N/A / N/A", "ERR! / ERR!")


@pytest.mark.parametrize("word", UNREADABLE)
def test_a_table_without_readable_memory_keeps_its_gpu(word: str) -> None:
    cell = re.compile(r"70323MiB /  81559MiB")
    gpu = parse_nvidia_table(cell.sub(word.center(20), sample("cuda/nvidia-smi.h100-1x.r580.txt"))).gpus[0]

    assert (gpu.name, gpu.bus, gpu.memory_total, gpu.memory_used) == (
        "NVIDIA H100 80GB HBM3", "0000:8d:00.0", None, None,
    )  # fmt: skip


HEAD = "index, name, memory.total [MiB], memory.used [MiB], ecc.errors.uncorrected.volatile.total"


@pytest.mark.parametrize("cells", ["81559 MiB, [Insufficient Permissions], [N/A]", "81559 MiB, [N/A], [Unknown Error]"])
def test_one_unreadable_value_is_unknown_and_the_gpu_well(cells: str) -> None:
    gpu = parse_query(f"{HEAD}\n0, NVIDIA H100 80GB HBM3, {cells}\n")[0]

    assert (gpu.memory_total, gpu.memory_used, gpu.health) == (81559 * MIB, None, "ok")


def test_a_pod_with_an_instance_has_the_memory_of_the_instance(tmp_path: Path) -> None:
    table = sample("cuda/nvidia-smi.a100-mig.r550.txt").replace("829MiB /  81920MiB", "N/A               ")
    query = f"{HEAD}\n0, NVIDIA A100 80GB PCIe, [Insufficient Permissions], [Insufficient Permissions], [N/A]\n"
    result, host = probe(tmp_path, {"nvidia-smi": table, LEAST: query})

    assert [(device.memory_total, device.health) for device in result.devices] == [(9728 * MIB, "ok")]
    assert host.failures == []


def test_an_instance_without_readable_memory_has_that_of_its_profile(tmp_path: Path) -> None:
    table = sample("cuda/nvidia-smi.a100-mig.r550.txt").replace("13MiB /  9728MiB", "N/A             ")
    listed = "GPU 0: NVIDIA A100 80GB PCIe (UUID: GPU-1)\n  MIG 1g.10gb     Device  0: (UUID: MIG-1)\n"
    result, host = probe(tmp_path, {"nvidia-smi": table, "nvidia-smi -L": listed})

    assert [(device.memory_total, device.busy) for device in result.devices] == [(9728 * MIB, False)]
    assert host.failures == []


@pytest.mark.parametrize(
    ("name", "mib"),
    [("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-40GB", 40960), ("NVIDIA L40S", 46068), ("NVIDIA X9", None)],
)
def test_memory_that_may_not_be_read_is_that_of_the_model_or_a_failure(
    tmp_path: Path, name: str, mib: int | None
) -> None:
    text = f"index, name, memory.total [MiB], compute_cap\n0, {name}, [Insufficient Permissions], 9.0\n"
    result, host = probe(tmp_path, {FULL: text})

    assert result.devices[0].memory_total == (None if mib is None else mib * MIB)
    assert bool(host.failures) == (mib is None)


def test_a_gpu_that_uses_the_hosts_memory_needs_no_size(tmp_path: Path) -> None:
    text = "index, name, memory.total [MiB], compute_cap\n0, NVIDIA Thor, [N/A], 11.0\n"
    result, host = probe(tmp_path, {FULL: text})

    assert (result.devices[0].memory_total, host.failures) == (None, [])


# --- desktops -------------------------------------------------------------------------------------------------------


def _table_of(use: str, display: str, *processes: str) -> str:
    """Return the table of an H100 with this memory in use, screen, and rows `type name memory`."""
    table = sample("cuda/nvidia-smi.h100-1x.r580.txt").replace("70323MiB", use.rjust(8))
    table = table.replace("8D:00.0 Off", f"8D:00.0 {display:>3}")
    rows = "".join(f"|    0   N/A  N/A             {7 + at}      {process} |\n" for at, process in enumerate(processes))
    return re.sub(r"\|    0   N/A  N/A +117.*\n", rows, table)


@pytest.mark.parametrize(
    ("use", "display", "processes", "busy"),
    [
        ("1493MiB", "On", ("G   /usr/lib/xorg/Xorg  612MiB", "G   /usr/bin/gnome-shell  248MiB"), False),
        ("1493MiB", "Off", ("G   /usr/lib/xorg/Xorg  612MiB", "G   /usr/bin/gnome-shell  248MiB"), False),
        ("2493MiB", "On", ("G   /usr/bin/kwin_wayland  248MiB", "C+G   /opt/google/chrome  1900MiB"), False),
        ("1493MiB", "On", (), False),  # in a container, which does not list the desktop's processes
        ("1493MiB", "Off", ("G   /Xwayland  N/A",), False),  # below Windows
        ("1493MiB", "Off", (), True),
        ("9493MiB", "Off", ("G   /usr/lib/xorg/Xorg  612MiB",), True),
        ("1493MiB", "On", ("G   /usr/lib/xorg/Xorg  612MiB", "C   python3  500MiB"), True),
    ],
)
def test_a_desktop_does_not_hold_a_gpu(
    tmp_path: Path, use: str, display: str, processes: tuple[str, ...], busy: bool
) -> None:
    result, _ = probe(tmp_path, {"nvidia-smi": _table_of(use, display, *processes)})

    assert result.devices[0].busy is busy


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("Tesla K80", "3.7"),
        ("Tesla P100-PCIE-16GB", "6.0"),
        ("NVIDIA GeForce GTX 1080 Ti", "6.1"),
        ("Tesla M60", "5.2"),
    ],
)
def test_a_gpu_too_old_for_vllm_is_known_by_its_name(tmp_path: Path, name: str, capability: str) -> None:
    result, _ = probe(tmp_path, {LEAST: f"index, name, memory.total [MiB]\n0, {name}, 11441 MiB\n"})

    assert (result.devices[0].architecture, result.versions["compute_capability"]) == (capability, capability)
