"""What of a lock's source code a bundle carries, and what is told of it elsewhere."""

from __future__ import annotations

from drydock.attest.components import Component, list_build_inputs
from drydock.bundle.bundle_inputs import _list_source_blobs
from drydock.bundle.bundle_records import ARCHIVE, STORED
from drydock.examine.advisories.advisory_search import not_covered
from drydock.inputs.store import Store
from drydock.model.locked import LockedImageBase, LockedPlatform, LockedSource
from tests.support.hashes import sha256

URL = "https://example.org/releases/a-1.tar.bz2"
BASE = LockedImageBase(kind="image", reference="example.org/a:1", digest=None, verified=False, source="a test")


def test_a_release_archive_is_carried_and_listed(store: Store) -> None:
    key = sha256(b"BZh")
    store.add([b"BZh"], key, "a-1.tar.bz2")
    source = LockedSource(name="a", url=URL, sha256=key, source="a test")
    pins = LockedPlatform(base=BASE, layers={}, tools=(), sources=(source,))
    ((_, (blob, kind, annotations)),) = _list_source_blobs(pins, store)

    assert (blob.digest, blob.size, kind) == (f"sha256:{key}", 3, ARCHIVE)
    assert kind in STORED
    assert "sources/a-1.tar.bz2" in annotations.values()
    assert list_build_inputs(pins) == (Component("file", "a-1.tar.bz2", "", sha256=key, source=URL),)
    assert ("source a", "its release archive is no package of an index") in not_covered(pins)
