"""The verbs about published images, as text: `inspect`, `diff`, `verify --reference`. IO.

Their modules read bills of materials, whose libraries take half a second to import: only when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from drydock.core.errors import InputError
from drydock.core.files import dumps
from drydock.model.record import dump

if TYPE_CHECKING:
    from drydock.examine.trust import VerifyOptions


def inspect(reference: str, *, json: bool = False, insecure: bool = False) -> str:
    """Return what is in an image and what is said of it."""
    from drydock.examine import image

    found = image.inspect(reference, insecure=insecure)
    return dumps(dump(found)) if json else image.report(found)


def diff(old: str, new: str, platform: str = "", *, json: bool = False, insecure: bool = False) -> str:
    """Return what changed between two images."""
    from drydock.examine import diff as imagediff

    found = imagediff.diff(old, new, platform=platform, insecure=insecure)
    return dumps(dump(found)) if json else imagediff.report(found)


def verify_options(trust_in: Sequence[str], builder: str, *, rebuild: bool, insecure: bool) -> VerifyOptions:
    """Return the options of a verification, given key, identity, issuer and trusted root.

    Raises InputError for an identity without an issuer, or the reverse.
    """
    from drydock.attest.signing import Trust
    from drydock.examine import trust

    key, identity, issuer, root = trust_in
    if bool(identity) != bool(issuer):
        raise InputError("--identity and --issuer: one says nothing without the other")
    if root and not identity:
        raise InputError("--trusted-root: says who may vouch for an identity, so it wants --identity and --issuer")
    return trust.VerifyOptions(Trust(key, identity, issuer, insecure, root), rebuild, builder)


def verify(reference: str, options: VerifyOptions, *, json: bool = False) -> str:
    """Return what was shown of an image. Raises UntrustedError or NotReproducibleError."""
    from drydock.examine import trust

    found = trust.verify_reference(reference, options)
    return dumps(dump(found)) if json else trust.report(found)
