"""Devices, parallelism and lengths, for models and machines as they are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from entrypoints.core.errors import DOES_NOT_FIT, HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Facts, Link
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_model
from entrypoints.model.geometry import Geometry
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.vllm_flags import UserFlags
from tests.support.fit_hosts import GIB, LLAMA_8B, LLAMA_70B, RULES, device, host, model, said
from tests.support.machines import machine
from tests.support.planned import models, plan, spread
from tests.support.sample import told

MIXTRAL = LLAMA_8B._replace(experts=8, expert_width=14336)


def shape(placement: Fit) -> tuple[int, int, int]:
    return placement.tensor, placement.pipeline, placement.data


def ids(placement: Fit) -> list[int]:
    return [chosen.number for chosen in placement.devices]


def refused(code: int, *arguments: Any) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        fit_model(*arguments)
    assert error.value.code == code
    assert error.value.hint
    return error.value


def texts(placement: Fit) -> str:
    return "\n".join(f"{finding.id} {finding.text} {finding.found}" for finding in told(placement.findings))


def changed(there: Facts, **changes: Any) -> Facts:
    """Change devices 0 and 1."""
    return there._replace(devices=(*(d._replace(**changes) for d in there.devices[:2]), *there.devices[2:]))


def pairs(count: int) -> tuple[Link, ...]:
    """Return bridges between 0 and 1, 2 and 3 …, and PCIe between all others."""
    ways = ((first, second) for first in range(count) for second in range(first + 1, count))
    return tuple(Link(a, b, "NV4" if a // 2 == b // 2 else "NODE") for a, b in ways)


QWEN = Geometry(28, 0, 0, 28, 4, 128, 0, 32768, intermediate=18944)
CUT = Geometry(80, 0, 0, 64, 8, 128, 0, 32768, intermediate=29568)
LENGTHS = {"input": (4000, 4000), "output": (1000, 1000)}


@pytest.mark.parametrize(("there", "what", "user_flags", "rules", "expected", "reason"), [
    pytest.param(host(6), model(LLAMA_70B, 32), said(), RULES, (2, 1, 3), "^instead 4: 2 devices would stay idle$",
                 id="a narrower group that leaves none idle is better"),
    pytest.param(host(8), model(QWEN, 7.6), said(optimize="latency"), RULES, (4, 1, 2),
                 "^instead 8: 28 heads and 4 KV heads are not divisible by 8$", id="heads that do not divide are said"),
    pytest.param(host(32, 12), model(QWEN, 7.6), said(optimize="latency"),
                 RULES._replace(pads_heads=True, sizes=(1, 2, 8, 32)), (8, 1, 4), "", id="neuron repeats heads"),
    pytest.param(host(3, 24), model(LLAMA_8B, 24), said(), RULES, (1, 3, 1), "^--pipeline-parallel-size$",
                 id="three devices make a pipeline"),
    pytest.param(host(2, 24), model(), said(), RULES, (2, 1, 1), "^length 131072$",
                 id="more devices come before a shorter length"),
    pytest.param(host(8), model(), said(concurrency=800, **LENGTHS), RULES, (2, 1, 4),
                 "^because .*do not fit fewer devices", id="concurrency takes more devices before it waits"),
    pytest.param(host(4, 48, links=pairs(4)), model(LLAMA_70B, 55), said("--max-model-len", "8192"), RULES, (2, 2, 1),
                 "^instead .*\ninstead .*join only 2 devices", id="a tensor-parallel group stays on the fast link"),
    pytest.param(host(4, links=pairs(4)), model(), said("-tp", "4"), RULES, (4, 1, 1), "^PLAN-027 ",
                 id="the user's wider group is kept and warned of"),
    pytest.param(host(8, kind="NV18"), model(), said(optimize="latency"), RULES, (8, 1, 1), "",
                 id="all joined is one island"),
    pytest.param(host(8), model(CUT, 20), said("-tp", "2"), RULES, (2, 1, 1), "", id="weights without groups are cut"),
])  # fmt: skip
def test_devices_are_shared_out(
    there: Facts, what: ModelFacts, user_flags: UserFlags, rules: Rules, expected: tuple[int, int, int], reason: str
) -> None:
    placement = fit_model(there, what, user_flags, rules)

    assert shape(placement) == expected
    tensor = placement.values.get("--tensor-parallel-size")
    reasons = [f"because {tensor.because}", *(f"instead {text}" for text in tensor.instead)] if tensor else []
    told_texts = "\n".join((f"length {placement.length}", *placement.values, *reasons, texts(placement)))
    assert re.search(reason, told_texts, re.MULTILINE)


@pytest.mark.parametrize(("code", "case", "message", "hint"), [
    pytest.param(DOES_NOT_FIT, (host(3, 24), model(LLAMA_8B, 24), said(), RULES._replace(pipeline=False)), "22.4 GiB",
                 "", id="without pipelines three devices are two or too few"),
    pytest.param(DOES_NOT_FIT, (host(1, 24), model(), said("--max-model-len", "100000"), RULES), "100000 tokens",
                 "--max-model-len 3", id="the user's length, with the nearest that fits"),
    pytest.param(DOES_NOT_FIT, (host(), model(), said(input=(1, 131072), output=(1, 10)), RULES), "", "131072",
                 id="ranges longer than the model"),
    pytest.param(DOES_NOT_FIT, (host(1), model(), said("--gpu-memory-utilization", "0.1"), RULES),
                 "of 8.0 GiB usable", "", id="the user's share counts, and is too small"),
    pytest.param(USAGE, (host(8), model(), said("-tp", "3"), RULES), "", "possible: -tp 2 or -tp 4", id="an odd size"),
    pytest.param(USAGE, (host(8), model(), said("-tp", "16"), RULES), "", "lower -tp 16", id="more than all devices"),
    pytest.param(USAGE, (host(8), model(CUT, 20, group=128), said("-tp", "2"), RULES), "cuts the 128", "",
                 id="quantised groups are not cut"),
    pytest.param(DOES_NOT_FIT, (host(8), model(LLAMA_70B, 70.6), said("-tp", "1"), RULES), "", "-tp 4 -dp 2 fits",
                 id="a split that is too small, with one that fits"),
    pytest.param(HOST, (host(0), model(), said(), RULES), "no cuda device", "", id="no device"),
    pytest.param(USAGE, (host(4), model(), said(devices=(2, 7)), RULES), "", "available devices: 0-3",
                 id="a device that is not there"),
    pytest.param(HOST, (changed(host(2), busy=True), model(), said(), RULES), "held by other processes: 0-1",
                 "--devices 0-1", id="all are busy"),
    pytest.param(HOST, (host(4), model(), said(), RULES._replace(sizes=(8, 16))),
                 "supports tensor-parallel sizes 8, 16: 4 devices are available", "", id="too few for the runtime"),
])  # fmt: skip
def test_what_cannot_be_is_refused(code: int, case: tuple[Any, ...], message: str, hint: str) -> None:
    error = refused(code, *case)

    assert message in error.message
    assert hint in error.hint


# --- how many -------------------------------------------------------------------------------------------------------


def test_a_small_model_gets_an_engine_on_every_device() -> None:
    placement = fit_model(host(8), model(), said(), RULES)

    assert (shape(placement), ids(placement), placement.length) == ((1, 1, 8), list(range(8)), 131072)
    assert "--max-model-len" not in placement.values
    assert placement.findings == ()
    assert "weights take less than 25% of one device" in placement.values["--tensor-parallel-size"].because
    assert placement.values["--data-parallel-size"].because.endswith("8 devices serve, 1 in each")
    assert placement.values["--distributed-executor-backend"].value == "uni"
    assert placement.values["--gpu-memory-utilization"].value == "0.9"


def test_a_large_model_is_spread_over_all_devices_and_says_why_not_four() -> None:
    placement = fit_model(host(8), model(LLAMA_70B, 70.6), said(), RULES)
    tensor = placement.values["--tensor-parallel-size"]

    assert shape(placement) == (8, 1, 1)
    assert "each reads 4.0 GiB of weights or more" in tensor.because
    assert "weights take 16.4 GiB" in tensor.because
    assert tensor.instead == ("4: slower answers; --optimize throughput chooses it",)
    assert placement.values["--distributed-executor-backend"].value == "mp"


def test_groups_and_engines_share_out_the_devices() -> None:
    placement = fit_model(host(8), model(LLAMA_70B, 14), said("--max-model-len", "8192"), RULES)

    assert shape(placement) == (4, 1, 2)
    assert [text.partition(":")[0] for text in placement.values["--tensor-parallel-size"].instead] == ["2", "8"]
    assert "less than 4.0 GiB of weights per device" in placement.values["--tensor-parallel-size"].instead[1]


def test_for_latency_as_many_as_have_something_to_do() -> None:
    assert shape(fit_model(host(8), model(), said(optimize="latency"), RULES)) == (8, 1, 1)
    small = model(LLAMA_8B, 0.5)
    assert shape(fit_model(host(8), small, said(optimize="latency"), RULES)) == (1, 1, 8)


@pytest.mark.parametrize(
    ("billions", "geometry", "memory", "expected", "because"),
    [
        (8.03, LLAMA_8B, 80, (1, 1, 8), "weights take less than 25% of one device"),
        (24, LLAMA_8B, 80, (2, 1, 4), "256 sequences, the stack's default, of 2048 tokens"),  # eight of one: 8 x 101
        (70.6, LLAMA_70B, 80, (4, 1, 2), "the engines run 474 sequences of 2048 tokens in all"),  # one over 8: 256
        (70.6, LLAMA_70B, 60, (8, 1, 1), "256 sequences, the stack's default, of 2048 tokens"),  # two over 4: 2 x 122
    ],
)
def test_for_throughput_engines_that_run_most_sequences_each_up_to_the_default(
    billions: float, geometry: Geometry, memory: int, expected: tuple[int, int, int], because: str
) -> None:
    placement = fit_model(host(8, memory), model(geometry, billions), said(optimize="throughput"), RULES)

    assert (shape(placement), ids(placement)) == (expected, list(range(8)))
    assert because in placement.values["--tensor-parallel-size"].because


@pytest.mark.parametrize(("share", "expected", "because"), [
    (0.3, (4, 1, 2), "leaves more than 30% of a device's memory"),
    (0.5, (8, 1, 1), "leaves more than 50% of a device's memory"),
    (0.9, (8, 1, 1), "no group leaves more than 90% of a device's memory"),
])  # fmt: skip
def test_for_throughput_a_group_leaves_the_cache_its_share(
    share: float, expected: tuple[int, int, int], because: str
) -> None:
    rules = RULES._replace(cache_share=share)
    placement = fit_model(host(8), model(LLAMA_70B, 70.6), said("--max-num-seqs", "64", optimize="throughput"), rules)

    assert shape(placement) == expected
    assert because in placement.values["--tensor-parallel-size"].because


def test_the_cache_of_the_concurrency_takes_a_wider_group() -> None:
    narrow, wide = (
        fit_model(host(8), model(LLAMA_70B, 70.6), said(*words, optimize="throughput"), RULES)
        for words in (("--max-num-seqs", "64"), ("--max-num-seqs", "400"))
    )

    assert (shape(narrow), shape(wide)) == ((4, 1, 2), (8, 1, 1))
    assert "3800 sequences" not in wide.values["--tensor-parallel-size"].because
    assert "400 sequences of 2048 tokens" in wide.values["--tensor-parallel-size"].because


def test_an_old_vllm_without_data_parallelism_names_the_idle_devices() -> None:
    option_strings = ("--model", "--tensor-parallel-size", "--gpu-memory-utilization")
    placement = fit_model(host(8), model(), said(option_strings=option_strings, optimize="throughput"), RULES)

    assert shape(placement) == (1, 1, 1)
    assert set(placement.values) <= set(option_strings)
    assert "this stack runs one engine per server. devices 1-7 of 8" in texts(placement)


def test_ranks_that_the_user_chose_leave_the_rest_idle_and_say_the_flag() -> None:
    placement = fit_model(host(4), model(), said("-tp", "2"), RULES)

    assert shape(placement) == (2, 1, 1)
    idle = told(placement.findings)[0]
    assert (idle.id, idle.found) == ("PLAN-025", "devices 2-3 of 4")
    assert idle.remediation == "set -dp 2, leave out -tp, or start another server with --devices 2-3"


def test_devices_that_serve_only_together_are_one_group() -> None:
    rules = RULES._replace(whole=True)

    assert shape(fit_model(host(8), model(), said(), rules)) == (8, 1, 1)
    assert shape(fit_model(host(8), model(), said(optimize="throughput"), rules)) == (1, 1, 8)
    assert (
        "no other process can use a part"
        in fit_model(host(8), model(), said(), rules).values["--tensor-parallel-size"].because
    )


def test_more_ranks_than_kv_heads_repeat_them() -> None:
    geometry = LLAMA_8B._replace(kv_heads=2)
    tokens = [fit_model(host(8), model(geometry), said("-tp", str(n)), RULES).kv_tokens or 0 for n in (2, 4)]

    assert tokens[0] < tokens[1] < 1.4 * tokens[0]


def test_a_model_of_unknown_weights_and_shape_takes_one() -> None:
    hub = ModelFacts("owner/model", False, "", "", None, None, "owner/model is a hub id")
    placement = fit_model(host(8), hub, said(), RULES)

    assert (shape(placement), placement.length, placement.kv_tokens) == ((1, 1, 1), None, None)
    assert "hub id" in placement.values["--tensor-parallel-size"].because
    assert "set -tp" in told(placement.findings)[0].remediation


def test_a_model_of_known_weights_and_unknown_cache_keeps_a_quarter() -> None:
    hybrid = model(None, 50)
    placement = fit_model(host(8), hybrid, said(), RULES)

    assert shape(placement) == (8, 1, 1)
    assert shape(fit_model(host(8), hybrid, said(optimize="throughput"), RULES)) == (2, 1, 4)


def test_a_wrong_configuration_is_an_error_unless_the_user_splits() -> None:
    broken = model(None, 8, problem="config.json: num_hidden_layers: missing")

    refused(MODEL, host(), broken, said(), RULES)
    assert shape(fit_model(host(), broken, said("-tp", "2"), RULES)) == (2, 1, 1)


# --- experts --------------------------------------------------------------------------------------------------------


def test_experts_stay_whole_where_the_accelerator_says_so() -> None:
    placement = fit_model(host(8), model(MIXTRAL, 46.7), said(), RULES._replace(expert="tp"))

    assert placement.values["--enable-expert-parallel"].value is True
    assert "experts whole" in placement.values["--enable-expert-parallel"].because
    assert "--enable-expert-parallel" not in fit_model(host(8), model(MIXTRAL, 46.7), said(), RULES).values


def test_experts_whose_blocks_would_be_cut_stay_whole_where_needed() -> None:
    coder = Geometry(62, 0, 0, 96, 8, 128, 0, 262144, hidden=6144, experts=160, expert_width=2560)
    facts = ModelFacts("q", True, "", "fp8", Weights(482 << 30, 0, 482 << 30), coder, "", group=128)
    h200 = host(8, 141)

    assert shape(fit_model(h200, facts, said(), RULES._replace(expert="needed"))) == (8, 1, 1)
    assert (
        fit_model(h200, facts, said(), RULES._replace(expert="needed")).values["--enable-expert-parallel"].value is True
    )
    assert "cuts the 128 numbers" in refused(USAGE, h200, facts, said("-tp", "8"), RULES).message


def test_engines_share_out_the_experts() -> None:
    v3 = Geometry(61, 0, 0, 128, 128, 56, 576, 163840, hidden=7168, experts=256, expert_width=2048)
    facts = ModelFacts("v3", True, "", "fp8", Weights(690 << 30, 0, 690 << 30), v3, "", group=128, expert_share=0.96)
    rules = RULES._replace(expert="needed")
    placement = fit_model(host(8, 141), facts, said(optimize="throughput"), rules)

    assert shape(placement) == (1, 1, 8)
    assert "experts are distributed" in placement.values["--data-parallel-size"].because
    assert shape(fit_model(host(8, 141), facts, said(), rules)) == (8, 1, 1)
    assert shape(fit_model(host(8, 141), facts, said("-dp", "8"), rules)) == (1, 1, 8)
    assert fit_model(
        host(8, 80), facts, said("-dp", "16", "-dpl", "8", "--max-model-len", "8192", "--node-rank", "0"), rules
    )


def test_engines_that_would_cut_an_experts_blocks_are_refused_or_keep_them_whole() -> None:
    coder = Geometry(62, 0, 0, 96, 8, 128, 0, 262144, hidden=6144, experts=160, expert_width=2560)
    facts = ModelFacts("q", True, "", "fp8", Weights(482 << 30, 0, 482 << 30), coder, "", group=128, expert_share=0.9)

    assert "--enable-expert-parallel" in refused(USAGE, host(8, 141), facts, said("-dp", "8"), RULES).hint
    placement = fit_model(host(8, 141), facts, said("-dp", "8"), RULES._replace(expert="needed"))
    assert placement.values["--enable-expert-parallel"].value is True


@pytest.mark.parametrize(("name", "kind", "devices", "words", "expected"), [
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "b200", 2, (), "tp2"),  # smaller steps, and slices
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "b200", 2, ("-pp", "2"), "tp1 pp2"),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "b200", 4, (), "tp4 ep"),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", "h100", 8, ("--nnodes", "2"), "tp8 pp2"),
])  # fmt: skip
def test_whole_experts_and_large_steps_yield_to_the_full_length(
    name: str, kind: str, devices: int, words: tuple[str, ...], expected: str
) -> None:
    decision = plan(machine(kind, devices), models()[name], words)

    assert spread(decision).short() == expected
    assert not spread(decision).length


@pytest.mark.parametrize(("words", "sliced"), [((), True), (("--enable-expert-parallel",), False)])
def test_the_users_experts_stay_whole(words: tuple[str, ...], sliced: bool) -> None:
    name = "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4"
    placement = spread(
        plan(machine("b200", 2), models()[name], ("-tp", "2", "--max-num-batched-tokens", "8192", *words))
    )

    assert placement.experts != sliced


# --- lengths --------------------------------------------------------------------------------------------------------


def test_a_length_that_does_not_fit_is_shortened_to_what_does() -> None:
    placement = fit_model(host(1, 24), model(), said(), RULES)

    assert placement.length is not None
    assert placement.length % 16 == 0
    assert 30000 < placement.length < 40000
    assert placement.values["--max-model-len"].value == str(placement.length)
    assert "131072: vLLM would refuse to start" in placement.values["--max-model-len"].instead


@pytest.mark.parametrize("word", ["auto", "-1"])
def test_a_length_left_to_vllm_stays_so(word: str) -> None:
    placement = fit_model(host(1, 24), model(), said("--max-model-len", word), RULES)

    assert "--max-model-len" not in placement.values


def test_ranges_give_the_length_and_concurrency_the_sequences() -> None:
    placement = fit_model(host(1), model(), said(input=(4, 3000), output=(10, 1000), concurrency=64), RULES)

    assert (placement.length, placement.sequences) == (4000, 64)
    assert placement.values["--max-model-len"].value == "4000"
    assert placement.values["--max-num-seqs"].value == "64"


def test_concurrency_that_the_cache_does_not_hold_is_said() -> None:
    user_flags = said(input=(4000, 4000), output=(1000, 1000), concurrency=256)
    placement = fit_model(host(1, 24), model(), user_flags, RULES)

    assert placement.sequences is not None
    assert placement.sequences < 16
    assert "PLAN-026" in texts(placement)


def test_concurrency_of_unknown_lengths_is_limited_to_the_default_or_to_what_fits() -> None:
    placement = fit_model(host(1), model(), said(concurrency=4096), RULES)
    assert int(str(placement.values["--max-num-seqs"].value)) >= RULES.sequences
    assert [finding.id for finding in placement.findings if finding.id == "PLAN-026"] == ["PLAN-026"]
    assert "the lengths are unknown" in placement.values["--max-num-seqs"].because
    few = fit_model(host(1), model(), said(concurrency=RULES.sequences), RULES)
    assert few.values["--max-num-seqs"].value == str(RULES.sequences)
    assert "PLAN-026" not in [finding.id for finding in few.findings]


def test_concurrency_beyond_the_tokens_of_a_step_is_said() -> None:
    short = {"input": (1, 1), "output": (1, 1)}
    placement = fit_model(host(1), model(), said(concurrency=1_000_000, **short), RULES)

    assert placement.values["--max-num-seqs"].value == str(RULES.chunk)
    assert "every running sequence takes one" in placement.values["--max-num-seqs"].because
    assert "PLAN-026" in texts(placement)


def test_an_fp8_cache_holds_twice_as_much() -> None:
    half, whole = (
        fit_model(host(1, 24), model(), said(*words), RULES).kv_tokens or 0
        for words in (("--kv-cache-dtype", "fp8"), ("--kv-cache-dtype", "auto"))
    )

    assert whole * 1.99 < half < whole * 2.01


def test_a_sliding_layer_keeps_the_chunk_beside_its_window() -> None:
    gemma = LLAMA_8B._replace(sliding_layers=32, window=1024)
    placement = fit_model(host(1, 24), model(gemma), said("--max-num-batched-tokens", "1024"), RULES)

    assert (placement.length, placement.tensor) == (131072, 1)


# --- what the user set ----------------------------------------------------------------------------------------------


def test_what_the_user_set_is_not_among_the_values() -> None:
    words = ("-tp", "2", "-pp", "2", "-dp", "2", "--gpu-memory-utilization", "0.5", "--max-num-seqs", "7")
    placement = fit_model(host(8), model(), said(*words), RULES)

    assert shape(placement) == (2, 2, 2)
    assert placement.sequences == 7
    assert set(placement.values) == {"--distributed-executor-backend"}


def test_several_hosts_are_the_users_to_set() -> None:
    big = model(LLAMA_70B._replace(layers=126, heads=128), 405)
    placement = fit_model(host(8), big, said("-tp", "8", "-pp", "2", env={"RAY_ADDRESS": "auto"}), RULES)

    assert shape(placement) == (8, 2, 1)
    assert len(placement.devices) == 8
    assert placement.values["--distributed-executor-backend"].value == "ray"
    without_ray = fit_model(host(8), big, said("-tp", "8", "-pp", "2", "--nnodes", "2"), RULES)
    assert without_ray.values["--distributed-executor-backend"].value == "mp"


def test_engines_on_several_hosts_are_the_users_to_set() -> None:
    placement = fit_model(host(8), model(), said("-dp", "16", "--data-parallel-backend", "ray"), RULES)

    assert (shape(placement), len(placement.devices)) == ((1, 1, 16), 8)


def test_a_cache_of_the_users_size_is_taken_as_it_is() -> None:
    placement = fit_model(host(1), model(), said("--kv-cache-memory-bytes", "17G"), RULES)

    assert "--gpu-memory-utilization" not in placement.values
    assert placement.kv_tokens == 17 * 8192
    error = refused(DOES_NOT_FIT, host(1), model(), said("--kv-cache-memory-bytes", "77G"), RULES)
    assert "; given: --kv-cache-memory-bytes 77G" in error.message
    assert error.hint.startswith("without --kv-cache-memory-bytes 77G it fits; ")


@pytest.mark.parametrize(
    ("flags", "size"),
    [
        (("--num-gpu-blocks-override", "3000"), ""),
        (("--num-gpu-blocks-override", "40000000"), "--num-gpu-blocks-override 40000000"),
        (("--num-gpu-blocks-override", "3000", "--block-size", "2048"), "--num-gpu-blocks-override 3000"),
        (("--kv-offloading-size", "100"), ""),
        (("--kv-offloading-size", "9000"), "--kv-offloading-size 9000, 1 times, is 9000.0 GiB"),
        (("--swap-space", "9000"), "--swap-space 9000, 1 times, is 9000.0 GiB"),
    ],
)
def test_caches_of_the_users_above_the_memory_are_refused(flags: tuple[str, ...], size: str) -> None:
    there = host(1)._replace(memory=host(1).memory._replace(total=1024 * GIB))
    if size:
        assert size in refused(DOES_NOT_FIT, there, model(), said(*flags), RULES).message
    else:
        assert fit_model(there, model(), said(*flags), RULES).values


# --- which devices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "said_so"), [
    ({"health": "Critical"}, "not healthy"),
    ({"busy": True}, "Another process holds"),
    ({"memory_used": 30 * GIB}, "Another process holds"),
    ({"name": "Other"}, "differ from the chosen Card"),
    ({"memory_total": 40 * GIB}, "differ from the chosen Card"),
])  # fmt: skip
def test_devices_that_cannot_serve_are_left_out_and_said(changes: dict[str, Any], said_so: str) -> None:
    placement = fit_model(changed(host(6), **changes), model(LLAMA_70B, 70.6), said(), RULES)

    assert ids(placement) == [2, 3, 4, 5]
    assert said_so in texts(placement)


def test_devices_that_are_named_are_used_and_doubted() -> None:
    there = changed(host(4), busy=True, memory_used=40 * GIB)
    placement = fit_model(there, model(), said(devices=(0, 1)), RULES)

    assert ids(placement) == [0, 1]
    assert "PLAN-024" in texts(placement)
    assert placement.values["--gpu-memory-utilization"].value == "0.5"


def test_nearly_alike_devices_serve_together_with_the_smallest_memory() -> None:
    placement = fit_model(changed(host(4, 48), memory_total=42 * GIB), model(LLAMA_70B, 70.6), said(), RULES)
    unequal = told(placement.findings)[0]

    assert shape(placement) == (4, 1, 1)
    assert "of 37.8 GiB usable per device" in placement.values["--tensor-parallel-size"].because
    assert (unequal.id, unequal.found) == ("PLAN-140", "42.0 GiB on 0-1, 48.0 GiB on 2-3")
    assert "12.0 GiB of the others stay unused" in unequal.text


def test_a_desktops_memory_lowers_the_share() -> None:
    there = host(1, 16)._replace(devices=(device(0, 16, memory_used=2 * GIB),))
    placement = fit_model(there, model(billions=3), said(), RULES)

    assert placement.values["--gpu-memory-utilization"].value == "0.87"
    assert "87% is free" in placement.values["--gpu-memory-utilization"].because


def test_a_share_that_a_desktop_holds_a_part_of_is_refused() -> None:
    there = host(1, 16)._replace(devices=(device(0, 16, memory_used=2 * GIB),), accelerator="cuda")

    refused(DOES_NOT_FIT, there, model(billions=3), said("--gpu-memory-utilization", "0.9"), RULES)
    assert fit_model(there, model(billions=3), said("--gpu-memory-utilization", "0.87"), RULES)
    assert fit_model(
        there._replace(accelerator="ascend"), model(billions=3), said("--gpu-memory-utilization", "0.9"), RULES
    )


def test_memory_that_nothing_tells_comes_from_the_rules_or_is_an_error() -> None:
    there = host(1)._replace(devices=(device(0, memory_total=None, memory_used=None),))

    assert fit_model(there, model(), said(), RULES._replace(memory=96 * GIB)).length == 131072
    refused(HOST, there, model(), said(), RULES)


# --- links ----------------------------------------------------------------------------------------------------------


def test_pairs_are_taken_whole() -> None:
    there = changed(host(4, links=pairs(4)), busy=False)
    there = there._replace(devices=(there.devices[0]._replace(busy=True), *there.devices[1:]))

    assert ids(fit_model(there, model(), said("-tp", "2"), RULES)) == [2, 3]


def test_a_group_stays_on_one_numa_node() -> None:
    there = host(4)
    nodes = (0, 1, 0, 1)
    there = there._replace(devices=tuple(d._replace(node=n) for d, n in zip(there.devices, nodes, strict=True)))

    assert ids(fit_model(there, model(), said("-tp", "2", "-dp", "2"), RULES)) == [0, 2, 1, 3]


def test_rules_may_name_sizes_and_executors() -> None:
    rules: Rules = RULES._replace(sizes=(1, 8), executors=())
    placement = fit_model(host(8), model(LLAMA_70B, 70.6), said(), rules)

    assert shape(placement) == (8, 1, 1)
    assert "--distributed-executor-backend" not in placement.values
    assert (
        "4: the runtime supports tensor-parallel sizes 1, 8 only" in placement.values["--tensor-parallel-size"].instead
    )


def test_sequences_that_keep_a_state_are_limited_to_those_that_fit() -> None:
    hybrid = LLAMA_8B._replace(cacheless=24, states=24 * 1_000_000)
    placement = fit_model(host(1, 40), model(hybrid), said(), RULES)

    assert placement.sequences is not None
    assert 100 < placement.sequences < 300
    assert "keeps a state of 9" in placement.values["--max-num-seqs"].because


@pytest.mark.parametrize(("sequences", "told"), [("1024", ["PLAN-018"]), ("100", [])])
def test_more_sequences_of_the_user_than_states_fit_are_said(sequences: str, told: list[str]) -> None:
    hybrid = LLAMA_8B._replace(cacheless=24, states=24 * 1_000_000)
    placement = fit_model(host(1, 40), model(hybrid), said("--max-num-seqs", sequences), RULES)

    assert [finding.id for finding in placement.findings if finding.id == "PLAN-018"] == told
