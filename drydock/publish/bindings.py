"""tag.json: the document that binds a tag to an image. Signed, it shows who set the tag, where, and when. IO.

It names all that could be mixed up: repository, tag, variant, image and platforms. For a channel it also carries a
counter, which only grows, and a time: so `verify` notices a channel that was moved back, or that no longer moves. These
are the promises of The Update Framework (specification 1.0, "timestamp role") for one file.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, NamedTuple, Self

from packaging.version import Version
from pydantic import Field, StringConstraints, ValidationError, model_validator

from drydock.attest import cosign, documents
from drydock.core.console import log
from drydock.core.errors import TagError, UntrustedError
from drydock.core.files import format_json
from drydock.model.record import Digest, Identifier, Platform, Record, dump_record
from drydock.oci.reference import TAG
from drydock.publish import tags
from drydock.publish.repository import PublishedTag, Repository

DAY = 86400
"""Seconds."""
CLOCK_SKEW = 3600
"""Seconds by which the clocks of two machines may differ."""
CANDIDATES = 20
"""Documents about one tag whose signature is checked before a publish: anyone may attach more."""

Seconds = Annotated[int, Field(ge=0, lt=1 << 53)]
Kind = Literal["image", "adopted", "foundation", "model", "project"]
"""What a tag names: decides which documents and claims `verify` requires. The user chooses the tag of an adopted image,
a model and a project; that of a foundation is its key."""


class Channel(Record):
    """What a binding says about a tag that moves."""

    name: Annotated[str, StringConstraints(pattern=rf"^{TAG.pattern}$")]
    counter: Seconds
    """Larger than any before: the one before plus 1, and at least the time, so that it needs no other memory."""
    signed: Seconds
    """Time of the publish, Unix seconds."""


class Binding(Record):
    """A tag and what it names. `release` is empty if the image was published to a channel only."""

    schema_: Literal[1] = Field(alias="schema")
    kind: Kind = "image"
    repository: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9\[][A-Za-z0-9.:_/\[\]-]*$", max_length=512)]
    """HOST/REPOSITORY."""
    tag: Annotated[str, StringConstraints(pattern=rf"^{TAG.pattern}$")]
    variant: Identifier | Literal[""]
    """Empty for a model and a project."""
    image: Digest
    """The digest that the tag names: an index, or the only platform's manifest."""
    platforms: Mapping[Platform, Digest]
    """Empty for a project."""
    release: Annotated[str, StringConstraints(pattern=rf"^(?:{tags.VERSION.pattern})?$")]
    channel: Channel | None
    expires: Seconds | None
    """Time after which `verify` refuses the tag, Unix seconds; null for never."""

    @model_validator(mode="after")
    def _tag_agrees(self) -> Self:
        """Refuse a tag that is not the variant's: the grammar of tags.py says which tags it can have.

        A tag that the user chose is a release by that grammar, or begins the digest, or moves as a channel does.
        """
        if self.kind == "image" and self.channel:
            expected = {f"{self.variant}-{self.channel.name}", self.channel.name}
        elif self.kind == "image":
            expected = {f"{self.variant}-{self.release}"}
        elif self.channel:
            expected = {self.channel.name}
        elif self.release:
            expected = {f"{self.tag.removesuffix(self.release).rstrip('-')}-{self.release}"}
        else:
            expected = {self.tag if self.kind == "foundation" else self.image.removeprefix("sha256:")[: len(self.tag)]}
        if self.tag not in expected:
            raise ValueError(f"the tag is {self.tag!r}, expected {' or '.join(sorted(expected))}")
        if self.kind == "image" and self.channel and not tags.CHANNEL.fullmatch(self.channel.name):
            raise ValueError(f"the channel is {self.channel.name!r}, expected a letter, then letters and digits")
        if bool(self.platforms) == (self.kind == "project") or bool(self.variant) == (
            self.kind in ("model", "project")
        ):
            raise ValueError(f"the platforms or the variant do not fit the kind {self.kind}")
        return self

    @property
    def counter(self) -> int:
        """Return the channel's counter; 0 for a release, whose tag never moves."""
        return self.channel.counter if self.channel else 0

    def attached(self) -> documents.Attached:
        """Return it as a document to attach. Earlier versions read that of an image, and know no `kind`."""
        fields = {name: value for name, value in dump_record(self).items() if (name, value) != ("kind", "image")}
        return documents.Attached(documents.TAG, format_json(fields).encode())


