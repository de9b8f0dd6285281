"""A container → the options of `podman run`, and a unit of Podman's Quadlet, which systemd starts. Pure.

Podman takes docker's options. NVIDIA's cards are devices of the Container Device Interface to it, not --gpus.
Source of the unit's keys: podman-systemd.unit(5) of Podman 4.9 and 5.8, and pkg/systemd/quadlet/quadlet.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from drydock.core.errors import InputError
from drydock.run.access import API_KEY
from drydock.run.container import Container, is_local
from drydock.run.docker_command import START_SECONDS, docker_options, format_comments

CDI = "nvidia.com/gpu"
"""The kind of NVIDIA's cards (NVIDIA Container Toolkit docs, support for Container Device Interface)."""
KEYS = {
    "--pull": "Pull",
    "--name": "ContainerName",
    "--device": "AddDevice",
    "--cap-drop": "DropCapability",
    "--cap-add": "AddCapability",
    "--user": "User",
    "--tmpfs": "Tmpfs",
    "--shm-size": "ShmSize",
    "--network": "Network",
    "--publish": "PublishPort",
    "--env": "Environment",
    "--mount": "Mount",
}
"""Option → the key of a unit. Others are PodmanArgs: Podman 4.9 has no keys for them, or reads only the last Ulimit."""
_ELSEWHERE = {"--gpus": f"AddDevice {CDI}", "--host": "Exec: --host"}
"""Option → what has its value: cards are devices of CDI, and the server's own option is part of the command."""
RESTART_SECONDS = 10
"""Between two starts, so that systemd never counts five of them within ten seconds and gives up."""
_PLAIN = re.compile(r"[\w@:/.,=+\[\]-]+", re.ASCII)

Unit = Mapping[str, Sequence[tuple[str, str]]]
"""Section → its keys and values."""


def use_cdi_devices(container: Container) -> Container:
    """Return the container with devices of CDI in place of --gpus and of the runtime that gives the same."""
    gpus = container.gpus.removeprefix("device=")
    if not gpus:
        return container
    cards = tuple(f"{CDI}={card}" for card in gpus.split(","))
    return container.model_copy(update={"devices": (*container.devices, *cards), "gpus": "", "runtime": ""})


def list_podman_options(container: Container) -> list[tuple[str, ...]]:
    """Return the options of `podman run`, each with its value. An image is mounted read-only without a word for it."""
    return [
        (flag, *(text.removesuffix(",readonly") if text.startswith("type=image,") else text for text in values))
        for flag, *values in docker_options(use_cdi_devices(container))
    ]


# --- a unit ---------------------------------------------------------------------------------------------------------


def quadlet_text(container: Container) -> str:
    """Format NAME.container."""
    lines = {
        name: "".join(f"{key}={value}\n" for key, value in keys) for name, keys in make_quadlet_unit(container).items()
    }
    return format_comments(container) + "\n".join(f"[{name}]\n{text}" for name, text in lines.items())


def make_quadlet_unit(container: Container) -> Unit:
    """Return the sections of NAME.container. What runs once is started by hand, and not again.

    Raises InputError for an empty word: Podman's generator leaves it out, and all words after it
    (pkg/systemd/parser/split.go, extractFirstWord).
    """
    if "" in container.arguments:
        before = container.arguments[container.arguments.index("") - 1]
        raise InputError(f"{before} '': a unit cannot have an empty word", hint=f"write {before}= as one word")
    secrets = _list_secrets(container)
    model = container.model
    pull = [("ExecStartPre", f"podman pull --quiet {model.source}")] if model and model.kind == "image" else []
    again = [("Restart", "always"), ("RestartSec", str(RESTART_SECONDS)), ("TimeoutStartSec", str(START_SECONDS))]
    return {
        "Unit": [("Description", f"vLLM: {container.name}")],
        "Container": [
            ("Image", container.image),
            ("Exec", " ".join(map(_quote_systemd_word, container.arguments))),
            *(_make_unit_key(flag, *values, secrets=secrets) for flag, *values in list_podman_options(container)),
        ],
        "Service": [
            ("EnvironmentFile", f"-{_file(container)}"),
            *pull,
            *([("Type", "oneshot")] if container.ends_by_itself else again),
        ],
        **({} if container.ends_by_itself else {"Install": [("WantedBy", "default.target")]}),
    }


def list_unit_remarks(container: Container) -> Iterable[str]:
    """Yield what must be set up where the unit runs."""
    name = container.name
    yield (
        f"write it to /etc/containers/systemd/{name}.container, or as a user to ~/.config/containers/systemd;"
        f" `systemctl daemon-reload` and `systemctl start {name}` (as a user with --user) start it"
    )
    for variable in _list_secrets(container):
        command = f"podman secret create --env {variable} {variable}"
        yield f"secret {variable}: the unit starts only with it; `{command}` takes it from your shell"
    if container.downloads:
        yield f"{_file(container)}: {', '.join(container.downloads)}, if it has them; %E is /etc, or a user's ~/.config"
    yield from engine_remarks(container)
    if container.devices or container.ulimits:
        yield "a user's unit has only that user's devices and limits; a unit in /etc has all of these"


def engine_remarks(container: Container) -> Iterable[str]:
    """Yield what Podman must have."""
    yield from image_remarks(container.image)
    if container.gpus or any(device.startswith(CDI) for device in container.devices):
        yield f"{CDI}: `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` describes the cards to Podman"
    elif container.runtime:
        yield f"runtime {container.runtime}: name its program in [engine.runtimes] of containers.conf"


def image_remarks(image: str) -> Iterable[str]:
    """Yield how Podman gets an image that was built here."""
    if is_local(image):
        yield f"image {image}: Docker has it, Podman does not: `docker save {image} | podman load`"


def _list_secrets(container: Container) -> tuple[str, ...]:
    """Return the variables without which it must not start: Podman passes on the secret of that name, or fails."""
    return tuple(dict.fromkeys((*container.passed_names, *([API_KEY] if container.key_required else ()))))


def _file(container: Container) -> str:
    return f"%E/drydock/{container.name}.env"


def name_unit_key(option: str) -> str:
    """Return what has the value of an option in a unit."""
    return _ELSEWHERE.get(option) or KEYS.get(option) or f"PodmanArgs={option}"


def _make_unit_key(flag: str, *values: str, secrets: Sequence[str]) -> tuple[str, str]:
    """Return the key of one option."""
    (value,) = values or ("",)
    if flag == "--read-only":
        return "ReadOnly", "true"
    if (flag, value) == ("--security-opt", "no-new-privileges"):
        return "NoNewPrivileges", "true"
    if flag == "--env" and value in secrets:
        return "Secret", f"{value},type=env"
    if flag in KEYS and not (flag == "--env" and "=" not in value):
        return KEYS[flag], _quote_systemd_word(value)
    return "PodmanArgs", " ".join(map(_quote_systemd_word, (flag, *values)))


def _quote_systemd_word(text: str) -> str:
    """Quote a word for systemd: Quadlet reads quotes and backslashes, then systemd expands % and $ in the command."""
    if _PLAIN.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\x{ord(match[0]):02x}", quoted) + '"'
