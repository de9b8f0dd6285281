"""Prefill and decode servers and their router that really run, on one engine, and clients that ask them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import docker

from drydock.config.project_choice import DRYDOCK
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.prove import demo_topology, smollm2
from drydock.prove.demo_topology import PROJECT
from drydock.topology import planned_file, up, verify
from drydock.topology.plan_model import Rank, read_plan
from drydock.topology.ports import API, STATUS
from drydock.topology.render.parts import name_rank_container
from drydock.topology.topology_arguments import make_node_url
from drydock.verbs.topology_up_verb import TopologyUpOptions, start_and_verify
from entrypoints.core.metrics import sum_metric
from entrypoints.serve import topology_answer
from entrypoints.serve.topology_answer import Ask, NoAnswer, ShownAnswers, parse_reply
from tests.support.called_verbs import call_verb
from tests.support.waiting import wait_until

SERVICE = "com.docker.compose.service"

LEASE = 60
"""Seconds, so that a test need not wait for minutes until it runs out. On a busy machine a first answer takes 20."""
ROUTER_TIMEOUT = 45
"""Seconds after which the router ends a request."""
LONGEST = 2.0 * ROUTER_TIMEOUT + 10
"""Seconds that a client waits for an answer: the router ends each of a request's two parts after its timeout."""
Note = Callable[[str, str, str], None]
"""Takes a fault, what clients saw, and after what it healed."""
PAUSE = 4.0
"""Seconds between two questions of a client: servers that start again need the processors too."""
PROMPTS = [", ".join(map(str, range(first, first + 24))) + "," for first in (1200, 2300, 3400, 4500)]


