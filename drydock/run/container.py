"""A variant's run record, a machine and a model → the container that serves it. Pure, given the machine.

Least privilege: no capability, no new privileges, a read-only root file system, and then what the record asks for, each
word with its reason. How docker, compose and Kubernetes write that is in drydock/run/docker.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from drydock.core.errors import InputError
from drydock.model.record import Record
from drydock.model.running import DeviceNode, Run, Word
from drydock.model.variant import Variant
from drydock.run.machine import Machine, assumed, is_pattern, pick

API_PORT, STATUS_PORT, LAST_PORT = 8000, 8001, 65535
LOOPBACK = "127.0.0.1"
FROM_THE_SHELL = ("HF_TOKEN", "HF_ENDPOINT")
"""Variables that a download from the hub needs: passed by name, so that no secret is printed or kept."""
MODELS = "/models"
DIGEST = "DRYDOCK_IMAGE_DIGEST"
"""The variable by which caches are keyed by image; else the entrypoint goes by the image's distributions."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_IMAGE = re.compile(r"[A-Za-z0-9\[][\w.:/@\[\]-]*", re.ASCII)


class RunRequest(Record):
    """What the user asked for."""

    model: str
    """A folder, or a hub id."""
    devices: str = ""
    """Numbers of cards, such as 0,1 or 0-3; all of them when empty."""
    port: int = API_PORT
    """On the host; the status port is the next one, on loopback."""
    address: str = ""
    """Of the host, where the port is published; all of them when empty."""
    cache: str = ""
    """A volume's name, or a folder with a slash in it."""
    image: str = ""
    name: str = ""
    arguments: tuple[str, ...] = ()
    """vLLM's and the entrypoint's own flags, as they are."""


class Bind(Record):
    """A folder or file of the host, read-only in the container."""

    source: str
    target: str


class Container(Record):
    """What one container is started with, in the words of docker."""

    name: str
    image: str
    arguments: tuple[str, ...]
    model: Bind | None
    cache: str
    address: str
    port: int
    devices: tuple[str, ...]
    count: int
    """Cards."""
    resource: str
    """Of the device plugin, for Kubernetes; empty where there is none."""
    visible: Mapping[str, str]
    """The variable that chooses cards, where one does; a device plugin sets its own."""
    runtime: str
    gpus: str
    """What --gpus is given: all, or device=0,1."""
    privileged: bool
    capabilities: tuple[str, ...]
    security: tuple[str, ...]
    groups: tuple[str, ...]
    """Numbers; names where this machine does not know them."""
    mounts: tuple[Bind, ...]
    ulimits: tuple[str, ...]
    shm: str
    ipc: str
    network: str
    user: str
    env: Mapping[str, str]
    hub: bool
    """Whether the model comes from the hub."""
    native: bool
    """Whether this machine is one of the accelerator's."""
    notes: tuple[str, ...]
    """Why each word is there, for people."""
    missing: tuple[str, ...]
    """What this machine lacks of what the container needs: it would not start here."""


def container(variant: Variant, request: RunRequest, machine: Machine) -> Container:
    """Say what the container is started with. Raises InputError for what the user got wrong."""
    run = variant.run
    native = is_native(run, machine)
    wanted = parse_numbers(request.devices) if request.devices else None
    devices, lacking = _devices(run, machine, wanted, native=native)
    cards = _cards(run, machine, wanted)
    mounts, absent = _mounts(run, machine, native=native)
    model, reference = _model(request.model)
    groups = {word.value: machine.group(word.value) if native else "" for word in run.groups}
    return Container(
        name=name_of(request.name or variant.id),
        image=_image(request.image or f"drydock/{variant.id}:latest"),
        arguments=_arguments(run, request, reference),
        model=model,
        cache=_cache(request.cache or f"drydock-{variant.accelerator}-cache"),
        address=request.address,
        port=request.port,
        devices=() if run.privileged else devices,
        count=len(cards),
        resource=run.kubernetes.resource if run.kubernetes else "",
        visible=_visible(run, wanted, cards),
        runtime=_value(run.runtime),
        gpus=_gpus(run, wanted),
        privileged=run.privileged is not None,
        capabilities=tuple(word.value.upper().removeprefix("CAP_") for word in run.capabilities),
        security=_security(run),
        groups=tuple(number or name for name, number in groups.items()),
        mounts=mounts,
        ulimits=tuple(word.value for word in run.ulimits),
        shm=_value(run.shm) if not run.ipc else "",
        ipc=_value(run.ipc),
        network=_value(run.network),
        user=_value(run.user),
        env=_digest(request.image) | {name: _text(setting.value) for name, setting in run.env.items()},
        hub=model is None,
        native=native,
        notes=(*_notes(run), *_unknown(groups), *_elsewhere(run, native=native)),
        missing=(*lacking, *absent, *_no_folder(model)),
    )


