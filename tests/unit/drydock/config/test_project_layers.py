"""A project's files lie over drydock's: later wins key by key, and nothing takes a name by accident."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from drydock.attest import provenance
from drydock.build import render
from drydock.build.build_job import Job, prepare_job
from drydock.ci import proposal
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.project_layers import merge_layers
from drydock.config.stack_files import list_stack_files
from drydock.config.strict_yaml import parse_yaml
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import lockfile, resolution
from drydock.lock.image_record import ImageRecord, write_record
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.model.locked import Lock
from drydock.model.variant import Variant
from drydock.pages import matrix_table
from drydock.run import entrypoint
from drydock.verbs.bump_verb import BumpOptions, update_rows
from tests.support.hosts.trees import write_tree

CPU = "cpu-vllm0.32"
H100 = find_variant(read_matrix(DRYDOCK), "h100")
"""The newest row of CUDA, whatever its version is."""
Write = Callable[[Mapping[str, str]], Project]

ROW = f"""
schema: 1
variants:
  acme-h100: {{stack: acme, inherits: drydock/{H100.id}, aliases: [acme]}}
"""
STACK_FILE = "templates/cuda/stacks/acme.yaml"
ACCELERATOR_FILE = "templates/cuda/accelerator.yaml"
STACK = f"""
inherits: drydock/{H100.stack}
summary: ours, with one more package
requirements+: [structlog==25.1.0]
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a project over drydock's own files."""

    def write(files: Mapping[str, str]) -> Project:
        write_tree(tmp_path, files)
        return Project(tmp_path, (ROOT,))

    return write


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of drydock's files, which nothing may change."""
    folder = tmp_path / "copy"
    for name in ("templates", "images", "entrypoints"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "matrix.yaml", folder)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def said_by(project: Project) -> str:
    """Return the error of reading a project's rows."""
    with pytest.raises(InputError) as raised:
        read_matrix(project)
    return "\n".join([*raised.value.problems, raised.value.hint])


def test_a_higher_layer_wins_key_by_key_and_a_plus_adds() -> None:
    below = parse_yaml("env: {A: 1, B: 2}\nlist: [a]\nmore: [a, b]\n", "below")
    above = parse_yaml("env: {B: 3}\nlist: [z]\nmore+: [c]\nnew+: [d]\n", "above")
    merged_layers = merge_layers([below, above])
    assert merged_layers.data == {"env": {"A": 1, "B": 3}, "list": ["z"], "more": ["a", "b", "c"], "new": ["d"]}
    assert merged_layers.problem(("env", "A"), "x") == "below: env.A: x (line 1, column 10)"
    assert merged_layers.problem(("env", "B"), "x") == "above: env.B: x (line 1, column 10)"
    assert merged_layers.problem(("more", 2), "x") == "above: more[2]: x (line 3, column 9)"


def test_a_row_and_a_stack_say_what_differs(write: Write) -> None:
    project = write({"matrix.yaml": ROW, STACK_FILE: STACK})
    variants = read_matrix(project)
    ours, theirs = find_variant(variants, "acme"), find_variant(variants, "cuda")
    assert ours.requirements == (*theirs.requirements, "structlog==25.1.0")
    assert (ours.platforms, ours.default, ours.vllm) == (theirs.platforms, False, theirs.vllm)
    assert len(variants) == len(read_matrix(DRYDOCK)) + 1


