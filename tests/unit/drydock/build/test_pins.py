"""One command from a lock with open inputs to a bake file: registry, git server and index are on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from drydock.build import bake_plan, build
from drydock.build.build_job import BuildOptions, Job, prepare_job
from drydock.build.pins import find_missing_pins
from drydock.build.standins import make_stub_wheel
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, InputError, UnresolvedError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import sources, wheels
from drydock.inputs.store import default_store
from drydock.inputs.supplied import VARIABLE
from drydock.inputs.uv import ResolveRequest
from drydock.lock import lockfile
from drydock.model.locked import LockedImageBase
from drydock.model.variant import Variant
from drydock.projects import stale_files
from drydock.projects.pinned_job import prepare_pinned_job
from drydock.verbs.fetch_verb import fetch_pins
from drydock.verbs.lock_verb import LockOptions, lock_variants
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.local_index import use_local_index

AMD64 = "linux/amd64"
EMPTY = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": f"sha256:{'4' * 64}", "size": 2}
TARGETS = (
    "gaudi2",
    "ascend-a3",
    "rocm7.2-source-vllm0.27",
    "xpu-wheel-vllm0.27",
    "gcu-s60",
)


class Site:
    """A copy of the repository, and a site whose registry, git server and index are all at hand."""

    def __init__(self, folder: Path, registry: Fake) -> None:
        self.root, self.wheels, self.supplied = folder / "checkout", folder / "wheels", folder / "from-the-vendor"
        self.upstream, self.mirrors, self.registry = folder / "upstream", folder / "mirrors.yaml", registry
        self.supplied.mkdir()
        shutil.copytree(ROOT / "images", self.root / "images")
        shutil.copytree(ROOT / "templates", self.root / "templates")
        shutil.copy(ROOT / "matrix.yaml", self.root / "matrix.yaml")
        self.tag = "first"
        self._variants = read_matrix(DRYDOCK)

    def variant(self, target: str) -> Variant:
        return find_variant(self._variants, target)

    def path(self, target: str) -> Path:
        return lockfile.path_of_lock(Project(self.root), self.variant(target).id)

    def offer(self, target: str) -> None:
        """Put everything that a variant needs on this site."""
        variant = self.variant(target)
        registries = {}
        if variant.base.kind == "image":
            registries[variant.base.reference.partition("/")[0]] = f"{self.registry.host}/mirror"
        hosts = {re.match(r"https://[^/]*/", source.repository) for source in variant.sources if source.repository}
        git = {host_match[0]: f"{self.upstream.as_uri()}/" for host_match in hosts if host_match}
        self.mirrors.write_text(json.dumps({"schema": 1, "registries": registries, "git": git}))
        for source in variant.sources:
            if source.repository and source.ref:
                self.commit(source.repository, source.ref)
        for line in (*variant.requirements, *variant.build_requirements, *(o.requirement for o in variant.overrides)):
            self.publish(line)
        for item in variant.supplied:
            for pattern in item.patterns:
                (self.supplied / pattern.replace("*", "1")).write_text(pattern)

    def publish(self, line: str) -> None:
        requirement = Requirement(line)
        versions = [*re.findall(r"[0-9][\w.+!]*", str(requirement.specifier)), "0.0.1", "1.0", "50.0"]
        version = next(version for version in versions if requirement.specifier.contains(version, prereleases=True))
        name, data = make_stub_wheel(requirement.name, version, {})
        (self.wheels / name).write_bytes(data)

    def commit(self, repository: str, ref: str) -> None:
        folder = self.upstream / re.sub(r"https://[^/]*/", "", repository)
        folder.mkdir(parents=True, exist_ok=True)
        run = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder))
        subprocess.run([*run, "init", "--quiet", "--initial-branch", "start"], check=True)
        subprocess.run([*run, "commit", "--quiet", "--allow-empty", "--message", "one"], check=True)
        subprocess.run([*run, "branch", "--force", ref], check=True)

    def answer(self, request: Seen) -> Answer:
        """Answer as a registry that has every image; its content changes with `tag`."""
        if "/manifests/" not in request.path:
            return Answer(200, {}, b"{}")
        content = {"schemaVersion": 2, "config": EMPTY, "layers": [], "annotations": {"tag": self.tag}}
        media_type = "application/vnd.oci.image.manifest.v1+json"
        data = json.dumps({**content, "mediaType": media_type}).encode()
        return Answer(200, {"Content-Type": media_type}, data)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Fake(lambda request: fake_site.answer(request)) as registry:  # noqa: PLW0108 - `made` is not there yet
        use_local_index(monkeypatch, tmp_path)
        fake_site = Site(tmp_path, registry)
        monkeypatch.setattr(stale_files, "report_stale_files", lambda _: ())
        yield fake_site


def differing(before: Any, after: Any, path: str = "") -> set[str]:
    """Return the key paths at which two JSON documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = before.keys() | after.keys()
        return {place for key in keys for place in differing(before.get(key), after.get(key), f"{path}/{key}")}
    return set() if before == after else {path}


