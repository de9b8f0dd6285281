"""`./inv recipes` from a made-up repository: one command, after which plans follow it, and never more than they may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drydock.ci.proposal import RECIPES, Server
from drydock.compare import recipe_plans
from drydock.compare.recipe_plans import PlanChange, RecipesUpdate, format_update
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.run import entrypoint
from drydock.run.recorded_host import CONFIGURATIONS
from drydock.topology.size import Recorded
from drydock.verbs.ci_propose_verb import propose_recipes
from drydock.verbs.recipes_verb import RecipesOptions, update_recipes
from tests.support.git import git
from tests.support.hosts.trees import HOSTS

HOST, MODEL = "cuda-h100-8x", "Qwen/Qwen3-8B"
RECIPE = """\
meta:
  date_updated: 2026-11-01
  hardware: {{h100: verified}}
model:
  model_id: {model}
  base_args: [{args}]
  base_env: {{{env}}}
"""
HOSTILE = (
    "--trust-remote-code, --chat-template, /etc/passwd, --model, evil/other, --host, 10.0.0.9, --tokenizer, evil/t, "
    "--api-key, k, --middleware, evil.Run, --worker-cls, evil.Worker, --load-format, 'a/b', --no-such-flag-of-vllm, x, "
    '--speculative-config, \'{"method": "eagle3", "model": "/srv/draft"}\''
)
HOSTILE_ENV = "LD_PRELOAD: /tmp/x.so, HF_ENDPOINT: http://10.0.0.9, VLLM_PLUGINS: evil, PATH: /tmp"


class Repository:
    """A git repository of recipes, and a project over drydock that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "recipes"
        self.folder.mkdir()
        git(self.folder, "init", "--quiet")
        (folder / "mine").mkdir()
        (folder / "mine" / "drydock.yaml").write_text(
            f"schema: 1\nname: mine\nrecipes: {self.folder.as_uri()}\n", encoding="utf-8"
        )
        self.project = Project(folder / "mine", (DRYDOCK.root,))
        self.hosts = folder / "hosts"
        (self.hosts / HOST).mkdir(parents=True)
        (self.hosts / HOST / "host.json").write_bytes((HOSTS / HOST / "host.json").read_bytes())

    def publish(self, args: str, env: str = "", model: str = MODEL) -> str:
        """Commit a recipe; return the commit."""
        path = self.folder / "models" / f"{model}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RECIPE.format(model=model, args=args, env=env), encoding="utf-8")
        git(self.folder, "add", ".")
        git(self.folder, "commit", "--quiet", "-m", "a recipe")
        return git(self.folder, "rev-parse", "HEAD")

    def take(self, address: str = "") -> RecipesUpdate:
        return update_recipes(self.project, RecipesOptions(from_=address, root=str(self.hosts)))

    def plan(self, *words: str) -> Any:
        """Plan with the recipes that the project has taken."""
        variant = find_variant(read_matrix(self.project), "cuda")
        root = str(self.hosts / HOST / "host.json")
        return entrypoint.answer_for_container(
            self.project, variant, ("plan", "--json", "--root", root, MODEL, *words), {}
        )


