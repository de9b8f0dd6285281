"""The known answer of a topology: each prefill server with each decode server, and the way through the router. IO.

A pair is asked as vllm-router asks it: the prefill server computes the prompt and tells where its KV cache is; the
decode server gets that with the same prompt. The answer must be what the prefill server says by itself, and the decode
server's counter of tokens from other servers must rise by more than two blocks: a decode server that computes prompts
itself answers right too (vllm-project/vllm#26896).

The prompt counts upwards, because each next number depends on all that was read and leads by far. Tokens are compared
up to the first one that leads by less than a nat: nearer ones can change places when bfloat16 rounds. Sources: vLLM
docs, features, nixl_connector_usage; drydock, measured with vLLM 0.32, nixl 1.5.1 and SmolLM2-135M.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from drydock.core.errors import RolloutError
from drydock.model.record import Record
from drydock.run.container import name_of
from drydock.topology.planned import Replica, TopologyPlan
from drydock.topology.ports import API
from drydock.topology.rollout import metrics, slices
from drydock.topology.rollout.asking import OK, AskHttp, NoAnswer, Reply
from drydock.topology.rollout.asking import ask as ask_over_http
from drydock.topology.rollout.ready import router_url
from drydock.topology.words import url

SECONDS = 300.0
"""For one answer: the first request can compile kernels. As entrypoints/serve/health.py, PATIENCE."""
TOKENS = 12
"""Of an answer: two or three numbers."""
NAT = 1.0
"""Natural logarithm of how many times likelier a token must be than the next one to be compared."""
COUNTED = 5.0
"""Seconds until a counter must have risen: vLLM tells its counters with the next step of the engine."""
NUMBERS = range(1000, 8000)
"""Where a count begins: numbers of four digits have the same number of tokens."""
FIRST = 16
"""Numbers of the question that tells how many tokens a number has."""
BLOCKS = 2
ASKED_FOR = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router sends to a prefill server (vLLM 0.32, examples/online_serving; vllm-router 0.1.17)."""


class Pair(Record):
    """A prefill and a decode server that answered together."""

    prefill: str
    """Empty for the way through the router, which chooses."""
    decode: str
    tokens: int
    """Of the prompt."""
    transferred: int
    """How many of them the decode server got from the prefill server."""
    answer: str


class ShownAnswers(Record):
    """What was asked and answered."""

    pairs: tuple[Pair, ...] = ()
    alone: tuple[str, ...] = ()
    """Servers that answer whole requests, and did."""
    router: Pair | None = None
    block: int = 0
    """Tokens of a block."""


class Answer(NamedTuple):
    """A greedy answer."""

    text: str
    tokens: tuple[str, ...]
    leads: tuple[float, ...]
    """By how much each token leads, in nats."""
    prompt: int
    """Tokens of the prompt."""


class Wrong(Exception):  # noqa: N818 - an answer, not an error of this program
    """An answer is wrong, or missing."""


