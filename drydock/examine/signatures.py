"""Check the signatures of an image and of its documents, and say of what has none where it may come from. IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from drydock.attest import cosign, documents
from drydock.core.errors import InputError, UntrustedError
from drydock.examine.remote_image import Image
from drydock.oci.reference import Reference

HINT = "do not run this image; contact its publisher"
MOST_CHECKED = 20
"""Documents of one type whose signature is checked: anyone may attach more."""
NO_SIGNATURE = "no signatures found"
"""What cosign says if no one has signed a digest."""


def require_trust(trust: cosign.Trust, verb: str, *, unsigned: bool) -> None:
    """Raise InputError unless the user says whose signatures count, or that none are checked."""
    if trust.required and unsigned:
        raise InputError("--unsigned excludes --verify-key and --identity")
    if not trust.required and not unsigned:
        raise InputError(
            f"image {verb}: found neither --verify-key nor --identity: nothing would say who made the image",
            hint="add --verify-key cosign.pub, the publisher's public key; with --unsigned, no signature is checked",
        )


def copy_hint(mirror_of: str, where: Reference, digest: str) -> str:
    """Return how a mirror gets signatures and documents, which a copy of the image alone leaves behind."""
    origin = f"{mirror_of}@{digest}" if mirror_of else "ORIGIN"
    copy = where.tagged(where.tag or "TAG")._replace(scheme="")
    return (
        f"a copy of the image alone leaves signatures and documents behind: `oras cp -r {origin} {copy}` copies them"
        " too; if the image has none where it was published, do not run it"
    )


class Signatures:
    """Checks signatures, if there is a key or an identity to check them with."""

    def __init__(self, trust: cosign.Trust, reference: Reference, mirror_of: str = "") -> None:
        self._trust, self._named, self._mirror_of = trust, reference, mirror_of
        self.required = trust.required
        self.shown: list[str] = []

    def check(self, where: Reference, name: str, claims: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise UntrustedError unless a digest has a valid signature by the accepted signer, with these claims."""
        if not self.required:
            return
        try:
            cosign.check_digest_signature(where, self._trust._replace(claims=claims))
        except UntrustedError as error:
            raise UntrustedError(*(f"{name}: {problem}" for problem in error.problems), hint=HINT) from error
        self.shown.append(f"signature of {name} ({where.digest})")

    def check_image(self, where: Reference) -> None:
        """Check the digest that a reference names. An image without any signature may be a copy without them."""
        try:
            self.check(where, "the image")
        except UntrustedError as error:
            if NO_SIGNATURE not in str(error):
                raise
            raise UntrustedError(*error.problems, hint=copy_hint(self._mirror_of, self._named, where.digest)) from error

    def check_platforms(self, image: Image, platforms: Iterable[str]) -> None:
        """Check the image of each platform that is another one than the reference names."""
        for platform in platforms:
            if image.platforms[platform].digest != image.digest:
                self.check(image.where.at(image.platforms[platform].digest), platform)

    def check_documents(self, where: Reference, platform: str, listed: Sequence[tuple[str, str]]) -> None:
        """Check the signatures of documents: artifact type and digest of each.

        Raises UntrustedError for the first that is wrong. Of one next to a signed one of its type, as scanners attach
        them, it says so.
        """
        for kind, artifact in listed:
            try:
                self.check(where.at(artifact), f"{platform}: {documents.FILE_NAMES[kind]}")
            except UntrustedError as error:
                if self._first_signed(
                    where, [candidate for name, candidate in listed if name == kind and candidate != artifact]
                ):
                    raise _of_someone_else(where, platform, kind, artifact, error) from error
                raise

    def signed_of(self, where: Reference, artifacts: Sequence[str]) -> list[str]:
        """Return those of some documents that the accepted signer has signed; all if no signature is required."""
        if not self.required:
            return [*artifacts]
        return [artifact for artifact in artifacts[:MOST_CHECKED] if self._first_signed(where, [artifact])]

    def _first_signed(self, where: Reference, artifacts: Sequence[str]) -> str:
        for artifact in artifacts[:MOST_CHECKED]:
            try:
                cosign.check_digest_signature(where.at(artifact), self._trust)
            except UntrustedError:
                continue
            return artifact
        return ""


def _of_someone_else(
    where: Reference, platform: str, kind: str, artifact: str, error: UntrustedError
) -> UntrustedError:
    name = documents.FILE_NAMES[kind]
    text = f"{platform}: someone attached a document of type {kind} next to the signed {name} of the publisher, who did"
    hint = (
        "scanners attach such documents; the image and the publisher's own are signed. If it is a scanner's, remove it"
        f" (`oras manifest delete {where.at(artifact)}`) and verify again; else do not run this image"
    )
    return UntrustedError(f"{text} not sign it", *error.problems, hint=hint)
