"""Makes a reproducible root file system from locked Debian packages. IO: the Docker engine.

mmdebstrap makes it in a container. Its image (`bootstrap`) is unpacked from locked packages, so the host's distribution
and versions do not matter. The image also contains the packages to install, and the result comes out through a pipe:
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

from drydock.core.console import log, show_step
from drydock.core.errors import EngineError, StaleError
from drydock.core.files import compute_checksum, hold_lock_file
from drydock.engine import daemon
from drydock.inputs.store import Store, whole_folder
from drydock.model.locked import LockedDeb
from drydock.oci.image_layout import is_intact_layout, path_of_blob, read_digest, read_manifest, write_layout
from drydock.oci.layout_diff import open_decompressed

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into /usr in Debian since bookworm."""
LABEL = "io.drydock.bootstrap"
LARGEST = 4 << 30
"""Bytes of a base."""
REPOSITORY = "repository"
"""Folder of the packages in the bootstrap image."""
USERS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT")
"""Capabilities needed to unpack and configure packages in a chroot. SYS_ADMIN is not among them, so nothing is mounted
there; no package of a base needs /proc or /sys for its configuration."""

MERGE_USR = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; ln -s "usr/$d" "$1/$d"; done'
COMPILE = (
    'if [ -x "$1/usr/bin/python3" ]; then '
    'PYTHONHASHSEED=0 chroot "$1" /usr/bin/python3 -s -m compileall -q -f --invalidation-mode unchecked-hash '
    "$(cd \"$1\" && ls -d usr/lib/python3* | sed 's,^,/,'); fi"
)
"""Compiles the standard library; otherwise every start of Python in a read-only image would compile it again."""
CLEAN = (
    'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d "$1"/etc/apt/preferences.d '
    '"$1"/var/lib/apt "$1"/var/cache/* "$1"/var/log/* "$1"/etc/resolv.conf "$1"/etc/hostname "$1"/etc/*- '
    '"$1"/var/lib/dpkg/*-old "$1"/usr/share/info/* "$1"/usr/share/lintian "$1"/usr/share/linda; '
    ': > "$1/etc/machine-id"'
)
UNPRIVILEGE = 'find "$1" -xdev -type f -perm /6000 -exec chmod ug-s {} +'
"""Removes setuid and setgid bits from su, mount, chage and others: the server never changes its user."""
EXCLUDED = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)


class Packages(NamedTuple):
    """All inputs of a root file system."""

    suite: str
    platform: str
    epoch: int
    packages: tuple[LockedDeb, ...]
    bootstrap: tuple[LockedDeb, ...]


def base_folder(source: Packages, store: Store) -> Path:
    """Return the path of the layout for these packages and this recipe; it need not exist."""
    recipe = [*make_mmdebstrap_command(source), *CAPABILITIES]
    pins = [(deb.name, deb.sha256) for deb in (*source.packages, *source.bootstrap)]
    return store.home / "bases" / compute_checksum([source.platform, source.epoch, pins, recipe])


def make_base(source: Packages, store: Store, *, to_record: bool = False) -> Path:
    """Make the OCI layout from packages in the store, unless it exists; return its folder.

    One whose digest is `to_record` is made by this process: no digest is recorded yet that an existing one could match.
    Raises EngineError if the engine or mmdebstrap fails.
    """
    final = base_folder(source, store)
    with hold_lock_file(store.home / "bases" / "lock"):
        if (to_record and final not in _MADE) or not is_intact_layout(final):
            _make_base_layout(source, store, final)
            _MADE.add(final)
    return final


def restore_base_layout(source: Packages, store: Store, digest: str, image: Path) -> None:
    """Make the layout of a base, unless it exists, out of the layout of an image on it: its lowest layer is the base.

    Nothing is kept unless the result has this digest.
    """
    final = base_folder(source, store)
    with hold_lock_file(store.home / "bases" / "lock"):
        if not final.exists():
            with contextlib.suppress(_AnotherBaseError), whole_folder(final) as layout:
                _extract_base(source, digest, image, layout)


