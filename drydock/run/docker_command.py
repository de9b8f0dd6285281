"""A container → a docker command or a compose file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import join
from typing import Any

from drydock.core.dollars import double_dollars_of_texts
from drydock.core.errors import InputError
from drydock.core.yaml_writer import write_yaml
from drydock.run.access import API_KEY, LOOPBACK, bracket_address
from drydock.run.container import API_PORT, STATUS_PORT, Bind, Container, is_local
from drydock.run.user_options import HOST, MODES

STOP_SECONDS = 30
"""Between SIGTERM and SIGKILL. The entrypoint drains for 25 s, of which new requests are served for 5 s, and vLLM then
has 4 s to exit; docker's default is 10 s."""
START_SECONDS = 3600
"""Until Kubernetes considers a start failed, at least. A first start downloads weights and compiles; where the record
of the accelerator (`run.start`) says that this takes longer, that time applies."""
ASK_EVERY = 10
"""Seconds between two probes."""
TMP = "/tmp"  # noqa: S108 - the container's own
CACHE = "/cache"
QUOTE = '"'
CSV = frozenset(f"{QUOTE},\r\n")
"""Characters that require quotes around a field (RFC 4180)."""
KEY_WANTED = f"${{{API_KEY}:?set the key that clients must send}}"
"""What a shell and compose replace by the key, or refuse to go on if there is none."""
USER = 10001
"""The image's user, in group 0."""
PYTHON = "/usr/bin/python3"
"""The interpreter that each image has."""
ENTRYPOINT = "/opt/drydock/entrypoints"
ENTRYPOINT_WORDS = (PYTHON, "-I", "-S", ENTRYPOINT)


# --- docker ---------------------------------------------------------------------------------------------------------


def docker_options(container: Container) -> list[tuple[str, ...]]:
    """Return the options of `docker run`, each with its value."""
    flags: dict[str, tuple[str, ...]] = {
        "--name": (container.name,),
        "--runtime": _wrap_value(container.runtime),
        "--gpus": _wrap_value(f'"{container.gpus}"' if "," in container.gpus else container.gpus),
        "--device": container.devices,
        "--cap-drop": () if container.privileged else ("ALL",),
        "--cap-add": () if container.privileged else container.capabilities,
        "--security-opt": container.security,
        "--group-add": container.groups,
        "--user": _wrap_value(container.user),
        "--tmpfs": (f"{TMP}:exec,mode=1777",),
        "--cpuset-cpus": _wrap_value(container.cpuset_cpus),
        "--cpuset-mems": _wrap_value(container.cpuset_mems),
        "--shm-size": _wrap_value(container.shm),
        "--ipc": _wrap_value(container.ipc),
        "--network": _wrap_value(container.network),
        "--publish": _list_published_ports(container),
        "--ulimit": container.ulimits,
        "--stop-timeout": (str(STOP_SECONDS),),
        "--env": tuple(f"{name}={value}" for name, value in _make_docker_environment(container).items()),
    }
    options: list[tuple[str, ...]] = [("--pull", "never")] if is_local(container.image) else []
    options += [("--read-only",)]
    options += [("--privileged",)] if container.privileged else []
    options += [(flag, value) for flag, values in flags.items() for value in values]
    options += [("--env", name) for name in by_name(container)]
    options += [("--mount", format_mount(bind)) for bind in binds_of(container)]
    cache = (f"type={_cache_kind(container)}", f"source={container.cache}", f"target={CACHE}")
    return [*options, ("--mount", _join_csv(*cache))]


def format_mount(bind: Bind) -> str:
    """Return the value of --mount, of which Apptainer reads the same words (its config/mount.go)."""
    options = ("readonly",) if bind.read_only else ()
    return _join_csv(f"type={bind.kind}", f"source={bind.source}", f"target={bind.target}", *options)


def binds_of(container: Container) -> tuple[Bind, ...]:
    """Return the mounts of files, folders and images: the driver's, the model's, the user's."""
    return (*container.mounts, *([container.model] if container.model else []), *container.volumes)


