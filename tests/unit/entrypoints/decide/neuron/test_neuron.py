"""What is decided on Neuron: cores, what is compiled, where it is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from entrypoints.checks.findings import FAIL, evaluate_checks
from entrypoints.core.errors import DOES_NOT_FIT, HOST, USAGE, EntrypointError
from entrypoints.core.records import Device, Facts, Link
from entrypoints.decide.neuron.cores import as_cores, choose_cores, idle_cores
from entrypoints.decide.neuron.neuron import decide, make_doubling_buckets
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.intents import NONE, Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.expect import profile_of, read
from tests.support.hosts.host_models import LLAMA, SMOLLM2

GIB = 1 << 30
SHARE = "--gpu-memory-utilization"
TRN2, TRN1, INF2, OLD = "neuron-trn2n.48xlarge", "neuron-trn1.32xlarge", "neuron-inf2.24xlarge", "neuron-trn1.2xlarge"
FAST = Intents(optimize="latency")
HUB = ModelFacts("meta-llama/Llama-3.1-8B", False, "", "", None, None, "it is not here yet")


def host(name: str) -> Facts:
    return read(name, profile_of(name))


def decided(
    name: str,
    *flags: str,
    model: ModelFacts = LLAMA,
    facts: Facts | None = None,
    intents: Intents = NONE,
    env: dict[str, str] | None = None,
) -> Decision:
    return decide(profile_of(name), facts or host(name), model, parse_user_flags(flags, env or {}, intents=intents))


def values(*words: Any, **options: Any) -> dict[str, str | bool]:
    return {name: value.value for name, value in decided(*words, **options).values.items()}


def refused(*words: Any, **options: Any) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        decided(*words, **options)
    return error.value


def config(settings: dict[str, str | bool]) -> Any:
    return json.loads(str(settings["--additional-config"]))


# --- cores ----------------------------------------------------------------------------------------------------------


def test_every_logical_core_is_a_rank_with_its_share_of_the_memory() -> None:
    cores = as_cores(host(TRN2), parse_user_flags((), {})).facts.devices

    assert [core.number for core in cores] == list(range(64))
    assert {core.memory_total for core in cores} == {24 * GIB}
    assert (cores[5].card, cores[5].path) == (1, "/dev/neuron1")


def test_a_model_takes_as_many_cores_as_help_like_the_vendors_recipes() -> None:
    assert values(TRN2)["--tensor-parallel-size"] == values(TRN2, intents=FAST)["--tensor-parallel-size"] == "8"
    assert int(str(values(TRN2, intents=Intents(optimize="throughput"))["--tensor-parallel-size"])) < 8


def test_vllm_neuron_uses_spare_cores_for_engines_and_nxd_inference_for_servers() -> None:
    native = decided(TRN2, intents=Intents(optimize="throughput"))
    cores = str(native.values["NEURON_RT_VISIBLE_CORES"].value).split(",")
    engines = int(str(native.values["--data-parallel-size"].value))

    assert engines * int(str(native.values["--tensor-parallel-size"].value)) == len(cores) == 64
    assert cores[:3] == ["0", "1", "2"]
    assert "several servers behind a router" in native.values["--data-parallel-size"].instead[-1]
    assert "--data-parallel-size" not in values(TRN1, intents=Intents(optimize="throughput"))


@pytest.mark.parametrize(
    ("billions", "ranks", "because"),
    [
        (8, "8", "leaves more than 50% of a device's memory"),  # 16 GiB each; two cores would leave 5 of them
        (80, "32", "leaves more than 50% of a device's memory"),
        (150, "32", "no group leaves more than 50% of a device's memory"),
    ],
)
def test_nxd_inference_leaves_most_of_a_core_to_the_cache_for_throughput(
    billions: int, ranks: str, because: str
) -> None:
    assert LLAMA.weights
    model = LLAMA._replace(weights=LLAMA.weights._replace(elements=billions * 10**9))
    tensor_parallel = decided(TRN1, model=model, intents=Intents(optimize="throughput")).values[
        "--tensor-parallel-size"
    ]

    assert (tensor_parallel.value, because in tensor_parallel.because) == (ranks, True)


@pytest.mark.parametrize(
    ("architecture", "width", "words", "spread"),
    [
        ("Qwen3MoeForCausalLM", 1536, (), True),  # 192 on each of 8 ranks
        ("Qwen3MoeForCausalLM", 768, (), True),
        ("Qwen3MoeForCausalLM", 1024, (), False),
        ("Qwen3MoeForCausalLM", 1024, ("-tp", "16"), True),
        ("GptOssForCausalLM", 2880, (), False),  # its class fills the width up
    ],
)
def test_experts_are_spread_whole_where_the_kernel_has_no_slices(
    architecture: str, width: int, words: tuple[str, ...], spread: bool
) -> None:
    assert LLAMA.geometry
    experts = LLAMA._replace(
        architecture=architecture, geometry=LLAMA.geometry._replace(experts=128, expert_width=width)
    )
    decision = decided(TRN2, *words, model=experts)

    assert ("--enable-expert-parallel" in decision.values) == spread
    if spread:
        assert "multiple of 128" in decision.values["--enable-expert-parallel"].because


def test_engines_of_vllm_neuron_hold_all_experts_each() -> None:
    assert LLAMA.geometry
    assert LLAMA.weights
    experts = LLAMA._replace(
        geometry=LLAMA.geometry._replace(experts=32, expert_width=1024),
        weights=LLAMA.weights._replace(elements=8 * LLAMA.weights.elements),
        expert_share=0.9,
    )
    decision = decided(TRN2, model=experts, intents=Intents(optimize="throughput"))

    assert decision.uses[0].weights * int(str(decision.values["--tensor-parallel-size"].value)) > 110 * GIB


def test_each_engine_gets_a_row_of_cores() -> None:
    cores = tuple(Device(number, "trn2", GIB, 0, None, card=number // 4) for number in (*range(8), *range(12, 16)))
    two, three = (choose_cores(cores, cores[:12], 4, engines)["NEURON_RT_VISIBLE_CORES"].value for engines in (2, 3))

    assert (two, three) == ("0,1,2,3,4,5,6,7", "0,1,2,3,4,5,6,7,12,13,14,15")
    assert choose_cores(cores[1:], cores[1:], 8, 2)["NEURON_RT_VISIBLE_CORES"].value == "1,2,3,4,5,6,7,12,13,14,15"


def test_only_sizes_that_the_collectives_know_are_taken() -> None:
    assert "4: the runtime supports" in " ".join(decided(TRN1).values["--tensor-parallel-size"].instead)


def test_nxd_inference_pads_heads_and_vllm_neuron_does_not() -> None:
    wide = SMOLLM2._replace(weights=LLAMA.weights)

    assert values(TRN1, model=wide)["--tensor-parallel-size"] == "8"
    assert int(str(values(TRN2, model=wide)["--tensor-parallel-size"])) in (1, 3, 9)


def test_cores_start_at_a_multiple_of_their_number() -> None:
    assert values(INF2)["NEURON_RT_VISIBLE_CORES"] == "0-7"
    assert values(TRN2, intents=FAST._replace(devices=(3, 4, 5)))["NEURON_RT_VISIBLE_CORES"] == "16-23"


def test_cores_without_a_row_are_taken_as_they_are() -> None:
    cores = tuple(Device(number, "trn1", GIB, 0, None, card=number // 2) for number in (1, 2, 3, 4))

    chosen = choose_cores(cores, cores[:4], 4)["NEURON_RT_VISIBLE_CORES"]
    assert (chosen.value, "no 4 free cores in a row" in chosen.because) == ("1-4", True)


def test_wished_devices_and_visible_cores_limit_what_is_planned_with() -> None:
    assert values(TRN2, intents=FAST._replace(devices=(7,)))["NEURON_RT_VISIBLE_CORES"] == "28-31"
    assert values(TRN1, env={"NEURON_RT_VISIBLE_CORES": "8-15"})["NEURON_RT_VISIBLE_CORES"] == "8-15"
    assert "NEURON_RT_VISIBLE_CORES" not in values(TRN1, env={"NEURON_RT_NUM_CORES": "2"})


@pytest.mark.parametrize("env", [{"NEURON_RT_VISIBLE_CORES": "all"}, {"NEURON_RT_VISIBLE_CORES": "90-91"}])
def test_cores_that_are_not_here_are_refused(env: dict[str, str]) -> None:
    assert refused(TRN1, env=env).code == USAGE


def test_devices_that_are_not_here_are_refused() -> None:
    error = refused(TRN1, intents=Intents(devices=(16,)))
    assert (error.code, "0-15" in error.message) == (USAGE, True)


def test_devices_that_a_process_holds_are_left_out_and_it_is_said() -> None:
    facts = host(TRN2)
    devices = tuple(device._replace(busy=device.number != 9) for device in facts.devices)
    decision = decided(TRN2, facts=facts._replace(devices=devices), intents=FAST)

    assert decision.values["NEURON_RT_VISIBLE_CORES"].value == "36-39"
    assert [finding.found for finding in decision.findings if finding.id == "PLAN-074"] == ["devices 0-8,10-15"]


def test_a_machine_whose_devices_are_all_held_is_refused_by_their_numbers() -> None:
    error = refused("neuron-trn2-pod-busy")

    assert (error.code, error.hint.endswith("--devices 0")) == (HOST, True)
    assert values("neuron-trn2-pod-busy", intents=FAST._replace(devices=(0,)))["NEURON_RT_VISIBLE_CORES"] == "0-3"


def test_without_a_device_there_is_no_plan() -> None:
    assert refused(TRN2, facts=host(TRN2)._replace(devices=(), links=())).code == HOST


def test_links_join_the_cores_of_a_device_and_of_its_neighbours() -> None:
    links = as_cores(host(INF2), parse_user_flags((), {})).facts.links
    assert {Link(0, 1, "NeuronLink"), Link(0, 2, "NeuronLink")} <= set(links)


# --- what is compiled -----------------------------------------------------------------------------------------------


def test_buckets_are_powers_of_two_and_the_length() -> None:
    assert make_doubling_buckets(128, 1000) == (128, 256, 512, 1000)
    assert make_doubling_buckets(128, 64) == (64,)
    assert make_doubling_buckets(1, 8) == (1, 2, 4, 8)
    assert make_doubling_buckets(100, 256) == (128, 256)


def test_vllm_neuron_compiles_pieces_of_prompts_and_batches() -> None:
    settings = values(TRN2, intents=FAST)

    assert config(settings)["neuron_config"] == {
        "num_batched_tokens_buckets": [128, 256, 512, 1024, 2048],
        "num_seqs_buckets": [1, 2, 4, 8],
    }
    assert settings["--max-num-batched-tokens"] == "2048"
    assert not {"--block-size", "--num-gpu-blocks-override"} & set(settings)


def test_vllm_neuron_takes_a_smaller_share_before_a_model_is_refused() -> None:
    """Weights of 36 GiB on two cores of 24 GiB leave less than the usual share gives to the KV cache."""
    large = LLAMA._replace(weights=Weights(36 << 30, 18 << 30, 0))
    lowered = decided(TRN2, "-tp", "2", model=large).values[SHARE]

    assert 0 < float(str(lowered.value)) < 0.9
    assert "largest with which the weights fit" in lowered.because
    assert decided(TRN2, "-tp", "4", model=large).values[SHARE].value == "0.9"
    assert refused(TRN2, "-tp", "2", SHARE, "0.9", model=large).code == DOES_NOT_FIT
    assert refused(TRN2, "-tp", "1", model=large).code == DOES_NOT_FIT


def test_the_largest_bucket_is_what_the_user_lets_be_computed_at_once() -> None:
    short = config(values(TRN2, "--max-model-len", "1024"))["neuron_config"]
    large = config(values(TRN2, "--max-num-batched-tokens", "4096", "--max-num-seqs", "3"))["neuron_config"]

    assert short["num_batched_tokens_buckets"][-1] == 1024
    assert large["num_batched_tokens_buckets"][-1] == 4096
    assert large["num_seqs_buckets"] == [1, 2, 3]


def test_nxd_inference_gets_its_block_count() -> None:
    settings = values(TRN1, "--max-model-len", "4096", "--max-num-seqs", "8")

    assert (settings["--num-gpu-blocks-override"], settings["--block-size"]) == (str(4096 // 32 * 8), "32")
    override = config(settings)["override_neuron_config"]
    assert (
        override["context_encoding_buckets"]
        == override["token_generation_buckets"]
        == [128, 256, 512, 1024, 2048, 4096]
    )


def test_the_manuals_example_of_nxd_inference() -> None:
    """--max-model-len 128 --max-num-seqs 4 --block-size 32 --num-gpu-blocks-override 16, in the vLLM User Guide."""
    settings = values(TRN1, "--max-model-len", "128", "--max-num-seqs", "4", "-tp", "2", model=SMOLLM2)
    assert (settings["--num-gpu-blocks-override"], settings["--block-size"]) == ("16", "32")


def test_one_sequence_goes_without_prefix_caching_which_would_answer_wrongly() -> None:
    settings = values(TRN1, "--max-num-seqs", "1")

    assert settings["--no-enable-prefix-caching"] is True
    assert settings["--num-gpu-blocks-override"] == "1"
    assert "--block-size" not in settings


def test_prefix_caching_that_the_user_turns_off_leaves_a_block_for_each_sequence() -> None:
    settings = values(TRN1, "--no-enable-prefix-caching", "--max-num-seqs", "4")
    assert settings["--num-gpu-blocks-override"] == "4"


def test_transformers_neuronx_keeps_a_sequence_in_a_block() -> None:
    settings = values(OLD, "--max-model-len", "2048", "--max-num-seqs", "8")

    assert settings["--block-size"] == "2048"
    assert {settings[f"NEURON_{kind}_BUCKETS"] for kind in ("CONTEXT_LENGTH", "TOKEN_GEN")} == {"128,256,512,1024,2048"}


def test_a_range_of_prompts_leaves_fewer_graphs() -> None:
    settings = values(TRN1, intents=Intents(input=(1000, 3000), output=(1, 1000)))

    assert config(settings)["override_neuron_config"]["context_encoding_buckets"] == [1024, 2048, 4000]
    assert settings["--max-model-len"] == "4000"


def test_a_long_model_is_served_short_unless_asked_for_more() -> None:
    assert values(TRN2)["--max-model-len"] == "16384"
    assert "--max-model-len" not in values(TRN2, "--max-model-len", "65536") or (
        values(TRN2, "--max-model-len", "65536")["--max-model-len"] == "65536"
    )


def test_a_model_that_is_not_here_gets_a_length_where_the_engine_must_have_one() -> None:
    assert values(TRN1, model=HUB)["--max-model-len"] == "2048"
    assert "--max-model-len" not in values(TRN2, model=HUB)


def test_kv_heads_that_fit_no_size_are_kept_once_for_each_query_head() -> None:
    assert LLAMA.geometry
    phi = LLAMA.geometry._replace(heads=40, kv_heads=10, padded=True)

    assert [phi.kv_heads_of_rank(ranks) for ranks in (1, 2, 8, 10, 20, 32)] == [10, 5, 5, 1, 1, 2]
    assert phi._replace(padded=False).kv_heads_of_rank(8) == 1
    assert phi.kv_bytes(1024, 2, 8) == 5 * phi._replace(padded=False).kv_bytes(1024, 2, 8)


def test_padded_heads_take_the_memory_that_they_take() -> None:
    assert LLAMA.geometry
    odd = LLAMA._replace(geometry=LLAMA.geometry._replace(heads=40, kv_heads=10))
    flags = ("-tp", "8", "--max-model-len", "32768")

    assert int(str(values(TRN1, *flags, model=odd)["--max-num-seqs"])) < int(
        str(values(TRN1, *flags, model=LLAMA)["--max-num-seqs"])
    )


def test_idle_cores_are_rows_for_further_servers() -> None:
    decision = decided(TRN1, intents=Intents(optimize="throughput"))
    ranks = int(str(decision.values["--tensor-parallel-size"].value))
    finding = next(finding for finding in decision.findings if finding.id == "NRN-004")

    assert finding.values["use"].startswith(f"start {32 // ranks - 1} more behind a router")
    assert "PLAN-025" not in {finding.id for finding in decision.findings}


def test_cores_that_are_too_few_for_another_server_of_this_size_are_told_too() -> None:
    cores = as_cores(host(INF2), parse_user_flags((), {})).facts.devices
    finding = next(idle_cores(cores, tuple(range(8)), 8))

    assert (finding.found, finding.values["use"][-3:]) == (
        f"cores 8-{len(cores) - 1} of {len(cores)}",
        f"-{len(cores) - 1}"[-3:],
    )
    assert list(idle_cores(cores, tuple(core.number for core in cores), len(cores))) == []


def test_concurrency_is_the_batch_that_is_compiled() -> None:
    assert values(TRN1, intents=Intents(concurrency=4))["--max-num-seqs"] == "4"


def test_the_kv_cache_of_vllm_neuron_is_planned_as_it_is_capped() -> None:
    wished = Intents(input=(1, 60000), output=(1, 5536))
    tight = values(TRN2, "-tp", "1", intents=Intents(optimize="throughput"))

    assert int(str(tight["--max-num-seqs"])) == 2
    assert int(str(values(TRN2, "-tp", "8", intents=wished)["--max-num-seqs"])) <= 8


def test_a_model_that_is_too_large_is_refused() -> None:
    huge = LLAMA._replace(weights=LLAMA.weights and LLAMA.weights._replace(elements=400 * GIB))
    assert refused(OLD, model=huge).code == DOES_NOT_FIT


# --- what is said ---------------------------------------------------------------------------------------------------


def test_more_sequences_than_memory_is_said_and_kept() -> None:
    decision = decided(TRN1, "-tp", "2", "--max-num-seqs", "64")
    assert "PLAN-071" in [finding.id for finding in decision.findings]


def test_the_quantisation_that_breaks_and_a_small_host_are_said() -> None:
    small = host(TRN1)._replace(memory=host(TRN1).memory._replace(available=8 * GIB))
    decision = decided(TRN1, "--quantization", "neuron_quant", facts=small)

    assert {"PLAN-072", "PLAN-073"} <= {finding.id for finding in decision.findings}


@pytest.mark.parametrize(
    ("machine", "image", "failing"),
    [
        (INF2, "neuron2.29-vllm0.16", {"NRN-012"}),
        (INF2, "neuron2.32-vllm0.24", {"NRN-021", "NRN-022"}),
        (TRN2, "neuron2.20-vllm0.6", {"NRN-031", "NRN-032"}),
        (TRN2, "neuron2.32-vllm0.24", set()),
        (OLD, "neuron2.20-vllm0.6", set()),
    ],
)
def test_instances_and_drivers_that_an_image_does_not_go_with_fail(machine: str, image: str, failing: set[str]) -> None:
    profile = expect.profile_in(image)
    findings = evaluate_checks(profile["checks"], host(machine))

    assert {finding.id for finding in findings if finding.severity == FAIL and finding.id.startswith("NRN")} == failing


@pytest.mark.parametrize(
    ("name", "method", "count"), [(TRN2, "awq", 1), (TRN2, "fp8", 0), (INF2, "fp8", 1), (INF2, "", 0)]
)
def test_a_quantisation_that_the_platform_does_not_name_is_warned_of(name: str, method: str, count: int) -> None:
    findings = decided(name, model=SMOLLM2._replace(quantization=method)).findings

    assert [finding.found for finding in findings if finding.id == "PLAN-075"] == [method] * count


@pytest.mark.parametrize(
    ("name", "flags", "expected"),
    [
        (OLD, ("--dtype", "float32"), ["NRN-005"]),
        (OLD, ("--dtype", "float"), ["NRN-005"]),
        (OLD, ("--dtype", "half"), []),
        (OLD, ("--enable-chunked-prefill",), ["NRN-006"]),
        (OLD, ("--no-enable-chunked-prefill",), []),
        (TRN2, ("--enable-chunked-prefill", "--dtype", "float32"), []),
    ],
)
def test_what_the_old_sdk_lacks_is_found(name: str, flags: tuple[str, ...], expected: list[str]) -> None:
    findings = decided(name, *flags, model=SMOLLM2).findings
    assert [finding.id for finding in findings if finding.id in ("NRN-005", "NRN-006")] == expected
