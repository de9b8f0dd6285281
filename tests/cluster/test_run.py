"""What `run --format k8s` prints, on a real cluster: key, volume, service, and a server that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.conftest import World
from tests.support.kubernetes import rendered
from tests.support.kubernetes.cluster import Answer
from tests.support.kubernetes.space import Space, condition

KEY = "a-secret-of-the-test"
SERVER = "cpu"
STALL_SECONDS = 4
"""Without progress for so long it is not ready, and after twice that not alive. The usual 60 are for real servers."""
STOP_VLLM = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    pid = int(path.parent.name)
    if "vllm.entrypoints" in path.read_text() and pid not in (1, os.getpid()):
        os.kill(pid, signal.SIGSTOP)
        print(pid)
"""


class Served(NamedTuple):
    """A server that is ready, and what led to it."""

    space: Space
    before_its_key: str
    """Why the container waited."""
    disk: Path
    seconds: float
    """From the key to readiness."""

    @property
    def pod(self) -> dict[str, Any]:
        (pod,) = self.space.ready()
        return pod


def waiting(space: Space) -> str:
    """Return why a container waits; empty if there is none yet."""
    statuses = [status for pod in space.pods() for status in pod["status"].get("containerStatuses", [])]
    return next((status["state"]["waiting"]["reason"] for status in statuses if "waiting" in status["state"]), "")


@pytest.fixture(scope="module")
def served(world: World, space: Space, disk: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Served:
    """The objects of `run`, applied; then the key that its remark asks for."""
    objects = rendered.of_run(
        *("cpu", world.model, world.image, "--name", SERVER, "--arguments", f"--stall-seconds {STALL_SECONDS}")
    )
    place = disk("claim")
    space.volume(SERVER, place, "node2")
    space.apply(objects)
    space.until(lambda: "Error" in waiting(space), "a container without its key")
    reason = waiting(space)
    file = tmp_path_factory.mktemp("key") / "key"
    file.write_text(f"VLLM_API_KEY={KEY}\n")
    space.kubectl("create", "secret", "generic", "vllm-api-key", f"--from-env-file={file}")
    start = time.monotonic()
    space.until(space.ready, "a ready server")
    seconds = time.monotonic() - start
    for node in world.cluster.nodes:
        space.until(lambda node=node: ask(world, node, space).status == 200, f"an answer on {node}")  # type: ignore[misc]
    return Served(space, reason, place, seconds)


def ask(world: World, node: str, space: Space, key: str = KEY) -> Answer:
    spec = space.get("service", SERVER)["spec"]
    return world.cluster.ask(node, f"http://{spec['clusterIP']}:{spec['ports'][0]['port']}/v1/models", key=key)


def test_a_pod_without_its_key_does_not_start(served: Served) -> None:
    assert served.before_its_key == "CreateContainerConfigError"


def test_the_service_answers_from_both_nodes_to_those_who_have_the_key(world: World, served: Served) -> None:
    for node in world.cluster.nodes:
        assert ask(world, node, served.space).status == 200
        assert ask(world, node, served.space, key="").status == 401


def test_the_claims_volume_belongs_to_the_servers_group_and_nothing_else_is_writable(served: Served) -> None:
    name = served.pod["metadata"]["name"]
    assert served.pod["spec"]["nodeName"] == "node2"  # where the disk is
    assert served.disk.stat().st_gid == 10001
    assert served.space.execute(name, "import os; print(os.getuid(), os.getgid())").split() == ["10001", "0"]
    assert any(served.disk.iterdir())
    tried = "import os\nfor place in ('/', '/opt', '/models/smollm2'): print(os.access(place, os.W_OK))"
    assert served.space.execute(name, tried).split() == ["False"] * 3


def test_a_server_that_hangs_is_taken_out_of_the_service_restarted_and_put_back(world: World, served: Served) -> None:
    space, name = served.space, served.pod["metadata"]["name"]
    assert space.addresses(SERVER)
    assert space.execute(name, STOP_VLLM).split()

    space.until(lambda: not space.addresses(SERVER), "a server that is not ready")
    assert condition(space.pods()[0], "Ready")["status"] == "False"
    space.until(lambda: space.pods()[0]["status"]["containerStatuses"][0]["restartCount"] == 1, "a restart")
    space.until(lambda: space.addresses(SERVER), "the server's return")

    assert served.pod["metadata"]["name"] == name
    space.until(lambda: ask(world, "node1", space).status == 200, "an answer")
    reasons = [event["message"] for event in space.get("events")["items"] if event["reason"] == "Unhealthy"]
    assert any("Readiness probe failed" in text and "503" in text for text in reasons)
    assert any("Liveness probe failed" in text and "503" in text for text in reasons)
