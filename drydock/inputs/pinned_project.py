"""The files of a project that an address names by digest or commit, from the store, a registry or a repository. IO."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from drydock.config import mirrors
from drydock.config.project_choice import PROJECT_FILE
from drydock.config.rows import MATRIX
from drydock.core.console import log
from drydock.core.errors import FetchError, InputError, RegistryError, UntrustedError
from drydock.core.paths import cache_home
from drydock.inputs import git, git_objects, image_digests, project_files
from drydock.inputs.store import Store
from drydock.oci import strict
from drydock.oci.reference import GIT, OCI, Reference, parse_reference
from drydock.registry.blobs import Blobs

_GIT = re.compile(r"git\+((?:https?|ssh|git|file)://[A-Za-z0-9._~:@\[\]-]*/[A-Za-z0-9._~:%+=/-]*)(?:@(.*))?")
LIMITS = git.Limits(seconds=300, largest=256 << 20)
"""For a fetch by git: a project has a few megabytes, but its repository may have more."""


def fetch_project_files(address: str, store: Store, env: Mapping[str, str]) -> dict[str, bytes]:
    """Return the files of a project by name; what was not kept is fetched, checked and kept. Raises DrydockError."""
    return _fetch_artefact(address, store, env) if address.startswith(OCI) else _read_commit_files(address, store, env)


# --- an artefact of a registry --------------------------------------------------------------------------------------


def _fetch_artefact(address: str, store: Store, env: Mapping[str, str]) -> dict[str, bytes]:
    where = by_digest(address, env, "project push")
    mirror = parse_reference(image_digests.at_mirror(str(where), mirrors.read_mirrors(env)))
    repository = image_digests.open_manifests(mirror, env)
    data = _read_kept(where.digest, store)
    if data is None:
        manifest = repository.find(where.digest)
        if manifest is None:
            raise RegistryError(f"{mirror}: the registry has no such artefact")
        data = manifest.data
    layer = _find_project_layer(data, address)
    files = _read_kept(layer["digest"], store)
    if files is None:
        blobs = Blobs(repository.client, cache_home(env) / "uploads")
        files = b"".join(blobs.pull(layer["digest"], at_most=layer["size"]))
    unpacked = project_files.unpack_project(files, address)
    for digest, content in ((where.digest, data), (layer["digest"], files)):
        store.add((content,), _strip_algorithm(digest), address)
    return unpacked


def by_digest(address: str, env: Mapping[str, str], verb: str) -> Reference:
    """Return what an address names by its digest; `verb` prints such ones. Raises InputError if it names none."""
    where = parse_reference(address.removeprefix(OCI))
    if not where.digest:
        raise InputError(
            f"{address}: found {f'the tag {where.tag!r}' if where.tag else 'no digest'}, expected a digest: a tag may"
            " name something else tomorrow",
            hint=_hint_at_digest(where, env, verb),
        )
    return where.at(where.digest)


def _find_project_layer(data: bytes, address: str) -> dict[str, Any]:
    """Return the descriptor of a project's tar file. Raises UntrustedError for the manifest of anything else."""
    try:
        content, media_type = strict.read_strict_manifest(data, "", address)
    except RegistryError as error:
        raise UntrustedError(*error.problems) from error
    layers = content.get("layers", ())
    kind = content.get("artifactType") or media_type
    if kind != project_files.KIND or len(layers) != 1 or layers[0]["mediaType"] != project_files.LAYER:
        raise UntrustedError(
            f"{address}: found {str(kind)!a}, expected {project_files.KIND}: not a project",
            hint="`./inv project push` publishes a project",
        )
    if layers[0]["size"] > project_files.MOST_BYTES:
        raise UntrustedError(f"{address}: {layers[0]['size']} bytes, expected at most {project_files.MOST_BYTES}")
    layer: dict[str, Any] = layers[0]
    return layer


def _read_kept(digest: str, store: Store) -> bytes | None:
    """Return the bytes of a digest, if the store has them unchanged."""
    if not store.has(_strip_algorithm(digest)):
        return None
    try:
        store.verify(_strip_algorithm(digest))
    except FetchError as error:  # which removed it: it is fetched again
        log(str(error))
        return None
    return store.path(_strip_algorithm(digest)).read_bytes()


def _strip_algorithm(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _hint_at_digest(where: Reference, env: Mapping[str, str], verb: str) -> str:
    """Return what to write instead of a tag: what the registry says is only shown."""
    mirror = parse_reference(image_digests.at_mirror(str(where), mirrors.read_mirrors(env)))
    try:
        digest = image_digests.open_manifests(mirror, env).digest(mirror.name)
    except RegistryError:
        digest = None
    if digest:
        return f"it names {OCI}{where.at(digest)} now: write that, if it is what its maker says"
    return f"write oci://HOST/NAME@sha256:… as `./inv {verb}` printed it"


# --- a commit -------------------------------------------------------------------------------------------------------


def _read_commit_files(address: str, store: Store, env: Mapping[str, str]) -> dict[str, bytes]:
    match = _GIT.fullmatch(address)
    if not match:
        raise InputError(f"{address}: invalid address", hint="expected git+https://HOST/PATH@COMMIT")
    repository, commit = match[1], match[2] or ""
    if not git_objects.COMMIT.fullmatch(commit):
        raise InputError(
            f"{address}: found {f'{commit!r}' if commit else 'no commit'}, expected a whole commit of 40 digits: a"
            " branch or tag may move, and a beginning may name two",
            hint=_commit_now(repository, commit, env),
        )
    git_objects.fetch_objects(address, repository, commit, store, env, LIMITS)
    with git_objects.open_tree(address, commit, store, env) as tree:
        first = [name for name in (PROJECT_FILE, MATRIX) if name in tree.sizes]
        project_files.check_size((tree.sizes[name] for name in first), address)
        start = tree.read(first)
        names = project_files.choose_project_files(tree.sizes, start)
        if links := project_files.choose_project_files(tree.others, start):
            raise UntrustedError(f"{address}: {links[0]!a}: a link, expected a regular file")
        project_files.check_size((tree.sizes[name] for name in names), address)
        files = tree.read(names)
    project_files.check_project_files(files, address)
    return files


def _commit_now(repository: str, name: str, env: Mapping[str, str]) -> str:
    """Return what to write instead of a branch or tag: what the repository says is only shown."""
    words = ("ls-remote", "--end-of-options", repository, name or "HEAD")
    try:
        output = git.run_limited_git(
            words, repository, git.network_environment(env), limits=git.Limits(image_digests.PATIENCE)
        ).decode()
    except FetchError:
        output = ""
    commit = output.partition("\t")[0]
    if git_objects.COMMIT.fullmatch(commit):
        return f"it names {GIT}{repository}@{commit} now: write that, if it is what its maker says"
    return "write git+https://HOST/PATH@COMMIT; `git rev-parse HEAD` in a clone prints the commit"
