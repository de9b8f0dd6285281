"""What is known of the vLLM in an image that a file names: by its row, its digest, its layers or its tag. IO.

Names of images come from others' files: nothing is read of a registry with `offline`, and a registry's answer is
bounded as `adopt --read-layers` bounds it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from drydock.adopt import base_image, layer_facts
from drydock.adopt.base_facts import UNVERSIONED
from drydock.compare.vllm_parser import VllmParser
from drydock.compare.vllm_version import ServedVersion, find_served_version, make_release
from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import format_json, parse_any_json, read_bounded, write_atomically
from drydock.core.paths import cache_home
from drydock.core.project import Project
from drydock.lock import base_lists, vllm_lists
from drydock.lock.base_lists import BaseLists
from drydock.lock.vllm_details import MANY, NOTHING, FlagDetails, VllmDetails
from drydock.lock.vllm_lists import RELEASE
from drydock.model.record import Record, dump_record
from drydock.oci.reference import Reference, parse_reference
from drydock.publish import tags
from drydock.review.written_commands import REQUIREMENT, take_defaults
from entrypoints.request.vllm_lists import BOOLEAN

IMAGES_AT_MOST = 20
"""Images whose layers are read in a run: each has up to 15 GB."""
LATEST = "latest"
FOLDER = "review"
"""In the cache: DIGEST.json of each image that was read."""
_RELEASED = re.compile(r"v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?:-[a-z0-9_.-]+)?")
"""Tags of vLLM's own images: v0.18.0, v0.18.0-cu130, v0.18.0-x86_64. A release candidate is no release."""
_OF_RELEASES = re.compile(r"(?:.*/)?vllm/vllm-openai(?:-(?:rocm|cpu|xpu))?|.*/vllm-cpu-release-repo")
"""Repositories, also behind a mirror, in which a tag is the version of vLLM."""
_LIKE_RELEASES = re.compile(r"(?!(?:.*/)?lmcache/)(?:.*/)?(?:[a-z0-9]+-)?vllm-openai(?:-[a-z0-9-]+)?")
"""Repositories of others, such as aibrix/vllm-openai, whose tags begin with the version of vLLM that they built on.
LMCache's begin with its own."""
_AMD = re.compile(r"[_-]vllm[_-](\d+\.\d+\.\d+)(?![^_-])")
"""Tags of rocm/vllm: rocm6.4.1_vllm_0.9.1_20250702."""


class ReadImage(Record):
    """What was read of an image's layers and configuration."""

    version: str
    """As its vLLM states it; 0.1.dev1+g51f799c1a says nothing."""
    entrypoint: tuple[str, ...]
    lists: BaseLists


class ImageVersion(NamedTuple):
    """What is known of the vLLM in an image."""

    versions: tuple[ServedVersion, ...]
    """One; or two releases around it, both of which must refuse what is refused; none if nothing is known."""
    how: str
    """How that was known, or why nothing is."""
    entrypoint: tuple[str, ...] | None = None
    """The image's own; None if it was not read."""
    warning: str = ""
    """What the image itself has wrong, such as a version that says nothing."""
    is_drydocks: bool = False
    is_guess: bool = False
    """Whether the tag moves, or others gave it: what its release refuses is a warning."""
    is_of_others: bool = False
    """Whether others built it, who may have added connectors, parsers and models."""

    @property
    def title(self) -> str:
        """Return the versions with how they are known."""
        names = " and ".join(version.title for version in self.versions)
        return f"{names}, {self.how}" if names else f"not known: {self.how}"


