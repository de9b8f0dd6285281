"""The caches over whole starts, with all that befalls a volume: the supervisor and the stub as real processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from entrypoints.cache.entries import CRASHES, is_in_use, listed, read
from entrypoints.cache.plan import ROOM
from entrypoints.cache.quota import make_room, parse_quota
from entrypoints.core.errors import USAGE
from tests.support.running import Running, Start, free_port
from tests.unit.entrypoints.cache.test_entries import READY, names, put

GRAPH = "vllm/torch_compile_cache/graph"
Run = Callable[..., Running]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a supervisor over a stub that compiles; keywords are fields of Start."""
    started: list[Running] = []

    def begin(stub: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None, **fields: Any) -> Running:
        (tmp_path / "cache").mkdir(exist_ok=True)
        start = Start(**{"cache": str(tmp_path / "cache"), "port": free_port(), **fields})
        env = {"TMPDIR": str(tmp_path / "tmp"), **(env or {})}
        started.append(Running(start, {"compiles": True, **(stub or {})}, env, tmp_path / f"stderr{len(started)}"))
        return started[-1]

    (tmp_path / "tmp").mkdir()
    yield begin
    for running in started:
        running.end()


def warmed(run: Run, tmp_path: Path, **fields: Any) -> Path:
    """Fill the cache and return the plan's entry."""
    filled = run(verb="warm", **fields)
    assert filled.exit_code() == 0, filled.said()
    return tmp_path / "cache" / "compiled" / "plan"


def served(server: Running) -> str:
    """See that it becomes ready, end it, and return what it said."""
    server.until_ready()
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0, server.said()
    return server.said()


def can_share(entry: Path) -> bool:
    with (entry / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if "WARN" in line]