def list_mount_targets(container: Container) -> dict[str, str]:
    """Return path in the container → what it is, of all that is mounted there but the user's volumes."""
    model = {container.model.target: "the model"} if container.model else {}
    driver = {bind.target: "the driver's" for bind in container.mounts}
    return {CACHE: "the cache (--cache)", TMP: "memory for temporary files", **model, **driver}


def by_name(container: Container) -> tuple[str, ...]:
    """Return the variables that docker passes on by name, if the shell has them, so that no text shows their values."""
    names = dict.fromkeys((*container.downloads, API_KEY, *container.passed_names))
    return tuple(name for name in names if name not in container.user_env)


def docker_argv(container: Container, *, lifetime: Sequence[str] = ("--rm",), command: Sequence[str] = ()) -> list[str]:
    """Return the whole command. If `command` replaces serving, no port is published."""
    left_out = ("--publish",) if command else ()
    options = [word for option in docker_options(container) if option[0] not in left_out for word in option]
    return ["docker", "run", *lifetime, *options, container.image, *(command or container.arguments)]


def docker_text(container: Container, *, lifetime: Sequence[str] = ("--rm",)) -> str:
    """Format the command for a shell, one option per line."""
    lines = ["docker run", *lifetime, *map(join, docker_options(container)), container.image, join(container.arguments)]
    return " \\\n  ".join(lines) + "\n"


def shell_text(container: Container, *, lifetime: Sequence[str] = ("--rm",)) -> str:
    """Format the command to be run elsewhere; where a key is required, the shell stops without one.

    A model that is an image is pulled first: for a mount, `docker run` does not.
    """
    guard = f': "{KEY_WANTED}" &&\n' if container.key_required else ""
    model = container.model
    pull = f"docker pull --quiet {join([model.source])} &&\n" if model and model.kind == "image" else ""
    return guard + pull + docker_text(container, lifetime=lifetime)


def _join_csv(*fields: str) -> str:
    """Join the fields of --mount as CSV, which docker parses with Go's encoding/csv."""
    return ",".join(f'"{field.replace(QUOTE, QUOTE * 2)}"' if set(field) & CSV else field for field in fields)


def _list_published_ports(container: Container) -> tuple[str, ...]:
    if container.ends_by_itself or container.network in (HOST, "none"):
        return ()
    return (
        f"{bracket_address(container.address)}:{container.port}:{API_PORT}",
        f"{LOOPBACK}:{container.port + 1}:{STATUS_PORT}",
    )


def _make_docker_environment(container: Container) -> dict[str, str]:
    return merge_variables({**container.env, **container.visible}, container)


def merge_variables(record_variables: Mapping[str, str], container: Container) -> dict[str, str]:
    """Return variables of the record with the user's, which win, whether they have a value or only a name."""
    return {
        **{name: value for name, value in record_variables.items() if name not in container.passed_names},
        **container.user_env,
    }


def _cache_kind(container: Container) -> str:
    return "bind" if "/" in container.cache else "volume"


def _wrap_value(value: str) -> tuple[str, ...]:
    return (value,) if value else ()


# --- compose --------------------------------------------------------------------------------------------------------

COMPOSE_KEYS = {
    "--runtime": "runtime",
    "--gpus": "deploy",
    "--device": "devices",
    "--env": "environment",
    "--cap-add": "cap_add",
    "--security-opt": "security_opt",
    "--group-add": "group_add",
    "--mount": "volumes",
    "--ulimit": "ulimits",
    "--cpuset-cpus": "cpuset",
    "--shm-size": "shm_size",
    "--ipc": "ipc",
    "--network": "network_mode",
    "--user": "user",
    "--publish": "ports",
    "--privileged": "privileged",
    "--host": "command: --host",
}
"""Docker's option → the key of a compose file that has its value."""


def compose_text(container: Container) -> str:
    """Format a compose.yaml with one service."""
    return format_comments(container) + write_yaml(compose_project(container))


def compose_project(container: Container) -> dict[str, Any]:
    """Return the content of a compose.yaml with one service."""
    service = double_dollars_of_texts(_make_compose_service(container))
    if container.key_required:
        service[COMPOSE_KEYS["--env"]][API_KEY] = KEY_WANTED
    volumes = {"volumes": {"cache": {"name": container.cache}}} if _cache_kind(container) == "volume" else {}
    networks = {"networks": {container.network: {"external": True}}} if service.get("networks") else {}
    return {"services": {container.name: service}, **networks, **double_dollars_of_texts(volumes)}


