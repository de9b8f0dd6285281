from __future__ import annotations

import pytest

from drydock.bundle.bundle_records import BundledImage
from drydock.bundle.load import engine_platforms

NOTHING = f"sha256:{'0' * 64}"


def image(variant: str, platform: str) -> BundledImage:
    return BundledImage(
        variant=variant,
        platform=platform,
        digest=NOTHING,
        inputs_sha256="0" * 64,
        inputs=NOTHING,
        base=None,
        documents=(),
        supplied={},
    )


@pytest.mark.parametrize(("machine", "expected"), [("x86_64", "linux/amd64"), ("aarch64", "linux/arm64")])
def test_the_engine_gets_this_machines_platform(machine: str, expected: str) -> None:
    image_entries = [image("a", "linux/amd64"), image("a", "linux/arm64")]
    assert engine_platforms(image_entries, machine) == engine_platforms(image_entries[::-1], machine) == {"a": expected}


def test_the_engine_gets_the_first_platform_if_this_machines_is_not_included() -> None:
    assert engine_platforms([image("a", "linux/arm64"), image("b", "linux/amd64")], "x86_64") == {
        "a": "linux/arm64",
        "b": "linux/amd64",
    }