class Cluster:
    """A topology that runs on Compose."""

    def __init__(self, file: Path, output: Path) -> None:
        self.plan, self.folder, self.project = read_plan(file), output, f"drydock-{up.name_topology(file)}"
        self.shown = start_and_verify(
            DRYDOCK, TopologyUpOptions(file=str(file), format="compose", output=str(output), wait=420)
        )
        self.ask = partial(topology_answer.ask_server, key=demo_topology.key_in(output))

    @property
    def router(self) -> str:
        router = self.plan.router
        return make_node_url(router.address, router.port) if router else ""

    def prove(self) -> ShownAnswers:
        """Ask for the known answer. Raises VerifyError."""
        return verify.prove_plan(self.plan, demo_topology.key_in(self.folder))

    def container(self, service: str) -> Any:
        return self.containers(service)[0]

    def containers(self, service: str) -> list[Any]:
        """Return the containers of a service; none if the topology has no such service."""
        label = [f"{PROJECT}={self.project}", f"{SERVICE}={service}"]
        return docker.from_env().containers.list(all=True, filters={"label": label})

    def compose(self, *words: str) -> None:
        """Run docker compose with what was started."""
        command = ("docker", "compose", "--project-name", self.project)
        subprocess.run([*command, *words], cwd=self.folder, check=True, capture_output=True)

    def kill(self, service: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a container's first process, past its engine, which then starts it again."""
        os.kill(self.first_process(service), number)

    def first_process(self, service: str) -> int:
        """Return the id of a container's first process; 0 while it does not run."""
        return int(self.container(service).attrs["State"]["Pid"])

    def signal_all(self, service: str, number: int) -> None:
        """Send a signal to every process of a container; one of a health check may have ended since it was listed."""
        for row in self.container(service).top(ps_args="-eo pid")["Processes"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(row[0]), number)

    def measure_engine_load(self, service: str, seconds: float = 10.0) -> float:
        """Return the share of one core that the engine of a server takes, measured over some seconds."""
        rows = self.container(service).top(ps_args="-eo pid,args")["Processes"]
        engines = [pid for pid, title in rows if title.startswith("VLLM::EngineCore")]
        assert engines, rows
        before, begun = sum(map(_read_processor_seconds, engines)), time.monotonic()
        time.sleep(seconds)
        return (sum(map(_read_processor_seconds, engines)) - before) / (time.monotonic() - begun)

    def ranks(self) -> dict[str, Rank]:
        return {name_rank_container(replica, rank): rank for replica in self.plan.replicas for rank in replica.ranks}

    def ready(self, service: str) -> bool:
        """Tell whether a rank or the router says that it is ready."""
        rank = self.ranks().get(service)
        where = f"{make_node_url(rank.address, rank.ports[STATUS])}/readyz" if rank else f"{self.router}/readiness"
        try:
            return self.ask(where, None, 3.0).status == 200
        except NoAnswer:
            return False

    def count(self, service: str, metric: str) -> float:
        """Return a counter of a server; 0 while it does not answer."""
        rank = self.ranks()[service]
        try:
            text = self.ask(f"{make_node_url(rank.address, rank.ports[API])}/metrics", None, 3.0).text
        except NoAnswer:
            return 0.0
        return sum_metric(text, metric) or 0.0

    def heal(self, within: float = 600.0) -> None:
        """Wait until all is ready."""
        names = [*self.ranks(), *([self.plan.router.name] if self.plan.router else [])]
        wait_until(lambda: all(map(self.ready, names)), "all ready", within=within)

    def answers(self) -> dict[str, str]:
        """Return what each prompt is answered; ask it while nothing is wrong."""
        replies = {prompt: question(self.ask, self.router, prompt) for prompt in PROMPTS}
        assert {status for status, _ in replies.values()} == {"200"}, replies
        return {prompt: text for prompt, (_, text) in replies.items()}


def _read_processor_seconds(pid: str) -> float:
    """Return the seconds of a processor that a process has taken: utime and stime of proc(5), /proc/pid/stat."""
    fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def started(file: Path, output: Path) -> Iterator[Cluster]:
    """Start a topology; stop it and remove what `down` keeps when the block ends."""
    try:
        yield Cluster(file, output)
    finally:
        call_verb("topology down", file=str(file), output=str(output))
        demo_topology.remove_volumes(f"drydock-{up.name_topology(file)}")


class Asked(NamedTuple):
    at: float
    """Seconds since the clients began."""
    seconds: float
    said: str
    """The status, or why there is none."""
    right: bool


class Clients:
    """Two clients that ask one question after the other through the router, and note what they get."""

    def __init__(self, ask: Ask, url: str, answers: dict[str, str]) -> None:
        self._ask, self._url, self._answers = ask, url, answers
        self._over = threading.Event()
        self._begun = time.monotonic()
        self.asked: list[Asked] = []
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(2)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LONGEST + 5)

    def _run(self, number: int) -> None:
        while not self._over.is_set():
            prompt = PROMPTS[(len(self.asked) + number) % len(PROMPTS)]
            begun = time.monotonic()
            status, text = question(self._ask, self._url, prompt)
            right = status != "200" or text.split(",")[0] == self._answers[prompt].split(",")[0]
            self.asked.append(Asked(begun - self._begun, time.monotonic() - begun, status, right))
            self._over.wait(PAUSE)

    def bad(self) -> list[Asked]:
        return [request for request in self.asked if request.said != "200"]

    def until_good(self, more: int = 4, within: float = 240.0) -> None:
        """Wait until some requests in a row were answered."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            if len(self.asked) >= more and all(request.said == "200" for request in self.asked[-more:]):
                return
            time.sleep(0.2)
        raise AssertionError(f"no {more} answers in a row within {within:g} s: {self.asked[-8:]}")

    def check(self) -> None:
        """No client hung, and none got a wrong answer."""
        assert all(request.right for request in self.asked), [request for request in self.asked if not request.right]
        assert max(request.seconds for request in self.asked) < LONGEST, max(
            self.asked, key=lambda request: request.seconds
        )

    def summary(self) -> str:
        """Say what the clients saw."""
        bad = self.bad()
        good = f"{len(self.asked) - len(bad)} right answers"
        if not bad:
            return f"{good}, no error; the longest took {max(request.seconds for request in self.asked):.1f} s"
        kinds = ", ".join(
            f"{count} times {status}" for status, count in Counter(request.said for request in bad).most_common()
        )
        first, last = min(request.at for request in bad), max(request.at + request.seconds for request in bad)
        return (
            f"{good}; {kinds}, over {last - first:.0f} s, each within {max(request.seconds for request in bad):.1f} s"
        )


def question(ask: Ask, url: str, prompt: str, **more: Any) -> tuple[str, str]:
    """Return the status and the text of an answer, or why there is none."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 6, "temperature": 0, "cache_salt": secrets.token_hex(8)}
    try:
        reply = ask(f"{url}/v1/completions", {**body, **more}, LONGEST)
        text = str(parse_reply(reply)["choices"][0]["text"]) if reply.status == 200 else reply.text[:200]
    except NoAnswer as error:
        return re.sub(r"\W.*", "", str(error)) or "NoAnswer", ""
    return str(reply.status), text


def planned(folder: Path, images: tuple[str, str], shape: str, name: str) -> Path:
    """Plan a shape of the demo on this machine, with the test's images and lease; return the plan's file."""
    subnet = demo_topology.free_subnet()
    topology = demo_topology.make_demo_topology(
        demo_topology.SHAPES[shape], smollm2.make_small_model(images[0]), subnet
    )
    topology["groups"] = [
        {**group, "flags": [*group["flags"], "--block-size", "32", "--served-model-name", "smollm2"]}
        for group in topology["groups"]
    ]
    for group in topology["groups"]:
        if "role" not in group:  # ranks of one model that share these cores
            group["env"] = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
    if "router" in topology:
        topology["router"]["timeout"] = ROUTER_TIMEOUT
    source = folder / f"{name}.yaml"
    source.write_text(json.dumps(topology))
    plan = demo_topology.with_images(planned_file.plan_topology_file(DRYDOCK, source), *images)
    text = re.sub(r'(kv_lease_duration\\*":) ?\d+', rf"\g<1>{LEASE}", format_json(dump_record(plan)))
    file = folder / f"{name}.json"
    file.write_text(text)
    return file


def small_disk(project: str, volume: str, size: str = "256m") -> None:
    """Make a volume of a project in memory, so that a test can fill it. It is empty again once no container has it."""
    labels = {PROJECT: project, "com.docker.compose.volume": volume}
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size},mode=0777"}
    docker.from_env().volumes.create(f"{project}_{volume}", driver_opts=options, labels=labels)
