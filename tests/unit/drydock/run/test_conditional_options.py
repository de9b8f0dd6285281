"""Options that only some containers get: with many cards that the host's network joins, or of several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.machine import Machine
from drydock.run.option_reasons import format_option_reasons, list_record_options
from tests.support.containers import recorded

VARIANTS = read_matrix(DRYDOCK)
FORKS = ["habana1.21-deepseek-r1", "habana1.21-fork0.8", "habana1.22-fork0.9", "habana1.22-fork0.9-multimodal"]
NIC = ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]
RIGHTS = ("SYS_NICE", "IPC_LOCK", "SYS_PTRACE")


def on(here: Machine, target: str = "gaudi2e", *words: str, devices: str = "") -> Container:
    return make_container(
        find_variant(VARIANTS, target), RunRequest(model="org/model", devices=devices, arguments=words), here
    )


@pytest.mark.parametrize("target", FORKS)
def test_eight_gaudi2e_cards_get_the_rights_that_host_nics_need(tmp_path: Path, target: str) -> None:
    container = on(recorded("habana-gaudi2e-8x", tmp_path, NIC), target)

    assert container.devices == ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm")
    assert container.capabilities == RIGHTS
    assert container.network == "host"
    assert container.missing_parts == ()
    assert "--cap-add IPC_LOCK: memory is registered with the network cards." in [
        *format_option_reasons(container.record, container, "docker")
    ]


def test_four_gaudi2e_cards_are_joined_by_links_and_get_no_more_rights(tmp_path: Path) -> None:
    container = on(recorded("habana-gaudi2e-8x", tmp_path, NIC), devices="0-3")

    assert (container.devices, container.capabilities, container.network, container.notes) == (
        (),
        ("SYS_NICE",),
        "",
        (),
    )


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("-tp", "1"), False),
        (("--tensor-parallel-size=4",), False),
        (("--tensor-parallel-size", "4", "-pp", "2"), True),
        (("-tp", "8"), True),
        (("-tp", "1", "--enable-expert-parallel"), True),
    ],
)
def test_a_server_of_few_of_eight_cards_gets_no_more_rights(tmp_path: Path, words: tuple[str, ...], more: bool) -> None:
    container = on(recorded("habana-gaudi2e-8x", tmp_path, NIC), "gaudi2e", *words)

    assert container.capabilities == (RIGHTS if more else RIGHTS[:1])
    assert container.network == ("host" if more else "")


def test_eight_gaudi2_cards_are_joined_by_links_and_get_no_more_rights(tmp_path: Path) -> None:
    container = on(recorded("habana-gaudi2-8x", tmp_path, NIC))

    assert (container.devices, container.capabilities, container.network) == ((), ("SYS_NICE",), "")


def test_an_image_without_libfabric_gets_no_rights_for_it(tmp_path: Path) -> None:
    container = on(recorded("habana-gaudi2e-8x", tmp_path, NIC), "habana1.24-plugin0.26")

    assert (container.devices, container.capabilities, container.network) == ((), ("SYS_NICE",), "")


def test_for_another_machine_the_options_are_named_and_not_added(tmp_path: Path) -> None:
    container = on(Machine(tmp_path))

    assert (container.capabilities, container.network) == (("SYS_NICE",), "")
    assert container.notes[-1] == (
        "only with more than four Gaudi2E cards, which communicate through the host's network cards, also"
        " --device /dev/infiniband/uverbs[0-9]* --device /dev/infiniband/rdma_cm"
        " --cap-add IPC_LOCK --cap-add SYS_PTRACE --network host"
    )


@pytest.mark.parametrize("target", ["gaudi3", "xpu"])
def test_a_server_on_several_hosts_gets_the_hosts_network(tmp_path: Path, target: str) -> None:
    assert on(Machine(tmp_path), target, "--nnodes", "2").network == "host"
    assert on(Machine(tmp_path), target, "--nnodes=1").network == ""
    assert on(Machine(tmp_path), target, "--nnodes", "two").network == ""  # the entrypoint refuses it
    assert on(Machine(tmp_path), target).network == ""


def test_the_pages_say_which_containers_have_an_option() -> None:
    reasons_by_option = {
        option: because for option, because, _ in list_record_options(find_variant(VARIANTS, "gaudi2e").run)
    }

    assert reasons_by_option["--cap-add SYS_PTRACE"] == (
        "only with more than four Gaudi2E cards, which communicate through the host's network cards:"
        " the ranks of one machine read each other's memory."
    )
