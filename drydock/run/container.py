"""A variant's run record, a machine and a model → the container that serves it. Pure, given the machine.

Least privilege: no capabilities, no new privileges, a read-only root file system, and in addition only what the record
lists, with a reason each. drydock/run/docker_command.py and drydock/run/kubernetes_manifest.py write the result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from drydock.build.build_job import OWN, STAND_INS
from drydock.core.errors import InputError
from drydock.model.record import Record
from drydock.model.running import MODELS, Run, Word
from drydock.model.variant import Engines, Variant
from drydock.oci.reference import OCI, strip_credentials
from drydock.run import access, conditional_options, device_files, recorded_host, user_options
from drydock.run.machine import Machine
from drydock.run.modules import MODULES_VARIABLE, ChosenModules, choose_modules
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.redact import redact_text
from entrypoints.model import bucket

API_PORT, STATUS_PORT = 8000, 8001
"""vLLM's default port (`vllm serve --help`), and the supervisor's own."""
FROM_THE_SHELL = ("HF_TOKEN", "HF_ENDPOINT")
"""Variables for downloads from the hub, passed by name, so that no secret is printed or stored."""
FOR_BUCKETS: Mapping[str, tuple[str, ...]] = {
    "s3": (
        *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_EC2_METADATA_DISABLED"),
        *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
        *("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "RUNAI_STREAMER_S3_UNSIGNED"),
    ),
    "gs": (
        *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"),
        *("RUNAI_STREAMER_GCS_CREDENTIAL_FILE", "RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS"),
    ),
}
"""The same for a bucket. Source: the variables that runai-model-streamer-s3 and -gcs 0.17 and their clients read."""
BUCKETS = bucket.SCHEMES
MODEL_FLAG = "--model"
DIGEST = "DRYDOCK_IMAGE_DIGEST"
"""Variable with the image's digest, which the entrypoint uses as cache key. Without it, the installed versions are."""