class _AnotherBaseError(Exception):
    """An image stands on another base."""


def _extract_base(source: Packages, digest: str, image: Path, layout: Path) -> None:
    lowest, layer = read_manifest(image)["layers"][0], layout / "layer.tar"
    with (
        contextlib.closing(open_decompressed(path_of_blob(image, lowest["digest"]), lowest["mediaType"])) as stream,
        layer.open("wb") as file,
    ):
        while piece := stream.read(1 << 20):
            if file.tell() > LARGEST:
                raise _AnotherBaseError
            file.write(piece)
    if write_layout(layout, layer, source.platform, source.epoch, _describe_author(source.suite)) != digest:
        raise _AnotherBaseError


_MADE = set[Path]()
"""Layouts that this process made."""


def check_digest(layout: Path, expected: str, source: Packages) -> None:
    """Raise StaleError if the layout does not have the locked digest."""
    digest = read_digest(layout)
    if digest != expected:
        versions = [deb.version for deb in source.bootstrap if deb.name == "mmdebstrap"]
        tool = f"mmdebstrap {versions[0] if versions else 'of unknown version'}"
        raise StaleError(
            f"the root file system of {source.suite} has digest {digest}, expected {expected} ({tool})",
            hint="drydock's recipe for the base changed since it was locked: run `./inv lock --upgrade-package base`",
        )


def _make_base_layout(source: Packages, store: Store, final: Path) -> None:
    daemon.ensure_engine()
    log(f"making the {source.suite} base from {len(source.packages)} packages")
    with show_step("base"), whole_folder(final, replace=True) as layout:
        layer = layout / "layer.tar"
        with _bootstrap_image(source, store) as image, layer.open("wb") as file:
            _run_mmdebstrap(image, source, file)
        _add_dev(layer, source.epoch)
        write_layout(layout, layer, source.platform, source.epoch, _describe_author(source.suite))


def _describe_author(suite: str) -> str:
    return f"mmdebstrap {suite} (locked packages)"


@contextlib.contextmanager
def _bootstrap_image(source: Packages, store: Store) -> Iterator[str]:
    """Import an image with mmdebstrap and all packages; remove it afterwards, and leftovers of killed runs before."""
    label = f"{LABEL}={base_folder(source, store).name}"
    subprocess.run(
        ["docker", "image", "prune", "--force", "--filter", f"label={label}"], capture_output=True, check=False
    )
    command = ["docker", "import", "--platform", source.platform, "--change", f"LABEL {label}", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            _feed_bootstrap(process, source, store)
        except BaseException:
            process.kill()  # so that the engine does not keep half an image
            raise
        output, errors = process.communicate()
    if process.returncode:
        raise EngineError(f"docker import failed: {errors.decode().strip()}")
    image = output.decode().strip()
    try:
        yield image
    finally:
        subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)


def _feed_bootstrap(process: subprocess.Popen[bytes], source: Packages, store: Store) -> None:
    """Write the image into the engine's pipe; if the engine closes it, the engine's own message says why."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            write_bootstrap(process.stdin, source, store)


def write_bootstrap(output: IO[bytes], source: Packages, store: Store) -> None:
    """Write the tar file of a root in which mmdebstrap runs, with a repository of the packages to install.

    Its packages are unpacked, not configured: mmdebstrap runs without that. Raises FetchError if one was changed on the
    disk.
    """
    for sha256 in {deb.sha256 for deb in (*source.bootstrap, *source.packages)}:
        store.verify(sha256)
    with tarfile.open(fileobj=output, mode="w|") as tar:
        names = set(_add_skeleton(tar))
        for deb in source.bootstrap:
            for member, content in _read_members(store.path(deb.sha256)):
                name = str(member.name)  # python-debian's string type is not hashable
                if name not in names or not member.isdir():
                    names.add(name)
                    tar.addfile(member, content)
        for deb in source.packages:
            tar.add(store.path(deb.sha256), f"{REPOSITORY}/{deb.sha256}.deb")
        index = packages_index(source.packages, store)
        _add_text(tar, f"{REPOSITORY}/Packages", index)
        _add_text(tar, f"{REPOSITORY}/Release", format_release_file(source.suite, index))


def packages_index(packages: Sequence[LockedDeb], store: Store) -> str:
    """Return the Packages file of a flat repository of exactly these packages."""
    return "\n".join(
        f"{DebFile(store.path(deb.sha256)).debcontrol().dump()}"
        f"Filename: ./{deb.sha256}.deb\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        for deb in packages
    )


def format_release_file(suite: str, index: str) -> str:
    """Return the Release file; mmdebstrap needs its suite to find the essential packages."""
    data = index.encode()
    digest = hashlib.sha256(data).hexdigest()
    date = "Thu, 01 Jan 1970 00:00:00 UTC"
    return f"Suite: {suite}\nCodename: {suite}\nDate: {date}\nSHA256:\n {digest} {len(data)} Packages\n"


def merge_usr_path(name: str) -> str:
    """Return a package member's path in a root with merged /usr, without a leading slash."""
    path = str(name).removeprefix("./").strip("/")
    return f"usr/{path}" if path.split("/")[0] in MERGED else path


