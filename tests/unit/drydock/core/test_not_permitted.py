"""What root made where it ran first: an error names it, its owner and the command that gives it to the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drydock.core import files
from drydock.core.errors import explain_os_error
from drydock.core.ownership import user_name
from tests.support.other_users import as_user, only_root, reachable_folder

NOBODY = 65534


@only_root
@pytest.mark.parametrize("made_by_root", ["images", "images/cpu", "images/cpu/lock.json"])
def test_the_topmost_of_what_another_user_made_is_named(made_by_root: str) -> None:
    with reachable_folder() as folder:
        (folder / "images" / "cpu").mkdir(parents=True)
        (folder / "images" / "cpu" / "lock.json").touch()
        for path in (folder, *folder.rglob("*")):
            if not path.is_relative_to(folder / made_by_root):
                os.chown(path, NOBODY, NOBODY)
        problem = as_user(NOBODY, lambda: explained(folder / "images" / "cpu" / "lock.json"), group=NOBODY)
    assert problem == (
        f"{folder}/images/cpu/lock.json: Permission denied: {folder}/{made_by_root} belongs to the user root\n\n"
        f"hint: as root: `chown --recursive {user_name(NOBODY)} {folder}/{made_by_root}`; "
        "DRYDOCK_CACHE can name another folder for the cache"
    )


def explained(path: Path) -> str:
    """Return the error of a write."""
    try:
        path.write_text("{}")
    except OSError as error:
        return str(explain_os_error(error))
    return "written"


@only_root
def test_a_folder_that_is_another_users_altogether_is_not_to_be_given_away() -> None:
    with reachable_folder() as folder:
        problem = as_user(NOBODY, lambda: explained(folder / "file"), group=NOBODY)
    hint = "choose a folder that you can write to; DRYDOCK_CACHE names drydock's own"
    assert problem == f"{folder}/file: Permission denied\n\nhint: {hint}"


@only_root
def test_a_file_of_another_user_is_copied_where_the_kernel_forbids_to_link_it() -> None:
    with reachable_folder() as folder:
        (folder / "source").write_text("text")
        (folder / "source").chmod(0o444)
        (folder / "mine").mkdir()
        os.chown(folder / "mine", NOBODY, NOBODY)
        as_user(NOBODY, lambda: files.link_or_copy(folder / "source", folder / "mine" / "copy"), group=NOBODY)
        assert (folder / "mine" / "copy").read_text() == "text"


def test_a_user_without_a_name_is_a_number() -> None:
    assert user_name(0) == "root"
    assert user_name(4_000_000_000) == "4000000000"
