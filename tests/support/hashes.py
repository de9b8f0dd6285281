"""The hash by which the store, locks and indexes know a file."""

from __future__ import annotations

import hashlib


def sha256(data: bytes) -> str:
    """Return the hash of bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
