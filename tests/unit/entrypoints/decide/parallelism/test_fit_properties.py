"""What holds for every plan, whatever the model, the host and the user's flags."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from entrypoints.core.errors import EntrypointError
from entrypoints.core.records import Facts, Link
from entrypoints.decide.parallelism.fit import Fit, Rules, fit_model
from entrypoints.decide.parallelism.memory_use import stage_share
from entrypoints.decide.parallelism.multimodal import compute_encoder_memory, read_inputs
from entrypoints.decide.parallelism.rules import Split
from entrypoints.model.geometry import Geometry
from entrypoints.model.multimodal_encoders import Tower
from entrypoints.model.read import ModelFacts
from entrypoints.model.weights import Weights
from entrypoints.request.vllm_flags import UserFlags
from tests.support.fit_hosts import GIB, RULES, host, said

CASES = 200


class Question(NamedTuple):
    facts: Facts
    model: ModelFacts
    user_flags: UserFlags
    rules: Rules


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    kv_heads = draw(st.sampled_from((1, 2, 3, 4, 8, 10, 16)))
    heads = kv_heads * draw(st.sampled_from((1, 2, 3, 4, 7, 8)))
    layers, size = draw(st.integers(1, 96)), draw(st.sampled_from((64, 128)))
    sliding = draw(st.integers(0, layers))
    return Geometry(
        layers=layers, sliding_layers=sliding, window=draw(st.sampled_from((128, 4096))) if sliding else 0,
        heads=heads, kv_heads=kv_heads, head_size=size, latent=draw(st.sampled_from((0, 0, 576))),
        max_length=draw(st.sampled_from((None, 2048, 40960, 131072))), hidden=heads * size, vocabulary=128000,
        intermediate=draw(st.sampled_from((0, 4096, 14336, 29568))), experts=draw(st.sampled_from((0, 0, 8, 128))),
        expert_width=draw(st.sampled_from((768, 2560))), index_bytes=draw(st.sampled_from((0, 0, 8052))),
    )  # fmt: skip


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    elements = draw(st.integers(1, 700)) * 10**9
    quantised = draw(st.booleans())
    at_load = elements // 2 if draw(st.booleans()) else 0
    plain = Weights(2 * elements, elements - at_load, at_load, draw(st.sampled_from((0, at_load))))
    weights = Weights(elements, 0, elements) if quantised else plain
    group = draw(st.sampled_from((0, 128))) if quantised else 0
    name = "fp8" if quantised else ""
    geometry = draw(geometries())
    share = draw(st.sampled_from((0.0, 0.9))) if geometry.experts else 0.0
    towers = draw(st.sampled_from(((), (Tower("image", 16384, 65536, 1280, 3420),))))
    return ModelFacts("/models/m", True, "", name, weights, geometry, "", "", group, expert_share=share, towers=towers)


@st.composite
def hosts(draw: st.DrawFn) -> Facts:
    there = host(draw(st.integers(1, 16)), draw(st.sampled_from((12, 24, 48, 80, 141))))
    kind = draw(st.sampled_from(("", "NV18", "SYS", "pairs")))
    ways = [(a, b) for a in range(len(there.devices)) for b in range(a)]
    links = tuple(Link(b, a, ("NV4" if a // 2 == b // 2 else "NODE") if kind == "pairs" else kind) for a, b in ways)
    devices = tuple(device._replace(node=draw(st.sampled_from((None, 0, 1)))) for device in there.devices)
    sick = draw(st.integers(0, 15))
    devices = tuple(d._replace(health="Bad") if d.number == sick and len(devices) > 1 else d for d in devices)
    return there._replace(devices=devices, links=links if kind else ())


@st.composite
def users(draw: st.DrawFn) -> UserFlags:
    words: list[str] = []
    for flag, values in (
        ("-tp", (1, 2, 3, 4, 8)), ("-pp", (1, 2)), ("-dp", (1, 2)), ("--max-model-len", (1024, 8192, 100000)),
        ("--gpu-memory-utilization", (0.5, 0.95)), ("--max-num-seqs", (4,)), ("--kv-cache-dtype", ("fp8",)),
    ):  # fmt: skip
        value = draw(st.sampled_from((None, None, None, None, *values)))
        words += [flag, str(value)] if value is not None else []
    ranges = draw(st.booleans())
    return said(
        *words,
        optimize=draw(st.sampled_from((None, "latency", "throughput"))),
        concurrency=draw(st.sampled_from((None, 1, 16, 300))),
        input=(16, 1000) if ranges else None,
        output=(16, 500) if ranges else None,
    )


@st.composite
def questions(draw: st.DrawFn) -> Question:
    rules = RULES._replace(
        expert=draw(st.sampled_from(("", "tp", "needed"))),
        pipeline=draw(st.booleans()),
        data=draw(st.booleans()),
        block=draw(st.sampled_from((16, 128))),
        sizes=draw(st.sampled_from(((), (), (1, 2, 4, 8), (2, 8), (32,)))),
    )
    return Question(draw(hosts()), draw(models()), draw(users()), rules)


def answer(question: Question) -> Fit | None:
    try:
        return fit_model(*question)
    except EntrypointError as error:
        refusal = error
    assert refusal.message
    assert refusal.hint
    return None


def in_force(question: Question, placement: Fit, flag: str) -> str | None:
    chosen = placement.values.get(flag)
    return question.user_flags.flag(flag) if chosen is None else str(chosen.value)


@settings(max_examples=CASES)
@given(questions())
def test_a_plan_never_exceeds_memory(question: Question) -> None:
    placement = answer(question)
    assume(placement)
    assert placement
    _, model, user, rules = question
    split = Split(placement.tensor, placement.pipeline)
    assert model.geometry
    assert model.weights
    share = stage_share(model.geometry, placement.pipeline)
    element = 1 if user.flag("--kv-cache-dtype") else 2
    cache = model.geometry.kv_bytes(placement.length or 1, element, split.tensor) * share
    experts = model.expert_share * (1 - 1 / placement.data)  # of which other engines hold a part
    weights = model.weights.loaded(2) * share * (1 - experts) / split.tensor
    peak = model.weights.peak(2) * share * (1 - experts) / split.tensor
    images = compute_encoder_memory(model, read_inputs(user, rules.chunk), 2)
    usable = float(in_force(question, placement, "--gpu-memory-utilization") or 0)
    memory = min(device.memory_total or 0 for device in placement.devices)

    running = rules.reserved + max(rules.activations, images.activations) + images.cache
    assert weights + cache + running <= memory * usable
    assert peak + rules.reserved <= memory * usable
    assert placement.kv_tokens is not None
    assert placement.kv_tokens >= (placement.length or 1)


@settings(max_examples=CASES)
@given(questions())
def test_a_plan_never_breaks_divisibility_nor_takes_more_devices_than_are_sound(question: Question) -> None:
    placement = answer(question)
    assume(placement)
    assert placement
    geometry, group = question.model.geometry, max(1, question.model.group)
    assert geometry
    assert geometry.divides(placement.tensor)
    if placement.tensor > 1 and geometry.intermediate and not geometry.experts:
        assert geometry.intermediate % (placement.tensor * group) == 0
    assert (
        len(set(placement.devices)) == len(placement.devices) == placement.tensor * placement.pipeline * placement.data
    )
    assert all(device.health == "ok" for device in placement.devices)
    assert placement.pipeline <= max(geometry.layers, question.user_flags.number("--pipeline-parallel-size") or 1)


@settings(max_examples=CASES)
@given(questions())
def test_a_plan_never_edits_what_the_user_set(question: Question) -> None:
    placement = answer(question)
    assume(placement)
    assert placement
    user = question.user_flags
    assert not set(placement.values) & set(user.flags)
    assert placement.tensor == (user.number("--tensor-parallel-size") or placement.tensor)
    assert placement.pipeline == (user.number("--pipeline-parallel-size") or placement.pipeline)
    assert placement.data == (user.number("--data-parallel-size") or placement.data)
    assert placement.length == (user.number("--max-model-len") or placement.length)


@settings(max_examples=CASES)
@given(questions())
def test_the_same_question_has_the_same_answer_and_every_value_a_reason(question: Question) -> None:
    placement = answer(question)
    assert placement == answer(question)
    assert all(value.because for value in (placement.values.values() if placement else ()))


@settings(max_examples=CASES)
@given(questions(), st.integers(1, 100))
def test_more_memory_never_gives_fewer_tokens(question: Question, more: int) -> None:
    devices = tuple(d._replace(memory_total=(d.memory_total or 0) + more * GIB) for d in question.facts.devices)
    larger = question._replace(facts=question.facts._replace(devices=devices))
    before, after = answer(question), answer(larger)
    assume(before)
    assert before
    assert after, "what fitted still fits"
    assert (after.length or 0) >= (before.length or 0)
    if (after.tensor, after.pipeline, after.data) == (before.tensor, before.pipeline, before.data):
        assert (after.kv_tokens or 0) >= (before.kv_tokens or 0)
        assert (after.sequences or 0) >= (before.sequences or 0)
