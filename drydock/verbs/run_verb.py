"""The verb `run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

from drydock.cli.task_helpers import after_dashes, here, words_of, write_result
from drydock.cli.verb import Verb
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.model.shared_options import RowOrAutoOption
from entrypoints.core.redact import redact_argv

if TYPE_CHECKING:
    from drydock.run.container import RunRequest
    from drydock.run.engine import Here


class RunOptions(RowOrAutoOption):
    """How to start a container."""

    model: str = ""
    """folder, hub id or oci://…@sha256:… of the model [default: the row's, or the only one below /models]"""
    devices: str = ""
    """device numbers, such as 0,1 or 0-3 [default: all]"""
    modules: str = ""
    """Gaudi's module numbers (hl-smi -Q index,module_id -f csv), instead of --devices"""
    print: bool = False
    """print the command and start nothing; works for other machines too"""
    format: Literal["docker", "compose", "kubernetes", "quadlet", "apptainer", "prometheus", "grafana"] = "docker"
    """docker, compose, kubernetes, quadlet, apptainer, prometheus (alert rules) or grafana (a dashboard); all but
    docker are only printed [default: docker]"""
    port: str = "8000"
    """PORT or IP:PORT; the status port is the next one, on loopback [default: 127.0.0.1:8000]"""
    cache: str = ""
    """volume name, or path with a slash, for models and compiled code"""
    image: str = ""
    """image to run [default: the one built here]"""
    name: str = ""
    """container name"""
    volume: tuple[str, ...] = ()
    """SOURCE:TARGET or SOURCE:TARGET:ro: mount a folder or file of this machine; repeatable"""
    network: str = ""
    """network of the engine, or host [default: what the accelerator needs]"""
    cpuset_cpus: str = ""
    """CPUs of the container, such as 0-31 [default: all]"""
    cpuset_mems: str = ""
    """memory nodes of the container, such as 0 [default: all]"""
    arguments: str = ""
    """arguments for serve and vLLM as one string; or pass them after --, or after -- another verb"""
    api_key_file: str = ""
    """file with the key that clients must send [default: VLLM_API_KEY]"""
    no_api_key: bool = False
    """let other machines connect without a key, if --port has their address"""
    detach: bool = False
    """start the container, print its name and id, and return; with --print, the command that does so"""
    json: bool = False
    """with --detach or --print: print the result as JSON on standard output"""
    stand_ins: bool = False
    """build and start a stand-in: the row's Dockerfile and entrypoint, and a stub in place of vLLM"""
    root: str = ""
    """recorded host (facts --record host.json) for this machine, with --target auto, --stand-ins or kubernetes"""
    monitor: bool = False
    """with --format kubernetes: add a PodMonitor, for vLLM's metrics and the status port's"""
    dra: str = ""
    """with --format kubernetes: claim the devices of this device class, instead of the device plugin's resource"""
    env: tuple[str, ...] = ()
    """NAME=VALUE, or NAME to pass it from your shell (secrets only so); repeatable"""

    @property
    def prints(self) -> bool:
        """Return whether nothing is started."""
        return self.print or self.format != "docker"

    def check(self) -> None:
        """Raise InputError for options that do not go together."""
        if self.detach and self.format != "docker":
            raise InputError(f"--detach: {self.format} has no such option", hint="leave it out, or --format docker")
        if self.json and not (self.detach or self.prints):
            raise InputError("--json: standard output is the container's", hint="add --detach or --print")


@Verb
def run_container(options: RunOptions) -> None:
    """Serve a model, or run a verb after --, in a container with only the rights that the accelerator needs."""
    from drydock.run import auto, monitoring
    from drydock.run.engine import Here
    from drydock.run.needed_image import Building

    if options.format in monitoring.WRITERS:
        data = monitoring.DATA[options.format]()
        write_result(data, monitoring.WRITERS[options.format](), json=options.json)
        return
    project, request = here(), _make_request(options)
    machine = Building(project) if options.stand_ins or options.target == auto.AUTO else Here(project)
    # A manifest is for that host's kind anyway, and a stand-in runs on it.
    chooses = options.target == auto.AUTO or not (options.stand_ins or options.format == "kubernetes")
    row = auto.resolve_id(project, options.target, options.root if chooses else "")
    sys.exit(run_on_engine(project, row, request, options, machine))


def run_on_engine(project: Project, target: str, request: RunRequest, options: RunOptions, machine: Here) -> int:
    """Start a row with docker, or print its command or manifest; return the exit code.

    Raises TargetError, InputError, and HostError for cards that this machine does not have; before a start also
    EngineError, and HostError for all that this machine lacks.
    """
    from drydock.build.build_job import OWN, STAND_INS
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.run import (
        apptainer,
        docker_command,
        forms,
        needed_image,
        request_checks,
        standin_run,
        user_options,
        user_variables,
    )

    variant = find_variant(read_matrix(project), target)
    if request.stand_ins:
        variant, request = standin_run.stand_in(variant, request, machine.machine)
    options.check()
    request = request_checks.take_model_of_machine(variant, request, machine.machine, options.format)
    request_checks.check_request(request, options.format)
    request_checks.check_bucket_scheme(project, variant, request.model)

    if options.format == "apptainer":
        request = apptainer.adapt_request(request, variant.accelerator)
    if not request.image and variant.is_adopted and not request.stand_ins:
        request = needed_image.take_adopted(variant, request, machine)
    ours = "" if request.image else f"{STAND_INS if request.stand_ins else OWN}{variant.id}"
    if ours:
        request = request.model_copy(update={"image": machine.find_own_image(ours) or f"{ours}:latest"})
    container, keys = user_variables.make_without_key(
        variant, request, machine.machine, cluster=options.format == "kubernetes"
    )
    container = user_variables.with_allowed_hosts(container)
    user_options.check_volumes(
        [bind.target for bind in container.volumes], docker_command.list_mount_targets(container)
    )

    if options.prints:
        container = forms.adapt_to_form(options.format, variant, target, request, container, machine)
        lifetime = ("--detach",) if options.detach else ("--rm",)
        forms.print_container(variant, container, options.format, lifetime, json=options.json)
        return 0

    user_variables.set_key(container, request, keys)
    user_variables.check_named(container)
    needed_image.check_present(container)
    for remark in forms.list_run_remarks(variant, container, options.format):
        log(remark)
    for limit in machine.engine_limits():
        log(f"warning: {limit}")
    container = needed_image.require_image(container, target, machine, ours)
    shown = user_variables.hide_values(variant, container)
    terminal = container.ends_by_itself and not options.detach and machine.terminal()
    lifetime = ("--detach",) if options.detach else ("--rm", *(("--interactive", "--tty") if terminal else ()))
    log(
        docker_command.docker_text(
            shown.model_copy(update={"arguments": redact_argv(container.arguments)}), lifetime=lifetime
        )
    )
    argv = docker_command.docker_argv(container, lifetime=lifetime)
    if not options.detach:
        return machine.attach(argv, container, terminal=terminal)
    forms.report_started(machine.detach(argv, container), container, json=options.json)
    return 0


def _make_request(options: RunOptions) -> RunRequest:
    """Return the options with their texts parsed. Raises InputError."""
    from drydock.run import access
    from drydock.run.container import RunRequest

    fields = {name: value for name, value in vars(options).items() if name in RunRequest.model_fields}
    return RunRequest(**{
        **fields,
        **access.parse_port(options.port)._asdict(),
        "arguments": (*words_of("--arguments", options.arguments), *after_dashes()),
        "device_class": options.dra,
        "volumes": options.volume,
        "host": options.root,
    })  # fmt: skip