@pytest.fixture
def quick(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Choose the row of the host without asking every row, which takes 20 s."""
    row = find_variant(read_matrix(DRYDOCK), "cuda")
    machine = Recorded(HOST, repository.hosts / HOST / "host.json", row)
    monkeypatch.setattr("drydock.topology.size.list_recorded_machines", lambda _project, _hosts: [machine])
    return repository


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Repository(tmp_path)


def settings(plan: Any) -> dict[str, tuple[str, str]]:
    """Return setting → value and origin."""
    return {reason["setting"]: (reason["value"], reason["origin"]) for reason in plan["reasons"]}


def recipe_findings(plan: Any) -> dict[str, str]:
    return {finding["id"]: finding["found"] for finding in plan["findings"] if finding["id"].startswith("PLAN-16")}


def test_few_plans_are_compared_of_many_models_and_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(recipe_plans, "log", logged.append)
    row = find_variant(read_matrix(DRYDOCK), "cuda")
    hosts = [Recorded(f"host-{number}", HOSTS / HOST / "host.json", row) for number in range(40)]
    models = sorted(json.loads(CONFIGURATIONS.read_bytes()))

    for count in (1, 7, len(models)):
        questions = recipe_plans.list_recipe_questions(hosts, models[:count])

        assert {model for _, model in questions} == {*models[: min(count, recipe_plans.MOST_PLANS)]}
        assert len({(host.name, model) for host, model in questions}) == len(questions) <= recipe_plans.MOST_PLANS
        assert len({host.name for host, _ in questions}) == 40
    assert len(logged) == 2


def test_one_command_takes_a_recipe_and_the_plan_follows(repository: Repository) -> None:
    first = repository.publish("--block-size, '32'", "VLLM_USE_DEEP_GEMM: '0'")
    update = repository.take()

    assert (update.commit, MODEL in update.models) == (first, True)
    assert {path.name for path in update.files} == {"recipes.json", "recipes.lock.json"}
    assert PlanChange(MODEL, HOST, "--block-size", "", "32") in update.plans
    assert settings(repository.plan())["--block-size"] == ("32", "recipe")
    assert settings(repository.plan("--block-size", "64"))["--block-size"] == ("64", "command line")
    assert "--block-size" not in settings(repository.plan("--no-recipe"))

    second = repository.publish("--block-size, '128'")
    update = repository.take()

    assert (update.commit, update.models) == (second, (MODEL,))
    assert PlanChange(MODEL, HOST, "--block-size", "32", "128") in update.plans
    assert PlanChange(MODEL, HOST, "VLLM_USE_DEEP_GEMM", "0", "") in update.plans
    text = format_update(update, repository.project)
    assert f"{MODEL} on {HOST}\n" in text
    assert "--block-size 32 → 128\n" in text

    again = repository.take()
    assert again.files == ()
    assert format_update(again, repository.project) == "the recipes are up to date\n"


def test_an_older_commit_can_be_named_and_says_so(quick: Repository) -> None:
    first = quick.publish("--block-size, '32'")
    quick.publish("--block-size, '128'")

    assert quick.take(f"{quick.folder}@{first}").commit == first
    assert settings(quick.plan())["--block-size"] == ("32", "recipe")


def test_a_recipe_of_a_model_that_is_not_known_changes_no_plan(quick: Repository) -> None:
    quick.publish("--block-size, '32'")
    quick.take()
    quick.publish("--block-size, '32'", model="abacus/Abacus-9")
    update = quick.take()

    assert (update.models, update.plans) == (("abacus/Abacus-9",), ())
    assert "no plan of a recorded host changes" in format_update(update, quick.project)


def test_a_hostile_recipe_makes_findings_only(quick: Repository) -> None:
    quick.publish(HOSTILE, HOSTILE_ENV)
    update = quick.take()
    usual, hostile = quick.plan("--no-recipe"), quick.plan()

    assert hostile["argv"] == usual["argv"]
    assert hostile["env"] == usual["env"]
    assert update.plans == ()
    recipe_finding = recipe_findings(hostile)["PLAN-163"]
    for name in ("--chat-template", "--middleware", "LD_PRELOAD", "HF_ENDPOINT", "--worker-cls"):
        assert name in recipe_finding


def test_a_flag_of_another_vllm_is_left_out_with_a_finding(quick: Repository) -> None:
    quick.publish("--block-size, '32', --mamba-cache-philox-rounds, '4'")
    quick.take()
    variant = find_variant(read_matrix(quick.project), "cuda12.9-vllm0.18")
    words = ("plan", "--json", "--root", str(quick.hosts / HOST / "host.json"), MODEL)
    old = entrypoint.answer_for_container(quick.project, variant, words, {})

    assert "--mamba-cache-philox-rounds" not in " ".join(old["argv"])
    assert "--mamba-cache-philox-rounds" in recipe_findings(old)["PLAN-163"]


def test_a_broken_recipe_is_skipped_and_named(quick: Repository) -> None:
    quick.publish("--block-size, '32'")
    broken = quick.folder / "models" / "abacus" / "Broken.yaml"
    broken.parent.mkdir()
    broken.write_text("model: &a {}\n", encoding="utf-8")
    git(quick.folder, "add", ".")
    git(quick.folder, "commit", "--quiet", "-m", "broken")

    update = quick.take()
    assert [*update.skipped] == ["models/abacus/Broken.yaml"]
    assert "models/abacus/Broken.yaml: left out" in format_update(update, quick.project)


def test_newer_recipes_are_offered_with_the_plans_that_change(quick: Repository) -> None:
    mine, origin = quick.project.root, quick.folder.parent / "origin.git"
    git(quick.folder, "init", "--quiet", "--bare", str(origin))
    git(origin, "config", "receive.advertisePushOptions", "true")
    git(mine, "init", "--quiet", "--initial-branch=main")
    git(mine, "add", ".")
    git(mine, "commit", "--quiet", "-m", "a project")
    quick.publish("--block-size, '32'")
    to = Server("gitlab", str(origin), "token")

    assert f"to {RECIPES.branch}" in propose_recipes(quick.project, to)
    message = git(origin, "log", "-1", "--format=%B", RECIPES.branch)
    assert message.startswith(RECIPES.title)
    assert "--block-size (not set) → 32" in message
    names = git(origin, "diff", "--name-only", f"{RECIPES.branch}^", RECIPES.branch).split()
    assert names == ["templates/recipes.json", "templates/recipes.lock.json"]

    (mine / "templates").mkdir(exist_ok=True)
    (mine / "templates" / "recipes.json").write_text("{}\n")  # the branch has them, this tree does not
    with pytest.raises(InputError, match=r"templates/recipes\.json"):
        propose_recipes(quick.project, to)
