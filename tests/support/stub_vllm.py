"""Stands in for vLLM's api_server: the same endpoints, flags and end, with tokens that count upwards.

What it answers and when it ends was copied from vLLM 0.32.0 (launchers/launcher.py, completion/protocol.py): SIGTERM
aborts running requests, or with --shutdown-timeout finishes them and answers new ones with 500, and exits 0.
`STUB` in the environment, a JSON object of Behaviour's fields, makes it misbehave.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

MODEL = "stub"
PROMPT_IDS = [1, 2, 3]


class Behaviour(NamedTuple):
    delay: float = 0.0
    """Seconds until it listens."""
    waits_for: str = ""
    """Listens only once this file exists. So rank 0's vLLM waits for those of the other ranks."""
    token_delay: float = 0.0
    """Seconds for each token of a stream."""
    capital: str = "Paris"
    """What it answers in a chat."""
    disagree_by: float = 0.0
    """How much more likely another token is in prefill."""
    dies_with: int = -1
    """Exit code at the start; -1 for staying."""
    refuses: str = ""
    """Raises this sentence in the function in which vLLM checks its configuration."""
    ignores_sigterm: bool = False
    orphan: str = ""
    """Leave a process of a session of its own behind, and write its pid to this file."""
    generates: bool = True
    fails_with: int = 0
    """Every completion is answered with this status."""
    counts: bool = True
    """/metrics tells running requests."""
    fails_first: int = 0
    """So many completions are answered with 500 before they work."""
    engine: bool = False
    """Has an engine core: a process whose title is VLLM::EngineCore, without which nothing is generated."""
    hangs: str = ""
    """Has an engine core of Python, which waits in a collective for ever once this file exists."""
    looks_every: float = 5.0
    """Seconds from the end of the engine core to this process's own, with 0 (VLLM_WATCHDOG_TIME_S)."""
    reports: bool = True
    """Its gauges tell of requests while the engine core hangs; vLLM's do only if it hung after they had begun."""
    metrics: str = ""
    """How /metrics misbehaves: `drip` sends a byte at a time, `huge` sends 1 GB, `moved` redirects."""
    headless_code: int = 0
    """Exit code of a headless rank after its worker has ended."""
    expires: int = 0
    """Requests whose KV cache expired, as /metrics counts them once something was generated."""
    maps: str = ""
    """Maps this file into the engine core's memory, as a loader of weights does."""
    compiles: bool = False
    """Keep a compiled graph below VLLM_CACHE_ROOT; die of one that is poisoned, as vLLM does of a broken pickle."""


BEHAVIOUR = Behaviour(**json.loads(os.environ.get("STUB", "{}")))


