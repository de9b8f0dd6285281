"""Rows that are built at once: no row stops another, and what comes of each."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build, buildx, many
from drydock.build.build_job import Job
from drydock.build.build_progress import Log
from drydock.core.errors import BuildError, EngineError, FetchError
from drydock.core.files import hold_lock_file
from drydock.engine import daemon, image_loading
from drydock.oci import image_layout
from tests.support.fake_buildkit import BuildKit
from tests.support.local_registry import PLATFORMS, VARIANT, LocalRepository

AMD64, ARM64 = PLATFORMS
FAILS = BuildError("docker buildx bake: ERROR: exit code: 3", hint="see above")


class Builders:
    """Rows of a repository, and what builders were asked to bake."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.local = LocalRepository(folder, platforms=PLATFORMS)
        shutil.rmtree(self.local.cache)
        self.bakes: list[tuple[str | None, str]] = []
        self.fails: dict[str, BuildError] = {}
        self.running: set[str] = set()
        self.most_running = 0
        self.hangs = threading.Event()
        self.stopped = threading.Event()
        self.is_hanging = False
        self.fetch_fails: dict[str, Exception] = {}
        self.loaded: list[str] = []
        self.engines = 0
        self.buildkit = BuildKit([b"torch", b"vllm"], [b"entrypoint"])
        patch.setenv("DRYDOCK_CACHE", str(folder / "cache"))
        patch.setattr(daemon, "ensure_engine", self._ensure)
        patch.setattr(
            daemon, "list_builder_platforms", lambda name: frozenset(PLATFORMS if name == "both" else [AMD64])
        )
        patch.setattr(many.wheels, "is_native_platform", lambda platform: platform == AMD64)
        patch.setattr(build, "fetch_contexts", self._fetch)
        patch.setattr(buildx, "run_row_bake", self._bake)
        patch.setattr(buildx, "stop_row_bakes", lambda **_: self.stopped.set())
        patch.setattr(image_loading, "list_names_if_running", lambda image, _: {image} & {*self.loaded})
        patch.setattr(image_loading, "has_complete_image", lambda image, _: image in self.loaded)
        patch.setattr(image_loading, "load_layout", lambda _, image, *__: self.loaded.append(image))
        patch.setattr(image_loading, "tag_latest", lambda _: None)

    def job(self, name: str, epoch: int = 1, platform: str = AMD64) -> Job:
        """Return a row like the repository's; rows of one epoch have the same foundation."""
        shutil.copytree(self.local.root / "images" / VARIANT, self.local.root / "images" / name, dirs_exist_ok=True)
        job = self.local.job(platform)
        lock = job.lock.model_copy(update={"source_date_epoch": epoch})
        return dataclasses.replace(job, variant=job.variant.model_copy(update={"id": name}), lock=lock)

    def _ensure(self, **_: Any) -> None:
        self.engines += 1

    def _fetch(self, job: Job, *_: Any, **__: Any) -> dict[str, str]:
        if job.variant.id in self.fetch_fails:
            raise self.fetch_fails[job.variant.id]
        return {"entrypoints": "/e", "base": "oci-layout:///b@sha256:1"}

    def _bake(self, plan: buildx.Plan, row: str, _: object, *, builder: str | None, **__: Any) -> Log:
        self.bakes.append((builder, row))
        self.running.add(row)
        self.most_running = max(self.most_running, len(self.running))
        try:
            if self.is_hanging:
                self.hangs.set()
                assert self.stopped.wait(30)
                raise buildx.StoppedError(f"{row}: stopped")
            if row in self.fails:
                raise self.fails[row]
            time.sleep(0.05)  # rows overlap
            self.buildkit(plan)
        finally:
            self.running.discard(row)
        build_log = Log()
        build_log.done = {"foundation 1/2": False, "foundation 2/2": True}
        return build_log

    def partial(self) -> list[Path]:
        """Return what is left of broken-off builds."""
        return [path for kind in ("images", "foundations") for path in self.local.cache.glob(f"{kind}/*/*/.*")]


@pytest.fixture
def builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builders:
    return Builders(tmp_path, monkeypatch)


def states(outcomes: Sequence[many.Outcome]) -> dict[str, str]:
    return {outcome.variant: outcome.state for outcome in outcomes}


def test_each_row_is_built_as_if_alone_and_then_up_to_date(builders: Builders) -> None:
    rows = [builders.job("a1.0", 1), builders.job("b", 2)]
    first, second = many.build_all(rows)

    assert sorted(builders.bakes) == [(None, "a1.0"), (None, "a1.0"), (None, "b"), (None, "b")]
    assert (first.state, first.cached, first.recorded, first.exit_code) == ("built", "1 of 2 steps", "not recorded", 0)
    assert [first.digest, second.digest] == [image_layout.read_digest(row.layout) for row in rows]
    assert sorted(builders.loaded) == sorted([first.image, second.image])
    assert (builders.engines, builders.partial()) == (1, [])

    assert states(many.build_all(rows)) == {"a1.0": "up to date", "b": "up to date"}
    assert (len(builders.bakes), builders.engines) == (4, 1)


def test_a_few_rows_are_built_at_a_time(builders: Builders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "AT_ONCE", 2)
    outcomes = many.build_all([builders.job(name, number) for number, name in enumerate("abcde")])

    assert set(states(outcomes).values()) == {"built"}
    assert builders.most_running == 2


