"""What is decided on Neuron: cores, what is compiled, where it is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from entrypoints.checks.findings import FAIL, evaluate_checks
from entrypoints.core.errors import DOES_NOT_FIT, HOST, USAGE
from entrypoints.core.records import Device, Facts, Link
from entrypoints.decide.neuron.cores import as_cores, choose_cores, idle_cores
from entrypoints.decide.neuron.neuron import make_doubling_buckets
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.decision_rows import Row, check, decided, with_devices
from tests.support.hosts import expect
from tests.support.hosts.expect import profile_of, read
from tests.support.hosts.host_models import LLAMA, SMOLLM2
from tests.support.planned import models

GIB = 1 << 30
TRN2, TRN1, INF2, OLD = "neuron-trn2n.48xlarge", "neuron-trn1.32xlarge", "neuron-inf2.24xlarge", "neuron-trn1.2xlarge"
BUSY = "neuron-trn2-pod-busy"
SHARE, TENSOR, DATA, EXPERTS = (
    "--gpu-memory-utilization",
    "--tensor-parallel-size",
    "--data-parallel-size",
    "--enable-expert-parallel",
)
LENGTH, SEQUENCES, BATCH, BLOCK, BLOCKS = (
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--block-size",
    "--num-gpu-blocks-override",
)
CORES, COMPILED, NO_PREFIXES = "NEURON_RT_VISIBLE_CORES", "--additional-config", "--no-enable-prefix-caching"
FAST, MANY = {"optimize": "latency"}, {"optimize": "throughput"}
HUB = ModelFacts("meta-llama/Llama-3.1-8B", False, "", "", None, None, "it is not here yet")


def host(name: str) -> Facts:
    return read(name, profile_of(name))


def of_numbers(billions: int) -> ModelFacts:
    assert LLAMA.weights
    return LLAMA._replace(weights=LLAMA.weights._replace(elements=billions * 10**9))


def of_experts(architecture: str, width: int) -> ModelFacts:
    assert LLAMA.geometry
    geometry = LLAMA.geometry._replace(experts=128, expert_width=width)
    return LLAMA._replace(architecture=architecture, geometry=geometry)


def with_one_free(number: int) -> Callable[[Facts], Facts]:
    """Let a process hold all devices but one."""
    return lambda facts: facts._replace(
        devices=tuple(device._replace(busy=device.number != number) for device in facts.devices)
    )


def with_little_memory(facts: Facts) -> Facts:
    return facts._replace(memory=facts.memory._replace(available=8 * GIB))


def buckets(pieces: Sequence[int], batches: Sequence[int]) -> str:
    """Return what vLLM Neuron compiles."""
    return json.dumps({"neuron_config": {"num_batched_tokens_buckets": [*pieces], "num_seqs_buckets": [*batches]}})


def nxd_buckets(prompts: Sequence[int], tokens: Sequence[int]) -> str:
    """Return what NxD Inference compiles."""
    config = {"enable_bucketing": True, "context_encoding_buckets": [*prompts], "token_generation_buckets": [*tokens]}
    return json.dumps({"override_neuron_config": config})


ALL_CORES = ",".join(map(str, range(64)))
WIDE = SMOLLM2._replace(weights=LLAMA.weights)
LARGE = LLAMA._replace(weights=Weights(36 << 30, 18 << 30, 0))
"""Weights of 36 GiB on two cores of 24 GiB leave less than the usual share gives to the KV cache."""
SPARSE = "Qwen3MoeForCausalLM"
IMAGES = models()["Qwen/Qwen3.5-35B-A3B"]
ROWS = {
    "a model takes as many cores as help, like the vendor's recipes": Row(TRN2, values={TENSOR: "8"}),
    "for latency too": Row(TRN2, goals=FAST, values={TENSOR: "8", CORES: ALL_CORES}),
    "vLLM Neuron uses spare cores for engines": Row(
        TRN2,
        goals=MANY,
        values={TENSOR: "1", DATA: "64", CORES: ALL_CORES},
        because={DATA: "several servers behind a router"},
    ),
    "NxD Inference for servers": Row(
        TRN1, goals=MANY, values={TENSOR: "8", DATA: None}, finds={"NRN-004": "cores 8-31 of 32"}, quiet=("PLAN-025",)
    ),
    "it leaves most of a core to the cache for throughput": Row(
        TRN1,  # 16 GiB each; two cores would leave 5 of them
        goals=MANY,
        model=of_numbers(8),
        values={TENSOR: "8"},
        because={TENSOR: "leaves more than 50% of a device's memory"},
    ),
    "of a large model too": Row(
        TRN1,
        goals=MANY,
        model=of_numbers(80),
        values={TENSOR: "32"},
        because={TENSOR: "leaves more than 50% of a device's memory"},
    ),
    "as long as it can": Row(
        TRN1,
        goals=MANY,
        model=of_numbers(150),
        values={TENSOR: "32"},
        because={TENSOR: "no group leaves more than 50% of a device's memory"},
    ),
    "experts of 192 on each of 8 ranks stay whole, as the kernel has no slices": Row(
        TRN2, model=of_experts(SPARSE, 1536), values={EXPERTS: True}, because={EXPERTS: "multiple of 128"}
    ),
    "so do those of 96": Row(TRN2, model=of_experts(SPARSE, 768), because={EXPERTS: "multiple of 128"}),
    "those of 128 are cut": Row(TRN2, model=of_experts(SPARSE, 1024), values={EXPERTS: None}),
    "those of 64 are not": Row(TRN2, "-tp 16", model=of_experts(SPARSE, 1024), because={EXPERTS: "multiple of 128"}),
    "a class that fills the width up cuts them": Row(
        TRN2, model=of_experts("GptOssForCausalLM", 2880), values={EXPERTS: None}
    ),
    "only sizes that the collectives know are taken": Row(TRN1, because={TENSOR: "4: the runtime supports"}),
    "NxD Inference pads heads": Row(TRN1, model=WIDE, values={TENSOR: "8"}),
    "vLLM Neuron does not": Row(TRN2, model=WIDE, values={TENSOR: "1"}),
    "cores start at a multiple of their number": Row(INF2, values={CORES: "0-7"}),
    "also on the devices that are asked for": Row(TRN2, goals={**FAST, "devices": (3, 4, 5)}, values={CORES: "16-23"}),
    "one device is as many cores": Row(TRN2, goals={**FAST, "devices": (7,)}, values={CORES: "28-31"}),
    "visible cores limit what is planned with": Row(TRN1, env={CORES: "8-15"}, values={CORES: "8-15"}),
    "a number of cores is the user's": Row(TRN1, env={"NEURON_RT_NUM_CORES": "2"}, values={CORES: None}),
    "a visible core is a number": Row(TRN1, env={CORES: "all"}, code=USAGE),
    "and is here": Row(TRN1, env={CORES: "90-91"}, code=USAGE),
    "a device is here": Row(TRN1, goals={"devices": (16,)}, refused="0-15", code=USAGE),
    "devices that a process holds are left out, and it is said": Row(
        TRN2,
        goals=FAST,
        changed=with_one_free(9),
        values={CORES: "36-39"},
        finds={"PLAN-074": "devices 0-8,10-15"},
    ),
    "a machine whose devices are all held is refused by their numbers": Row(BUSY, refused="--devices 0", code=HOST),
    "unless they are asked for": Row(BUSY, goals={**FAST, "devices": (0,)}, values={CORES: "0-3"}),
    "without a device there is no plan": Row(TRN2, changed=with_devices(0), code=HOST),
    "vLLM Neuron compiles pieces of prompts and batches": Row(
        TRN2,
        goals=FAST,
        values={
            COMPILED: buckets((128, 256, 512, 1024, 2048), (1, 2, 4, 8)),
            BATCH: "2048",
            BLOCK: None,
            BLOCKS: None,
            LENGTH: "16384",
        },
    ),
    "the KV cache gets what weights leave of the share, up to a part of it": Row(
        TRN2, "-tp 2", model=LARGE, values={SHARE: "0.9"}
    ),
    "with more cores too": Row(TRN2, "-tp 4", model=LARGE, values={SHARE: "0.9"}),
    "the user's share stays": Row(TRN2, f"-tp 2 {SHARE} 0.75", model=LARGE, code=DOES_NOT_FIT),
    "less than a GiB of cache does not start": Row(
        TRN2, "-tp 2", model=LARGE._replace(weights=Weights(42 << 30, 21 << 30, 0)), code=DOES_NOT_FIT
    ),
    "without an aim more than 8 cores have 4 GiB of weights each": Row(
        TRN2, model=of_numbers(70), values={TENSOR: "32", DATA: "2"}, because={TENSOR: "4.0 GiB of weights"}
    ),
    "with less they stay at 8": Row(TRN2, model=of_numbers(32), values={TENSOR: "8", DATA: "8"}),
    "for latency the widest that helps": Row(TRN2, goals=FAST, model=of_numbers(32), values={TENSOR: "32"}),
    "NxD Inference takes the widest": Row(TRN1, model=of_numbers(32), values={TENSOR: "32"}),
    "images take no more than a prompt's embeddings": Row(
        TRN2, "-tp 4 --max-num-seqs 4 --max-model-len 2048", model=IMAGES, values={SHARE: "0.9"}
    ),
    "a model with states runs as many sequences as graphs are compiled for": Row(
        TRN2, "-tp 4", model=IMAGES, values={SEQUENCES: "8"}
    ),
    "on one core it does not fit": Row(TRN2, "-tp 1", model=LARGE, code=DOES_NOT_FIT),
    "the largest bucket is the user's length": Row(
        TRN2, "--max-model-len 1024", values={COMPILED: buckets((128, 256, 512, 1024), (1, 2, 4, 8))}
    ),
    "or what the user lets be computed at once": Row(
        TRN2,
        "--max-num-batched-tokens 4096 --max-num-seqs 3",
        values={COMPILED: buckets((128, 256, 512, 1024, 2048, 4096), (1, 2, 3))},
    ),
    "NxD Inference gets its block count": Row(
        TRN1,
        "--max-model-len 4096 --max-num-seqs 8",
        values={
            BLOCKS: str(4096 // 32 * 8),
            BLOCK: "32",
            COMPILED: nxd_buckets((128, 256, 512, 1024, 2048, 4096), (128, 256, 512, 1024, 2048, 4096)),
        },
    ),
    "as in the vLLM User Guide": Row(
        TRN1, "--max-model-len 128 --max-num-seqs 4 -tp 2", model=SMOLLM2, values={BLOCKS: "16", BLOCK: "32"}
    ),
    "one sequence goes without prefix caching, which would answer wrongly": Row(
        TRN1, "--max-num-seqs 1", values={NO_PREFIXES: True, BLOCKS: "1", BLOCK: None}
    ),
    "prefix caching that the user turns off leaves a block for each sequence": Row(
        TRN1, f"{NO_PREFIXES} --max-num-seqs 4", values={BLOCKS: "4"}
    ),
    "transformers-neuronx keeps a sequence in a block": Row(
        OLD,
        "--max-model-len 2048 --max-num-seqs 8",
        values={
            BLOCK: "2048",
            "NEURON_CONTEXT_LENGTH_BUCKETS": "128,256,512,1024,2048",
            "NEURON_TOKEN_GEN_BUCKETS": "128,256,512,1024,2048",
        },
    ),
    "a range of prompts leaves fewer graphs": Row(
        TRN1,
        goals={"input": (1000, 3000), "output": (1, 1000)},
        values={LENGTH: "4000", COMPILED: nxd_buckets((1024, 2048, 4000), (128, 256, 512, 1024, 2048, 4000))},
    ),
    "a model that is not here gets a length where the engine must have one": Row(
        TRN1, model=HUB, values={LENGTH: "2048"}
    ),
    "and none elsewhere": Row(TRN2, model=HUB, values={LENGTH: None}),
    "concurrency is the batch that is compiled": Row(TRN1, goals={"concurrency": 4}, values={SEQUENCES: "4"}),
    "the KV cache of vLLM Neuron is planned as it is capped": Row(TRN2, "-tp 1", goals=MANY, values={SEQUENCES: "2"}),
    "also for long requests": Row(
        TRN2, "-tp 8", goals={"input": (1, 60000), "output": (1, 5536)}, values={SEQUENCES: "4"}
    ),
    "a model that is too large is refused": Row(OLD, model=of_numbers(400), code=DOES_NOT_FIT),
    "more sequences than memory are kept, and it is said": Row(TRN1, "-tp 2 --max-num-seqs 64", finds={"PLAN-071": ""}),
    "the quantisation that breaks and a small host are said": Row(
        TRN1,
        "--quantization neuron_quant",
        changed=with_little_memory,
        finds={"PLAN-072": "", "PLAN-073": ""},
    ),
    "vLLM Neuron names no AWQ": Row(TRN2, model=SMOLLM2._replace(quantization="awq"), finds={"PLAN-075": "awq"}),
    "it does FP8": Row(TRN2, model=SMOLLM2._replace(quantization="fp8"), quiet=("PLAN-075",)),
    "NxD Inference does not": Row(INF2, model=SMOLLM2._replace(quantization="fp8"), finds={"PLAN-075": "fp8"}),
    "no quantisation is no problem": Row(INF2, model=SMOLLM2, quiet=("PLAN-075",)),
    "the old SDK lacks float32": Row(OLD, "--dtype float32", model=SMOLLM2, finds={"NRN-005": ""}, quiet=("NRN-006",)),
    "by its other name too": Row(OLD, "--dtype float", model=SMOLLM2, finds={"NRN-005": ""}),
    "not half": Row(OLD, "--dtype half", model=SMOLLM2, quiet=("NRN-005",)),
    "it lacks chunked prefill": Row(OLD, "--enable-chunked-prefill", model=SMOLLM2, finds={"NRN-006": ""}),
    "which may be turned off": Row(OLD, "--no-enable-chunked-prefill", model=SMOLLM2, quiet=("NRN-006",)),
    "the new one lacks neither": Row(
        TRN2, "--enable-chunked-prefill --dtype float32", model=SMOLLM2, quiet=("NRN-005", "NRN-006")
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_decisions(row: Row) -> None:
    check(row)


# --- cores ----------------------------------------------------------------------------------------------------------


def test_every_logical_core_is_a_rank_with_its_share_of_the_memory() -> None:
    cores = as_cores(host(TRN2), parse_user_flags((), {})).facts.devices

    assert [core.number for core in cores] == list(range(64))
    assert {core.memory_total for core in cores} == {24 * GIB}
    assert (cores[5].card, cores[5].path) == (1, "/dev/neuron1")


def test_engines_of_vllm_neuron_hold_all_experts_each() -> None:
    assert LLAMA.geometry
    assert LLAMA.weights
    experts = LLAMA._replace(
        geometry=LLAMA.geometry._replace(experts=32, expert_width=1024),
        weights=LLAMA.weights._replace(elements=8 * LLAMA.weights.elements),
        expert_share=0.9,
    )
    decision = decided(Row(TRN2, goals=MANY, model=experts))
    assert decision.uses[0].weights * int(str(decision.values[TENSOR].value)) > 110 * GIB


def test_each_engine_gets_a_row_of_cores() -> None:
    cores = tuple(Device(number, "trn2", GIB, 0, None, card=number // 4) for number in (*range(8), *range(12, 16)))
    two, three = (choose_cores(cores, cores[:12], 4, engines)["NEURON_RT_VISIBLE_CORES"].value for engines in (2, 3))

    assert (two, three) == ("0,1,2,3,4,5,6,7", "0,1,2,3,4,5,6,7,12,13,14,15")
    assert choose_cores(cores[1:], cores[1:], 8, 2)["NEURON_RT_VISIBLE_CORES"].value == "1,2,3,4,5,6,7,12,13,14,15"


def test_cores_without_a_row_are_taken_as_they_are() -> None:
    cores = tuple(Device(number, "trn1", GIB, 0, None, card=number // 2) for number in (1, 2, 3, 4))

    chosen = choose_cores(cores, cores[:4], 4)["NEURON_RT_VISIBLE_CORES"]
    assert (chosen.value, "no 4 free cores in a row" in chosen.because) == ("1-4", True)


def test_links_join_the_cores_of_a_device_and_of_its_neighbours() -> None:
    links = as_cores(host(INF2), parse_user_flags((), {})).facts.links
    assert {Link(0, 1, "NeuronLink"), Link(0, 2, "NeuronLink")} <= set(links)


def test_cores_that_are_too_few_for_another_server_of_this_size_are_told_too() -> None:
    cores = as_cores(host(INF2), parse_user_flags((), {})).facts.devices
    finding = next(idle_cores(cores, tuple(range(8)), 8))

    assert (finding.found, finding.values["use"][-3:]) == (
        f"cores 8-{len(cores) - 1} of {len(cores)}",
        f"-{len(cores) - 1}"[-3:],
    )
    assert list(idle_cores(cores, tuple(core.number for core in cores), len(cores))) == []


def test_idle_cores_are_rows_for_further_servers() -> None:
    finding = next(finding for finding in decided(Row(TRN1, goals=MANY)).findings if finding.id == "NRN-004")
    assert finding.values["use"].startswith("start 3 more behind a router")


# --- what is compiled -----------------------------------------------------------------------------------------------


def test_buckets_are_powers_of_two_and_the_length() -> None:
    assert make_doubling_buckets(128, 1000) == (128, 256, 512, 1000)
    assert make_doubling_buckets(128, 64) == (64,)
    assert make_doubling_buckets(1, 8) == (1, 2, 4, 8)
    assert make_doubling_buckets(100, 256) == (128, 256)


def test_kv_heads_that_fit_no_size_are_kept_once_for_each_query_head() -> None:
    assert LLAMA.geometry
    phi = LLAMA.geometry._replace(heads=40, kv_heads=10, padded=True)

    assert [phi.kv_heads_of_rank(ranks) for ranks in (1, 2, 8, 10, 20, 32)] == [10, 5, 5, 1, 1, 2]
    assert phi._replace(padded=False).kv_heads_of_rank(8) == 1
    assert phi.kv_bytes(1024, 2, 8) == 5 * phi._replace(padded=False).kv_bytes(1024, 2, 8)


def test_padded_heads_take_the_memory_that_they_take() -> None:
    assert LLAMA.geometry
    odd = LLAMA._replace(geometry=LLAMA.geometry._replace(heads=40, kv_heads=10))
    padded, plain = (
        int(str(decided(Row(TRN1, "-tp 8 --max-model-len 32768", model=model)).values[SEQUENCES].value))
        for model in (odd, LLAMA)
    )
    assert padded < plain


# --- what is said ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "image", "failing"),
    [
        (INF2, "neuron2.31-vllm0.16", {"NRN-012"}),
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
