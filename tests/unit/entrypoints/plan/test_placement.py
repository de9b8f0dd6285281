"""Devices that serve together: what a plan's checks say is of them, and whether the user's are near each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from entrypoints.core.records import Device, Facts, Link, Notice, Use
from entrypoints.plan.placement import find_distant, narrow_to_engine
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA
from tests.support.sample import facts

PROFILE = {"variables": {"devices": ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]}}


def _host(nodes: str, *pairs: tuple[int, int]) -> Facts:
    """Return a host with a device for each digit, the number of its NUMA node, and these direct links."""
    devices = tuple(Device(at, "Card", 1, 0, int(node), None, "ok", busy=False) for at, node in enumerate(nodes))
    return facts(devices=devices, links=tuple(Link(first, second, "NV4") for first, second in pairs))


def _uses(*engines: tuple[int, ...]) -> tuple[Use, ...]:
    return tuple(Use(number, at, 1, 1, 0, 0) for at, members in enumerate(engines) for number in members)


def _distant(host: Facts, chosen: tuple[int, ...] | None, *engines: tuple[int, ...], **env: str) -> list[Notice]:
    user_flags = parse_user_flags((), env, (), Intents(devices=chosen))
    return [*find_distant(PROFILE, host, user_flags, _uses(*engines))]


HALVES = ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7))


@pytest.mark.parametrize(
    ("host", "chosen", "because", "use"),
    [
        (_host("00001111"), (3, 4), "NUMA nodes 0 and 1", "--devices 0-1"),
        (_host("00001111"), (0, 1, 2, 4), "NUMA nodes 0 and 1", "--devices 0-3"),
        (_host("0123"), (1, 2), "", ""),  # no node has two
        (_host("00001111", *HALVES), (2, 5), "no direct link joins 2 and 5", "--devices 0-1"),
        (_host("00000000", *HALVES), (0, 1, 6, 7), "no direct link joins 0-1 and 6-7", "--devices 0-3"),
        (_host("00001111", *HALVES), (4, 5), "", ""),
        (_host("00001111"), (0, 1, 2, 3, 4, 5, 6, 7), "", ""),  # all of them
    ],
)
def test_devices_of_two_places_are_told_where_others_are_together(
    host: Facts, chosen: tuple[int, ...], because: str, use: str
) -> None:
    notices = _distant(host, chosen, chosen)

    assert [notice.id for notice in notices] == (["PLAN-141"] if because else [])
    assert all(because in notice.values["because"] and use in notice.values["use"] for notice in notices)


@pytest.mark.parametrize(
    ("env", "warned"),
    [
        ({"CUDA_VISIBLE_DEVICES": "3,4"}, True),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, True),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, False),
        ({}, False),
    ],
)
def test_a_variable_of_the_runtime_chooses_too(env: Mapping[str, str], warned: bool) -> None:
    assert bool(_distant(_host("01"), None, (0, 1), **env)) == warned


def test_engines_of_one_device_wait_for_no_other() -> None:
    assert _distant(_host("01"), (0, 1), (0,), (1,)) == []


def test_checks_of_a_plan_are_of_the_devices_of_one_engine() -> None:
    host = _host("00001111")

    assert [device.number for device in narrow_to_engine(host, _uses((4, 5), (1,))).devices] == [4, 5]
    assert narrow_to_engine(host, ()) is host


def test_a_card_that_no_engine_uses_is_not_the_oldest() -> None:
    host = _host("0000")
    kinds = ("7.0", "9.0", "10.0", "9.0")
    cards = [device._replace(architecture=kinds[device.number]) for device in host.devices]
    capabilities = {"compute_capability": "7.0", "compute_capability_highest": "10.0"}
    host = host._replace(devices=tuple(cards), versions={"driver": "580.1", **capabilities})

    assert narrow_to_engine(host, _uses((1, 2))).versions == {**host.versions, "compute_capability": "9.0"}
    assert narrow_to_engine(host, _uses((0,))).versions["compute_capability_highest"] == "7.0"


@pytest.mark.parametrize(("words", "needed"), [(("-tp", "1"), False), (("-tp", "8"), True)])
def test_one_gaudi2e_needs_no_rights_and_network_cards_for_more(words: tuple[str, ...], needed: bool) -> None:
    profile: dict[str, Any] = expect.profile_of("habana-gaudi2e-untuned")
    host = expect.read("habana-gaudi2e-untuned", profile)
    plan = make_serve_plan(profile, host, LLAMA, parse_user_flags((LLAMA.name, *words), {}))
    capabilities = {finding.expected for finding in plan.findings if finding.id == "RUN-003"}

    assert ("HPU-012" in {finding.id for finding in plan.findings}) == needed
    assert ({"IPC_LOCK", "SYS_PTRACE"} <= capabilities) == needed