def is_merge(member: tarfile.TarInfo) -> bool:
    """Tell whether a member is a link that merges /usr, such as /lib → usr/lib; base-files of trixie contains them."""
    return member.issym() and member.name.removeprefix("./").strip("/") in MERGED


def _add_skeleton(tar: tarfile.TarFile) -> Iterator[str]:
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


def _read_members(path: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    with DebFile(path).data.tgz() as data:
        for member in data:
            if is_merge(member):
                continue
            member.name = merge_usr_path(member.name)
            if member.islnk():
                member.linkname = merge_usr_path(member.linkname)
            if member.name:
                yield member, data.extractfile(member) if member.isreg() else None


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(text.encode())
    tar.addfile(member, io.BytesIO(text.encode()))


def _run_mmdebstrap(image: str, source: Packages, output: IO[bytes]) -> None:
    command = ["docker", "run", "--rm", "--network", "none", "--platform", source.platform, "--cap-drop", "ALL"]
    command += [part for capability in CAPABILITIES for part in ("--cap-add", capability)]
    command += ["--env", f"SOURCE_DATE_EPOCH={source.epoch}", image, *make_mmdebstrap_command(source)]
    result = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    if "exec format error" in result.stderr:  # also where another machine builds: the base is made by this engine
        raise EngineError(
            f"{source.platform}: this engine runs no programs of it, with which the base is made",
            hint=daemon.PLATFORM_HINT,
        )
    if result.returncode:
        last_lines = "\n".join(result.stderr.strip().splitlines()[-15:])
        raise EngineError(f"mmdebstrap failed in its container:\n{last_lines}", hint=f"command: {shlex.join(command)}")


def _add_dev(layer: Path, epoch: int) -> None:
    """Add the empty folder on which engines mount devices; mmdebstrap omits it together with the device nodes."""
    with tarfile.open(layer, "a", format=tarfile.GNU_FORMAT) as tar:
        directory = tarfile.TarInfo("./dev")
        directory.type, directory.mode, directory.mtime = tarfile.DIRTYPE, 0o755, epoch
        tar.addfile(directory)


def make_mmdebstrap_command(source: Packages) -> list[str]:
    """Return mmdebstrap's command line."""
    return [
        *("/usr/bin/mmdebstrap", "--mode=root", "--variant=essential", "--format=tar"),
        # Nothing can be mounted without SYS_ADMIN. Rootless engines cannot unpack device nodes.
        "--skip=check/canmount,cleanup/apt,output/dev",
        *(f"--dpkgopt={option}" for option in EXCLUDED),
        f"--include={','.join(deb.name for deb in source.packages)}",
        f"--setup-hook={MERGE_USR}",
        f"--customize-hook={COMPILE}",
        f"--customize-hook={CLEAN}",
        f"--customize-hook={UNPRIVILEGE}",
        *(source.suite, "-", f"deb [trusted=yes] copy:///{REPOSITORY} ./"),
    ]
