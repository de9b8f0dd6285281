"""What a hostile registry may answer when it is asked for a manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from drydock.config.access import Access
from drydock.core.errors import RegistryError
from drydock.oci.reference import parse
from drydock.registry.client import Client
from drydock.registry.manifests import INDEX, MANIFEST, Manifest, Manifests, to_manifest
from tests.support.fake_registry import Answer, Fake

QUICK = Access(pause=0.001, timeout=5)
CONFIG = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{'c' * 64}", "size": 2}
IMAGE = to_manifest({"schemaVersion": 2, "mediaType": MANIFEST, "config": CONFIG, "layers": []})
OTHER = to_manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": []})


def ask(folder: Path, headers: dict[str, str], body: bytes, name: str = "v1") -> Manifest | None:
    with Fake(lambda _: Answer(200, headers, body)) as fake:
        return Manifests(Client(parse(f"{fake.host}/some/image"), QUICK), folder).find(name)


def test_the_media_type_is_the_registrys_or_the_contents(tmp_path: Path) -> None:
    for headers in ({"Content-Type": MANIFEST}, {"Content-Type": f"{MANIFEST}; charset=utf-8"}, {}):
        assert ask(tmp_path, headers, IMAGE.data, IMAGE.digest) == IMAGE


def test_another_kind_than_declared_is_refused(tmp_path: Path) -> None:
    """Which forms are refused is shown of `strict.read`."""
    with pytest.raises(RegistryError, match=r"v1: the registry says .*index.*, the content says .*manifest"):
        ask(tmp_path, {"Content-Type": INDEX}, IMAGE.data)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"size": 7}, "states another type or size"),
        ({"mediaType": "application/vnd.docker.distribution.manifest.v2+json"}, "states another type or size"),
        ({"digest": OTHER.digest}, "does not have it"),
    ],
)
def test_an_entry_of_an_index_that_states_something_else_is_refused(
    tmp_path: Path, entry: dict[str, Any], problem: str
) -> None:
    served = {f"/v2/some/image/manifests/{IMAGE.digest}": Answer(200, {"Content-Type": MANIFEST}, IMAGE.data)}
    with Fake(lambda seen: served.get(seen.path, Answer(404))) as fake:
        there = Manifests(Client(parse(f"{fake.host}/some/image"), QUICK), tmp_path)
        assert there.listed(IMAGE.descriptor()) == IMAGE
        with pytest.raises(RegistryError, match=problem):
            there.listed(IMAGE.descriptor() | entry)
