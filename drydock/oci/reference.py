"""References to images: host, repository, tag, digest. Pure.

Source of the grammar: distribution-spec 1.1 "Pulling manifests" (names, tags), and docker's reference package for the
host that is left out.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from drydock.core.errors import InputError

DOCKER_HUB = "docker.io"
DOCKER_HUB_API = "registry-1.docker.io"
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Reference(NamedTuple):
    """What names an image, or with neither tag nor digest a repository."""

    host: str
    """With its port, such as 127.0.0.1:5000."""
    repository: str
    tag: str = ""
    digest: str = ""
    scheme: str = ""
    """https or http where it was written; else the client chooses."""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}{tag}{digest}"

    @property
    def name(self) -> str:
        """Return what the API calls it: the digest, which decides, else the tag, else latest."""
        return self.digest or self.tag or "latest"

    def at(self, digest: str) -> Reference:
        """Return the same repository's image of this digest."""
        return self._replace(tag="", digest=digest)

    def tagged(self, tag: str) -> Reference:
        """Return the same repository's image of this tag."""
        return self._replace(tag=tag, digest="")


def parse(text: str) -> Reference:
    """Return what a reference names; raises InputError with the part that is wrong."""
    scheme, host, rest = _split(text)
    rest, _, digest = rest.partition("@")
    path, colon, tag = rest.rpartition(":")
    repository, tag = (path, tag) if colon and "/" not in tag else (rest, "")
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    for what, value, pattern in (("host", host, _HOST), ("repository", repository, _REPOSITORY)):
        if not pattern.fullmatch(value):
            raise InputError(f"{text!r}: {value!r} is no {what}", hint="HOST[:PORT]/REPOSITORY[:TAG][@sha256:…]")
    if (tag or colon) and tag and not TAG.fullmatch(tag):
        raise InputError(f"{text!r}: {tag!r} is no tag", hint="letters, digits, '.', '_' and '-', 128 at most")
    if "@" in text and not DIGEST.fullmatch(digest):
        raise InputError(f"{text!r}: {digest!r} is no digest", hint="sha256: and 64 hexadecimal digits, in lower case")
    return Reference(host, repository, tag, digest, scheme)


def is_loopback(host: str) -> bool:
    """Tell whether a host, with or without its port, is this machine itself."""
    bare = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return ipaddress.ip_address(bare.strip("[]")).is_loopback
    except ValueError:
        return bare == "localhost" or bare.endswith(".localhost")


def _split(text: str) -> tuple[str, str, str]:
    """Cut off scheme and host; a first part without dot, colon or "localhost" is no host but part of Docker Hub's."""
    scheme, found, bare = text.partition("://")
    if not found:
        scheme, bare = "", text
    elif scheme not in ("http", "https"):
        raise InputError(f"{text!r}: {scheme!r} is no way to reach a registry", hint="https:// or http://, or neither")
    first, slash, rest = bare.partition("/")
    if slash and (found or first == "localhost" or {".", ":", "["} & set(first)):
        return scheme, DOCKER_HUB if first == "index.docker.io" else first, rest
    return scheme, DOCKER_HUB, bare
