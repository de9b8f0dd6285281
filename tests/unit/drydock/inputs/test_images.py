from __future__ import annotations

import pytest

from drydock.config.mirrors import NONE, Mirrors
from drydock.inputs.images import at_mirror, resolve_image
from drydock.model.bases import ImageBase

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
