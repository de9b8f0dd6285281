"""The known answer of a topology: which pairs answered, and whether the KV cache really travelled."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from drydock.core.paths import ROOT
from drydock.topology import verify
from drydock.topology.answer_program import make_answer_program
from drydock.topology.plan_model import TopologyPlan
from entrypoints.core.errors import USAGE, WRONG_ANSWER
from entrypoints.core.metrics import sum_metric
from entrypoints.serve import topology_answer
from entrypoints.serve.topology_answer import KnownTopology, ShownAnswers, Unproven
from tests.support import topologies
from tests.support.fake_topology import BLOCK, TOKENS_OF_A_NUMBER, Servers

ENTRYPOINT = (str(ROOT / "entrypoints"),)
P0, P1, D0 = "10.2.0.10:20000", "10.2.0.11:20000", "10.2.0.12:20000"


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_answer, "COUNTED", 0.0)


@pytest.fixture
def servers() -> Servers:
    fake_servers = Servers()
    fake_servers.routes = D0
    return fake_servers


def prove(servers: Any, plan: TopologyPlan | None = None) -> ShownAnswers:
    return topology_answer.prove_servers(
        KnownTopology.of(verify.make_servers_question(plan or topologies.disaggregated()), servers)
    )


def failure(servers: Any) -> str:
    with pytest.raises(Unproven) as raised:
        prove(servers)
    return "\n".join((*raised.value.problems, *raised.value.right))


def test_every_pair_and_the_router_are_asked(servers: Servers) -> None:
    proof = prove(servers)

    assert [(pair.prefill, pair.decode) for pair in proof.pairs] == [
        ("prefills-0-0", "decodes-0-0"),
        ("prefills-1-0", "decodes-0-0"),
    ]
    assert proof.router
    assert proof.router.decode == "decodes-0-0"
    assert all(pair.transferred == pair.tokens > 2 * BLOCK for pair in (*proof.pairs, proof.router))


def test_a_prompt_is_longer_than_two_blocks_and_never_the_same(servers: Servers) -> None:
    prove(servers)
    questions = [question for base, question in servers.asked if base == D0]
    lengths = {len(question["prompt"].split(", ")) * TOKENS_OF_A_NUMBER for question in questions}

    assert min(lengths) > 2 * BLOCK
    assert max(lengths) < 4 * BLOCK
    assert len({question["cache_salt"] for question in questions}) == len(questions)


def test_a_decode_server_gets_what_the_prefill_server_told(servers: Servers) -> None:
    prove(servers)
    first, decode_question = (
        next(q for base, q in servers.asked if base == url and "kv_transfer_params" in q) for url in (P0, D0)
    )

    assert first["kv_transfer_params"]["do_remote_decode"]
    assert first["max_tokens"] == 1
    assert decode_question["kv_transfer_params"] == {"remote_engine_id": "e", "do_remote_prefill": True}
    assert decode_question["prompt"] == first["prompt"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alone": {D0}}, "prefills-1-0 → decodes-0-0: decodes-0-0 computed the prompt itself: it got 0 of "),
        ({"wrong": {P1}}, "prefills-1-0 → decodes-0-0: wrong answer"),
        ({"lead": 0.5}, "leads by less than 1 nat"),
        ({"tells": False}, "does not tell where its KV cache is"),
        ({"down": {P1}}, "known answer: http://10.2.0.11:20000/metrics: no answer"),
        ({"routes": ""}, "router: decodes-0-0 computed the prompt itself"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_topology_with_a_fault_is_not_ready(servers: Servers, change: dict[str, Any], message: str) -> None:
    vars(servers).update(change)

    assert message in failure(servers)


def test_the_right_pairs_are_named_too(servers: Servers) -> None:
    servers.wrong.add(P1)

    assert failure(servers).endswith("\nprefills-0-0 → decodes-0-0")


def test_servers_of_whole_requests_answer_alone(servers: Servers) -> None:
    proof = prove(servers, topologies.two_nodes())

    assert proof.alone == ("big-0-0",)
    assert proof.pairs == ()


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"choices": []}', b'{"choices": [{"logprobs": 3}]}', b"\xff"])
def test_any_other_shape_of_an_answer_is_no_answer(servers: Servers, body: bytes) -> None:
    def ask(url: str, question: object = None, seconds: float = 1.0) -> object:
        reply = servers(url, question, seconds)  # type: ignore[arg-type] - passed on
        return reply._replace(body=body) if url.startswith(f"http://{D0}/v1") else reply

    assert "decodes-0-0" in failure(ask)


# --- services of a cluster ------------------------------------------------------------------------------------------


def service(count: int) -> dict[str, Any]:
    return {"role": "serve", "name": "whole", "host": "whole-api", "port": 20000, "count": count}


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a name is known by."""
    service_addresses = ["10.9.0.2", "10.9.0.1"]
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 20000)) for address in service_addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer)
    return service_addresses