def is_native(run: Run, machine: Machine) -> bool:
    """Tell whether this machine has anything that the record names: else it is not one of that accelerator's."""
    named = [*(node.path for node in run.devices), *(mount.path for mount in run.mounts)]
    return not named or any(machine.matches(path) for path in named)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Parse `0,1` or `0-3`, keeping the order. Raises InputError."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise InputError(f"--devices {text}: found {part.strip()!r}, expected numbers such as 0,1 or 0-3")
        numbers += range(int(found[1]), int(found[2] or found[1]) + 1)
    return tuple(dict.fromkeys(numbers))


def parse_port(text: str) -> int:
    """Parse a port that leaves room for the status port, the next one. Raises InputError."""
    if not re.fullmatch(r"\d{1,5}", text) or not 0 < int(text) < LAST_PORT:
        raise InputError(f"--port {text}: expected a number from 1 to {LAST_PORT - 1}; the status port is the next one")
    return int(text)


def name_of(text: str) -> str:
    """Return a name that docker and Kubernetes both take: lower case, digits, hyphens. Raises InputError."""
    if not _NAME.fullmatch(text):
        raise InputError(f"--name {text}: expected letters, digits and hyphens")
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (name if name[:1].isalpha() else f"vllm-{name}")[:63].rstrip("-")


# --- devices --------------------------------------------------------------------------------------------------------


def _devices(
    run: Run, machine: Machine, wanted: Sequence[int] | None, *, native: bool
) -> tuple[tuple[str, ...], list[str]]:
    """Return the device files to give, and what this machine lacks of them, unless a runtime gives them itself."""
    nodes = [node for node in run.devices if not run.gpus and not (node.each and run.runtime)]
    if not native:
        numbers = wanted if wanted is not None else range(run.usual or 1)
        usual = [node for node in nodes if not node.optional]
        guessed = (path for node in usual for path in assumed(node, numbers))
        return tuple(dict.fromkeys(guessed)), [f"no device {node.path}" for node in usual]
    looked = [_look(node, machine.matches(node.path), wanted) for node in nodes]
    lacking = [text for _, texts in looked for text in texts]
    cards = [node for node in nodes if node.each]
    if cards and not any(_cards_of(run, machine)):
        lacking.append(f"no device {' or '.join(node.path for node in cards)}")
    return tuple(dict.fromkeys(path for paths, _ in looked for path in paths)), lacking


def _look(node: DeviceNode, found: Sequence[str], wanted: Sequence[int] | None) -> tuple[Sequence[str], list[str]]:
    """Return which of a record's device files to give, given those that are there, and what is missing of them."""
    if node.each and found and wanted is not None:
        picked, without = pick(found, wanted)
        return tuple(picked.values()), [f"no device {number} among {node.path}" for number in without]
    missing = not found and not node.optional and not is_pattern(node.path)
    return found, [f"no device {node.path}"] if missing else []


def _cards_of(run: Run, machine: Machine) -> list[tuple[str, ...]]:
    """Return the files of each kind that every card has one of."""
    return [machine.matches(node.path) for node in run.devices if node.each]


def _cards(run: Run, machine: Machine, wanted: Sequence[int] | None) -> Sequence[int]:
    """Return the cards' numbers: the chosen ones, else as many as this machine has, else as many as usual."""
    if wanted is not None:
        return wanted
    return range(max(map(len, _cards_of(run, machine)), default=0) or run.usual or 1)


def _visible(run: Run, wanted: Sequence[int] | None, cards: Sequence[int]) -> dict[str, str]:
    """Return the variable that chooses cards; device files that choose already are numbered anew inside."""
    given = any(node.each for node in run.devices) and not run.privileged and not run.runtime
    if not run.visible or run.gpus or given:
        return {}
    name, _, everything = run.visible.value.partition("=")
    if wanted is None and (everything or not run.runtime):
        return {name: everything} if everything else {}
    return {name: ",".join(map(str, cards))}


def _gpus(run: Run, wanted: Sequence[int] | None) -> str:
    if not run.gpus or wanted is None:
        return _value(run.gpus)
    return f"device={','.join(map(str, wanted))}"


# --- files, model, words --------------------------------------------------------------------------------------------


