"""Asks the nodes of a Kubernetes cluster by `kubectl exec`, in pods that are deleted afterwards. IO.

What kubectl prints comes from a cluster and its nodes: it is bounded, parsed, and only ever shown or compared.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from drydock.core.console import log
from drydock.core.errors import EngineError
from drydock.core.files import parse_json
from drydock.run.docker import PYTHON
from drydock.topology.playbook.run import bounded
from drydock.topology.preflight.node_request import PROGRAM, NodeRequest, measured
from drydock.topology.preflight.node_response import AT_MOST, NodeImage, NodeResponse
from drydock.topology.preflight.pods import LONGEST, CheckPod, in_pod, manifests
from drydock.topology.preflight.reach import SECONDS, Answers, answer_of

ASK_EVERY = 2.0
"""Seconds between two looks at the pods."""
HOPELESS = re.compile(r"ErrImage\w*|ImagePullBackOff|InvalidImageName|CreateContainer\w*Error|RunContainerError")
"""Reasons with which a container waits for something that does not come by itself."""
NO_FOLDER = "hostPath type check failed"
"""Of the kubelet's event for a model's folder that the node has not."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}$")


class Started(NamedTuple):
    """What became of a pod."""

    address: str = ""
    """Of a pod that runs."""
    image: str = ""
    """The digest of its image."""
    failure: str = ""
    """Why it does not run; empty while it may still start."""


def by_kubectl(
    asked: Sequence[NodeRequest], pods: Sequence[CheckPod], namespace: str, *, fabric: bool = False
) -> tuple[tuple[NodeRequest, ...], Answers]:
    """Return what each node was asked in its pod, and the answers. Nodes without a pod are not asked.

    An empty namespace is that of kubectl's context. `fabric`: an all-reduce is measured too. Raises EngineError.
    """
    kubectl, questions = _kubectl(namespace), {each.node: each for each in asked}
    with _created(kubectl, pods):
        found = _wait(kubectl, pods)
        addresses = {node: each.address for node, each in found.items() if each.address}
        inside = tuple(in_pod(questions[pod.node], pod, addresses) for pod in pods)
        inside = measured(inside) if fabric else inside
        with ThreadPoolExecutor(max(1, len(pods))) as pool:
            told = pool.map(lambda pod, each: _ask(kubectl, pod, each, found[pod.node]), pods, inside)
            return inside, {each.node: answer for each, answer in zip(inside, told, strict=True)}


def _kubectl(namespace: str) -> tuple[str, ...]:
    """Return how kubectl is called. Raises EngineError if it is missing."""
    program = shutil.which("kubectl")
    if not program:
        raise EngineError("kubectl: not found", hint="install kubectl, and select the cluster by its context")
    return (program, f"--namespace={namespace}") if namespace else (program,)


@contextlib.contextmanager
def _created(kubectl: Sequence[str], pods: Sequence[CheckPod]) -> Iterator[None]:
    """Create the pods; delete them after the block, also if only some were created. Raises EngineError."""
    try:
        _run((*kubectl, "create", "--filename=-"), manifests(pods))
        yield
    finally:
        try:
            _run((*kubectl, "delete", "pod", *_names(pods), "--ignore-not-found", "--wait=false"))
        except EngineError as error:
            log(f"warning: {error}; the cluster ends {', '.join(_names(pods))} after {LONGEST // 60} minutes")


def _wait(kubectl: Sequence[str], pods: Sequence[CheckPod]) -> dict[str, Started]:
    """Return node → what became of its pod: each runs, or does not for a reason."""
    deadline = time.monotonic() + SECONDS
    while True:
        late = time.monotonic() > deadline
        items = _objects(_run((*kubectl, "get", "pod", *_names(pods), "--ignore-not-found", "--output=json")))
        by_name = {_text(item, "metadata", "name"): item for item in items}
        found = {pod.node: _started(kubectl, pod, by_name.get(pod.name, {}), late=late) for pod in pods}
        if all(each.address or each.failure for each in found.values()):
            return found
        time.sleep(ASK_EVERY)


