"""The pods in which a cluster's nodes are asked, and what is believed of what kubectl prints."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from drydock.core.errors import EngineError, InputError
from drydock.run.docker_command import ENTRYPOINT, PYTHON
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.preflight import cluster
from drydock.topology.preflight.cluster import Started, ask_by_kubectl, parse_pod_state
from drydock.topology.preflight.evaluate import evaluate_answers
from drydock.topology.preflight.node_pods import CheckPod, adapt_to_pod, make_check_pods
from drydock.topology.preflight.node_request import make_node_requests
from drydock.topology.preflight.node_response import NodeResponse
from tests.support import topologies
from tests.support.topologies import DIGEST

KUBECTL = f"""#!{sys.executable}
import json, os, subprocess, sys
words = [word for word in sys.argv[1:] if not word.startswith("--namespace")]
state = os.environ["STATE"]
with open(os.path.join(state, "calls"), "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
if words[0] == "create":
    sys.stdin.read()
    if os.path.exists(os.path.join(state, "no-create")):
        sys.exit("Error from server (Forbidden): pods is forbidden")
elif words[0] == "get":
    path = os.path.join(state, words[1])
    sys.stdout.write(open(path).read() if os.path.exists(path) else "")
elif words[0] == "exec":
    inside = words[words.index("--") + 1:]
    assert inside[:3] == ["{PYTHON}", "-I", "-"], inside
    sys.exit(subprocess.run([sys.executable, *inside[1:]]).returncode)
"""


SIDECAR = {"name": "mesh", "imageID": f"mesh@sha256:{'9' * 64}", "state": {"running": {}}}


def made(plan: TopologyPlan) -> tuple[CheckPod, ...]:
    return make_check_pods(plan, topologies.variant(plan.variant), "0a1b")


def running(pod: CheckPod, address: str, digest: str = DIGEST) -> dict[str, Any]:
    state = {
        "name": "vllm",
        "imageID": f"registry.example/vllm@{digest}",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }
    status = {"phase": "Running", "podIP": address, "containerStatuses": [SIDECAR, state]}
    return {"metadata": {"name": pod.name}, "status": status}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that says what the kubectl of the PATH prints."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STATE", str(tmp_path))
    return tmp_path


def calls(state: Path) -> list[list[str]]:
    return [json.loads(line) for line in (state / "calls").read_text().splitlines()]


PLAN = topologies.disaggregated(1, 1)


def asked(pods: tuple[CheckPod, ...] = (), namespace: str = "", *, fabric: bool = False) -> Any:
    """Ask the nodes of a plan; return the questions and the answers."""
    questions = make_node_requests(PLAN, topologies.variant(PLAN.variant), {})
    return ask_by_kubectl(questions, pods or made(PLAN), namespace, fabric=fabric)


@pytest.mark.parametrize("make", topologies.PLANS.values(), ids=list(topologies.PLANS))
def test_each_node_with_a_server_has_a_pod_that_waits_as_that_server(make: Any) -> None:
    plan = make()
    pods = made(plan)
    assert [pod.node for pod in pods] == sorted({rank.node for replica in plan.replicas for rank in replica.ranks})
    for pod in pods:
        kubernetes_validate.validate(pod.manifest, "1.36", strict=True)
        (container,) = pod.manifest["spec"]["containers"]
        assert container["image"] == topologies.IMAGE
        assert "sleep" in container["command"][-1]
        assert not {"args", "ports", "readinessProbe", "livenessProbe", "startupProbe", "lifecycle"} & {*container}
        assert "$(LWS_" not in json.dumps(pod.manifest)
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod.manifest["spec"]["volumes"]
        }


def test_a_pod_asks_for_the_devices_that_its_server_will_need() -> None:
    first = made(topologies.two_nodes())[0].manifest["spec"]["containers"][0]
    assert first["resources"]["limits"]["nvidia.com/gpu"] == 8


def test_ranktables_are_refused_as_by_render() -> None:
    plan = topologies.with_rank(topologies.two_nodes(), env={"RANK_TABLE_FILE": "/ranktables/x.json"})
    with pytest.raises(InputError, match="a ranktable names chips"):
        made(plan)


def test_in_a_pod_the_others_are_reached_at_their_pods_addresses() -> None:
    plan = topologies.disaggregated()
    pods = made(plan)
    question = make_node_requests(plan, topologies.variant(plan.variant), {})[0]
    inside = adapt_to_pod(question, pods[0], {"n0": "10.244.1.2", "n1": "10.244.2.2"})
    words = " ".join(inside.check)
    assert inside.address == "10.244.1.2"
    assert "--peers 10.244.2.2 --peer-ports 20000,20005" in words
    assert "--status-port 20001" in words
    assert inside.container == (PYTHON, "-I", "-S", ENTRYPOINT)
    assert (inside.ports, inside.images) == ((), (topologies.IMAGE,))
    assert inside.model == "/models/smollm2"


def test_nodes_are_asked_by_exec_and_the_pods_are_deleted(state: Path) -> None:
    pods = made(PLAN)
    items = [running(pod, f"127.0.0.{place + 1}") for place, pod in enumerate(pods)]
    (state / "pod").write_text(json.dumps({"kind": "List", "items": items}))
    questions, answers = asked(pods, "chat", fabric=True)

    assert [*answers] == ["n0", "n1"]
    first = answers["n0"]
    assert isinstance(first, NodeResponse), first
    assert first.images[topologies.IMAGE].digests == (DIGEST,)
    assert first.fabric
    assert questions[1].fabric[2:6] == ("--peers", "127.0.0.1,127.0.0.2", "--node-rank", "1")
    assert {entry[0] for entry in calls(state)} == {"--namespace=chat"}
    assert calls(state)[-1][1:5] == ["delete", "pod", *(pod.name for pod in pods)]
    findings = {entry.id: entry for entry in evaluate_answers(questions, answers, {}, {})}
    assert findings["TOPO-021"].severity == "PASS"


def test_a_pod_that_does_not_start_is_a_finding_of_its_node_alone(state: Path) -> None:
    pods = made(PLAN)
    lacking = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: cpu"}
    pending = {"metadata": {"name": pods[1].name}, "status": {"phase": "Pending", "conditions": [lacking]}}
    (state / "pod").write_text(json.dumps({"items": [running(pods[0], "127.0.0.1"), pending]}))
    questions, answers = asked(pods)

    assert answers["n1"] == "its pod finds no place: 0/2 nodes: cpu"
    assert isinstance(answers["n0"], NodeResponse)
    assert questions[0].check == ("check", "--json")  # nobody else runs
    bad = [finding for finding in evaluate_answers(questions, answers, {}, {}) if finding.id == "TOPO-020"]
    assert [finding.severity for finding in bad] == ["PASS", "FAIL"]


def test_what_the_cluster_refuses_is_told_and_what_was_created_is_deleted(state: Path) -> None:
    (state / "no-create").touch()
    with pytest.raises(EngineError, match="kubectl create: exit 1: Error from server"):
        asked()
    assert [call[0] for call in calls(state)] == ["create", "delete"]


@pytest.mark.parametrize("text", ["[]", "7", '{"items": 7}', "no JSON", "[" * 9999])
def test_an_answer_of_the_cluster_that_is_none_is_an_error(text: str, state: Path) -> None:
    (state / "pod").write_text(text)
    with pytest.raises(EngineError, match="kubectl get"):
        asked()
    assert calls(state)[-1][0] == "delete"


def test_a_pod_that_never_starts_is_not_waited_for_without_end(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SECONDS", 1.0)
    monkeypatch.setattr(cluster, "ASK_EVERY", 0.1)
    (state / "events").write_text('{"items": [{}, 7, {"message": "first"}, {"message": "pulling takes long"}]}')
    _, answers = asked()
    assert {*answers.values()} == {"its pod does not start: not within 1 s; pulling takes long"}


@pytest.mark.parametrize("text", ["", '{"items": [{}]}', '{"items": [7]}', '{"items": [{"metadata": 7}]}'])
def test_a_node_without_the_models_folder_is_told_at_once(text: str, state: Path) -> None:
    (state / "pod").write_text(text)
    message = 'MountVolume.SetUp failed for volume "host-0" : hostPath type check failed: /srv is not a directory'
    (state / "events").write_text(json.dumps({"items": [{"message": message}]}))
    _, answers = asked()
    assert {*answers.values()} == {f"its pod does not start: {message}"}


def test_without_kubectl_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="kubectl: not found"):
        ask_by_kubectl((), (), "")


FAILED = {"status": {"phase": "Failed", "reason": "DeadlineExceeded", "message": "too\x1b[31m long"}}
WAITING = {
    "status": {
        "containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such"}}}]
    }
}
CREATING = {"status": {"containerStatuses": [{"name": "vllm", "state": {"waiting": {"reason": "ContainerCreating"}}}]}}
STRANGE: list[Any] = [{}, {"status": 7}, {"status": {"containerStatuses": [7]}}, {"status": {"conditions": "x"}}]


@pytest.mark.parametrize(
    ("item", "failure"),
    [
        (FAILED, "its pod failed: DeadlineExceeded: too\\u001b[31m long"),
        (WAITING, "its pod does not start: ErrImagePull: no such"),
        (CREATING, ""),
        *((item, "") for item in STRANGE),
    ],
)
def test_a_state_is_a_failure_or_not_yet_a_start(item: Any, failure: str) -> None:
    assert parse_pod_state(item, "vllm") == Started(failure=failure)


def test_an_address_that_is_none_is_no_start() -> None:
    pod = made(PLAN)[0]
    assert parse_pod_state(running(pod, "--privileged"), "vllm") == Started()
    assert parse_pod_state(running(pod, "10.0.0.1", "sha256:0"), "vllm") == Started("10.0.0.1", "")