ENGINE = """
import os, sys, threading, time

def wait_for_all_reduce():
    threading.Lock().acquire() and threading.Event().wait()

def run_busy_loop():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    wait_for_all_reduce()

for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
run_busy_loop()
"""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    running = 0
    asked = 0
    tokens = 0
    reported = 0
    engine: subprocess.Popen[bytes] | None = None
    draining = False
    aborting = False
    failures_left = BEHAVIOUR.fails_first
    key = ""

    def generate_token(self, number: int = 1) -> None:
        """Count tokens, as soon as the engine core runs."""
        while self.engine and (hangs() or state_of(self.engine.pid) in ("T", "Z", "")):
            time.sleep(0.01)
        self.tokens += number

    def report(self) -> int:
        """Return the running requests as the engine core last told them."""
        if BEHAVIOUR.reports or not self.engine or state_of(self.engine.pid) != "T":
            self.reported = self.running
        return self.reported

    def server_bind(self) -> None:
        if self.address_family == socket.AF_UNIX:
            self.socket.bind(self.server_address)
        else:
            super().server_bind()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def address_string(self) -> str:
        return "client"

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {})
        elif self.path == "/asked":
            self.answer(200, str(self.server.asked))
        elif self.path == "/metrics" and BEHAVIOUR.metrics:
            self.send_odd_metrics()
        elif self.path == "/metrics":
            self.answer(200, metrics(self.server) if BEHAVIOUR.counts else "# nothing is counted\n")
        elif not self.authorized():
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": MODEL}]})
        else:
            self.answer(404, {"detail": "Not Found"})

    def send_odd_metrics(self) -> None:
        self.send_response(302 if BEHAVIOUR.metrics == "moved" else 200)
        self.send_header("Location", "/metrics")
        self.end_headers()
        size, pause = {"drip": (1, 0.05), "huge": (1 << 20, 0.0), "moved": (0, 0.0)}[BEHAVIOUR.metrics]
        for _ in range(1000 if size else 0):
            self.wfile.write(b"#" * size)
            time.sleep(pause)

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        if not self.authorized():
            self.answer(401, {"error": "Unauthorized"})
        elif BEHAVIOUR.fails_with:
            self.answer(BEHAVIOUR.fails_with, {})
        elif not BEHAVIOUR.generates:
            self.answer(404, {"detail": "Not Found"})
        elif question["model"] != MODEL:
            self.answer(404, {"error": {"message": f"The model `{question['model']}` does not exist."}})
        elif refuses():
            self.refuse()
        elif self.server.draining or self.server.failures_left:
            self.server.failures_left -= 1
            self.answer(500, {"error": {"message": "cannot schedule new futures after shutdown"}})
        else:
            self.server.running += 1
            try:
                self.generate(question)
            finally:
                self.server.running -= 1

    def generate(self, question: dict[str, Any]) -> None:
        if self.path == "/v1/chat/completions":
            message = {"role": "assistant", "content": f"The capital of France is {BEHAVIOUR.capital}."}
            self.answer(200, {"choices": [{"message": message}]})
        elif question.get("stream"):
            self.stream(question["max_tokens"])
        elif question.get("prompt_logprobs"):
            self.answer(200, {"choices": [{"prompt_logprobs": prefill(question["prompt"])}]})
        else:
            self.server.generate_token(question["max_tokens"])
            tokens = list(range(4, 4 + question["max_tokens"]))
            likely = {"token_logprobs": [-0.1 - BEHAVIOUR.disagree_by] * len(tokens)}
            ids = {"prompt_token_ids": PROMPT_IDS, "token_ids": tokens}
            self.answer(200, {"choices": [{"text": "4 5", "logprobs": likely, **ids}]})

    def stream(self, tokens: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for token in range(tokens):
            if self.server.aborting:
                return
            self.server.generate_token()
            self.wfile.write(f"data: {token}\n\n".encode())
            time.sleep(BEHAVIOUR.token_delay)
        self.wfile.write(b"data: [DONE]\n\n")

    def refuse(self) -> None:
        """Answer as drydock's middleware does, for which this stub has no place."""
        self.send_response(503)
        for name, value in (("Retry-After", "1"), ("Connection", "close"), ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def answer(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def authorized(self) -> bool:
        return not self.server.key or self.headers["Authorization"] == f"Bearer {self.server.key}"


def refuses() -> bool:
    """Tell whether the supervisor asked the middleware to refuse requests."""
    path = Path(os.environ.get("DRYDOCK_DRAINING") or "/no/such/file")
    return "--middleware" in sys.argv and path.exists() and path.stat().st_size > 0


def hangs() -> bool:
    """Tell whether the engine core waits for ever."""
    return bool(BEHAVIOUR.hangs) and Path(BEHAVIOUR.hangs).exists()


def state_of(pid: int) -> str:
    """Return a process's state: T is stopped, Z is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def start_engine(server: Server) -> None:
    """Start the engine core; vLLM shuts down, with 0, some time after it is gone."""
    command = ["VLLM::EngineCore", "600"]
    program = "/bin/sleep"
    if BEHAVIOUR.hangs:
        program = sys.executable
        command = ["VLLM::EngineCore", "-c", ENGINE, BEHAVIOUR.hangs]
    server.engine = engine = subprocess.Popen(command, executable=program)

    def look() -> None:
        engine.wait()
        time.sleep(BEHAVIOUR.looks_every)
        server.shutdown()

    threading.Thread(target=look, daemon=True).start()


def be_headless() -> int:
    """Do what a rank without a server does: no port, one worker, and an end some time after the worker's."""
    worker = subprocess.Popen(["VLLM::Worker_TP1", "600"], executable="/bin/sleep")

    def leave(*_: Any) -> None:
        worker.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if BEHAVIOUR.ignores_sigterm else leave)
    worker.wait()
    time.sleep(BEHAVIOUR.looks_every)
    return BEHAVIOUR.headless_code


def metrics(server: Server) -> str:
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{labels} {server.report():.1f}\n"
        f"vllm:generation_tokens_total{labels} {server.tokens:.1f}\n"
        f"vllm:num_requests_waiting{labels} 0.0\n"
        f"vllm:kv_cache_usage_perc{labels} 0.25\n"
        f"vllm:nixl_num_kv_expired_reqs_total{labels} {BEHAVIOUR.expires if server.tokens else 0:.1f}\n"
        f'vllm:num_requests_waiting_by_reason{{engine="0",model_name="{MODEL}",reason="capacity"}} 7.0\n'
    )


def prefill(tokens: list[int]) -> list[dict[str, Any] | None]:
    likely = -0.1 - BEHAVIOUR.disagree_by
    runner_up = {"99": {"logprob": -0.1, "rank": 2}}
    return [None, *({str(token): {"logprob": likely, "rank": 1}, **runner_up} for token in tokens[1:])]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--uds")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float16", "float32"))
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY", ""))
    parser.add_argument("--ssl-certfile")
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    return parser.parse_known_args()[0]