def _started(kubectl: Sequence[str], pod: CheckPod, item: Mapping[str, Any], *, late: bool) -> Started:
    """Return what became of a pod; `late`: it has had all its time. Why a volume cannot be mounted, only events say."""
    found = started(item, pod.container)
    if found.address or found.failure:
        return found
    own = f"--field-selector=type=Warning,involvedObject.name={pod.name}"
    warnings = [_text(event, "message") for event in _objects(_run((*kubectl, "get", "events", own, "--output=json")))]
    told = next((text for text in warnings if NO_FOLDER in text), "")
    if late and not told:
        told = "; ".join([f"not within {SECONDS:.0f} s", *warnings[-1:]])
    return Started(failure=f"its pod does not start: {bounded(told)}" if told else "")


def _names(pods: Sequence[CheckPod]) -> list[str]:
    return [pod.name for pod in pods]


def _objects(text: str) -> list[Any]:
    """Return the objects that kubectl printed as JSON; nothing is printed if there is none. Raises EngineError."""
    found = parse_json(text or "{}", "kubectl get", EngineError)
    items = found.get("items", [found])
    if not isinstance(items, list):
        raise EngineError("kubectl get: items is no list")
    return items


def _text(item: Any, *path: str) -> str:
    """Return the text at a place of an object; empty if there is none."""
    for name in path:
        item = item.get(name) if isinstance(item, Mapping) else None
    return item if isinstance(item, str) else ""


def started(item: Mapping[str, Any], name: str) -> Started:
    """Return what a pod's state says of a container. What is not as the API has it counts as not started."""
    try:
        status = item["status"]
        containers = [each for each in status.get("containerStatuses", []) if each.get("name") == name]
        if status.get("phase") == "Failed":
            return Started(failure=f"its pod failed: {_reason(status)}")
        for condition in status.get("conditions", []):
            if condition.get("reason") == "Unschedulable":
                return Started(failure=f"its pod finds no place: {bounded(str(condition.get('message', '')))}")
        for container in containers:
            waiting = container.get("state", {}).get("waiting", {})
            if HOPELESS.fullmatch(str(waiting.get("reason", ""))):
                return Started(failure=f"its pod does not start: {_reason(waiting)}")
            if container.get("state", {}).get("running"):
                digest = _DIGEST.search(str(container.get("imageID", "")))
                return Started(str(ipaddress.ip_address(status.get("podIP", ""))), digest[0] if digest else "")
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return Started()


def _reason(state: Mapping[str, Any]) -> str:
    return bounded(": ".join(str(state[key]) for key in ("reason", "message") if state.get(key)) or "no reason told")


def _ask(kubectl: Sequence[str], pod: CheckPod, asked: NodeRequest, found: Started) -> NodeResponse | str:
    """Ask in a pod. The program goes by standard input: a command is part of a URL, which proxies may cut."""
    if not found.address:
        return found.failure
    command = (
        *kubectl,
        "exec",
        "--stdin",
        pod.name,
        f"--container={pod.container}",
        "--",
        PYTHON,
        "-I",
        "-",
        asked.question,
    )
    answer = answer_of(command, PROGRAM.read_bytes())
    if isinstance(answer, str):
        return answer
    image = NodeImage(id=found.image, digests=(found.image,) if found.image else (), failure="")
    return answer.model_copy(update={"images": {pod.image: image}})  # a pod has no engine to ask


def _run(command: Sequence[str], given: str = "") -> str:
    """Return what kubectl printed. Raises EngineError."""
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"kubectl {_verb(command)}: no answer within {SECONDS:.0f} s") from None
    if done.returncode:
        hint = "kubectl must reach the cluster, and may create, read, delete and exec pods there"
        raise EngineError(f"kubectl {_verb(command)}: exit {done.returncode}: {bounded(done.stderr)}", hint=hint)
    if len(done.stdout) > AT_MOST:
        raise EngineError(f"kubectl {_verb(command)}: printed {len(done.stdout)} characters, expected {AT_MOST}")
    return done.stdout


def _verb(command: Sequence[str]) -> str:
    return next(word for word in command[1:] if not word.startswith("-"))
