"""Rows that are built at once: one bake for all, no row stops another, and what comes of each."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from drydock.build import build, buildx, many
from drydock.build.build_job import Job
from drydock.build.build_progress import Log
from drydock.build.buildx import Ended
from drydock.core.errors import BuildError, EngineError, FetchError
from drydock.core.files import hold_lock_file
from drydock.engine import daemon, image_loading
from drydock.oci import image_layout as oci
from tests.support.fake_buildkit import BuildKit
from tests.support.local_registry import PLATFORMS, VARIANT, LocalRepository

AMD64, ARM64 = PLATFORMS
FAILS = BuildError("docker buildx bake: ERROR: exit code: 3", hint="see above")


class Builders:
    """Rows of a repository, and what builders were asked to bake."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.local = LocalRepository(folder, platforms=PLATFORMS)
        shutil.rmtree(self.local.cache)
        self.bakes: list[list[tuple[str | None, list[str]]]] = []
        self.fails: dict[str, BaseException] = {}
        self.fetch_fails: dict[str, Exception] = {}
        self.loaded: list[str] = []
        self.engines = 0
        self.buildkit = BuildKit([b"torch", b"vllm"], [b"entrypoint"])
        patch.setenv("DRYDOCK_CACHE", str(folder / "cache"))
        patch.setattr(daemon, "ensure_engine", self._ensure)
        patch.setattr(
            daemon, "list_builder_platforms", lambda name: frozenset(PLATFORMS if name == "both" else [AMD64])
        )
        patch.setattr(many.resolve, "is_native_platform", lambda platform: platform == AMD64)
        patch.setattr(build, "fetch_contexts", self._fetch)
        patch.setattr(buildx, "bake_together", self._bake)
        patch.setattr(image_loading, "has_image_if_running", lambda image, _: image in self.loaded)
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

    def _fetch(self, job: Job, *_: Any) -> dict[str, str]:
        if job.variant.id in self.fetch_fails:
            raise self.fetch_fails[job.variant.id]
        return {"entrypoints": "/e", "base": "oci-layout:///b@sha256:1"}

    def _bake(self, plans: Sequence[tuple[Any, str | None]], notice: Callable[[Log], object], **_: Any) -> list[Ended]:
        self.bakes.append([(builder, [*plan["target"]]) for plan, builder in plans])
        return [self._one(plan["target"], notice) for plan, _ in plans]

    def _one(self, targets: Mapping[str, Any], notice: Callable[[Log], object]) -> Ended:
        build_log = Log([*targets])
        for name in targets:
            if name in self.fails:
                if isinstance(error := self.fails[name], KeyboardInterrupt):
                    raise error
                return Ended(build_log, FAILS, name)
            self.buildkit({"target": {name: targets[name]}})
            target_progress = build_log.targets[name]
            target_progress.now, target_progress.exported, target_progress.ended = "RUN", True, time.monotonic()
            target_progress.done |= {"foundation 1/2": False, "foundation 2/2": True}
            notice(build_log)
        return Ended(build_log, None, "")

    def partial(self) -> list[Path]:
        """Return what is left of broken-off builds."""
        return [path for kind in ("images", "foundations") for path in self.local.cache.glob(f"{kind}/*/*/.*")]


@pytest.fixture
def builders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builders:
    return Builders(tmp_path, monkeypatch)


def states(outcomes: Sequence[many.Outcome]) -> dict[str, str]:
    return {outcome.variant: outcome.state for outcome in outcomes}


def test_one_bake_makes_all_foundations_and_one_all_images(builders: Builders) -> None:
    rows = [builders.job("a1.0", 1), builders.job("b", 2)]
    first, second = many.build_all(rows)

    assert builders.bakes == [[(None, ["a1_0", "b"])]] * 2
    assert (first.state, first.cached, first.recorded, first.exit_code) == ("built", "1 of 2 steps", "not recorded", 0)
    assert [first.digest, second.digest] == [oci.read_digest(row.layout) for row in rows]
    assert builders.loaded == [first.image, second.image]
    assert (builders.engines, builders.partial()) == (1, [])

    assert states(many.build_all(rows)) == {"a1.0": "up to date", "b": "up to date"}
    assert (len(builders.bakes), builders.engines) == (2, 1)


