"""Turns locked Debian packages into a root file system: the same bytes on any host, any day. IO: the Docker engine.

mmdebstrap makes it, itself unpacked from locked packages into an image of its own (`bootstrap`), so that neither the
host's distribution nor its versions matter. Packages go in with that image and the result comes out through a pipe:
no folder is shared with the container, so a remote engine works too, and the container has no network.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shlex
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from debian.debfile import DebFile

from drydock.core.console import log
from drydock.core.errors import EngineError, StaleError
from drydock.core.files import checksum, exclusive
from drydock.engine import daemon
from drydock.inputs.store import Store, whole_folder
from drydock.model.locked import LockedDeb
from drydock.oci.layout import intact, read_digest, write_layout

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into /usr in every Debian since bookworm."""
LABEL = "io.drydock.bootstrap"
REPOSITORY = "repository"
"""Where the packages lie in the bootstrap image."""
USERS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT")
"""What unpacking and configuring packages in a chroot needs. Without SYS_ADMIN nothing is mounted there: no package
of a base needs /proc or /sys to be configured."""

MERGE_USR = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; ln -s "usr/$d" "$1/$d"; done'
COMPILE = (
    'if [ -x "$1/usr/bin/python3" ]; then '
    'PYTHONHASHSEED=0 chroot "$1" /usr/bin/python3 -s -m compileall -q -f --invalidation-mode unchecked-hash '
    "$(cd \"$1\" && ls -d usr/lib/python3* | sed 's,^,/,'); fi"
)
"""The standard library's bytecode: without it every start of an interpreter in a read-only image compiles it anew."""
CLEAN = (
    'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d "$1"/etc/apt/preferences.d '
    '"$1"/var/lib/apt "$1"/var/cache/* "$1"/var/log/* "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/*- '
    '"$1"/var/lib/dpkg/*-old "$1"/usr/share/info/* "$1"/usr/share/lintian "$1"/usr/share/linda; '
    ': > "$1/etc/machine-id"'
)
UNPRIVILEGE = 'find "$1" -xdev -type f -perm /6000 -exec chmod ug-s {} +'
"""Takes setuid and setgid away from su, mount, chage and their like: who serves never changes his user."""
EXCLUDED = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)


class Packages(NamedTuple):
    """All that a root file system is made from."""

    suite: str
    platform: str
    epoch: int
    packages: tuple[LockedDeb, ...]
    bootstrap: tuple[LockedDeb, ...]


def folder(source: Packages, store: Store) -> Path:
    """Return where the layout made from these packages, by this recipe, lies or would lie."""
    recipe = [*mmdebstrap(source), *CAPABILITIES]
    pins = [(deb.name, deb.sha256) for deb in (*source.packages, *source.bootstrap)]
    return store.home / "bases" / checksum([source.platform, source.epoch, pins, recipe])


def make(source: Packages, store: Store) -> Path:
    """Return the folder of the OCI layout made from packages that are in the store; made once.

    Raises EngineError where the engine or mmdebstrap fails.
    """
    final = folder(source, store)
    with exclusive(store.home / "bases" / "lock"):
        if not intact(final):
            _make(source, store, final)
    return final


def check_digest(layout: Path, expected: str, source: Packages) -> None:
    """Raise StaleError if the layout is not the locked one."""
    found = read_digest(layout)
    if found != expected:
        version = next((deb.version for deb in source.bootstrap if deb.name == "mmdebstrap"), "of an unknown version")
        raise StaleError(
            f"the root file system of {source.suite} has digest {found}, expected {expected} (mmdebstrap {version})",
            hint="drydock's recipe for it changed since the lock was written: run `invoke lock`",
        )


def _make(source: Packages, store: Store, final: Path) -> None:
    daemon.ensure()
    log(f"making the {source.suite} base from {len(source.packages)} packages")
    with whole_folder(final) as layout:
        layer = layout / "layer.tar"
        with _bootstrap_image(source, store) as image, layer.open("wb") as file:
            _run_mmdebstrap(image, source, file)
        _add_dev(layer, source.epoch)
        write_layout(layout, layer, source.platform, source.epoch, f"mmdebstrap {source.suite} (locked packages)")


@contextlib.contextmanager
def _bootstrap_image(source: Packages, store: Store) -> Iterator[str]:
    """Import an image that holds mmdebstrap and all packages; remove it afterwards, and what killed runs left of it."""
    label = f"{LABEL}={folder(source, store).name}"
    subprocess.run(
        ["docker", "image", "prune", "--force", "--filter", f"label={label}"], capture_output=True, check=False
    )
    command = ["docker", "import", "--platform", source.platform, "--change", f"LABEL {label}", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            _feed(process, source, store)
        except BaseException:
            process.kill()  # or the engine would keep half an image
            raise
        output, errors = process.communicate()
    if process.returncode:
        raise EngineError(f"docker import failed: {errors.decode().strip()}")
    image = output.decode().strip()
    try:
        yield image
    finally:
        subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)