def test_each_address_of_a_service_is_a_server(addresses: list[str], servers: Servers) -> None:
    proof = topology_answer.prove_servers(KnownTopology.of({"servers": [service(2)], "router": ""}, servers))

    assert proof.alone == tuple(f"whole {address}" for address in sorted(addresses))


@pytest.mark.usefixtures("addresses")
def test_fewer_servers_than_planned_are_not_enough(servers: Servers) -> None:
    with pytest.raises(Unproven, match=r"whole-api: found 2 ready servers \(10\.9\.0\.1, 10\.9\.0\.2\), expected 3"):
        KnownTopology.of({"servers": [service(3)], "router": ""}, servers)


def test_a_service_without_an_address_has_no_ready_server(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unproven, match=r"whole-api: no address: .*no server of whole is ready"):
        KnownTopology.of({"servers": [service(1)], "router": ""}, servers)


# --- what is printed ------------------------------------------------------------------------------------------------


def test_what_was_shown_is_a_line_for_each_pair_and_is_read_back(servers: Servers) -> None:
    proof = prove(servers, topologies.disaggregated(1, 1).model_copy(update={"router": None}))

    (pair,) = proof.pairs
    expected = f"{pair.tokens} of {pair.tokens} tokens of the prompt transferred"
    assert proof.text == f"prefills-0-0 → decodes-0-0: right, {expected}\n"
    assert ShownAnswers.read(json.loads(json.dumps(proof.json))) == proof


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([{"role": "serve", "name": "a\x1b[31m", "host": "127.0.0.1", "port": 1, "count": 0}], b"no answer"),
        ([], b"found no server to ask"),
    ],
)
def test_the_verb_and_the_program_for_older_images_say_the_same_and_their_exit_code_tells(
    servers: list[Any], message: bytes
) -> None:
    words = ("--topology", json.dumps({"servers": servers, "router": ""}))
    verb = run(*ENTRYPOINT, "health", *words)
    program = run("-", *words, program=make_answer_program())

    assert verb.returncode == program.returncode == WRONG_ANSWER
    assert message in verb.stderr
    assert verb.stderr == program.stderr
    assert b"\x1b" not in verb.stderr
    assert verb.stdout == program.stdout == b""


def test_what_is_wrong_is_json_too() -> None:
    result = run(*ENTRYPOINT, "health", "--json", "--topology", '{"servers": [], "router": ""}')
    assert result.returncode == WRONG_ANSWER
    assert json.loads(result.stdout) == {"problems": ["found no server to ask"], "right": []}
    assert result.stderr == b""


FAR_PORT = {"role": "serve", "name": "a", "host": "127.0.0.1", "port": 10**30, "count": 1}


@pytest.mark.parametrize(
    "question",
    [
        *("x", "[]", "{}", '{"servers": [3], "router": ""}', '{"servers": [{}], "router": ""}'),
        json.dumps({"servers": [FAR_PORT], "router": ""}),
    ],
)
def test_another_question_is_a_mistake_of_the_command_line(question: str) -> None:
    result = run(*ENTRYPOINT, "health", "--topology", question)
    assert result.returncode == USAGE
    assert b"--topology: not the question that drydock asks" in result.stderr
    assert b"Traceback" not in result.stderr


def run(*words: str, program: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-I", "-S", *words], input=program.encode(), capture_output=True, check=False, env={}
    )


# --- counters -------------------------------------------------------------------------------------------------------

TEXT = """\
# HELP vllm:prompt_tokens_by_source_total of
vllm:prompt_tokens_by_source_total{engine="0",model_name="a \\"b\\", c",source="external_kv_transfer"} 75.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="external_kv_transfer"} 1e2
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 102.0
vllm:prompt_tokens_by_source_created{engine="0",source="external_kv_transfer"} 1.7e9
vllm:cache_config_info{block_size="16",x="y"} 1.0
vllm:cache_config_info{block_size="128",x="y"} 1.0
vllm:num_requests_running 3
"""
RUNNING = "vllm:num_requests_running"


def test_counters_are_summed_over_engines() -> None:
    assert topology_answer.read_tokens_received(TEXT) == 175
    assert sum_metric(TEXT, RUNNING) == 3
    assert topology_answer.read_block_size(TEXT) == 128


def test_what_is_not_counted_has_no_sum() -> None:
    assert sum_metric("vllm:num_requests_running_created{} 1.0\n", RUNNING) is None
    assert topology_answer.read_tokens_received("") == 0
    assert topology_answer.read_block_size("") == topology_answer.USUAL_BLOCK


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running{engine=0} 1.0",
        'vllm:num_requests_running{engine="0" 1.0',
        'vllm:num_requests_running{engine="0"} NaN',
        'vllm:num_requests_running{engine="0"} inf',
        "vllm:num_requests_running x",
        f'vllm:num_requests_running{{engine="{"0" * 9000}"}} 1.0',
    ],
)
def test_a_line_of_another_shape_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"no labels|no number|a line of"):
        sum_metric(line, RUNNING)


def test_lines_of_other_metrics_are_not_read() -> None:
    assert sum_metric("vllm:num_requests_running_by_x{broken\n", RUNNING) is None
