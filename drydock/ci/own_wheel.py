"""The wheel of this drydock, so that a project's CI installs this one and no other: its file, or its address. IO.

The name alone does not say which program it is: whoever has it in an index decides. A hash does.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name

from drydock import INSTALLED
from drydock.cli.version import DISTRIBUTION, read_own_version
from drydock.core.errors import BuildError, UntrustedError
from drydock.core.files import parse_any_json
from drydock.core.paths import ROOT
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import uv_binary

BUILD_REQUIREMENTS, INSTALL_REQUIREMENTS = "requirements-build.txt", "requirements-install.txt"
WHEEL_NAME = DISTRIBUTION.replace("-", "_")
"""How file names spell it (binary distribution format, escaping)."""
REINSTALL = (
    "install drydock from its wheel, `pip install FILE_OR_ADDRESS`,"
    " then run `./inv project upgrade --write` in the project"
)
COMMIT = "drydock/data/COMMIT"
"""The file of a wheel that says which commit it was made of."""


class OwnWheel(NamedTuple):
    """The wheel of this drydock."""

    filename: str
    sha256: str
    content: bytes
    """Empty if it is at an address."""
    address: str = ""
    """Where it was installed from, if others can reach that."""


def find_own_wheel(env: Mapping[str, str] = os.environ) -> OwnWheel:
    """Return the wheel that this drydock was installed from, or the one that this checkout makes.

    Raises BuildError if it cannot be had, UntrustedError if it is not what is installed.
    """
    with tempfile.TemporaryDirectory(prefix="drydock-wheel-") as name:
        if not INSTALLED:
            constraints = ROOT / BUILD_REQUIREMENTS
            paths = build_packages(ROOT, Path(name), constraints, env)
            return _read_wheel(next(path for path in paths if path.suffix == ".whl"))
        installed = importlib.metadata.distribution(DISTRIBUTION)
        origin = read_origin(installed)
        if address := at_address(origin):
            return address
        wheel = _read_wheel(_collect_wheel(requirement_of(origin), Path(name), env))
        check_installed(wheel, installed)
        return wheel


def build_packages(
    source: Path, folder: Path, constraints: Path, env: Mapping[str, str], umask: int = 0o022
) -> list[Path]:
    """Build a source distribution, and a wheel from it; return both, sorted. Raises BuildError."""
    # An inherited SOURCE_DATE_EPOCH would give other bytes than everyone else's build.
    environment = uv_environment(read_indexes(env), {k: v for k, v in env.items() if k != "SOURCE_DATE_EPOCH"})
    words = ("build", "--quiet", "--python", sys.executable, "--out-dir", str(folder), "--no-create-gitignore")
    hashed = ("--build-constraints", str(constraints), "--require-hashes")
    result = subprocess.run(
        [str(uv_binary()), *words, *hashed],
        cwd=source,
        env=environment,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise BuildError(f"uv build: exit {result.returncode}: {result.stderr.strip()}")
    return sorted(folder.glob(f"{WHEEL_NAME}-*"))


def parse_pins(text: str) -> dict[str, str]:
    """Return the version of each distribution in a list with hashes."""
    return {
        str(canonicalize_name(name)): pin for name, pin in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)
    }


def read_origin(installed: importlib.metadata.Distribution) -> Mapping[str, Any]:
    """Return what the installer recorded of where a distribution is from (PEP 610); nothing for an index."""
    try:
        origin = parse_any_json(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}


def at_address(origin: Mapping[str, Any]) -> OwnWheel | None:
    """Return a wheel that was installed from an http address whose hash was recorded; None for any other. Pure."""
    address = str(origin.get("url", ""))
    parts, hashes = urlsplit(address), _read_origin_hashes(origin)
    filename = parts.path.rpartition("/")[2]
    is_public = parts.scheme in ("http", "https") and parts.username is None
    if not (is_public and filename.endswith(".whl") and "sha256" in hashes):
        return None
    return OwnWheel(filename, hashes["sha256"], b"", address)


def _read_origin_hashes(origin: Mapping[str, Any]) -> Mapping[str, str]:
    archive = origin.get("archive_info")
    if not isinstance(archive, dict):
        return {}
    name, _, value = str(archive.get("hash", "")).partition("=")  # how installers wrote it before `hashes`
    hashes = archive.get("hashes")
    return {name: value, **(hashes if isinstance(hashes, dict) else {})}


def requirement_of(origin: Mapping[str, Any]) -> str:
    """Return what pip gets to make the same wheel again. Pure."""
    address, commit = str(origin.get("url", "")), origin.get("vcs_info")
    if isinstance(commit, dict):
        return f"{commit.get('vcs')}+{address}@{commit.get('commit_id')}"
    return address or f"{DISTRIBUTION}=={read_own_version()}"


def _collect_wheel(requirement: str, folder: Path, env: Mapping[str, str]) -> Path:
    """Let pip copy, download or build a wheel. Raises BuildError."""
    words = ("pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", str(folder), requirement)
    result = subprocess.run(
        [sys.executable, "-m", *words], env=dict(env), capture_output=True, text=True, check=False
    )  # fmt: skip
    paths = [*folder.glob("*.whl")]
    if result.returncode or len(paths) != 1:
        reason = (result.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise BuildError(f"drydock was installed from {requirement}, which pip cannot get: {reason}", hint=REINSTALL)
    return paths[0]


def _read_wheel(path: Path) -> OwnWheel:
    content = path.read_bytes()
    return OwnWheel(path.name, hashlib.sha256(content).hexdigest(), content)


def check_installed(wheel: OwnWheel, installed: importlib.metadata.Distribution) -> None:
    """Check that each file of a wheel is one that is installed: a name, path or index may have another one by now.

    Raises UntrustedError.
    """
    hashes = {str(file): file.hash.value for file in installed.files or () if file.hash}
    with zipfile.ZipFile(io.BytesIO(wheel.content)) as archive:
        names = [name for name in archive.namelist() if not name.endswith(".dist-info/RECORD")]
        files = [name for name in names if hashes.get(name) != _record_hash(archive.read(name))]
    if files or not names:
        text = f"{wheel.filename}: {', '.join(files[:3]) or 'its content'}: differs from the drydock that is installed"
        raise UntrustedError(text, hint=REINSTALL)


def _record_hash(content: bytes) -> str:
    """Return a hash as RECORD has it: base64 without padding."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def read_wheel_commit(path: Path) -> str:
    """Return the commit that a wheel was made of; empty if it does not say so."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(COMMIT).decode("ascii").strip()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return ""
