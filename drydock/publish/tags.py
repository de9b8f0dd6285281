"""The grammar of tags: releases, which never move, and channels, which do. Pure.

    release = VARIANT-VERSION      cuda13.0-vllm0.33-1.4.0
    channel = VARIANT-CHANNEL      cuda13.0-vllm0.33-stable
            | CHANNEL              stable: of the accelerator's default variant
    VERSION = N.N.N [-rc.N]
    CHANNEL = a letter, then letters and digits

A variant's id may hold dots, digits and hyphens; what follows its last part tells release from channel. Tags of the
form sha256-… are the registry's own list of what refers to an image (OCI distribution-spec, "Referrers tag schema").
"""

from __future__ import annotations

import re

from drydock.core.errors import InputError
from drydock.oci.reference import TAG

VERSION = re.compile(r"(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}(?:-rc\.(?:0|[1-9]\d*))?")
CHANNEL = re.compile(r"[a-z][a-z0-9]*")
RELEASE = re.compile(rf"(?P<variant>.+)-(?P<version>{VERSION.pattern})")
EDGE = "edge"
"""The channel of what is published without --release and --channel."""


def release(variant: str, version: str) -> str:
    """Return a release's tag; raises InputError for what is no version."""
    if not VERSION.fullmatch(version):
        raise InputError(f"--release {version}: expected three numbers, such as 1.4.0 or 1.4.0-rc.1")
    return _checked(f"{variant}-{version}")


def channels(variant: str, channel: str, *, default: bool) -> tuple[str, ...]:
    """Return a channel's tags; the bare one goes to the accelerator's default variant."""
    if not CHANNEL.fullmatch(channel):
        raise InputError(f"--channel {channel}: expected a letter, then letters and digits, such as stable")
    return (_checked(f"{variant}-{channel}"), *((channel,) if default else ()))


def is_release(tag: str) -> bool:
    """Tell whether a tag may never move."""
    return RELEASE.fullmatch(tag) is not None


def _checked(tag: str) -> str:
    if not TAG.fullmatch(tag):
        raise InputError(f"{tag!r} is no tag", hint="letters, digits, '.', '_' and '-', 128 at most")
    return tag
