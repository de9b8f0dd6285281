"""Push a project to a registry, for other projects to take by digest. IO."""

from __future__ import annotations

import os

from drydock.attest import cosign
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import PROJECT_FILE, read_settings
from drydock.config.rows import own_rows
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.inputs import indexes, project_files
from drydock.model.record import Record
from drydock.oci.manifest import to_manifest
from drydock.oci.reference import GIT, OCI, parse_reference
from drydock.publish import bindings
from drydock.publish.push import attach_documents
from drydock.publish.repository import Repository, describe_bytes
from drydock.registry.manifests import EMPTY, MANIFEST


class PushedProject(Record):
    """What `project push --json` prints."""

    address: str
    """What others write under `from`."""
    digest: str
    tag: str
    """A tag that keeps the artefact from being collected as garbage; nothing is taken by it."""
    files: tuple[str, ...]
    rows: tuple[str, ...]
    signed: bool


def push_project(
    project: Project, name: str, signer: cosign.Signer | None = None, *, insecure: bool = False, dry_run: bool = False
) -> PushedProject:
    """Push the files of a project; sign them if there is a signer. The same files have the same digest.

    With `dry_run` nothing is sent; the digest is the one that they would have.

    Raises InputError, RegistryError, and TagError for a release tag that names another project.
    """
    where = parse_reference(name.removeprefix(OCI))
    if where.digest:
        raise InputError(f"{name}: found a digest, expected REGISTRY/NAME, with or without a tag")
    cosign.require_signer(signer)
    _check_pushable(project)
    files = project_files.in_folder(project.root)
    access = indexes.make_index_access(indexes.read_indexes(), os.environ)
    repository = Repository(where._replace(tag=""), access, insecure=insecure)
    contents = (b"{}", project_files.pack_project(files))
    config, layer = (describe_bytes(data) if dry_run else repository.push_bytes(data) for data in contents)
    manifest = to_manifest(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": project_files.KIND,
            "config": {"mediaType": EMPTY, **config},
            "layers": [{"mediaType": project_files.LAYER, **layer}],
        }
    )
    tag = where.tag or manifest.digest.removeprefix("sha256:")[:12]
    if not dry_run:
        planned = repository.plan_tag(manifest.digest, tag)
        subject = bindings.Subject(str(repository.where), "", manifest.digest, {}, "project")
        binding = bindings.bind_chosen_tag(repository, subject, planned, signer)
        repository.manifests.push(manifest)
        attach_documents(repository, [manifest], {manifest.digest: (binding,)}, signer)
        repository.tag(manifest, tag)  # at last: a tag names what is whole
    return PushedProject(
        address=f"{OCI}{where.at(manifest.digest)}",
        digest=manifest.digest,
        tag=tag,
        files=tuple(files),
        rows=tuple(sorted(own_rows(Project(project.root)))),
        signed=signer is not None,
    )


def _check_pushable(project: Project) -> None:
    """Raise InputError for a project that others cannot take: its own rows and additions must be right."""
    settings = read_settings(project)
    if settings is None:
        raise InputError(
            f"{project.root}: found no {PROJECT_FILE}: only a project is pushed",
            hint="`./inv project init DIR` makes one",
        )
    folders = [folder for folder in settings.from_ if not folder.startswith((OCI, GIT))]
    if folders:
        hint = "push that project too, and take it by the address that is printed"
        raise InputError(
            *(f"{PROJECT_FILE}: from: {folder} is a folder, which others do not have" for folder in folders), hint=hint
        )
    read_matrix(project)


def format_from_line(pushed: PushedProject) -> str:
    """Return the line for the drydock.yaml of a project that takes this one."""
    return f'from: ["{pushed.address}"]\n'  # quoted: an IPv6 host has brackets
