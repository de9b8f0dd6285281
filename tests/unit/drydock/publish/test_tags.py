from __future__ import annotations

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.publish import tags


@pytest.mark.parametrize("version", ["0.0.0", "1.4.0", "10.20.30", "1.4.0-rc.1"])
def test_release_tags(version: str) -> None:
    tag = tags.format_release_tag("cuda13.0-vllm0.33", version)
    assert tag == f"cuda13.0-vllm0.33-{version}"
    assert tags.is_release(tag)


@pytest.mark.parametrize("version", ["", "1", "1.4", "v1.4.0", "1.4.0.0", "01.4.0", "1.4.0-rc1", "1.4.0 ", "edge"])
def test_an_invalid_version_is_an_error(version: str) -> None:
    with pytest.raises(InputError, match="three numbers"):
        tags.format_release_tag("cpu", version)


def test_the_default_variant_also_gets_the_channels_name_alone() -> None:
    assert tags.format_channel_tags("cpu-vllm0.32", "stable", default=True) == ("cpu-vllm0.32-stable", "stable")
    assert tags.format_channel_tags("cpu-vllm0.32", "stable", default=False) == ("cpu-vllm0.32-stable",)


@pytest.mark.parametrize("channel", ["", "1.4.0", "Stable", "a-b", "1a", "a.b", "latest "])
def test_an_invalid_channel_is_an_error(channel: str) -> None:
    with pytest.raises(InputError, match="a letter"):
        tags.format_channel_tags("cpu", channel, default=True)


def test_tags_of_different_variants_and_kinds_do_not_collide() -> None:
    variants = read_matrix(DRYDOCK)
    channel_tags = [tag for variant in variants for tag in tags.format_channel_tags(variant.id, "edge", default=False)]
    assert [tag for tag in channel_tags if tags.is_release(tag)] == []
    releases = [tags.format_release_tag(variant.id, "1.0.0") for variant in variants]
    assert len({*channel_tags, *releases}) == 2 * len(variants)


def test_a_tag_that_is_too_long_is_an_error() -> None:
    with pytest.raises(InputError, match="invalid tag"):
        tags.format_release_tag("v" * 125, "1.0.0")