def create_engine_config(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


def of_vllm(function: Any, module: str = "vllm.engine.arg_utils") -> Callable[..., None]:
    return FunctionType(function.__code__, {"__name__": module}, argdefs=function.__defaults__)


def start_processes() -> None:
    if BEHAVIOUR.orphan:
        leave_an_orphan(BEHAVIOUR.orphan)
    if BEHAVIOUR.maps:
        map_weights(BEHAVIOUR.maps)


def leave_an_orphan(note: str) -> None:
    """Start a process through one that ends at once, so that its parent is gone."""
    sleeper = "import os, time; os.setsid(); open(os.environ['NOTE'], 'w').write(str(os.getpid())); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {sleeper!r}])"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "NOTE": note})


def listen(arguments: argparse.Namespace) -> Server:
    if arguments.uds:
        Server.address_family = socket.AF_UNIX
        server = Server(arguments.uds, Handler)
    else:
        server = Server((arguments.host, arguments.port), Handler)
    if arguments.ssl_certfile:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(arguments.ssl_certfile)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.key = arguments.api_key
    return server


def end(server: Server, patience: float) -> None:
    """Do what vLLM does upon SIGTERM."""
    server.draining, server.aborting = True, patience == 0
    deadline = time.monotonic() + patience
    while server.running and time.monotonic() < deadline:
        time.sleep(0.01)
    server.aborting = True
    server.shutdown()


def map_weights(path: str) -> None:
    """Start a process with a title of vLLM's that maps a file."""
    read = "file = open(sys.argv[1], 'rb'); mapping = mmap.mmap(file.fileno(), 0, prot=1)"
    code = f"import mmap, sys, time; {read}; time.sleep(60)"
    subprocess.Popen(["VLLM::Loader", "-c", code, path], executable=sys.executable)


def compile_graph() -> Behaviour:
    """Use the graph that is there, or make it; return how a server with it behaves."""
    graph = Path(os.environ["VLLM_CACHE_ROOT"]) / "torch_compile_cache" / "graph"
    if not graph.exists():
        graph.parent.mkdir(parents=True, exist_ok=True)
        graph.write_text("right")
    if graph.read_text() == "wrong":
        return BEHAVIOUR._replace(disagree_by=9.0)
    if graph.read_text() != "right":
        raise SystemExit("stub: UnpicklingError: invalid load key")
    return BEHAVIOUR


def main() -> int:
    global BEHAVIOUR  # noqa: PLW0603 -- what the handlers look at
    arguments = parse_arguments()
    if BEHAVIOUR.compiles:
        BEHAVIOUR = compile_graph()
    if BEHAVIOUR.dies_with >= 0:
        sys.stderr.write("stub: RuntimeError: the model is broken\n")
        return BEHAVIOUR.dies_with
    if BEHAVIOUR.refuses:
        of_vllm(create_engine_config)(ValueError(BEHAVIOUR.refuses))
    if BEHAVIOUR.ignores_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    start_processes()
    time.sleep(BEHAVIOUR.delay)
    while BEHAVIOUR.waits_for and not Path(BEHAVIOUR.waits_for).exists():
        time.sleep(0.01)
    if "--headless" in sys.argv:
        return be_headless()
    server = listen(arguments)
    if BEHAVIOUR.engine or BEHAVIOUR.hangs:
        start_engine(server)
    if not BEHAVIOUR.ignores_sigterm:
        stopping = threading.Thread(target=end, args=(server, arguments.shutdown_timeout), daemon=True)
        signal.signal(signal.SIGTERM, lambda *_: stopping.start())
    server.serve_forever(poll_interval=0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
