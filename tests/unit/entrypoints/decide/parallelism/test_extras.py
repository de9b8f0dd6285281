"""What is loaded in addition to the model is counted: draft models, adapters, and the host's KV cache."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import Mount, Node
from entrypoints.decide.parallelism.extras import read_extras
from entrypoints.decide.parallelism.fit import fit_model
from entrypoints.decide.parallelism.loading import find_loading_notices
from entrypoints.decide.parallelism.offload import PRIVATE, SHARED, choose_offload
from entrypoints.decide.parallelism.rules import Split
from entrypoints.model.config import parse_config
from entrypoints.model.read import ModelFacts, parse_model, with_draft
from entrypoints.model.weights import Weights
from entrypoints.request.speculative import Drafting, parse_drafting
from tests.support.fit_hosts import GIB, LLAMA_8B, RULES, device, host, model, said

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
MOE = {**LLAMA, "model_type": "qwen3_moe", "num_experts": 64, "moe_intermediate_size": 1024}
BODY = 41_943_040
"""Trainable numbers of an adapter of rank 16 for all linear layers of Llama 3 8B, as PEFT prints them."""
ENDS = 2 * 16 * (128256 + 4096)
"""Of the embedding and the output."""
ONE = Split(1)
EAGLE = LLAMA_8B._replace(layers=1)


def described(config: dict[str, Any], **changes: Any) -> ModelFacts:
    return parse_model("m", parse_config(config), "config.json")._replace(weights=Weights(0, 8 * 10**9, 0), **changes)


def slots(config: dict[str, Any], words: str, split: Split = ONE, share: float = 1.0) -> int:
    return read_extras(said(*words.split())).adapter_bytes(described(config), split, 2, share)


# --- adapters -------------------------------------------------------------------------------------------------------


def test_an_adapter_takes_what_peft_counts_and_the_ends_of_the_model() -> None:
    assert slots(LLAMA, "--enable-lora") == 2 * (BODY + ENDS)
    assert slots(LLAMA, "--enable-lora --max-loras 4 --max-lora-rank 64") == 4 * 4 * 2 * (BODY + ENDS)
    assert slots(LLAMA, "--max-loras 4") == 0


def test_ranks_divide_one_side_of_an_adapter_or_both() -> None:
    first = 16 * 32 * (3 * 4096 + 2 * 4096)  # of qkv and gate_up, which each rank keeps whole
    second = 16 * 32 * 2 * 4096  # of o and down
    divided = (BODY - first - second) // 4

    assert slots(LLAMA, "--enable-lora", Split(4)) == 2 * (first + second + divided + ENDS)
    assert slots(LLAMA, "--enable-lora --fully-sharded-loras", Split(4)) == 2 * (BODY // 4 + ENDS)
    assert slots(LLAMA, "--enable-lora", Split(1, 2), share=0.5) == 2 * (BODY // 2 + ENDS)


@pytest.mark.parametrize("targets", ["o_proj", "o_proj q_proj"])
def test_only_the_layers_that_the_user_names_have_slots(targets: str) -> None:
    attention = 16 * 32 * (4096 + 4096) + 16 * 32 * (3 * 4096 + 4096 + 2 * 1024) * ("q_proj" in targets)

    assert slots(LLAMA, f"--enable-lora --lora-target-modules {targets}") == 2 * attention


def test_whole_experts_have_their_adapters_where_they_are() -> None:
    experts = "--enable-lora --lora-target-modules experts"
    one = 16 * (3 * 4096 + 3 * 1024)

    assert slots(MOE, experts) == 2 * 32 * 64 * one
    assert slots(MOE, experts, Split(4, experts=True, engines=2)) == 2 * 32 * 8 * one
    assert slots(MOE, experts, Split(4)) == 2 * 32 * 64 * 16 * (3 * 4096 + 3 * 256)


def test_adapters_that_leave_no_room_for_the_cache_shorten_the_sequence_and_are_named() -> None:
    small = host(1, 30)
    many = said("--enable-lora", "--max-loras", "32", "--max-lora-rank", "32")
    plain, adapter_placement = (
        fit_model(small, described(LLAMA), said(), RULES),
        fit_model(small, described(LLAMA), many, RULES),
    )

    assert plain.kv_tokens is not None
    assert adapter_placement.kv_tokens is not None
    assert (plain.kv_tokens - adapter_placement.kv_tokens) * 32 * 8 * 128 * 2 * 2 == pytest.approx(
        64 * 2 * (BODY + ENDS), rel=0.01
    )
    assert "LoRA adapters take 5.5 GiB" in adapter_placement.values["--tensor-parallel-size"].because


# --- draft models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-sc", '{"model": "/m/e", "num_speculative_tokens": 3}'), Drafting("/m/e")),
        (("--speculative-config", '{"method": "eagle3", "model": "o/e", "revision": "r"}'), Drafting("o/e", "r")),
        (("--speculative-config.model", "o/e", "--speculative-config.draft_tensor_parallel_size", "1"),
         Drafting("o/e", None, 1)),
        (("--spec-model", "o/e"), Drafting("o/e")),
        (("-sc", '{"method": "mtp", "num_speculative_tokens": 1}'), Drafting(in_model=True)),
        (("-sc", '{"method": "deepseek_mtp"}'), Drafting(in_model=True)),
        (("-sc", '{"method": "ngram", "prompt_lookup_max": 4}'), Drafting()),
        (("-sc", '{"model": "[ngram]"}'), Drafting()),
        (("-sc", '{"model": "my_module.MyProposer"}'), Drafting()),
        ((), Drafting()),
    ],
)  # fmt: skip
def test_the_draft_model_is_what_vllm_would_load(words: tuple[str, ...], expected: Drafting) -> None:
    assert parse_drafting(said(*words)) == expected


@pytest.mark.parametrize("text", ["{", "[1]", "3", ""])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(EntrypointError, match="--speculative-config") as error:
        parse_drafting(said("--speculative-config", text or '""'))
    assert error.value.code == USAGE


def test_a_draft_model_takes_weights_and_cache() -> None:
    draft = model(EAGLE, 1.0)
    user_flags = said("--speculative-config", '{"model": "d", "num_speculative_tokens": 3}')
    plain = fit_model(host(1, 24), model(), said(), RULES)
    placement = fit_model(host(1, 24), with_draft(model(), draft), user_flags, RULES)
    token = 2 * 2 * 8 * 128
    room = (plain.kv_tokens or 0) * 32 * token - 2 * 10**9

    assert placement.kv_tokens == pytest.approx(room / (33 * token), rel=0.01)
    assert "the draft model takes 1.9 GiB" in placement.values["--tensor-parallel-size"].because


def test_ranks_share_a_draft_model_unless_the_user_says_otherwise() -> None:
    drafted = with_draft(model(), model(EAGLE, 1.0))

    assert read_extras(said("--spec-model", "d")).draft_bytes(drafted, 4, 2) == 2 * 10**9 // 4
    one = said("--spec-model", "d", "--speculative-config.draft-tensor-parallel-size", "1")
    assert read_extras(one).draft_bytes(drafted, 4, 2) == 2 * 10**9


def test_a_models_own_predicting_layers_take_cache_only() -> None:
    predicting_model = with_draft(described({**LLAMA, "num_nextn_predict_layers": 2}), None)
    medusa = with_draft(model(), model(None, 1.0))

    assert predicting_model.geometry is not None
    assert medusa.geometry is not None
    assert predicting_model.geometry.kv_bytes(100, 2, 1) * 32 == LLAMA_8B.kv_bytes(100, 2, 1) * 34
    assert read_extras(said("-sc", '{"method": "mtp"}')).draft_bytes(predicting_model, 1, 2) == 0
    assert medusa.geometry.kv_bytes(100, 2, 1) == LLAMA_8B.kv_bytes(100, 2, 1)


def test_a_draft_model_of_unknown_size_is_said() -> None:
    drafted = with_draft(model(), model(EAGLE, weights=None))

    assert [notice.id for notice in find_loading_notices({}, drafted, said(), drafted)] == ["PLAN-114"]


# --- the cache in the host's memory ---------------------------------------------------------------------------------

TWO = (device(0, node=0), device(1, node=1))


def offloaded(kind: str = SHARED, engines: int = 2, **changes: Any) -> str:
    """Return the size on a host of two NUMA nodes with 100 and 60 GiB free."""
    nodes = (Node(0, (0,), 128 * GIB, 100 * GIB), Node(1, (1,), 128 * GIB, 60 * GIB))
    plain = host(2)
    memory = plain.memory._replace(total=256 * GIB, available=160 * GIB)
    mounts = {"shm": Mount("/dev/shm", True, True, 200 * GIB, 200 * GIB, "tmpfs")}
    facts = plain._replace(nodes=nodes, memory=memory, mounts=mounts)._replace(**changes)
    return str(choose_offload(facts, TWO, engines, kind)["--kv-offloading-size"].value)


def test_the_pool_with_the_least_room_decides() -> None:
    limited = host(2).cgroup._replace(memory_limit=90 * GIB, memory_used=10 * GIB)
    shm = {"shm": Mount("/dev/shm", True, True, 20 * GIB, 20 * GIB, "tmpfs")}

    assert offloaded() == "30"  # half of node 1
    assert offloaded(engines=1) == "80"  # half of both nodes
    assert offloaded(nodes=()) == "40"  # half of what is available, for each engine
    assert offloaded(cgroup=limited) == "20"
    assert offloaded(mounts=shm) == "9"
    assert offloaded(PRIVATE, mounts=shm) == "30"


def test_too_little_memory_is_an_error_that_names_the_pool() -> None:
    with pytest.raises(EntrypointError, match=r"/dev/shm has 0.5 GiB free for each of 2 engines") as error:
        offloaded(mounts={"shm": Mount("/dev/shm", True, True, GIB, GIB, "tmpfs")})
    assert error.value.code == HOST


def test_the_cache_is_offloaded_on_request_only_and_the_users_size_wins() -> None:
    rules = RULES._replace(offload=PRIVATE)
    size = "--kv-offloading-size"

    assert size in fit_model(host(2), model(), said(offload=True), rules).values
    assert size not in fit_model(host(2), model(), said(), rules).values
    assert size not in fit_model(host(2), model(), said(offload=True), RULES).values
    assert size not in fit_model(host(2), model(), said(size, "7", offload=True), rules).values
