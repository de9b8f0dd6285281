"""The files of a project that an image gets: certificates and others. IO (reads)."""

from __future__ import annotations

import re
from pathlib import Path

from drydock.core.errors import InputError
from drydock.core.files import LFS_HINT, is_lfs_pointer, read_bounded
from drydock.core.project import Project
from drydock.model.additions import Additions

OWN_FILES, OWN_CERTIFICATES = "project/files", "project/certificates"
"""Folders of the build's own context with what the project adds."""
LARGEST = 16 << 20
"""Bytes of a file that a project adds to its images."""


def read_added_files(project: Project, added: Additions) -> dict[str, bytes]:
    """Return the project's files that an image gets, by their path in the build's own context. Raises InputError."""
    project.check_writers([*added.files.values(), *filter(None, [added.certificates])])
    files = {f"{OWN_FILES}/{source}": _read_file(project / source, source) for source in added.files.values()}
    if added.certificates:
        paths = [*project.glob(f"{added.certificates}/*.crt")]
        if not paths:
            raise InputError(f"{added.certificates}: found no *.crt file", hint="certificates are PEM files NAME.crt")
        names = (f"{added.certificates}/{path.name}" for path in paths)
        files |= {f"{OWN_CERTIFICATES}/{Path(name).name}": read_certificate(project / name, name) for name in names}
    return files


def _read_file(path: Path, name: str) -> bytes:
    try:
        content = read_bounded(path, LARGEST)
        is_pointer = is_lfs_pointer(path)
    except OSError as error:
        raise InputError(f"{name}: {error.strerror or error}", hint="additions name files of the project") from error
    if is_pointer:
        raise InputError(f"{name}: found a pointer of Git LFS, expected the file", hint=LFS_HINT)
    return content


def read_certificate(path: Path, name: str) -> bytes:
    """Return certificates in PEM. Raises InputError for anything else, such as a private key."""
    content = _read_file(path, name)
    kinds = {kind.decode() for kind in re.findall(rb"-----BEGIN ([A-Z ]+)-----", content)}
    if kinds != {"CERTIFICATE"}:
        text = f"{name}: found {', '.join(sorted(kinds)) or 'nothing in PEM'}, expected certificates in PEM"
        raise InputError(text, hint="`openssl x509 -in FILE` prints one, with `-inform DER` also that of a DER file")
    return content if content.endswith(b"\n") else content + b"\n"