def _mounts(run: Run, machine: Machine, *, native: bool) -> tuple[tuple[Bind, ...], list[str]]:
    """Return the mounts to give, optional ones only where they are, and the required ones that are not there."""
    absent = [mount for mount in run.mounts if not machine.has(mount.path)]
    given = [mount for mount in run.mounts if not native or not (mount.optional and mount in absent)]
    binds = tuple(Bind(source=mount.path, target=mount.path) for mount in given)
    return binds, [f"no file or folder {mount.path}" for mount in absent if not mount.optional]


def _model(text: str) -> tuple[Bind | None, str]:
    """Return the mount of a folder, and how the container names the model. Raises InputError."""
    path = _expanded(text)
    if text and (os.path.isdir(path) or path.is_absolute()):  # noqa: PTH112 - pathlib's raises for a name too long
        whole = path.resolve()
        target = f"{MODELS}/{whole.name or 'model'}"
        return Bind(source=str(whole), target=target), target
    if text.startswith((".", "~")) or not _HUB_ID.fullmatch(text):
        raise InputError(f"--model {text}: no such folder, and no hub id such as Qwen/Qwen3-8B")
    return None, text


def _expanded(text: str) -> Path:
    return Path(os.path.expanduser(text))  # noqa: PTH111 - pathlib's raises for an unknown user


def _cache(text: str) -> str:
    """Return a volume's name as it is, and a folder as an absolute path. Raises InputError."""
    if "/" in text:
        return str(_expanded(text).absolute())
    if not _NAME.fullmatch(text):
        raise InputError(f"--cache {text}: found neither a volume's name nor a path", hint="a folder has a slash in it")
    return text


def _image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise InputError(f"--image {text}: expected a reference such as registry.example/vllm:1")
    return text


def _digest(image: str) -> dict[str, str]:
    """Return the digest that a reference pins; a tag tells none, and one looked up now is wrong once the tag moves."""
    _, _, digest = image.partition("@")
    return {DIGEST: digest} if digest else {}


def _no_folder(model: Bind | None) -> list[str]:
    return [f"no folder {model.source}"] if model and not Path(model.source).is_dir() else []


def _arguments(run: Run, request: RunRequest, reference: str) -> tuple[str, ...]:
    """Return what the entrypoint is told; in the host's own network the ports are told too."""
    ports = ("--port", str(request.port), "--status-port", str(request.port + 1))
    moved = ports if run.network and request.port != API_PORT else ()
    return ("serve", "--model", reference, *moved, *request.arguments)


def _security(run: Run) -> tuple[str, ...]:
    asked = tuple(word.value for word in run.security)
    said = any(word.startswith("no-new-privileges") for word in asked)
    return asked if said else ("no-new-privileges", *asked)


def _value(word: Word | None) -> str:
    return word.value if word else ""


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


# --- why ------------------------------------------------------------------------------------------------------------


def _notes(run: Run) -> Iterable[str]:
    """Yield each word with its reason."""
    return (f"{option}: {because}" for option, because, _ in words(run))


def words(run: Run) -> Iterable[tuple[str, str, str]]:
    """Yield what a container is started with as docker's options, each with its reason and source."""
    if run.privileged:
        yield "--privileged", f"{run.privileged.because} {run.privileged.instead}", run.privileged.source
    yield from _option("--runtime", run.runtime)
    yield from _option("--gpus", run.gpus)
    yield from ((f"--device {node.path}", node.because, node.source) for node in run.devices)
    yield from _option("--env", run.visible)
    yield from _option("--cap-add", *run.capabilities)
    yield from _option("--security-opt", *run.security)
    yield from _option("--group-add", *run.groups)
    for mount in run.mounts:
        yield f"--mount {mount.path}{' (where it is)' if mount.optional else ''}", mount.because, mount.source
    yield from _option("--ulimit", *run.ulimits)
    named = {"--shm-size": run.shm, "--ipc": run.ipc, "--network": run.network, "--user": run.user}
    for option, value in named.items():
        yield from _option(option, value)
    for name, setting in run.env.items():
        yield f"--env {name}={_text(setting.value)}", setting.because, setting.source


def _option(option: str, *values: Word | None) -> Iterable[tuple[str, str, str]]:
    return ((f"{option} {word.value}", word.because, word.source) for word in values if word)


def _unknown(groups: Mapping[str, str]) -> Iterable[str]:
    return (
        f"group {name}: its number is not known here; write the one that the target's /etc/group gives it"
        for name, number in groups.items()
        if not number
    )


def _elsewhere(run: Run, *, native: bool) -> Iterable[str]:
    if not native:
        yield f"this machine has none of these devices: {run.usual or 1} of them and the usual files are assumed"
