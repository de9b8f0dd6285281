"""Records of vulnerabilities as OSV writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def record(*events: Mapping[str, str], name: str = "Example", ecosystem: str = "PyPI", **more: Any) -> dict[str, Any]:
    """Return an OSV record with one range."""
    package = {"ecosystem": ecosystem, "name": name}
    affected = {"package": package, "ranges": [{"type": "ECOSYSTEM", "events": list(events)}], "versions": []}
    return {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "affected": [affected], **more}