def test_warm_fills_and_the_next_start_hits(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    kept = read(str(entry)) or {}
    assert kept["ready"]
    assert (kept["attempts"], kept["files"]) == (0, 3)  # the graph, lock and entry.json
    assert not is_in_use(str(entry))
    said = served(run())
    assert "cache hit: compiled for this very plan" in said
    assert warnings(said) == []


def test_a_miss_says_which_factor_changed(run: Run, tmp_path: Path) -> None:
    first = run(verb="warm")
    assert first.exit_code() == 0
    assert "cache miss: nothing is kept here yet; kernels miss" in first.said()
    said = served(run(factors={"--dtype": "float16"}))
    assert "cache miss: against plan, --dtype was not set, is float16; kernels hit" in said
    assert sorted(each.kept["ready"] > 0 for each in listed(str(tmp_path / "cache"))) == [True] * 3


def test_what_holds_for_any_plan_is_taken_over(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    (entry / "vllm" / "modelinfos").mkdir()
    (entry / "vllm" / "modelinfos" / "llama.json").write_text("{}")
    served(run(factors={"--dtype": "float16"}))
    other = tmp_path / "cache" / "compiled" / "plan-float16"
    assert (other / "vllm" / "modelinfos" / "llama.json").exists()


@pytest.mark.parametrize(("poison", "failure"), [("half", "vLLM ended with 1"), ("wrong", "vLLM answered wrongly")])
def test_a_poisoned_cache_ends_in_a_served_answer(run: Run, tmp_path: Path, poison: str, failure: str) -> None:
    entry = warmed(run, tmp_path)
    (entry / GRAPH).write_text(poison)
    server = run()
    aside = tmp_path / "cache" / "quarantine"
    server.until(lambda: aside.exists() and len(list(aside.iterdir())) == 2, "the poisoned entries' end")
    (line,) = warnings(served(server))
    assert f"WARN {failure}, with caches that it was ready with before: starting once more without them" in line
    assert line.endswith(f"if that becomes ready, device and plan of {entry.parent} are set aside in {aside}")
    assert sorted(each.name.partition(".")[0] for each in aside.iterdir()) == ["device", "plan"]
    assert not entry.exists()
    assert not list((tmp_path / "tmp").rglob("graph")), "what was for that start only is gone"
    assert "cache miss" in served(run())
    assert "cache hit" in served(run())


def test_a_failure_that_is_not_the_caches_leaves_them_and_ends_with_vllms_code(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    server = run(stub={"dies_with": 3})
    assert server.exit_code() == 3
    assert server.said().count("starting once more without them") == 1
    assert (entry / GRAPH).exists()
    assert not (tmp_path / "cache" / "quarantine").exists()


def test_a_plan_that_was_never_ready_is_not_repeated(run: Run) -> None:
    server = run(stub={"dies_with": 3})
    assert server.exit_code() == 3
    assert "starting once more" not in server.said()


def test_a_crash_loop_ends_in_quarantine(run: Run, tmp_path: Path) -> None:
    for _ in range(CRASHES):
        assert run(stub={"dies_with": 3}).exit_code() == 3
    said = served(run())
    plan = f"{tmp_path}/cache/compiled/plan"
    assert not Path(plan).joinpath("quarantine").exists()
    assert any(f"{plan}: {CRASHES} starts in a row never became ready with it" in line for line in warnings(said))


def test_a_foreign_cache_is_set_aside_and_said_in_one_line(run: Run, tmp_path: Path) -> None:
    entry = put(tmp_path / "cache", {**READY, "factors": {"variant": "cuda"}}, "plan", kernel="foreign")
    said = served(run())
    (line,) = warnings(said)
    assert f"{entry}: it was made for something else: variant was cuda, is cpu-test" in line


def test_a_read_only_cache_is_copied_in(run: Run, tmp_path: Path) -> None:
    warmed(run, tmp_path)
    said = served(run(cache_writable=False))
    (line,) = warnings(said)
    assert f"WARN {tmp_path}/cache cannot be written: caches go to {tmp_path}/tmp/drydock-0" in line
    assert f"copied in 0.0 MB from {tmp_path}/cache" in said
    assert "cache hit" in said


def test_two_servers_use_what_is_ready_and_only_one_fills(run: Run, tmp_path: Path) -> None:
    first = run(stub={"delay": 2.0})
    first.leader()
    second = run()
    assert "another server is filling it: this start compiles for itself" in served(second)
    assert not list((tmp_path / "tmp").rglob("graph"))
    first.until_ready()
    first.until(lambda: can_share(tmp_path / "cache" / "compiled" / "plan"), "the entry to be kept")
    assert "cache hit" in served(run())
    served(first)


def test_a_hit_that_compiles_all_the_same_says_what_differs(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    shutil.rmtree(entry / "vllm")
    manifest = {**(read(str(entry)) or {}), "files": 2}
    (entry / "entry.json").write_text(json.dumps(manifest))
    said = served(run(env={"VLLM_HOST_IP": "10.0.0.7", "VLLM_API_TOKEN": "secret"}))
    assert "cache hit was partial: 1 files were added; different since it was filled: VLLM_HOST_IP" in said
    assert "VLLM_API_TOKEN" not in (entry / "entry.json").read_text()


def test_the_status_port_says_hit_or_miss(run: Run, tmp_path: Path) -> None:
    warmed(run, tmp_path)
    server = run()
    server.until_ready()
    assert 'cache="hit"' in server.status("/metrics")[1]


def test_with_exec_what_is_used_is_held_and_nothing_is_counted(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    server = run(options={"exec_": True})
    server.until(lambda: is_in_use(str(entry)), "the entry to be held")
    assert "cache hit" in server.said()
    assert (read(str(entry)) or {})["attempts"] == 0
    server.signal(signal.SIGTERM)
    server.exit_code()
    assert not is_in_use(str(entry))


def test_a_quota_that_cannot_be_meant_is_said_before_the_start(run: Run) -> None:
    server = run(env={"DRYDOCK_CACHE_QUOTA": "much"})
    assert server.exit_code() == USAGE
    assert "DRYDOCK_CACHE_QUOTA=much: expected a size or a share" in server.said()


# --- quota ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "bytes_"), [("50G", 50 << 30), ("1.5M", 3 << 19), ("25%", 250), ("7", 7)])
def test_a_quota_is_a_size_or_a_share(text: str, bytes_: int) -> None:
    assert parse_quota(text, 1000) == bytes_


def test_what_was_used_longest_ago_goes_first_and_what_is_in_use_stays(run: Run, tmp_path: Path) -> None:
    warmed(run, tmp_path)
    put(tmp_path / "cache", {**READY, "used": 1, "bytes": 4000}, "oldest")
    put(tmp_path / "cache", {**READY, "used": 2, "bytes": 4000}, "older")
    server = run(env={"DRYDOCK_CACHE_QUOTA": "1M"})
    server.until_ready()
    said: list[str] = []
    make_room(str(tmp_path / "cache"), {"DRYDOCK_CACHE_QUOTA": "5000"}, said.append)
    assert names(tmp_path / "cache" / "compiled") == ["device", "plan"]
    assert "oldest removed, used longest ago" in said[0]


def test_a_volume_that_downloads_fill_loses_no_entry_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {**READY, "bytes": 1000}, "small")
    figures = os.statvfs_result((4096, 4096, 1 << 30, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: figures)
    make_room(str(tmp_path), {}, print)
    assert names(tmp_path / "compiled") == ["small"]
    put(tmp_path, {**READY, "bytes": ROOM}, "large")
    make_room(str(tmp_path), {}, print)
    assert names(tmp_path / "compiled") == ["small"]


def test_of_what_was_set_aside_the_latest_stay(tmp_path: Path) -> None:
    for when in (1, 2, 3, 10):
        (tmp_path / "quarantine" / f"plan.{when}000000000000").mkdir(parents=True)
    make_room(str(tmp_path), {}, print)
    assert names(tmp_path / "quarantine") == ["plan.10000000000000", "plan.3000000000000"]
