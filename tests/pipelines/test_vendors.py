"""A row whose vendor is reached, from its lock to a registry: by one command, by each server's job, and verified.

The vendor's servers are stand-ins (tests/support/vendors.py). All else is real: engine, registry, TLS, signatures.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from drydock.ci import publishing
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs.supplied import VARIABLE
from drydock.lock import lockfile
from drydock.model.variant import Variant
from tests.pipelines.conftest import INV, Runner
from tests.support.git import git
from tests.support.local_registry import FILES, FOLDERS
from tests.support.servers import PASSWORD
from tests.support.vendors import Vendors

PLATFORM = "linux/amd64"
ROWS = (
    pytest.param("gaudi2", {"base"}),
    pytest.param("ascend-a2", {"base", "wheels"}, marks=pytest.mark.slow),
    pytest.param("gcu", {"base", "topsrider"}, marks=pytest.mark.slow),
)
"""Target, and what only its vendor has."""


@pytest.fixture
def built() -> Iterator[set[str]]:
    """Digests of what a test built; the engine loses them at its end."""
    digests: set[str] = set()
    yield digests
    for digest in digests:
        docker.from_env().images.remove(digest, force=True)


class Machine:
    """A clone of a repository, with a cache and docker credentials of its own."""

    def __init__(self, folder: Path, origin: Path, env: dict[str, str]) -> None:
        folder.mkdir()
        self.root = folder / "checkout"
        git(folder, "clone", "--quiet", str(origin), str(self.root))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PIP_", "UV_"))}
        own = {"DRYDOCK_CACHE": str(folder / "cache"), "DOCKER_CONFIG": str(folder / "docker")}
        self.env = {**inherited, **env, **own, "PYTHONPATH": str(self.root), "COSIGN_PASSWORD": ""}

    def invoke(self, *words: str, code: int = 0) -> str:
        """Run tasks, and return what they printed."""
        result = subprocess.run(
            [sys.executable, "-m", "invoke", *words], cwd=self.root, env=self.env, capture_output=True, text=True,
            check=False, timeout=900,
        )  # fmt: skip
        output = result.stdout + result.stderr
        assert result.returncode == code, output[-4000:]
        sys.stdout.write(f"$ ./inv {' '.join(words)}\n{output}\n")
        return output

    def commit(self) -> None:
        """Commit all that changed, and push it."""
        git(self.root, "add", "--all")
        git(self.root, "commit", "--quiet", "--message=x")
        git(self.root, "push", "--quiet")


def make_repository(folder: Path, variant: Variant, vendors: Vendors) -> Path:
    """Make a repository of this checkout with one row, on one platform, whose stack names the stand-ins' commits."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    vendors.rewrite_stacks(folder / "templates")
    matrix = (folder / "matrix.yaml").read_text()
    row = re.search(rf"  {re.escape(variant.id)}:.*?(?=\n  \S)", matrix, re.DOTALL)
    assert row
    rows = row[0].replace("[linux/arm64, linux/amd64]", f"[{PLATFORM}]")
    (folder / "matrix.yaml").write_text(f"{matrix.partition('variants:')[0]}variants:\n{rows}\n")
    (folder / "inv").write_text(INV)
    (folder / "inv").chmod(0o755)
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=x")
    git(folder, "config", "receive.denyCurrentBranch", "updateInstead")
    return folder


@pytest.mark.parametrize(("target", "lacking"), ROWS)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root tells the engine which certificates to trust")
def test_a_row_whose_vendor_is_reached_goes_from_lock_to_registry(
    target: str, lacking: set[str], key: Path, built: set[str], tmp_path: Path
) -> None:
    variant = find_variant(read_matrix(DRYDOCK), target)
    (tmp_path / "repository").mkdir()
    with Vendors(tmp_path / "vendors", variant) as vendors:
        repository = make_repository(tmp_path / "repository", variant, vendors)
        registry = f"https://{vendors.target.host}"
        secrets = {"DRYDOCK_COSIGN_KEY": str(key), publishing.USER: "someone", publishing.PASSWORD: PASSWORD}

        # Where only the public servers are reached, a lock pins what these have.
        here = Machine(tmp_path / "here", repository, vendors.environment)
        here.invoke("lock", "render")
        path = lockfile.path_of_lock(Project(here.root), variant.id)
        assert set(lockfile.read_lock(path).platforms[PLATFORM].unresolved) == lacking
        here.commit()

        # Where the vendor is reached, one command goes from there to the registry.
        vendors.open()
        supply = [word for folder in vendors.supplied for word in ("--supplied", folder)]
        login = ["docker", "login", vendors.target.host, "--username", "someone", "--password-stdin"]
        subprocess.run(login, input=PASSWORD, text=True, env=here.env, check=True, capture_output=True)
        row = ("--target", target)
        output = here.invoke(
            *("build", *row, *supply, "verify", "--record", *row),
            *("publish", *row, "--registry", f"{registry}/first", "--sign-key", str(key)),
        )
        pins = lockfile.read_lock(path).platforms[PLATFORM]
        assert not pins.unresolved
        for name in lacking:
            assert f"pinned {name}" in output
        assert f"commit images/{variant.id}/lock.json to share it" in output
        here.invoke("render", "ci")
        here.commit()

        # On a runner, with an empty cache, each server's job does the same again.
        runner_env = {**vendors.environment, **secrets, "CI": "true", VARIABLE: ":".join(vendors.supplied)}
        before = git(repository, "rev-parse", "HEAD~1")
        runner = Machine(tmp_path / "runner", repository, runner_env)
        runner.env |= {"SINCE": before, "LARGE": "amd64", "ONLY": "changed", "GITHUB_OUTPUT": str(tmp_path / "output")}
        runner.env |= {"GITHUB_REF": "refs/heads/main", "REGISTRY": f"{registry}/github", "VARIANT": variant.id}
        github = Runner("github", runner.root, runner.env)
        github.run("release-changes")
        assert variant.id in (tmp_path / "output").read_text()
        outputs = [github.run("release")]
        runner.env |= {
            "REF": "refs/heads/main",
            "DRYDOCK_REGISTRY": f"{registry}/gitlab",
            "DRYDOCK_LARGE_RUNNERS": "amd64",
        }
        outputs.append(Runner("gitlab", runner.root, runner.env).run("release"))
        assert PASSWORD not in "".join(outputs)
        assert all('"matches_committed": true' in output for output in outputs)
        sys.stdout.write("\n".join(outputs))

        # A third machine finds one digest in all three places, and builds it from the lock.
        digest = re.findall(r"sha256:[0-9a-f]{64}", outputs[0])[0]
        built.add(digest)
        elsewhere = Machine(tmp_path / "elsewhere", repository, {**vendors.environment, VARIABLE: runner.env[VARIABLE]})
        subprocess.run(login, input=PASSWORD, text=True, env=elsewhere.env, check=True, capture_output=True)
        trust = ("--verify-key", str(key.with_suffix(".pub")))
        for server, more in (("first", ("--registry-only",)), ("github", ("--registry-only",)), ("gitlab", ())):
            reference = f"{registry}/{server}/{variant.accelerator}@{digest}"
            assert digest in elsewhere.invoke("image.verify", reference, *trust, *more)
