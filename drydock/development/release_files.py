"""The files of a release: wheel, source distribution, bill of materials, checksums and a signature. IO.

Both packages are built twice, from the checkout and from the source distribution, and must be the same bytes. They are
built of files with hashes in requirements-build.txt. Anyone who builds the same commit gets the same hashes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from drydock.attest import bom, cosign, licences
from drydock.attest.bom import BomSubject
from drydock.attest.components import Component
from drydock.attest.contents import Package
from drydock.attest.cosign import Signer
from drydock.attest.licences import LicencePolicy
from drydock.ci.ci_variables import KEY
from drydock.ci.own_wheel import BUILD_REQUIREMENTS, INSTALL_REQUIREMENTS, build_packages, parse_pins
from drydock.cli.version import DISTRIBUTION, read_own_version
from drydock.core.commit import read_commit, run_git
from drydock.core.errors import InputError, NotReproducibleError, UntrustedError
from drydock.core.files import write_atomically
from drydock.core.project import Project
from drydock.core.tar import unpack_tar

CHECKSUMS = "SHA256SUMS"
SIGNATURE = f"{CHECKSUMS}.sigstore.json"


def make_release_files(
    project: Project, folder: Path, signed_by: Signer | None, env: Mapping[str, str] = os.environ
) -> list[Path]:
    """Write the files of the release that this checkout is at into an empty folder, and return them.

    Raises InputError if it is at none, NotReproducibleError if two builds differ.
    """
    root = project.root
    epoch = _commit_time(root, f"v{read_own_version()}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is not an empty folder", hint="name a new one")
    cosign.require_signer(signed_by, env)
    with tempfile.TemporaryDirectory(prefix="drydock-") as temporary:
        packages = _built_twice(root, Path(temporary), env)
        contents = {path.name: path.read_bytes() for path in packages}
        (wheel,) = (path for path in packages if path.suffix == ".whl")
        contents[f"{wheel.stem}.spdx.json"] = _make_wheel_bom(project, wheel, epoch)
    sums = "".join(f"{compute_sha256(data)}  {name}\n" for name, data in sorted(contents.items())).encode()
    contents[CHECKSUMS] = sums
    if signed_by:
        contents[SIGNATURE] = cosign.sign_data(sums, signed_by, env)
    for name, data in contents.items():
        write_atomically(folder / name, data)
    return [folder / name for name in contents]


def choose_signer(key: str, *, unsigned: bool, env: Mapping[str, str] = os.environ) -> Signer | None:
    """Return who signs: a key, else that of DRYDOCK_COSIGN_KEY, else one's identity. Raises InputError."""
    if key and unsigned:
        raise InputError("--sign-key and --unsigned exclude each other")
    return None if unsigned else Signer(key or env.get(KEY, ""))


def compute_sha256(data: bytes) -> str:
    """Return the sha256 of data."""
    return hashlib.sha256(data).hexdigest()


def _commit_time(root: Path, tag: str) -> int:
    """Return the time of the commit, in seconds. Raises InputError unless the checkout is what the tag names."""
    commit = read_commit(root)
    tagged = run_git(root, "rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}", may_fail=True).strip()
    if not commit or commit != tagged:
        actual_commit = f"{commit[:-1]} with changed files" if commit.endswith("+") else commit or "no commit"
        expected = f"{tag} ({tagged})" if tagged else f"{tag}, and there is no such tag"
        hint = f"git switch --detach {tag}, or make a release: ./inv release VERSION"
        raise InputError(f"the checkout is at {actual_commit}, expected {expected}", hint=hint)
    return int(run_git(root, "show", "--no-patch", "--format=%ct", commit))


# --- packages ---------------------------------------------------------------------------------------------------------


def _built_twice(root: Path, folder: Path, env: Mapping[str, str]) -> list[Path]:
    """Return wheel and source distribution. Raises NotReproducibleError unless the latter gives the same again."""
    constraints = root / BUILD_REQUIREMENTS
    first = build_packages(root, folder / "first", constraints, env, 0o022)
    (source,) = (path for path in first if path.name.endswith(".tar.gz"))
    with tarfile.open(source) as archive:
        unpack_tar(archive, folder / "source")
    second = build_packages(next((folder / "source").iterdir()), folder / "second", constraints, env, 0o077)
    hashes = [{path.name: compute_sha256(path.read_bytes()) for path in built} for built in (first, second)]
    if hashes[0] != hashes[1]:
        different = [f"{name}: {value}, then {hashes[1].get(name)}" for name, value in hashes[0].items()]
        raise NotReproducibleError(*different, hint="compare with diffoscope what two runs of `uv build` give")
    return first


# --- bill of materials ------------------------------------------------------------------------------------------------


def _make_wheel_bom(project: Project, wheel: Path, epoch: int) -> bytes:
    """Return the bill of materials of a wheel: what it needs, in the versions that its tests ran with."""
    pins = parse_pins((project.root / INSTALL_REQUIREMENTS).read_text(encoding="utf-8"))
    policy = licences.read_policy(project)
    parts = [_make_component(name, version, policy) for name, version in sorted(pins.items())]
    subject = BomSubject(DISTRIBUTION, read_own_version(), compute_sha256(wheel.read_bytes()), epoch, "wheel")
    text = bom.make_bom(subject, parts)
    if problems := bom.find_spdx_violations(text):
        raise UntrustedError(*(f"invalid bill of materials: {problem}" for problem in problems))
    return text.encode()


def _make_component(name: str, version: str, policy: LicencePolicy) -> Component:
    """Return a distribution with its licence, if it is installed."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return Component("pypi", name, version)
    fields = {key: tuple(metadata.get_all(key) or ()) for key in ("License-Expression", "License", "Classifier")}
    override = policy.packages.get(name)
    package = Package("pypi", name, version, "", "", fields)
    licence = override.licence if override else licences.find_spdx_expression(package, policy.names)
    return Component("pypi", name, version, licence=licence)