_HUB_ID = re.compile(r"(modelscope:(?=[^/]+/))?[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""With modelscope: before ORG/NAME, the entrypoint makes vLLM take the model from ModelScope."""
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_IMAGE = re.compile(r"[A-Za-z0-9\[][\w.:/\[\]-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)


WITH_MODEL = (user_options.SERVE, "plan", "warm", "convert", "bench")
"""Verbs of the entrypoint that take --model."""
ASSUMING = "this machine has none of these devices"
INSTEAD = (MODEL_FLAG, "--url", "--diff")
"""Flags with which such a verb needs no other model: a server's (bench), or files' (plan)."""
LISTENING = (user_options.SERVE, "plan", "warm")
"""Verbs that start a server, or plan one: they take its address and ports."""


class RunRequest(Record):
    """The user's options."""

    model: str = ""
    """A folder, a hub id, modelscope: and a hub id, a folder of a bucket (s3:// or gs://), or oci: and an image by
    digest. Empty: none, for other verbs."""
    devices: str = ""
    """Device numbers, such as 0,1 or 0-3. Empty: all."""
    modules: str = ""
    """Gaudi's module numbers, instead of device numbers."""
    port: int = API_PORT
    """On the host. The status port is the next one, on loopback."""
    address: str = ""
    """The host's address to publish the port on. Empty: loopback."""
    api_key_file: str = ""
    """A file of this machine with the key that clients must send."""
    no_api_key: bool = False
    """Whether clients on other machines need no key."""
    cache: str = ""
    """A volume's name, or a folder's path, with a slash."""
    image: str = ""
    name: str = ""
    env: tuple[str, ...] = ()
    """NAME or NAME=VALUE."""
    volumes: tuple[str, ...] = ()
    """SOURCE:TARGET or SOURCE:TARGET:ro."""
    network: str = ""
    """The engine's network. Empty: what the record says."""
    host: str = ""
    """A recorded host that stands for the Kubernetes nodes. Empty: this machine, if it has the accelerator."""
    cpuset_cpus: str = ""
    """CPUs of the container, such as 0-31. Empty: all."""
    cpuset_mems: str = ""
    """Memory nodes of the container, such as 0. Empty: all."""
    stand_ins: bool = False
    """Whether to start the image that is built on stand-ins."""
    monitor: bool = False
    """Whether a Kubernetes manifest has a PodMonitor."""
    device_class: str = ""
    """Of Kubernetes' dynamic resource allocation, for its devices. Empty: the device plugin's resource."""
    arguments: tuple[str, ...] = ()
    """Flags for serve and vLLM, unchanged; or, if the first is no flag, another verb or a command, and its words."""


class Bind(Record):
    """A folder or file of the host, or an image, in the container."""

    source: str
    target: str
    read_only: bool = True
    kind: Literal["bind", "image"] = "bind"


class Container(Record):
    """The options of one container, in docker's terms."""

    record: Run
    """What the options are from, with the reason for each."""
    name: str
    image: str
    compression: str
    """Of the image's layers: zstd, gzip or uncompressed."""
    oldest: Engines
    """The oldest engines that can pull the image."""
    arguments: tuple[str, ...]
    model: Bind | None
    cache: str
    start_minutes: int
    """Minutes that a first start may take; 0 if the accelerator's record does not say."""
    address: str
    """Never empty. With the host's network the server listens on it, otherwise docker does."""
    port: int
    key_required: bool
    """Whether a printed command or manifest must not start without the API key in its variable."""
    devices: tuple[str, ...]
    count: int
    """Number of devices."""
    resource: str
    """Resource name of the Kubernetes device plugin; empty if there is none."""
    device_class: str
    """Class that a pod claims its devices of, instead of the resource; empty for the resource."""
    monitor: bool
    """Whether a PodMonitor belongs to its manifest."""
    nodes: Mapping[str, str]
    """Labels of the Kubernetes nodes that its pod selects."""
    visible: Mapping[str, str]
    """The environment variable that selects devices; empty if there is none. In Kubernetes the plugin sets it."""
    runtime: str
    gpus: str
    """Value of --gpus: all, or device=0,1."""
    privileged: bool
    capabilities: tuple[str, ...]
    security: tuple[str, ...]
    groups: tuple[str, ...]
    """Numbers, or names of groups that this machine does not have."""
    mounts: tuple[Bind, ...]
    ulimits: tuple[str, ...]
    cpuset_cpus: str
    """The user's, in docker's words; empty: all."""
    cpuset_mems: str
    shm: str
    ipc: str
    network: str
    user: str
    env: Mapping[str, str]
    user_env: Mapping[str, str]
    """The user's variables, which win over `env` and `visible`."""
    passed_names: tuple[str, ...]
    """The user's variables whose values the shell has, or a secret."""
    volumes: tuple[Bind, ...]
    """The user's."""
    ends_by_itself: bool
    """Whether it runs something else than serve: it ends by itself, and clients cannot connect."""
    claim: str
    """Name of the claim of its cache in Kubernetes: that of the server."""
    downloads: tuple[str, ...]
    """Variables for the hub or bucket that the model comes from; none if it is mounted."""
    native: bool
    """Whether this machine has the accelerator."""
    notes: tuple[str, ...]
    """Other remarks than the reason for each option (drydock/run/option_reasons.py)."""
    absent_cards: tuple[str, ...]
    """The chosen cards that this machine, which has others, does not have."""
    missing_parts: tuple[str, ...]
    """What the container needs and this machine lacks; the same cards among it."""


def make_container(variant: Variant, request: RunRequest, machine: Machine) -> Container:
    """Return the container's options. Raises InputError for invalid user options.

    request → command → devices, with the record that so many of them need → network → files → variables → container
    """
    verb, words = user_options.split_verb(request.arguments)
    command = _Command(verb, tuple(words), recorded_host.is_for_recorded_host(verb, words))
    devices = _choose_devices(variant, request, machine, command)
    run, native = devices.run, devices.native
    network = user_options.parse_network(request.network) or _get_word_value(run.network)
    address = _choose_address(request, network)
    files = _choose_files(request, machine, command, devices)
    variables = user_options.parse_variables(request.env)
    server = _user_name(request.name) if request.name else name_of(variant.id)
    serves = verb == user_options.SERVE
    return Container(
        record=run,
        name=server if serves or request.name else name_of(f"{server}-{user_options.suffix_of(verb)}"),
        image=_check_image(request.image or f"{OWN}{variant.id}:latest"),
        compression=variant.compression.algorithm,
        oldest=variant.compression.oldest,
        arguments=_make_arguments(command, request, network, address, files.reference),
        model=files.model,
        cache=_parse_cache(request.cache or f"drydock-{variant.accelerator}-cache"),
        start_minutes=int(run.start.value.removesuffix("m")) if run.start else 0,
        address=address,
        port=request.port,
        key_required=serves and _needs_key(request, address),
        devices=() if run.privileged else devices.files,
        count=devices.number,
        resource=run.kubernetes.resource if run.kubernetes else "",
        device_class=request.device_class,
        monitor=request.monitor,
        nodes={},
        visible=devices.visible,
        runtime=_get_word_value(run.runtime),
        gpus=_format_gpus(run, devices.chosen),
        privileged=run.privileged is not None,
        capabilities=tuple(word.value.upper().removeprefix("CAP_") for word in run.capabilities),
        security=_list_security_options(run),
        groups=tuple((machine.group(word.value) if native else "") or word.value for word in run.groups),
        mounts=files.mounts,
        ulimits=tuple(word.value for word in run.ulimits),
        cpuset_cpus=_parse_cpuset("--cpuset-cpus", request.cpuset_cpus),
        cpuset_mems=_parse_cpuset("--cpuset-mems", request.cpuset_mems),
        shm=_get_word_value(run.shm) if not run.ipc else "",
        ipc=_get_word_value(run.ipc),
        network=network,
        user=_get_word_value(run.user),
        env=_parse_digest(request.image)
        | {name: text_of(setting.value) for name, setting in run.env.items()}
        | (recorded_host.make_recorded_variables() if command.is_recorded else {}),
        user_env={**variables.user_env, **devices.modules},
        passed_names=variables.passed_names,
        volumes=files.volumes,
        ends_by_itself=not serves,
        claim=server,
        downloads=() if files.model else list_download_variables(files.reference),
        native=native,
        notes=(
            *_note_other_machine(run, devices.chosen, native=native),
            *user_options.warn_misspelt_names(
                (*variables.user_env, *variables.passed_names), list_known_variables(variant).names
            ),
            *_note_replaced_network(run, network),
            *_note_unused_model(verb, files.reference),
            *devices.notes,
        ),
        absent_cards=devices.absent_cards,
        missing_parts=(*devices.absent_cards, *devices.missing_parts, *files.missing_parts),
    )


class _Command(NamedTuple):
    """What the container runs."""

    verb: str
    words: tuple[str, ...]
    """As the user wrote them."""
    is_recorded: bool
    """Whether it is about a recorded host: then it gets no device of this machine, and no card is chosen."""


def _parse_cpuset(option: str, text: str) -> str:
    """Return the user's CPUs or memory nodes as docker takes them. Raises InputError."""
    try:
        return format_id_list(parse_id_list(text)) if text else ""
    except ValueError as error:
        raise InputError(f"{option} {text!r}: expected {error.args[0]}", hint=f"{option} 0-3,8") from error


def is_native(run: Run, machine: Machine) -> bool:
    """Return whether this machine has the accelerator: any of the device files and mounts in the record."""
    paths = [*(node.path for node in run.devices), *(mount.path for mount in run.mounts)]
    return not paths or any(machine.matches(path) for path in paths)


def parse_numbers(text: str, option: str = "--devices") -> tuple[int, ...]:
    """Parse `0,1` or `0-3`, keeping the order. Raises InputError."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"{option} {text}: found {part.strip()!r}, expected numbers such as 0,1 or 0-3")
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(dict.fromkeys(numbers))


def _user_name(text: str) -> str:
    """Return the user's name for a container, if docker accepts it. Raises InputError."""
    if not _NAME.fullmatch(text):
        raise InputError(f"--name {text}: expected letters, digits, hyphens, underscores and dots")
    return text


def name_of(text: str) -> str:
    """Convert to a name that docker and Kubernetes accept: lower case, digits, hyphens. Raises InputError."""
    name = re.sub(r"[^a-z0-9]+", "-", _user_name(text).lower()).strip("-")
    return (name if name[:1].isalpha() else f"vllm-{name}")[:63].rstrip("-")


def is_local(image: str) -> bool:
    """Return whether an image's name says that it was built on this machine.

    Such an image is never pulled: another one could have its name at a public registry.
    """
    return image.startswith((OWN, STAND_INS))


# --- devices --------------------------------------------------------------------------------------------------------


class _Devices(NamedTuple):
    """What the container has of this machine's devices."""

    run: Run
    """The record, with the options that so many devices need."""
    native: bool
    """Whether this machine has the accelerator."""
    chosen: Sequence[int] | None
    """Numbers of the cards that the user chose; None for all."""
    number: int
    files: tuple[str, ...]
    visible: Mapping[str, str]
    modules: Mapping[str, str]
    """The variable with the user's --modules."""
    absent_cards: tuple[str, ...]
    """The chosen cards that this machine does not have."""
    missing_parts: Sequence[str]
    notes: Sequence[str]


def _choose_devices(variant: Variant, request: RunRequest, machine: Machine, command: _Command) -> _Devices:
    """Return the devices, by --modules, --devices or all. Raises InputError."""
    base = recorded_host.without_devices(variant.run) if command.is_recorded else variant.run
    native = is_native(base, machine)
    modules = None if command.is_recorded else _choose_user_modules(variant, request, machine)
    chosen_cards: Sequence[int] | None = None
    if modules:
        chosen_cards = modules.devices
    elif not command.is_recorded:
        chosen_cards = _choose_cards(variant, request)
    numbers = device_files.choose_card_numbers(base, machine, chosen_cards)
    number = len(modules.numbers if modules else numbers)
    run, note = conditional_options.extend_run_record(base, number, command.words, machine, native=native)
    files, missing = device_files.choose_device_files(run, machine, chosen_cards, native=native)
    absent_cards = device_files.list_absent_cards(run, machine, chosen_cards)
    return _Devices(
        run=run,
        native=native,
        chosen=chosen_cards,
        number=number,
        files=files,
        visible=device_files.select_visible_cards(run, chosen_cards, numbers),
        modules={MODULES_VARIABLE: ",".join(map(str, modules.numbers))} if modules else {},
        absent_cards=(*(modules.absent if modules else ()), *absent_cards),
        missing_parts=missing,
        notes=[note] if note else [],
    )


def _choose_cards(variant: Variant, request: RunRequest) -> tuple[int, ...] | None:
    """Return the numbers of the chosen cards; None for all. Raises InputError if this accelerator has no cards."""
    run = variant.run
    has_cards = run.gpus or run.visible or any(node.each for node in run.devices)
    for option, text in (("--devices", request.devices), ("--dra", request.device_class)):
        if text and not has_cards:
            raise InputError(f"{option} {text}: {variant.id} runs on no device that has a number", hint="leave it out")
    return parse_numbers(request.devices) if request.devices else None


def _choose_user_modules(variant: Variant, request: RunRequest, machine: Machine) -> ChosenModules | None:
    """Return the cards of --modules; None without it. Raises InputError if another option chooses cards too."""
    if not request.modules:
        return None
    variable_names = [name.partition("=")[0] for name in request.env]
    other_option = (
        "--devices" if request.devices else f"--env {MODULES_VARIABLE}" if MODULES_VARIABLE in variable_names else None
    )
    if other_option:
        raise InputError(
            f"--modules {request.modules} and {other_option}: both choose the cards", hint="give one of them"
        )
    return choose_modules(variant, parse_numbers(request.modules, "--modules"), machine)


def _format_gpus(run: Run, chosen_numbers: Sequence[int] | None) -> str:
    if not run.gpus or chosen_numbers is None:
        return _get_word_value(run.gpus)
    return f"device={','.join(map(str, chosen_numbers))}"


# --- files, model, words --------------------------------------------------------------------------------------------


class _ContainerFiles(NamedTuple):
    """What of this machine's files is in the container."""

    model: Bind | None
    reference: str
    """Value of the container's --model; empty: none."""
    mounts: tuple[Bind, ...]
    """Those of the record."""
    volumes: tuple[Bind, ...]
    """A recorded host's files, then the user's."""
    missing_parts: Sequence[str]


def _choose_files(request: RunRequest, machine: Machine, command: _Command, devices: _Devices) -> _ContainerFiles:
    """Return the model, the record's mounts, including optional ones that exist, and the volumes. Raises InputError."""
    absent = [mount for mount in devices.run.mounts if not machine.has(mount.path)]
    mounts = [
        Bind(source=mount.path, target=mount.path)
        for mount in devices.run.mounts
        if not (devices.native and mount.optional and mount in absent)
    ]
    model, reference = _resolve_model(request.model) if request.model else (None, "")
    recorded = recorded_host.find_files(command.words) if command.is_recorded else ()
    carried = (Bind(**file._asdict()) for file in recorded)
    volumes = (*carried, *(Bind(**user_options.parse_volume(text)._asdict()) for text in request.volumes))
    missing = [f"no file or folder {mount.path}" for mount in absent if not mount.optional]
    missing += [*_no_folder(model), *_no_source(volumes)]
    return _ContainerFiles(model, reference, tuple(mounts), volumes, missing)


def _resolve_model(text: str) -> tuple[Bind | None, str]:
    """Return the mount of a model's folder or image, and the value of the container's --model. Raises InputError."""
    if text.startswith(OCI):
        bind = image_of_model(text)
        return bind, bind.target
    check_bucket(text, "--model ")
    if text.startswith(BUCKETS):
        return None, text
    path = user_options.expand_user(text)
    if os.path.isdir(path) or path.is_absolute():  # noqa: PTH112 - Path.is_dir raises for a too long name
        whole = path.resolve()
        target = f"{MODELS}/{whole.name or 'model'}"
        return Bind(source=str(whole), target=target), target
    if text.startswith((".", "~")) or not _HUB_ID.fullmatch(text):
        raise InputError(f"--model {text}: expected an existing folder or a hub id such as Qwen/Qwen3-8B")
    return None, text


def check_bucket(address: str, where: str) -> None:
    """Raise InputError for a model in a bucket whose address has another form than the image takes."""
    if address.startswith(BUCKETS) and not bucket.ADDRESS.fullmatch(address):
        expected = f"expected {address[:5]}BUCKET/FOLDER, without credentials"
        raise InputError(
            f"{where}{redact_text(address)}: {expected}", hint=f"export {FOR_BUCKETS[address[:2]][0]} instead"
        )


def list_download_variables(model: str) -> tuple[str, ...]:
    """Return the variables for the hub or bucket of a model that is not mounted."""
    return FOR_BUCKETS.get(model.partition("://")[0], FROM_THE_SHELL)


def image_of_model(address: str) -> Bind:
    """Return the mount of a model that is an image. Raises InputError if the address has no digest."""
    from drydock.inputs import model_images  # noqa: PLC0415 - it imports what speaks to servers

    where = model_images.by_digest(address)
    return Bind(source=str(where), target=model_images.in_container(address), kind="image")


def _parse_cache(text: str) -> str:
    """Return a volume's name, or a folder's absolute path. Raises InputError."""
    if "/" in text:
        return str(user_options.expand_user(text).absolute())
    if not _NAME.fullmatch(text):
        raise InputError(f"--cache {text}: expected a volume name, or a path with a slash", hint=f"./{text} is a path")
    return text


def _check_image(text: str) -> str:
    if not is_image(text):
        hint = "a digest is sha256: and 64 lower-case hexadecimal digits" if "@" in strip_credentials(text) else ""
        raise InputError(
            f"--image {strip_credentials(text)}: expected a reference such as registry.example/vllm:1", hint=hint
        )
    return text


def is_image(text: str) -> bool:
    """Return whether a text can be a reference to an image; none that can is expanded by Compose or a shell."""
    return bool(_IMAGE.fullmatch(text))


def _parse_digest(image: str) -> dict[str, str]:
    """Return the digest in a reference. A tag's current digest is not looked up, because the tag may move."""
    _, _, digest = image.partition("@")
    return {DIGEST: digest} if digest else {}


NO_PATH = ("no folder ", "no file or folder ")
"""How what is missing begins if it is no device."""


def _no_folder(model: Bind | None) -> list[str]:
    folder = model.source if model and model.kind == "bind" else ""
    return [f"no folder {folder}"] if folder and not os.path.isdir(folder) else []  # noqa: PTH112 - as above


def _no_source(volumes: Iterable[Bind]) -> list[str]:
    return [f"no file or folder {bind.source}" for bind in volumes if not os.path.exists(bind.source)]  # noqa: PTH110 - as above


def _make_arguments(
    command: _Command, request: RunRequest, network: str, address: str, reference: str
) -> tuple[str, ...]:
    """Return the verb, drydock's flags, and the user's words.

    The flags are the model, and with the machine's network the address and the ports.
    """
    verb, words = command.verb, request.arguments
    has_own_model = verb != user_options.SERVE and any(access.value_of(words, flag) for flag in INSTEAD)
    omits_model = has_own_model or not reference or verb not in WITH_MODEL
    flags = [] if omits_model else [MODEL_FLAG, reference]
    if network == user_options.HOST and verb in LISTENING:
        flags += [] if access.value_of(words, access.HOST_FLAG) else [access.HOST_FLAG, address]
        if request.port != API_PORT:
            flags += ["--port", str(request.port), "--status-port", str(request.port + 1)]
    inside = recorded_host.name_in_container(command.words) if command.is_recorded else command.words
    return (verb, *flags, *inside)


def _choose_address(request: RunRequest, network: str) -> str:
    """Return the address to listen on. With the machine's network, vLLM's own --host wins."""
    vllm_host = access.value_of(request.arguments, access.HOST_FLAG) if network == user_options.HOST else ""
    return vllm_host or request.address or access.LOOPBACK


def _needs_key(request: RunRequest, address: str) -> bool:
    """Return whether clients must send the key of API_KEY: they are elsewhere, or the user gave one."""
    if access.value_of(request.arguments, access.FILE_FLAG):
        return False  # the entrypoint reads the key from a file in the container
    return bool(request.api_key_file) or (access.is_exposed(address) and not request.no_api_key)


def _list_security_options(run: Run) -> tuple[str, ...]:
    options = tuple(word.value for word in run.security)
    is_stated = any(word.startswith("no-new-privileges") for word in options)
    return options if is_stated else ("no-new-privileges", *options)


def _get_word_value(word: Word | None) -> str:
    return word.value if word else ""


def text_of(value: object) -> str:
    """Return a setting as a variable's value."""
    return str(int(value)) if isinstance(value, bool) else str(value)


# --- remarks ----------------------------------------------------------------------------------------------------------


def _note_other_machine(run: Run, chosen_numbers: Sequence[int] | None, *, native: bool) -> Iterable[str]:
    if not native:
        number = f" {run.usual or 1} with" if chosen_numbers is None else ""
        yield f"{ASSUMING}; assuming{number} the usual device files"


def list_known_variables(variant: Variant) -> user_options.KnownVariables:
    """Return the variables that mean something in this container."""
    variables, of_roles = variant.variables, (item for role in variant.roles.values() for item in role.settings)
    settings = (item.setting for item in (*variant.settings, *of_roles))
    names = (*variables.documented, *variables.devices, *variant.run.env, *variant.caches, *settings)
    return user_options.KnownVariables(
        names, ("DRYDOCK_", *variables.shown, *variables.compiling, *variables.not_compiling)
    )


def _note_replaced_network(run: Run, network: str) -> Iterable[str]:
    if run.network and network != run.network.value:
        yield f"--network {network} replaces {run.network.value}: {run.network.because}"


def _note_unused_model(verb: str, reference: str) -> Iterable[str]:
    if reference and verb not in WITH_MODEL:
        yield f"{verb} gets no {MODEL_FLAG}: in the container the model is {reference}"
