"""What is decided for OpenVINO: device, weights, KV cache, batches."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import DOES_NOT_FIT, HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Facts, Failure
from entrypoints.decide.openvino import decide
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.expect import profile_of, read
from tests.support.hosts.host_models import LLAMA, SMOLLM2

GIB = 1 << 30
NAME = "openvino-xeon8380-2s"
PROFILE = profile_of(NAME)
XEON = read(NAME, PROFILE)


def with_memory(gib: float) -> Facts:
    return XEON._replace(memory=XEON.memory._replace(available=int(gib * GIB)))


def decided(
    *flags: str, facts: Facts = XEON, model: ModelFacts = LLAMA, intents: Intents = NONE, **env: str
) -> Decision:
    return decide(PROFILE, facts, model, parse_user_flags(flags, env, intents=intents))


def values(
    *flags: str, facts: Facts = XEON, model: ModelFacts = LLAMA, intents: Intents = NONE, **env: str
) -> dict[str, str | bool]:
    decision = decided(*flags, facts=facts, model=model, intents=intents, **env)
    return {name: value.value for name, value in decision.values.items()}


def refused(*flags: str, facts: Facts = XEON, model: ModelFacts = LLAMA, **env: str) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        decided(*flags, facts=facts, model=model, **env)
    return error.value


def test_the_manuals_configuration_for_cpus() -> None:
    settings = values(model=SMOLLM2)

    assert settings["VLLM_OPENVINO_DEVICE"] == "CPU"
    assert settings["VLLM_OPENVINO_KV_CACHE_PRECISION"] == "u8"
    assert (settings["--enable-chunked-prefill"], settings["--max-num-batched-tokens"]) == (True, "256")
    assert str(settings["LD_PRELOAD"]).endswith("libtcmalloc_minimal.so.4")


def test_the_manuals_configuration_for_gpus() -> None:
    settings = values(VLLM_OPENVINO_DEVICE="GPU.1")

    assert settings["VLLM_OPENVINO_KV_CACHE_PRECISION"] == "i8"
    assert settings["VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS"] == "ON"
    assert settings["VLLM_OPENVINO_KVCACHE_SPACE"] == "0"
    assert "--enable-chunked-prefill" not in settings


def test_the_kv_cache_is_what_sequences_fill_and_no_more_than_one_socket_keeps_busy() -> None:
    assert values(model=SMOLLM2)["VLLM_OPENVINO_KVCACHE_SPACE"] == "23"
    assert values()["VLLM_OPENVINO_KVCACHE_SPACE"] == "160"
    assert values(VLLM_OPENVINO_KV_CACHE_PRECISION="f16", model=SMOLLM2)["VLLM_OPENVINO_KVCACHE_SPACE"] == "45"


def test_the_kv_cache_takes_what_is_left_where_that_is_less() -> None:
    assert int(str(values(facts=with_memory(64))["VLLM_OPENVINO_KVCACHE_SPACE"])) == 27


def test_weights_are_compressed_only_where_they_would_not_fit_otherwise() -> None:
    assert "VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS" not in values()
    tight = values("--max-model-len", "8192", facts=with_memory(33))
    assert tight["VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS"] == "ON"
    off = {"VLLM_OPENVINO_ENABLE_QUANTIZED_WEIGHTS": "OFF"}
    assert refused("--max-model-len", "8192", facts=with_memory(33), **off).code == DOES_NOT_FIT


def test_a_length_that_does_not_fit_is_shortened_or_refused_when_it_was_asked_for() -> None:
    assert int(str(values(facts=with_memory(40))["--max-model-len"])) < 131072
    assert refused("--max-model-len", "131072", facts=with_memory(40)).code == DOES_NOT_FIT


def test_wishes_set_length_and_sequences() -> None:
    settings = values(intents=Intents(input=(1, 3000), output=(1, 1000), concurrency=512))

    assert (settings["--max-model-len"], settings["--max-num-seqs"]) == ("4000", "512")
    assert settings["--max-num-batched-tokens"] == "512"


def test_prefix_caching_excludes_chunked_prefill() -> None:
    assert "--enable-chunked-prefill" not in values("--enable-prefix-caching")
    decision = decided("--enable-prefix-caching", "--enable-chunked-prefill", "--enable-lora")
    assert {"PLAN-082", "PLAN-083"} <= {finding.id for finding in decision.findings}


def test_the_old_name_of_the_precision_is_told_apart() -> None:
    findings = decided(VLLM_OPENVINO_CPU_KV_CACHE_PRECISION="u8").findings
    assert [finding.id for finding in findings] == ["PLAN-081"]


def test_a_model_that_is_not_here_leaves_room_for_its_weights() -> None:
    hub = ModelFacts("owner/model", False, "", "", None, None, "it is not here yet")
    assert int(str(values(model=hub)["VLLM_OPENVINO_KVCACHE_SPACE"])) == 91


def test_what_the_plugin_refuses_is_refused_before_it_loads() -> None:
    assert refused("-tp", "2").code == USAGE
    assert refused("--pipeline-parallel-size", "2").code == USAGE
    assert refused(model=LLAMA._replace(problem="config.json: no hidden_size")).code == MODEL
    assert refused(facts=with_memory(10)).code == DOES_NOT_FIT


def test_without_memory_figures_there_is_no_plan() -> None:
    broken = XEON._replace(
        memory=XEON.memory._replace(total=0), failures=(Failure("/proc/meminfo", "no such file", "its size"),)
    )
    assert refused(facts=broken).code == HOST


@pytest.mark.parametrize(("method", "count"), [("fp8", 1), ("compressed-tensors", 1), ("gptq", 0), ("awq", 0), ("", 0)])
def test_a_quantisation_that_nobody_converts_is_warned_of(method: str, count: int) -> None:
    findings = decided(model=LLAMA._replace(quantization=method)).findings

    assert [finding.found for finding in findings if finding.id == "PLAN-084"] == [method] * count
