"""Image references: host, repository, tag, digest. Pure.

Source of the grammar: distribution-spec 1.1 "Pulling manifests" (names, tags), and docker's reference package for a
reference without a host.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from drydock.core.errors import InputError

OCI, GIT = "oci://", "git+"
"""How the address of an artefact in a registry begins, of a model or a project; and that of a project's commit."""
DOCKER_HUB = "docker.io"
DOCKER_HUB_API = "registry-1.docker.io"
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Reference(NamedTuple):
    """A reference to an image, or to a repository if it has neither tag nor digest."""

    host: str
    """With its port, such as 127.0.0.1:5000."""
    repository: str
    tag: str = ""
    digest: str = ""
    scheme: str = ""
    """https or http if the reference has a scheme; else the client chooses."""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}{tag}{digest}"

    @property
    def name(self) -> str:
        """Return the name for API requests: the digest, else the tag, else latest."""
        return self.digest or self.tag or "latest"

    def at(self, digest: str) -> Reference:
        """Return a reference to a digest in the same repository."""
        return self._replace(tag="", digest=digest)

    def tagged(self, tag: str) -> Reference:
        """Return a reference to a tag in the same repository."""
        return self._replace(tag=tag, digest="")


def parse_reference(text: str) -> Reference:
    """Parse a reference; raises InputError that names the invalid part, but never a password."""
    if strip_credentials(text) != text:
        hint = "`docker login HOST` keeps them"
        raise InputError(f"{strip_credentials(text)!r}: invalid: found credentials before the host", hint=hint)
    scheme, host, rest = _split_host(text)
    rest, _, digest = rest.partition("@")
    path, colon, tag = rest.rpartition(":")
    repository, tag = (path, tag) if colon and "/" not in tag else (rest, "")
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    for part, value, pattern in (("host", host, _HOST), ("repository", repository, _REPOSITORY)):
        if not pattern.fullmatch(value):
            raise InputError(
                f"{text!r}: invalid {part} {value!r}", hint="expected HOST[:PORT]/REPOSITORY[:TAG][@sha256:…]"
            )
    if tag and not TAG.fullmatch(tag):
        raise InputError(
            f"{text!r}: invalid tag {tag!r}", hint="a tag has at most 128 letters, digits, '.', '_' and '-'"
        )
    if "@" in text and not DIGEST.fullmatch(digest):
        raise InputError(
            f"{text!r}: invalid digest {digest!r}", hint="a digest is sha256: and 64 lower-case hexadecimal digits"
        )
    return Reference(host, repository, tag, digest, scheme)


def strip_credentials(text: str) -> str:
    """Return a reference without the credentials that a user may have written before its host."""
    end = text.rfind("@", 0, max(text.rfind("/"), 0))  # a digest has no slash after its @
    return text[end + 1 :]


def _split_host(text: str) -> tuple[str, str, str]:
    """Split off scheme and host. A first part without ".", ":" or "[" belongs to a repository of Docker Hub."""
    scheme, separator, bare = text.partition("://")
    if not separator:
        scheme, bare = "", text
    elif scheme not in ("http", "https"):
        raise InputError(f"{text!r}: invalid scheme {scheme!r}", hint="use https:// or http://, or no scheme")
    first, slash, rest = bare.partition("/")
    if slash and (scheme or first == "localhost" or any(character in first for character in ".:[")):
        return scheme, DOCKER_HUB if first == "index.docker.io" else first, rest
    return scheme, DOCKER_HUB, bare
