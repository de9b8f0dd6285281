"""--modules: the cards that have Gaudi's module numbers, which are not their device numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.docker_command import docker_argv
from drydock.run.machine import Machine
from tests.support.containers import recorded

VARIANTS = read_matrix(DRYDOCK)
INDEX_OF = {0: 4, 1: 7, 2: 0, 3: 2, 4: 5, 5: 6, 6: 1, 7: 3}
"""Module → device of the recorded Gaudi2E host (hl-smi -Q index,module_id)."""


def on(here: Machine, modules: str, target: str = "gaudi2e", **more: object) -> Container:
    return make_container(find_variant(VARIANTS, target), RunRequest(model="org/model", modules=modules, **more), here)


def write_modules(root: Path) -> Machine:
    """Write the driver's files of the recorded host."""
    for module, device in INDEX_OF.items():
        folder = root / f"sys/class/accel/accel{device}/device"
        folder.mkdir(parents=True)
        (folder / "module_id").write_text(f"{module}\n")
    (root / "dev/accel").mkdir(parents=True)
    for device in range(8):
        (root / f"dev/accel/accel{device}").touch()
        (root / f"dev/accel/accel_controlD{device}").touch()
    return Machine(root)


def test_the_manuals_modules_are_passed_as_their_devices(tmp_path: Path) -> None:
    container = on(write_modules(tmp_path), "0,1,2,3")

    assert container.visible == {"HABANA_VISIBLE_DEVICES": "4,7,0,2"}
    assert container.user_env == {"HABANA_VISIBLE_MODULES": "0,1,2,3"}
    assert (container.count, container.network) == (4, "")  # four cards need no host NICs
    assert "HABANA_VISIBLE_MODULES=0,1,2,3" in docker_argv(container)


def test_without_the_drivers_files_all_cards_are_passed_and_the_variable_chooses(tmp_path: Path) -> None:
    container = on(recorded("habana-gaudi2e-8x", tmp_path, []), "0-3")

    assert container.user_env == {"HABANA_VISIBLE_MODULES": "0,1,2,3"}
    assert container.visible == {"HABANA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    assert container.count == 4


def test_a_module_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert "no module 9" in on(write_modules(tmp_path), "0,9").absent_cards[0]


@pytest.mark.parametrize(
    ("target", "modules", "more", "message"),
    [
        ("cuda", "0,1", {}, "has no modules"),
        ("gaudi2", "0,1", {"devices": "0"}, "--devices: both choose the cards"),
        ("gaudi2", "0,1", {"env": ("HABANA_VISIBLE_MODULES=1",)}, "both choose the cards"),
        ("gaudi2", "first", {}, "--modules first: found 'first'"),
    ],
)
def test_what_modules_do_not_go_with_is_named(
    tmp_path: Path, target: str, modules: str, more: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        on(Machine(tmp_path), modules, target, **more)
