"""What is decided on a CPU, and what the user's own choices change."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import DOES_NOT_FIT, HOST, MODEL, USAGE, EntrypointError
from entrypoints.core.records import Facts, Failure, Processor
from entrypoints.decide.cpu.cpu import KV_SPACE, decide
from entrypoints.decide.cpu.executor import BIND
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.intents import Intents
from entrypoints.request.roles import PREFILL, Role
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.host_models import LLAMA, SMOLLM2
from tests.support.sample import GIB, IOMP, PROFILE, TCMALLOC, facts


def decided(host: Facts, *flags: str, model: ModelFacts = LLAMA, **env: str) -> Decision:
    return decide(PROFILE, host, model, parse_user_flags(flags, env))


def values(host: Facts, *flags: str, model: ModelFacts = LLAMA, **env: str) -> dict[str, str | bool]:
    return {name: value.value for name, value in decided(host, *flags, model=model, **env).values.items()}


def refused(host: Facts, *flags: str, model: ModelFacts = LLAMA, **env: str) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        decided(host, *flags, model=model, **env)
    return error.value


def with_quota(host: Facts, quota: float) -> Facts:
    return host._replace(cgroup=host.cgroup._replace(cpu_quota=quota))


# --- type


@pytest.mark.parametrize(
    ("architecture", "flags", "dtype"),
    [
        ("x86_64", ("avx2", "avx512_bf16"), "bfloat16"),
        ("x86_64", ("avx2",), "bfloat16"),
        ("aarch64", ("asimd", "bf16"), "bfloat16"),
        ("aarch64", ("asimd",), "float32"),
        ("s390x", ("vxe",), "float32"),
        ("ppc64le", ("altivec",), "bfloat16"),
        ("riscv64", ("rv64imafdcv",), "float32"),
    ],
)
def test_the_type_follows_the_instruction_set(architecture: str, flags: tuple[str, ...], dtype: str) -> None:
    host = facts(processor=Processor(architecture, "", "", flags))

    assert values(host)["--dtype"] == dtype


def test_float32_takes_twice_the_memory_for_weights() -> None:
    z15 = facts(memory=33 * GIB, processor=Processor("s390x", "", "", ()))

    assert refused(z15).code == DOES_NOT_FIT
    assert values(z15, "--dtype", "bfloat16")[KV_SPACE] != "0"


# --- parallelism


def test_a_small_model_gets_an_engine_on_each_node() -> None:
    decision = decided(facts(cores=8, nodes=2), model=SMOLLM2)
    chosen = {name: value.value for name, value in decision.values.items()}

    assert (chosen["--tensor-parallel-size"], chosen["--data-parallel-size"]) == ("1", "2")
    assert chosen[BIND] == "0-3|4-7"
    assert "too few to split" in decision.values["--data-parallel-size"].because
    assert decision.findings == ()


def test_a_small_model_stays_on_one_node_for_latency_and_says_which_stays_idle() -> None:
    decision = decide(
        PROFILE, facts(cores=8, nodes=2), SMOLLM2, parse_user_flags((), {}, (), Intents(optimize="latency"))
    )
    idle = decision.findings[-1]

    assert decision.values[BIND].value == "0-3"
    assert (idle.id, idle.found) == ("PLAN-025", "NUMA nodes 1")
    assert "--cpuset-mems 1" in idle.values["use"]


def test_without_shared_memory_for_workers_a_small_model_stays_on_one_node() -> None:
    host = facts(cores=8, nodes=2)
    host = host._replace(mounts={**host.mounts, "shm": host.mounts["shm"]._replace(free=64 << 20)})
    decision = decided(host, model=SMOLLM2)

    assert decision.values["--tensor-parallel-size"].value == "1"
    assert "--data-parallel-size" not in decision.values
    assert "--shm-size=4g" in decision.findings[-1].values["use"]


def layout_of(*flags: str, model: ModelFacts = LLAMA, **env: str) -> tuple[str | bool, ...]:
    """Return the tensor and data parallelism on two nodes of four cores each."""
    chosen = values(facts(cores=8, nodes=2), *flags, model=model, **env)
    return chosen["--tensor-parallel-size"], chosen.get("--data-parallel-size", "1")


@pytest.mark.parametrize(
    ("lists", "model", "split"),
    [
        ("0-3", SMOLLM2, ("1", "1")),
        ("0-3", LLAMA, ("1", "1")),
        ("0-3|4-7", LLAMA, ("2", "1")),
        ("0,1|2,3|4-5|6-7", LLAMA, ("4", "1")),
        ("0-3|4-7", SMOLLM2, ("1", "2")),  # two ranks do not divide 9 heads: two copies
        ("auto", LLAMA, ("2", "1")),
        ("nobind", LLAMA, ("2", "1")),
    ],
)
def test_the_users_lists_of_cpus_fix_the_ranks(lists: str, model: ModelFacts, split: tuple[str, str]) -> None:
    assert layout_of(model=model, VLLM_CPU_OMP_THREADS_BIND=lists) == split


@pytest.mark.parametrize(
    ("lists", "flags", "words"),
    [
        ("garbage", (), "expected auto, nobind, or a list of CPUs for each rank"),
        ("0-3|", (), "expected auto, nobind, or a list of CPUs"),
        ("3-0", (), "expected auto, nobind, or a list of CPUs"),
        ("200-210", (), "CPUs 200-210 are not in this container"),
        ("0-3|4-9", (), "CPUs 8-9 are not in this container"),
        ("0-3", ("-tp", "2"), "has 1 lists of CPUs, and -tp 2 -pp 1 -dp 1 makes 2 ranks"),
        ("0-3|4-7", ("-tp", "1"), "has 2 lists of CPUs, and -tp 1 -pp 1 -dp 1 makes 1 ranks"),
        ("0-3", ("-dp", "2"), "has 1 lists of CPUs, and -tp 1 -pp 1 -dp 2 makes 2 ranks"),
    ],
)
def test_lists_that_vllm_cannot_bind_are_refused(lists: str, flags: tuple[str, ...], words: str) -> None:
    error = refused(facts(cores=8, nodes=2), *flags, VLLM_CPU_OMP_THREADS_BIND=lists)
    assert error.code == USAGE
    assert words in error.message


def test_six_nodes_give_the_nearest_smaller_number_that_divides_the_heads() -> None:
    decision = decided(facts(cores=12, nodes=6, memory=384 * GIB)).values["--tensor-parallel-size"]

    assert decision.value == "4"
    assert "32 heads" in decision.because


@pytest.mark.parametrize(
    ("ranks", "why", "possible"),
    [
        ("3", "32 heads and 8 KV heads are not divisible by 3", "possible: -tp 2 or -tp 4"),
        ("6", "32 heads and 8 KV heads are not divisible by 6", "possible: -tp 4 or -tp 8"),
    ],
)
def test_a_size_that_does_not_divide_the_heads_is_refused_with_the_nearest(ranks: str, why: str, possible: str) -> None:
    error = refused(facts(cores=12, nodes=6, memory=384 * GIB), "-tp", ranks)

    assert (error.code, error.message, error.hint) == (USAGE, f"-tp {ranks}: {why}", possible)


def test_nodes_that_would_cut_a_layers_state_are_not_taken() -> None:
    assert LLAMA.geometry
    hybrid = LLAMA._replace(geometry=LLAMA.geometry._replace(state_heads=6))

    assert values(facts(cores=8, nodes=4, memory=384 * GIB), model=hybrid)["--tensor-parallel-size"] == "2"


def test_little_cpu_time_stays_on_one_node() -> None:
    chosen = values(with_quota(facts(cores=8, nodes=2, memory=128 * GIB), 2.5))

    assert chosen["--tensor-parallel-size"] == "1"
    assert chosen[BIND] == "0-1"


def test_weights_that_one_node_cannot_hold_are_split_after_all() -> None:
    decision = decided(with_quota(facts(cores=8, nodes=2, memory=36 * GIB), 2.0)).values["--tensor-parallel-size"]

    assert decision.value == "2"
    assert "memory" in decision.because


def test_a_users_parallelism_decides_binding_and_memory() -> None:
    host = facts(cores=8, nodes=2, memory=128 * GIB)

    assert values(host, "-tp", "1")[BIND] == "0-3"
    assert values(host, "-tp", "4")[BIND] == "0-1|2-3|4-5|6-7"
    assert values(host, "-tp=1", "--data-parallel-size", "2")[BIND] == "0-3|4-7"
    assert values(host, "-tp=1", "-pp", "2")[BIND] == "0-3|4-7"


def test_memory_nodes_that_the_user_hides_hold_no_rank() -> None:
    chosen = values(facts(cores=8, nodes=2, memory=128 * GIB), CPU_VISIBLE_MEMORY_NODES="1")

    assert (chosen["--tensor-parallel-size"], chosen[BIND]) == ("1", "4-7")


def test_variables_that_are_no_numbers_are_refused() -> None:
    for error in (
        refused(facts(), CPU_VISIBLE_MEMORY_NODES="first"),
        refused(facts(), VLLM_CPU_KVCACHE_SPACE="4.5"),
        refused(facts(), VLLM_CPU_NUM_OF_RESERVED_CPU="-1"),
    ):
        assert error.code == USAGE


def test_a_hub_id_is_not_split_and_gets_a_part_of_the_memory() -> None:
    model = ModelFacts("a/b", False, "", "", None, None, "a/b is a hub id")
    decision = decided(facts(cores=8, nodes=2, memory=128 * GIB), model=model).values

    assert decision["--tensor-parallel-size"].value == "1"
    assert decision[KV_SPACE].value == str(int((64 - 3) * 0.4))
    assert "hub id" in decision[KV_SPACE].because


# --- threads


def test_two_cores_are_both_bound_and_of_many_some_are_kept() -> None:
    assert values(facts(cores=2), "--distributed-executor-backend=mp", model=SMOLLM2)[BIND] == "0-1"
    assert values(facts(cores=32), model=SMOLLM2)[BIND] == "0-29"


def test_a_users_number_of_reserved_cores_is_kept_off() -> None:
    assert values(facts(cores=8), model=SMOLLM2, VLLM_CPU_NUM_OF_RESERVED_CPU="3")[BIND] == "0-4"
    assert values(facts(cores=8), model=SMOLLM2, VLLM_CPU_NUM_OF_RESERVED_CPU="99")["OMP_NUM_THREADS"] == "1"


NIXL = '--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_both"}'


@pytest.mark.parametrize(("host", "bound"), [(facts(cores=8), "0-6"), (facts(cores=32), "0-28"), (facts(cores=1), "0")])
def test_the_last_core_is_for_the_exchange_of_the_kv_cache(host: Facts, bound: str) -> None:
    binding = decided(host, NIXL, "--distributed-executor-backend=mp", model=SMOLLM2).values[BIND]

    assert binding.value == bound
    assert "and the exchange of the KV cache" in binding.because


def test_each_rank_keeps_a_core_for_the_exchange() -> None:
    assert values(facts(cores=16, nodes=2), NIXL)[BIND] == "0-6|8-14"


def test_a_rank_of_a_server_on_several_hosts_keeps_a_core_too() -> None:
    assert values(facts(cores=8), NIXL, "--nnodes=3", model=SMOLLM2)[BIND] == "0-6"


def test_a_role_without_a_connector_of_ones_own_keeps_the_last_core_too() -> None:
    user_flags = parse_user_flags((), {})._replace(role=Role(PREFILL))

    host = facts(cores=8, files={"tcmalloc": True, "iomp": False})
    assert decide(PROFILE, host, SMOLLM2, user_flags).values[BIND].value == "0-6"


def test_one_process_computes_on_every_core_as_nixl_pauses_in_it() -> None:
    chosen = values(facts(cores=8), NIXL, model=SMOLLM2)

    assert (chosen["--distributed-executor-backend"], chosen["VLLM_WORKER_MULTIPROC_METHOD"]) == ("uni", "fork")
    assert {BIND, "OMP_NUM_THREADS"}.isdisjoint(chosen)


def test_a_container_without_the_last_core_is_refused_before_vllm_fails_there() -> None:
    host = facts(cores=8)
    part = host._replace(cpus=host.cpus[:4])
    error = refused(part, NIXL, model=SMOLLM2)

    assert error.code == HOST
    assert "CPUs 0-3" in str(error)
    assert "CPU 7" in str(error)
    assert values(part, "--distributed-executor-backend=mp", model=SMOLLM2)[BIND] == "0-3"
    assert BIND not in values(part, NIXL.replace("Nixl", "LMCache"), model=SMOLLM2)


# --- memory


def test_the_cache_gets_what_is_left() -> None:
    cache_gib = 64 - 2 * LLAMA.weights.elements / GIB - 3 if LLAMA.weights else 0

    assert values(facts(cores=64))[KV_SPACE] == str(int(cache_gib * 0.9))


def test_the_cache_gets_no_more_than_is_useful() -> None:
    chosen = decided(facts(cores=2), model=SMOLLM2).values[KV_SPACE]

    assert chosen.value == "3"
    assert "131072 tokens" in chosen.because


def test_a_model_that_cannot_fit_says_need_and_have() -> None:
    error = refused(facts(memory=8 * GIB))

    assert error.code == DOES_NOT_FIT
    assert "NUMA node 0 has 8.0 GiB" in error.message
    assert "more memory" in error.hint


def small(limit: float) -> Facts:
    """A container of a large host, with so many GiB, and 1.2 GiB for processes as templates/cpu has it."""
    host = facts(cores=2)
    return host._replace(cgroup=host.cgroup._replace(memory_limit=int(limit * GIB)))


def decided_small(limit: float, *flags: str, option_strings: tuple[str, ...] = ()) -> Decision:
    thresholds = {**PROFILE["thresholds"], "server_memory_gib": {"value": 0.6}, "rank_memory_gib": {"value": 0.6}}
    return decide(
        {**PROFILE, "thresholds": thresholds}, small(limit), SMOLLM2, parse_user_flags(flags, {}, option_strings)
    )


def test_a_small_model_gets_a_cache_of_less_than_one_gib_before_it_is_refused() -> None:
    decision = decided_small(2.5)
    chosen = decision.values

    assert KV_SPACE not in chosen
    assert 256 << 20 <= int(str(chosen["--kv-cache-memory-bytes"].value)) < GIB
    assert chosen["--kv-cache-memory-bytes"].instead == (f"{KV_SPACE}: takes whole GiB only",)
    assert sum((use.weights + use.other + use.cache) for use in decision.uses) <= 2.5 * GIB


def test_a_cache_below_one_sequence_shortens_it_and_one_below_a_conversation_is_refused() -> None:
    tight = next(decided_small(limit / 64).values for limit in range(100, 200) if fits(limit / 64))

    assert 1024 <= int(str(tight["--max-model-len"].value)) < 8192
    with pytest.raises(EntrypointError, match=r"smallest useful KV cache takes 0\.0 GiB") as error:
        decided_small(1.5)
    assert "more memory per rank" in error.value.hint


def fits(limit: float) -> bool:
    try:
        decided_small(limit)
    except EntrypointError:
        return False
    return True


def test_a_vllm_without_a_cache_in_bytes_still_needs_one_gib() -> None:
    with pytest.raises(EntrypointError, match=r"smallest useful KV cache takes 1\.0 GiB"):
        decided_small(2.5, option_strings=("--max-model-len",))


def test_a_step_of_a_larger_batch_leaves_less_for_the_cache() -> None:
    usual, large = (decided_small(2.5, "--max-num-batched-tokens", str(tokens)).uses[0] for tokens in (2048, 8192))

    assert large.other - usual.other == 6144 * (3 * 576 + 2 * 12 * 64 + 3 * 1536) * 2
    assert large.cache < usual.cache


def test_a_sequence_that_does_not_fit_is_shortened_and_said() -> None:
    chosen = decided(facts(cores=64, memory=27 * GIB)).values

    assert chosen[KV_SPACE].value == "7"
    assert int(str(chosen["--max-model-len"].value)) == 7 * GIB // (128 * 1024) - 128
    assert "131072" in chosen["--max-model-len"].because


def test_a_users_length_is_never_shortened() -> None:
    host = facts(cores=64, memory=27 * GIB)
    error = refused(host, "--max-model-len", "100k")

    assert error.code == DOES_NOT_FIT
    assert "--max-model-len 57216 fits" in error.hint
    assert "--max-model-len" not in values(host, "--max-model-len", "8K")
    assert "--max-model-len" not in values(host, "--max-model-len", "auto")


def test_an_fp8_cache_holds_twice_as_much() -> None:
    host = facts(cores=64, memory=27 * GIB)

    assert values(host, "--kv-cache-dtype", "fp8_e5m2")["--max-model-len"] == str(7 * GIB // (64 * 1024) - 128)


def test_a_users_cache_space_is_kept_and_bounds_the_length() -> None:
    chosen = values(facts(), VLLM_CPU_KVCACHE_SPACE="2")

    assert KV_SPACE not in chosen
    assert chosen["--max-model-len"] == str(2 * GIB // (128 * 1024) - 128)


def test_one_sequence_needs_the_block_that_vllm_takes_itself_too() -> None:
    """2 GiB hold exactly 16384 tokens of 128 KiB, and vLLM keeps the first block for padding."""
    error = refused(facts(), "--max-model-len", "16384", VLLM_CPU_KVCACHE_SPACE="2")

    assert error.code == DOES_NOT_FIT
    assert "--max-model-len 16256 fits" in error.hint
    assert "--max-model-len" not in values(facts(), "--max-model-len", "16256", VLLM_CPU_KVCACHE_SPACE="2")


def test_a_cache_for_one_sequence_has_room_for_that_block() -> None:
    chosen = values(facts(), "--max-model-len", "16384", "--max-num-seqs", "1")

    assert chosen[KV_SPACE] == "3"
    assert "--max-model-len" not in chosen


def test_a_share_of_memory_that_the_user_sets_is_what_the_worker_takes() -> None:
    use = decided(facts(), "--gpu-memory-utilization=0.5").uses[0]
    worker = use.weights + use.other - int(PROFILE["thresholds"]["server_memory_gib"]["value"] * GIB)

    assert use.cache == pytest.approx(use.total * 0.5 - worker, abs=2)


@pytest.mark.parametrize("flag", ["--gpu-memory-utilization=0.5", "--kv-cache-memory-bytes=4000000000"])
def test_vllms_own_way_of_sizing_the_cache_is_left_to_it(flag: str) -> None:
    assert KV_SPACE not in values(facts(), flag)


@pytest.mark.parametrize(
    ("flags", "env", "fits"),
    [
        ((), {"VLLM_CPU_KVCACHE_SPACE": "4000"}, "VLLM_CPU_KVCACHE_SPACE=41 fits"),
        (("--kv-cache-memory-bytes", "4000G"), {}, "--kv-cache-memory-bytes 41G fits"),
        (("--kv-cache-memory-bytes", "1G"), {"VLLM_CPU_KVCACHE_SPACE": "4000"}, "VLLM_CPU_KVCACHE_SPACE=41 fits"),
        (("--num-gpu-blocks-override", "10000000"), {}, "lower --num-gpu-blocks-override"),
        (("--gpu-memory-utilization", "0.99"), {}, "--gpu-memory-utilization 0.93 fits"),
    ],
)
def test_a_cache_of_the_users_above_the_memory_is_refused(
    flags: tuple[str, ...], env: dict[str, str], fits: str
) -> None:
    host = facts()
    busy = host._replace(nodes=tuple(node._replace(memory_free=60 * GIB) for node in host.nodes))
    error = refused(busy, *flags, **env)

    assert error.code == DOES_NOT_FIT
    assert error.hint.startswith(fits)
    assert KV_SPACE not in values(busy, VLLM_CPU_KVCACHE_SPACE="8")


def test_a_cache_of_the_users_in_bytes_limits_the_length() -> None:
    assert values(facts(), "--kv-cache-memory-bytes", "512M")["--max-model-len"] == "3968"


def test_a_broken_configuration_matters_unless_the_user_sizes_the_cache() -> None:
    model = LLAMA._replace(geometry=None, problem="/m/config.json: num_hidden_layers: missing")

    assert refused(facts(), model=model).code == MODEL
    assert KV_SPACE not in values(facts(), model=model, VLLM_CPU_KVCACHE_SPACE="4")


def test_layers_with_a_state_of_their_own_get_the_memory_that_is_there() -> None:
    model = LLAMA._replace(geometry=None, unknown="its layers keep a state of their own")
    decision = decided(facts(cores=64), model=model).values[KV_SPACE]

    assert decision.value == "41"
    assert "state of their own" in decision.because


def test_without_cpus_or_memory_there_is_no_plan() -> None:
    broken = facts(cpus=(), failures=(Failure("/sys/x", "errno 5", "text"),))

    assert refused(broken).code == HOST
    assert "errno 5" in refused(broken).message


# --- libraries and advice


def test_only_libraries_that_are_there_are_preloaded() -> None:
    assert values(facts())["LD_PRELOAD"] == f"{TCMALLOC}:{IOMP}"
    assert values(facts(files={"tcmalloc": True, "iomp": False}))["LD_PRELOAD"] == TCMALLOC
    assert "LD_PRELOAD" not in values(facts(files={}))


def warnings(host: Facts, *flags: str, model: ModelFacts = SMOLLM2, **env: str) -> list[str]:
    return [finding.id for finding in decided(host, *flags, model=model, **env).findings]


def test_a_users_preload_that_lacks_something_is_kept_with_a_warning() -> None:
    assert warnings(facts(), LD_PRELOAD="/my/lib.so") == ["PLAN-001"]
    assert warnings(facts(), LD_PRELOAD="/else/libtcmalloc_minimal.so.4 /else/libiomp5.so") == []
    assert warnings(facts()) == []


def test_types_that_the_processor_lacks_are_warned_of() -> None:
    z15 = facts(processor=Processor("s390x", "", "", ()))

    assert warnings(facts(), "--dtype", "half") == []  # x86 and Arm compute it: vLLM 0.32's platforms/cpu.py
    assert warnings(z15, "--dtype", "bfloat16") == ["PLAN-002"]
    assert warnings(z15, "--dtype", "float") == []


def test_a_quantisation_that_the_backend_does_not_name_is_warned_of() -> None:
    assert warnings(facts(), model=SMOLLM2._replace(quantization="fp8")) == ["PLAN-003"]
    assert warnings(facts(), model=SMOLLM2._replace(quantization="awq")) == []


def test_pipeline_stages_are_warned_of() -> None:
    assert warnings(facts(), "-pp", "2", "-tp", "1") == ["PLAN-005"]
    assert warnings(facts(), "-pp", "1") == []
