"""Provenance of an image: its inputs, builder and build time, as an in-toto statement with SLSA's predicate.

Sources: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/spec/v1.0/provenance.
IO: runs git, reads the repository's files and the time of the build.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drydock.attest.components import list_build_inputs, list_locked_components
from drydock.build.build_job import Job
from drydock.config.rows import MATRIX
from drydock.config.server_access import redact_url
from drydock.config.stack_files import list_stack_files
from drydock.core.commit import is_in_repository, read_commit, read_head, run_git, select_all_but
from drydock.core.errors import UntrustedError
from drydock.core.project import Project
from drydock.lock.image_record import RECORDS
from drydock.model.locked import LockedDebianBase
from entrypoints.core.redact import redact_text

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
BUILD_TYPE, ADOPTED_TYPE = "urn:drydock:build:v1", "urn:drydock:adopt:v1"
"""docs/publish.md describes their parameters."""
LOCAL = "urn:drydock:builder:local"
"""Builder outside a known CI; does not identify the machine."""


class Provenance(NamedTuple):
    """What a statement says, as far as it is compared or shown."""

    digests: frozenset[str]
    """What it is about."""
    inputs_sha256: str
    lock_sha256: str | None
    """Of the lock that it names."""
    finished: str
    """Time of the build; empty for an adopted image, which has none."""
    builder: str
    commit: str
    """REPOSITORY@COMMIT of the checkout, and whether its files differed."""


def parse_statement(statement: Any, where: str) -> Provenance:
    """Return what a statement says. Raises UntrustedError for one that drydock does not write."""
    try:
        if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
            raise UntrustedError(f"{where}: expected SLSA provenance, found {statement['predicateType']!a:.100}")
        definition, details = statement["predicate"]["buildDefinition"], statement["predicate"]["runDetails"]
        hashes = {entry.get("uri", ""): entry["digest"].get("sha256") for entry in definition["resolvedDependencies"]}
        is_adopted = definition["buildType"] == ADOPTED_TYPE
        source = definition["externalParameters"]["source"]
        changed = " with changes" if source["changed"] else ""
        return Provenance(
            digests=frozenset(f"sha256:{subject['digest']['sha256']}" for subject in statement["subject"]),
            inputs_sha256=str(definition["internalParameters"]["inputsSha256"]),
            lock_sha256=next((value for uri, value in hashes.items() if uri.endswith("/lock.json")), None),
            finished="" if is_adopted else str(details["metadata"]["finishedOn"]),
            builder=str(details["builder"]["id"]),
            commit=f"{source['repository']}@{source['commit']}{changed}" if source["commit"] else "no commit",
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise UntrustedError(f"{where}: provenance in another form than drydock's: {error!r:.100}") from error


class Checkout(NamedTuple):
    """The repository that an image was built from."""

    repository: str
    """URL without credentials; empty if there is no remote."""
    commit: str
    dirty: bool
    """Whether tracked files differ from the commit, other than by recorded digests of images."""


def make_statement(job: Job, layout: Path, digest: str, subject: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the statement about an image for one platform; always the same for one build.

    It contains only what this machine did.
    """
    internal = {"export": job.export, "network": "none", "contexts": sorted(job.context_overrides)}
    statement = _make_common_statement(job, BUILD_TYPE, internal, digest, subject, env)
    details = statement["predicate"]["runDetails"]
    details["metadata"]["finishedOn"] = _read_finish_time(layout)
    details["byproducts"] = _list_byproducts(job)
    return statement


