"""The forms in which `run` prints a container: a command, a compose file, manifests, a unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from drydock.build.build_job import STAND_INS
from drydock.core.console import log, write_output
from drydock.core.errors import HostError
from drydock.core.files import format_json
from drydock.model.variant import Variant
from drydock.run import access, apptainer, docker_command, kubernetes_manifest, node_selectors, option_reasons, podman
from drydock.run.container import Container, RunRequest, list_known_variables, name_of
from drydock.run.engine import Here
from drydock.run.user_variables import hide_values, with_values

WRITERS: dict[str, Callable[..., str]] = {
    "docker": docker_command.shell_text,
    "compose": docker_command.compose_text,
    "kubernetes": kubernetes_manifest.kubernetes_text,
    "quadlet": podman.quadlet_text,
    "apptainer": apptainer.apptainer_text,
}
"""Format → the function that writes it."""
DATA: dict[str, Callable[..., Any]] = {
    "docker": docker_command.docker_argv,
    "compose": docker_command.compose_project,
    "kubernetes": kubernetes_manifest.make_objects,
    "quadlet": podman.make_quadlet_unit,
    "apptainer": apptainer.apptainer_argv,
}
"""Format → the function that returns the same as data, for --json."""
REMARKS: dict[str, Callable[[Container], Iterable[str]]] = {
    "kubernetes": kubernetes_manifest.list_cluster_remarks,
    "quadlet": podman.list_unit_remarks,
    "apptainer": apptainer.list_apptainer_remarks,
}
"""Format → the function that returns what must be set up outside of what is printed."""


def adapt_to_form(
    form: str, variant: Variant, target: str, request: RunRequest, container: Container, here: Here
) -> Container:
    """Return the container as a form needs it, with only the names of variables whose values may be secrets."""
    if form == "kubernetes":
        container = _adapt_to_cluster(variant, target, request, container, here)
    if form == "quadlet":
        container = podman.use_cdi_devices(container)
    return hide_values(variant, container)


def _adapt_to_cluster(
    variant: Variant, target: str, request: RunRequest, container: Container, here: Here
) -> Container:
    """Return the container of a manifest: with values for the user's variables, and the labels of its nodes."""
    container = container.model_copy(update={"name": name_of(container.name)})
    container, selects = (
        with_values(container, list_known_variables(variant)),
        bool(node_selectors.list_node_kinds(variant)),
    )
    facts = here.facts(variant, request.host) if request.host or (selects and container.native) else {}
    container = node_selectors.place_on_nodes(variant, target, request, container, facts) if selects else container
    return container.model_copy(
        update={"nodes": {**container.nodes, **node_selectors.make_architecture_label(variant)}}
    )


def print_container(
    variant: Variant, container: Container, form: str, lifetime: Sequence[str] = ("--rm",), *, json: bool
) -> None:
    """Print the command or manifest; `lifetime` are docker's options for when the container ends.

    Raises HostError for chosen cards that this machine does not have.
    """
    of_docker = {"lifetime": lifetime} if form == "docker" else {}
    if container.absent_cards and form != "kubernetes":
        raise HostError(
            *container.absent_cards,
            hint="choose cards that exist, or leave --devices and --modules out for all of them",
        )
    remarks = [*list_run_remarks(variant, container, form), *(container.missing_parts if container.native else ())]
    remarks += REMARKS[form](container) if form in REMARKS else ()
    if container.key_required and form not in ("kubernetes", "quadlet"):
        remarks.append(f"set {access.API_KEY} where this runs: it does not start without a key for clients")
    if container.image.startswith(STAND_INS):
        remarks.append(f"{container.image}: contains stand-ins: it is not what its lock pins")
    if json:
        write_output(
            format_json(
                {
                    form: DATA[form](container, **of_docker),
                    "remarks": remarks,
                    "image": container.image,
                    "name": container.name,
                }
            )
        )
        return
    for remark in remarks:
        log(remark)
    write_output(WRITERS[form](container, **of_docker))


def list_run_remarks(variant: Variant, container: Container, form: str) -> tuple[str, ...]:
    """Return the reasons for options, and what a user should know of the container."""
    engine = f"engine: {variant.compression.summary}"
    has_own_remarks = form in ("kubernetes", "apptainer")  # they have remarks of their own
    groups = () if has_own_remarks else docker_command.unknown_groups(container)
    return (
        *option_reasons.format_option_reasons(container.record, container, form),
        engine,
        *groups,
        *container.notes,
    )


def report_started(identity: str, container: Container, *, json: bool) -> None:
    """Print which container was started, and on standard error what to do with it."""
    if container.ends_by_itself:
        log(f"log: docker logs --follow {container.name}; remove it: docker rm --force {container.name}")
        result = {"id": identity, "name": container.name, "image": container.image}
        write_output(format_json(result) if json else f"{container.name}\n{identity}\n")
        return
    address = f"{access.bracket_address(container.address)}:{container.port}"
    status = f"http://{access.LOOPBACK}:{container.port + 1}/readyz"
    if "--exec" in container.arguments:  # vLLM has replaced the entrypoint
        status = f"http://{address}/health"
    log(f"ready when {status} answers 200; log: docker logs --follow {container.name}")
    log(f"stop and remove it: docker stop {container.name} && docker rm {container.name}")
    result = {"id": identity, "name": container.name, "image": container.image, "address": address, "ready": status}
    write_output(format_json(result) if json else f"{container.name}\n{identity}\n")
