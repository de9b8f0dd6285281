"""The verb `health --topology`: the known answer of a topology, of each prefill server with each decode server. IO.

A pair is asked as vllm-router asks it: the prefill server computes the prompt and tells where its KV cache is; the
decode server gets that with the same prompt. The answer must be what the prefill server says by itself, and the decode
server's counter of tokens from other servers must rise by more than two blocks: a decode server that computes prompts
itself answers right too (vllm-project/vllm#26896). Then the router is asked.

The prompt counts upwards, because each next number depends on all that was read and leads by far. Tokens are compared
up to the first one that leads by less than a nat: nearer ones can change places when bfloat16 rounds. Sources: vLLM
docs, features, nixl_connector_usage; drydock, measured with vLLM 0.32, nixl 1.5.1 and SmolLM2-135M.

`topology verify` imports this file; a Job in a cluster and `docker compose exec` run the verb in an image. The question
is what `KnownTopology.of` reads, as JSON; VLLM_API_KEY is the key of the servers. Every answer is bounded in size and
time, whoever gives it.
"""

from __future__ import annotations

import json
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from entrypoints.core.errors import OK, USAGE, WRONG_ANSWER, EntrypointError
from entrypoints.core.metrics import parse_samples, sum_metric
from entrypoints.core.text import emit_text, tell_user
from entrypoints.serve.client import Reply, Unreachable, find_flag_value, first_key, parse_url, send_request

HTTP_OK = 200
FLAG = "--topology"
SECONDS = 300.0
"""For one answer: the first request can compile kernels. As PATIENCE in known_answer.py."""
CONNECT = 5.0
"""Seconds for a connection between machines of one network."""
LARGEST = 4 << 20
"""Bytes of an answer; the metrics of a server with eight engines have 0.5 MB."""
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
REMOTE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router sends to a prefill server (vLLM 0.32, examples/online_serving; vllm-router 0.1.17)."""


class NoAnswer(Exception):  # noqa: N818 - a server that is starting gives none
    """A server cannot be reached, or answers too slowly, too much, or not in JSON."""


class WrongAnswer(Exception):  # noqa: N818 - an answer, not an error of this program
    """An answer is wrong, or missing."""


class Unproven(Exception):  # noqa: N818 - as above
    """Servers do not answer right. `problems` has a line for each, `right` what answered."""

    def __init__(self, problems: Sequence[str], right: Sequence[str] = ()) -> None:
        super().__init__(*problems)
        self.problems, self.right = tuple(problems), tuple(right)

    @property
    def json(self) -> dict[str, Any]:
        """Return both as a JSON object."""
        return {"problems": [*self.problems], "right": [*self.right]}


class Pair(NamedTuple):
    """A prefill and a decode server that answered together."""

    prefill: str
    """Empty for the way through the router, which chooses."""
    decode: str
    tokens: int
    """Of the prompt."""
    transferred: int
    """How many of them the decode server got from the prefill server."""
    answer: str

    @property
    def line(self) -> str:
        """Say what was shown."""
        way = f"{self.prefill or 'router'} → {self.decode}"
        return f"{way}: right, {self.transferred} of {self.tokens} tokens of the prompt transferred"


class ShownAnswers(NamedTuple):
    """What was asked and answered."""

    pairs: tuple[Pair, ...] = ()
    alone: tuple[str, ...] = ()
    """Servers that answer whole requests, and did."""
    router: Pair | None = None
    block: int = 0
    """Tokens of a block."""

    @property
    def text(self) -> str:
        """Return a line for each pair and server."""
        pairs = (pair.line for pair in (*self.pairs, *([self.router] if self.router else [])))
        return "".join(f"{line}\n" for line in (*pairs, *(f"{name}: answers right" for name in self.alone)))

    @property
    def json(self) -> dict[str, Any]:
        """Return everything as a JSON object; `read` reads it back."""
        router = self.router._asdict() if self.router else None
        return {**self._asdict(), "pairs": [pair._asdict() for pair in self.pairs], "router": router}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> ShownAnswers:
        """Return what `json` returned. Raises LookupError and TypeError."""
        router = Pair(**record["router"]) if record["router"] else None
        return cls(tuple(Pair(**pair) for pair in record["pairs"]), tuple(record["alone"]), router, record["block"])


# --- servers over HTTP ----------------------------------------------------------------------------------------------


Ask = Callable[[str, "Mapping[str, Any] | None", float], Reply]
"""GETs an address, or POSTs a question to it, within so many seconds. Raises NoAnswer."""


def ask_server(url: str, question: Mapping[str, Any] | None = None, seconds: float = 10.0, *, key: str = "") -> Reply:
    """Return a server's answer within `seconds`, without proxies and redirects. Raises NoAnswer.

    `key`: the API key that it sends, if the server requires one.
    """
    try:
        endpoint, path = parse_url(url)
        endpoint = endpoint._replace(key=key, connect_seconds=CONNECT, has_request_ids=False)
        reply = send_request(endpoint, path, question, seconds, most=LARGEST + 1)
    except Unreachable as error:
        raise NoAnswer(error.reason) from error
    except ValueError as error:
        raise NoAnswer(str(error)) from error
    if len(reply.body) > LARGEST:
        raise NoAnswer(f"an answer of more than {LARGEST >> 20} MiB")
    return reply


def parse_reply(reply: Reply) -> dict[str, Any]:
    """Return an answer as an object. Raises NoAnswer."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"an answer that is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise NoAnswer(f"an answer that is no JSON object: {type(value).__name__}")
    return value


