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
from drydock.core.files import parse_json_object
from drydock.run.docker_command import PYTHON
from drydock.topology.playbook.playbook_run import shorten_machine_text
from drydock.topology.preflight.node_pods import LONGEST, CheckPod, adapt_to_pod, format_pod_list
from drydock.topology.preflight.node_request import PROGRAM, NodeRequest, add_all_reduce
from drydock.topology.preflight.node_response import AT_MOST, NodeImage, NodeResponse
from drydock.topology.preflight.reach import SECONDS, Answers, run_question

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


def ask_by_kubectl(
    requests: Sequence[NodeRequest], pods: Sequence[CheckPod], namespace: str, *, fabric: bool = False
) -> tuple[tuple[NodeRequest, ...], Answers]:
    """Return what each node was asked in its pod, and the answers. Nodes without a pod are not asked.

    An empty namespace is that of kubectl's context. `fabric`: an all-reduce is measured too. Raises EngineError.
    """
    kubectl, questions = _find_kubectl(namespace), {entry.node: entry for entry in requests}
    with _create_pods(kubectl, pods):
        states = _wait_for_pods(kubectl, pods)
        addresses = {node: entry.address for node, entry in states.items() if entry.address}
        inside = tuple(adapt_to_pod(questions[pod.node], pod, addresses) for pod in pods)
        inside = add_all_reduce(inside) if fabric else inside
        with ThreadPoolExecutor(max(1, len(pods))) as pool:
            answers = pool.map(lambda pod, entry: _ask_pod(kubectl, pod, entry, states[pod.node]), pods, inside)
            return inside, {entry.node: answer for entry, answer in zip(inside, answers, strict=True)}


def _find_kubectl(namespace: str) -> tuple[str, ...]:
    """Return how kubectl is called. Raises EngineError if it is missing."""
    program = shutil.which("kubectl")
    if not program:
        raise EngineError("kubectl: not found", hint="install kubectl, and select the cluster by its context")
    return (program, f"--namespace={namespace}") if namespace else (program,)


@contextlib.contextmanager
def _create_pods(kubectl: Sequence[str], pods: Sequence[CheckPod]) -> Iterator[None]:
    """Create the pods; delete them after the block, also if only some were created. Raises EngineError."""
    try:
        _run_kubectl((*kubectl, "create", "--filename=-"), format_pod_list(pods))
        yield
    finally:
        try:
            _run_kubectl((*kubectl, "delete", "pod", *_list_pod_names(pods), "--ignore-not-found", "--wait=false"))
        except EngineError as error:
            log(f"warning: {error}; the cluster ends {', '.join(_list_pod_names(pods))} after {LONGEST // 60} minutes")


def _wait_for_pods(kubectl: Sequence[str], pods: Sequence[CheckPod]) -> dict[str, Started]:
    """Return node → what became of its pod: each runs, or does not for a reason."""
    deadline = time.monotonic() + SECONDS
    while True:
        late = time.monotonic() > deadline
        items = _parse_objects(
            _run_kubectl((*kubectl, "get", "pod", *_list_pod_names(pods), "--ignore-not-found", "--output=json"))
        )
        by_name = {_read_object_text(item, "metadata", "name"): item for item in items}
        states = {pod.node: _judge_pod_start(kubectl, pod, by_name.get(pod.name, {}), late=late) for pod in pods}
        if all(state.address or state.failure for state in states.values()):
            return states
        time.sleep(ASK_EVERY)


def _judge_pod_start(kubectl: Sequence[str], pod: CheckPod, item: Mapping[str, Any], *, late: bool) -> Started:
    """Return what became of a pod; `late`: it has had all its time. Why a volume cannot be mounted, only events say."""
    state = parse_pod_state(item, pod.container)
    if state.address or state.failure:
        return state
    selector = f"--field-selector=type=Warning,involvedObject.name={pod.name}"
    warnings = [
        _read_object_text(event, "message")
        for event in _parse_objects(_run_kubectl((*kubectl, "get", "events", selector, "--output=json")))
    ]
    reason = next((text for text in warnings if NO_FOLDER in text), "")
    if late and not reason:
        reason = "; ".join([f"not within {SECONDS:.0f} s", *warnings[-1:]])
    return Started(failure=f"its pod does not start: {shorten_machine_text(reason)}" if reason else "")


