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
from drydock.core.files import checksum, dumps, exclusive, write_atomically
from drydock.core.paths import cache_home
from drydock.model.record import Digest, Record, dump
from drydock.oci.reference import Reference, parse
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
        return self.where.tag or ("" if self.where.digest else self.where.name)


def named(where: Reference, mirror_of: str, image: str, platforms: Mapping[str, str], max_age: int) -> Named:
    """Return the name of an image; with `mirror_of`, that of the repository it was copied from. Raises InputError."""
    if mirror_of:
        origin = parse(mirror_of)
        if origin.tag or origin.digest:
            raise InputError(f"--mirror-of {mirror_of}: expected HOST/REPOSITORY, without tag or digest")
    else:
        origin = where
    found = Named(where, f"{origin.host}/{origin.repository}", image, platforms, max_age, time.time())
    if max_age and (not found.tag or tags.is_release(found.tag)):
        raise InputError(f"--max-age {max_age}: {where} is not a channel: only a channel has an age")
    return found


def read(item: Referrer, name: Named) -> Binding:
    """Return the binding in a document. Raises UntrustedError.

    What release.json of an earlier version does not name is taken as the registry serves it.
    """
    if item.media_type == documents.TAG:
        return bindings.parse(item.data, f"{name.where}: {item.manifest}")
    try:
        return _earlier(EarlierRelease.model_validate_json(item.data, strict=True), name)
    except ValidationError as error:
        raise UntrustedError(*bindings.sentences(error, f"{name.where}: {item.manifest}: release.json")) from error


def _earlier(found: EarlierRelease, name: Named) -> Binding:
    """Return what release.json binds. Raises UntrustedError if that is not a release tag."""
    parts = tags.RELEASE.fullmatch(found.tag)
    if not parts:
        raise UntrustedError(f"{name.where}: release.json names {found.tag!r}, expected a release tag")
    return Binding(
        schema_=1,
        repository=f"{name.repository.partition('/')[0]}/{found.repository}",
        tag=found.tag,
        variant=parts["variant"],
        image=found.image,
        platforms=name.platforms,
        release=parts["version"],
        channel=None,
        expires=None,
    )


def choose(found: Iterable[tuple[str, Binding]], name: Named) -> tuple[str, Binding] | None:
    """Return the newest binding of the name, with the digest of its artifact.

    None if the reference has only a digest and nothing was ever bound to it. Raises UntrustedError if the image is
    known by other names only.
    """
    about = [pair for pair in found if pair[1].image == name.image]
    if not about and not name.tag:
        return None
    right = [pair for pair in about if name.tag in ("", pair[1].tag)]
    if not right:
        known = ", ".join(sorted({binding.tag for _, binding in about})) or "none"
        raise UntrustedError(
            f"{name.where}: no tag.json binds the tag {name.tag} to {name.image}, whose published tags are: {known}. "
            "The tag was moved, or set by other means than `./inv publish`, or is a channel that was published before "
            "channels were signed: then its publisher runs `./inv publish` again"
        )
    here = [pair for pair in right if pair[1].repository == name.repository]
    if not here:
        origin = right[0][1].repository
        raise UntrustedError(
            f"{name.where}: the image was published to {origin}, found in {name.repository}. "
            f"If that is a mirror, verify with --mirror-of {origin}"
        )
    return max(here, key=lambda pair: _order(pair[1], moving=bool(name.tag)))


def _order(binding: Binding, *, moving: bool) -> tuple[int, bool, int]:
    """Return a key that sorts by counter, then by expiry; only by expiry if the reference has no tag that moves."""
    return binding.counter if moving else 0, binding.expires is None, binding.expires or 0


def problems(binding: Binding, name: Named, variant: str) -> list[str]:
    """Return what is wrong with a binding: another variant or platforms, expired, too old, from the future. Pure."""
    found = []
    if variant and binding.variant != variant:
        found.append(f"the tag {binding.tag} belongs to {binding.variant}, the image is {variant}")
    if dict(binding.platforms) != dict(name.platforms):
        expected, there = (", ".join(sorted(item)) for item in (binding.platforms, name.platforms))
        found.append(f"the platforms differ from those published: found {there}; expected {expected}")
    if binding.expires is not None and binding.expires < name.now:
        found.append(
            f"the tag {binding.tag} expired on {_date(binding.expires)}: the publisher must publish it again "
            "(`./inv publish --expires`), or the registry hides that it was"
        )
    return [f"{name.where}: {problem}" for problem in (*found, *_age(binding, name))]


def _age(binding: Binding, name: Named) -> list[str]:
    if not binding.channel:
        return []
    signed = binding.channel.signed
    if max(signed, binding.counter) > name.now + CLOCK_SKEW:
        return [f"{binding.tag} was signed in the future, on {_date(signed)}: compare the clocks of both machines"]
    if name.max_age and name.now - signed > name.max_age * DAY:
        return [f"{binding.tag} was last published on {_date(signed)}, more than {name.max_age} days ago (--max-age)"]
    return []


def remember(binding: Binding, name: Named, home: Path | None = None) -> None:
    """Remember a channel's counter. Raises UntrustedError if this machine has verified a higher one.

    A reference with a digest chose its image: nothing that moves is compared then.
    """
    if not binding.channel or name.where.digest:
        return
    path = _memory(binding, home or cache_home())
    with exclusive(path.with_suffix(".lock")):
        seen = _seen(path)
        if seen and binding.counter < seen.counter:
            raise UntrustedError(
                f"{name.where}: the channel was moved back: its counter is {binding.counter} ({binding.image}), this "
                f"machine has verified {seen.counter} ({seen.image}). A mirror may lag behind; to accept an older "
                f"image, name it by its digest"
            )
        state = Remembered(repository=binding.repository, tag=binding.tag, counter=binding.counter, image=binding.image)
        write_atomically(path, dumps(dump(state)))


def parse_remembered(text: str, where: str) -> Remembered:
    """Parse the record of a verified channel. Raises InputError: a damaged one must not hide an older channel."""
    try:
        return Remembered.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise InputError(
            f"{where}: invalid record of a verified channel: {error.errors()[0]['msg']}",
            hint="remove the file to trust the channel as it is now",
        ) from error


def _seen(path: Path) -> Remembered | None:
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    return parse_remembered(text, str(path))


def _memory(binding: Binding, home: Path) -> Path:
    """Return the file for a channel. Its name is a hash, so that a slash or colon in a repository means nothing."""
    return home / "channels" / f"{checksum([binding.repository, binding.tag])}.json"


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError):
        return f"{seconds:.0f} seconds after 1970"
