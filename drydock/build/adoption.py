"""A row on an image as others built it → the two layers and the settings that make the image one of drydock's.

Nothing runs inside the base: what needs a step there, a build does. Pure, except for reading the project's files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from drydock.build import render
from drydock.core.errors import InputError, RegistryError
from drydock.core.files import format_json, link_or_copy
from drydock.core.project import Project
from drydock.lock import vllm_lists
from drydock.model.names import UNSEEN
from drydock.model.variant import Variant
from drydock.oci import image_layout, strict
from drydock.oci.added_layers import AddedLayer, ExtendedImage, extend_image, list_layers, make_tar
from drydock.oci.image_layout import PATH
from drydock.oci.manifest import to_manifest
from entrypoints.core.text import VARIABLE_NAME

FOLDER = "opt/drydock"
"""Where an image has the entrypoint and what it knows."""
CACHE = {"cache": 0o1775, "cache/home": 0o775}
"""Folders that any user of group 0 writes to, with their modes; the sticky bit as in each of drydock's images."""
OWN = {"HOME": "/", "LANG": "C.UTF-8"}
"""Variables that every image of drydock sets: base.Dockerfile.j2 says why."""
LICENCES = "org.opencontainers.image.licenses"
BASE_DIGEST = "org.opencontainers.image.base.digest"
ADOPTED = "io.drydock.adopted"
"""Label that tells an adopted image from one that drydock built on the same base."""
ADDED_LAYERS = 2
"""The last layers of an adopted image: all that drydock vouches for."""
VARIANT = "io.drydock.variant"
LONGEST_TEXT = 1 << 17
"""Characters of a variable or a label: Linux starts no program with a longer one (MAX_ARG_STRLEN, execve(2))."""
_CHANGED = ("Entrypoint", "Cmd", "User", "WorkingDir", "Healthcheck", "StopSignal", "OnBuild", "Shell")
"""Settings of the base that the new image has otherwise, or not at all."""


class BaseSettings(NamedTuple):
    """What a base's configuration says, as far as an image built on it inherits it."""

    env: Mapping[str, str]
    labels: Mapping[str, str]
    volumes: Sequence[str]
    ports: Sequence[str]
    replaced: Mapping[str, Any]
    """Settings that drydock's image has otherwise: Entrypoint, User, …"""


class BaseParts(NamedTuple):
    """A base for one platform: its layers as the new manifest names them, and what its configuration says."""

    layers: Sequence[Mapping[str, Any]]
    config: Mapping[str, Any]
    settings: BaseSettings


def read_parts(manifest: Mapping[str, Any], config: bytes, where: str) -> BaseParts:
    """Return the parts of a base.

    Raises RegistryError for what contradicts itself, may not be copied, or no engine can read.
    """
    layers = list_layers(manifest, where)
    content = strict.read_config(config, where)
    return BaseParts(layers, content, read_settings(content, where))


def read_settings(config: Mapping[str, Any], where: str) -> BaseSettings:
    """Return the settings of a base's configuration, which `strict.read_config` returned.

    Raises RegistryError for another form than the specification's (image-spec 1.1, config.md).
    """
    settings = config["config"]
    env = settings.get("Env") or []
    volumes, ports = (_read_names(settings, key, where) for key in ("Volumes", "ExposedPorts"))
    if not isinstance(env, list) or not all(isinstance(item, str) and item.find("=") > 0 for item in env):
        raise RegistryError(f"{where}: its configuration has variables (Env) of another form than NAME=VALUE")
    names = [item.partition("=")[0] for item in env]
    if bad := next((name for name in names if not VARIABLE_NAME.fullmatch(name)), None):
        raise RegistryError(f"{where}: Env: found {bad!a:.60}, expected the name of a variable: letters, digits and _")
    labels = settings["Labels"]
    for key, texts in {"Env": env, "Labels": labels, "Volumes": volumes, "ExposedPorts": ports}.items():
        if unseen := [text for text in texts if UNSEEN.search(text)]:
            raise RegistryError(f"{where}: its configuration has {key} with control characters: {unseen[0]!a:.80}")
    if "\0" in "".join(labels.values()):
        raise RegistryError(f"{where}: its configuration has Labels with a NUL byte")
    size = max(map(len, (*env, *volumes, *ports, *labels, *labels.values())), default=0)
    if size >= LONGEST_TEXT:
        raise RegistryError(
            f"{where}: its configuration has a text of {size} characters, expected at most {LONGEST_TEXT}"
        )
    return BaseSettings(
        env=dict(item.split("=", 1) for item in env),
        labels=labels,
        volumes=volumes,
        ports=ports,
        replaced={name: settings[name] for name in _CHANGED if settings.get(name)},
    )


def _read_names(settings: Mapping[str, Any], key: str, where: str) -> list[str]:
    names = settings.get(key) or {}
    if not isinstance(names, dict):
        raise RegistryError(f"{where}: its configuration has {key} of another form than the specification's")
    return sorted(map(str, names))


def refuse_base(base: BaseSettings, where: str) -> None:
    """Raise InputError for a base on which drydock's layers would not be what is run."""
    if row := base.labels.get(VARIANT):
        hint = "`./inv image inspect` shows it; a newer entrypoint comes with a newer build of that row"
        raise InputError(f"{where}: is one of drydock's images already: the row {row!a:.80}", hint=hint)
    hiding = [name for name in base.volumes if _covers(name, f"/{FOLDER}") or _covers(f"/{FOLDER}", name)]
    if hiding:
        text = f"{where}: its VOLUME {hiding[0]!a:.80} would lie over /{FOLDER}, and keep an older entrypoint in use"
        raise InputError(text, hint="ask its publisher for an image without this volume")


