"""Asks servers of a topology over HTTP. Every answer is bounded in size and time, whoever gives it. IO."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import requests

from drydock.core.files import loads
from drydock.core.http import Session, pieces, reason
from drydock.run.access import API_KEY

LARGEST = 4 << 20
"""Bytes of an answer; the metrics of a server with eight engines have 0.5 MB."""
CONNECT = 5.0
"""Seconds for a connection between machines of one network."""
OK = 200


class NoAnswer(Exception):  # noqa: N818 - a server that is starting gives none
    """A server cannot be reached, or answers too slowly, too much, or not in JSON."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode(errors="replace")

    def json(self) -> dict[str, Any]:
        """Return the body as an object. Raises NoAnswer."""
        try:
            value = loads(self.body)
        except ValueError as error:
            raise NoAnswer(f"an answer that is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise NoAnswer(f"an answer that is no JSON object: {type(value).__name__}")
        return value


class AskHttp(Protocol):
    """Asks one question."""

    def __call__(self, url: str, question: Mapping[str, Any] | None = None, seconds: float = 10.0) -> Reply:
        """GET an address, or POST a question to it. Raises NoAnswer."""


def ask(url: str, question: Mapping[str, Any] | None = None, seconds: float = 10.0) -> Reply:
    """Return a server's answer within `seconds`, without proxies and redirects. Raises NoAnswer.

    It sends VLLM_API_KEY, if that is set, as drydock's own renders give it to the servers.
    """
    end = time.monotonic() + seconds
    key = os.environ.get(API_KEY)
    with Session() as session:
        session.trust_env = False
        session.longest_wait = seconds
        try:
            response = session.request(
                "GET" if question is None else "POST",
                url,
                json=question,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                stream=True,
                allow_redirects=False,
                timeout=(min(CONNECT, seconds), seconds),
            )
            return Reply(response.status_code, _body(response, end))
        except requests.RequestException as error:
            raise NoAnswer(reason(error)) from error


def _body(response: requests.Response, end: float) -> bytes:
    body = bytearray()
    for piece in pieces(response):
        body += piece
        if len(body) > LARGEST:
            raise NoAnswer(f"an answer of more than {LARGEST >> 20} MiB")
        if time.monotonic() > end:
            raise NoAnswer("an answer that does not end in time")
    return bytes(body)
