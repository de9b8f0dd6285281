"""Clients that come, go, cancel and send garbage, for a bounded time: `python -m bench.soak [--seconds 600]`. IO.

It passes if no whole request fails before SIGTERM, no answer is 500, each process's memory stays flat (the mean of the
last third within 10 % of the second third's), and the container then drains and exits with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import NamedTuple
from urllib.parse import urlsplit

from docker.models.containers import Container

from bench import cleanup_guard
from drydock.build import build
from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import log, write_output
from drydock.prove import demo, smollm2

SECONDS = 600.0
CLIENTS = 8
FLAT_WITHIN = 0.1
"""Largest difference of a process's mean memory between the last and the second third, as a share."""
SMALL = 16 << 20
"""Bytes below which a process's memory is not compared: there, a few pages exceed the share."""
SAMPLE_EVERY = 0.5
PATIENCE = 120.0
GARBAGE = (
    b"\x00\xff\x16\x03\x01" * 50,
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n{",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{{{{{{{{",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
)
"""Requests that a server should answer with an error, and survive."""

Sample = Mapping[str, int]
"""Memory in bytes, by process."""


class Soak(NamedTuple):
    """The result."""

    answers: Mapping[str, int]
    """Kind of request and how it ended → how often, before SIGTERM."""
    stopping: Mapping[str, int]
    """The same, of requests that ended after SIGTERM."""
    lost: tuple[str, ...]
    """Whole requests that failed before SIGTERM."""
    samples: tuple[Sample, ...]
    code: int
    """The container's exit code."""


def compute_memory_growth(samples: Sequence[Sample]) -> dict[str, float]:
    """Return each process's mean memory in the last third over that in the second third, minus one. Pure."""
    third = len(samples) // 3
    second, last = samples[third : 2 * third], samples[2 * third :]
    names = {name for sample in samples for name in sample}
    shares = {}
    for name in sorted(names):
        before, after = ([sample[name] for sample in part if name in sample] for part in (second, last))
        if before and after and mean(before) >= SMALL:
            shares[name] = mean(after) / mean(before) - 1
    return shares


def find_soak_problems(soak: Soak) -> list[str]:
    """Return the failures; empty if the server passed. Pure."""
    grown = {name: share for name, share in compute_memory_growth(soak.samples).items() if abs(share) > FLAT_WITHIN}
    failed = [f"{how}: {count} times" for how, count in soak.stopping.items() if " 500" in how]
    return [
        *(f"lost before SIGTERM: {text}" for text in soak.lost),
        *(f"while stopping, {text}" for text in failed),
        *(f"memory of {name} changed by {share:+.0%}" for name, share in grown.items()),
        *([f"exit code {soak.code}, expected 0"] if soak.code else []),
        *([] if soak.answers.get("whole 200") else ["no whole request was answered"]),
    ]


def soak_server(container: Container, seconds: float) -> Soak:
    """Load a ready server for `seconds`, then stop it with SIGTERM under load."""
    clients = _Clients(urlsplit(demo.find_port_url(container, demo.API_PORT, "/")).port or 0)
    clients.start()
    samples = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        samples.append(read_process_memory(container))
        time.sleep(SAMPLE_EVERY)
    clients.stopping = True
    container.kill(signal="SIGTERM")
    code = int(container.wait(timeout=PATIENCE)["StatusCode"])
    clients.end()
    return Soak(dict(clients.answers), dict(clients.after), tuple(clients.lost), tuple(samples), code)


def read_process_memory(container: Container) -> dict[str, int]:
    """Return the resident memory of each process of a container."""
    top = container.top(ps_args="-eo pid,rss,args")
    pid, rss, command = (top["Titles"].index(title) for title in ("PID", "RSS", "COMMAND"))
    return {f"{row[pid]} {row[command][:40]}": int(row[rss]) * 1024 for row in top["Processes"]}


class _Clients:
    """Threads that send requests of all kinds until they are ended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(CLIENTS)]
        self._lock = threading.Lock()
        self.stopping = False
        self.answers: Counter[str] = Counter()
        self.after: Counter[str] = Counter()
        self.lost: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _run(self, number: int) -> None:
        chance = random.Random(number)  # noqa: S311 - the same mix in each run
        kinds: dict[str, Callable[[random.Random], str]] = {
            "whole": self._whole,
            "cancelled": self._cancelled,
            "garbage": self._garbage,
        }
        while not self._over.is_set():
            kind = chance.choices(tuple(kinds), (6, 3, 2))[0]
            before = not self.stopping
            try:
                how = f"{kind} {kinds[kind](chance)}"
            except (OSError, http.client.HTTPException) as error:
                how = f"{kind} {type(error).__name__}"
                time.sleep(0.05)
            self._note(how, before=before and not self.stopping)

    def _note(self, how: str, *, before: bool) -> None:
        with self._lock:
            (self.answers if before else self.after)[how] += 1
            if before and how.startswith("whole") and how != "whole 200":
                self.lost.append(how)

    def _ask(self, chance: random.Random, tokens: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        words = " ".join(chance.choices(("sea", "ship", "dock", "rain", "crane", "tide"), k=chance.randint(1, 60)))
        body = {"model": "smollm2", "prompt": words, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection, connection.getresponse()

    def _whole(self, chance: random.Random) -> str:
        connection, response = self._ask(chance, chance.randint(1, 16))
        text = response.read()
        connection.close()
        whole = response.status != http.HTTPStatus.OK or text.rstrip().endswith(b"data: [DONE]")
        return f"{response.status}" if whole else "incomplete"

    def _cancelled(self, chance: random.Random) -> str:
        connection, response = self._ask(chance, 200)
        response.read(chance.randint(1, 400))
        response.close()
        connection.close()
        return f"{response.status}"

    def _garbage(self, chance: random.Random) -> str:
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as connection:
            connection.sendall(chance.choice(GARBAGE))
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(100).split(b"\r\n", 1)[0].decode("latin-1")[9:12] or "closed"


@contextlib.contextmanager
def _serve_model() -> Iterator[Container]:
    image, labels = build.build_image(prepare_job(DRYDOCK, "cpu")).image, cleanup_guard.make_run_labels()
    with demo.run_model_server(image, smollm2.make_small_model(image, labels=labels), labels=labels) as container:
        yield container


def main(argv: Sequence[str]) -> int:
    """Build the CPU image if needed, soak it, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    seconds = parser.parse_args(argv).seconds
    with cleanup_guard.guard_run(), _serve_model() as container:
        demo.wait_until_ready(container)
        log(f"soaking for {seconds:g} s")
        result = soak_server(container, seconds)
    shares = {name: f"{share:+.1%}" for name, share in compute_memory_growth(result.samples).items()}
    report = {"before SIGTERM": result.answers, "after": result.stopping, "memory": shares, "exit code": result.code}
    write_output(json.dumps(report, indent=2, sort_keys=True))
    wrong = find_soak_problems(result)
    log("\n".join(wrong) or "passed")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
