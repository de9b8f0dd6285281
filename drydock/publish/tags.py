"""The grammar of tags: release tags never move, channel tags do. Pure.

    release = VARIANT-VERSION      cuda13.0-vllm0.33-1.4.0
    channel = VARIANT-CHANNEL      cuda13.0-vllm0.33-stable
            | CHANNEL              stable: the accelerator's default variant
    VERSION = N.N.N [-rc.N]
    CHANNEL = a letter, then letters and digits

A variant's id may contain dots, digits and hyphens: a tag is a release if it ends in a VERSION. Tags of the form
sha256-… list the referrers of an image (OCI distribution-spec, "Referrers tag schema").
"""

from __future__ import annotations

import re

from drydock.core.errors import InputError
from drydock.oci.reference import TAG

VERSION = re.compile(r"(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}(?:-rc\.(?:0|[1-9]\d*))?")
CHANNEL = re.compile(r"[a-z][a-z0-9]*")
RELEASE = re.compile(rf"(?P<variant>.+)-(?P<version>{VERSION.pattern})")
EDGE = "edge"
"""The channel used if neither --release nor --channel is given."""


def format_release_tag(variant: str, version: str) -> str:
    """Return a release's tag. Raises InputError for an invalid version."""
    if not VERSION.fullmatch(version):
        raise InputError(f"--release {version}: invalid version, expected three numbers, such as 1.4.0 or 1.4.0-rc.1")
    return _check_tag(f"{variant}-{version}")


def format_channel_tags(variant: str, channel: str, *, default: bool) -> tuple[str, ...]:
    """Return a channel's tags; only the accelerator's default variant gets the channel's name alone."""
    if not CHANNEL.fullmatch(channel):
        raise InputError(
            f"--channel {channel}: invalid channel, expected a letter, then letters and digits, such as stable"
        )
    return (_check_tag(f"{variant}-{channel}"), *((channel,) if default else ()))


def is_release(tag: str) -> bool:
    """Return whether a tag is a release tag, which must not move."""
    return RELEASE.fullmatch(tag) is not None


def _check_tag(tag: str) -> str:
    if not TAG.fullmatch(tag):
        raise InputError(f"invalid tag {tag!r}", hint="a tag has at most 128 letters, digits, '.', '_' and '-'")
    return tag
