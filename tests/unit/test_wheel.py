"""The installed tool: a wheel and a source distribution, the same bytes each time, that do what the checkout does."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.core.commit import read_commit
from drydock.core.paths import ROOT
from drydock.core.tar import unpack_tar
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import uv_binary

pytestmark = pytest.mark.checkout

NOT_INSTALLED = {"bench", "docs", "generate", "lint", "release", "requirements", "schema", "test"}
INPUTS = """
import json
from drydock.build.build_job import BuildOptions, prepare_job
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
print(json.dumps({
    f"{variant.id} {platform}": prepare_job(DRYDOCK, variant.id, BuildOptions(platform)).inputs_sha256
    for variant in read_matrix(DRYDOCK) for platform in variant.platforms
}))
"""
"""Prints the checksum of all that each image's digest depends on."""
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "HF_ENDPOINT": "http://127.0.0.1:9"}
"""With a model hub that does not answer."""
LARGEST_WHEEL = 4_500_000
"""Bytes: a third is failures and vLLM's lists, a quarter locks. A page or a test that slips in is more."""
FOREIGN = "raise ImportError('an unrelated package of this name')\n"


def uv(*words: str, cwd: Path, umask: int = 0o022) -> None:
    environment = uv_environment(read_indexes(), os.environ)
    done = subprocess.run(
        [str(uv_binary()), *words], cwd=cwd, env=environment, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def built(source: Path, to: Path, umask: int = 0o022) -> list[Path]:
    """Build a source distribution, and a wheel of it."""
    uv("build", "--quiet", "--python", sys.executable, "--out-dir", str(to), cwd=source, umask=umask)
    return sorted(to.glob("drydock_images-*"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the wheel and the source distribution of this checkout."""
    return built(ROOT, tmp_path_factory.mktemp("dist"))


class Installed:
    """A wheel in an environment of its own, used by someone in another folder."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.bin, self.home = folder / "venv" / "bin", folder / "home"
        self.home.mkdir()
        uv("venv", "--quiet", "--python", sys.executable, str(folder / "venv"), cwd=folder)
        uv("pip", "install", "--quiet", "--python", str(self.bin / "python"), str(wheel), cwd=folder)
        (self.packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        for name in ("entrypoints", "tasks"):
            (self.packages / f"{name}.py").write_text(FOREIGN)

    def run(self, *argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=cwd or self.home,
            env={**ENVIRONMENT, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            check=False,
        )

    def drydock(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.bin / "drydock"), *words, cwd=cwd)

    def tree(self) -> dict[str, str]:
        """Return every file of the package but bytecode, with its hash."""
        paths = (self.packages / "drydock").rglob("*")
        return {str(path): sha256(path) for path in paths if path.is_file() and path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def installed(distributions: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Return the installed wheel; nothing that the tests do may change its files."""
    installation = Installed(tmp_path_factory.mktemp("a user"), distributions[0])
    before = installation.tree()
    yield installation
    assert installation.tree() == before


def checkout(*words: str) -> str:
    """Return what `./inv` prints."""
    argv = (sys.executable, str(ROOT / "tasks.py"), *words)
    return subprocess.run(argv, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout


def test_a_wheel_and_a_source_distribution_are_the_same_bytes_each_time(
    distributions: list[Path], tmp_path: Path
) -> None:
    with tarfile.open(distributions[1]) as archive:
        unpack_tar(archive, tmp_path)
    (source,) = tmp_path.glob("drydock_images-*")
    for path in source.rglob("*"):
        os.utime(path, (1, 1))

    again = built(source, tmp_path / "dist", umask=0o077)

    assert [path.name.rpartition(".")[2] for path in distributions] == ["whl", "gz"]
    assert {path.name: sha256(path) for path in again} == {path.name: sha256(path) for path in distributions}
    assert distributions[0].stat().st_size < LARGEST_WHEEL


def test_a_wheel_has_every_file_of_the_package_and_of_the_image_side(distributions: list[Path]) -> None:
    patterns = (
        "CHANGELOG.md",
        "drydock",
        "entrypoints",
        "images",
        "templates",
        "tests/hosts/*/host.json",
        "tests/hosts/rows.yaml",
    )
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    with zipfile.ZipFile(distributions[0]) as wheel:
        names = {name.removeprefix("drydock/data/") for name in wheel.namelist()}

    assert tracked
    assert tracked <= names
    assert not [name for name in names if name.endswith(("/facts.json", "/plan.json", ".pyc"))]


def test_the_version_says_the_commit_and_what_can_be_built(installed: Installed) -> None:
    version_text = installed.drydock("--version").stdout

    assert version_text == checkout("--version")
    assert f"\ncommit {read_commit(ROOT)}\n" in version_text


def test_the_overview_lists_what_an_installed_drydock_has_as_one_types_it(installed: Installed) -> None:
    installed_help, checkout_help = installed.drydock("help").stdout, checkout("help")

    assert installed_help.startswith("Usage: drydock TASK")
    assert "./inv" not in installed_help
    lines = {line.split("  ")[1] for line in checkout_help.splitlines() if line.startswith("  ")}
    installed_lines = {line.split("  ")[1] for line in installed_help.splitlines() if line.startswith("  ")}
    assert {name.split()[0] for name in lines - installed_lines} == NOT_INSTALLED


def test_it_has_the_rows_of_the_checkout_and_the_inputs_of_each_image_are_the_same(installed: Installed) -> None:
    python = str(installed.bin / "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    checkout_inputs = subprocess.run(
        [sys.executable, "-c", INPUTS], env=environment, capture_output=True, text=True, check=True
    )

    assert installed.drydock("matrix", "--json").stdout == checkout("matrix", "--json")
    assert installed.drydock("render", "--check").returncode == 0
    assert json.loads(installed.run(python, "-c", INPUTS).stdout) == json.loads(checkout_inputs.stdout)


def test_it_plans_as_the_checkout_does(installed: Installed) -> None:
    host = str(ROOT / "tests" / "hosts" / "cuda-h100-8x" / "host.json")
    words = ("entrypoint", "--target", "h100", "--root", host, "--", "plan", "--model", "Qwen/Qwen3-32B")

    planned = installed.drydock(*words).stdout

    assert "api_server" in planned
    assert planned == checkout(*words)
    assert "cuda-h100-8x" in installed.drydock("size", "Qwen/Qwen3-8B").stdout


def test_what_is_written_goes_into_a_project(installed: Installed, tmp_path: Path) -> None:
    refused = installed.drydock("lock", "--target", "cpu")
    assert refused.returncode == 2
    assert (
        "is the installed drydock, which is only read\n\nhint: `drydock project init DIR` makes a project"
        in refused.stderr
    )

    name = "images/cpu-vllm0.32/Dockerfile"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("FROM outdated\n")
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: acme\n")
    outdated = installed.drydock("render", "--target", "cpu", "--check", cwd=tmp_path)
    assert "hint: change the matrix or the templates and run `drydock render`" in outdated.stderr
    assert f"wrote {name}\n" in installed.drydock("render", "--target", "cpu", cwd=tmp_path).stderr
    assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_it_runs_nothing_that_another_user_planted_in_a_folder_above(installed: Installed, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "entrypoints").mkdir()
    for name in ("entrypoints/__main__.py", "tasks.py", "invoke.py", "pip.py"):
        (tmp_path / name).write_text(f"open({str(ran)!r}, 'w')\n")
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: planted\nrows: all\n")
    (tmp_path / "mine").mkdir()
    tmp_path.chmod(0o1777)

    refused = installed.drydock("entrypoint", "--target", "cpu", "--", "version", cwd=tmp_path / "mine")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"drydock --project {tmp_path} TASK" in refused.stderr
    assert installed.drydock("doctor", "--json", cwd=tmp_path).stderr.startswith("error: ")
    assert not ran.exists()


def test_a_project_names_the_wheel_that_is_installed_by_its_hash(
    installed: Installed, distributions: list[Path], tmp_path: Path
) -> None:
    done = installed.drydock("project", "init", str(tmp_path / "acme"))

    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert sha256(tmp_path / "acme" / distributions[0].name) == sha256(distributions[0])
    assert (
        f"./{distributions[0].name} \\\n    --hash=sha256:{sha256(distributions[0])}\n"
        in (tmp_path / "acme/requirements.txt").read_text()
    )
    assert installed.drydock("ci", "--check", cwd=tmp_path / "acme").returncode == 0


def test_a_project_names_no_wheel_where_another_one_lies_now(
    installed: Installed, distributions: list[Path], tmp_path: Path
) -> None:
    (record,) = installed.packages.glob("drydock_images-*/direct_url.json")
    recorded = record.read_text()
    other = tmp_path / distributions[0].name
    with zipfile.ZipFile(distributions[0]) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + (b"# planted\n" if name == "drydock/cli/cli.py" else b""))
    try:
        record.write_text(json.dumps({"url": other.as_uri(), "archive_info": {}}))
        planted = installed.drydock("project", "init", str(tmp_path / "planted"), "--ci", "none")
        record.write_text(json.dumps({"url": f"{other.as_uri()}.gone", "archive_info": {}}))
        removed = installed.drydock("project", "init", str(tmp_path / "gone"), "--ci", "none")
    finally:
        record.write_text(recorded)

    assert "drydock/cli/cli.py: differs from the drydock that is installed" in planted.stderr
    assert "which pip cannot get" in removed.stderr
    assert not [*tmp_path.glob("*/*.whl")]
    assert "drydock_images-0.1.0-py3-none-any.whl \\" not in (tmp_path / "planted" / "requirements.txt").read_text()
    assert (planted.returncode, removed.returncode) == (0, 0)