def test_rows_with_one_recipe_share_a_foundation_that_is_made_once(builders: Builders) -> None:
    rows = [builders.job("a"), builders.job("b"), builders.job("c", 3)]
    outcomes = many.build_all(rows)

    assert sorted(outcome.cached for outcome in outcomes[:2]) == ["1 of 2 steps", "foundation"]
    assert outcomes[2].cached == "1 of 2 steps"
    assert len(builders.bakes) == 5
    assert all(image_layout.is_sound_layout(row.foundation) for row in rows)
    assert rows[0].foundation.name == rows[1].foundation.name

    builders.bakes.clear()
    many.build_all(rows[:2], many.ManyOptions(no_cache=True))
    assert len(builders.bakes) == 4


def test_a_row_that_fails_stops_no_other(builders: Builders, capsys: pytest.CaptureFixture[str]) -> None:
    builders.fails = {"b": FAILS, "c": FAILS}
    outcomes = many.build_all([builders.job(name, number) for number, name in enumerate("abcd")])

    assert states(outcomes) == {"a": "built", "b": "failed", "c": "failed", "d": "built"}
    assert [outcome.exit_code for outcome in outcomes] == [0, BuildError.code, BuildError.code, 0]
    assert "b: error: docker buildx bake: ERROR: exit code: 3" in capsys.readouterr().err
    assert builders.partial() == []


def test_a_row_whose_inputs_cannot_be_fetched_fails_before_the_bake(builders: Builders) -> None:
    builders.fetch_fails = {"a": FetchError("a wheel: 404", hint="lock again")}
    failed, built = many.build_all([builders.job("a", 1), builders.job("b", 2)])

    assert (failed.state, failed.why, failed.hint, failed.exit_code) == ("failed", "a wheel: 404", "lock again", 4)
    assert built.state == "built"
    assert builders.bakes == [(None, "b")] * 2


def test_a_row_whose_files_cannot_be_read_stops_no_other(builders: Builders) -> None:
    builders.fetch_fails = {"a": OSError(errno.EIO, "Input/output error", "/cache/a.whl")}
    failed, built = many.build_all([builders.job("a", 1), builders.job("b", 2)])

    assert (failed.state, failed.why) == ("failed", "/cache/a.whl: Input/output error")
    assert "check the disk" in failed.hint
    assert built.state == "built"


def test_another_digest_than_the_recorded_one_is_told(builders: Builders) -> None:
    rows = [builders.job(name, number) for number, name in enumerate("abc")]
    digests = [outcome.digest for outcome in many.build_all(rows)]
    shutil.rmtree(builders.local.cache)
    for row, recorded in zip(rows, [digests[0], f"sha256:{'0' * 64}", None], strict=True):
        row.__dict__["recorded_digest"] = recorded

    record_states = [outcome.recorded for outcome in many.build_all(rows)]
    assert record_states == ["as committed", "differs", "not recorded"]


def test_ctrl_c_leaves_no_partial_layout_and_no_lock(builders: Builders) -> None:
    builders.is_hanging = True
    rows = [builders.job(name, number) for number, name in enumerate("abc")]

    def interrupt() -> None:
        if builders.hangs.wait(30):
            signal.raise_signal(signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        many.build_all(rows)

    assert builders.partial() == []
    assert not any(row.foundation.exists() for row in rows)
    for row in rows:
        folder = row.layout.parent
        with hold_lock_file(folder.parent / f"{folder.name}.lock"):  # would wait if it were held
            pass
    builders.is_hanging = False
    assert set(states(many.build_all(rows)).values()) == {"built"}


def test_an_engine_that_is_missing_is_one_error_for_all(builders: Builders, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(**_: Any) -> None:
        builders.engines += 1
        raise EngineError("no engine", hint="install one")

    monkeypatch.setattr(daemon, "ensure_engine", absent)
    with pytest.raises(EngineError, match="no engine") as error:
        many.build_all([builders.job("a", 1), builders.job("b", 2)])
    assert (error.value.hint, builders.engines) == ("install one", 1)


def test_builders_share_the_rows_and_each_row_stays_with_one_that_has_its_platform(builders: Builders) -> None:
    rows = [builders.job(name, number) for number, name in enumerate("ab")]
    arm = [builders.job("arm1", 8, ARM64), builders.job("arm2", 9, ARM64)]
    outcomes = many.build_all([*rows, *arm], many.ManyOptions(["one", "both"]))

    assert set(states(outcomes).values()) == {"built"}
    builder_by_row = {row: builder for builder, row in builders.bakes}
    assert len(set(builders.bakes)) == len(rows) + len(arm)
    assert [builder_by_row["arm1"], builder_by_row["arm2"]] == ["both", "both"]
    assert "one" in {builder_by_row["a"], builder_by_row["b"]}


def test_a_platform_that_no_builder_has_fails_that_row_alone(builders: Builders) -> None:
    for names in ((), ("one",), ("one", "two")):
        refused, built = many.build_all([builders.job("arm", 1, ARM64), builders.job("a", 2)], many.ManyOptions(names))
        assert (refused.state, refused.exit_code) == ("failed", EngineError.code)
        assert refused.why.startswith(f"{ARM64}: no builder has a node for it: ")
        assert built.state in {"built", "up to date"}


def test_nothing_to_build_asks_for_no_engine(builders: Builders) -> None:
    assert many.build_all([]) == []
    assert builders.engines == 0