def test_an_accelerators_keys_are_changed_in_the_project(write: Write) -> None:
    env = "env:\n  CUDA_DEVICE_ORDER: {value: FASTEST_FIRST, because: ours, source: us}\n"
    project = write({ACCELERATOR_FILE: env})
    setting = {
        cuda_setting.setting: cuda_setting.value for cuda_setting in find_variant(read_matrix(project), "cuda").settings
    }
    assert setting["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_default_of_the_project_replaces_drydocks(write: Write) -> None:
    row = ROW.replace("aliases: [acme]", "default: true")
    project = write({"matrix.yaml": row, STACK_FILE: STACK})
    assert find_variant(read_matrix(project), "cuda").id == "acme-h100"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"matrix.yaml": "schema: 1\nvariants:\n  router0.1: {stack: router-0.1, platforms: [linux/amd64]}\n"},
            "matrix.yaml: variants.router0.1: drydock has a row 'router0.1' (line 3, column 3)",
        ),
        (
            {"matrix.yaml": f"variants:\n  h100: {{stack: {H100.stack}, platforms: [linux/amd64]}}\n"},
            f"matrix.yaml: variants.h100: drydock has an alias 'h100' of the row {H100.id!r} (line 2, column 3)",
        ),
        (
            {"matrix.yaml": ROW.replace("[acme]", "[acme, h100]"), STACK_FILE: STACK},
            f"matrix.yaml: variants.acme-h100.aliases[1]: alias 'h100' is taken by an alias of {H100.id!r}",
        ),
        ({"matrix.yaml": ROW.replace("drydock/cuda13.0", "drydock/cuda14.0")}, "unknown row 'drydock/cuda14.0"),
        (
            {"matrix.yaml": ROW.replace(H100.id, "xpu-vllm0.16")},
            "write `inherits: drydock/xpu-vllm0.30`, which replaces it",
        ),
        (
            {"matrix.yaml": ROW.replace("drydock/cuda13.0", "cuda13.0")},
            f"write `inherits: drydock/{H100.id}`",
        ),
        (
            {f"templates/cuda/stacks/{H100.stack}.yaml": "summary: ours\n"},
            f"templates/cuda/stacks/{H100.stack}.yaml: drydock has a stack {H100.stack!r}",
        ),
        (
            {STACK_FILE: "inherits: drydock/other\n", "templates/cuda/stacks/other.yaml": STACK},
            f"{STACK_FILE}: inherits: unknown stack 'drydock/other' (line 1, column 11)",
        ),
    ],
)
def test_a_name_is_not_taken_by_accident(write: Write, files: dict[str, str], expected: str) -> None:
    assert expected in said_by(write(files))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"matrix.yaml": "schema: 1\nvariant: {}\n"}, "matrix.yaml: unknown key 'variant' (line 2, column 1)"),
        (
            {"matrix.yaml": ROW.replace("aliases: [acme]", "platforms: []"), STACK_FILE: STACK},
            "matrix.yaml: variants.acme-h100.platforms: expected at least one platform (line 4, column 65)",
        ),
        (
            {STACK_FILE: STACK.replace("requirements+", "requirement+")},
            f"{STACK_FILE}: unknown key 'requirement' (line 4, column 1)",
        ),
        (
            {STACK_FILE: STACK.replace("structlog==25.1.0", "7")},
            f"{STACK_FILE}: requirements[0]: found 7, which YAML reads as 7, expected text (line 4, column 17)",
        ),
        (
            {ACCELERATOR_FILE: "thresholds: {usable: 1}\n"},
            f"{ACCELERATOR_FILE}: thresholds.usable: found 1, expected keys and values (line 1, column 22)",
        ),
    ],
)
def test_an_error_is_where_the_project_says_it(write: Write, files: dict[str, str], expected: str) -> None:
    assert expected in said_by(write(files))


def test_an_error_of_drydocks_own_file_names_a_path_that_can_be_opened(copy: Path, tmp_path: Path) -> None:
    for name, text in (("matrix.yaml", "variants: {x: {stack: 1}}\n"), (ACCELERATOR_FILE, "accelerator: 1\n")):
        project = Project(tmp_path / "mine", (copy,))
        before = (copy / name).read_text()
        (copy / name).write_text(text)
        assert said_by(project).startswith(f"{copy / name}: ")
        (copy / name).write_text(before)


def test_a_row_that_inherits_needs_something_below(write: Write) -> None:
    expected = f"matrix.yaml: variants.acme-h100.inherits: unknown row 'drydock/{H100.id}' (line 4, column 38)"
    assert expected in said_by(Project(write({"matrix.yaml": ROW}).root))


# --- what is written ------------------------------------------------------------------------------------------------


def test_without_rows_of_its_own_a_project_has_drydocks(write: Write) -> None:
    assert read_matrix(write({})) == read_matrix(DRYDOCK)


def test_a_row_of_drydocks_own_has_the_same_inputs_in_a_project(write: Write) -> None:
    project = write({"matrix.yaml": ROW, STACK_FILE: STACK})
    for name in ("cpu", "gaudi2", "router"):
        ours, theirs = prepare_job(project, name), prepare_job(DRYDOCK, name)
        assert (ours.inputs_sha256, ours.recorded_digest) == (theirs.inputs_sha256, theirs.recorded_digest)


def test_documents_name_files_of_all_layers(write: Write) -> None:
    generated = {f"images/acme-h100/{name}": "" for name in ("lock.json", "Dockerfile")}
    project = write({"matrix.yaml": ROW, STACK_FILE: STACK, **generated})
    job = Job(find_variant(read_matrix(project), "acme"), read_lock(path_of_lock(project, CPU)), "linux/amd64", project)
    below = ("drydock/matrix.yaml", *(f"drydock/{DRYDOCK.name_of(path)}" for path in list_stack_files(DRYDOCK, H100)))
    assert {*provenance._own_files(job)} == {"matrix.yaml", STACK_FILE, *generated, *below}


def test_images_of_the_project_win(write: Write) -> None:
    text = path_of_lock(DRYDOCK, CPU).read_text()
    project = write({f"images/{CPU}/lock.json": text})
    assert path_of_lock(project, CPU) == project.root / f"images/{CPU}/lock.json"
    assert matrix_table.read_variant_state(project, find_variant(read_matrix(project), "cpu")).proof != "none"
    assert (
        render.dockerfile_path(project, find_variant(read_matrix(project), "cpu")) == ROOT / f"images/{CPU}/Dockerfile"
    )


