"""Servers of a topology as a function that answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from entrypoints.serve.topology_answer import NoAnswer, Reply

BLOCK = 32
TOKENS_OF_A_NUMBER = 6
ROUTERS = 30000
"""The first port of routers."""


class Servers:
    """Answers as prefill, decode and router of any plan do; faults are set by address."""

    def __init__(self) -> None:
        self.moved: dict[str, int] = {}
        """Server → tokens that it got from others."""
        self.down: set[str] = set()
        """Beginnings of addresses that do not answer."""
        self.alone: set[str] = set()
        """Decode servers that compute prompts themselves."""
        self.wrong: set[str] = set()
        """Servers with another answer."""
        self.lead = 5.0
        self.tells = True
        """Whether prefill servers tell where their KV cache is."""
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.routes = ""
        """The decode server that routers choose."""

    def __call__(self, url: str, question: Mapping[str, Any] | None = None, seconds: float = 10.0) -> Reply:
        assert seconds > 0
        base, _, path = url.removeprefix("http://").partition("/")
        if any(base.startswith(prefix) for prefix in self.down):
            raise NoAnswer("ConnectionError")
        if path == "v1/models":
            return Reply(200, json.dumps({"data": [{"id": "m"}]}).encode())
        if path == "metrics":
            return Reply(200, self.metrics(base).encode())
        assert path == "v1/completions", path
        self.asked.append((base, dict(question or {})))
        return Reply(200, json.dumps(self.complete(base, dict(question or {}))).encode())

    def metrics(self, base: str) -> str:
        return (
            "# TYPE vllm:prompt_tokens_by_source_total counter\n"
            'vllm:prompt_tokens_by_source_total{engine="0",source="external_kv_transfer"} '
            f"{self.moved.get(base, 0)}.0\n"
            'vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 9000.0\n'
            f'vllm:cache_config_info{{block_size="{BLOCK}",cache_dtype="auto"}} 1.0\n'
            'vllm:num_requests_running{engine="0"} 0.0\n'
        )

    def complete(self, base: str, question: dict[str, Any]) -> dict[str, Any]:
        numbers = [int(word) for word in question["prompt"].rstrip(",").split(", ")]
        transfer = question.get("kv_transfer_params") or {}
        if transfer.get("do_remote_decode"):
            return {"kv_transfer_params": {"remote_engine_id": "e", "do_remote_prefill": True} if self.tells else None}
        prompt = len(numbers) * TOKENS_OF_A_NUMBER
        decode = base if transfer else self.routes if int(base.rpartition(":")[2]) >= ROUTERS else ""
        if decode and decode not in self.alone:
            self.moved[decode] = self.moved.get(decode, 0) + prompt
        following = 7 if base in self.wrong else numbers[-1] + 1
        tokens = [" ", *str(following)]
        best = [{token: -0.1, "other": -0.1 - self.lead} for token in tokens]
        likely = {"tokens": tokens, "token_logprobs": [-0.1] * len(tokens), "top_logprobs": best}
        return {"choices": [{"text": "".join(tokens), "logprobs": likely}], "usage": {"prompt_tokens": prompt}}
