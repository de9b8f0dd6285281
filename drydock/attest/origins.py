"""Compares the bytes in an image's layers with what the lock and the repository pin. IO (reads only).

A Debian base is compared whole: the digest in the lock is a function of its only layer. Files of wheels are compared
with RECORD in the image, and RECORD with that of the pinned wheel. Bytecode is not compared: a rebuild shows it.
Sources: the "Recording installed projects" and "Binary distribution format" pages of the Python packaging
specifications.
"""

from __future__ import annotations

import hashlib
import importlib.util
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from drydock.attest.contents import CONVERSIONS, ENVIRONMENT, OWN_LINKS, USERS, ImageContents, read_record, resolve
from drydock.build import render
from drydock.build.job import Job, entrypoint_files
from drydock.core.console import log
from drydock.core.errors import StaleError
from drydock.inputs import fetch, rootfs
from drydock.inputs.store import Store, default_store
from drydock.model.locked import LockedDebianBase, LockedImageBase, LockedWheel
from drydock.oci import layout as oci

USER = "drydock:x:10001:0:drydock:/cache/home:/usr/sbin/nologin\n"
"""The line that the build adds to /etc/passwd."""
SYSTEM_PATH = oci.PATH.removeprefix("PATH=")
ENTRYPOINTS = "opt/drydock/entrypoints/"
SCRIPTED = "opt/drydock/environment.json"
"""What the set-up scripts of a vendor's base export."""
PYVENV = f"{ENVIRONMENT}pyvenv.cfg"
SETTINGS = frozenset(
    (
        "ArgsEscaped",
        "Cmd",
        "Entrypoint",
        "Env",
        "ExposedPorts",
        "Healthcheck",
        "Labels",
        "User",
        "Volumes",
        "WorkingDir",
    )
)
"""What the Dockerfile of a Debian base sets."""
METADATA = re.compile(r"([^/]+\.dist-info)/RECORD")
INSTALLED = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"})
"""Files of a metadata folder that the installer writes."""


