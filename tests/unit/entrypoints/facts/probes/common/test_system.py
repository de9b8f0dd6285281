"""What a container was given, as the kernel tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoints.facts.probes.common import kernel_settings, system
from entrypoints.host.host import Host

NICE = "0000000000800000"
NONE = "0000000000000000"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"capeff": NONE, "capbnd": NICE}, ("SYS_NICE",)),  # docker --cap-add, for a user who is not root
        ({"capeff": NICE, "capbnd": NICE}, ("SYS_NICE",)),
        ({"capeff": NICE}, ("SYS_NICE",)),
        ({"capeff": NONE, "capbnd": "00000000a80425fb"}, ()),  # what Docker gives by itself
        ({"capbnd": "000001ffffffffff"}, ("IPC_LOCK", "SYS_ADMIN", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE")),
        ({"capbnd": "not hexadecimal"}, ()),
        ({}, ()),
    ],
)
def test_a_capability_counts_as_given_where_it_may_be_had(status: dict[str, str], expected: tuple[str, ...]) -> None:
    assert system.read_capabilities(status) == expected


ROOT_USER, OTHER_USER = {"uid": "0\t0\t0\t0"}, {"uid": "1000\t1000\t1000\t1000"}


@pytest.mark.parametrize(
    ("status", "users", "expected"),
    [
        (ROOT_USER, "         0          0 4294967295\n", None),
        (ROOT_USER, "", None),  # recorded before uid_map was read
        (ROOT_USER, "         0     100000      65536\n", 512),  # rootless, or dockerd --userns-remap
        (OTHER_USER, "         0          0 4294967295\n", 512),
        (OTHER_USER | {"capeff": "0000000001000000"}, "", None),  # SYS_RESOURCE
        (OTHER_USER | {"capeff": NICE}, "", 512),
    ],
)
def test_the_kernel_limits_the_processes_of_some_users_only(
    tmp_path: Path, status: dict[str, str], users: str, expected: int | None
) -> None:
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "limits").write_text("Max processes             512                  512                  processes\n")
    if users:
        (folder / "uid_map").write_text(users)

    assert system.read_limits(Host(str(tmp_path)), status).nproc == expected


@pytest.mark.parametrize(("status", "expected"), [({"capbnd": NICE}, "yes"), ({"capbnd": NONE}, "no"), ({}, None)])
def test_dockers_filter_lets_memory_policies_through_by_the_same_set(
    tmp_path: Path, status: dict[str, str], expected: str | None
) -> None:
    assert kernel_settings.read_settings(Host(str(tmp_path)), status).get("sys_nice") == expected


def test_the_folder_of_profiles_is_probed_where_it_is_or_would_be_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "file").touch()
    mounts = [
        system.read_mounts(Host("/"), {"VLLM_TORCH_PROFILER_DIR": str(tmp_path / name)})["profiles"]
        for name in ("there", "there/not/yet")
    ]

    assert [(mount.path, mount.writable) for mount in mounts] == [(str(tmp_path / "there"), True)] * 2
    assert "profiles" not in system.read_mounts(Host("/"), {})
    assert not system.read_mounts(Host("/"), {"VLLM_TORCH_PROFILER_DIR": str(tmp_path / "file")})["profiles"].writable
