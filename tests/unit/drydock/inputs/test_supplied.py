"""Files that the operator supplies, and replacements for named contexts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.build.build_job import prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, InputError
from drydock.core.project import Project
from drydock.inputs import overrides, supplied
from drydock.inputs.store import Store
from drydock.lock import resolution
from drydock.model.variant import Supplied

TOPSRIDER = Supplied(
    name="topsrider",
    patterns=("TopsRider_*.run", "*.whl"),
    install="wheels",
    how="ask the vendor's support",
    source="a test",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    supplied_files = tmp_path / "supplied"
    supplied_files.mkdir()
    for name in ("TopsRider_1.run", "a.whl", "b.whl", "readme.txt"):
        (supplied_files / name).write_text(name)
    return supplied_files


def test_matching_files_are_pinned_and_stored(folder: Path, store: Store) -> None:
    pins = supplied.take_supplied(TOPSRIDER, folder, store)
    context = supplied.make_context_folder(TOPSRIDER, pins, store)

    assert [pin.filename for pin in pins] == ["TopsRider_1.run", "a.whl", "b.whl"]
    assert sorted(path.name for path in context.iterdir()) == ["TopsRider_1.run", "a.whl", "b.whl"]
    assert (context / "a.whl").read_text() == "a.whl"


def test_supplied_wheels_are_read_when_they_are_locked(
    tmp_path: Path, store: Store, make_wheel: Callable[..., tuple[str, bytes]]
) -> None:
    (tmp_path / "TopsRider_1.run").write_text("installer")
    (tmp_path / "a-1.0-py3-none-any.whl").write_bytes(make_wheel("a", "1.0")[1])
    supplied.check_pins(supplied.take_supplied(TOPSRIDER, tmp_path, store), store)
    (tmp_path / "b-1.0+vendor-py3-none-any.whl").write_bytes(make_wheel("b", "1.0")[1])
    with pytest.raises(InputError, match=r"b-1\.0\+vendor-py3-none-any\.whl: its METADATA has version 1\.0"):
        supplied.check_pins(supplied.take_supplied(TOPSRIDER, tmp_path, store), store)


def test_every_pattern_without_a_match_is_named_with_a_hint(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file matches TopsRider_\*\.run") as caught:
        supplied.take_supplied(TOPSRIDER, tmp_path, store)
    assert len(caught.value.problems) == 2
    assert caught.value.hint == "ask the vendor's support"


def test_a_pinned_file_missing_from_the_store_is_named(folder: Path, store: Store, tmp_path: Path) -> None:
    pins = supplied.take_supplied(TOPSRIDER, folder, store)
    with pytest.raises(FetchError, match=r"a\.whl is pinned but not in the store"):
        supplied.make_context_folder(TOPSRIDER, pins, Store(tmp_path / "another store"))


def test_a_pinned_file_comes_from_a_folder_of_the_machine(folder: Path, store: Store, tmp_path: Path) -> None:
    pins = supplied.take_supplied(TOPSRIDER, folder, store)
    (tmp_path / "other files").mkdir()
    env = {supplied.VARIABLE: f"{tmp_path / 'other files'}:{folder}"}
    (tmp_path / "another").mkdir()

    made = supplied.make_context_folder(TOPSRIDER, pins, Store(tmp_path / "another"), env)

    assert sorted(path.name for path in made.iterdir()) == ["TopsRider_1.run", "a.whl", "b.whl"]
    (folder / "a.whl").write_text("another")
    with pytest.raises(FetchError, match=r"a\.whl"):
        supplied.make_context_folder(TOPSRIDER, pins, Store(tmp_path / "a third"), env)
    with pytest.raises(InputError, match="DRYDOCK_SUPPLIED: /nowhere: no such folder"):
        supplied.match_machine_folders([TOPSRIDER], {supplied.VARIABLE: f"{folder}:/nowhere"})


def test_arguments_become_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert overrides.parse_contexts(["base=docker-image://debian:12", "wheels=w"]) == {
        "base": "docker-image://debian:12",
        "wheels": str(tmp_path / "w"),
    }


@pytest.mark.parametrize("word", ["base", "=x", "base="])
def test_an_argument_without_name_and_value_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="expected NAME=FOLDER"):
        overrides.parse_contexts([word])


def test_an_unknown_context_and_a_missing_folder_are_refused() -> None:
    job = prepare_job(DRYDOCK, "cpu")
    pins = job.pins
    with pytest.raises(InputError, match=r"cpu-vllm0\.32 has no such context") as caught:
        overrides.resolve_contexts(job.variant, pins, {"whels": "/tmp"})
    assert caught.value.hint == "did you mean 'wheels'?"
    with pytest.raises(InputError, match="no such folder"):
        overrides.resolve_contexts(job.variant, pins, {"wheels": "/nowhere"})


def test_files_that_do_not_match_the_lock_are_refused(
    folder: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    job = prepare_job(DRYDOCK, "cpu")
    variant = job.variant.model_copy(update={"supplied": (TOPSRIDER,)})
    pinned = supplied.take_supplied(TOPSRIDER, folder, store)
    pins = job.pins.model_copy(update={"supplied": {"topsrider": pinned}})
    replacements = {"topsrider": str(folder)}
    assert overrides.resolve_contexts(variant, pins, replacements) == {}
    (folder / "a.whl").write_text("another")
    with pytest.raises(InputError, match="do not match the lock") as caught:
        overrides.resolve_contexts(variant, pins, replacements)
    assert "./inv lock" in caught.value.hint


def test_a_replacement_is_identified_by_its_content(folder: Path) -> None:
    first = overrides.identify_context(str(folder))
    (folder / "a.whl").touch()
    assert overrides.identify_context(str(folder)) == first
    (folder / "a.whl").chmod(0o755)
    assert overrides.identify_context(str(folder)) != first
    assert overrides.identify_context("docker-image://debian:12") == "docker-image://debian:12"


def test_two_installers_are_refused(folder: Path, store: Store) -> None:
    (folder / "TopsRider_2.run").write_text("another")
    with pytest.raises(InputError, match=r"expected one installer: TopsRider_1\.run, TopsRider_2\.run"):
        supplied.take_supplied(
            TOPSRIDER.model_copy(update={"install": "run", "patterns": ("TopsRider_*.run",)}), folder, store
        )


def test_folders_are_ignored(folder: Path, store: Store) -> None:
    (folder / "c.whl").mkdir()
    assert len(supplied.take_supplied(TOPSRIDER, folder, store)) == 3


def test_files_for_a_context_without_supplied_files_are_refused(tmp_path: Path) -> None:
    variant = prepare_job(DRYDOCK, "cpu").variant
    with pytest.raises(InputError, match=r"--context wheels: cpu-vllm0\.32 takes no supplied files of that name"):
        resolution.resolve_and_write(Project(tmp_path), [variant], {"wheels": tmp_path})
    with pytest.raises(InputError) as caught:
        supplied.refuse_foreign([variant.model_copy(update={"supplied": (TOPSRIDER,)})], {"topsrides": tmp_path})
    assert caught.value.hint == "did you mean 'topsrider'?"


def test_a_replacement_is_identified_by_its_links_and_a_layout_by_its_index(tmp_path: Path) -> None:
    def identities(link: str, index: str) -> tuple[str, str]:
        folder = tmp_path / link
        (folder / "tree").mkdir(parents=True, exist_ok=True)
        (folder / "tree" / "link").unlink(missing_ok=True)
        (folder / "tree" / "link").symlink_to(link)
        (tmp_path / "index.json").write_text(index)
        return overrides.identify_context(str(folder)), overrides.identify_context(f"oci-layout://{tmp_path}@sha256:0")

    first, again, other_folder = identities("a", "1"), identities("a", "2"), identities("b", "1")
    assert (first[0] == again[0], first[1] == other_folder[1]) == (True, True)
    assert (first[0] != other_folder[0], first[1] != again[1]) == (True, True)


def test_a_pointer_of_git_lfs_is_no_installer(folder: Path, store: Store) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'7' * 64}\nsize 12345\n"
    (folder / "TopsRider_1.run").write_text(pointer)

    with pytest.raises(InputError, match=r"TopsRider_1\.run: found a pointer of Git LFS") as error:
        supplied.take_supplied(TOPSRIDER, folder, store)

    assert "git lfs pull" in error.value.hint
