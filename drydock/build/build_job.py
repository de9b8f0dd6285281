"""A job: one variant for one platform, all that its image depends on, its foundation's key, and its layouts. IO.

Two OCI layouts of each variant are kept: that of its newest build, with which `verify` compares, and that of its
foundation, on which the next build stands.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform as host
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from drydock.build import bake_plan, foundation, render
from drydock.config import matrix
from drydock.config.added_files import read_added_files
from drydock.core.errors import InputError, StaleError, UntrustedError
from drydock.core.files import compute_checksum, hold_lock_file
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.inputs import overrides
from drydock.inputs.store import default_store
from drydock.lock import image_record, lockfile
from drydock.lock.image_record import PlatformRecord
from drydock.model.locked import Lock, LockedPlatform
from drydock.model.variant import Variant

ARCHITECTURES = {"x86_64": "linux/amd64", "aarch64": "linux/arm64", "s390x": "linux/s390x", "ppc64le": "linux/ppc64le"}


class BuildOptions(NamedTuple):
    """The options of a build."""

    platform: str | None = None
    """None: see `choose_platform`."""
    offline: bool = False
    context_overrides: Mapping[str, str] = MappingProxyType({})
    """Named context → what replaces it: a folder, or what bake takes (docker-image://…)."""


DEFAULTS = BuildOptions()
OWN = "drydock/"
"""Beginning of the name of each image that was built here from what its lock pins."""
STAND_IN = "io.drydock.stand-in"
"""Label of an image that contains something else than its lock pins: the names of the replaced contexts."""
STAND_INS = "drydock-stand-in/"
"""Beginning of such an image's name: it never takes the name of an image that is as locked."""
ATTACHED = "attached"
"""Folder next to a layout that a bundle brought here, with the bundle's documents about the image."""


@dataclass(frozen=True)
class Job:
    """One variant for one platform, ready to be planned. A copy (`dataclasses.replace`) computes its own checksum."""

    variant: Variant
    lock: Lock
    platform: str
    project: Project
    offline: bool = False
    context_overrides: Mapping[str, str] = field(default_factory=dict)
    """Named context → what replaces it: a folder, or what bake takes (docker-image://…)."""

    @property
    def pins(self) -> LockedPlatform:
        """Return what the lock says of the job's platform."""
        return self.lock.platforms[self.platform]

    @cached_property
    def dockerfile(self) -> bytes:
        """Return the committed Dockerfile. The foundation's key needs no other file, and those take longer to make."""
        path = render.dockerfile_path(self.project, self.variant)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise StaleError(f"{self.project.name_of(path)}: file not found", hint="run `./inv render`") from error

    @cached_property
    def sources(self) -> dict[str, bytes]:
        """Return the files of the build's own context: the committed Dockerfile, and what is rendered for the image."""
        files = {render.DOCKERFILE: self.dockerfile, **render.image_files(self.project, self.variant)}
        if self.is_adopted:  # else vLLM's lists are read in the image
            from drydock.build import adoption  # noqa: PLC0415 - few rows are adopted

            files |= adoption.make_lists(self.project, self.variant)
        return files | read_added_files(self.project, self.variant.additions)

    @property
    def is_adopted(self) -> bool:
        """Tell whether the image is its base with two layers more; one with stand-ins is built as others are."""
        return self.variant.is_adopted and not self.context_overrides

    @property
    def export(self) -> str:
        """Return how the job's image is exported."""
        return bake_plan.choose_export(self.dockerfile.decode())

    @property
    def foundation_recipe(self) -> str:
        """Return the instructions that make the job's foundation, which a project's own lines do not change."""
        return foundation.extract_recipe(self.dockerfile.decode())

    @property
    def context(self) -> Path:
        """Return the folder of the build's own context, in the store."""
        return default_store().folder({}, self.sources)

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """Return everything the job's digest depends on, files by their hashes; needs neither network nor store."""
        return self._collect_inputs(self.sources, self.project.entrypoint_hashes, self.context_overrides)

    @cached_property
    def inputs_sha256(self) -> str:
        """Return the checksum of everything the job's digest depends on."""
        return compute_checksum(self.inputs)

    @property
    def stand_in_labels(self) -> dict[str, str]:
        """Return the label that names the replaced contexts; empty if everything is as the lock pins it."""
        return {STAND_IN: ",".join(sorted(self.context_overrides))} if self.context_overrides else {}

    def image(self, digest: str) -> str:
        """Return the name of this job's image in the engine."""
        name = image_name(self.variant.id, digest)
        return STAND_INS + name.removeprefix(OWN) if self.context_overrides else name

    @property
    def layout(self) -> Path:
        """Return the folder of the image's OCI layout, whether it was built or not."""
        return layouts_folder(self.variant.id, self.platform) / self.inputs_sha256

    @property
    def kept_layout(self) -> Path | None:
        """Return the OCI layout that is kept for the same inputs, else None. It may be damaged: see `usable`."""
        return self.layout if (self.layout / "index.json").is_file() else None

    @cached_property
    def record(self) -> PlatformRecord:
        """Return what was shown of this variant for the job's platform, of any inputs."""
        return image_record.read_platform_record(self.project, self.variant.id, self.platform)

    @cached_property
    def recorded_digest(self) -> str | None:
        """Return the digest that is recorded for the same inputs."""
        return self.record.find_digest(self.inputs_sha256)

    def refuse_other(self, digest: str) -> None:
        """Raise UntrustedError if another digest is recorded for the same inputs."""
        if self.recorded_digest not in (None, digest):
            raise UntrustedError(
                f"{self.variant.id} ({self.platform}): the kept image is {digest}, expected {self.recorded_digest},"
                f" which images/{self.variant.id} records for the same inputs",
                hint=f"`./inv build --target {self.variant.id} --no-cache` builds it again; `./inv verify` shows"
                " whether this machine's BuildKit gives another digest",
            )

    def require_recorded(self, digest: str) -> None:
        """Raise UntrustedError unless this digest is recorded for the same inputs."""
        self.refuse_other(digest)
        if self.recorded_digest is None:
            raise UntrustedError(
                f"{self.variant.id} ({self.platform}): images/{self.variant.id} records no digest for these inputs,"
                f" expected {digest}",
                hint=f"`./inv verify --target {self.variant.id} --record` builds the image again, compares it and"
                f" writes its digest into {image_record.name_of_record(self.variant.id)}",
            )

    @cached_property
    def foundation_key(self) -> str:
        """Return the checksum of everything that the foundation's digest depends on."""
        contexts = {name: value for name, value in self.context_overrides.items() if name != "entrypoints"}
        return compute_checksum(
            self._collect_inputs({render.DOCKERFILE: self.foundation_recipe.encode()}, {}, contexts)
        )

    @property
    def foundation(self) -> Path:
        """Return the folder of the foundation's OCI layout, whether it was built or not."""
        return layouts_folder(self.variant.id, self.platform, "foundations") / self.foundation_key

    @property
    def committed_foundation(self) -> str | None:
        """Return the digest that is recorded for the foundation's key; None without one."""
        return self.record.find_foundation(self.foundation_key)

    def _collect_inputs(
        self, files: Mapping[str, bytes], entrypoint: Mapping[str, str], context_overrides: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return files, the entrypoint's hashes and contexts, and what every image depends on."""
        dockerfile = files[render.DOCKERFILE].decode()
        tools = {f"tools/{name}": self.project.tools[name] for name in find_tools(dockerfile, self.project.tools)}
        hashes = {name: hashlib.sha256(content).hexdigest() for name, content in {**files, **tools}.items()}
        hashes |= {f"context {name}": overrides.identify_context(value) for name, value in context_overrides.items()}
        exported = bake_plan.choose_export(dockerfile)
        return bake_plan.collect_inputs(self.variant, self.lock, self.platform, {**hashes, **entrypoint}, exported)


def prepare_job(project: Project, target: str, options: BuildOptions = DEFAULTS) -> Job:
    """Read what a build of `target` needs from the repository.

    Raises StaleError for a lock or generated file that is out of date; TargetError or InputError for wrong options.
    """
    variant = matrix.find_variant(matrix.read_matrix(project), target)
    lock = lockfile.read_lock(lockfile.path_of_lock(project, variant.id))
    lockfile.check_lock_inputs(variant, lock)
    render.check_dockerfile(project, variant, lock)
    platform = choose_platform(variant, options.platform)
    contexts = overrides.resolve_contexts(variant, lock.platforms[platform], options.context_overrides)
    return Job(variant, lock, platform, project, options.offline, contexts)


def choose_platform(variant: Variant, requested: str | None, machine: str = "") -> str:
    """Return the platform to build: the requested one, else the host's own, else the variant's first.

    Raises InputError for one the variant does not have.
    """
    if requested and requested not in variant.platforms:
        raise InputError(f"--platform {requested}: {variant.id} is built for {', '.join(variant.platforms)}")
    host_platform = ARCHITECTURES.get(machine or host.machine(), "")
    return requested or (host_platform if host_platform in variant.platforms else variant.platforms[0])


def find_tools(dockerfile: str, tools: Mapping[str, bytes]) -> list[str]:
    """Return which tools a Dockerfile runs, with those that they import or start. Pure."""
    names = [name for name in tools if f"/tools/{name}" in dockerfile]
    for name in names:  # it grows while it is read
        text = tools[name].decode()
        names += [
            other
            for other in tools
            if other not in names and (f"/{other}" in text or re.search(rf"^import {other[:-3]}$", text, re.MULTILINE))
        ]
    return sorted(names)


def image_name(variant: str, digest: str) -> str:
    """Return the name in the engine of an image that is as locked."""
    return f"{OWN}{variant}:{digest.removeprefix('sha256:')[:12]}"


def layouts_folder(variant: str, platform: str, kind: str = "images") -> Path:
    """Return the folder of a variant's layouts of one kind; hold `layouts_lock` to write into it."""
    return cache_home() / kind / variant / platform.replace("/", "-")


def layouts_lock(variant: str, platform: str) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of a variant's layouts."""
    folder = layouts_folder(variant, platform)
    return hold_lock_file(folder.parent / f"{folder.name}.lock")
