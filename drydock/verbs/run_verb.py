"""The verb `run`."""

from __future__ import annotations

import sys
from typing import Literal

from drydock.cli.task_helpers import after_dashes, here, words_of
from drydock.cli.verb import Verb
from drydock.model.shared_options import RowOrAutoOption


class RunOptions(RowOrAutoOption):
    """How to start a container."""

    model: str = ""
    """folder, hub id or oci://…@sha256:… of the model; another verb than serve may do without"""
    devices: str = ""
    """device numbers, such as 0,1 or 0-3 [default: all]"""
    modules: str = ""
    """Gaudi's module numbers (hl-smi -Q index,module_id -f csv), instead of --devices"""
    print: bool = False
    """print the command and start nothing; works for other machines too"""
    format: Literal["docker", "compose", "kubernetes", "quadlet", "apptainer"] = "docker"
    """docker, compose, kubernetes, quadlet or apptainer; all but docker are only printed [default: docker]"""
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
    """start the container, print its name and id, and return"""
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


@Verb
def run_container(options: RunOptions) -> None:
    """Serve a model, or run a verb after --, in a container with only the rights that the accelerator needs."""
    from drydock.run import access, container
    from drydock.run import run_verb as run_module

    request = container.RunRequest(
        model=options.model,
        arguments=(*words_of("--arguments", options.arguments), *after_dashes()),
        devices=options.devices,
        modules=options.modules,
        cache=options.cache,
        image=options.image,
        name=options.name,
        network=options.network,
        api_key_file=options.api_key_file,
        no_api_key=options.no_api_key,
        monitor=options.monitor,
        device_class=options.dra,
        env=options.env,
        volumes=options.volume,
        cpuset_cpus=options.cpuset_cpus,
        cpuset_mems=options.cpuset_mems,
        host=options.root,
        stand_ins=options.stand_ins,
        **access.parse_port(options.port)._asdict(),
    )
    how = run_module.How(options.format, options.print, options.detach, options.json)
    sys.exit(run_module.run_target(here(), options.target, request, how))