class ImageFinder:
    """Finds what is known of images; each is asked once."""

    def __init__(self, project: Project, *, offline: bool) -> None:
        self._project, self._offline = project, offline
        self._known: dict[str, ImageVersion] = {}
        self._parsers: dict[str, VllmParser] = {}
        self._read = 0

    @cached_property
    def releases(self) -> Mapping[Version, ServedVersion]:
        """Return the releases that were read, in order."""
        records = [record for record in vllm_lists.list_every(self._project) if record.distribution == RELEASE]
        records.sort(key=lambda record: Version(record.version))
        return {Version(record.version): make_release(self._project, record) for record in records}

    @cached_property
    def all_versions(self) -> tuple[ServedVersion, ...]:
        """Return every release that was read, the oldest first."""
        return tuple(self.releases.values())

    def parser(self, version: ServedVersion) -> VllmParser:
        """Return the parser of a version."""
        if version.name not in self._parsers:
            self._parsers[version.name] = VllmParser(version)
        return self._parsers[version.name]

    def find(self, image: str) -> ImageVersion:
        """Return what is known of an image by its name in a file."""
        text = take_defaults(image)
        if text not in self._known:
            self._known[text] = self._find(text)
        return self._known[text]

    def find_option(self, option: str, text: str) -> ImageVersion:
        """Return what is known of an image, a row or a version that the user names. Raises DrydockError."""
        if not re.search(r"[/:@]", text):
            return ImageVersion((find_served_version(self._project, option, text),), f"as {option} says")
        found_image = self.find(text)
        if not found_image.versions:
            raise InputError(f"{option} {text}: {found_image.title}", hint="name a version, such as 0.33")
        return found_image

    def _find(self, image: str) -> ImageVersion:
        if image.startswith(REQUIREMENT):
            return self._find_release(image.removeprefix(REQUIREMENT))
        if not image or re.search(r"[${}<>]", image):
            how = "its image is a variable or a template" if image else "no image stands next to the command"
            return ImageVersion((), how)
        try:
            reference = parse_reference(image)
        except InputError:
            return ImageVersion((), "its image is no reference")
        if of_row := self._find_row(reference):
            return of_row
        if not self._offline:
            try:
                return self._read_image(image, reference)
            except DrydockError as error:
                log(f"{reference}: not read: {error.problems[0]}")
        return self._find_tag(reference)

    # --- rows --------------------------------------------------------------------------------------------------------

    def _find_row(self, reference: Reference) -> ImageVersion | None:
        """Return the row whose image, or whose base, this is."""
        for variant in read_matrix(self._project):
            release = tags.RELEASE.fullmatch(reference.tag)
            is_own = variant.id == (release["variant"] if release else reference.tag.rpartition("-")[0])
            is_base = variant.is_adopted and reference.digest == getattr(variant.base, "digest", None)
            if not variant.serves or not (is_own or is_base):
                continue
            lists = base_lists.read_base_lists(self._project, variant)
            if lists:
                version = self._make_version(variant.id, variant.vllm.version, lists)
                return ImageVersion((version,), f"as the row {variant.id} says", is_drydocks=is_own)
            try:
                version = find_served_version(self._project, "--target", variant.id)
            except DrydockError as error:
                return ImageVersion((), error.problems[0])
            return ImageVersion((version,), "by its row", is_drydocks=is_own)
        return None

    # --- tags --------------------------------------------------------------------------------------------------------

    def _find_tag(self, reference: Reference) -> ImageVersion:
        """Return the release that a tag names, or those around it."""
        is_release = _OF_RELEASES.fullmatch(reference.repository)
        is_like_release = not is_release and not reference.scheme and _LIKE_RELEASES.fullmatch(reference.repository)
        released = _RELEASED.fullmatch(reference.tag) if is_release or is_like_release else None
        if is_release and reference.name == LATEST:
            how = "the newest that was read: its tag moves"
            return ImageVersion((self.all_versions[-1],), how, is_guess=True)
        match = released or (_AMD.search(reference.tag) if reference.repository == "rocm/vllm" else None)
        if match is None:
            return ImageVersion((), "its tag says nothing of its vLLM" if reference.tag else "it has no tag")
        release = self._find_release(match[1])
        how = "as its tag seems to say" if is_like_release else "by its tag"
        of_others = bool(is_like_release)
        return release._replace(
            how=release.how.replace("by its version", how), is_guess=of_others, is_of_others=of_others
        )

    def _find_release(self, number: str) -> ImageVersion:
        """Return a release by its number, or those around it."""
        try:
            version = Version(number)
        except InvalidVersion:
            return ImageVersion((), f"{number} is no version")
        if version in self.releases:
            return ImageVersion((self.releases[version],), "by its version")
        older = [release for known, release in self.releases.items() if known < version]
        newer = [release for known, release in self.releases.items() if known > version]
        if not older or not newer:
            return ImageVersion((), f"drydock has read no vLLM that is {'newer' if older else 'older'} than {version}")
        return ImageVersion((older[-1], newer[0]), f"between which {version} lies, by its version")

    # --- layers ------------------------------------------------------------------------------------------------------

    def _read_image(self, image: str, reference: Reference) -> ImageVersion:
        """Return what an image's layers say, which are read once for each digest. Raises DrydockError."""
        if reference.scheme:
            raise InputError(f"{image}: an address, expected an image")
        base = base_image.open_base(image)
        path = cache_home(os.environ) / FOLDER / f"{base.digest.removeprefix('sha256:')}.json"
        read = _read_kept(path)
        if read is None or read.lists.digest != base.digest:
            self._read += 1
            if self._read > IMAGES_AT_MOST:
                raise InputError(f"{image}: {IMAGES_AT_MOST} images were read already")
            read = self._read_layers(base)
            write_atomically(path, format_json(dump_record(read)))
        name = f"{reference} ({base.digest[:19]}…)"
        warning = ""
        if UNVERSIONED.fullmatch(read.version):
            warning = f"its vLLM says to be {read.version}, which is no release: what asks for its version is misled"
        return ImageVersion(
            (self._make_version(name, read.version, read.lists),), "by its layers", read.entrypoint, warning
        )

    def _read_layers(self, base: base_image.BaseImage) -> ReadImage:
        contents = layer_facts.read_layer_facts(base, vllm_lists.read_program(self._project))
        if contents.lists is None:
            raise InputError(f"{base.where}: nothing was read of its vLLM")
        settings = next(iter(base.platforms.values())).settings
        words = settings.replaced.get("Entrypoint")
        entrypoint = tuple(map(str, words)) if isinstance(words, list) else ()
        return ReadImage(version=contents.facts.vllm, entrypoint=entrypoint, lists=contents.lists)

    def _make_version(self, name: str, number: str, record: BaseLists) -> ServedVersion:
        """Return lists as a version, with the details of the release that they are most like."""
        nearest, _ = vllm_lists.find_nearest_release(self._project, record.lists)
        takes: Mapping[str, Any] = record.lists.get("flags", {})
        like = next((version for version in self.all_versions if version.version == nearest), None)
        flags = [flag for flag in (like.details.flags if like else ()) if takes.keys() & {*flag.names}]
        spelled = {spelling for flag in flags for spelling in flag.names}
        flags += [
            FlagDetails(names=(flag,), default="", count=NOTHING if kind == BOOLEAN else MANY)
            for flag, kind in takes.items()
            if flag not in spelled
        ]
        details = VllmDetails(flags=tuple(flags))
        return ServedVersion(name, "vllm", number, None, record.lists, details, record.assumed)


def is_upstream(image: str) -> bool:
    """Return whether an image is one of vLLM's own, by its repository."""
    try:
        return bool(_OF_RELEASES.fullmatch(parse_reference(take_defaults(image)).repository))
    except InputError:
        return False


def _read_kept(path: Path) -> ReadImage | None:
    """Return what an earlier run read of an image; None if there is none, or it is damaged."""
    try:
        return ReadImage.model_validate(parse_any_json(read_bounded(path, base_lists.LARGEST)))
    except (ValueError, OSError):
        return None
