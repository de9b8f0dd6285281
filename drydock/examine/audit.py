"""Audit a built image: secrets, build tools, excess rights, writable paths, users. IO (reads only).

The layers are read as they will be pulled. Files that a later layer removes are searched for secrets too: a pull of the
image includes the lower layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from drydock.attest import contents
from drydock.build import adoption
from drydock.build.build_job import Job
from drydock.config.hardening_policy import POLICY_FILE, HardeningPolicy, Pattern, find_secrets, read_policy
from drydock.config.matrix import read_matrix
from drydock.core.console import as_lines
from drydock.core.errors import HardeningError, InputError
from drydock.core.project import Project
from drydock.examine import hardening
from drydock.examine.hardening import Finding, ObservedImage, TreeNode
from drydock.examine.remote_image import Image
from drydock.inputs import indexes
from drydock.model.bases import DebianBase, ImageBase
from drydock.model.record import Record
from drydock.model.variant import Variant
from drydock.oci import image_layout, layers

KEPT = ("etc/passwd", "etc/group", "etc/shadow", "var/lib/dpkg/status")
KEPT_BELOW = ("var/lib/dpkg/status.d/",)
"""Files and folders whose text is kept in memory."""
READ, OVERLAP = 16 << 20, 1 << 10
"""Bytes of a file that are searched at once, and bytes that two consecutive pieces share."""
VARIANT_LABEL = "io.drydock.variant"
SHORTEST = 8
"""Minimum length of a host address that is searched for: shorter ones match by chance."""


class Audited(Record):
    """What `audit --json` prints."""

    variant: str
    platform: str
    digest: str
    layers: int
    files: int
    findings: tuple[Finding, ...]
    """Findings that make the audit fail."""
    allowed: tuple[Finding, ...]
    """Findings that the policy allows, each with the reason."""
    of_base: tuple[Finding, ...]
    """Findings in the vendor's base image, which do not make the audit fail."""


class AuditedImage(NamedTuple):
    """The image to audit."""

    variant: Variant | None
    """Null for an image in a registry whose variant this project does not have: all in it counts as ours."""
    platform: str
    digest: str
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    blob: Callable[[str], Path]
    """Returns a blob's file."""


def audit_job(job: Job, env: Mapping[str, str] = os.environ) -> Audited:
    """Audit the image built from a job's inputs. Raises InputError if it is not built."""
    layout = job.kept_layout
    if layout is None:
        raise InputError(
            f"{job.variant.id}: no image was built from the current inputs",
            hint=f"./inv build --target {job.variant.id}",
        )
    return audit_layout(job, layout, machine_patterns(env))


def audit_layout(job: Job, layout: Path, extra: Sequence[Pattern] = ()) -> Audited:
    """Audit an OCI layout by the policy and by `extra` patterns of secrets."""
    manifest, config = image_layout.read_manifest(layout), image_layout.read_config(layout)
    digest, blob = image_layout.read_digest(layout), partial(image_layout.path_of_blob, layout)
    return _audit_image(job.project, AuditedImage(job.variant, job.platform, digest, manifest, config, blob), extra)


def examine_published(project: Project, image: Image, platform: str) -> Audited:
    """Audit an image in a registry by the project's policy; its label names its variant. Raises RegistryError."""
    manifest, config = image.platforms[platform], image.config(platform)
    name = config["config"]["Labels"].get(VARIANT_LABEL)
    variant = next((variant for variant in read_matrix(project) if variant.id == name), None)
    return _audit_image(project, AuditedImage(variant, platform, manifest.digest, manifest.content, config, image.blob))


def _audit_image(project: Project, subject: AuditedImage, extra: Sequence[Pattern] = ()) -> Audited:
    policy = read_policy(project)
    policy = policy.model_copy(update={"patterns": (*policy.patterns, *extra)})
    observed = observe_image(subject, policy)
    variant, dockerfile = subject.variant, ""
    if variant:
        dockerfile = (project / f"images/{variant.id}/Dockerfile").read_text()
    base = variant.base if variant else None
    requested = base.packages if isinstance(base, DebianBase) else ()
    findings = (*hardening.find_violations(observed, policy, requested), *hardening.find_network_steps(dockerfile))
    is_adopted = variant is not None and variant.is_adopted
    own_layers = adoption.ADDED_LAYERS if is_adopted else hardening.own_layers(dockerfile)
    base_layers = len(subject.manifest["layers"]) - own_layers
    of_base = [item for item in findings if isinstance(base, ImageBase) and _of_base(item, base_layers)]
    own_findings = [item for item in findings if item not in of_base]
    return Audited(
        variant=variant.id if variant else "unknown variant",
        platform=subject.platform,
        digest=subject.digest,
        layers=len(subject.manifest["layers"]),
        files=len(observed.nodes),
        findings=tuple(item for item in own_findings if not item.because),
        allowed=tuple(item for item in own_findings if item.because),
        of_base=tuple(of_base),
    )


