"""What has drifted, compared with an upstream made up by the tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import DriftError, FetchError, GoneError, InputError, NotAskedError
from drydock.inputs.indexes import Indexes
from drydock.inputs.uv import Candidate, Environment, ResolveRequest
from drydock.lock.drift.ask import LiveUpstream, Offer, Tag, find_absent_names, find_origin_index
from drydock.lock.drift.drift_record import Drift, format_drift
from drydock.lock.drift.drift_search import find_drift, raise_if_found
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.model.bases import ImageBase
from drydock.model.locked import LockedDeb, LockedDebianBase
from drydock.model.variant import SourceCode, Variant
from tests.support.git import git

VARIANTS = read_matrix(DRYDOCK)
CPU, SOURCE, IMAGE = (find_variant(VARIANTS, target) for target in ("cpu", "cuda-source", "xpu-vllm0.30"))
FRESH = "f" * 64


class Echo:
    """An upstream that has what a variant's lock pins, except for `changes`: name → version, or an error."""

    def __init__(self, variant: Variant, changes: Mapping[str, Any] | None = None) -> None:
        self.variant, self.changes = variant, dict(changes or {})
        self.pins = read_lock(path_of_lock(DRYDOCK, variant.id)).platforms[variant.platforms[0]]
        self.beyond: dict[str, str] = {}

    def said(self, name: str, value: Any) -> Any:
        answer = self.changes.get(name, value)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def allowed(self, request: ResolveRequest, target: Environment) -> Mapping[str, Offer]:
        del target
        asks_for_row = request.requirements == self.variant.requirements
        wheels = [w for layer in self.pins.layers.values() for w in layer] if asks_for_row else self.pins.build
        self.said("allowed", None)
        wheel_pins = {w.name: self.said(w.name, (w.version, w.sha256)) for w in wheels}
        return {name: Offer(*pin, "main index") for name, pin in wheel_pins.items() if pin}

    def newest(self, names: tuple[str, ...], target: Environment, *, sdist: bool = False) -> Mapping[str, Offer]:
        del target, sdist
        self.said("newest", None)
        return {name: Offer(self.beyond.get(name, "0"), FRESH, "extra index 1") for name in names}

    def debs(self, suite: str, packages: tuple[str, ...], platform: str) -> tuple[LockedDeb, ...]:
        del suite, platform
        base = self.pins.base
        assert isinstance(base, LockedDebianBase)
        self.said("debs", None)
        return tuple(self.said("packages", base.packages)) if "mmdebstrap" not in packages else base.bootstrap

    def tag(self, reference: str, platform: str) -> Tag:
        del platform
        default = Tag(self.pins.base.digest or "", ("a", "b", "c"))
        return self.said(reference if "@" in reference else "tag", default)

    def commit(self, source: SourceCode) -> str:
        locked = next(item for item in self.pins.sources if item.name == source.name)
        return self.said(source.name, locked.commit)


def drift(variant: Variant, upstream: Echo) -> Drift:
    return find_drift(DRYDOCK, [variant], upstream)


@pytest.mark.parametrize("variant", [CPU, IMAGE], ids=lambda variant: variant.id)
def test_an_upstream_that_has_what_is_locked_is_no_drift(variant: Variant) -> None:
    drift_report = drift(variant, Echo(variant))
    assert (drift_report.drifted, drift_report.beyond, drift_report.not_asked) == ((), (), ())
    assert drift_report.asked >= (1 if variant is IMAGE else 4)
    raise_if_found(drift_report)


def test_a_newer_wheel_within_the_bounds_is_drift_and_locking_takes_it() -> None:
    drift_report = drift(CPU, Echo(CPU, {"packaging": ("99.0", FRESH)}))
    (change,) = drift_report.drifted
    assert (change.kind, change.name, change.new, change.origin) == ("wheel", "packaging", "99.0", "main index")
    assert change.command == f"./inv lock --target {CPU.id} --upgrade"
    with pytest.raises(DriftError, match="1 pins have drifted") as raised:
        raise_if_found(drift_report)
    assert (raised.value.code, raised.value.hint) == (15, change.command)


def test_the_same_version_in_another_file_is_drift() -> None:
    version = next(w for layer in Echo(CPU).pins.layers.values() for w in layer if w.name == "packaging").version
    (change,) = drift(CPU, Echo(CPU, {"packaging": (version, FRESH)})).drifted
    assert (change.old, change.new, change.detail) == (version, version, "different file")


def test_what_would_be_new_or_gone_is_told_so() -> None:
    (change,) = drift(CPU, Echo(CPU, {"packaging": None})).drifted
    assert (change.old is None, change.new) == (False, None)
    assert "→ (gone)" in format_drift(drift(CPU, Echo(CPU, {"packaging": None})))


def test_what_is_newer_beyond_the_bounds_is_told_and_is_no_drift() -> None:
    upstream = Echo(CPU)
    upstream.beyond = {"torch": "99.0"}
    drift_report = drift(CPU, upstream)
    (change,) = drift_report.beyond
    assert (change.name, change.new, change.origin) == ("torch", "99.0", "extra index 1")
    assert "raise the bound in templates/cpu/stacks/cpu-0.32.yaml" in change.command
    assert drift_report.drifted == ()
    raise_if_found(drift_report)