class Subject(NamedTuple):
    """What a tag is bound to."""

    repository: str
    variant: str
    image: str
    platforms: Mapping[str, str]
    kind: Kind = "image"

    def is_fixed(self, tag: str) -> bool:
        """Tell whether a tag never moves: a release, or one that the content decides."""
        is_content = self.kind == "foundation" or self.image.startswith(f"sha256:{tag}")
        return tags.is_release(tag) or (self.kind != "image" and is_content)


class Terms(NamedTuple):
    """How it is bound, as the options of `publish` say."""

    release: str = ""
    expires: int = 0
    """Days; 0 for never."""
    allow_rollback: bool = False


def parse_binding(data: bytes | str, where: str) -> Binding:
    """Parse tag.json. Raises UntrustedError with every wrong field."""
    try:
        return Binding.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise UntrustedError(*list_document_errors(error, f"{where}: tag.json")) from error


def list_document_errors(error: ValidationError, where: str) -> list[str]:
    """Return what is wrong with a document, key by key; keys from outside are shown escaped."""
    paths = (ascii(".".join(map(str, item["loc"])))[1:-1] for item in error.errors())
    return [f"{where}: {path}: {item['msg']}" for path, item in zip(paths, error.errors(), strict=True)]


def bind_tag(
    subject: Subject, tag: str, terms: Terms, earlier: Mapping[str, Binding], now: float | None = None
) -> Binding:
    """Return the document that binds a tag; `earlier` is what channels name now, by tag.

    Raises TagError if the channel would go back to an older release and this is not allowed.
    """
    seconds = int(time.time() if now is None else now)
    channel = None
    version = tags.RELEASE.fullmatch(tag) if subject.kind not in ("image", "foundation") else None
    if not subject.is_fixed(tag):
        last = earlier.get(tag)
        _refuse_older(tag, terms, last)
        counter = max(seconds, last.counter + 1 if last else 0)
        name = tag.removeprefix(f"{subject.variant}-") if subject.kind == "image" else tag
        channel = Channel(name=name, counter=counter, signed=seconds)
    return Binding(
        schema_=1,
        kind=subject.kind,
        repository=subject.repository,
        tag=tag,
        variant=subject.variant,
        image=subject.image,
        platforms=subject.platforms,
        release=version["version"] if version else terms.release,
        channel=channel,
        expires=seconds + terms.expires * DAY if terms.expires else None,
    )


def bind_chosen_tag(
    repository: Repository, subject: Subject, planned: PublishedTag, signer: cosign.Signer | None
) -> documents.Attached:
    """Return the document that binds a tag that the user chose. Raises RegistryError or UntrustedError."""
    earlier = {} if subject.is_fixed(planned.tag) else read_channel_bindings(repository, [planned], signer)
    return bind_tag(subject, planned.tag, Terms(), earlier).attached()


def read_channel_bindings(
    repository: Repository, planned: Iterable[PublishedTag], signer: cosign.Signer | None
) -> dict[str, Binding]:
    """Return what the channels among these tags name now, by tag, as this signer's key has signed it.

    Without a key no one can tell who signed: then the document with the highest counter that a clock explains counts.
    Raises RegistryError or UntrustedError.
    """
    moving = [item for item in planned if item.was and not tags.is_release(item.tag)]
    current_bindings = ((item.tag, _read_current_binding(repository, item, signer)) for item in moving)
    return {tag: binding for tag, binding in current_bindings if binding}


def _read_current_binding(repository: Repository, item: PublishedTag, signer: cosign.Signer | None) -> Binding | None:
    candidates = []
    for document in repository.documents(item.was or "", (documents.TAG,)):
        try:
            binding = parse_binding(document.data, f"{repository.where}: {document.manifest}")
        except UntrustedError as error:
            log(f"ignoring a document that is not valid: {error.problems[0]}")
            continue
        right = (binding.tag, binding.repository, binding.image) == (item.tag, str(repository.where), item.was)
        if right and binding.counter <= time.time() + CLOCK_SKEW:
            candidates.append((binding, repository.where.at(document.manifest)))
    candidates.sort(key=lambda pair: pair[0].counter, reverse=True)
    key = signer if signer and signer.key else None
    return next(
        (binding for binding, where in candidates[:CANDIDATES] if key is None or cosign.signed_by([where], key)), None
    )


def _refuse_older(tag: str, terms: Terms, last: Binding | None) -> None:
    """Raise TagError if a channel would go back to an older release."""
    if terms.allow_rollback or not (last and last.release and terms.release):
        return
    if Version(terms.release) < Version(last.release):
        raise TagError(
            f"{tag}: the channel names release {last.release}, cannot move it back to {terms.release}",
            hint="publish without --channel; or with --allow-rollback, to take the newer release back",
        )
