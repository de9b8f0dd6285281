"""A container → an `apptainer exec` command. Pure.

Apptainer runs as the user who starts it, in the machine's network, and keeps no volumes: `run` asks for a container
with the host's network and a folder as cache. What this user's rights decide is returned as remarks.
Source of the flags: Apptainer 1.5, cmd/internal/cli/action_flags.go.
"""

from __future__ import annotations

from collections.abc import Iterable
from shlex import join

from drydock.core.errors import InputError
from drydock.oci.reference import OCI
from drydock.run.access import API_KEY
from drydock.run.container import Bind, Container, RunRequest, is_local
from drydock.run.docker_command import (
    CACHE,
    ENTRYPOINT_WORDS,
    KEY_WANTED,
    binds_of,
    by_name,
    format_mount,
    merge_variables,
)
from drydock.run.user_options import HOST

VARIABLE = "APPTAINERENV_"
"""Before the name of a variable for the container. In --env, a comma would begin another one."""
RUNTIMES = {"nvidia": "--nv", "habana": "--intel-hpu"}
"""Container runtime → the flag that gives the same devices and libraries. --intel-hpu is of Apptainer 1.5, and reads
HABANA_VISIBLE_DEVICES."""
OPTIONS = {
    "--env": "--env",
    "--device": "--bind",
    "--mount": "--mount",
    "--host": "--host",
    "--runtime": "runtime",
    "--gpus": "--nv",
}
"""Docker's option → Apptainer's. What is not here, Apptainer's user decides."""
CHOSEN = "CUDA_VISIBLE_DEVICES"
"""Selects among the cards of --nv, which gives all of them."""


def adapt_request(request: RunRequest, accelerator: str) -> RunRequest:
    """Return the request with the machine's network, and a folder as cache. Raises InputError for what it cannot."""
    if request.network not in ("", HOST):
        raise InputError(f"--network {request.network}: Apptainer uses the machine's network", hint="leave it out")
    if request.cache and "/" not in request.cache:
        raise InputError(
            f"--cache {request.cache}: Apptainer has no volumes", hint=f"--cache ./{request.cache}: a folder"
        )
    if request.model.startswith(OCI):
        raise InputError(f"--model {request.model}: Apptainer mounts no image", hint="--model FOLDER, or a hub id")
    cache = request.cache or f"~/.cache/drydock-{accelerator}-cache"
    return request.model_copy(update={"network": HOST, "cache": cache})


def apptainer_argv(container: Container) -> list[str]:
    """Return the whole command. Only a shell passes on variables that are given by name."""
    return ["sh", "-c", apptainer_text(container)]


def apptainer_text(container: Container) -> str:
    """Format the command for a shell, one option per line; where a key is required, the shell stops without one."""
    before = [join(["mkdir", "-p", "--", _name_work_folder(container)])]
    for name in by_name(container):
        required = name == API_KEY and container.key_required
        export = f'export {VARIABLE}{name}="{KEY_WANTED if required else f"${name}"}"'
        before.append(export if required else f'{{ [ -z "${{{name}+set}}" ] || {export}; }}')
    return " &&\n".join([*before, " \\\n  ".join(map(join, _make_command_parts(container)))]) + "\n"


def list_apptainer_remarks(container: Container) -> Iterable[str]:
    """Yield what Apptainer cannot keep, and who grants it instead."""
    capabilities = ",".join(container.capabilities)
    runtime = "" if container.runtime in RUNTIMES else container.runtime
    left_out = (
        (capabilities, "capabilities", f"an administrator may allow them, then add `--add-caps {capabilities}`"),
        (" ".join(container.groups), "groups", "your user must be a member"),
        (container.user, "user", "it runs as you"),
        (" ".join(container.ulimits), "ulimits", "those of your shell count (`ulimit -a`)"),
        (container.cpuset_cpus, "cpuset-cpus", "begin the command with `taskset --cpu-list CPUS`"),
        (container.cpuset_mems, "cpuset-mems", "begin the command with `numactl --membind NODES`"),
        (container.shm, "shm-size", "shared memory may take half of the machine's"),
        (runtime, "runtime", "bind its devices and libraries yourself"),
        ("--privileged" if container.privileged else "", "privileged", "your user must be able to open the devices"),
    )
    yield "apptainer: it runs as you, with your rights; nothing in it can get more of them"
    yield from (f"{what} {value}: left out; {instead}" for value, what, instead in left_out if value)
    if is_local(container.image):
        yield f"image {container.image}: read from this machine's Docker; elsewhere push it, then --image"


def _make_command_parts(container: Container) -> Iterable[tuple[str, ...]]:
    """Yield the parts of the command. --containall, but for the host's IPC where the accelerator needs it."""
    variables = _make_apptainer_environment(container)
    yield from (("env",),) if variables else ()
    yield from ((f"{VARIABLE}{name}={value}",) for name, value in variables.items())
    yield "apptainer", "exec"
    yield from (("--contain",), ("--cleanenv",), ("--pid",)) if container.ipc == "host" else (("--containall",),)
    yield ("--no-init",)  # the entrypoint is the first process, and reaps
    yield ("--no-eval",)  # else a shell in the container expands the words and variables
    yield ("--workdir", _name_work_folder(container))  # for /tmp, which else holds 64 MiB
    flag = RUNTIMES.get(container.runtime or ("nvidia" if container.gpus else ""))
    yield from ((flag,),) if flag else ()
    for path in container.devices:
        yield OPTIONS["--device"], path
    for bind in binds_of(container):
        yield "--mount", format_mount(bind)
    yield "--mount", format_mount(Bind(source=container.cache, target=CACHE, read_only=False))
    yield _make_image_address(container), *ENTRYPOINT_WORDS, *container.arguments


def _make_apptainer_environment(container: Container) -> dict[str, str]:
    _, _, cards = container.gpus.partition("device=")
    return merge_variables({**container.env, **container.visible, **({CHOSEN: cards} if cards else {})}, container)


def _name_work_folder(container: Container) -> str:
    return f"{container.cache}/apptainer-{container.name}"


def _make_image_address(container: Container) -> str:
    return f"{'docker-daemon:' if is_local(container.image) else 'docker://'}{container.image}"