def test_rows_with_one_recipe_share_a_foundation_that_is_made_once(builders: Builders) -> None:
    rows = [builders.job("a"), builders.job("b"), builders.job("c", 3)]
    outcomes = many.build_all(rows)

    assert [names for ((_, names),) in builders.bakes] == [["a", "c"], ["a", "b", "c"]]
    assert [outcome.cached for outcome in outcomes] == ["1 of 2 steps", "foundation", "1 of 2 steps"]
    assert oci.is_sound_layout(rows[1].foundation)
    assert rows[0].foundation.name == rows[1].foundation.name

    many.build_all(rows[:2], many.ManyOptions(no_cache=True))
    assert [names for ((_, names),) in builders.bakes[2:]] == [["a", "b"], ["a", "b"]]


def test_a_row_that_fails_stops_no_other_and_the_rest_is_baked_at_once_each_by_itself(
    builders: Builders, capsys: pytest.CaptureFixture[str]
) -> None:
    builders.fails = {"b": FAILS, "c": FAILS}
    outcomes = many.build_all([builders.job(name, number) for number, name in enumerate("abcd")])

    assert states(outcomes) == {"a": "built", "b": "failed", "c": "failed", "d": "built"}
    # a was exported before b failed
    assert builders.bakes == [[(None, [*"abcd"])], [(None, ["c"]), (None, ["d"])], [(None, ["a", "d"])]]
    assert [outcome.exit_code for outcome in outcomes] == [0, BuildError.code, BuildError.code, 0]
    assert "going on with c, d" in capsys.readouterr().err
    assert builders.partial() == []


def test_a_row_whose_inputs_cannot_be_fetched_fails_before_the_bake(builders: Builders) -> None:
    builders.fetch_fails = {"a": FetchError("a wheel: 404", hint="lock again")}
    failed, built = many.build_all([builders.job("a", 1), builders.job("b", 2)])

    assert (failed.state, failed.why, failed.hint, failed.exit_code) == ("failed", "a wheel: 404", "lock again", 4)
    assert built.state == "built"
    assert [names for ((_, names),) in builders.bakes] == [["b"], ["b"]]


def test_another_digest_than_the_recorded_one_is_told(builders: Builders) -> None:
    rows = [builders.job(name, number) for number, name in enumerate("abc")]
    digests = [outcome.digest for outcome in many.build_all(rows)]
    shutil.rmtree(builders.local.cache)
    for row, recorded in zip(rows, [digests[0], f"sha256:{'0' * 64}", None], strict=True):
        row.__dict__["recorded_digest"] = recorded

    record_states = [outcome.recorded for outcome in many.build_all(rows)]
    assert record_states == ["as committed", "differs", "not recorded"]


def test_ctrl_c_leaves_no_partial_layout_and_no_lock(builders: Builders) -> None:
    builders.fails = {"b": KeyboardInterrupt()}
    rows = [builders.job(name, number) for number, name in enumerate("abc")]
    with pytest.raises(KeyboardInterrupt):
        many.build_all(rows)

    assert builders.partial() == []
    assert not any(row.foundation.exists() for row in rows)
    for row in rows:
        folder = row.layout.parent
        with hold_lock_file(folder.parent / f"{folder.name}.lock"):  # would wait if it were held
            pass
    builders.fails = {}
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
    assert len(builders.bakes) == 2
    for bake in builders.bakes:
        where = {name: builder for builder, names in bake for name in names}
        assert [where["arm1"], where["arm2"]] == ["both", "both"]
        assert {where["a"], where["b"]} & {"one"}
    assert [sorted(names) for _, names in builders.bakes[0]] == [sorted(names) for _, names in builders.bakes[1]]


def test_a_platform_that_no_builder_has_fails_that_row_alone(builders: Builders) -> None:
    for names in ((), ("one",), ("one", "two")):
        refused, built = many.build_all([builders.job("arm", 1, ARM64), builders.job("a", 2)], many.ManyOptions(names))
        assert (refused.state, refused.exit_code) == ("failed", EngineError.code)
        assert refused.why.startswith(f"{ARM64}: no builder has a node for it: ")
        assert built.state in {"built", "up to date"}


def test_nothing_to_build_asks_for_no_engine(builders: Builders) -> None:
    assert many.build_all([]) == []
    assert builders.engines == 0
