"""The known answer of a topology: which pairs answered, and whether the KV cache really travelled."""

from __future__ import annotations

import pytest

from drydock.core.errors import RolloutError
from drydock.topology.rollout import known
from tests.support import topologies
from tests.support.fake_topology import BLOCK, TOKENS_OF_A_NUMBER, Servers

P0, P1, D0 = "10.2.0.10:20000", "10.2.0.11:20000", "10.2.0.12:20000"


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "COUNTED", 0.0)


@pytest.fixture
def servers() -> Servers:
    found = Servers()
    found.routes = D0
    return found


def failure(servers: Servers) -> str:
    with pytest.raises(RolloutError) as raised:
        known.prove(topologies.disaggregated(), {}, servers)
    return str(raised.value)


def test_every_pair_and_the_router_are_asked(servers: Servers) -> None:
    shown = known.prove(topologies.disaggregated(), {}, servers)

    assert [(pair.prefill, pair.decode) for pair in shown.pairs] == [
        ("prefills-0-0", "decodes-0-0"),
        ("prefills-1-0", "decodes-0-0"),
    ]
    assert shown.router
    assert shown.router.decode == "decodes-0-0"
    assert all(pair.transferred == pair.tokens > 2 * BLOCK for pair in (*shown.pairs, shown.router))


def test_a_prompt_is_longer_than_two_blocks_and_never_the_same(servers: Servers) -> None:
    known.prove(topologies.disaggregated(), {}, servers)
    asked = [question for base, question in servers.asked if base == D0]
    lengths = {len(question["prompt"].split(", ")) * TOKENS_OF_A_NUMBER for question in asked}

    assert min(lengths) > 2 * BLOCK
    assert max(lengths) < 4 * BLOCK
    assert len({question["cache_salt"] for question in asked}) == len(asked)


def test_a_decode_server_gets_what_the_prefill_server_told(servers: Servers) -> None:
    known.prove(topologies.disaggregated(), {}, servers)
    first, told = (
        next(q for base, q in servers.asked if base == each and "kv_transfer_params" in q) for each in (P0, D0)
    )

    assert first["kv_transfer_params"]["do_remote_decode"]
    assert first["max_tokens"] == 1
    assert told["kv_transfer_params"] == {"remote_engine_id": "e", "do_remote_prefill": True}
    assert told["prompt"] == first["prompt"]


def test_a_decode_server_that_computes_prompts_itself_is_not_ready(servers: Servers) -> None:
    servers.alone.add(D0)
    text = failure(servers)

    assert text.count("decodes-0-0 computed the prompt itself: it got 0 of ") == 2
    assert "prefills-1-0 → decodes-0-0" in text


def test_an_answer_that_differs_is_wrong_and_the_right_pairs_are_named(servers: Servers) -> None:
    servers.wrong.add(P1)
    text = failure(servers)

    assert "prefills-1-0 → decodes-0-0: wrong answer" in text
    assert "other pairs: prefills-0-0 → decodes-0-0 right" in text


def test_near_ties_are_not_compared(servers: Servers) -> None:
    servers.lead = 0.5

    assert "leads by less than 1 nat" in failure(servers)


def test_a_prefill_server_without_a_connector_is_named(servers: Servers) -> None:
    servers.tells = False

    assert "does not tell where its KV cache is" in failure(servers)


def test_a_pair_that_cannot_be_reached_is_named(servers: Servers) -> None:
    servers.down.add(P1)
    with pytest.raises(RolloutError, match=r"known answer: http://10\.2\.0\.11:20000/metrics: no answer"):
        known.prove(topologies.disaggregated(), {}, servers)


def test_a_router_that_sends_prompts_to_decode_servers_only_is_not_ready(servers: Servers) -> None:
    servers.routes = ""
    text = failure(servers)

    assert text.startswith("router: decodes-0-0 computed the prompt itself")


def test_servers_are_asked_where_this_machine_reaches_them(servers: Servers) -> None:
    servers.routes = "172.20.0.4:20000"
    reach = {"n0": "172.20.0.2", "n1": "172.20.0.3", "n2": "172.20.0.4"}
    known.prove(topologies.disaggregated(), reach, servers)

    assert {base for base, _ in servers.asked} == {f"172.20.0.{n}:20000" for n in (2, 3, 4)} | {"172.20.0.4:30000"}


def test_servers_of_whole_requests_answer_alone(servers: Servers) -> None:
    shown = known.prove(topologies.two_nodes(), {}, servers)

    assert shown.alone == ("big-0-0",)
    assert shown.pairs == ()


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"choices": []}', b'{"choices": [{"logprobs": 3}]}', b"\xff"])
def test_any_other_shape_of_an_answer_is_no_answer(servers: Servers, body: bytes) -> None:
    def ask(url: str, question: object = None, seconds: float = 1.0) -> object:
        reply = servers(url, question, seconds)  # type: ignore[arg-type] - passed on
        return reply._replace(body=body) if url.startswith(f"http://{D0}/v1") else reply

    with pytest.raises(RolloutError, match="decodes-0-0"):
        known.prove(topologies.disaggregated(), {}, ask)  # type: ignore[arg-type] - as above
