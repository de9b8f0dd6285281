from __future__ import annotations

from pathlib import Path

import pytest

from drydock.attest import documents
from drydock.bundle.admit import read_documents
from drydock.bundle.archive import Archive, index_of, write
from drydock.bundle.contents import BundledImage, artifact, blob
from drydock.bundle.load import engine_platforms

NOTHING = f"sha256:{'0' * 64}"


def image(variant: str, platform: str, attached: tuple[str, ...] = ()) -> BundledImage:
    return BundledImage(
        variant=variant,
        platform=platform,
        digest=NOTHING,
        inputs_sha256="0" * 64,
        inputs=NOTHING,
        base=None,
        documents=attached,
        supplied={},
    )


@pytest.mark.parametrize(("machine", "expected"), [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64")])
def test_the_engine_gets_this_machines_platform(machine: str, expected: str) -> None:
    both = [image("a", "linux/amd64"), image("a", "linux/arm64")]
    assert engine_platforms(both, machine) == engine_platforms(both[::-1], machine) == {"a": expected}


def test_the_engine_gets_the_first_platform_if_this_machines_is_not_included() -> None:
    assert engine_platforms([image("a", "linux/arm64"), image("b", "linux/amd64")], "x86_64") == {
        "a": "linux/arm64",
        "b": "linux/amd64",
    }


def test_documents_that_publish_makes_itself_are_skipped_also_of_retired_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    data = blob(b"{}")
    types = ("application/vnd.cyclonedx+json", documents.BOM, documents.RELEASE, documents.PROOF)
    manifests = [artifact(media_type, [data.descriptor(media_type)]) for media_type in types]
    write(tmp_path / "a.tar", index_of({}), [data, *(blob(manifest.data) for manifest in manifests)])
    found = read_documents(
        Archive(tmp_path / "a.tar"), image("a", "linux/amd64", tuple(item.digest for item in manifests))
    )
    assert found == {}