@pytest.mark.parametrize(
    ("variant", "name", "source"),
    [
        (CPU, "allowed", "wheels within the stack's bounds"),
        (CPU, "newest", "the newest wheels"),
        (CPU, "debs", "Debian's bookworm"),
        (IMAGE, "tag", "docker.io/vllm/vllm-openai-xpu:v0.30.0"),
    ],
)
def test_a_source_that_is_away_is_never_no_drift(variant: Variant, name: str, source: str) -> None:
    drift_report = drift(variant, Echo(variant, {name: FetchError("somewhere: Connection refused\nand more")}))
    assert drift_report.drifted == ()
    assert {item.source for item in drift_report.not_asked} == {source}
    assert f"not asked: {source} (linux/amd64): somewhere: Connection refused\n" in format_drift(drift_report)
    with pytest.raises(NotAskedError) as raised:
        raise_if_found(drift_report)
    assert raised.value.code == 16


def test_an_updated_debian_package_is_drift() -> None:
    base = Echo(CPU).pins.base
    assert isinstance(base, LockedDebianBase)
    first = base.packages[0]
    newer = (first.model_copy(update={"version": "99", "sha256": FRESH}), *base.packages[1:])
    (change,) = drift(CPU, Echo(CPU, {"packages": newer})).drifted
    assert (change.kind, change.name, change.new) == ("deb", f"{first.name}:{first.architecture}", "99")


@pytest.mark.parametrize(
    ("layers", "detail"),
    [
        (("a", "b", "x", "y"), "the first 2 of 3 layers are the same"),
        (("a", "b", "c", "d"), "the first 3 of 3 layers are the same"),
        (("x",), "the first 0 of 3 layers are the same"),
    ],
)
def test_a_moved_tag_tells_the_digests_and_the_layers_that_stayed(layers: tuple[str, ...], detail: str) -> None:
    (change,) = drift(IMAGE, Echo(IMAGE, {"tag": Tag(f"sha256:{FRESH}", layers)})).drifted
    assert (change.kind, change.new, change.detail) == ("base", f"sha256:{FRESH}", detail)


def test_a_moved_tag_whose_old_image_is_gone_says_that_too() -> None:
    assert isinstance(IMAGE.base, ImageBase)
    old = f"{IMAGE.base.reference}@{Echo(IMAGE).pins.base.digest}"
    upstream = Echo(IMAGE, {"tag": Tag(f"sha256:{FRESH}", ()), old: GoneError("no such image")})
    assert drift(IMAGE, upstream).drifted[0].detail == "the locked image cannot be looked up: no such image"


def test_a_tag_that_is_no_longer_there_is_drift() -> None:
    (change,) = drift(IMAGE, Echo(IMAGE, {"tag": GoneError("the registry has no such image")})).drifted
    assert (change.new, change.detail) == (None, "the registry has no such image")
    assert change.command.startswith(f"name another base in templates/{IMAGE.accelerator}/stacks/{IMAGE.stack}.yaml")


def test_a_moved_git_tag_is_drift_and_where_the_matrix_pins_the_commit_a_person_looks_first() -> None:
    source = next(item for item in SOURCE.sources if item.commit and item.ref and len(item.ref) < 40)
    drift_report = drift(SOURCE, Echo(SOURCE, {source.name: "0" * 40}))
    change = next(change for change in drift_report.drifted if change.kind == "source")
    assert (change.name, change.old, change.new) == (source.name, source.commit, "0" * 40)
    assert change.detail == f"{source.ref} has moved"
    place = f"templates/{SOURCE.accelerator}/stacks/{SOURCE.stack}.yaml"
    assert change.command.startswith(f"find out why, correct the commit of {source.name} in {place}")


def test_a_source_without_tag_or_branch_is_told_as_one_that_nobody_can_ask() -> None:
    bare = SOURCE.model_copy(update={"sources": (SOURCE.sources[0].model_copy(update={"ref": "a" * 40}),)})
    notes = [n for n in find_unlocked(bare).not_asked if n.source == bare.sources[0].name]
    assert [n.why for n in notes] == ["the stack names a commit, and no tag or branch to follow"]


def find_unlocked(variant: Variant) -> Drift:
    """Look at a variant whose lock is of other inputs."""
    from drydock.lock.drift import drift_search  # noqa: PLC0415 - one test's

    notes = drift_search.Notes()
    upstream = Echo(variant)
    drift_search._Platform(variant, variant.platforms[0], upstream.pins, upstream, notes).compare_all()
    return Drift(drifted=(), beyond=(), not_asked=tuple(notes.not_asked), asked=notes.asked)


