"""A worker process where it helps, none where it only costs or cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.records import Facts, Value
from entrypoints.decide.cpu.executor import (
    BIND,
    METHOD,
    MIB,
    OWN_PROCESSES,
    PYTHON_PATH,
    check_thread_binding,
    choose_executor,
)
from entrypoints.request.flags import EXECUTOR
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.sample import facts

ALL, SOME = Value("0-7", "all"), Value("0-3", "some")


def with_shm(size: int) -> Facts:
    host = facts(cores=8)
    return host._replace(mounts={**host.mounts, "shm": host.mounts["shm"]._replace(free=size)})


SMALL = with_shm(64 * MIB)


def chosen(
    host: Facts, binding: Value, *flags: str, ranks: int = 1, env: dict[str, str] | None = None
) -> dict[str, Any]:
    values = choose_executor(host, parse_user_flags(flags, env or {}), ranks, binding)
    return {name: value.value for name, value in values.items()}


def test_one_rank_on_every_core_needs_no_worker_process() -> None:
    assert chosen(facts(cores=8, files={}), ALL) == {EXECUTOR: "uni", OWN_PROCESSES: "0"}


def test_one_rank_on_some_cores_is_bound_in_a_worker_process() -> None:
    assert chosen(facts(cores=8), SOME) == {BIND: "0-3"}


def test_one_thread_needs_no_worker_process_that_binds_it() -> None:
    values = choose_executor(facts(cores=8), parse_user_flags((), {}), 1, Value("0", "one"))

    assert (values[EXECUTOR].value, values["OMP_NUM_THREADS"].value) == ("uni", "1")
    assert "one thread computes" in values[EXECUTOR].because
    assert check_thread_binding(facts(cores=8), values) == ()


def test_without_shared_memory_threads_are_counted_but_not_bound() -> None:
    values = choose_executor(SMALL, parse_user_flags((), {}), 1, SOME)

    assert (values[EXECUTOR].value, values["OMP_NUM_THREADS"].value) == ("uni", "4")
    assert "64 are free" in values[EXECUTOR].because
    assert [finding.id for finding in check_thread_binding(SMALL, values)] == ["PLAN-004"]


def test_nothing_is_said_where_binding_would_change_nothing() -> None:
    assert check_thread_binding(SMALL, choose_executor(SMALL, parse_user_flags((), {}), 1, ALL)) == ()


def test_intels_runtime_sleeps_soon_as_in_vllms_workers() -> None:
    assert chosen(facts(cores=8, files={"iomp": True}), ALL)["KMP_BLOCKTIME"] == "5"


def test_several_ranks_are_processes() -> None:
    assert chosen(facts(cores=8), Value("0-3|4-7", ""), ranks=2) == {BIND: "0-3|4-7", EXECUTOR: "mp"}


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (("--distributed-executor-backend", "mp"), {}),
        ((), {"VLLM_CPU_OMP_THREADS_BIND": "0"}),
        ((), {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}),
    ],
)
def test_what_the_user_asked_for_is_not_undone(flags: tuple[str, ...], env: dict[str, str]) -> None:
    assert EXECUTOR not in chosen(facts(cores=8), ALL, *flags, env=env)


def test_too_little_shared_memory_for_workers_that_are_needed_is_an_error_with_the_option() -> None:
    for ranks, flags in ((2, ()), (1, ("--distributed-executor-backend", "mp"))):
        with pytest.raises(EntrypointError, match="64 MiB free in /dev/shm") as refused:
            chosen(SMALL, SOME, *flags, ranks=ranks)
        assert refused.value.code == HOST
        assert "--shm-size" in refused.value.hint


def test_a_shm_that_cannot_be_written_is_none_and_an_unknown_one_is_enough() -> None:
    host = facts(cores=8)
    sealed = host._replace(mounts={**host.mounts, "shm": host.mounts["shm"]._replace(writable=False)})

    assert chosen(sealed, SOME)[EXECUTOR] == "uni"
    assert chosen(host._replace(mounts={}), SOME) == {BIND: "0-3"}


INTEL = facts(cores=8, files={"iomp": True})


def test_one_process_that_computes_itself_is_forked() -> None:
    values = chosen(INTEL, ALL)

    assert values[METHOD] == "fork"
    assert values["KMP_AFFINITY"] == "none"  # unasked, Intel's runtime binds a forked process, which then serves slowly


@pytest.mark.parametrize(
    "env",
    [
        {METHOD: "spawn"},
        {PYTHON_PATH: "/mine"},
        {"LD_PRELOAD": "/usr/lib/libjemalloc.so"},
        {"VLLM_PLUGINS": "mine"},
    ],
)
def test_nothing_is_forked_that_the_user_set_otherwise(env: dict[str, str]) -> None:
    assert METHOD not in chosen(INTEL, ALL, env=env)


@pytest.mark.parametrize(
    "env", [{METHOD: "fork"}, {"LD_PRELOAD": "/opt/libiomp5.so"}, {"VLLM_PLUGINS": "mine,drydock"}]
)
def test_what_the_user_set_may_go_with_forking(env: dict[str, str]) -> None:
    assert chosen(INTEL, ALL, env=env)[METHOD] == "fork"


def test_gnus_openmp_and_worker_processes_are_not_forked() -> None:
    assert METHOD not in chosen(facts(cores=8, files={}), ALL)
    assert METHOD not in chosen(INTEL, SOME)
    assert METHOD not in chosen(INTEL, Value("0-3|4-7", ""), ranks=2)