def problems(job: Job, found: ImageContents, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a line for each file or setting that is not what lock and repository pin; `config` is the image's.

    Raises FetchError if a wheel in the store was changed on the disk.
    """
    return (
        *_settings(job, config.get("config", {})),
        *_streams(found, config),
        *_base(job, found),
        *_image_base(job, found),
        *_passwd(job, found),
        *_own(job, found),
        *_environment(job, found),
        *_records(found),
        *_wheels(job, found),
    )


def _settings(job: Job, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings with which a container starts that differ from the Dockerfile."""
    program = [job.variant.interpreter, "-I", "-S", "/opt/drydock/entrypoints"]
    healthcheck = config.get("Healthcheck")
    test = healthcheck.get("Test") if isinstance(healthcheck, dict) else healthcheck
    found = {**config, "Healthcheck": test, "WorkingDir": config.get("WorkingDir", "/")}
    health = ["CMD", *program, "health"]
    expected = {"Entrypoint": program, "Cmd": ["serve"], "User": "10001:0", "Healthcheck": health}
    for name, value in {**expected, "WorkingDir": "/", "OnBuild": None}.items():
        if found.get(name) != value:
            yield f"config: {name} is {found.get(name)!r}, expected {value!r}"
    if not isinstance(job.pins.base, LockedDebianBase):  # a vendor's base brings variables and labels of its own
        return
    dockerfile = (job.folder / "Dockerfile").read_text()
    for setting in config.get("Env", []):
        written = setting.replace(SYSTEM_PATH, "$PATH") if setting.startswith("PATH=") else setting
        if not re.search(rf"^(?:ENV|   ) {re.escape(written)}(?: \\)?$", dockerfile, re.MULTILINE):
            yield f"config: Env: {setting!r} is not in images/{job.variant.id}/Dockerfile"
    if config.get("Labels") != render.labels(job.variant):
        yield "config: Labels are not this repository's"
    for name in sorted(config.keys() - SETTINGS - {"OnBuild"}):
        yield f"config: {name} is {config[name]!r}, expected none"


def _streams(found: ImageContents, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if the layers that were read are not those that a container engine unpacks."""
    expected = config.get("rootfs", {}).get("diff_ids")
    if [f"sha256:{layer.sha256}" for layer in found.layers] != expected:
        yield "config: rootfs: diff_ids are not those of the layers"


def _base(job: Job, found: ImageContents) -> Iterator[str]:
    base = job.pins.base
    if not isinstance(base, LockedDebianBase) or base.digest is None or not found.layers:
        return
    epoch = job.lock.source_date_epoch
    digest = rootfs.digest_of(found.layers[0].sha256, found.layers[0].size, base.suite, job.platform, epoch)
    if digest != base.digest:
        yield f"layer 0: is the layer of base {digest}, expected {base.digest}"


def _image_base(job: Job, found: ImageContents) -> Iterator[str]:
    """Yield a line if the lowest layers are not those of the base from a registry, as far as the store has it."""
    base = job.pins.base
    if not isinstance(base, LockedImageBase) or base.digest is None:
        return
    folder = fetch.image_folder(base.digest, job.platform, default_store())
    if not oci.intact(folder) or oci.read_digest(folder) != base.digest:
        log(f"{job.variant.id}: {base.reference} is not in the store: its layers are not compared")
        return
    expected = oci.diff_ids(folder, job.platform)
    if [f"sha256:{layer.sha256}" for layer in found.layers[: len(expected)]] != expected:
        yield f"the lowest {len(expected)} layers are not those of {base.reference}@{base.digest}"


def _passwd(job: Job, found: ImageContents) -> Iterator[str]:
    """Yield a line unless /etc/passwd is the base's with the image's user."""
    below, text = found.replaced.get(USERS), found.texts.get(USERS, "")
    if not isinstance(job.pins.base, LockedDebianBase) or (below is None and USERS not in found.files):
        return
    of_base = hashlib.sha256(text.removesuffix(USER).encode()).hexdigest()
    if below is None or not text.endswith(USER) or of_base != below.sha256:
        yield f"/{USERS}: is not the base's file with the line {USER.strip()}"


def _own(job: Job, found: ImageContents) -> Iterator[str]:
    """Yield the files of the entrypoint and the profile that are not this repository's."""
    own = {f"{ENTRYPOINTS}{name}": data for name, data in entrypoint_files(job.root).items()}
    own["opt/drydock/profile.json"] = (job.folder / "profile.json").read_bytes()
    for path, data in own.items():
        file = found.files.get(path)
        if file is None or file.sha256 != hashlib.sha256(data).hexdigest():
            yield f"/{path}: is not this repository's file"
    for path in found.files:
        if path.startswith(ENTRYPOINTS) and path not in own and _source(path) not in own:
            yield f"/{path}: is not in this repository"
        if (path == SCRIPTED and not job.variant.setup) or (
            path.startswith(CONVERSIONS) and not job.variant.conversions
        ):
            yield f"/{path}: is written by no step of this variant's build"


def _environment(job: Job, found: ImageContents) -> Iterator[str]:
    """Yield the links and the setting of the Python environment that lead to another Python than the base's."""
    links = {path: file.link for path, file in found.files.items() if file.link}
    whole = isinstance(job.pins.base, LockedDebianBase)
    for path in filter(OWN_LINKS.fullmatch, links):
        target = resolve(links, f"{path}/.").removesuffix("/.")
        of_base = target in found.files and (not whole or found.owners[target] not in ("", "drydock", "generated"))
        if not (links[path] == "lib" if path.endswith("/lib64") else of_base):
            yield f"/{path}: is a link to {links[path]!r}, which is not the base's Python"
    settings = dict(re.findall(r"^([a-z-]+) *= *(.*)$", found.texts.get(PYVENV, ""), re.MULTILINE))
    if (
        PYVENV in found.files
        and f"{settings.get('home', '')}/python{job.variant.python}".lstrip("/") not in found.files
    ):
        yield f"/{PYVENV}: home is {settings.get('home')!r}, where the base has no Python"


def _records(found: ImageContents) -> Iterator[str]:
    """Yield the files of the environment that differ from RECORD, and those that RECORD lists without a hash."""
    for name, text in found.texts.items():
        if not (name.startswith(ENVIRONMENT) and name.endswith(".dist-info/RECORD")):
            continue
        for path, sha256 in read_record(posixpath.dirname(name), text).items():
            if path not in found.files or path.endswith("/RECORD"):
                continue
            if not sha256 and not _is_bytecode(path, found):
                yield f"/{path}: has no hash in /{name}"
            elif sha256 and found.files[path].sha256 != sha256:
                yield f"/{path}: does not match its hash in /{name}"


def _is_bytecode(path: str, found: ImageContents) -> bool:
    return path.endswith(".pyc") and _source(path) in found.files


def _source(path: str) -> str:
    """Return the path of the source that a file with bytecode is made from."""
    folder, _, name = path.rpartition("/")
    return f"{folder.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py" if path.endswith(".pyc") else ""


# --- pinned wheels --------------------------------------------------------------------------------------------------


def _wheels(job: Job, found: ImageContents) -> Iterator[str]:
    """Yield the files that are not those of the wheels in the lock, as far as the store has these."""
    store, absent = default_store(), 0
    site = f"{ENVIRONMENT}lib/python{job.variant.python}/site-packages"
    for wheels in job.pins.layers.values():
        for wheel in wheels:
            if store.has(wheel.sha256, wheel.size):
                yield from _wheel(job, found, site, wheel, store)
            else:
                absent += 1
    if absent:
        log(f"{job.variant.id}: {absent} wheels are not in the store: their files are compared with RECORD only")


def _wheel(job: Job, found: ImageContents, site: str, wheel: LockedWheel, store: Store) -> Iterator[str]:
    store.verify(wheel.sha256)
    with zipfile.ZipFile(store.path(wheel.sha256)) as archive:
        info = next(match[1] for match in map(METADATA.fullmatch, archive.namelist()) if match)
        members = {_place(name, site): name for name in archive.namelist()}
        pinned = read_record(f"{site}/{info}", archive.read(f"{info}/RECORD").decode())
        installed = read_record(f"{site}/{info}", found.texts.get(f"{site}/{info}/RECORD", ""))
        hashes = {_place(posixpath.relpath(path, site), site): sha256 for path, sha256 in pinned.items()}
        for path in installed.keys() & found.files.keys():
            if posixpath.basename(path) in INSTALLED or path.startswith(f"{ENVIRONMENT}bin/") or path.endswith(".pyc"):
                continue
            if path not in hashes:
                yield f"/{path}: is not in {wheel.filename}"
            elif found.files[path].sha256 != hashes[path] != "":
                after = _stripped(job, wheel, posixpath.relpath(path, site), archive, members[path])
                if after != found.files[path].sha256:
                    yield f"/{path}: is not the file of {wheel.filename}"


def _place(name: str, site: str) -> str:
    """Return the path at which an installer puts a member of a wheel."""
    folder, _, rest = name.partition("/")
    if not folder.endswith(".data"):
        return posixpath.normpath(posixpath.join(site, name))
    kind, _, path = rest.partition("/")
    python, distribution = site.split("/")[-2], folder.partition("-")[0].replace("_", "-")
    headers = f"{ENVIRONMENT}include/site/{python}/{distribution}"
    places: Mapping[str, str] = {"purelib": site, "platlib": site, "data": ENVIRONMENT, "scripts": f"{ENVIRONMENT}bin"}
    return posixpath.join(places.get(kind, headers), path)


def _stripped(job: Job, wheel: LockedWheel, name: str, archive: zipfile.ZipFile, member: str) -> str:
    """Return the sha256 of a wheel's file without the symbols that the build strips; "" if it strips none."""
    globs = [glob for trim in job.variant.trim if trim.distribution == wheel.name for glob in trim.strip]
    if not any(fnmatchcase(name, glob) for glob in globs):
        return ""
    return hashlib.sha256(_trim(job.root).stripped(archive.read(member))).hexdigest()


def _trim(root: Path) -> ModuleType:
    """Return the build's own tool, as a module."""
    spec = importlib.util.spec_from_file_location("drydock_trim", root / "templates" / "tools" / "trim.py")
    if spec is None or spec.loader is None:
        raise StaleError(f"{root}/templates/tools/trim.py: cannot be imported", hint="restore it with git")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
