from __future__ import annotations

import hashlib
import json

import pytest

from drydock.config.mirrors import NONE, Mirrors
from drydock.inputs.image_digests import at_mirror, resolve_image
from drydock.model.bases import ImageBase
from tests.support.fake_registry import Answer, Fake

DIGEST = f"sha256:{'1' * 64}"
NOWHERE = "127.0.0.1:1/nothing:1"
"""A registry that never answers."""
MIRRORS = Mirrors(
    registries={"docker.io": "mirror.example/hub", "registry.example/vendor": "mirror.example:5000/vendor"}
)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("debian:bookworm", "mirror.example/hub/library/debian:bookworm"),
        ("docker.io/a/b:1@sha256:" + "a" * 64, "mirror.example/hub/a/b:1@sha256:" + "a" * 64),
        ("registry.example/vendor/sdk:1", "mirror.example:5000/vendor/sdk:1"),
        ("registry.example/other/sdk:1", "registry.example/other/sdk:1"),
    ],
)
def test_an_image_at_its_mirror(reference: str, expected: str) -> None:
    assert at_mirror(reference, MIRRORS) == expected
    assert at_mirror(reference, NONE) == reference


def test_a_digest_that_the_registry_cannot_confirm_is_marked_so() -> None:
    locked = resolve_image(
        ImageBase(kind="image", reference=NOWHERE, release="ubuntu:24.04", digest=DIGEST, source="a blog")
    )
    assert (locked.digest, locked.verified, locked.source) == (DIGEST, False, "a blog")


def test_a_digest_that_nobody_knows_is_null() -> None:
    locked = resolve_image(ImageBase(kind="image", reference=NOWHERE, release="ubuntu:24.04"))
    assert (locked.digest, locked.verified) == (None, False)


def test_a_registry_gives_the_digest_of_a_tag_and_why_it_gives_none(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": f"sha256:{'1' * 64}", "size": 1}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    data = json.dumps(index).encode()
    answers = {
        "/v2/vendor/base/manifests/1": Answer(200, {"Content-Type": "application/vnd.oci.image.index.v1+json"}, data)
    }
    with Fake(lambda request: answers.get(request.path, Answer(404, {}, b"{}"))) as registry:
        base_pin = resolve_image(
            ImageBase(kind="image", reference=f"{registry.host}/vendor/base:1", release="ubuntu:24.04")
        )
        unresolved_pin = resolve_image(
            ImageBase(kind="image", reference=f"{registry.host}/vendor/base:2", release="ubuntu:24.04")
        )

    assert (base_pin.digest, base_pin.verified) == (f"sha256:{hashlib.sha256(data).hexdigest()}", True)
    assert (unresolved_pin.digest, unresolved_pin.verified) == (None, False)
    assert f"{registry.host} has no such image" in capsys.readouterr().err
