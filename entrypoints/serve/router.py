"""vllm-router with API keys: clients must send one of them, and the servers get it. IO.

vllm-router 0.1.17 checks no key itself. It asks an address about each key that it has not seen, for every path, also
/readiness; its command line cannot name that address. In its mode for prefill and decode it sends OPENAI_API_KEY to the
servers, otherwise what the client sent. So this process answers at an address of its own, and the router is its child:
the router keeps Python's lock, so no thread of its process could answer.
Sources: vllm-router src/server.rs (authorize_request), src/lib.rs; drydock, measured with it.
"""

from __future__ import annotations

import hmac
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from entrypoints.request.access import parse_keys
from entrypoints.request.flags import API_KEY_VARIABLE

_START = """\
import sys
from vllm_router.launch_router import launch_router, parse_router_args
arguments = parse_router_args(sys.argv[2:])
arguments.api_key_validation_urls = [sys.argv[1]]
launch_router(arguments)
"""
_SIGNALLED = 128


def run_router(words: Sequence[str], env: Mapping[str, str], python: str) -> int:
    """Run vllm-router with the keys in VLLM_API_KEY, and return its exit code. `python` is its interpreter.

    The servers get the first key. Raises USAGE for a variable without a key.
    """
    keys = parse_keys(env[API_KEY_VARIABLE], API_KEY_VARIABLE)
    checker = ThreadingHTTPServer(("127.0.0.1", 0), _make_key_checker(keys))
    threading.Thread(target=checker.serve_forever, daemon=True).start()
    command = [python, "-I", "-c", _START, f"http://127.0.0.1:{checker.server_port}/", *words]
    router = subprocess.Popen(command, env={**env, "OPENAI_API_KEY": keys[0]})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: router.send_signal(number))
    code = router.wait()
    return code if code >= 0 else _SIGNALLED - code


def _make_key_checker(keys: Iterable[str]) -> type[BaseHTTPRequestHandler]:
    """Return what answers 200 to one of the keys, and 401 to others."""
    expected = [f"Bearer {key}".encode() for key in keys]

    class Checker(BaseHTTPRequestHandler):
        timeout = 5  # seconds, also for a program of this machine that connects and says nothing

        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "").encode("latin-1", "replace")
            matches = sum(
                hmac.compare_digest(authorization, header) for header in expected
            )  # all of them, as in the guard
            self.send_response(200 if matches else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing of keys."""

    return Checker
