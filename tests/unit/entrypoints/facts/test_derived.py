"""Facts that follow from several other facts."""

from __future__ import annotations

import pytest

from entrypoints.core.records import Cgroup, Device, Limits, Memory, Mount
from entrypoints.core.units import MIB
from entrypoints.facts.derived import UNLIMITED, available_memory, derive_facts, make_idle
from tests.support.hosts import expect
from tests.support.sample import GIB, facts, with_threads


def test_derived_facts_count_cores_not_threads() -> None:
    derived = derive_facts(with_threads(facts(cores=4, nodes=2), 2))

    assert (derived["physical_cores"], derived["threads_per_core"], derived["numa_nodes"]) == (4, 2, 2)


def test_available_memory_is_the_smaller_of_host_and_container() -> None:
    host = facts(memory=64 * GIB)
    limited = host._replace(cgroup=host.cgroup._replace(memory_limit=8 * GIB, memory_used=GIB))

    assert available_memory(host) == 64 * GIB
    assert available_memory(limited) == 7 * GIB
    assert derive_facts(limited)["memory_gib"] == 8.0


def test_a_quota_covers_cores_or_not_and_may_be_a_fraction() -> None:
    host = facts(cores=4)
    derived = derive_facts(host._replace(cgroup=host.cgroup._replace(cpu_quota=2.5)))

    assert (derived["cpu_quota_covers"], derived["cpu_quota_whole"]) == (False, False)
    assert derive_facts(host)["cpu_quota_covers"] is True


@pytest.mark.parametrize(
    ("seccomp", "sys_nice", "outcome"),
    [("filter", "no", "blocked"), ("filter", "yes", "allowed"), ("disabled", "no", "allowed")],
)
def test_mempolicy_is_allowed_without_seccomp_or_with_sys_nice(seccomp: str, sys_nice: str, outcome: str) -> None:
    host = facts(kernel={"seccomp": seccomp, "sys_nice": sys_nice})

    assert derive_facts(host)["mempolicy"] == outcome


def test_a_cpu_whose_node_has_no_usable_memory_is_counted() -> None:
    host = facts(cores=4, nodes=2)

    assert derive_facts(host._replace(nodes=host.nodes[:1]))["numa_cpus_without_memory"] == 2


def test_swap_in_use_is_in_mib() -> None:
    assert derive_facts(facts()._replace(memory=Memory(GIB, GIB, GIB, GIB // 2)))["swap_used_mib"] == 512


def test_each_architecture_of_the_devices_is_listed_once() -> None:
    devices = tuple(Device(number, "", None, None, None, architecture="trn2") for number in range(2))

    assert derive_facts(facts()._replace(devices=devices))["architectures"] == ["trn2"]
    assert "architectures" not in derive_facts(facts())


def test_a_card_of_unknown_architecture_has_its_name_instead() -> None:
    s60, i20, neither = (Device(number, name, None, None, None) for number, name in enumerate(("S60", "I20", "")))
    devices = (s60._replace(architecture="gcu300"), i20, neither)

    assert derive_facts(facts()._replace(devices=devices))["architectures"] == ["I20", "gcu300"]


def test_limits_are_the_values_they_can_be_raised_to() -> None:
    derived = derive_facts(facts(limits=Limits(1024, 65536, None, 524288, None)))

    assert (derived["nofile"], derived["memlock_mib"]) == (524288, UNLIMITED // MIB)


@pytest.mark.parametrize(
    ("container", "user", "expected"),
    [(None, 512, 512), (8192, 65536, 8192), (8192, None, 8192), (None, None, UNLIMITED)],
)
def test_the_limit_of_threads_is_the_smaller_of_the_container_and_its_user(
    container: int | None, user: int | None, expected: int
) -> None:
    host = facts(limits=Limits(1024, None, user), cgroup=Cgroup(2, None, 0, None, container))

    assert derive_facts(host)["pids"] == expected


def test_a_missing_shared_memory_has_no_bytes() -> None:
    missing = Mount("/dev/shm", exists=False, writable=False, free=0, total=0, filesystem="")

    assert derive_facts(facts(mounts={"shm": missing}))["shm_gib"] == 0


def test_idle_huge_pages_are_a_share_of_the_memory() -> None:
    host = facts(memory=64 * GIB, kernel={"hugepages_idle": "8192", "hugepage_kib": "2048"})

    assert derive_facts(host)["hugepages_idle_percent"] == 25
    assert "hugepages_idle_percent" not in derive_facts(facts())


def test_an_idle_machine_has_no_process_and_all_memory_but_that_of_firmware() -> None:
    for name in expect.names():
        recorded = expect.read(name, expect.profile_of(name))
        idle = make_idle(recorded)
        assert not any(device.busy for device in idle.devices), name
        assert {device.health for device in idle.devices} <= {"", "ok"}, name
        assert all((device.memory_used or 0) < 0.2 * (device.memory_total or 1) for device in idle.devices), name
        assert available_memory(idle) == min(idle.memory.total, idle.cgroup.memory_limit or idle.memory.total), name
        assert all(node.memory_free == node.memory_total for node in idle.nodes), name
        assert make_idle(idle) == idle, name
    card = expect.read("habana-gaudi2-8x", expect.profile_of("habana-gaudi2-8x")).devices[6]
    sick = facts()._replace(
        devices=(card._replace(health="lost", busy=None), card._replace(memory_used=5 * MIB, busy=False))
    )
    assert [(device.memory_used, device.busy) for device in make_idle(sick).devices] == [
        (5 * MIB, None),
        (5 * MIB, False),
    ]