class KnownServer(NamedTuple):
    """A server that answers requests."""

    role: str
    """prefill, decode or serve."""
    name: str
    url: str


class KnownTopology:
    """The servers of a topology and its router, asked with one key."""

    def __init__(self, servers: Sequence[KnownServer], router: str, ask: Ask) -> None:
        self.servers, self.router, self._ask = tuple(servers), router, ask

    @classmethod
    def of(cls, question: Mapping[str, Any], ask: Ask) -> KnownTopology:
        """Return the servers of a JSON object: `servers` with role, name, host, port and count; `router`, a URL.

        With a count, the host has an address for each of so many servers, such as a headless Service. Raises Unproven.
        """
        servers = [server for entry in question["servers"] for server in _resolve_servers(entry)]
        return cls(servers, question["router"], ask)

    def of_role(self, role: str) -> tuple[KnownServer, ...]:
        """Return the servers of a role."""
        return tuple(server for server in self.servers if server.role == role)

    def metrics(self, server: KnownServer) -> str:
        """Return a server's metrics. Raises WrongAnswer."""
        return self._answered(f"{server.url}/metrics", None).text

    def model(self, server: KnownServer) -> str:
        """Return the name of the served model. Raises WrongAnswer."""
        served = self.post(f"{server.url}/v1/models", None).get("data")
        if not (isinstance(served, list) and served and isinstance(served[0], dict) and served[0].get("id")):
            raise WrongAnswer("/v1/models names no model")
        return str(served[0]["id"])

    def post(self, address: str, question: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the answer to a question as JSON. Raises WrongAnswer."""
        try:
            return parse_reply(self._answered(address, question))
        except NoAnswer as error:
            raise WrongAnswer(f"{address}: {error}") from error

    def _answered(self, address: str, question: Mapping[str, Any] | None) -> Reply:
        try:
            reply = self._ask(address, question, SECONDS)
        except NoAnswer as error:
            raise WrongAnswer(f"{address}: no answer: {error}") from error
        if reply.status != HTTP_OK:
            raise WrongAnswer(f"{address}: {reply.status} {reply.text[:300]}")
        return reply


def _resolve_servers(entry: Mapping[str, Any]) -> Iterator[KnownServer]:
    """Yield the servers behind a host's name. Raises Unproven if they are not as many as expected."""
    role, name, host, port, count = (entry[key] for key in ("role", "name", "host", "port", "count"))
    if not count:
        yield KnownServer(role, name, make_server_url(host, port))
        return
    try:
        answers = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise Unproven([f"{host}: no address: {error}; no server of {name} is ready"]) from error
    addresses = sorted({str(answer[4][0]) for answer in answers})
    if len(addresses) != count:
        raise Unproven([f"{host}: found {len(addresses)} ready servers ({', '.join(addresses)}), expected {count}"])
    yield from (KnownServer(role, f"{name} {address}", make_server_url(address, port)) for address in addresses)


def make_server_url(host: str, port: int) -> str:
    """Return the URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# --- counters -------------------------------------------------------------------------------------------------------

BY_SOURCE = "vllm:prompt_tokens_by_source_total"
CACHE = "vllm:cache_config_info"
USUAL_BLOCK = 128
"""Tokens of a block where a server does not tell it: the largest usual size (CPU, Gaudi, Ascend)."""


def read_tokens_received(text: str) -> float:
    """Return how many tokens of prompts came from other servers. Raises ValueError."""
    return sum_metric(text, BY_SOURCE, source="external_kv_transfer") or 0.0


def read_block_size(text: str) -> int:
    """Return the tokens of one block. Raises ValueError."""
    sizes = [sample.labels.get("block_size", "") for sample in parse_samples(text, (CACHE,))]
    return max((int(size[:6]) for size in sizes if size.isdigit()), default=USUAL_BLOCK)


# --- prefill and decode ---------------------------------------------------------------------------------------------


def prove_servers(topology: KnownTopology) -> ShownAnswers:
    """Ask every pair of prefill and decode, or every server, and then the router.

    Raises Unproven with every pair that does not answer, answers wrong or moves nothing.
    """
    prefills, decodes = topology.of_role("prefill"), topology.of_role("decode")
    if prefills and decodes:
        return _prove_pairs(topology, prefills, decodes)
    return _prove_whole_servers(topology, topology.of_role("serve"))


def _prove_pairs(
    topology: KnownTopology, prefills: Sequence[KnownServer], decodes: Sequence[KnownServer]
) -> ShownAnswers:
    try:
        model = topology.model(prefills[0])
        block = max(read_block_size(topology.metrics(server)) for server in (*prefills, *decodes))
        count = _count_prompt_numbers(topology, prefills[0], model, BLOCKS * block)
    except (WrongAnswer, ValueError) as error:
        raise Unproven([f"known answer: {error}"]) from error
    pairs, problems = [], []
    for prefill in prefills:
        for decode in decodes:
            try:
                pairs.append(_prove_pair(topology, (prefill, decode), _make_question(model, count), BLOCKS * block))
            except (WrongAnswer, ValueError) as error:
                problems.append(f"{prefill.name} → {decode.name}: {error}")
    through = None
    if topology.router and not problems:
        try:
            through = _prove_router(topology, prefills[0], decodes, _make_question(model, count), BLOCKS * block)
        except (WrongAnswer, ValueError) as error:
            problems.append(f"router: {error}")
    if problems:
        raise Unproven(problems, [f"{pair.prefill} → {pair.decode}" for pair in pairs])
    return ShownAnswers(pairs=tuple(pairs), router=through, block=block)


def _prove_pair(
    topology: KnownTopology, pair: tuple[KnownServer, KnownServer], question: Mapping[str, Any], least: int
) -> Pair:
    """Ask one pair. Raises WrongAnswer."""
    prefill, decode = pair
    before = _ask_tokens_received(topology, decode)
    first = {**question, "max_tokens": 1, "min_tokens": 1, "logprobs": None, "kv_transfer_params": REMOTE}
    where = topology.post(f"{prefill.url}/v1/completions", first).get("kv_transfer_params")
    if not isinstance(where, dict):
        raise WrongAnswer("the prefill server does not tell where its KV cache is (kv_transfer_params)")
    answer = _ask_completion(topology, decode.url, {**question, "kv_transfer_params": where})
    reference = _ask_completion(topology, prefill.url, question)
    _check_same(answer, reference)
    (moved,) = _wait_for_rises(topology, {decode: before}, least).values()
    _check_moved(moved, answer.prompt, least, decode.name)
    return Pair(prefill.name, decode.name, answer.prompt, int(moved), answer.text)


def _prove_router(
    topology: KnownTopology,
    prefill: KnownServer,
    decodes: Sequence[KnownServer],
    question: Mapping[str, Any],
    least: int,
) -> Pair:
    """Ask through the router. Raises WrongAnswer."""
    before = {decode: _ask_tokens_received(topology, decode) for decode in decodes}
    answer = _ask_completion(topology, topology.router, question)
    _check_same(answer, _ask_completion(topology, prefill.url, question))
    rises = _wait_for_rises(topology, before, least)
    moved = sum(rises.values())
    _check_moved(moved, answer.prompt, least, " or ".join(decode.name for decode in decodes))
    chosen = max(rises, key=lambda server: rises[server])
    return Pair("", chosen.name, answer.prompt, int(moved), answer.text)


def _check_same(answer: Answer, reference: Answer) -> None:
    """Raise WrongAnswer if an answer is not the one that the prefill server gives by itself."""
    sure = next((place for place, lead in enumerate(reference.leads) if lead < NAT), len(reference.leads))
    if not sure:
        raise WrongAnswer(f"nothing to compare: the first token of {reference.text!r} leads by less than {NAT:g} nat")
    if len(answer.tokens) != len(reference.tokens) or answer.tokens[:sure] != reference.tokens[:sure]:
        raise WrongAnswer(f"wrong answer: {answer.text!r}, but the prefill server by itself says {reference.text!r}")


def _check_moved(moved: float, prompt: int, least: int, decode: str) -> None:
    if prompt <= least:
        raise WrongAnswer(f"the prompt had {prompt} tokens, expected more than two blocks, {least}")
    if moved < least:
        text = f"{decode} computed the prompt itself: it got {moved:.0f} of {prompt} tokens from a prefill server"
        raise WrongAnswer(f"{text} ({BY_SOURCE}, source external_kv_transfer)")


def _wait_for_rises(
    topology: KnownTopology, before: Mapping[KnownServer, float], least: int
) -> dict[KnownServer, float]:
    """Return how much each server's counter rose, after waiting for the rise that is expected of all together."""
    end = time.monotonic() + COUNTED
    while True:
        rises = {server: _ask_tokens_received(topology, server) - count for server, count in before.items()}
        if sum(rises.values()) >= least or time.monotonic() > end:
            return rises
        time.sleep(0.2)


def _ask_tokens_received(topology: KnownTopology, server: KnownServer) -> float:
    return read_tokens_received(topology.metrics(server))


# --- whole requests -------------------------------------------------------------------------------------------------


def _prove_whole_servers(topology: KnownTopology, servers: Sequence[KnownServer]) -> ShownAnswers:
    """Ask servers that answer whole requests, and the router. Raises Unproven."""
    if not servers:
        raise Unproven(["found no server to ask"])
    problems, alone = [], []
    for server in servers:
        try:
            question = _make_question(topology.model(server), FIRST)
            reference = _ask_completion(topology, server.url, question)
            if topology.router:
                _check_same(_ask_completion(topology, topology.router, question), reference)
            alone.append(server.name)
        except WrongAnswer as error:
            problems.append(f"{server.name}: {error}")
    if problems:
        raise Unproven(problems, alone)
    return ShownAnswers(alone=tuple(alone))


# --- questions ------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """A greedy answer."""

    text: str
    tokens: tuple[str, ...]
    leads: tuple[float, ...]
    """By how much each token leads, in nats."""
    prompt: int
    """Tokens of the prompt."""


def _make_question(model: str, count: int) -> dict[str, Any]:
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


def _count_prompt_numbers(topology: KnownTopology, server: KnownServer, model: str, least: int) -> int:
    """Return how many numbers a prompt of more than `least` tokens has. Raises WrongAnswer."""
    tokens = _ask_completion(topology, server.url, {**_make_question(model, FIRST), "max_tokens": 1}).prompt
    if tokens < FIRST:
        raise WrongAnswer(f"a prompt of {FIRST} numbers has {tokens} tokens, expected one for each number at least")
    return math.ceil((least + 1) * FIRST / tokens) + 2


def _ask_completion(topology: KnownTopology, address: str, question: Mapping[str, Any]) -> Answer:
    """Return a server's answer. Raises WrongAnswer for one of another shape."""
    response = topology.post(f"{address}/v1/completions", question)
    try:
        choice = response["choices"][0]
        likely = choice["logprobs"]
        tokens = tuple(str(token) for token in likely["tokens"])
        leads = tuple(map(_compute_lead, tokens, likely["token_logprobs"], likely["top_logprobs"]))
        return Answer(str(choice["text"]), tokens, leads, int(response["usage"]["prompt_tokens"]))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise WrongAnswer(f"{address}: an answer of another shape: {error!r}") from error


def _compute_lead(token: str, logprob: float, best: Mapping[str, float]) -> float:
    """Return by how many nats a token leads; 0 if nothing tells the next one."""
    other_logprobs = [float(value) for name, value in best.items() if name != token]
    return float(logprob) - max(other_logprobs) if other_logprobs else 0.0


# --- the verb -------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Ask the topology of --topology, and print what was shown; with --json as JSON, also what is wrong. Raises USAGE.

    Return 0, or WRONG_ANSWER.
    """
    as_json = "--json" in argv
    ask = partial(ask_server, key=first_key(env))
    try:
        answers = prove_servers(_read_question(find_flag_value(argv, FLAG), ask))
    except Unproven as error:
        if as_json:
            emit_text(f"{json.dumps(error.json)}\n")
        else:
            tell_user("\n".join((*error.problems, *(f"{name}: right" for name in error.right))))
        return WRONG_ANSWER
    emit_text(f"{json.dumps(answers.json)}\n" if as_json else answers.text)
    return OK


def _read_question(text: str, ask: Ask) -> KnownTopology:
    """Return the servers that the words of the command line name. Raises USAGE and Unproven."""
    try:
        return KnownTopology.of(json.loads(text), ask)
    except (LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise EntrypointError(
            USAGE, f"{FLAG}: not the question that drydock asks: {error!r}", "use `topology verify`, which writes it"
        ) from error
