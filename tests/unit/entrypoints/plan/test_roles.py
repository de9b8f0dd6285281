"""Prefill and decode: the connector of the stack, NIXL's ports, and what is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import ServePlan
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.arguments import parse_arguments
from entrypoints.request.roles import Role, parse_role
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import SMOLLM2

HOST = "cpu-xeon8380-2s"
PROFILE = expect.profile_of(HOST)
FACTS = expect.read(HOST, PROFILE)
CONNECTOR = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
WAY: dict[str, Any] = {
    "connector": "NixlConnector",
    "config": {"kv_buffer_device": "cpu"},
    "prefill": "kv_producer",
    "decode": "kv_consumer",
    "load_failure": "fail",
    "interfaces": ["UCX_NET_DEVICES"],
    "env": {"UCX_TLS": {"value": "tcp,self,sm", "because": "no RDMA", "source": "tests"}},
    "serve": {"--block-size": {"value": 32, "because": "both must agree", "source": "tests"}},
    "because": "the connector of the tests",
    "source": "tests",
}


def plan(
    role: Role, *flags: str, way: dict[str, Any] = WAY, stall: float | None = None, env: dict[str, str] | None = None
) -> ServePlan:
    user_flags = parse_user_flags((SMOLLM2.name, *flags), env or {})._replace(role=role)
    profile = {**PROFILE, "kv_transfer": way}
    return make_serve_plan(profile, FACTS, SMOLLM2, user_flags, stall=stall)


def value(serve_plan: ServePlan, name: str) -> str:
    return serve_plan.argv[len(serve_plan.argv) - 1 - serve_plan.argv[::-1].index(name) + 1]


def reason(serve_plan: ServePlan, name: str) -> Any:
    return next(item for item in serve_plan.reasons if item.setting == name)


def ids(serve_plan: ServePlan) -> set[str]:
    return {finding.id for finding in serve_plan.findings}


@pytest.mark.parametrize(("role", "kind"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_a_role_gets_its_connector_and_what_happens_to_a_failed_load(role: str, kind: str) -> None:
    serve_plan = plan(Role(role, "10.0.0.2"))

    assert json.loads(value(serve_plan, "--kv-transfer-config")) == {
        **CONNECTOR,
        "kv_role": kind,
        "kv_load_failure_policy": "fail",
    }
    assert (serve_plan.env["UCX_TLS"], serve_plan.env["UCX_NET_DEVICES"]) == ("tcp,self,sm", "eth0")
    assert value(serve_plan, "--block-size") == "32"
    assert serve_plan.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.2"
    assert serve_plan.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert "the connector of the tests (tests)" in reason(serve_plan, "--kv-transfer-config").because


def test_a_server_without_a_role_has_no_connector() -> None:
    serve_plan = plan(Role())

    assert "--kv-transfer-config" not in serve_plan.argv
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" not in serve_plan.env
    assert not ids(serve_plan) & {"PLAN-130", "PLAN-131", "PLAN-132"}


@pytest.mark.parametrize("way", [{}, {**WAY, "connector": None, "because": "no build of NIXL"}])
def test_a_stack_without_a_published_way_is_an_error(way: dict[str, Any]) -> None:
    why = ": no build of NIXL" if way else ""
    with pytest.raises(EntrypointError, match=f"--role decode: no way to split .* is published for cpu.*{why}"):
        plan(Role("decode"), way=way)


def test_a_connector_that_must_know_all_servers_is_an_error() -> None:
    way = {**WAY, "config": {"kv_connector_extra_config": {"decode": {"dp_size": "{decode_dp}"}}}}
    with pytest.raises(EntrypointError, match=r"needs what only a plan of all servers knows: \{decode_dp\}"):
        plan(Role("decode"), way=way)


def test_a_vllm_that_refuses_the_policy_does_not_get_it() -> None:
    serve_plan = plan(Role("prefill", "10.0.0.2"), way={**WAY, "load_failure": None})

    assert "kv_load_failure_policy" not in value(serve_plan, "--kv-transfer-config")
    assert "PLAN-130" not in ids(serve_plan)


def test_what_the_user_sets_wins_and_is_told() -> None:
    users = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    for way in (WAY, {}):
        serve_plan = plan(Role("prefill", "10.0.0.2", 6000), "--kv-transfer-config", users, way=way)

        assert value(serve_plan, "--kv-transfer-config") == users
        assert serve_plan.argv.count("--kv-transfer-config") == 1
        assert reason(serve_plan, "--kv-transfer-config").origin == "command line"
        assert serve_plan.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "6000"
        assert "PLAN-130" in ids(serve_plan)
    assert "PLAN-130" not in ids(plan(Role("prefill", "10.0.0.2")))


def test_a_handshake_on_localhost_is_a_finding() -> None:
    assert "PLAN-131" in ids(plan(Role("prefill")))
    assert "PLAN-131" not in ids(plan(Role("prefill", "10.0.0.2")))
    serve_plan = plan(Role("prefill"), env={"VLLM_HOST_IP": "10.0.0.3"})
    assert serve_plan.env["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "10.0.0.3"
    assert "PLAN-131" not in ids(plan(Role("prefill"), env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.3"}))


def test_a_lease_that_ends_before_the_longest_wait_is_a_finding_of_the_decode_server() -> None:
    assert "PLAN-132" in ids(plan(Role("decode", "10.0.0.2")))
    assert "PLAN-132" in ids(plan(Role("decode", "10.0.0.2"), stall=0))
    assert "PLAN-132" not in ids(plan(Role("decode", "10.0.0.2"), stall=30))
    assert "PLAN-132" not in ids(plan(Role("prefill", "10.0.0.2")))
    longer = {**WAY, "config": {"kv_connector_extra_config": {"kv_lease_duration": 9000}}}
    assert "PLAN-132" not in ids(plan(Role("decode", "10.0.0.2"), way=longer))


def test_every_rank_of_several_hosts_has_the_connector() -> None:
    serve_plan = plan(Role("prefill", "10.0.0.2"), "--nnodes", "3", "--master-addr", "10.0.0.1")

    assert ["--kv-transfer-config" in rank.argv for rank in serve_plan.ranks] == [True, True, True]


def test_roles_are_parsed() -> None:
    words = ("serve", "m", "--role", "prefill", "--side-channel-host", "h", "--side-channel-port=5700")
    assert parse_arguments(words).role == Role("prefill", "h", 5700)
    for flags in ({"--role": "both"}, {"--side-channel-port": "0"}, {"--side-channel-port": "65536"}):
        with pytest.raises(EntrypointError):
            parse_role(flags)
    with pytest.raises(EntrypointError, match="need a role"):
        plan(Role(port=1))
