"""The caches during whole starts, with defects of the volume: the supervisor and the stub as real processes."""

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

from entrypoints.cache.entries import CRASHES, is_in_use, list_entries, read_entry_manifest
from entrypoints.cache.plan import ROOM
from entrypoints.cache.quota import make_room, parse_quota
from entrypoints.core.errors import USAGE
from tests.support.ports import free_port
from tests.support.running_server import Running
from tests.support.supervisor_process import Start
from tests.unit.entrypoints.cache.test_entries import READY, names, put

GRAPH = "vllm/torch_compile_cache/graph"
Run = Callable[..., Running]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start a supervisor with a stub that compiles; keywords are fields of Start."""
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
    """Wait until the server is ready, stop it, and return its log."""
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


def warnings(output: str) -> list[str]:
    return [line for line in output.splitlines() if "WARN" in line]


def test_warm_fills_and_the_next_start_hits(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    manifest = read_entry_manifest(str(entry)) or {}
    assert manifest["ready"]
    assert (manifest["attempts"], manifest["files"]) == (0, 3)  # the graph, lock and entry.json
    assert not is_in_use(str(entry))
    output = served(run())
    assert "cache hit: compiled for this plan" in output
    assert warnings(output) == []


def test_a_miss_says_which_factor_changed(run: Run, tmp_path: Path) -> None:
    first = run(verb="warm")
    assert first.exit_code() == 0
    assert "cache miss: no ready entry yet; kernels miss" in first.said()
    output = served(run(factors={"--dtype": "float16"}))
    assert "cache miss: compared with plan: --dtype was not set, is float16; kernels hit" in output
    assert sorted(entry.manifest["ready"] > 0 for entry in list_entries(str(tmp_path / "cache"))) == [True] * 3


def test_folders_valid_for_any_plan_are_copied(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    (entry / "vllm" / "modelinfos").mkdir()
    (entry / "vllm" / "modelinfos" / "llama.json").write_text("{}")
    served(run(factors={"--dtype": "float16"}))
    plan_folder = tmp_path / "cache" / "compiled" / "plan-float16"
    assert (plan_folder / "vllm" / "modelinfos" / "llama.json").exists()


@pytest.mark.parametrize(
    ("poison", "failure"),
    [
        ("half", "vLLM exited with 1 in phase import, without being asked to stop"),
        ("wrong", "wrong answer: token 0: decode chose 4, prefill 99; 9.00 apart, 0.5 allowed, in '4 5' after "),
    ],
)
def test_a_poisoned_cache_ends_in_a_served_answer(run: Run, tmp_path: Path, poison: str, failure: str) -> None:
    entry = warmed(run, tmp_path)
    (entry / GRAPH).write_text(poison)
    server = run()
    aside = tmp_path / "cache" / "quarantine"
    server.until(lambda: aside.exists() and len(list(aside.iterdir())) == 2, "the poisoned entries' end")
    (line,) = warnings(served(server))
    assert f"WARN {failure}" in line
    assert "; an earlier start became ready with these caches: starting again without them" in line
    assert line.endswith(f"if this start becomes ready, device and plan of {entry.parent} are moved to {aside}")
    assert sorted(folder.name.partition(".")[0] for folder in aside.iterdir()) == ["device", "plan"]
    assert not entry.exists()
    assert not list((tmp_path / "tmp").rglob("graph")), "what was for that start only is gone"
    assert "cache miss" in served(run())
    assert "cache hit" in served(run())


def test_a_failure_with_another_cause_keeps_the_caches_and_vllms_exit_code(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    server = run(stub={"dies_with": 3})
    assert server.exit_code() == 3
    assert server.said().count("starting again without them") == 1
    assert (entry / GRAPH).exists()
    assert not (tmp_path / "cache" / "quarantine").exists()


def test_a_plan_that_was_never_ready_is_not_repeated(run: Run) -> None:
    server = run(stub={"dies_with": 3})
    assert server.exit_code() == 3
    assert "starting again" not in server.said()


def test_a_crash_loop_ends_in_quarantine(run: Run, tmp_path: Path) -> None:
    for _ in range(CRASHES):
        assert run(stub={"dies_with": 3}).exit_code() == 3
    output = served(run())
    plan = f"{tmp_path}/cache/compiled/plan"
    assert not Path(plan).joinpath("quarantine").exists()
    assert any(f"{plan}: {CRASHES} starts in a row never became ready with it" in line for line in warnings(output))


def test_an_entry_of_another_image_is_quarantined_with_one_warning(run: Run, tmp_path: Path) -> None:
    entry = put(tmp_path / "cache", {**READY, "factors": {"variant": "cuda"}}, "plan", kernel="foreign")
    output = served(run())
    (line,) = warnings(output)
    assert f"{entry}: it was made for something else: variant was cuda, is cpu-test" in line


def test_a_read_only_cache_is_copied(run: Run, tmp_path: Path) -> None:
    warmed(run, tmp_path)
    output = served(run(cache_writable=False))
    (line,) = warnings(output)
    assert f"WARN {tmp_path}/cache cannot be written: using {tmp_path}/tmp/drydock-0" in line
    assert f"copied 0.0 MB from {tmp_path}/cache" in output
    assert "cache hit" in output


def test_only_one_of_two_servers_fills_an_entry(run: Run, tmp_path: Path) -> None:
    later = tmp_path / "later"
    first = run(stub={"waits_for": str(later)})
    first.leader()
    second = run()
    assert "another server is filling it: this start compiles for itself" in served(second)
    assert not list((tmp_path / "tmp").rglob("graph"))
    later.touch()
    first.until_ready()
    first.until(lambda: can_share(tmp_path / "cache" / "compiled" / "plan"), "the entry to be kept")
    assert "cache hit" in served(run())
    served(first)


def test_a_partial_hit_names_the_changed_variables(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    shutil.rmtree(entry / "vllm")
    manifest = {**(read_entry_manifest(str(entry)) or {}), "files": 2}
    (entry / "entry.json").write_text(json.dumps(manifest))
    output = served(run(env={"VLLM_HOST_IP": "10.0.0.7", "VLLM_API_TOKEN": "secret"}))
    assert "partial cache hit: 1 files were added; changed since it was filled: VLLM_HOST_IP" in output
    assert "VLLM_API_TOKEN" not in (entry / "entry.json").read_text()


def test_the_status_port_says_hit_or_miss(run: Run, tmp_path: Path) -> None:
    warmed(run, tmp_path)
    server = run()
    server.until_ready()
    assert 'cache="hit"' in server.status("/metrics")[1]


def test_with_exec_entries_are_locked_and_no_start_is_counted(run: Run, tmp_path: Path) -> None:
    entry = warmed(run, tmp_path)
    server = run(options={"exec_": True})
    server.until(lambda: "cache hit" in server.said() and is_in_use(str(entry)), "a hit of an entry that is held")
    assert (read_entry_manifest(str(entry)) or {})["attempts"] == 0
    server.signal(signal.SIGTERM)
    server.exit_code()
    assert not is_in_use(str(entry))


def test_an_invalid_quota_is_an_error_before_the_start(run: Run) -> None:
    server = run(env={"DRYDOCK_CACHE_QUOTA": "much"})
    assert server.exit_code() == USAGE
    assert "DRYDOCK_CACHE_QUOTA=much: expected a size or a share" in server.said()


# --- quota ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "bytes_"), [("50G", 50 << 30), ("1.5M", 3 << 19), ("25%", 250), ("7", 7)])
def test_a_quota_is_a_size_or_a_share(text: str, bytes_: int) -> None:
    assert parse_quota(text, 1000) == bytes_


def test_the_least_recently_used_entry_is_removed_first_unless_in_use(run: Run, tmp_path: Path) -> None:
    warmed(run, tmp_path)
    put(tmp_path / "cache", {**READY, "used": 1, "bytes": 4000}, "oldest")
    put(tmp_path / "cache", {**READY, "used": 2, "bytes": 4000}, "older")
    server = run(env={"DRYDOCK_CACHE_QUOTA": "1M"})
    server.until_ready()
    messages: list[str] = []
    make_room(str(tmp_path / "cache"), {"DRYDOCK_CACHE_QUOTA": "5000"}, messages.append)
    assert names(tmp_path / "cache" / "compiled") == ["device", "plan"]
    assert "oldest, the least recently used" in messages[0]


def test_no_entry_is_removed_if_that_frees_too_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, {**READY, "bytes": 1000}, "small")
    figures = os.statvfs_result((4096, 4096, 1 << 30, 10, 10, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: figures)
    make_room(str(tmp_path), {}, print)
    assert names(tmp_path / "compiled") == ["small"]
    put(tmp_path, {**READY, "bytes": ROOM}, "large")
    make_room(str(tmp_path), {}, print)
    assert names(tmp_path / "compiled") == ["small"]


def test_the_newest_quarantined_entries_are_kept(tmp_path: Path) -> None:
    for when in (1, 2, 3, 10):
        (tmp_path / "quarantine" / f"plan.{when}000000000000").mkdir(parents=True)
    make_room(str(tmp_path), {}, print)
    assert names(tmp_path / "quarantine") == ["plan.10000000000000", "plan.3000000000000"]
