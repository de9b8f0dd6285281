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
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, NamedTuple, Self

import docker

from drydock.core.files import dumps
from drydock.model.record import dump
from drydock.prove import demo_topology, smollm2
from drydock.topology import verbs as topologies
from drydock.topology.planned import read_plan
from drydock.topology.rollout import ready, verbs, watch
from drydock.topology.rollout.asking import NoAnswer, ask
from drydock.topology.rollout.compose import PROJECT, SERVICE
from drydock.topology.rollout.state import TopologyPlace

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

    def __init__(self, place: TopologyPlace) -> None:
        self.place, self.plan = place, read_plan(place.file)
        self.shown = verbs.up(place, "compose", verbs.Options(seconds=420))
        self.runner = place.runner(place.running(), {})

    @property
    def router(self) -> str:
        return ready.router_url(self.plan, self.runner.reach())

    def container(self, service: str) -> Any:
        label = [f"{PROJECT}=drydock-{self.place.name}", f"{SERVICE}={service}"]
        return docker.from_env().containers.list(all=True, filters={"label": label})[0]

    def compose(self, *words: str) -> None:
        """Run docker compose with what was started."""
        command = ("docker", "compose", "--project-name", f"drydock-{self.place.name}")
        subprocess.run([*command, *words], cwd=self.place.folder, check=True, capture_output=True)

    def kill(self, service: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a container's first process, past its engine, which then starts it again."""
        os.kill(int(self.container(service).attrs["State"]["Pid"]), number)

    def signal_all(self, service: str, number: int) -> None:
        """Send a signal to every process of a container."""
        for row in self.container(service).top(ps_args="-eo pid")["Processes"]:
            os.kill(int(row[0]), number)

    def rows(self) -> dict[str, watch.Row]:
        found = watch.rows((self.plan,), self.runner.states(), self.runner.reach())
        return {row.name: row for row in found}

    def heal(self) -> None:
        """Wait until all is ready."""
        ready.wait(self.plan, self.runner, 600)

    def answers(self) -> dict[str, str]:
        """Return what each prompt is answered; ask it while nothing is wrong."""
        found = {prompt: question(self.router, prompt) for prompt in PROMPTS}
        assert {status for status, _ in found.values()} == {"200"}, found
        return {prompt: text for prompt, (_, text) in found.items()}


@contextlib.contextmanager
def started(place: TopologyPlace) -> Iterator[Cluster]:
    """Start a topology; stop it and remove what `down` keeps when the block ends."""
    try:
        yield Cluster(place)
    finally:
        verbs.down(place)
        demo_topology.remove_volumes(f"drydock-{place.name}")


class Asked(NamedTuple):
    at: float
    """Seconds since the clients began."""
    seconds: float
    said: str
    """The status, or why there is none."""
    right: bool


class Clients:
    """Two clients that ask one question after the other through the router, and note what they get."""

    def __init__(self, url: str, answers: dict[str, str]) -> None:
        self._url, self._answers = url, answers
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
            said, text = question(self._url, prompt)
            right = said != "200" or text.split(",")[0] == self._answers[prompt].split(",")[0]
            self.asked.append(Asked(begun - self._begun, time.monotonic() - begun, said, right))
            self._over.wait(PAUSE)

    def bad(self) -> list[Asked]:
        return [each for each in self.asked if each.said != "200"]

    def until_good(self, more: int = 4, within: float = 240.0) -> None:
        """Wait until some requests in a row were answered."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            if len(self.asked) >= more and all(each.said == "200" for each in self.asked[-more:]):
                return
            time.sleep(0.2)
        raise AssertionError(f"no {more} answers in a row within {within:g} s: {self.asked[-8:]}")

    def check(self) -> None:
        """No client hung, and none got a wrong answer."""
        assert all(each.right for each in self.asked), [each for each in self.asked if not each.right]
        assert max(each.seconds for each in self.asked) < LONGEST, max(self.asked, key=lambda each: each.seconds)

    def summary(self) -> str:
        """Say what the clients saw."""
        bad = self.bad()
        good = f"{len(self.asked) - len(bad)} right answers"
        if not bad:
            return f"{good}, no error; the longest took {max(each.seconds for each in self.asked):.1f} s"
        kinds = ", ".join(f"{count} times {said}" for said, count in Counter(each.said for each in bad).most_common())
        first, last = min(each.at for each in bad), max(each.at + each.seconds for each in bad)
        return f"{good}; {kinds}, over {last - first:.0f} s, each within {max(each.seconds for each in bad):.1f} s"


def question(url: str, prompt: str, **more: Any) -> tuple[str, str]:
    """Return the status and the text of an answer, or why there is none."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 6, "temperature": 0, "cache_salt": secrets.token_hex(8)}
    try:
        reply = ask(f"{url}/v1/completions", {**body, **more}, LONGEST)
        text = str(reply.json()["choices"][0]["text"]) if reply.status == 200 else reply.text[:200]
    except NoAnswer as error:
        return re.sub(r"\W.*", "", str(error)) or "NoAnswer", ""
    return str(reply.status), text


class Where(NamedTuple):
    """Addresses and ports of a topology."""

    subnet: IPv4Network
    port_base: int = 20000


def planned(folder: Path, images: tuple[str, str], shape: str, name: str, where: Where | None = None) -> Path:
    """Plan a shape of the demo on this machine, with the test's images and lease; return the plan's file."""
    subnet, port_base = where or Where(demo_topology.free_subnet())
    wanted = demo_topology.topology(demo_topology.SHAPES[shape], smollm2.make(images[0]), subnet)
    wanted["groups"] = [
        {**group, "flags": [*group["flags"], "--block-size", "32", "--served-model-name", "smollm2"]}
        for group in wanted["groups"]
    ]
    for group in wanted["groups"]:
        if "role" not in group:  # ranks of one model that share these cores
            group["env"] = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
    wanted["network"]["port_base"] = port_base
    if "router" in wanted:
        wanted["router"]["timeout"] = ROUTER_TIMEOUT
    source = folder / f"{name}.yaml"
    source.write_text(json.dumps(wanted))
    plan = demo_topology.with_images(topologies.planned(source), *images)
    text = re.sub(r'(kv_lease_duration\\*":) ?\d+', rf"\g<1>{LEASE}", dumps(dump(plan)))
    file = folder / f"{name}.json"
    file.write_text(text)
    return file


def small_disk(project: str, volume: str) -> None:
    """Make a volume of a project in memory, so that a test can fill it."""
    labels = {PROJECT: project, "com.docker.compose.volume": volume}
    options = {"type": "tmpfs", "device": "tmpfs", "o": "size=256m,mode=0777"}
    docker.from_env().volumes.create(f"{project}_{volume}", driver_opts=options, labels=labels)
