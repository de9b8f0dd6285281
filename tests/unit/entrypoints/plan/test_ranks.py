"""What each of several hosts runs: flags, environment, Ray, and what of the user's words reaches vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.records import RankPlan, ServePlan
from entrypoints.plan import plan_text
from entrypoints.plan.plan import make_serve_plan
from entrypoints.plan.ranks import HEAD
from entrypoints.request.arguments import Options
from entrypoints.request.flags import GROUP_SECRET
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.serve.launch import prepare_host, run_first
from tests.evidence import ranks_page
from tests.evidence.ranks_page import Cluster
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA, SMOLLM2

PROFILES = {name: expect.profile_of(name) for name in ("cuda-h100-8x", "cpu-xeon8380-2s", "openvino-xeon8380-2s")}
FACTS = {name: expect.read(name, profile) for name, profile in PROFILES.items()}
KNOWN = ("--model", "--tensor-parallel-size", "--distributed-executor-backend")
"""Flags of a vLLM that has no --nnodes."""


def plan(host: str, *flags: str, known: tuple[str, ...] = (), model: Any = LLAMA, **env: str) -> ServePlan:
    user_flags = parse_user_flags((model.name, *flags), env, known)
    return make_serve_plan(PROFILES[host], FACTS[host], model, user_flags)


def reasons(serve_plan: ServePlan) -> dict[str, str]:
    return {reason.setting: reason.because for reason in serve_plan.reasons}


def words(rank: RankPlan) -> str:
    return " ".join(rank.argv)


def test_one_host_has_no_ranks() -> None:
    assert plan("cuda-h100-8x").ranks == ()
    assert "rank 0:" not in plan_text.format_plan_text(plan("cuda-h100-8x"))


def test_every_host_is_shown_as_text_and_as_json() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2", "--master-addr", "10.0.0.1")

    text = plan_text.format_plan_text(serve_plan)
    assert text.index("rank 0:") < text.index("rank 1:")
    assert [rank["rank"] for rank in plan_text.make_plan_document(serve_plan)["ranks"]] == [0, 1]


def test_secrets_are_redacted_in_every_rank() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2", "--api-key", "abcdef123456")

    assert "abcdef123456" not in plan_text.format_plan_text(serve_plan)


def test_a_rank_without_a_server_is_started_by_the_module_that_has_headless() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.1")

    assert serve_plan.argv[1:5] == ("-m", "vllm.entrypoints.cli.main", "serve", LLAMA.name)
    assert "--model" not in serve_plan.argv
    assert "--headless" in serve_plan.argv
    assert "vllm.entrypoints.openai.api_server" in words(serve_plan.ranks[0])
    assert serve_plan.stall == 0


def test_the_rank_that_the_user_selects_is_the_plan_itself() -> None:
    for rank in range(3):
        serve_plan = plan("cuda-h100-8x", "--nnodes=3", "-r", str(rank), "--master-addr", "h", model=SMOLLM2)

        assert serve_plan.argv == serve_plan.ranks[rank].argv
        assert [serve_plan.ranks[other_rank].argv.count("-r") for other_rank in range(3)] == [
            int(other_rank == rank) for other_rank in range(3)
        ]


def test_an_impossible_rank_is_an_error() -> None:
    with pytest.raises(EntrypointError, match="expected a rank from 0 to 1"):
        plan("cuda-h100-8x", "--nnodes", "2", "--node-rank", "2")


def test_a_missing_address_is_a_finding_and_has_a_placeholder() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2")
    addressed_plan = plan("cuda-h100-8x", "--nnodes", "2", "--master-addr", "10.0.0.1")
    engines = plan("cuda-h100-8x", "--nnodes", "2", "-dp", "16", "--data-parallel-address", "10.0.0.1")

    assert f"--master-addr {HEAD}" in words(serve_plan.ranks[1])
    assert {finding.id for finding in serve_plan.findings} >= {"PLAN-120", "PLAN-121"}
    assert "PLAN-121" not in {finding.id for finding in (*addressed_plan.findings, *engines.findings)}


def test_reports_without_a_secret_are_a_finding() -> None:
    user_flags = parse_user_flags((LLAMA.name, "--nnodes", "2"), {})
    for settings, expected in (
        (user_flags, True),
        (user_flags._replace(env={GROUP_SECRET: "s" * 16}), False),
        (user_flags._replace(signs=True), False),
    ):
        serve_plan = make_serve_plan(PROFILES["cuda-h100-8x"], FACTS["cuda-h100-8x"], LLAMA, settings)
        assert ("PLAN-122" in {finding.id for finding in serve_plan.findings}) == expected


def test_a_server_is_not_started_without_the_first_hosts_address() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2", "--node-rank", "1")

    with pytest.raises(EntrypointError, match="--nnodes 2: the address of the first host is not given") as raised:
        prepare_host(serve_plan, PROFILES["cuda-h100-8x"], FACTS["cuda-h100-8x"], {}, Options())
    assert (raised.value.code, raised.value.hint) == (USAGE, "give the same --master-addr ADDRESS on every host")


def test_the_first_hosts_own_address_is_set_if_it_is_a_number() -> None:
    numbered = plan("cuda-h100-8x", "--nnodes", "2", "--master-addr", "10.0.0.1").ranks
    rank_plans = plan("cuda-h100-8x", "--nnodes", "2", "--master-addr", "node0").ranks

    assert [rank.env.get("VLLM_HOST_IP") for rank in numbered] == ["10.0.0.1", None]
    assert [rank.env.get("VLLM_HOST_IP") for rank in rank_plans] == [None, None]


def test_every_communicator_gets_the_users_interface() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2", NCCL_SOCKET_IFNAME="ib0")

    assert serve_plan.env["GLOO_SOCKET_IFNAME"] == "ib0"
    assert "NCCL_SOCKET_IFNAME, which" in reasons(serve_plan)["GLOO_SOCKET_IFNAME"]
    assert plan("cuda-h100-8x", "--nnodes", "2").env["NCCL_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize(
    ("cluster", "counted", "interface"),
    [
        (Cluster("habana-gaudi3-8x", 2, ranks_page.DEEPSEEK + ranks_page.BFLOAT16), (), "HCCL_SOCKET_IFNAME"),
        (Cluster("enflame-s60-8x", 4, ranks_page.R1_AWQ), ("--num-gpus", "8"), "ECCL_SOCKET_IFNAME"),
    ],
)
def test_ray_starts_the_ranks_where_the_platform_needs_it(
    cluster: Cluster, counted: tuple[str, ...], interface: str
) -> None:
    serve_plan = ranks_page.plan(cluster, ranks_page.models()[cluster.model], "--master-addr", "10.0.0.1")
    head, worker = serve_plan.ranks[:2]

    assert serve_plan.before == head.before
    assert head.before[0][3:] == ("start", "--head", "--port", "6379", "--node-ip-address", "10.0.0.1", *counted)
    assert "--distributed-executor-backend ray" in words(head)
    assert worker.argv[3:] == ("start", "--address", "10.0.0.1:6379", *counted, "--block")
    assert worker.env[interface] == "eth0"


def test_vllm_does_not_get_the_number_of_hosts_with_ray() -> None:
    model = ranks_page.models()[ranks_page.DEEPSEEK + ranks_page.BFLOAT16]
    serve_plan = ranks_page.plan(Cluster("habana-gaudi3-8x", 2, ""), model, "--master-addr", "h", "--node-rank", "0")

    assert not {"--nnodes", "--node-rank", "--master-addr", "--master-port"} & set(serve_plan.argv)


def test_flags_of_several_hosts_are_accepted_where_vllm_has_none() -> None:
    user_flags = parse_user_flags(("m", "--nnodes", "2", "--node-rank=1", "--master-addr", "h"), {}, KNOWN)

    assert user_flags.number("--nnodes") == 2
    with pytest.raises(EntrypointError, match="unknown flag --nnode"):
        parse_user_flags(("m", "--nnode-count", "2"), {}, KNOWN)


def test_a_command_that_must_end_first_ends_before_vllm_starts(tmp_path: Path) -> None:
    there = tmp_path / "there"
    run_first(("/usr/bin/touch", str(there)), {})

    assert there.exists()
    with pytest.raises(EntrypointError, match="exit code 1, expected 0"):
        run_first(("/bin/false",), {})
    with pytest.raises(EntrypointError, match="cannot be run"):
        run_first(("/no/such",), {})


def test_cpus_share_heads_over_hosts() -> None:
    serve_plan = plan("cpu-xeon8380-2s", "--nnodes", "2")

    assert "--tensor-parallel-size 4" in words(serve_plan.ranks[0])
    assert serve_plan.env["VLLM_CPU_OMP_THREADS_BIND"].count("|") == 1
    with pytest.raises(EntrypointError, match="not divisible by 2"):
        plan("cpu-xeon8380-2s", "--nnodes", "2", model=SMOLLM2)


def test_every_host_has_a_server_behind_the_users_load_balancer() -> None:
    serve_plan = plan("cuda-h100-8x", "--nnodes", "2", "--node-rank", "1", "-dp", "16", "--data-parallel-hybrid-lb")

    assert "--headless" not in serve_plan.argv
    assert serve_plan.argv[2] == "vllm.entrypoints.openai.api_server"
    assert serve_plan.stall > 0


def test_an_image_for_one_host_refuses_several() -> None:
    with pytest.raises(EntrypointError, match="this image serves a model on one host only"):
        plan("openvino-xeon8380-2s", "--nnodes", "2", model=SMOLLM2)