def make_adopted_statement(
    job: Job, layers: Sequence[Mapping[str, Any]], digest: str, subject: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """Return the statement about an adopted image: these layers were added to a base, which is named by its digest.

    It has no time: whoever adopts the same image from the same commit makes the same statement.
    """
    internal = {"base": job.pins.base.digest, "addedLayers": [layer["digest"] for layer in layers]}
    return _make_common_statement(job, ADOPTED_TYPE, internal, digest, subject, env)


def _make_common_statement(
    job: Job, build_type: str, internal: Mapping[str, Any], digest: str, subject: str, env: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a statement says of every image, with the `internal` parameters of this type of build."""
    origin = read_origin(job.project)
    common = {"inputsSha256": job.inputs_sha256, "sourceDateEpoch": job.lock.source_date_epoch}
    return {
        "_type": STATEMENT,
        "subject": [{"name": subject, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": build_type,
                "externalParameters": {
                    "variant": job.variant.id,
                    "platform": job.platform,
                    "source": _make_source(origin),
                },
                "internalParameters": {**common, **internal},
                "resolvedDependencies": list_dependencies(job, origin),
            },
            "runDetails": {
                "builder": {"id": read_builder_id(env), "version": {"python": platform.python_version()}},
                "metadata": {"invocationId": job.inputs_sha256},
            },
        },
    }


def list_dependencies(job: Job, origin: Checkout) -> list[dict[str, Any]]:
    """Return all inputs of the build with their hashes: packages, base, sources, and files of the repository."""
    pins = job.lock.platforms[job.platform]
    dependencies: list[dict[str, Any]] = []
    for part in (*list_locked_components(job.variant, pins), *list_build_inputs(pins)):
        if part.kind == "git":
            dependencies.append({"uri": f"git+{part.source}@{part.version}", "digest": {"gitCommit": part.version}})
        elif part.kind == "oci":
            dependencies.append({"uri": part.purl, "digest": {"sha256": part.version.removeprefix("sha256:")}})
        elif part.sha256:
            dependencies.append({"uri": part.purl, "digest": {"sha256": part.sha256}})
    if isinstance(pins.base, LockedDebianBase) and pins.base.digest:
        dependencies.append({"name": "base", "digest": {"sha256": pins.base.digest.removeprefix("sha256:")}})
    dependencies += _file_dependencies(job)
    if origin.commit:
        dependencies.append(
            {"uri": f"git+{origin.repository}" if origin.repository else "git", "digest": {"gitCommit": origin.commit}}
        )
    return dependencies


def read_origin(project: Project) -> Checkout:
    """Return the state of a git repository; its fields are empty if it is not one. A wheel records its commit.

    Raises GitFailedError if git does not answer: the image would seem to be from no commit, or from an unchanged one.
    """
    if project.is_installed:
        commit = read_commit(project.root)
        return Checkout("", commit.removesuffix("+"), commit.endswith("+"))
    if not is_in_repository(project.root):
        return Checkout("", "", dirty=False)
    commit = read_head(project.root)
    remotes = run_git(project.root, "config", "--get", "remote.origin.url", may_fail=True)
    remote = run_git(project.root, "remote", "get-url", "origin").strip() if remotes else ""
    pathspecs = select_all_but(RECORDS)  # CI writes the record, then publishes
    dirty = bool(commit and run_git(project.root, "diff", "--name-only", "HEAD", "--", *pathspecs))
    return Checkout(redact_url(remote) if "://" in remote else "", commit, dirty)


def read_builder_id(env: Mapping[str, str]) -> str:
    """Return the builder as a URI: from DRYDOCK_BUILDER_ID, GitHub or GitLab."""
    if env.get("DRYDOCK_BUILDER_ID"):
        return redact_text(env["DRYDOCK_BUILDER_ID"])
    if env.get("GITHUB_WORKFLOW_REF"):
        return f"{redact_text(env.get('GITHUB_SERVER_URL', 'https://github.com'))}/{env['GITHUB_WORKFLOW_REF']}"
    if env.get("CI_CONFIG_REF_URI"):
        return f"https://{env['CI_CONFIG_REF_URI']}"
    return LOCAL


def _make_source(origin: Checkout) -> dict[str, Any]:
    return {"repository": origin.repository, "commit": origin.commit, "changed": origin.dirty}


def _list_byproducts(job: Job) -> list[dict[str, Any]]:
    """Return the digest of these inputs that is recorded, with the versions that produced it, if there is one."""
    verified = job.record.verified
    if verified is None or verified.inputs_sha256 != job.inputs_sha256:
        return []
    content = {"buildkit": verified.buildkit, "buildx": verified.buildx}
    return [{"name": "verified", "digest": {"sha256": verified.digest.removeprefix("sha256:")}, "annotations": content}]


def _file_dependencies(job: Job) -> list[dict[str, Any]]:
    return [{"uri": f"file:{name}", "digest": {"sha256": sha256}} for name, sha256 in _own_files(job).items()]


def _own_files(job: Job) -> dict[str, str]:
    """Return the repository's files that determine the image, with their hashes."""
    generated = [job.project / f"images/{job.variant.id}/{name}" for name in ("lock.json", "Dockerfile")]
    paths = [*job.project.list_layer_files(MATRIX), *list_stack_files(job.project, job.variant), *generated]
    return {job.project.recorded(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _read_finish_time(layout: Path) -> str:
    moment = dt.datetime.fromtimestamp(int((layout / "index.json").stat().st_mtime), dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
