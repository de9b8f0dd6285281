"""What a checkout keeps, and what a build in another one may remove."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drydock.build import build, checkouts, foundation
from drydock.core.errors import InputError
from drydock.engine import daemon, image_loading
from drydock.oci import image_layout
from tests.support import layouts
from tests.support.local_registry import PLATFORMS, VARIANT, LocalRepository

NAME = "drydock/cpu"
AMD64, ARM64 = PLATFORMS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkouts."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path / "one", tmp_path / "two"


class Engine:
    """Removes images, unless a container uses them."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.used: set[str] = set()

    def remove(self, name: str) -> bool:
        self.removed += [] if name in self.used else [name]
        return name not in self.used


def test_a_build_removes_what_its_own_checkout_had_before(both: tuple[Path, Path]) -> None:
    (one, two), engine = both, Engine()
    checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:a"}, engine.remove)
    checkouts.keep_build(two, NAME, AMD64, {"image": f"{NAME}:b"}, engine.remove)
    assert engine.removed == []
    assert (checkouts.find_newest_image(one, NAME, AMD64), checkouts.find_newest_image(two, NAME, AMD64)) == (
        f"{NAME}:a",
        f"{NAME}:b",
    )
    checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:c"}, engine.remove)
    assert engine.removed == [f"{NAME}:a"]


def test_an_image_that_two_checkouts_built_stays_until_neither_keeps_it(both: tuple[Path, Path]) -> None:
    (one, two), engine = both, Engine()
    for root in both:
        checkouts.keep_build(root, NAME, AMD64, {"image": f"{NAME}:a"}, engine.remove)
    checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:b"}, engine.remove)
    assert (engine.removed, checkouts.list_kept_names()[f"{NAME}:a"]) == ([], [str(two)])
    checkouts.keep_build(two, NAME, AMD64, {"image": f"{NAME}:b"}, engine.remove)
    assert engine.removed == [f"{NAME}:a"]


def test_an_image_that_a_container_uses_is_removed_after_a_later_build(both: tuple[Path, Path]) -> None:
    (one, _), engine = both, Engine()
    engine.used = {f"{NAME}:a"}
    for tag in "ab":
        checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:{tag}"}, engine.remove)
    assert (engine.removed, f"{NAME}:a" in checkouts.list_kept_names()) == ([], False)
    engine.used = set()
    checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:b"}, engine.remove)
    checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:b"}, engine.remove)
    assert engine.removed == [f"{NAME}:a"]


def test_each_platform_has_its_image_and_a_build_that_loads_none_leaves_it(both: tuple[Path, Path]) -> None:
    (one, _), engine = both, Engine()
    checkouts.keep_build(one, NAME, ARM64, {"image": f"{NAME}:arm"}, engine.remove)
    assert checkouts.find_newest_image(one, NAME, AMD64) == f"{NAME}:arm"
    checkouts.keep_build(one, NAME, AMD64, {"image": f"{NAME}:amd"}, engine.remove)
    checkouts.keep_build(one, NAME, AMD64, {"layout": "images/x"})
    assert checkouts.find_newest_image(one, NAME, AMD64) == f"{NAME}:amd"
    assert (engine.removed, checkouts.find_newest_image(one, "drydock/other", AMD64)) == ([], "")


def test_a_checkout_that_is_gone_keeps_nothing(both: tuple[Path, Path]) -> None:
    checkouts.keep_build(both[0], NAME, AMD64, {"image": f"{NAME}:a"})
    both[0].rmdir()
    assert checkouts.list_kept_names() == {}


def test_a_damaged_note_is_named(cache: Path, both: tuple[Path, Path]) -> None:
    checkouts.keep_build(both[0], NAME, AMD64, {"image": f"{NAME}:a"})
    (note,) = (cache / "checkouts").glob("*.json")
    note.write_text("{")
    with pytest.raises(InputError, match=str(note)):
        checkouts.list_kept_names()


def test_a_build_in_one_checkout_leaves_the_layouts_and_the_image_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, loaded = Engine(), []
    monkeypatch.setattr(daemon, "ensure_engine", lambda **_: None)
    monkeypatch.setattr(build, "fetch_contexts", lambda *_, **__: {"entrypoints": ""})
    monkeypatch.setattr(build, "bake_file", lambda *_: {})
    monkeypatch.setattr(foundation, "build_foundation", lambda _, layout, __: layouts.write(layout, b""))
    monkeypatch.setattr(image_loading, "has_complete_image", lambda *_: False)
    monkeypatch.setattr(image_loading, "list_names_if_running", lambda *_: frozenset())
    monkeypatch.setattr(image_loading, "load_layout", lambda _, image, *__: loaded.append(image))
    monkeypatch.setattr(image_loading, "tag_latest", lambda image: loaded.append(f"latest is {image}"))
    monkeypatch.setattr(image_loading, "remove_image_name", engine.remove)
    here, there = (LocalRepository(tmp_path / name, platforms=(AMD64,), salt=name) for name in ("here", "there"))

    def built(local: LocalRepository) -> build.Built:
        built_image = build.build_image(local.job(AMD64))
        assert loaded[-1] == f"latest is {built_image.image}"
        return built_image

    shutil.copytree(here.cache, tmp_path / "cache", dirs_exist_ok=True)
    first = built(here)
    shutil.copytree(there.cache, tmp_path / "cache", dirs_exist_ok=True)
    second = built(there)
    assert first.layout != second.layout
    assert image_layout.is_sound_layout(Path(first.layout))
    assert (built(here).image, engine.removed) == (first.image, [])
    with (there.root / "entrypoints" / "verbs" / "dispatch.py").open("a") as module:
        module.write("\n# an edit\n")
    there.forget(AMD64)
    monkeypatch.setattr(
        foundation, "complete_image", lambda _, layout, *__: layouts.write(layout, b"edited", suffix="")
    )
    third = built(there)

    assert engine.removed == [second.image]
    assert (Path(first.layout).is_dir(), Path(second.layout).is_dir(), Path(third.layout).is_dir()) == (
        True,
        False,
        True,
    )
    assert checkouts.find_newest_image(here.root, f"drydock/{VARIANT}", AMD64) == first.image
