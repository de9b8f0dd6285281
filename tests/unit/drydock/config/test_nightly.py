"""The row of vLLM's nightly builds: which wheel its requirement admits."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK

VARIANT = find_variant(read_matrix(DRYDOCK), "cuda-nightly")


@pytest.mark.parametrize(
    ("version", "admitted"),
    [("0.33.1rc1.dev12+g98dff2a81", True), ("0.34.1rc1.dev3+g1", True), ("0.33.0", False), ("0.33.0rc2", False)],
)
def test_the_requirement_admits_development_builds_after_the_release(version: str, admitted: bool) -> None:
    (vllm,) = [requirement for requirement in map(Requirement, VARIANT.requirements) if requirement.name == "vllm"]

    assert vllm.specifier.contains(version) is admitted
