"""Which other user could have written a file that drydock found and no option named. IO: reads owners and modes.

The owners are those that git accepts since CVE-2022-24765 (git-config(1), safe.directory), and root. Modes count as
well: git reads a repository of this user even if others can write to it.
"""

from __future__ import annotations

import errno
import functools
import grp
import itertools
import os
import pwd
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

MOST_FILES = 20_000
"""Files and folders of one project; drydock itself has 500. A link to / would lead to millions."""
_ACCESS_LIST = "system.posix_acl_access"
_NO_ACCESS_LIST = (errno.ENODATA, errno.ENOTSUP)


def user_name(uid: int) -> str:
    """Return a user's name, or the number of one without a name, as in containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def find_foreign_place(path: Path) -> Path | None:
    """Return the topmost file or folder on a path that is in a folder of this user's and belongs to another user.

    That is what root made where it ran first.
    """
    places = [place for place in (path, *path.parents) if os.path.lexists(place)]
    foreign = [*itertools.takewhile(lambda place: place.lstat().st_uid != os.geteuid(), places)]
    return foreign[-1] if 0 < len(foreign) < len(places) else None


def trusted_users(env: Mapping[str, str] = os.environ) -> frozenset[int]:
    """Return the ids of the users whose files count as this user's: its own, root's, and for root that of `sudo`."""
    user = os.geteuid()
    caller = env.get("SUDO_UID", "")
    by_sudo = user == 0 and caller.isascii() and caller.isdecimal()
    return frozenset({user, 0, int(caller)} if by_sudo else {user, 0})


def find_writer(path: Path, users: Collection[int] | None = None) -> str:
    """Return who else could have written a file or folder, or the link that it is; empty for no one.

    What is in a folder is not looked at. A path that does not exist was written by no one.
    """
    users = trusted_users() if users is None else users
    for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
        try:
            who = _describe_writer(place, place.lstat(), users)
        except FileNotFoundError:
            return ""
        except OSError as error:
            who = error.strerror or str(error)
        if who:
            return f"{place}: {who}"
    return ""


def find_writers(paths: Iterable[Path]) -> Iterator[str]:
    """Yield who else could have written each file or folder, with all that is in it and where its links lead."""
    users, pending = trusted_users(), [*paths][::-1]
    visited: set[Path] = set()
    while pending:
        path = pending.pop()
        if path in visited:
            continue
        visited.add(path)
        if len(visited) > MOST_FILES:
            yield f"{path}: more than {MOST_FILES} files, expected those of one project"
            return
        if who := find_writer(path, users):
            yield who
        elif path.is_symlink():
            pending.append(Path(os.path.realpath(path)))
        elif path.is_dir():
            try:
                pending += sorted(path.iterdir(), reverse=True)
            except OSError as error:
                yield f"{path}: {error.strerror}"


def _describe_writer(path: Path, status: os.stat_result, users: Collection[int]) -> str:
    if status.st_uid not in users:
        return f"uid {status.st_uid} owns it"
    if stat.S_ISLNK(status.st_mode):  # a link's mode means nothing
        return ""
    if status.st_mode & stat.S_IWOTH:
        return "every user can write to it"
    return _describe_group(path, status.st_gid, users) if status.st_mode & stat.S_IWGRP else ""


def _describe_group(path: Path, group: int, users: Collection[int]) -> str:
    """Return who else can write to a file whose group can; empty for a private group."""
    if _has_access_list(path):  # the group's bits are then the list's mask (acl(5))
        return "its access control list lets others write to it"
    members = _list_members(group)
    if members and members <= {*users}:
        return ""
    return f"group {group} can write to it, which has other members"


def _has_access_list(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, _ACCESS_LIST))
    except OSError as error:
        if error.errno in _NO_ACCESS_LIST:
            return False
        raise


@functools.cache
def _list_members(group: int) -> frozenset[int]:
    """Return the ids of a group's members, by name or by primary group; -1 for a name without an account.

    An empty result does not mean that the group is private: a directory server need not list its users.
    """
    members = {account.pw_uid for account in pwd.getpwall() if account.pw_gid == group}
    try:
        names = grp.getgrgid(group).gr_mem
    except KeyError:
        names = []
    for name in names:
        try:
            members.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            members.add(-1)
    return frozenset(members)
