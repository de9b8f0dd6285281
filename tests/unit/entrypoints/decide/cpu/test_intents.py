"""What intents change on a CPU: copies of the model, sequences, length, batches."""

from __future__ import annotations

import pytest

from entrypoints.core.errors import DOES_NOT_FIT, EntrypointError
from entrypoints.core.records import Facts
from entrypoints.decide.cpu.cpu import KV_SPACE, decide
from entrypoints.decide.cpu.executor import BIND
from entrypoints.decide.records import Decision
from entrypoints.model.read import ModelFacts
from entrypoints.request.intents import Intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.host_models import LLAMA, SMOLLM2
from tests.support.sample import GIB, PROFILE, facts

MODE = "--performance-mode"
KNOWN = (MODE, "--data-parallel-size", "--max-num-batched-tokens", "--max-num-seqs", "--tensor-parallel-size")
FAST, MANY = Intents(optimize="latency"), Intents(optimize="throughput")
TWO = facts(cores=8, nodes=2, memory=128 * GIB)


def decided(
    host: Facts, intents: Intents, *flags: str, model: ModelFacts = LLAMA, option_strings: tuple[str, ...] = ()
) -> Decision:
    return decide(PROFILE, host, model, parse_user_flags(flags, {}, option_strings, intents))


def values(
    host: Facts, intents: Intents, *flags: str, model: ModelFacts = LLAMA, option_strings: tuple[str, ...] = ()
) -> dict[str, str | bool]:
    return {
        name: value.value
        for name, value in decided(host, intents, *flags, model=model, option_strings=option_strings).values.items()
    }


def parallel(settings: dict[str, str | bool]) -> tuple[str | bool, ...]:
    return settings["--tensor-parallel-size"], settings.get("--data-parallel-size", "1"), settings[BIND]


# --- the aim


@pytest.mark.parametrize("model", [LLAMA, SMOLLM2])
def test_throughput_gives_each_node_a_copy(model: ModelFacts) -> None:
    assert parallel(values(TWO, MANY, model=model)) == ("1", "2", "0-3|4-7")


def test_latency_splits_what_is_worth_splitting_as_without_a_wish() -> None:
    assert parallel(values(TWO, FAST)) == parallel(values(TWO, Intents())) == ("2", "1", "0-3|4-7")
    assert parallel(values(TWO, FAST, model=SMOLLM2)) == ("1", "1", "0-3")


def test_a_copy_that_a_node_cannot_hold_is_split() -> None:
    assert parallel(values(facts(cores=8, nodes=2, memory=30 * GIB), MANY)) == ("2", "1", "0-3|4-7")


def test_experts_stay_in_one_engine() -> None:
    assert LLAMA.geometry
    experts = LLAMA._replace(geometry=LLAMA.geometry._replace(experts=8))

    assert parallel(values(TWO, MANY, model=experts)) == ("2", "1", "0-3|4-7")


def test_cpu_time_for_one_node_and_a_model_not_here_yet_get_one_engine() -> None:
    little = TWO._replace(cgroup=TWO.cgroup._replace(cpu_quota=2.5))
    hub = ModelFacts("a/b", False, "", "", None, None, "a/b is a hub id")

    assert "--data-parallel-size" not in values(little, MANY)
    assert "--data-parallel-size" not in values(TWO, MANY, model=hub)


def test_a_users_parallelism_wins_over_the_aim() -> None:
    assert "--data-parallel-size" not in values(TWO, MANY, "-tp", "1")
    assert values(TWO, MANY, "-tp=1", "--data-parallel-size=4")[BIND] == "0-1|2-3|4-5|6-7"


def test_each_engines_cache_is_for_its_own_cores() -> None:
    two_node_values, one = values(TWO, MANY, model=SMOLLM2), values(facts(cores=4), Intents(), model=SMOLLM2)

    assert two_node_values[KV_SPACE] == one[KV_SPACE]


def test_throughput_lets_vllm_double_its_batches_where_it_can() -> None:
    assert values(facts(), MANY, option_strings=KNOWN)[MODE] == "throughput"
    assert MODE not in values(facts(), MANY)
    assert MODE not in values(facts(), FAST, option_strings=KNOWN)


# --- clients and lengths


def test_concurrency_is_what_runs_at_a_time_spread_over_the_engines() -> None:
    assert values(facts(), Intents(concurrency=5))["--max-num-seqs"] == "5"
    assert values(TWO, MANY._replace(concurrency=5))["--max-num-seqs"] == "3"
    assert "--max-num-seqs" not in values(facts(), Intents(concurrency=5), "--max-num-seqs", "7")


def test_the_ranges_are_the_length_and_shrink_the_cache() -> None:
    intents = Intents(input=(1, 500), output=(1, 100), concurrency=2)
    decision = decided(facts(cores=64), intents)

    assert decision.values["--max-model-len"].value == "640"
    assert "in whole blocks" in decision.values["--max-model-len"].because
    assert decision.values[KV_SPACE].value == "1"
    assert decision.findings == ()


def test_ranges_that_the_model_or_the_memory_cannot_hold_are_refused() -> None:
    for host, tokens in ((facts(), 200_000), (facts(memory=26 * GIB), 100_000)):
        with pytest.raises(EntrypointError) as error:
            decided(host, Intents(input=(1, tokens), output=(1, 100)))
        assert error.value.code == DOES_NOT_FIT


def test_more_clients_than_the_cache_or_a_step_holds_wait_and_it_is_said() -> None:
    long = Intents(input=(50_000, 50_000), output=(7_000, 7_000), concurrency=4)
    crowd = Intents(concurrency=5000)
    for intents, most in ((long, 1), (crowd, 2048)):
        decision = decided(facts(cores=64, memory=26 * GIB), intents)
        assert decision.values["--max-num-seqs"].value == str(most)
        assert [(finding.id, finding.found) for finding in decision.findings] == [("PLAN-026", f"{most} at a time")]
