"""What real servers in the test cluster answer. IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.support.kubernetes.cluster import Answer
from tests.support.kubernetes.space import Space

START_WITHIN = 400.0
"""Seconds. On two idle cores a real server takes half a minute."""


def base_of(space: Space, service: str) -> str:
    """Return the URL of a service."""
    spec = space.get("service", service)["spec"]
    return f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}"


def asking(model: str, text: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 8}


def chat(space: Space, base: str, question: Mapping[str, Any], key: str = "") -> str:
    """Ask a server or a router from the first node, until kube-proxy and the router know the servers."""
    answers: list[Answer] = []

    def answered() -> bool:
        answers.append(space.cluster.ask("node1", f"{base}/v1/chat/completions", key=key, data=question))
        return answers[-1].status == 200

    try:
        space.until(answered, "an answer")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{answers[-1]}") from None
    return str(json.loads(answers[-1].text)["choices"][0]["message"]["content"])
