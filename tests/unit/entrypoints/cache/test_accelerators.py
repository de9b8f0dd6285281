"""What each accelerator keeps between starts, on recorded hosts: variables, and the scope of each."""

from __future__ import annotations

import re
from functools import cache

import pytest

from drydock.model.variant import Variant
from entrypoints.core.records import ServePlan
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.cases import for_each
from tests.support.hosts.expect import VARIANTS, profile_of, read
from tests.support.hosts.host_models import SMOLLM2

DEVICE = re.compile(r"/cache/compiled/(.+)-[0-9a-f]{12}/(.+)")
PLAN = re.compile(r"/cache/compiled/(.+)-[0-9a-f]{12}-[0-9a-f]{12}/(.+)")


@cache
def planned(host: str, *tokens: str, room: int = 1 << 40) -> ServePlan:
    profile = profile_of(host)
    facts = read(host, profile)
    volume = facts.mounts["cache"]._replace(free=room, total=room)
    facts = facts._replace(mounts={**facts.mounts, "cache": volume})
    return make_serve_plan(profile, facts, SMOLLM2, parse_user_flags((SMOLLM2.name, *tokens), {}))


KEPT = [
    ("cuda-h100-8x", "CUDA_CACHE_PATH", "cuda"),
    ("cuda-h100-8x", "FLASHINFER_WORKSPACE_BASE", "flashinfer"),
    ("cuda-h100-8x", "DG_JIT_CACHE_DIR", "deep_gemm"),
    ("rocm-mi300x-8x", "MIOPEN_USER_DB_PATH", "miopen/db"),
    ("rocm-mi300x-8x", "MIOPEN_CUSTOM_CACHE_DIR", "miopen/kernels"),
    ("xpu-max1550-2x", "SYCL_CACHE_DIR", "sycl"),
    ("ascend-910b3-8x", "ASCEND_CACHE_PATH", "cann"),
    ("tpu-v6e-8x", "VLLM_XLA_CACHE_PATH", "xla"),
    ("neuron-trn1.32xlarge", "NEURON_COMPILE_CACHE_URL", "neuronx-cc"),
    ("habana-gaudi2-8x", "PT_HPU_RECIPE_CACHE_CONFIG", "recipes,false,40960"),
]


@pytest.mark.parametrize(("host", "variable", "folder"), KEPT)
def test_kernels_are_kept_by_image_and_device(host: str, variable: str, folder: str) -> None:
    value = planned(host).env[variable]
    match = DEVICE.fullmatch(value)
    assert match, value
    assert match[2] == folder
    assert value == planned(host, "--max-num-seqs", "2").env[variable]


def test_what_neuron_loads_whatever_the_settings_is_kept_by_plan() -> None:
    def kept(*tokens: str) -> str:
        return planned("neuron-trn1.32xlarge", *tokens).env["NEURON_COMPILED_ARTIFACTS"]

    assert PLAN.fullmatch(kept())
    assert kept() == kept("--port", "9") == kept("--api-key", "secret")
    assert kept() != kept("--max-num-seqs", "2")


def test_a_small_volume_keeps_fewer_recipes() -> None:
    value = planned("habana-gaudi2-8x", room=10 << 30).env["PT_HPU_RECIPE_CACHE_CONFIG"]
    assert value.endswith(",false,5120")


@for_each(VARIANTS, lambda variant: variant.id)
def test_limits_are_thresholds_and_folders_are_not_shared(variant: Variant) -> None:
    caches = variant.caches
    folders = [(cache.scope, cache.folder) for cache in caches.values()]
    assert len(set(folders)) == len(folders)
    assert {cache.limit for cache in caches.values()} - {""} <= variant.thresholds.keys()