def job(site: Site, target: str, **options: Any) -> Job:
    supplied_folders = [str(site.supplied)] if site.variant(target).supplied else []
    return prepare_pinned_job(
        Project(site.root), target, BuildOptions(platform=AMD64, **options), supplied_folders=supplied_folders
    )


def changed_by(site: Site, target: str) -> tuple[Job, set[str]]:
    before = json.loads(site.path(target).read_text())
    locked_job = job(site, target)
    return locked_job, differing(before, json.loads(site.path(target).read_text()))


@pytest.mark.parametrize("target", TARGETS)
def test_one_command_pins_just_what_is_open_and_gives_a_bake_file(
    site: Site, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.offer(target)
    opened = prepare_job(Project(site.root), target, BuildOptions(platform=AMD64)).pins
    assert opened.unresolved
    locked_job, changes = changed_by(site, target)

    assert locked_job.pins.unresolved == {}
    keys = {"wheels": ("layers", "build"), "base": ("base",), "tools": ("tools",)}
    supplied = {item.name for item in locked_job.variant.supplied}
    allowed = {f"/platforms/{AMD64}/unresolved"} | {
        f"/platforms/{AMD64}/{key}"
        for name in opened.unresolved
        for key in keys.get(name, ("supplied",) if name in supplied else ("sources",))
    }
    assert {path for path in changes if path != "/content_sha256" and not path.startswith(tuple(allowed))} == set()
    assert lockfile.read_lock(site.path(target)) == locked_job.lock
    lockfile.check_lock_inputs(locked_job.variant, locked_job.lock)
    stderr = capsys.readouterr().err
    base = locked_job.pins.base
    assert isinstance(base, LockedImageBase)
    assert f"pinned base {base.reference}@{base.digest}\n" in stderr
    assert f"commit images/{locked_job.variant.id}/lock.json to share it" in stderr
    contexts = dict.fromkeys(("wheels", "tools", "entrypoints"), "/x")
    contexts["base"] = f"docker-image://{base.reference}@{base.digest}"
    bake = bake_plan.make_bake_plan(
        locked_job.variant, locked_job.lock, AMD64, contexts, locked_job.context, site.root / "out"
    )
    assert bake["target"][bake_plan.bake_name(locked_job.variant.id)]["contexts"]["base"].endswith(str(base.digest))


def test_a_tag_of_source_code_becomes_its_commit_and_what_has_none_stays_open(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    target = "cuda13.0-ngc-vllm0.29"
    site.offer(target)
    with pytest.raises(UnresolvedError) as caught:
        job(site, target)

    assert [line.split()[0] for line in caught.value.problems[1:]] == ["flashmla", "vllm-flash-attn"]
    pins = lockfile.read_lock(site.path(target)).platforms
    commits = {source.name: source.commit for source in pins[AMD64].sources}
    stderr = capsys.readouterr().err
    assert f"pinned triton-kernels https://github.com/triton-lang/triton@{commits['triton-kernels']}" in stderr
    assert "flashmla: neither its commit nor a tag or branch is known" in stderr
    assert "triton-kernels" in pins["linux/arm64"].unresolved


def test_a_second_build_asks_nobody(site: Site) -> None:
    site.offer("gaudi2")
    first = job(site, "gaudi2")
    request_count = len(site.registry.seen)
    site.tag = "moved"

    assert job(site, "gaudi2").lock == first.lock
    assert len(site.registry.seen) == request_count


def test_another_platform_gets_the_digest_that_the_tag_was_pinned_to(site: Site) -> None:
    site.offer("ascend-a3")
    digest = job(site, "ascend-a3").pins.base.digest
    site.tag = "moved"
    pinned = prepare_pinned_job(Project(site.root), "ascend-a3", BuildOptions(platform="linux/arm64"))

    assert pinned.pins.base.digest == digest


@pytest.mark.parametrize(
    ("how", "option_name", "target"),
    [
        ("--locked", "--locked", "cuda13.0-ngc-vllm0.29"),
        ("CI", "CI=true", "gcu-s60"),
        ("--offline", "--offline", "gcu-s60"),
    ],
)
def test_all_that_is_missing_is_one_list_with_the_option_for_each(
    site: Site, target: str, how: str, option_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.offer(target)
    if how == "CI":
        monkeypatch.setenv("CI", "true")
    before = site.path(target).read_bytes()
    options = BuildOptions(platform=AMD64, offline=how == "--offline")
    with pytest.raises(UnresolvedError) as caught:
        prepare_pinned_job(Project(site.root), target, options, locked=how == "--locked")

    missing = prepare_job(Project(site.root), target, options).pins.unresolved
    assert [line.split()[0] for line in caught.value.problems[1:]] == sorted(missing)
    for line, name in zip(caught.value.problems[1:], sorted(missing), strict=True):
        value = "docker-image://REFERENCE" if name == "base" else "FOLDER"
        assert line.startswith(f"  {name} (--context {name}={value}): ")
    assert caught.value.hint.startswith(f"{option_name} pins nothing: ")
    other_options = {"--locked", "CI=true", "--offline"} - {option_name}
    assert not [option for option in other_options if option in str(caught.value)]
    assert site.path(target).read_bytes() == before
    assert site.registry.seen == []


@pytest.mark.parametrize("option", ["--locked", "--offline"])
def test_a_base_that_is_emulated_needs_no_digest(
    site: Site, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target, options = "cuda-arm64", BuildOptions(offline=option == "--offline")
    before = site.path(target).read_bytes()
    monkeypatch.setattr(wheels, "is_native_platform", lambda _: False)
    emulated_job = prepare_pinned_job(Project(site.root), target, options, locked=option == "--locked")

    assert not find_missing_pins(emulated_job)
    assert "its digest stays open, which only a linux/arm64 machine records" in capsys.readouterr().err
    assert emulated_job.foundation_key == prepare_job(Project(site.root), target).foundation_key
    assert site.path(target).read_bytes() == before

    monkeypatch.setattr(wheels, "is_native_platform", lambda _: True)
    with pytest.raises(UnresolvedError, match="base"):
        prepare_pinned_job(Project(site.root), target, options, locked=option == "--locked")


def test_what_cannot_be_reached_is_listed_and_what_can_be_is_pinned(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.offer("gcu-s60")
    with pytest.raises(UnresolvedError) as caught:
        prepare_pinned_job(Project(site.root), "gcu-s60", BuildOptions())

    assert [line.split()[0] for line in caught.value.problems[1:]] == ["topsrider"]
    assert caught.value.problems[1].startswith("  topsrider (--supplied FOLDER): only an operator has")
    assert "pinned base artifact.enflame.cn/" in capsys.readouterr().err
    assert prepare_job(Project(site.root), "gcu-s60").pins.base.digest


def test_a_registry_that_does_not_answer_is_named_with_its_reason(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.mirrors.write_text(json.dumps({"registries": {"vault.habana.ai": "127.0.0.1:1/habana"}}))
    before = site.path("gaudi2").read_bytes()
    with pytest.raises(UnresolvedError, match=r"base \(--context base=docker-image://REFERENCE\): the vendor"):
        job(site, "gaudi2")

    assert "127.0.0.1:1/habana" in capsys.readouterr().err
    assert site.path("gaudi2").read_bytes() == before


def test_a_replaced_context_needs_no_pin(site: Site, tmp_path: Path) -> None:
    before = site.path("gaudi2").read_bytes()
    locked_job = prepare_pinned_job(
        Project(site.root), "gaudi2", BuildOptions(context_overrides={"base": str(tmp_path)}), locked=True
    )

    assert locked_job.context_overrides == {"base": str(tmp_path)}
    assert site.path("gaudi2").read_bytes() == before


def test_supplied_folders_that_do_not_fit_are_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        prepare_pinned_job(Project(site.root), "gcu-s60", BuildOptions(), supplied_folders=[str(tmp_path / "no")])
    with pytest.raises(InputError, match=r"no file of it is needed, expected TopsRider_\*3\.5\.\*\.run"):
        prepare_pinned_job(Project(site.root), "gcu-s60", BuildOptions(), supplied_folders=[str(site.wheels)])


def test_supplied_files_that_are_pinned_come_from_the_folder_again(site: Site, tmp_path: Path) -> None:
    site.offer("gcu-s60")
    pins = job(site, "gcu-s60").pins.supplied["topsrider"]
    shutil.rmtree(tmp_path / "cache")
    job(site, "gcu-s60")
    assert default_store().has(pins[0].sha256, pins[0].size)


def test_a_folder_of_the_machine_fills_what_is_open_and_changes_no_pin(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.offer("gcu-s60")
    monkeypatch.setenv(VARIABLE, str(site.supplied))
    first = prepare_pinned_job(Project(site.root), "gcu-s60", BuildOptions(platform=AMD64)).pins.supplied
    assert [pin.filename for pin in first["topsrider"]] == ["TopsRider_13.5.1.run"]
    (site.supplied / "TopsRider_13.5.1.run").write_text("another")
    lock_variants(Project(site.root), [site.variant("gcu-s60")], LockOptions())
    assert lockfile.read_lock(site.path("gcu-s60")).platforms[AMD64].supplied == first


# --- lock -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(site: Site) -> Callable[..., Any]:
    def run(row: str, **options: Any) -> Any:
        lock_variants(Project(site.root), [site.variant(row)], LockOptions(**options))
        return lockfile.read_lock(site.path(row))

    return run


def test_lock_keeps_a_base_whose_tag_moved_and_upgrade_takes_it(
    site: Site, locked: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    site.offer("gaudi2")
    first = locked("gaudi2")
    site.tag = "moved"
    assert locked("gaudi2") == first
    assert "nothing to change" in capsys.readouterr().err

    again = locked("gaudi2", upgrade_package=("base",))
    assert again.platforms[AMD64].base.digest != first.platforms[AMD64].base.digest
    was, now = first.platforms[AMD64], again.platforms[AMD64]
    assert now.model_copy(update={"base": was.base}) == was
    assert f"base.digest: {was.base.digest} → {now.base.digest}" in capsys.readouterr().err


def test_a_new_requirement_moves_no_other_pin(
    site: Site, locked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = site.variant("cpu-text")
    small = row.model_copy(update={"requirements": ("app",), "overrides": (), "exclude": (), "indexes": ()})
    small = small.model_copy(update={"layers": tuple(layer for layer in row.layers if not layer.distributions)})
    monkeypatch.setattr(site, "variant", lambda _: small)
    for line in ("app==1.0", "uv==0"):
        site.publish(line)
    monkeypatch.setattr("drydock.lock.pin.tool_request", lambda: ResolveRequest(("uv",)))
    old = lockfile.read_lock(site.path("cpu-text"))
    empty = old.platforms[AMD64].model_copy(update={"layers": {}, "tools": ()})
    lockfile.write_lock(site.path("cpu-text"), old.model_copy(update={"platforms": {AMD64: empty}}))
    base = old.platforms[AMD64].base
    monkeypatch.setattr(
        "drydock.inputs.debs.resolve_packages",
        lambda _suite, packages, *_: (
            base.packages if set(packages) <= {d.name for d in base.packages} else base.bootstrap
        ),
    )
    first = locked("cpu-text")
    site.publish("app==2.0")
    site.publish("added==1.0")
    small = small.model_copy(update={"requirements": ("app", "added")})
    capsys.readouterr()
    second = locked("cpu-text")

    name = small.layers[-1].name
    versions = {pin.name: pin.version for pin in second.platforms[AMD64].layers[name]}
    assert versions == {"app": "1.0", "added": "1.0"}
    assert second.platforms[AMD64].base == first.platforms[AMD64].base
    assert "+ added 1.0" in capsys.readouterr().err
    assert second.platforms[AMD64].tools == first.platforms[AMD64].tools
    third = locked("cpu-text", upgrade_package=("app",))
    assert {p.name: p.version for p in third.platforms[AMD64].layers[name]} == {"app": "2.0", "added": "1.0"}
    assert "~ app 1.0 → 2.0" in capsys.readouterr().err


def test_lock_fails_while_a_named_variant_keeps_an_open_input(site: Site, locked: Callable[..., Any]) -> None:
    site.offer("gcu-s60")
    with pytest.raises(UnresolvedError, match="topsrider is unresolved") as caught:
        locked("gcu-s60", target="gcu-s60")
    assert "--supplied FOLDER" in caught.value.hint
    assert locked("gcu-s60").platforms[AMD64].unresolved.keys() == {"topsrider"}
    assert not locked("gcu-s60", target="gcu-s60", supplied=(str(site.supplied),)).platforms[AMD64].unresolved


def test_an_unknown_name_to_upgrade_is_refused(site: Site, locked: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="--upgrade-package vllm-frok: not in the lock") as caught:
        locked("gaudi2", upgrade_package=("vllm-frok",))
    assert caught.value.hint == "did you mean 'vllm-fork'?"
    assert site.registry.seen == []


def test_a_commit_that_its_branch_no_longer_leads_to_is_a_warning(site: Site) -> None:
    variant = site.variant("gaudi2")
    site.offer("gaudi2")
    pins = {variant.id: lockfile.read_lock(site.path("gaudi2"))}
    (warning,) = [line for line in sources.find_lost_commits([variant], pins) if "vllm-fork:" in line]

    assert "aice/v1.22.0 of https://github.com/HabanaAI/vllm-fork.git does not lead to 17a7946f4" in warning
    assert "`./inv fetch --target habana1.22-fork0.9`" in warning
    assert "correct its `commit` in templates/habana/stacks/habana-1.22.0.yaml" in warning


# --- offline --------------------------------------------------------------------------------------------------------


def test_offline_does_not_let_the_builder_pull_a_base(site: Site) -> None:
    site.offer("gaudi2")
    pinned = job(site, "gaudi2")
    digest = pinned.pins.base.digest
    with pytest.raises(FetchError, match=f"not in the store: base docker-image://.*@{digest}") as caught:
        build.refuse_pulls(pinned, {"base": f"docker-image://x@{digest}", "wheels": "/a"})
    assert caught.value.hint == "run `./inv fetch --target habana1.22-fork0.9` once with a network"
    build.refuse_pulls(pinned, {"base": "oci-layout:///a@sha256:1", "wheels": "/a"})


def test_fetch_brings_the_base_image_and_offline_asks_for_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.offer("gaudi2")
    pinned = job(site, "gaudi2")
    brought: list[object] = []
    monkeypatch.setattr("drydock.inputs.base_images.fetch_base", lambda base, *_: brought.append(base.digest))
    monkeypatch.setattr(build, "fetch_contexts", lambda _: {"base": f"docker-image://x@{pinned.pins.base.digest}"})
    fetch_pins(pinned)
    assert brought == [pinned.pins.base.digest]

    with pytest.raises(FetchError, match="not in the store: base"):
        fetch_pins(replace(pinned, offline=True))
    assert len(brought) == 1