def _list_pod_names(pods: Sequence[CheckPod]) -> list[str]:
    return [pod.name for pod in pods]


def _parse_objects(text: str) -> list[Any]:
    """Return the objects that kubectl printed as JSON; nothing is printed if there is none. Raises EngineError."""
    document = parse_json_object(text or "{}", "kubectl get", EngineError)
    items = document.get("items", [document])
    if not isinstance(items, list):
        raise EngineError("kubectl get: items is no list")
    return items


def _read_object_text(item: Any, *path: str) -> str:
    """Return the text at a place of an object; empty if there is none."""
    for name in path:
        item = item.get(name) if isinstance(item, Mapping) else None
    return item if isinstance(item, str) else ""


def parse_pod_state(item: Mapping[str, Any], name: str) -> Started:
    """Return what a pod's state says of a container. What is not as the API has it counts as not started."""
    try:
        status = item["status"]
        containers = [entry for entry in status.get("containerStatuses", []) if entry.get("name") == name]
        if status.get("phase") == "Failed":
            return Started(failure=f"its pod failed: {_format_state_reason(status)}")
        for condition in status.get("conditions", []):
            if condition.get("reason") == "Unschedulable":
                return Started(
                    failure=f"its pod finds no place: {shorten_machine_text(str(condition.get('message', '')))}"
                )
        for container in containers:
            waiting = container.get("state", {}).get("waiting", {})
            if HOPELESS.fullmatch(str(waiting.get("reason", ""))):
                return Started(failure=f"its pod does not start: {_format_state_reason(waiting)}")
            if container.get("state", {}).get("running"):
                digest = _DIGEST.search(str(container.get("imageID", "")))
                return Started(str(ipaddress.ip_address(status.get("podIP", ""))), digest[0] if digest else "")
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return Started()


def _format_state_reason(state: Mapping[str, Any]) -> str:
    return shorten_machine_text(
        ": ".join(str(state[key]) for key in ("reason", "message") if state.get(key)) or "no reason told"
    )


def _ask_pod(kubectl: Sequence[str], pod: CheckPod, request: NodeRequest, state: Started) -> NodeResponse | str:
    """Ask in a pod. The program goes by standard input: a command is part of a URL, which proxies may cut."""
    if not state.address:
        return state.failure
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
        request.question,
    )
    answer = run_question(command, PROGRAM.read_bytes())
    if isinstance(answer, str):
        return answer
    image = NodeImage(id=state.image, digests=(state.image,) if state.image else (), failure="")
    return answer.model_copy(update={"images": {pod.image: image}})  # a pod has no engine to ask


def _run_kubectl(command: Sequence[str], input_text: str = "") -> str:
    """Return what kubectl printed. Raises EngineError."""
    try:
        result = subprocess.run(
            command, input=input_text, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"kubectl {_name_kubectl_verb(command)}: no answer within {SECONDS:.0f} s") from None
    if result.returncode:
        hint = "kubectl must reach the cluster, and may create, read, delete and exec pods there"
        raise EngineError(
            f"kubectl {_name_kubectl_verb(command)}: exit {result.returncode}: {shorten_machine_text(result.stderr)}",
            hint=hint,
        )
    if len(result.stdout) > AT_MOST:
        raise EngineError(
            f"kubectl {_name_kubectl_verb(command)}: printed {len(result.stdout)} characters, expected {AT_MOST}"
        )
    return result.stdout


def _name_kubectl_verb(command: Sequence[str]) -> str:
    return next(word for word in command[1:] if not word.startswith("-"))