class Asker:
    """Asks the servers of one plan."""

    def __init__(self, plan: TopologyPlan, reach: Mapping[str, str], ask: AskHttp = ask_over_http) -> None:
        self.plan, self._reach, self._ask = plan, reach, ask

    def url(self, server: Replica) -> str:
        """Return the address of a server's API."""
        rank = server.ranks[0]
        return url(self._reach.get(name_of(rank.node), rank.address), rank.ports[API])

    def router(self) -> str:
        """Return the router's address; empty without one."""
        return router_url(self.plan, self._reach)

    def metrics(self, server: Replica) -> str:
        """Return a server's metrics. Raises Wrong."""
        return self._answered(f"{self.url(server)}/metrics", None).text

    def model(self, server: Replica) -> str:
        """Return the name of the served model. Raises Wrong."""
        served = self.post(f"{self.url(server)}/v1/models", None).get("data")
        if not (isinstance(served, list) and served and isinstance(served[0], dict) and served[0].get("id")):
            raise Wrong("/v1/models names no model")
        return str(served[0]["id"])

    def post(self, address: str, question: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the answer to a question as JSON. Raises Wrong."""
        try:
            return self._answered(address, question).json()
        except NoAnswer as error:
            raise Wrong(f"{address}: {error}") from error

    def _answered(self, address: str, question: Mapping[str, Any] | None) -> Reply:
        try:
            reply = self._ask(address, question, SECONDS)
        except NoAnswer as error:
            raise Wrong(f"{address}: no answer: {error}") from error
        if reply.status != OK:
            raise Wrong(f"{address}: {reply.status} {reply.text[:300]}")
        return reply


def prove(plan: TopologyPlan, reach: Mapping[str, str], ask: AskHttp = ask_over_http) -> ShownAnswers:
    """Ask every pair of prefill and decode, or every server, and then the router. `reach`: node → address.

    Raises RolloutError with every pair that does not answer, answers wrong or moves nothing.
    """
    asker = Asker(plan, reach, ask)
    prefills, decodes = (slices.servers(plan, role) for role in ("prefill", "decode"))
    if prefills and decodes:
        return _disaggregated(asker, prefills, decodes)
    return _whole(asker, slices.servers(plan, "serve"))


# --- prefill and decode ---------------------------------------------------------------------------------------------


def _disaggregated(asker: Asker, prefills: Sequence[Replica], decodes: Sequence[Replica]) -> ShownAnswers:
    try:
        model = asker.model(prefills[0])
        block = max(metrics.block_size(asker.metrics(server)) for server in (*prefills, *decodes))
        count = _numbers(asker, prefills[0], model, BLOCKS * block)
    except (Wrong, ValueError) as error:
        raise RolloutError(f"known answer: {error}") from error
    pairs, problems = [], []
    for prefill in prefills:
        for decode in decodes:
            try:
                pairs.append(_pair(asker, (prefill, decode), _question(model, count), BLOCKS * block))
            except (Wrong, ValueError) as error:
                problems.append(f"{slices.server_name(prefill)} → {slices.server_name(decode)}: {error}")
    through = None
    if asker.router() and not problems:
        try:
            through = _through(asker, prefills[0], decodes, _question(model, count), BLOCKS * block)
        except (Wrong, ValueError) as error:
            problems.append(f"router: {error}")
    if problems:
        hint = "`./inv topology logs FILE` shows what the servers say; other pairs: " + (
            ", ".join(f"{pair.prefill} → {pair.decode} right" for pair in pairs) or "none right"
        )
        raise RolloutError(*problems, hint=hint)
    return ShownAnswers(pairs=tuple(pairs), router=through, block=block)


def _pair(asker: Asker, pair: tuple[Replica, Replica], question: Mapping[str, Any], least: int) -> Pair:
    """Ask one pair. Raises Wrong."""
    prefill, decode = pair
    before = _transferred(asker, (decode,))
    asked = {**question, "max_tokens": 1, "min_tokens": 1, "logprobs": None, "kv_transfer_params": ASKED_FOR}
    where = asker.post(f"{asker.url(prefill)}/v1/completions", asked).get("kv_transfer_params")
    if not isinstance(where, dict):
        raise Wrong("the prefill server does not tell where its KV cache is (kv_transfer_params)")
    found = _complete(asker, asker.url(decode), {**question, "kv_transfer_params": where})
    own = _complete(asker, asker.url(prefill), question)
    _check_same(found, own)
    moved = _rise(asker, (decode,), before, least)
    _check_moved(moved, found.prompt, least, slices.server_name(decode))
    names = {"prefill": slices.server_name(prefill), "decode": slices.server_name(decode)}
    return Pair(**names, tokens=found.prompt, transferred=int(moved), answer=found.text)


def _through(
    asker: Asker, prefill: Replica, decodes: Sequence[Replica], question: Mapping[str, Any], least: int
) -> Pair:
    """Ask through the router. Raises Wrong."""
    before = {slices.server_name(each): _transferred(asker, (each,)) for each in decodes}
    found = _complete(asker, asker.router(), question)
    _check_same(found, _complete(asker, asker.url(prefill), question))
    moved = _rise(asker, decodes, sum(before.values()), least)
    names = [slices.server_name(each) for each in decodes]
    _check_moved(moved, found.prompt, least, " or ".join(names))
    rises = {
        slices.server_name(each): _transferred(asker, (each,)) - before[slices.server_name(each)] for each in decodes
    }
    chosen = max(rises, key=lambda name: rises[name])
    return Pair(prefill="", decode=chosen, tokens=found.prompt, transferred=int(moved), answer=found.text)


def _check_same(found: Answer, own: Answer) -> None:
    """Raise Wrong if an answer is not the one that the prefill server gives by itself."""
    sure = next((place for place, lead in enumerate(own.leads) if lead < NAT), len(own.leads))
    if not sure:
        raise Wrong(f"nothing to compare: the first token of {own.text!r} leads by less than {NAT:g} nat")
    if len(found.tokens) != len(own.tokens) or found.tokens[:sure] != own.tokens[:sure]:
        raise Wrong(f"wrong answer: {found.text!r}, but the prefill server by itself says {own.text!r}")


def _check_moved(moved: float, prompt: int, least: int, decode: str) -> None:
    if prompt <= least:
        raise Wrong(f"the prompt had {prompt} tokens, expected more than two blocks, {least}")
    if moved < least:
        text = f"{decode} computed the prompt itself: it got {moved:.0f} of {prompt} tokens from a prefill server"
        raise Wrong(f"{text} (vllm:prompt_tokens_by_source_total, source external_kv_transfer)")


def _rise(asker: Asker, decodes: Sequence[Replica], before: float, least: int) -> float:
    """Return how much the counters rose, after waiting for the rise that is expected."""
    end = time.monotonic() + COUNTED
    while (moved := _transferred(asker, decodes) - before) < least and time.monotonic() < end:
        time.sleep(0.2)
    return moved


def _transferred(asker: Asker, decodes: Sequence[Replica]) -> float:
    return sum(metrics.transferred(asker.metrics(each)) or 0.0 for each in decodes)


# --- whole requests -------------------------------------------------------------------------------------------------


def _whole(asker: Asker, servers: Sequence[Replica]) -> ShownAnswers:
    """Ask servers that answer whole requests, and the router. Raises RolloutError."""
    problems, alone = [], []
    for server in servers:
        try:
            question = _question(asker.model(server), FIRST)
            own = _complete(asker, asker.url(server), question)
            if asker.router():
                _check_same(_complete(asker, asker.router(), question), own)
            alone.append(slices.server_name(server))
        except Wrong as error:
            problems.append(f"{slices.server_name(server)}: {error}")
    if problems:
        raise RolloutError(*problems, hint="`./inv topology logs FILE` shows what the servers say")
    return ShownAnswers(alone=tuple(alone))


# --- questions ------------------------------------------------------------------------------------------------------


def _question(model: str, count: int) -> dict[str, Any]:
    """Return a question that no server has seen: a count from a random number, in a prefix cache of its own."""
    first = NUMBERS[secrets.randbelow(len(NUMBERS))]
    return {
        "model": model,
        "prompt": ", ".join(map(str, range(first, first + count))) + ",",
        "max_tokens": TOKENS,
        "temperature": 0,
        "seed": 0,
        "top_p": 1,
        "top_k": 0,
        "repetition_penalty": 1,
        "logprobs": 2,
        "ignore_eos": True,
        "cache_salt": secrets.token_hex(16),
    }


def _numbers(asker: Asker, server: Replica, model: str, least: int) -> int:
    """Return how many numbers a prompt of more than `least` tokens has. Raises Wrong."""
    asked = {**_question(model, FIRST), "max_tokens": 1}
    tokens = _complete(asker, asker.url(server), asked).prompt
    if tokens < FIRST:
        raise Wrong(f"a prompt of {FIRST} numbers has {tokens} tokens, expected one for each number at least")
    return ceil((least + 1) * FIRST / tokens) + 2


def _complete(asker: Asker, address: str, question: Mapping[str, Any]) -> Answer:
    """Return a server's answer. Raises Wrong for one of another shape."""
    found = asker.post(f"{address}/v1/completions", question)
    try:
        choice = found["choices"][0]
        likely = choice["logprobs"]
        tokens = tuple(str(token) for token in likely["tokens"])
        leads = tuple(map(_lead, tokens, likely["token_logprobs"], likely["top_logprobs"]))
        return Answer(str(choice["text"]), tokens, leads, int(found["usage"]["prompt_tokens"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Wrong(f"{address}: an answer of another shape: {error!r}") from error


def _lead(token: str, own: float, best: Mapping[str, float]) -> float:
    """Return by how many nats a token leads; 0 if nothing tells the next one."""
    others = [float(value) for name, value in best.items() if name != token]
    return float(own) - max(others) if others else 0.0
