"""Where recipes are read, and what a project's images get of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.attest.components import published_recipes
from drydock.build import render
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, StaleError
from drydock.core.project import Project
from drydock.inputs.store import Store
from drydock.lock.recipes import recipe_files, recipe_texts, recipes_lock

RECIPE = """
meta: {date_updated: 2026-11-01}
model: {model_id: abacus/Abacus-9, base_args: [--block-size, '32']}
"""
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a folder of recipes."""

    def write(**texts: str) -> Path:
        folder = tmp_path / "recipes"
        for name, text in {"Abacus-9": RECIPE, **texts}.items():
            path = folder / "models" / "abacus" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return folder

    return write


def project_of(folder: Path, settings: str = "") -> Project:
    root = folder / "mine"
    root.mkdir(exist_ok=True)
    (root / "drydock.yaml").write_text(f"schema: 1\nname: mine\n{settings}")
    return Project(root, (DRYDOCK.root,))


def commit(folder: Path) -> str:
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder))
    env = {"GIT_COMMITTER_DATE": "2026-11-02T23:30:00-0800", "PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null"}
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "a")):
        subprocess.run((*git, *words), check=True, env=env)
    return subprocess.run(
        (*git, "rev-parse", "HEAD"), check=True, env=env, capture_output=True, text=True
    ).stdout.strip()


def test_a_commit_of_a_clone_is_proven_and_its_repository_was_not_asked(write: Write, tmp_path: Path) -> None:
    folder = write()
    name = commit(folder)
    recipes = recipe_files.read_named(f"{folder}@{name}", recipe_texts.UPSTREAM, Store(tmp_path / "store"), {})
    assert (recipes.repository, recipes.commit) == (recipe_texts.UPSTREAM, name)
    assert recipes.date == "2026-11-02", "the day where it was committed"
    assert recipes.texts["models/abacus/Abacus-9.yaml"] == RECIPE.encode()
    assert "was not asked" in recipes.unverified


def test_a_repository_has_its_newest_commit(write: Write, tmp_path: Path) -> None:
    folder = write()
    name = commit(folder)
    recipes = recipe_files.read_newest(folder.as_uri(), Store(tmp_path / "store"), {"PATH": "/usr/bin:/bin"})
    assert (recipes.commit, recipes.unverified) == (name, "")


@pytest.mark.parametrize("address", ["/nowhere", "https://example.org/x@main", "recipes@abc"])
def test_what_names_no_recipes_is_an_error(address: str, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write().parent)
    with pytest.raises(InputError, match="--from"):
        recipe_files.read_named(address, "", Store(Path("store")), {})


def test_links_and_other_names_are_not_read(write: Write, tmp_path: Path) -> None:
    folder = write()
    (folder / "models/abacus/link.yaml").symlink_to("/etc/passwd")
    (folder / "models/abacus/a b.yaml").write_text(RECIPE)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/x.yaml").write_text(RECIPE)
    (folder / "models/linked").symlink_to(tmp_path / "other")
    assert recipe_files.read_folder(folder).texts.keys() == {"models/abacus/Abacus-9.yaml"}


def test_a_project_has_the_recipes_that_it_took(write: Write, tmp_path: Path) -> None:
    project = project_of(tmp_path, "recipes: ours\n")
    recipes = recipe_files.read_folder(write(Broken="model: &a {}"))._replace(repository="ours")
    assert len(recipes_lock.write_recipes(project, recipes)) == 2
    facts = json.loads(recipes_lock.read_facts(project))
    assert facts["models"] == {
        "abacus/Abacus-9": {"recipe": "abacus/Abacus-9", "date": "2026-11-01", "flags": {"--block-size": "32"}}
    }
    lock = recipes_lock.read_lock(project)
    assert lock
    assert (lock.verified, lock.date, lock.licence) == (False, "2026-11-01", "")
    assert lock.skipped == {
        "models/abacus/Broken.yaml": "models/abacus/Broken.yaml:1:8: anchors and aliases are not allowed; write it out"
    }
    assert recipes_lock.write_recipes(project, recipes) == []
    image = render.image_files(project, find_variant(read_matrix(project), "cpu"))
    assert image["recipes.json"] == (project.root / "templates/recipes.json").read_bytes()


def test_a_folder_without_any_recipe_changes_nothing(write: Write, tmp_path: Path) -> None:
    project = project_of(tmp_path)
    folder = write(**{"Abacus-9": "- a"})
    with pytest.raises(InputError, match="found no recipes") as caught:
        recipes_lock.write_recipes(project, recipe_files.read_folder(folder))
    assert "expected a recipe" in caught.value.problems[1]
    assert not (project.root / "templates").exists()


def test_a_project_may_have_none(tmp_path: Path) -> None:
    assert recipes_lock.read_facts(project_of(tmp_path, "recipes: none\n")) == "{}\n"
    assert recipes_lock.read_facts(project_of(tmp_path)) == recipes_lock.read_facts(DRYDOCK)


def test_recipes_of_another_place_than_the_project_names_are_stale(tmp_path: Path) -> None:
    with pytest.raises(StaleError, match=r"drydock\.yaml names https://example\.org/ours"):
        recipes_lock.read_facts(project_of(tmp_path, "recipes: https://example.org/ours\n"))


def test_facts_that_were_edited_are_stale(write: Write, tmp_path: Path) -> None:
    project = project_of(tmp_path)
    recipes_lock.write_recipes(project, recipe_files.read_folder(write()))
    (project.root / "templates/recipes.json").write_text("{}")
    with pytest.raises(StaleError, match="edited by hand"):
        recipes_lock.read_facts(project)


@pytest.mark.checkout
def test_drydocks_own_are_those_of_vllm_and_the_bill_of_materials_has_their_licence() -> None:
    lock = recipes_lock.read_lock(DRYDOCK)
    assert lock
    (part,) = published_recipes(lock)
    assert (part.source, part.version, part.licence) == (recipe_texts.UPSTREAM, lock.commit, "Apache-2.0")
    assert len(json.loads(recipes_lock.read_facts(DRYDOCK))["models"]) > 300