def _feed(process: subprocess.Popen[bytes], source: Packages, store: Store) -> None:
    """Write the image into the engine's pipe; where the engine hung up, its own message says why."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            write_bootstrap(process.stdin, source, store)


def write_bootstrap(output: IO[bytes], source: Packages, store: Store) -> None:
    """Write the tar file of a root in which mmdebstrap runs, with a repository of the packages to install.

    Packages are unpacked, not configured: nothing in them needs that to run mmdebstrap.
    """
    with tarfile.open(fileobj=output, mode="w|") as tar:
        seen = set(_skeleton(tar))
        for deb in source.bootstrap:
            for member, content in _members(store.path(deb.sha256)):
                name = str(member.name)  # python-debian's own kind of string cannot be hashed
                if name not in seen or not member.isdir():
                    seen.add(name)
                    tar.addfile(member, content)
        for deb in source.packages:
            tar.add(store.path(deb.sha256), f"{REPOSITORY}/{deb.sha256}.deb")
        index = packages_index(source.packages, store)
        _add_text(tar, f"{REPOSITORY}/Packages", index)
        _add_text(tar, f"{REPOSITORY}/Release", release(source.suite, index))


def packages_index(packages: Sequence[LockedDeb], store: Store) -> str:
    """Return the Packages file of a flat repository that holds exactly these packages."""
    return "\n".join(
        f"{DebFile(store.path(deb.sha256)).debcontrol().dump()}"
        f"Filename: ./{deb.sha256}.deb\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        for deb in packages
    )


def release(suite: str, index: str) -> str:
    """Return the Release file; its suite lets mmdebstrap find the essential packages."""
    data = index.encode()
    digest = hashlib.sha256(data).hexdigest()
    date = "Thu, 01 Jan 1970 00:00:00 UTC"
    return f"Suite: {suite}\nCodename: {suite}\nDate: {date}\nSHA256:\n {digest} {len(data)} Packages\n"


def merged(name: str) -> str:
    """Return a package member's path in a root with merged /usr, without a leading slash."""
    path = str(name).removeprefix("./").strip("/")
    return f"usr/{path}" if path.split("/")[0] in MERGED else path


def is_merge(member: tarfile.TarInfo) -> bool:
    """Tell whether a member is what merges /usr, such as /lib → usr/lib: trixie's base-files has these links itself."""
    return member.issym() and member.name.removeprefix("./").strip("/") in MERGED


def _skeleton(tar: tarfile.TarFile) -> Iterator[str]:
    for name in ("usr", *(f"usr/{link}" for link in MERGED), "tmp", REPOSITORY):
        directory = tarfile.TarInfo(name)
        directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(directory)
        yield name
    for name in MERGED:
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
        tar.addfile(link)
    for name, text in USERS.items():
        _add_text(tar, name, text)


def _members(path: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    with DebFile(path).data.tgz() as data:
        for member in data:
            if is_merge(member):
                continue
            member.name = merged(member.name)
            if member.islnk():
                member.linkname = merged(member.linkname)
            if member.name:
                yield member, data.extractfile(member) if member.isreg() else None


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    tar.addfile(member, io.BytesIO(text.encode()))


def _run_mmdebstrap(image: str, source: Packages, output: IO[bytes]) -> None:
    command = ["docker", "run", "--rm", "--network", "none", "--platform", source.platform, "--cap-drop", "ALL"]
    command += [part for capability in CAPABILITIES for part in ("--cap-add", capability)]
    command += ["--env", f"SOURCE_DATE_EPOCH={source.epoch}", image, *mmdebstrap(source)]
    result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        last = "\n".join(result.stderr.strip().splitlines()[-15:])
        raise EngineError(f"mmdebstrap failed in its container:\n{last}", hint=f"the command was {shlex.join(command)}")


def _add_dev(layer: Path, epoch: int) -> None:
    """Add the empty folder that engines mount devices on, which mmdebstrap leaves out with its device nodes."""
    with tarfile.open(layer, "a", format=tarfile.GNU_FORMAT) as tar:
        directory = tarfile.TarInfo("./dev")
        directory.type, directory.mode, directory.mtime = tarfile.DIRTYPE, 0o755, epoch
        tar.addfile(directory)


def mmdebstrap(source: Packages) -> list[str]:
    """Return mmdebstrap's command line."""
    return [
        *("/usr/bin/mmdebstrap", "--mode=root", "--variant=essential", "--format=tar"),
        # No mounts without SYS_ADMIN; no device nodes in the tar, so that rootless engines can unpack it.
        "--skip=check/canmount,cleanup/apt,output/dev",
        *(f"--dpkgopt={option}" for option in EXCLUDED),
        f"--include={','.join(deb.name for deb in source.packages)}",
        f"--setup-hook={MERGE_USR}",
        f"--customize-hook={COMPILE}",
        f"--customize-hook={CLEAN}",
        f"--customize-hook={UNPRIVILEGE}",
        *(source.suite, "-", f"deb [trusted=yes] copy:///{REPOSITORY} ./"),
    ]