def test_what_is_written_is_written_into_the_project(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path / "mine", (copy,))
    variant = find_variant(read_matrix(project), "cpu")
    before, committed = contents(copy), read_lock(path_of_lock(project, CPU))
    monkeypatch.setattr(resolution, "resolve_variant", lambda *_: committed)
    env = {"DRYDOCK_CACHE": str(tmp_path / "cache")}

    assert resolution.resolve_and_write(project, [variant], env=env) == []
    assert render.write_dockerfile(project, variant, committed) == []
    assert contents(project.root) == {}

    pins = {name: platform_pins.model_copy(update={"tools": ()}) for name, platform_pins in committed.platforms.items()}
    changed = committed.model_copy(update={"platforms": pins})
    monkeypatch.setattr(resolution, "resolve_variant", lambda *_: changed)
    folder = project.root / "images" / CPU
    assert resolution.resolve_and_write(project, [variant], env=env) == [folder / "lock.json"]
    changed_variant = variant.model_copy(update={"summary": "ours"})
    assert render.write_dockerfile(project, changed_variant, changed) == [folder / "Dockerfile"]
    assert write_record(project, CPU, ImageRecord())
    assert {path.name for path in folder.iterdir()} == {"lock.json", "Dockerfile", "record.json"}
    assert read_lock(path_of_lock(project, CPU)).platforms == pins
    assert contents(copy) == before


def test_locking_again_changes_nothing_below(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path / "mine", (copy,))
    variant = find_variant(read_matrix(project), "cpu")
    before, committed = contents(copy), read_lock(path_of_lock(project, CPU))
    write_record(project, CPU, ImageRecord())
    monkeypatch.setattr("drydock.pages.docs.write", lambda *_: [])
    for unresolved, in_project in (({"vllm": "no answer"}, False), ({}, True)):
        pins = {
            name: platform_pins.model_copy(update={"tools": (), "unresolved": unresolved})
            for name, platform_pins in committed.platforms.items()
        }
        lock = committed.model_copy(update={"platforms": pins})
        monkeypatch.setattr(resolution, "take_newest", lambda *_, lock=lock: [lockfile.write_own(project, lock)])
        proposal.relock_variants(project, [variant])
        assert path_of_lock(project, CPU).is_relative_to(project.root) == in_project
    assert contents(copy) == before


def test_a_version_in_a_stack_of_drydocks_own_is_not_changed(write: Write) -> None:
    with pytest.raises(InputError, match=r"stacks/cpu-0\.32\.yaml is drydock's own") as raised:
        update_rows(write({}), BumpOptions(target="cpu", vllm="0.32.9"))
    assert "inherits: drydock/cpu-0.32" in raised.value.hint


def test_the_entrypoint_of_a_project_is_that_of_all_layers(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    project = write({"entrypoints/core/errors.py": (ROOT / "entrypoints/core/errors.py").read_text() + "\nOURS = 1\n"})
    variant = find_variant(read_matrix(project), "cpu")
    folder = Path(entrypoint.argv_of(project, variant, ["version"])[0][3])
    assert (folder / "core/errors.py").read_text().endswith("OURS = 1\n")
    assert entrypoint.ask_entrypoint(project, variant, "facts", str(ROOT / "tests/hosts/cpu-xeon8380-2s/host.json"))[
        "processor"
    ]


def test_a_new_row_starts_from_the_pins_of_the_row_that_it_inherits(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write({"matrix.yaml": f"schema: 1\nvariants:\n  acme: {{inherits: drydock/{CPU}}}\n"})
    previous: list[Lock | None] = []

    def resolve(variant: Variant, old: Lock | None, *_: object) -> Lock:
        previous.append(old)
        return read_lock(path_of_lock(DRYDOCK, CPU)).model_copy(update={"variant": variant.id})

    monkeypatch.setattr(resolution, "resolve_variant", resolve)
    variants = read_matrix(project)
    resolution.resolve_and_write(project, [find_variant(variants, "acme"), find_variant(variants, CPU)])
    parents, own_lock = previous
    theirs = read_lock(path_of_lock(DRYDOCK, CPU))
    assert own_lock == theirs
    assert parents is not None
    assert [pins.layers for pins in parents.platforms.values()] == [pins.layers for pins in theirs.platforms.values()]


SETTING = "{value: 64, because: measured, source: us}"


def test_what_a_project_writes_into_its_own_row_or_stack_has_an_origin_of_its_own(write: Write) -> None:
    stack = f"inherits: drydock/cpu-0.32\nserve: {{--block-size: {SETTING}}}\nenv: {{VLLM_B: {SETTING}}}\n"
    row = f"  acme: {{inherits: drydock/{CPU}, stack: ours, serve: {{--max-num-seqs: {SETTING}}}}}\n"
    project = write({"templates/cpu/stacks/ours.yaml": stack, "matrix.yaml": f"schema: 1\nvariants:\n{row}"})
    variants = read_matrix(project)
    origins = {setting.setting: setting.origin for setting in find_variant(variants, "acme").settings}
    assert origins.pop("--max-num-seqs") == "project's variant"
    assert (origins.pop("--block-size"), origins.pop("VLLM_B")) == ("project's stack", "project's stack")
    assert "project's stack" not in origins.values()
    assert find_variant(variants, CPU).settings == find_variant(read_matrix(DRYDOCK), CPU).settings