def enforce_hardening(audited: Audited) -> None:
    """Raise HardeningError if there are findings that the policy does not allow."""
    if audited.findings:
        raise HardeningError(
            *(_format_finding(item) for item in audited.findings),
            hint=f"remove it from the image, or add it with a reason to allow in {POLICY_FILE}",
        )


def format_audit(audited: Audited) -> str:
    """Return the result as text."""
    lines = [f"{audited.variant} {audited.platform} {audited.digest}: {audited.files} paths in {audited.layers} layers"]
    for item in audited.allowed:
        lines += [f"  allowed: {_format_finding(item)}", f"    because: {item.because}"]
    lines += [f"  in the base: {_format_finding(item)}" for item in audited.of_base]
    lines.append(f"  {len(audited.findings) or 'no'} findings")
    return as_lines(lines)


def machine_patterns(env: Mapping[str, str]) -> tuple[Pattern, ...]:
    """Return a pattern for addresses that belong to this machine only: proxies, and indexes with credentials."""
    configured = indexes.read_indexes(env)
    urls = {value for name, value in env.items() if hardening.PROXY.match(name) and "://" in value}
    if configured.proxy:
        urls.add(configured.proxy)
    urls |= {url for url in (configured.main, *configured.extra, *configured.find_links) if url and "@" in url}
    hosts = {urlsplit(url).netloc for url in urls}
    marks = tuple(sorted(host for host in hosts if len(host) >= SHORTEST))
    return (Pattern(name="an address of the build machine", marks=marks, regex=""),) if marks else ()


# --- reading --------------------------------------------------------------------------------------------------------


def observe_image(subject: AuditedImage, policy: HardeningPolicy) -> ObservedImage:
    """Return what the rules need to know about an image. Reads every layer once."""
    nodes = layers.LayeredPaths[TreeNode]()
    texts: dict[str, str] = {}
    secrets: list[Finding] = []
    for entry in layers.read_layer_entries(subject.manifest, subject.blob):
        if entry.hides:
            layers.apply_whiteout(nodes, entry)
            continue
        nodes[entry.path] = _make_tree_node(entry, nodes)
        secrets += _find_entry_secrets(entry, policy, texts)
    packages = contents.list_installed_debs({path: text for path, text in texts.items() if path in nodes})
    return ObservedImage(nodes, tuple(secrets), frozenset(package.name for package in packages), texts, subject.config)


def _make_tree_node(entry: layers.Entry, nodes: Mapping[str, TreeNode]) -> TreeNode:
    info = entry.info
    if info.islnk() and layers.find_link_target(info) in nodes:
        return nodes[layers.find_link_target(info)]._replace(layer=entry.layer)
    kinds = {"file": info.isreg(), "folder": info.isdir(), "link": info.issym(), "device": info.ischr() or info.isblk()}
    kind = next((kind for kind, fits in kinds.items() if fits), "other")
    return TreeNode(entry.layer, kind, info.mode, info.uid, info.gid, hardening.CAPABILITY in info.pax_headers)


def _find_entry_secrets(entry: layers.Entry, policy: HardeningPolicy, texts: dict[str, str]) -> Iterator[Finding]:
    """Yield a finding for each kind of secret in a file's name or bytes; add the text of a kept file to `texts`."""
    if entry.content is None:
        return
    kinds = []
    by_name = hardening.secret_by_name(entry.path, policy)
    if by_name:
        kinds.append(by_name)
    for data in _read_overlapping(entry.content):
        kinds += [secret.kind for secret in find_secrets(entry.path, data, policy.patterns)]
        if entry.path in KEPT or entry.path.startswith(KEPT_BELOW):
            texts[entry.path] = data.decode(errors="replace")
    for kind in dict.fromkeys(kinds):
        yield Finding(rule="secrets", path=entry.path, found=kind, layer=entry.layer)


def _read_overlapping(content: Any) -> Iterator[bytes]:
    """Yield a file's bytes in pieces that overlap, so that a secret on a boundary is found."""
    last = b""
    while data := content.read(READ):
        yield last + data if last else data
        last = data[-OVERLAP:]


def _of_base(finding: Finding, base_layers: int) -> bool:
    """Return whether a finding is in the base image; Debian packages, whose layer is unknown, always are."""
    return finding.layer < base_layers if finding.layer is not None else finding.path.startswith("deb ")


def _format_finding(finding: Finding) -> str:
    layer = f" (layer {finding.layer})" if finding.layer is not None else ""
    return f"{finding.rule}: {finding.path}: {finding.found}{layer}"
