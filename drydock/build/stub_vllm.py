"""The vLLM of a stand-in image: prints its command line and environment, and serves no model. Runs in the image.

Without STUB_VLLM it fails like many a vLLM without a device: no step of a build needs one that starts. With
STUB_VLLM=serve it then answers /health, /v1/models and /v1/chat/completions, so that the server becomes ready.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

if not os.environ.get("STUB_VLLM"):
    raise RuntimeError("Failed to infer device type")

ANSWER = "Paris. This is a stand-in: it has no model, and answers every question so."
"""The entrypoint asks some models for France's capital before it reports ready."""
IDLE = 'vllm:num_requests_running{engine="0"} 0.0\n'
"""Tells the supervisor that it need not wait before it stops the server."""
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")


def describe_start() -> dict[str, Any]:
    """Return what this was started with, without secrets."""
    env = {name: "***" if SECRET.search(name) else value for name, value in os.environ.items()}
    return {"argv": sys.argv, "executable": sys.executable, "env": env}


def read_option(name: str, default: str) -> str:
    """Return the value of an option of the command line."""
    words = [part for word in sys.argv for part in ([*word.split("=", 1)] if word.startswith(f"{name}=") else [word])]
    return words[words.index(name) + 1] if name in words[:-1] else default


class Handler(BaseHTTPRequestHandler):
    """Answers without a model."""

    def log_message(self, *_: object) -> None:
        """Write no line for each request."""

    def do_GET(self) -> None:
        """Answer health, the running requests and the list of models."""
        model = read_option("--served-model-name", read_option("--model", "stub"))
        models = {"object": "list", "data": [{"id": model}]}
        self.answer({"/health": {}, "/metrics": IDLE, "/v1/models": models}.get(self.path))

    def do_POST(self) -> None:
        """Answer every chat alike."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chat = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}}]}
        self.answer({"/v1/chat/completions": chat}.get(self.path))

    def answer(self, body: object) -> None:
        """Send text or JSON; nothing is 404."""
        key, authorization = os.environ.get("VLLM_API_KEY"), self.headers.get("Authorization")
        closed = key and self.path not in {"/health", "/metrics"} and authorization != f"Bearer {key}"
        reply = (
            {"error": {"message": "a stand-in has no such path, or needs the key"}} if body is None or closed else body
        )
        data = (reply if isinstance(reply, str) else json.dumps(reply)).encode()
        self.send_response(404 if body is None else 401 if closed else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    print(json.dumps(describe_start()), flush=True)  # noqa: T201 - what a stand-in is for
    if os.environ["STUB_VLLM"] == "serve":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        ThreadingHTTPServer((read_option("--host", ""), int(read_option("--port", "8000"))), Handler).serve_forever()
