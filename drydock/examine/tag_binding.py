"""Check the name under which an image is verified: its tag, repository, variant, age, and what was seen before. IO.

A signature shows who signed bytes, not what the name in front of them should mean. The signed tag.json says that, and
this machine remembers the highest counter of each channel, in the cache folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from drydock.attest import documents
from drydock.core.errors import InputError, UntrustedError
from drydock.core.files import compute_checksum, format_json, hold_lock_file, write_atomically
from drydock.core.paths import cache_home
from drydock.model.record import Digest, Record, dump_record
from drydock.oci.reference import Reference, parse_reference
from drydock.publish import bindings, tags
from drydock.publish.bindings import CLOCK_SKEW, DAY, Binding
from drydock.publish.repository import Referrer


class EarlierRelease(Record):
    """release.json, which earlier versions attached to releases: it names neither host, variant nor platforms."""

    schema_: Literal[1] = Field(alias="schema")
    repository: str
    """The repository's path, without its host."""
    tag: str
    image: Digest


class Remembered(Record):
    """The newest state of a channel that this machine has verified."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    repository: str
    tag: str
    counter: int
    image: Digest


class Named(NamedTuple):
    """The name under which an image is verified, and what the registry serves there."""

    where: Reference
    """As the user gave it."""
    repository: str
    """HOST/REPOSITORY in which it was published."""
    image: str
    platforms: Mapping[str, str]
    max_age: int = 0
    """Days since the publish of a channel; 0 for any."""
    now: float = 0.0
    """Unix seconds."""

    @property
    def tag(self) -> str:
        """Return the tag; empty if the reference has only a digest."""
        return choose_tag_name(self.where)


def choose_tag_name(where: Reference) -> str:
    """Return the tag of a reference; empty if it has only a digest."""
    return where.tag or ("" if where.digest else where.name)


def _is_channel(where: Reference) -> bool:
    """Tell whether a reference has a tag that may move, and so an age."""
    tag = choose_tag_name(where)
    return bool(tag) and not tags.is_release(tag)


def choose_tag_age(reference: str, max_age: int, *, with_statement: bool) -> int:
    """Return the age that the tag may have: with a statement, which has an age too, none if the tag never moves."""
    return max_age if not with_statement or _is_channel(parse_reference(reference)) else 0


def make_image_name(where: Reference, mirror_of: str, image: str, platforms: Mapping[str, str], max_age: int) -> Named:
    """Return the name of an image; with `mirror_of`, that of the repository it was copied from. Raises InputError."""
    if mirror_of:
        origin = parse_reference(mirror_of)
        if origin.tag or origin.digest:
            raise InputError(f"--mirror-of {mirror_of}: expected HOST/REPOSITORY, without tag or digest")
    else:
        origin = where
    name = Named(where, f"{origin.host}/{origin.repository}", image, platforms, max_age, time.time())
    if max_age and not _is_channel(where):
        raise InputError(f"--max-age {max_age}: {where} is not a channel: only a channel has an age")
    return name


def read_binding(item: Referrer, name: Named) -> Binding:
    """Return the binding in a document. Raises UntrustedError.

    What release.json of an earlier version does not name is taken as the registry serves it.
    """
    if item.media_type == documents.TAG:
        return bindings.parse_binding(item.data, f"{name.where}: {item.manifest}")
    try:
        return _read_earlier(EarlierRelease.model_validate_json(item.data, strict=True), name)
    except ValidationError as error:
        raise UntrustedError(
            *bindings.list_document_errors(error, f"{name.where}: {item.manifest}: release.json")
        ) from error


def _read_earlier(earlier: EarlierRelease, name: Named) -> Binding:
    """Return what release.json binds. Raises UntrustedError if that is not a release tag."""
    parts = tags.RELEASE.fullmatch(earlier.tag)
    if not parts:
        raise UntrustedError(f"{name.where}: release.json names {earlier.tag!r}, expected a release tag")
    return Binding(
        schema_=1,
        repository=f"{name.repository.partition('/')[0]}/{earlier.repository}",
        tag=earlier.tag,
        variant=parts["variant"],
        image=earlier.image,
        platforms=name.platforms,
        release=parts["version"],
        channel=None,
        expires=None,
    )


def choose_tag_binding(candidates: Iterable[tuple[str, Binding]], name: Named) -> tuple[str, Binding] | None:
    """Return the newest binding of the name, with the digest of its artifact.

    None if the reference has only a digest and nothing was ever bound to it. Raises UntrustedError if the image is
    known by other names only.
    """
    about = [pair for pair in candidates if pair[1].image == name.image]
    if not about and not name.tag:
        return None
    right = [pair for pair in about if name.tag in ("", pair[1].tag)]
    if not right:
        tag_names = ", ".join(sorted({binding.tag for _, binding in about})) or "none"
        raise UntrustedError(
            f"{name.where}: no tag.json binds the tag {name.tag} to {name.image}, whose published tags are: "
            f"{tag_names}. The tag was moved, or set by other means than `./inv publish`, or is a channel that was "
            "published before channels were signed: then its publisher runs `./inv publish` again"
        )
    here = [pair for pair in right if pair[1].repository == name.repository]
    if not here:
        origin = right[0][1].repository
        raise UntrustedError(
            f"{name.where}: the image was published to {origin}, found in {name.repository}. "
            f"If that is a mirror, verify with --mirror-of {origin}"
        )
    return max(here, key=lambda pair: _make_sort_key(pair[1], moving=bool(name.tag)))


def _make_sort_key(binding: Binding, *, moving: bool) -> tuple[int, bool, int]:
    """Return a key that sorts by counter, then by expiry; only by expiry if the reference has no tag that moves."""
    return binding.counter if moving else 0, binding.expires is None, binding.expires or 0


def find_binding_problems(binding: Binding, name: Named, variant: str) -> list[str]:
    """Return what is wrong with a binding: another variant or platforms, expired, too old, from the future. Pure."""
    texts = []
    if variant and binding.variant != variant:
        texts.append(f"the tag {binding.tag} belongs to {binding.variant}, the image is {variant}")
    if dict(binding.platforms) != dict(name.platforms):
        expected, there = (", ".join(sorted(item)) for item in (binding.platforms, name.platforms))
        texts.append(f"the platforms differ from those published: found {there}; expected {expected}")
    if binding.expires is not None and binding.expires < name.now:
        texts.append(
            f"the tag {binding.tag} expired on {_format_date(binding.expires)}: the publisher must publish it again "
            "(`./inv publish --expires`), or the registry hides that it was"
        )
    return [f"{name.where}: {problem}" for problem in (*texts, *_find_age_problems(binding, name))]


def _find_age_problems(binding: Binding, name: Named) -> list[str]:
    if not binding.channel:
        return []
    signed = binding.channel.signed
    if max(signed, binding.counter) > name.now + CLOCK_SKEW:
        return [
            f"{binding.tag} was signed in the future, on {_format_date(signed)}: compare the clocks of both machines"
        ]
    if name.max_age and name.now - signed > name.max_age * DAY:
        return [
            f"{binding.tag} was last published on {_format_date(signed)}, more than {name.max_age} days ago (--max-age)"
        ]
    return []


def remember_channel(binding: Binding, name: Named, home: Path | None = None) -> None:
    """Remember a channel's counter. Raises UntrustedError if this machine has verified a higher one.

    A reference with a digest chose its image: nothing that moves is compared then.
    """
    if not binding.channel or name.where.digest:
        return
    path = _channel_file(binding, home or cache_home())
    with hold_lock_file(path.with_suffix(".lock")):
        remembered = _read_remembered(path)
        if remembered and binding.counter < remembered.counter:
            raise UntrustedError(
                f"{name.where}: the channel was moved back: its counter is {binding.counter} ({binding.image}), this "
                f"machine has verified {remembered.counter} ({remembered.image}). A mirror may lag behind; to accept "
                "an older image, name it by its digest"
            )
        state = Remembered(repository=binding.repository, tag=binding.tag, counter=binding.counter, image=binding.image)
        write_atomically(path, format_json(dump_record(state)))


def parse_remembered(text: str, where: str) -> Remembered:
    """Parse the record of a verified channel. Raises InputError: a damaged one must not hide an older channel."""
    try:
        return Remembered.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(
            f"{where}: invalid record of a verified channel: {error.errors()[0]['msg']}",
            hint="remove the file to trust the channel as it is now",
        ) from error


def _read_remembered(path: Path) -> Remembered | None:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    return parse_remembered(text, str(path))


def _channel_file(binding: Binding, home: Path) -> Path:
    """Return the file for a channel. Its name is a hash, so that a slash or colon in a repository means nothing."""
    return home / "channels" / f"{compute_checksum([binding.repository, binding.tag])}.json"


def _format_date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError):
        return f"{seconds:.0f} seconds after 1970"