def _covers(folder: str, path: str) -> bool:
    """Tell whether a path is in a folder, or is it. An engine resolves `.` and `..` in the name of a volume."""
    above, below = (PurePosixPath(posixpath.normpath(f"/{name.lstrip('/')}")) for name in (folder, path))
    return below.is_relative_to(above)


def refuse_additions(variant: Variant) -> None:
    """Raise InputError for what the project adds to its images and `adopt` cannot: it runs nothing in the image."""
    added = variant.additions
    keys = {"certificates": added.certificates, "files": added.files, "dockerfile": added.dockerfile}
    if keys_in_use := [f"additions.{key}" for key, value in keys.items() if value]:
        raise InputError(
            f"{variant.id}: {', '.join(keys_in_use)}: expected none, since `adopt` runs nothing inside the image",
            hint="without `adopted: true` in its stack, `./inv build` builds an image with them on the same base",
        )


def make_layers(project: Project, variant: Variant) -> list[AddedLayer]:
    """Return the layer of the entrypoint, equal for all adopted images, and that of the row. Raises InputError."""
    entrypoint = {f"{FOLDER}/entrypoints/{name}": data for name, data in project.entrypoint.items()}
    texts = {**render.image_files(project, variant), **make_lists(project, variant)}
    row = {f"{FOLDER}/{name}": data for name, data in texts.items()}
    return [
        AddedLayer(make_tar({FOLDER: 0o755}, entrypoint, variant.epoch), "drydock adopt: the entrypoint"),
        AddedLayer(make_tar(CACHE, row, variant.epoch), "drydock adopt: what the entrypoint knows of the image"),
    ]


def make_lists(project: Project, variant: Variant) -> dict[str, bytes]:
    """Return what is known of the release that the base says it has; nothing for a release that was never read."""
    lists = vllm_lists.find_lists(project, variant, None, variant.platforms[0])
    return {vllm_lists.FILE: format_json({**lists.lists, "assumed": lists.assumed}).encode()} if lists else {}


def extend_base(
    variant: Variant, base: BaseParts, digest: str, added: Sequence[AddedLayer], where: str
) -> ExtendedImage:
    """Return the image of a row on its base; `digest` is the base's, that of its index if it has one.

    Raises RegistryError for a base that contradicts itself.
    """
    settings = make_settings(variant, base.settings, digest)
    return extend_image(base.layers, base.config, added, settings, variant.epoch, where)


def write_layout(project: Project, variant: Variant, digest: str, base: Path, folder: Path) -> None:
    """Write the OCI layout of a row's image, given that of its base, whose layers are linked.

    The image is the one that `adopt` writes into a registry. Raises InputError for additions that need a build, and
    RegistryError for a base that contradicts itself.
    """
    refuse_additions(variant)
    image_digest, manifest = image_layout.find_image(base)
    config = image_layout.path_of_blob(base, manifest["config"]["digest"]).read_bytes()
    where = f"base {image_digest}"
    parts = read_parts(manifest, config, where)
    refuse_base(parts.settings, where)
    added = make_layers(project, variant)
    image = extend_base(variant, parts, digest, added, where)
    new_manifest = to_manifest(image.manifest)
    contents = {layer.digest: layer.data for layer in added}
    contents |= {image.manifest["config"]["digest"]: image.config, new_manifest.digest: new_manifest.data}
    image_layout.path_of_blob(folder, new_manifest.digest).parent.mkdir(parents=True)
    for name in {layer["digest"] for layer in parts.layers}:
        link_or_copy(image_layout.path_of_blob(base, name), image_layout.path_of_blob(folder, name))
    for name, data in contents.items():
        image_layout.path_of_blob(folder, name).write_bytes(data)
    image_layout.write_index(folder, new_manifest.descriptor())


def make_settings(variant: Variant, base: BaseSettings, digest: str) -> dict[str, Any]:
    """Return the settings of the new image's configuration; `digest` is that of the base."""
    command = [variant.interpreter, "-I", "-S", "/opt/drydock/entrypoints"]
    env = {"PATH": PATH.removeprefix("PATH="), **base.env, **OWN}
    steps = render.make_dockerfile_steps(variant)
    return {
        "User": steps.run_as,
        "ExposedPorts": {name: {} for name in sorted({*base.ports, "8000/tcp", "8001/tcp"})},
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Entrypoint": command,
        "Cmd": ["serve"],
        "Volumes": {name: {} for name in sorted({*base.volumes, "/cache"})},
        "WorkingDir": "/",
        "Labels": _make_labels(variant, base, digest),
        "Healthcheck": {
            "Test": ["CMD", *command, "health"],
            "Interval": 10 * SECOND,
            "Timeout": 5 * SECOND,
            "StartPeriod": int(steps.start_period.removesuffix("m")) * 60 * SECOND,
            "StartInterval": 2 * SECOND,
        },
    }


SECOND = 1_000_000_000
"""In nanoseconds, in which a configuration states times."""


def _make_labels(variant: Variant, base: BaseSettings, digest: str) -> dict[str, str]:
    """Return the base's labels, and drydock's over them. The licences stay those that the base states, or none."""
    labels = {name: value for name, value in render.make_image_labels(variant).items() if name != LICENCES}
    return {**base.labels, **labels, BASE_DIGEST: digest, ADOPTED: "true"}
