"""Which device files, driver files and groups a machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.model.running import DeviceNode
from drydock.run.machine import assume_device_files, is_pattern, pick_device_files
from tests.support.containers import machine, node


def test_device_files_are_sorted_by_number(tmp_path: Path) -> None:
    here = machine(tmp_path, [f"/dev/davinci{number}" for number in (10, 2, 1)] + ["/dev/davinci_manager"])

    assert here.matches("/dev/davinci[0-9]*") == ("/dev/davinci1", "/dev/davinci2", "/dev/davinci10")
    assert here.matches("/dev/nothing*") == ()
    assert here.has("/dev/davinci_manager")


def test_a_group_is_its_number_or_empty(tmp_path: Path) -> None:
    here = machine(tmp_path, groups="root:x:0:\nbroken\nrender:x:109:alice,bob\n")

    assert (here.group("render"), here.group("video")) == ("109", "")
    (tmp_path / "etc" / "group").unlink()
    assert here.group("render") == ""


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("/dev/davinci[0-9]*", ("/dev/davinci0", "/dev/davinci1")),
        ("/dev/dri/renderD*", ("/dev/dri/renderD128", "/dev/dri/renderD129")),
        ("/dev/accel/accel[0-9]", ("/dev/accel/accel0", "/dev/accel/accel1")),
    ],
)
def test_on_another_machine_the_usual_files_are_assumed(path: str, files: tuple[str, ...]) -> None:
    assert assume_device_files(DeviceNode.model_validate(node(path, each=True)), range(2)) == files


def test_a_shared_file_is_assumed_and_a_shared_pattern_is_not() -> None:
    assert assume_device_files(DeviceNode.model_validate(node("/dev/kfd")), range(2)) == ("/dev/kfd",)
    assert assume_device_files(DeviceNode.model_validate(node("/dev/dri/by-path/*")), range(2)) == ()
    assert (is_pattern("/dev/kfd"), is_pattern("/dev/vfio/[0-9]*")) == (False, True)


@pytest.mark.parametrize(
    ("paths", "numbers", "picked", "without"),
    [
        (("/dev/davinci0", "/dev/davinci2"), (2,), {2: "/dev/davinci2"}, []),  # a missing card renumbers none
        (("/dev/davinci0", "/dev/davinci2"), (1,), {}, [1]),
        (("/dev/dri/renderD128", "/dev/dri/renderD130"), (2, 1), {2: "/dev/dri/renderD130"}, [1]),
        (("/dev/vfio/17", "/dev/vfio/25"), (1, 2), {1: "/dev/vfio/25"}, [2]),  # groups: any number, so their place
        (("/dev/one",), (0,), {0: "/dev/one"}, []),
        ((), (0,), {}, [0]),
    ],
)  # fmt: skip
def test_cards_are_chosen_by_the_drivers_number(
    paths: tuple[str, ...], numbers: tuple[int, ...], picked: dict[int, str], without: list[int]
) -> None:
    assert pick_device_files(paths, numbers) == (picked, without)