def test_wheels_that_nobody_could_pin_and_that_an_index_has_now_are_drift() -> None:
    variant = next(v for v in VARIANTS if "wheels" in Echo(v).pins.unresolved and len(v.platforms) == 1)
    upstream = Echo(variant)
    upstream.allowed = lambda *_: {"vllm": Offer("1", FRESH, "")}  # type: ignore[method-assign]
    change = next(change for change in drift(variant, upstream).drifted if change.kind == "wheel")
    assert (change.old, change.new, change.detail) == (None, "1 distributions", "not pinned before")


# --- asking ---------------------------------------------------------------------------------------------------------


def test_each_question_is_asked_once_and_so_is_each_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    suites: list[str] = []

    def debs(suite: str, *_: object) -> tuple[LockedDeb, ...]:
        suites.append(suite)
        if suite == "sid":
            raise FetchError("away")
        return ()

    monkeypatch.setattr("drydock.inputs.debs.resolve_packages", debs)
    machine = LiveUpstream({})
    for _ in range(2):
        assert machine.debs("bookworm", ("a",), "linux/amd64") == ()
        with pytest.raises(FetchError, match="away"):
            machine.debs("sid", ("a",), "linux/amd64")
    assert suites == ["bookworm", "sid"]


def test_a_ref_that_a_repository_lacks_is_gone_and_not_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_: object) -> str:
        raise InputError("has no tag or branch 'v1'")

    monkeypatch.setattr("drydock.inputs.sources.find_ref_commit", ask)
    with pytest.raises(GoneError, match="has no tag or branch"):
        LiveUpstream({}).commit(SOURCE.sources[0])


SAID = """uv cannot resolve a, b_c:
error: No solution found when resolving dependencies
  cause: Because b-c was not found in the package registry and you require b-c, we can conclude
         that your requirements are unsatisfiable."""


def test_what_no_index_has_is_read_out_of_what_uv_says() -> None:
    assert find_absent_names(SAID) == {"b-c"}
    assert find_absent_names("error: Request failed after 3 retries\n cause: dns error") == set()


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LiveUpstream]:
    """Return what makes an upstream whose index lacks a distribution, with what uv says then."""

    def make(missing: str, message: str) -> LiveUpstream:
        def offered(request: ResolveRequest, *_: object) -> tuple[Candidate, ...]:
            if missing in request.requirements:
                raise InputError(message)
            return tuple(Candidate(name, "1", f"{name}.whl", "https://x/a", FRESH) for name in request.requirements)

        configured = Indexes(None, (), (), False, (), None, None, None, 1)
        monkeypatch.setattr("drydock.inputs.wheels.list_offered_wheels", offered)
        monkeypatch.setattr("drydock.inputs.indexes.read_indexes", lambda _: configured)
        return LiveUpstream({})

    return make


def test_a_distribution_that_no_index_has_does_not_hide_the_others(index: Callable[..., LiveUpstream]) -> None:
    assert set(index("b-c", SAID).newest(("a", "b-c"), Environment("3.11", "x86_64", 36))) == {"a"}


def test_an_index_that_is_away_is_no_answer(index: Callable[..., LiveUpstream]) -> None:
    away = "error: Request failed after 3 retries\n  cause: dns error"
    with pytest.raises(InputError, match="dns error"):
        index("a", away).newest(("a",), Environment("3.11", "x86_64", 36))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://files.example/a.whl", "main index"),
        ("https://extra.example/team/files/a.whl", "extra index 2"),
        ("file:///wheels/a.whl", "find-links 1"),
        ("https://extra.example/other/a.whl", "extra index 1"),
    ],
)
def test_an_index_is_named_by_its_place_in_pips_configuration(url: str, expected: str) -> None:
    extra = ("https://u:secret@extra.example/other/simple", "https://extra.example/team/simple")
    configured = Indexes(None, extra, ("/wheels",), False, (), None, None, None, 60.0)
    assert find_origin_index(Candidate("a", "1", "a.whl", url, FRESH), configured) == expected


def test_a_branch_that_moves_is_seen_and_a_repository_that_is_away_is_not_asked(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commits = []
    for _ in range(2):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "x")
        source = SourceCode(name="app", repository=tmp_path.as_uri(), ref="main", source="a test")
        commits.append(LiveUpstream().commit(source))
    assert commits[1] == git(tmp_path, "rev-parse", "HEAD") != commits[0]
    with pytest.raises(FetchError, match="app: "):
        LiveUpstream().commit(source.model_copy(update={"repository": (tmp_path / "away").as_uri()}))


def test_real_indexes_say_what_is_allowed_and_what_is_newest(
    tmp_path: Path, make_wheel: Callable[..., tuple[str, bytes]]
) -> None:
    for version in ("1.0", "1.5", "2.0"):
        name, data = make_wheel("app", version)
        (tmp_path / name).write_bytes(data)
    unset = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    machine = LiveUpstream(
        {**unset, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    )
    target = Environment("3.11", "x86_64", 36)
    assert machine.allowed(ResolveRequest(("app<2",)), target)["app"].version == "1.5"
    assert {n: (o.version, o.origin) for n, o in machine.newest(("app", "gone"), target).items()} == {
        "app": ("2.0", "find-links 1")
    }
