"""How layers are compressed, and which engines can pull them."""

from __future__ import annotations

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.model.variant import Compression, Variant
from tests.support.cases import for_each


@pytest.mark.parametrize(
    ("algorithm", "docker", "containerd"),
    [("zstd", "23.0", "1.5"), ("gzip", "20.10", "1.4"), ("uncompressed", "20.10", "1.4")],
)
def test_the_oldest_engine_follows_from_the_algorithm(algorithm: str, docker: str, containerd: str) -> None:
    compression = Compression.model_validate({"algorithm": algorithm, "level": 1})

    assert (compression.oldest.docker, compression.oldest.containerd) == (docker, containerd)
    assert compression.summary == f"Docker {docker} or containerd {containerd}, or later: layers are {algorithm}"


@for_each(read_matrix(DRYDOCK), lambda variant: variant.id)
def test_what_costs_more_to_build_has_its_reason_and_source(variant: Variant) -> None:
    compression = variant.compression

    assert compression.algorithm == "zstd" or (compression.because and compression.source)
    assert bool(compression.because) == bool(compression.source)


def test_the_vendors_whose_manuals_ask_for_old_engines_get_gzip() -> None:
    old = {variant.accelerator for variant in read_matrix(DRYDOCK) if variant.compression.algorithm == "gzip"}

    assert old == {"ascend", "enflame", "router"}
