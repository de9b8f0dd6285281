"""Hosts of every kind, and hosts full of rubbish."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entrypoints.checks.findings import FAIL, list_unread_facts
from entrypoints.core.records import Facts
from entrypoints.facts.facts import collect_facts
from entrypoints.host.commands import Commands
from entrypoints.host.host import Host
from tests.support.hosts import expect
from tests.support.hosts.trees import GIB, read_recorded_tree, write_tree
from tests.support.sample import PROFILE, told

CGROUP1, CGROUP2 = read_recorded_tree("cpu-cgroup1"), read_recorded_tree("cpu-cgroup2-limited")


def read(root: Path) -> Facts:
    host = Host(str(root))
    return collect_facts(host, Commands(host), PROFILE, {})


def test_this_very_system_can_be_probed() -> None:
    host = Host()
    facts = collect_facts(host, Commands(host), PROFILE, {"DRYDOCK_CACHE_DIR": "/nowhere"})

    assert facts.failures == ()
    assert facts.cpus
    assert facts.memory.total > facts.memory.available > 0
    assert not facts.mounts["cache"].exists
    assert facts.mounts["tmp"].filesystem


def test_affinity_and_memory_nodes_restrict_what_is_seen(tmp_path: Path) -> None:
    status = "Uid:\t1 1 1 1\nGid:\t1 1 1 1\nCpus_allowed_list:\t0-1,39\nMems_allowed_list:\t1\n"
    facts = read(write_tree(tmp_path, {**read_recorded_tree("cpu-node-without-cpus"), "proc/self/status": status}))

    assert [cpu.id for cpu in facts.cpus] == [0, 1, 39]
    assert [node.id for node in facts.nodes] == [1]


def test_an_offline_cpu_is_not_offered(tmp_path: Path) -> None:
    facts = read(write_tree(tmp_path, {**CGROUP2, "sys/devices/system/cpu/online": "0-2,4-7\n"}))

    assert [cpu.id for cpu in facts.cpus] == [0, 1, 2, 4, 5, 6, 7]


def test_the_smallest_limit_up_the_tree_counts_in_cgroup_2(tmp_path: Path) -> None:
    tight = {**CGROUP2, "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n"}
    cgroup = read(write_tree(tmp_path, tight)).cgroup

    assert (cgroup.version, cgroup.memory_limit, cgroup.cpu_quota) == (2, 4 * GIB, 2.5)
    assert cgroup.memory_used == 200 << 20


def test_memory_above_which_processes_are_stopped_is_a_limit_too(tmp_path: Path) -> None:
    throttled = {**CGROUP2, "sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n"}
    high = read(write_tree(tmp_path, {**throttled, "sys/fs/cgroup/pod/memory.high": f"{3 * GIB}\n"})).cgroup
    unset = read(write_tree(tmp_path, {**throttled, "sys/fs/cgroup/pod/memory.high": "max\n"})).cgroup

    assert (high.memory_limit, unset.memory_limit) == (3 * GIB, 4 * GIB)


def test_the_containers_own_view_of_cgroup_2_begins_at_its_root(tmp_path: Path) -> None:
    files = {"cgroup.controllers": "memory", "memory.max": str(GIB), "memory.current": "5", "cpu.max": "max 100000"}
    cgroup_files = CGROUP2 | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    cgroup = read(write_tree(tmp_path, {**cgroup_files, "proc/self/cgroup": "0::/../../outside\n"})).cgroup

    assert (cgroup.memory_limit, cgroup.memory_used, cgroup.cpu_quota) == (GIB, 5, None)


def test_a_hybrid_host_is_read_as_version_1(tmp_path: Path) -> None:
    hybrid = {**CGROUP1, "sys/fs/cgroup/unified/cgroup.controllers": "\n"}

    assert read(write_tree(tmp_path, hybrid)).cgroup.version == 1


def test_a_file_that_should_parse_and_does_not_is_a_fail_finding(tmp_path: Path) -> None:
    facts = read(
        write_tree(
            tmp_path, {**CGROUP2, "sys/fs/cgroup/pod/server/cpu.max": "oops\n", "proc/meminfo": "MemTotal: lots kB\n"}
        )
    )
    findings = told(list_unread_facts(facts))

    assert {finding.found for finding in findings} == {"'oops'", "'MemTotal: lots kB'"}
    assert {finding.severity for finding in findings} == {FAIL}


def test_an_empty_folder_is_a_host_of_which_everything_failed(tmp_path: Path) -> None:
    where = {failure.where for failure in read(tmp_path).failures}

    assert {"/machine", "/proc/cpuinfo", "/proc/meminfo", "/proc/self/status"} <= where


KINDS = {"v2": CGROUP2, "v1": CGROUP1, "z15": read_recorded_tree("cpu-z15")}
PATHS = sorted(set().union(*KINDS.values()))


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write_tree(tmp_path_factory.mktemp(kind), files) for kind, files in KINDS.items()}


@settings(max_examples=200)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    rubbish=st.dictionaries(
        st.sampled_from(PATHS), st.binary(max_size=200) | st.text(max_size=80).map(str.encode), max_size=6
    ),
)
def test_no_content_of_any_file_gives_a_traceback(roots: dict[str, Path], kind: str, rubbish: dict[str, bytes]) -> None:
    root, files = roots[kind], KINDS[kind]
    try:
        for path in rubbish.keys() & files.keys():
            (root / path).write_bytes(rubbish[path])
        facts = read(root)
    finally:
        write_tree(root, {path: files[path] for path in rubbish.keys() & files.keys()})

    assert all(failure.expected for failure in facts.failures)


def test_a_recorded_mount_table_of_the_wrong_shape_is_a_failure(tmp_path: Path) -> None:
    facts = read(write_tree(tmp_path, {**CGROUP2, "mounts.json": json.dumps({"cache": {"size": 3}})}))

    assert [failure.where for failure in facts.failures] == ["/mounts.json"]


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ((), {"iomp": True, "tcmalloc": True}),  # outside an image: what the image installs
        (("/opt/venv/bin/python3",), {"iomp": False, "tcmalloc": False}),
        (("/opt/venv/bin/python3", "/opt/venv/lib/libiomp5.so"), {"iomp": True, "tcmalloc": False}),
    ],
)
def test_libraries_are_missing_in_an_image_only(present: tuple[str, ...], expected: dict[str, bool]) -> None:
    document = expect.document("cpu-xeon8380-2s")
    files = {path: text for path, text in document["files"].items() if "tcmalloc" not in path and "iomp" not in path}
    host = expect.opened({**document, "files": files | dict.fromkeys(present, "")})
    assert expect.look(host, expect.profile_of("cpu-xeon8380-2s")).files == expected