def _make_compose_service(container: Container) -> dict[str, Any]:
    is_volume = _cache_kind(container) == "volume"
    cache = {
        "type": _cache_kind(container),
        "source": "cache" if is_volume else container.cache,
        "target": CACHE,
    }
    service = {
        "image": container.image,
        "pull_policy": "never" if is_local(container.image) else "",
        "container_name": container.name,
        "command": list(container.arguments),
        "restart": "" if container.ends_by_itself else "unless-stopped",
        "stop_grace_period": f"{STOP_SECONDS}s",
        "read_only": True,
        "tmpfs": [f"{TMP}:exec,mode=1777"],
        COMPOSE_KEYS["--privileged"]: container.privileged,
        "cap_drop": [] if container.privileged else ["ALL"],
        COMPOSE_KEYS["--cap-add"]: [] if container.privileged else list(container.capabilities),
        COMPOSE_KEYS["--security-opt"]: [_with_colon(word) for word in container.security],
        COMPOSE_KEYS["--group-add"]: list(container.groups),
        COMPOSE_KEYS["--user"]: container.user,
        COMPOSE_KEYS["--runtime"]: container.runtime,
        COMPOSE_KEYS["--device"]: [f"{path}:{path}" for path in container.devices],
        COMPOSE_KEYS["--cpuset-cpus"]: container.cpuset_cpus,
        COMPOSE_KEYS["--shm-size"]: container.shm,
        COMPOSE_KEYS["--ipc"]: container.ipc,
        COMPOSE_KEYS["--network"]: container.network if container.network in MODES else "",
        "networks": [container.network] if container.network not in ("", *MODES) else [],
        COMPOSE_KEYS["--publish"]: list(_list_published_ports(container)),
        COMPOSE_KEYS["--ulimit"]: dict(map(_parse_ulimit, container.ulimits)),
        COMPOSE_KEYS["--env"]: {**_make_docker_environment(container), **dict.fromkeys(by_name(container))},
        COMPOSE_KEYS["--mount"]: [*map(_compose_bind, binds_of(container)), cache],
        COMPOSE_KEYS["--gpus"]: _reserve_gpus(container),
    }
    return {key: value for key, value in service.items() if value}


def _with_colon(option: str) -> str:
    """Return a security option in compose's syntax: seccomp:unconfined, no-new-privileges:true."""
    return "no-new-privileges:true" if option == "no-new-privileges" else option.replace("=", ":", 1)


def _parse_ulimit(text: str) -> tuple[str, int | dict[str, int]]:
    """Parse memlock=-1:-1. Raises InputError."""
    name, _, limits = text.partition("=")
    soft, _, hard = limits.partition(":")
    try:
        return name, {"soft": int(soft), "hard": int(hard or soft)}
    except ValueError:
        raise InputError(f"ulimit {text}: expected a name and numbers, such as memlock=-1:-1") from None


def _compose_bind(bind: Bind) -> dict[str, Any]:
    return {
        "type": bind.kind,
        "source": bind.source,
        "target": bind.target,
        **({"read_only": True} if bind.read_only else {}),
        **({"bind": {"create_host_path": False}} if bind.kind == "bind" else {}),
    }


def _reserve_gpus(container: Container) -> dict[str, Any]:
    if not container.gpus:
        return {}
    _, _, numbers = container.gpus.partition("device=")
    device_choice = {"device_ids": numbers.split(",")} if numbers else {"count": "all"}
    return {
        "resources": {"reservations": {"devices": [{"driver": "nvidia", "capabilities": ["gpu"], **device_choice}]}}
    }


# --- comments -------------------------------------------------------------------------------------------------------


def format_comments(container: Container) -> str:
    """Return comments about what the reader must edit."""
    return "".join(f"# {line}\n" for line in unknown_groups(container))


def unknown_groups(container: Container) -> tuple[str, ...]:
    """Return what the reader must edit in a command or compose file; a pod gets no group of unknown number."""
    names = [name for name in container.groups if not name.isdigit()]
    return tuple(f"group {name}: replace it by its number in the target's /etc/group" for name in names)
