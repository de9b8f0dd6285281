"""Who else could have written a file: owners, modes, groups, links, access control lists."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from drydock.core import ownership
from drydock.core.ownership import find_writer, find_writers, trusted_users

STRANGER = 65534
SHARED_GROUP = 1
"""Group `daemon`: it has a member on every Debian, the user `daemon`, which is neither this one nor root."""

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "matrix.yaml"
    path.touch()
    path.chmod(0o644)
    return path


def test_only_root_also_trusts_the_user_who_called_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert trusted_users({"SUDO_UID": "1000"}) == {0, 1000}
    assert trusted_users({"SUDO_UID": "-1"}) == trusted_users({"SUDO_UID": "²"}) == trusted_users({}) == {0}
    monkeypatch.setattr(os, "geteuid", lambda: 1001)
    assert trusted_users({"SUDO_UID": "1000"}) == {0, 1001}


def test_ones_own_file_and_one_that_does_not_exist_have_no_other_writer(file: Path) -> None:
    assert find_writer(file) == find_writer(file.with_name("absent")) == ""


@pytest.mark.parametrize("mode", [0o646, 0o1777, 0o602])
def test_a_mode_for_every_user_is_named_also_with_the_sticky_bit(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert find_writer(file) == f"{file}: every user can write to it"


@as_root
def test_another_owner_is_named(file: Path) -> None:
    os.chown(file, STRANGER, -1)
    assert find_writer(file) == f"{file}: uid {STRANGER} owns it"


@as_root
def test_a_group_with_other_members_is_named(file: Path) -> None:
    os.chown(file, -1, SHARED_GROUP)
    assert find_writer(file) == ""
    file.chmod(0o664)
    assert find_writer(file) == f"{file}: group {SHARED_GROUP} can write to it, which has other members"


@as_root
def test_a_group_without_a_known_member_is_not_a_private_one(file: Path) -> None:
    os.chown(file, -1, 54321)
    file.chmod(0o664)
    assert "group 54321 can write" in find_writer(file)


def test_a_private_group_is_trusted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Umask 002, and a group whose only member is this user: the default of Debian and Red Hat."""
    monkeypatch.setattr(ownership, "_list_members", lambda _: frozenset({os.geteuid()}))
    file.chmod(0o664)
    assert find_writer(file) == ""


@as_root
def test_the_members_of_a_group_are_those_by_name_and_by_primary_group() -> None:
    assert ownership._list_members(SHARED_GROUP) == {1}
    assert ownership._list_members(0) >= {0}


def test_an_access_control_list_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a list, the group's bits of the mode are its mask, which says nothing about who can write."""
    monkeypatch.setattr(ownership, "_list_members", lambda _: frozenset({os.geteuid()}))
    owner, user, group, mask, everyone = 0x01, 0x02, 0x04, 0x10, 0x20  # acl(5), linux/posix_acl.h
    nobody = 0xFFFFFFFF
    entries = [(owner, 6, nobody), (user, 6, STRANGER), (group, 4, nobody), (mask, 6, nobody), (everyone, 4, nobody)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(file, "system.posix_acl_access", packed)
    except OSError:
        pytest.skip("the file system has no access control lists")
    assert "access control list" in find_writer(file)


@as_root
def test_a_link_is_judged_and_so_is_where_it_leads(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert find_writer(link) == ""
    os.lchown(link, STRANGER, -1)
    assert find_writer(link) == f"{link}: uid {STRANGER} owns it"
    os.lchown(link, 0, -1)
    os.chown(file, STRANGER, -1)
    assert find_writer(link) == f"{file}: uid {STRANGER} owns it"


def test_a_folder_is_judged_with_all_in_it_and_where_links_lead(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for path in (project / "templates" / "cpu", elsewhere / "deep"):
        path.mkdir(parents=True)
    (project / "images").symlink_to(elsewhere)
    (project / "round").symlink_to(project)
    assert [*find_writers([project])] == []
    for path in (elsewhere / "deep", project / "templates" / "cpu"):
        path.chmod(0o777)
    expected = {f"{path}: every user can write to it" for path in (elsewhere / "deep", project / "templates" / "cpu")}
    assert {*find_writers([project])} == expected


def test_a_link_that_leads_to_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert [*find_writers([tmp_path / "loop"])] == []


def test_a_folder_with_too_many_files_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "MOST_FILES", 3)
    for name in "abcd":
        (tmp_path / name).touch()
    assert ["more than 3 files" in who for who in find_writers([tmp_path])] == [True]
