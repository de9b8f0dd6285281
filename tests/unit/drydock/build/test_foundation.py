"""An image on a foundation that was made before is the same, byte for byte, as one made in one go."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from drydock.build import foundation
from drydock.core.paths import ROOT
from drydock.oci import image_layout
from tests.support.fake_buildkit import BuildKit
from tests.support.other_users import as_user, only_root, reachable_folder


def plan(folder: Path) -> dict[str, Any]:
    target = {
        "contexts": {"base": "oci-layout:///base@sha256:1"},
        "output": [f"type=oci,tar=false,rewrite-timestamp=true,dest={folder}"],
    }
    return {"target": {"small": target}}


@pytest.fixture
def buildkit() -> BuildKit:
    return BuildKit([b"torch", b"vllm"], [b"entrypoint"])


@pytest.fixture
def foundation_layout(buildkit: BuildKit, tmp_path: Path) -> Path:
    layout = tmp_path / "foundation"
    layout.mkdir()
    foundation.build_foundation(plan(tmp_path / "elsewhere"), layout, buildkit)
    buildkit.rewritten, buildkit.sent = [], []
    return layout


def completed(buildkit: BuildKit, foundation_layout: Path, name: str) -> Path:
    layout = foundation_layout.parent / name
    layout.mkdir()
    foundation.complete_image(plan(layout), layout, foundation_layout, buildkit)
    return layout


def content(layout: Path) -> dict[str, bytes]:
    return {str(path.relative_to(layout)): path.read_bytes() for path in layout.rglob("*") if path.is_file()}


def in_one_go(buildkit: BuildKit, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    BuildKit(buildkit.below, buildkit.above)(plan(folder))
    return content(folder)


def test_only_what_is_above_is_rewritten_and_sent(buildkit: BuildKit, foundation_layout: Path, tmp_path: Path) -> None:
    layout = completed(buildkit, foundation_layout, "image")

    assert buildkit.rewritten == [b"entrypoint"]
    assert len(buildkit.sent) == 2  # the layer, and the config
    assert content(layout) == in_one_go(buildkit, tmp_path / "whole")


def test_two_layers_of_a_foundation_may_be_equal(tmp_path: Path) -> None:
    buildkit = BuildKit([b"same", b"same"], [b"entrypoint"])
    below = tmp_path / "foundation"
    below.mkdir()
    foundation.build_foundation(plan(tmp_path / "elsewhere"), below, buildkit)

    assert content(completed(buildkit, below, "image")) == in_one_go(buildkit, tmp_path / "whole")


def test_after_an_edit_the_same_foundation_serves(buildkit: BuildKit, foundation_layout: Path, tmp_path: Path) -> None:
    before, first = content(foundation_layout), completed(buildkit, foundation_layout, "first")
    buildkit.above = [b"edited"]
    second = completed(buildkit, foundation_layout, "second")

    assert content(foundation_layout) == before
    assert image_layout.read_digest(first) != image_layout.read_digest(second)
    assert buildkit.rewritten == [b"entrypoint", b"edited"]
    assert content(second) == in_one_go(buildkit, tmp_path / "whole")


def test_a_buildkit_that_rewrites_its_base_builds_in_one_go(
    buildkit: BuildKit, foundation_layout: Path, tmp_path: Path
) -> None:
    buildkit.heeds_base = False
    layout = completed(buildkit, foundation_layout, "image")

    assert len(buildkit.asked) == 3  # the foundation, the rest on it, and all
    assert content(layout) == in_one_go(buildkit, tmp_path / "whole")


def test_an_image_of_a_newer_buildkit_is_the_same(buildkit: BuildKit, foundation_layout: Path, tmp_path: Path) -> None:
    whole = in_one_go(buildkit, tmp_path / "whole")
    buildkit.healthcheck = "HEALTHCHECK {Test:[CMD python3 health] Interval:10s Timeout:1m30s StartPeriod:2h0m0s}"

    assert content(completed(buildkit, foundation_layout, "newer")) == whole


def test_an_image_of_an_older_buildkit_is_the_same(buildkit: BuildKit, foundation_layout: Path, tmp_path: Path) -> None:
    """That of Debian 13's Docker 26.1. The base has such a step too, which stays."""
    whole = in_one_go(buildkit, tmp_path / "whole")
    buildkit.ports = "EXPOSE map[8000/tcp:{} 8001/tcp:{}]"

    assert content(completed(buildkit, foundation_layout, "older")) == whole
    assert any(b"EXPOSE map[80/tcp:{}]" in data for data in whole.values())


def test_builder_and_cache_are_handed_on(buildkit: BuildKit, tmp_path: Path) -> None:
    foundation_layout, layout = tmp_path / "made", tmp_path / "image"
    foundation_layout.mkdir()
    layout.mkdir()
    bake = partial(buildkit, builder="b", no_cache=True)
    foundation.build_foundation(plan(layout), foundation_layout, bake)
    foundation.complete_image(plan(layout), layout, foundation_layout, bake)

    assert buildkit.asked == [{"builder": "b", "no_cache": True}] * 2


@only_root
def test_an_ordinary_user_builds_although_blobs_of_buildx_are_read_only() -> None:
    def build() -> str:
        buildkit, below = BuildKit([], [b"entrypoint"]), folder / "foundation"
        below.mkdir()
        foundation.build_foundation(plan(folder / "elsewhere"), below, buildkit)
        return image_layout.read_digest(completed(buildkit, below, "image"))

    with reachable_folder() as folder:
        os.chown(folder, 1000, 1000)
        printed_digest = as_user(1000, build, group=1000)
        assert printed_digest == image_layout.read_digest(folder / "image")


DOCKERFILE = """# c: a comment
FROM base AS foundation
RUN torch
{}FROM base AS entrypoint
RUN entrypoint
FROM foundation
COPY {}
"""


def test_only_steps_of_the_foundation_are_its_recipe() -> None:
    recipe = foundation.extract_recipe(DOCKERFILE.format("\n", "one"))

    assert recipe == "FROM base AS foundation\nRUN torch"
    assert foundation.extract_recipe(DOCKERFILE.format("# another\n\n", "two")) == recipe
    assert foundation.extract_recipe(DOCKERFILE.format("RUN vllm\n", "one")) != recipe


@pytest.mark.parametrize("path", sorted(ROOT.glob("images/*/Dockerfile")), ids=lambda path: path.parent.name)
def test_every_image_stands_on_a_foundation_that_knows_nothing_of_the_entrypoint(path: Path) -> None:
    below, rest, above = path.read_text().partition(foundation.REST)

    assert rest
    assert f" AS {foundation.STAGE}\n" in below
    assert "from=entrypoint" not in foundation.extract_recipe(below)
    assert "profile.json" not in foundation.extract_recipe(below)
    _, last = above.split(f"\nFROM {foundation.STAGE}\n")
    assert "\nRUN" not in last  # whose layers BuildKit would have to unpack
