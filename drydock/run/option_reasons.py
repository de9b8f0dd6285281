"""The reason for each option of a container: of a record, for the pages, and of one command or manifest. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from drydock.model.running import Run, Word
from drydock.run import apptainer, docker_command, kubernetes_manifest, podman
from drydock.run.access import EVERY_ADDRESS, LOOPBACK, bracket_address, is_exposed
from drydock.run.container import Bind, Container, text_of
from drydock.run.user_options import HOST
from entrypoints.request.access import ALLOWED_HOSTS

NAMES: Mapping[str, Callable[[str], str]] = {
    "docker": str,
    "compose": lambda option: docker_command.COMPOSE_KEYS.get(option, ""),
    "kubernetes": lambda option: kubernetes_manifest.POD_FIELDS.get(option, ""),
    "quadlet": podman.name_unit_key,
    "apptainer": lambda option: apptainer.OPTIONS.get(option, ""),
}
"""Format → what it calls an option of Docker's; empty for one that it does not have."""


def list_record_options(run: Run) -> Iterable[tuple[str, str, str]]:
    """Yield the docker options of a record, each with its reason and source."""
    if run.privileged:
        yield "--privileged", f"{run.privileged.because} {run.privileged.instead}", run.privileged.source
    yield from _list_word_options("--runtime", run.runtime)
    yield from _list_word_options("--gpus", run.gpus)
    yield from ((f"--device {node.path}", node.because, node.source) for node in run.devices)
    yield from _list_word_options("--env", run.visible)
    yield from _list_word_options("--cap-add", *run.capabilities)
    yield from _list_word_options("--security-opt", *run.security)
    yield from _list_word_options("--group-add", *run.groups)
    for mount in run.mounts:
        yield f"--mount {mount.path}{' (where it is)' if mount.optional else ''}", mount.because, mount.source
    yield from _list_word_options("--ulimit", *run.ulimits)
    words_by_option = {"--shm-size": run.shm, "--ipc": run.ipc, "--network": run.network, "--user": run.user}
    for option, value in words_by_option.items():
        yield from _list_word_options(option, value)
    for name, setting in run.env.items():
        yield f"--env {name}={text_of(setting.value)}", setting.because, setting.source
    for more in run.more:
        of_some = Run(devices=more.devices, capabilities=more.capabilities, network=more.network)
        for option, because, source in list_record_options(of_some):
            yield option, f"only {more.where}: {because}", source


def format_option_reasons(run: Run, container: Container, form: str) -> Iterable[str]:
    """Yield the reason for each option that this container has, named as in this format."""
    name_option = NAMES[form]
    for option, value, because in (
        *_of_record(run, container, form),
        *_of_user(run, container),
        *_of_address(container, form),
    ):
        if name := name_option(option):
            yield f"{name}{f' {value}' if value else ''}: {because}"
    if form == "kubernetes" and container.device_class:
        yield f"claim {container.device_class}: {container.count}: its driver gives the pod its devices"
    elif form == "kubernetes" and container.resource:
        yield f"limits {container.resource}: {container.count}: the device plugin gives the pod its devices"


def _of_record(run: Run, container: Container, form: str) -> Iterable[tuple[str, str, str]]:
    """Yield option, value and reason of what the record lists and the container has."""
    set_by_user = {*container.user_env, *container.passed_names}
    if run.privileged:
        yield "--privileged", "", f"{run.privileged.because} {run.privileged.instead}"
    yield from _of_devices(run, container)
    if run.visible and form != "kubernetes":
        visible_variables = {name: value for name, value in container.visible.items() if name not in set_by_user}
        yield from (("--env", f"{name}={value}", run.visible.because) for name, value in visible_variables.items())
    for word in () if container.privileged else run.capabilities:
        yield "--cap-add", word.value.upper().removeprefix("CAP_"), word.because
    yield from (("--security-opt", word.value, word.because) for word in run.security)
    yield from _of_groups(run, container, form)
    mount_sources = {bind.source for bind in container.mounts}
    yield from (("--mount", mount.path, mount.because) for mount in run.mounts if mount.path in mount_sources)
    yield from (("--ulimit", word.value, word.because) for word in run.ulimits)
    sizes = (("--shm-size", container.shm, run.shm), ("--ipc", container.ipc, run.ipc))
    network = container.network if run.network and container.network == run.network.value else ""
    network_and_user = (("--network", network, run.network), ("--user", container.user, run.user))
    yield from ((option, value, word.because) for option, value, word in (*sizes, *network_and_user) if value and word)
    record_variables = {name: item for name, item in run.env.items() if name not in set_by_user}
    yield from (("--env", f"{name}={text_of(item.value)}", item.because) for name, item in record_variables.items())


def _of_user(run: Run, container: Container) -> Iterable[tuple[str, str, str]]:
    """Yield the options that the user added, without the values of variables."""
    yield from (("--env", name, "--env sets it") for name in container.user_env)
    yield from (("--env", name, "--env names it: its value is not in any text") for name in container.passed_names)
    yield from (
        ("--mount", bind.target, f"--volume: {bind.source}, {_describe_access(bind)}") for bind in container.volumes
    )
    for option, value in (("--cpuset-cpus", container.cpuset_cpus), ("--cpuset-mems", container.cpuset_mems)):
        yield from ((option, value, f"{option} asks for it"),) if value else ()
    if container.network and not (run.network and container.network == run.network.value):
        yield "--network", container.network, "--network asks for it"


def _describe_access(bind: Bind) -> str:
    return "read-only" if bind.read_only else "writable for user 10001 and group 0, if its permissions say so"


def _of_devices(run: Run, container: Container) -> Iterable[tuple[str, str, str]]:
    if run.runtime and container.runtime:
        yield "--runtime", container.runtime, run.runtime.because
    if run.gpus:
        yield "--gpus", container.gpus, run.gpus.because
    for node in run.devices:
        if files := [path for path in container.devices if fnmatchcase(path, node.path)]:
            yield "--device", _format_file_span(files), node.because


def _of_groups(run: Run, container: Container, form: str) -> Iterable[tuple[str, str, str]]:
    """Yield the groups; a pod gets only those whose number is known."""
    for word, group in zip(run.groups, container.groups, strict=True):
        if group.isdigit() or form != "kubernetes":
            yield "--group-add", group if group == word.value else f"{group} ({word.value})", word.because


def _of_address(container: Container, form: str) -> Iterable[tuple[str, str, str]]:
    """Yield who can connect, and how to change that."""
    if form == "kubernetes" or container.ends_by_itself or container.network == "none":
        return
    where = f"{bracket_address(container.address)}:{container.port}"
    only = f"only this machine can connect; --port {EVERY_ADDRESS}:{container.port} lets others"
    because = f"other machines can connect; --port {LOOPBACK}:{container.port} does not let them"
    because = because if is_exposed(container.address) else only
    yield ("--host", container.address, because) if container.network == HOST else ("--publish", where, because)
    if (
        ALLOWED_HOSTS in docker_command.merge_variables(container.env, container)
        and ALLOWED_HOSTS not in container.user_env
    ):
        because = f"names by which a server without a key answers; --env {ALLOWED_HOSTS}=NAME,… is for a proxy's"
        yield "--env", f"{ALLOWED_HOSTS}={container.env[ALLOWED_HOSTS]}", because


def _format_file_span(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"{files[0]} … {files[-1]}"


def _list_word_options(option: str, *values: Word | None) -> Iterable[tuple[str, str, str]]:
    return ((f"{option} {word.value}", word.because, word.source) for word in values if word)
