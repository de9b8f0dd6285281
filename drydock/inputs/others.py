"""Projects of others, whose files lie between drydock's and the project's own. IO.

`from` in drydock.yaml names each by the digest of an OCI artefact, by a commit, or as a folder of this machine. The
digest or commit is checked before anything is parsed; what the two name is kept in the store, and then needs no
network. A name that may move, such as a tag or a branch, is an error.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from drydock.config import mirrors
from drydock.config.project_choice import PROJECT_FILE, find_project, make_layered_project, read_settings
from drydock.core.errors import DrydockError, InputError, UntrustedError
from drydock.core.paths import CACHE, ROOT
from drydock.core.project import Project
from drydock.inputs.store import default_store
from drydock.model.project_record import ProjectFile
from drydock.oci.reference import GIT, OCI

FORMS = "expected a folder, oci://HOST/NAME@sha256:…, or git+https://HOST/PATH@COMMIT"


@functools.cache
def read_current_project() -> Project:
    """Return the project of this process, see `find`, and use its folders unless a variable names others.

    Raises DrydockError.
    """
    project = find_project(Path.cwd(), os.environ)
    settings = read_settings(project)
    if settings:
        project.check_writers([settings.mirrors] if settings.mirrors else [])
        defaults = settings.defaults
        folders_by_variable = {
            mirrors.VARIABLE: settings.mirrors,
            CACHE: defaults.store,
            "HF_HUB_CACHE": defaults.model_cache,
        }
        for variable, name in folders_by_variable.items():
            if name:
                os.environ.setdefault(variable, str(project.root / name))
    return add_other_layers(project, settings)


def read_published_project(address: str) -> Project:
    """Return the project of another one, by its address, as if its folder were the current one. Raises DrydockError."""
    project = Project(_fetch_folder(address, Path.cwd(), "--from", os.environ), (ROOT,))
    return add_other_layers(project, read_settings(project))


def add_other_layers(project: Project, settings: ProjectFile | None, env: Mapping[str, str] = os.environ) -> Project:
    """Return a project with the layers of others under it. Raises DrydockError."""
    if not (settings and settings.from_):
        return project
    folders: dict[str, Path] = {}
    for number, address in enumerate(settings.from_):
        where = f"{project.shown(project.root / PROJECT_FILE)}: from[{number}]"
        folder = _fetch_folder(address, project.root, where, env)
        theirs = read_settings(Project(folder))
        for required in theirs.from_ if theirs else ():
            if _make_layer_key(required, folder) not in folders:
                hint = f"write {required} before it under `from`: what is taken is named in one place"
                raise InputError(f"{where}: {address} takes {required}, which is not listed before it", hint=hint)
        folders[_make_layer_key(address, project.root)] = folder
    return replace(
        make_layered_project(project.root, [*reversed(folders.values()), ROOT]), is_discovered=project.is_discovered
    )


def _make_layer_key(address: str, base: Path) -> str:
    return address if "://" in address else str((base / address).resolve())


def _fetch_folder(address: str, base: Path, where: str, env: Mapping[str, str]) -> Path:
    """Return the folder with the files of a project. Raises DrydockError."""
    if not address.startswith((OCI, GIT)):
        return _find_local_folder(address, base, where)
    from drydock.inputs import pinned_project  # noqa: PLC0415 - it imports what speaks to registries

    store = default_store(env)
    try:
        files = pinned_project.fetch_project_files(address, store, env)
    except (InputError, UntrustedError) as error:
        raise type(error)(*(f"{where}: {problem}" for problem in error.problems), hint=error.hint) from error
    except DrydockError as error:
        hint = "run `./inv matrix` where it can be reached: DRYDOCK_CACHE keeps it, and no command asks for it again"
        raise type(error)(f"{where}: {address} is not kept on this machine", *error.problems, hint=hint) from error
    return store.folder({}, files)


def _find_local_folder(address: str, base: Path, where: str) -> Path:
    folder = (base / address).resolve()
    if "://" in address or not address:
        raise InputError(f"{where}: {address!r}: unknown kind of address", hint=FORMS)
    if not (folder / PROJECT_FILE).is_file():
        raise InputError(f"{where}: {folder}: found no {PROJECT_FILE}", hint=FORMS)
    return folder
