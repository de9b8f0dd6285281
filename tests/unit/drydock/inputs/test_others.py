"""Projects of others: taken by digest or commit only, checked before they are read, kept, and bounded."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK, find_project, read_settings
from drydock.core.errors import DrydockError, FetchError, InputError, RegistryError, UntrustedError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs import others, pinned_project, project_files
from drydock.inputs.git import Limits
from drydock.registry import registry_client
from tests.support import layouts
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.git import git
from tests.support.projects import ACME, ROWS, SETTINGS, STACK, VENDOR, write

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)


class Published:
    """A project in a registry: its blobs and its manifest, which a test may change."""

    def __init__(self, tar: bytes, change: Change = lambda _: None) -> None:
        self.blobs = {digest_of(tar): tar}
        layer = {"mediaType": project_files.LAYER, "digest": digest_of(tar), "size": len(tar)}
        config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest_of(b"{}"), "size": 2}
        content = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": project_files.KIND}
        content |= {"config": config, "layers": [layer]}
        change(content)
        self.manifest = json.dumps(content).encode()
        self.digest = digest_of(self.manifest)

    def answer(self, request: Seen) -> Answer:
        name = request.path.rpartition("/")[2]
        if "/manifests/" in request.path:
            return Answer(200, {"Content-Type": MANIFEST}, self.manifest)
        return Answer(200, {}, self.blobs[name]) if name in self.blobs else Answer(404)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def packed(files: Mapping[str, str]) -> bytes:
    return project_files.pack_project({name: text.encode() for name, text in files.items()})


def taking(folder: Path, address: str) -> Project:
    project = Project(write(folder, ACME, address), (ROOT,))
    return others.add_other_layers(project, read_settings(project))


def refused(address: str) -> DrydockError:
    with pytest.raises(DrydockError) as raised:
        others.read_published_project(address)
    return raised.value


# --- what is taken --------------------------------------------------------------------------------------------------


def test_rows_of_an_artefact_are_inherited_and_then_need_no_network(tmp_path: Path) -> None:
    artefact = Published(packed(VENDOR))
    with Fake(artefact.answer) as registry:
        address = f"oci://{registry.host}/vendor/rows@{artefact.digest}"
        project = taking(tmp_path / "acme", address)
    again = taking(tmp_path / "acme", address)
    assert project == again
    assert project.others == ("vendor",)
    variants = read_matrix(again)
    row, base = find_variant(variants, "acme-cpu"), find_variant(read_matrix(DRYDOCK), "cpu-vllm0.32")
    assert row.requirements == (*base.requirements, "structlog==25.1.0", "rich==14.0.0")
    assert find_variant(variants, "next").id == find_variant(variants, "cpu").id == "vendor-next"
    assert [
        variant.id for variant in read_matrix(others.read_published_project(address)) if "vendor" in variant.id
    ] == ["vendor-next"]


def test_what_a_vendors_images_get_is_in_its_rows_alone(tmp_path: Path) -> None:
    vendor = write(tmp_path / "vendor", VENDOR)
    variants = read_matrix(taking(tmp_path / "acme", "../vendor"))
    theirs = find_variant(read_matrix(Project(vendor, (ROOT,))), "vendor-next").additions
    assert [block.name for block in theirs.dockerfile] == ["mark", "row"]
    row = find_variant(variants, "vendor-next").additions
    assert row == theirs.model_copy(update={"labels": {**theirs.labels, "com.acme.team": "inference"}})
    assert find_variant(variants, "acme-cpu").additions == row
    assert find_variant(variants, "cpu-vllm0.32").additions.labels == {"com.acme.team": "inference"}
    assert not find_variant(variants, "cpu-vllm0.32").additions.dockerfile


def test_a_row_of_another_may_be_changed_under_its_own_name(tmp_path: Path) -> None:
    write(tmp_path / "vendor", VENDOR)
    changed = "schema: 1\nvariants:\n  vendor-next: {inherits: vendor/vendor-next, platforms: [linux/arm64]}\n"
    acme = {**ACME, "matrix.yaml": changed, "templates/cpu/stacks/acme-cpu.yaml": STACK}
    project = Project(write(tmp_path / "acme", acme, "../vendor"), (ROOT,))
    row = find_variant(read_matrix(others.add_other_layers(project, read_settings(project))), "next")
    assert (row.platforms, row.stack, row.default) == (("linux/arm64",), "vendor-cpu", True)


def test_the_row_of_drydock_itself_can_be_inherited_past_a_vendor_that_changes_it(tmp_path: Path) -> None:
    changed = "schema: 1\nvariants:\n  cpu-vllm0.32: {inherits: drydock/cpu-vllm0.32, platforms: [linux/arm64]}\n"
    write(tmp_path / "vendor", {**VENDOR, "matrix.yaml": changed})
    rows = "schema: 1\nvariants:\n  a: {inherits: drydock/cpu-vllm0.32}\n  b: {inherits: vendor/cpu-vllm0.32}\n"
    project = Project(write(tmp_path / "acme", {**ACME, "matrix.yaml": rows}, "../vendor"), (ROOT,))
    variants = read_matrix(others.add_other_layers(project, read_settings(project)))
    assert [find_variant(variants, name).platforms for name in "ab"] == [("linux/amd64",), ("linux/arm64",)]


def test_a_commit_is_taken_and_then_needs_no_repository(tmp_path: Path) -> None:
    repository = write(tmp_path / "vendor", {**VENDOR, "README.md": "not taken"})
    address = f"git+file://{repository}@{commit(repository)}"
    project = taking(tmp_path / "acme", address)
    git_folder = repository / ".git"
    git_folder.rename(tmp_path / "gone")
    assert taking(tmp_path / "acme", address) == project
    assert find_variant(read_matrix(project), "acme-cpu").stack == "acme-cpu"
    names = {path.relative_to(project.below[0]).as_posix() for path in project.below[0].rglob("*") if path.is_file()}
    assert names == {*VENDOR}


def commit(repository: Path) -> str:
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=x")
    return git(repository, "rev-parse", "HEAD")


def test_a_changed_file_of_the_cache_is_fetched_again(tmp_path: Path) -> None:
    artefact = Published(packed(VENDOR))
    with Fake(artefact.answer) as registry:
        project = taking(tmp_path / "acme", f"oci://{registry.host}/vendor@{artefact.digest}")
        (project.below[0] / "matrix.yaml").write_text("schema: 1\n")
        for path in (tmp_path / "cache" / "store" / "sha256").rglob("*"):
            if path.is_file():
                path.write_bytes(b"changed")
        again = taking(tmp_path / "acme", f"oci://{registry.host}/vendor@{artefact.digest}")
    assert (again.below[0] / "matrix.yaml").read_text() == ROWS


# --- what is refused ------------------------------------------------------------------------------------------------


def test_a_tag_is_refused_and_the_digest_is_shown() -> None:
    artefact = Published(packed(VENDOR))
    with Fake(artefact.answer) as registry:
        for name in (f"{registry.host}/vendor/rows:1.0", f"{registry.host}/vendor/rows"):
            error = refused(f"oci://{name}")
            assert isinstance(error, InputError)
            assert "expected a digest" in str(error)
            assert f"oci://{registry.host}/vendor/rows@{artefact.digest}" in error.hint
        assert not any("/blobs/" in request.path for request in registry.seen)
    assert "expected a digest" in str(refused("oci://127.0.0.1:1/vendor/rows:1.0"))


def test_a_branch_or_the_beginning_of_a_commit_is_refused_and_the_commit_is_shown(tmp_path: Path) -> None:
    repository = write(tmp_path / "vendor", VENDOR)
    whole = commit(repository)
    git(repository, "branch", "release/2027")
    for name in ("", "@release/2027"):
        error = refused(f"git+file://{repository}{name}")
        assert "expected a whole commit" in str(error)
        assert f"git+file://{repository}@{whole} now" in error.hint
    assert "git rev-parse HEAD" in refused(f"git+file://{repository}@{whole[:12]}").hint
    assert not (tmp_path / "cache" / "store" / "git").exists()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://example.org/rows", "unknown kind of address"),
        ("", "unknown kind of address"),
        ("no/such/folder", "found no drydock.yaml"),
        ("oci://example.org/rows@sha256:12", "invalid digest"),
        ("git+ext::sh -c touch% c", "invalid address"),
        ("git+--upload-pack=touch", "invalid address"),
    ],
)
def test_another_address_is_refused(address: str, expected: str) -> None:
    assert expected in str(refused(address))


def test_other_bytes_than_those_of_the_digest_are_never_parsed(tmp_path: Path) -> None:
    artefact = Published(packed(VENDOR))
    other_artefact = Published(packed({**VENDOR, "files/motd": "other"}))
    with Fake(other_artefact.answer) as registry:
        error = refused(f"oci://{registry.host}/vendor@{artefact.digest}")
    assert isinstance(error, RegistryError)
    assert f"the registry sent {other_artefact.digest} instead" in str(error)
    (tar,) = artefact.blobs.values()
    artefact.blobs = {digest_of(tar): tar[:-10] + b"0123456789"}
    with Fake(artefact.answer) as registry:
        assert "instead" in str(refused(f"oci://{registry.host}/vendor@{artefact.digest}"))
    artefact.blobs = {digest_of(tar): tar + b"more"}
    with Fake(artefact.answer) as registry:
        assert f"more than the {len(tar)} bytes expected" in str(
            refused(f"oci://{registry.host}/vendor@{artefact.digest}")
        )
    assert not (tmp_path / "cache" / "contexts").exists()


def entry(name: str, **fields: Any) -> tuple[str, bytes, Mapping[str, Any]]:
    return name, b"" if "type" in fields else b"x", fields


def long_header(size: int) -> bytes:
    """Return a tar file whose only member claims a size."""
    member = tarfile.TarInfo("templates/x.j2")
    member.size = size
    return member.tobuf(format=tarfile.GNU_FORMAT)


REGULAR = [(name, text.encode(), {}) for name, text in VENDOR.items()]


@pytest.mark.parametrize(
    ("tar", "expected"),
    [
        (
            layouts.tar([*REGULAR, entry("templates/l", type=tarfile.SYMTYPE, linkname="/etc/passwd")]),
            "no regular file",
        ),
        (layouts.tar([*REGULAR, entry("templates/l", type=tarfile.LNKTYPE, linkname="files/motd")]), "no regular file"),
        (layouts.tar([*REGULAR, entry("templates/l", type=tarfile.FIFOTYPE)]), "no regular file"),
        (layouts.tar([*REGULAR, entry("templates", type=tarfile.DIRTYPE)]), "no regular file"),
        (layouts.tar([*REGULAR, entry("../matrix.yaml")]), "expected the path of a file of a project"),
        (layouts.tar([*REGULAR, entry("templates/../../x")]), "expected the path of a file of a project"),
        (layouts.tar([*REGULAR, entry("/etc/cron.d/x")]), "expected the path of a file of a project"),
        (layouts.tar([*REGULAR, entry("templates/\x1b[2Jx")]), "expected the path of a file of a project"),
        (layouts.tar([*REGULAR, entry("templates/" + "d/" * 16 + "x")]), "expected the path of a file of a project"),
        (layouts.tar([*REGULAR, entry("templates/" + "x" * 300)]), "expected the path of a file of a project"),
        (layouts.tar([*REGULAR, entry("files/motd")]), "found twice"),
        (layouts.tar([*REGULAR, entry("files/motd/x")]), "found a file and a folder"),
        (layouts.tar([*REGULAR, entry("tasks.py")]), "unexpected file 'tasks.py'"),
        (layouts.tar([*REGULAR, entry("templates/.hidden")]), "unexpected file"),
        (layouts.tar(REGULAR[1:]), "found no drydock.yaml"),
        (layouts.tar(REGULAR)[:1100], "not the files of a project"),
        (long_header(10 << 30), "found more than 67108864 bytes"),
        (b"".join(tarfile.TarInfo(f"templates/{n}").tobuf() for n in range(10_001)), "more than 10000 files"),
        (b"\0" * 1024, "found no drydock.yaml"),
        (b"no tar file at all", "not the files of a project"),
        (layouts.tar([(FILE, b"\xff", {}) for FILE in ("drydock.yaml",)]), "byte 0 is not UTF-8"),
        (layouts.tar([("drydock.yaml", b"[" * 1000, {})]), "drydock.yaml"),
        (layouts.tar([("drydock.yaml", b"- x", {})]), "expected keys and values"),
    ],
)
def test_what_no_push_writes_is_refused(tmp_path: Path, tar: bytes, expected: str) -> None:
    artefact = Published(tar)
    with Fake(artefact.answer) as registry:
        error = refused(f"oci://{registry.host}/vendor@{artefact.digest}")
    assert isinstance(error, UntrustedError | InputError)
    assert expected in str(error)
    assert not (tmp_path / "cache" / "contexts").exists()


def set_size(content: dict[str, Any]) -> None:
    content["layers"][0]["size"] = 10 << 30


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data.update(artifactType="application/x"), "'application/x', expected application/vnd.drydock"),
        (lambda data: data.pop("artifactType"), "not a project"),
        (lambda data: data["layers"].append(data["layers"][0]), "not a project"),
        (lambda data: data.update(layers=[]), "not a project"),
        (lambda data: data["layers"][0].update(mediaType="application/x"), "not a project"),
        (lambda data: data["layers"][0].update(digest="sha256:../../x"), "digest"),
        (lambda data: data.update(manifests=[]), "an image and an index at once"),
        (set_size, "10737418240 bytes, expected at most 67108864"),
    ],
)
def test_an_artefact_of_another_kind_is_refused(change: Change, expected: str) -> None:
    artefact = Published(packed(VENDOR), change)
    with Fake(artefact.answer) as registry:
        assert expected in str(refused(f"oci://{registry.host}/vendor@{artefact.digest}"))
        assert not any("/blobs/" in request.path for request in registry.seen)


def test_without_a_registry_and_nothing_kept_the_error_says_what_to_run(tmp_path: Path) -> None:
    error = refused(f"oci://127.0.0.1:1/vendor/rows@sha256:{'0' * 64}")
    assert isinstance(error, RegistryError)
    assert "is not kept on this machine" in str(error)
    assert "run `./inv matrix` where it can be reached" in error.hint
    lacking = refused(f"git+file://{tmp_path}/none@{'0' * 40}")
    assert isinstance(lacking, FetchError)
    assert "is not kept on this machine" in str(lacking)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"matrix.yaml": "schema: 1\nvariants:\n  cpu-vllm0.32: {inherits: drydock/cpu-text-vllm0.32}\n"},
         "drydock has a row 'cpu-vllm0.32'"),
        ({"matrix.yaml": ROWS.replace("vendor-next:", "cpu-x86:")}, "drydock has an alias 'cpu-x86'"),
        ({"templates/cpu/stacks/cpu-0.32.yaml": "summary: ours\n"}, "drydock has a stack 'cpu-0.32'"),
        ({"drydock.yaml": SETTINGS.replace("name: vendor", "name: drydock")}, "'drydock' is also the name of drydock"),
        ({"drydock.yaml": SETTINGS.replace("name: vendor", "name: acme")}, "name: 'acme' is also the name of"),
        ({"drydock.yaml": SETTINGS + "from: [oci://x.example/y@sha256:1]\n"}, "which is not listed before it"),
    ],
)  # fmt: skip
def test_a_project_takes_no_name_by_accident(tmp_path: Path, files: Mapping[str, str], expected: str) -> None:
    write(tmp_path / "vendor", {**VENDOR, **files})
    with pytest.raises(InputError) as raised:
        read_matrix(taking(tmp_path / "acme", "../vendor"))
    assert expected in "\n".join(raised.value.problems)


def test_a_row_cannot_take_the_name_of_a_vendors_row(tmp_path: Path) -> None:
    write(tmp_path / "vendor", VENDOR)
    rows = "schema: 1\nvariants:\n  vendor-next: {inherits: drydock/cpu-vllm0.32}\n"
    project = Project(write(tmp_path / "acme", {**ACME, "matrix.yaml": rows}, "../vendor"), (ROOT,))
    with pytest.raises(InputError, match="vendor has a row 'vendor-next'") as raised:
        read_matrix(others.add_other_layers(project, read_settings(project)))
    assert "inherits: vendor/vendor-next" in raised.value.hint


def test_a_link_in_a_commit_is_refused(tmp_path: Path) -> None:
    repository = write(tmp_path / "vendor", VENDOR)
    (repository / "templates" / "x.j2").symlink_to("/etc/passwd")
    assert "'templates/x.j2': a link" in str(refused(f"git+file://{repository}@{commit(repository)}"))


def test_a_large_repository_ends_the_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = write(tmp_path / "vendor", VENDOR)
    (repository / "large").write_bytes(hashlib.shake_128(b"").digest(3 << 20))
    monkeypatch.setattr(pinned_project, "LIMITS", Limits(60, 1 << 20))
    error = refused(f"git+file://{repository}@{commit(repository)}")
    assert "more than 1 MiB, or damaged" in str(error)


# --- what is published ----------------------------------------------------------------------------------------------


def test_the_same_files_make_the_same_bytes_and_only_files_of_a_project_are_in_them(tmp_path: Path) -> None:
    more = {"templates/.swap": "", "templates/x~": "", "notes.txt": "", "certificates/key.pem": "", ".git/x": ""}
    certified = SETTINGS.replace("additions:", "additions:\n  certificates: certificates")
    files = {**VENDOR, "drydock.yaml": certified, "certificates/ca.crt": "x", "images/vendor-next/lock.json": "{}"}
    one = project_files.in_folder(write(tmp_path / "one", {**files, **more}))
    two = project_files.in_folder(write(tmp_path / "two", dict(reversed(files.items()))))
    assert {*one} == {*files}
    assert project_files.pack_project(one) == project_files.pack_project(two)
    assert project_files.unpack_project(project_files.pack_project(one), "x") == one


def test_a_link_is_not_published(tmp_path: Path) -> None:
    folder = write(tmp_path / "vendor", VENDOR)
    (folder / "templates" / "secret.j2").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"templates/secret\.j2: a link, expected a file"):
        project_files.in_folder(folder)


def test_a_project_without_others_is_found_as_before(tmp_path: Path) -> None:
    project = find_project(write(tmp_path, {"drydock.yaml": "schema: 1\nname: acme\n"}), {})
    assert others.add_other_layers(project, read_settings(project)) == project == Project(tmp_path, (ROOT,))
