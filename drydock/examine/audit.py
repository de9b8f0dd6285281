"""A built image → what is in it that should not be: secrets, build tools, rights, paths, users. IO (reads only).

Everything is read from the layers as they will be pulled; secrets also in files that a later layer removes, since
whoever pulls the image has the layer below too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from drydock.attest import contents
from drydock.build.job import Job
from drydock.core.errors import HardeningError, InputError
from drydock.examine import hardening
from drydock.examine.hardening import Finding, HardeningPolicy, Node, Pattern, Seen
from drydock.inputs import indexes
from drydock.model.bases import DebianBase
from drydock.model.record import Record
from drydock.oci import layers
from drydock.oci import layout as oci

KEPT = ("etc/passwd", "etc/group", "etc/shadow", "var/lib/dpkg/status")
KEPT_BELOW = ("var/lib/dpkg/status.d/",)
"""Files whose text is wanted."""
READ, OVERLAP = 16 << 20, 1 << 10
"""Bytes of a file that are searched at once, and of those that are searched with the next again."""
SHORTEST = 8
"""Characters of an address of this machine that is looked for: a shorter one would be found by chance."""


class Audited(Record):
    """What `audit --json` prints."""

    variant: str
    platform: str
    digest: str
    layers: int
    files: int
    findings: tuple[Finding, ...]
    """What should not be there."""
    allowed: tuple[Finding, ...]
    """What stays, each with the reason."""
    of_base: tuple[Finding, ...]
    """What an image of a registry brought that this one is built upon: for its vendor to say."""


class AuditedImage(NamedTuple):
    """An image to look through."""

    job: Job
    layout: Path
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]

    def blob(self, digest: str) -> Path:
        """Return a blob's file."""
        return oci.blob(self.layout, digest)


def audit(job: Job, env: Mapping[str, str] = os.environ) -> Audited:
    """Look through the image that was built of a job's inputs. Raises InputError where there is none."""
    layout = job.kept_layout
    if layout is None:
        raise InputError(
            f"{job.variant.id}: nothing was built of the inputs that are there now",
            hint=f"invoke build --target {job.variant.id}",
        )
    return examine(job, layout, own(env))


def examine(job: Job, layout: Path, secret: Sequence[Pattern] = ()) -> Audited:
    """Look through an OCI layout for what the policy forbids and for `secret`, what only this machine knows."""
    subject = _open(job, layout)
    policy = hardening.read_policy(job.root)
    policy = policy.model_copy(update={"patterns": (*policy.patterns, *secret)})
    seen = read(subject, policy)
    dockerfile = (job.root / "images" / job.variant.id / "Dockerfile").read_text()
    asked = job.variant.base.packages if isinstance(job.variant.base, DebianBase) else ()
    found = (*hardening.findings(seen, policy, asked), *hardening.network(dockerfile))
    below = len(subject.manifest["layers"]) - hardening.own_layers(dockerfile)
    vendors = [item for item in found if not isinstance(job.variant.base, DebianBase) and _of_base(item, below)]
    mine = [item for item in found if item not in vendors]
    return Audited(
        variant=job.variant.id,
        platform=job.platform,
        digest=oci.read_digest(layout),
        layers=len(subject.manifest["layers"]),
        files=len(seen.nodes),
        findings=tuple(item for item in mine if not item.because),
        allowed=tuple(item for item in mine if item.because),
        of_base=tuple(vendors),
    )


def settle(audited: Audited) -> None:
    """Raise HardeningError for what should not be there."""
    if audited.findings:
        raise HardeningError(
            *(_line(item) for item in audited.findings),
            hint=f"mend what brings it; what must stay is named under allow in {hardening.FILE}, with a reason",
        )


def report(audited: Audited) -> str:
    """Return what people read."""
    lines = [f"{audited.variant} {audited.platform} {audited.digest}: {audited.files} paths in {audited.layers} layers"]
    lines += [f"  stays: {_line(item)}\n    because: {item.because}" for item in audited.allowed]
    lines += [f"  of the base: {_line(item)}" for item in audited.of_base]
    lines.append(f"  {len(audited.findings) or 'nothing'} to mend")
    return "\n".join(lines) + "\n"


def own(env: Mapping[str, str]) -> tuple[Pattern, ...]:
    """Return what only this machine knows and no image may: its proxies, and its indexes where they want a password."""
    configured = indexes.read_indexes(env)
    proxies = {value for name, value in env.items() if hardening.PROXY.match(name) and "://" in value}
    proxies |= {configured.proxy} if configured.proxy else set()
    places = {url for url in (configured.main, *configured.extra, *configured.find_links) if url and "@" in url}
    netlocs = {urlsplit(url).netloc for url in proxies | places}
    marks = tuple(sorted(netloc for netloc in netlocs if len(netloc) >= SHORTEST))
    return (Pattern(name="an address of the build machine's", marks=marks, regex=""),) if marks else ()


# --- reading --------------------------------------------------------------------------------------------------------


def read(subject: AuditedImage, policy: HardeningPolicy) -> Seen:
    """Return what is in an image. Reads every layer once."""
    nodes: dict[str, Node] = {}
    texts: dict[str, str] = {}
    secrets: list[Finding] = []
    for entry in layers.entries(subject.manifest, subject.blob):
        if entry.hides:
            layers.hide(nodes, entry)
            continue
        nodes[entry.path] = _node(entry, nodes)
        secrets += _secrets(entry, policy, texts)
    packages = contents.debs({path: text for path, text in texts.items() if path in nodes})
    return Seen(nodes, tuple(secrets), frozenset(package.name for package in packages), texts, subject.config)


def _open(job: Job, layout: Path) -> AuditedImage:
    return AuditedImage(job, layout, oci.read_manifest(layout), oci.read_config(layout))


def _node(entry: layers.Entry, nodes: Mapping[str, Node]) -> Node:
    info = entry.info
    if info.islnk() and layers.target(info) in nodes:
        return nodes[layers.target(info)]._replace(layer=entry.layer)
    kinds = {"file": info.isreg(), "folder": info.isdir(), "link": info.issym(), "device": info.ischr() or info.isblk()}
    kind = next((kind for kind, fits in kinds.items() if fits), "other")
    return Node(entry.layer, kind, info.mode, info.uid, info.gid, hardening.CAPABILITY in info.pax_headers)


def _secrets(entry: layers.Entry, policy: HardeningPolicy, texts: dict[str, str]) -> Iterator[Finding]:
    """Return what is secret of a file by its name or its bytes; keeps the texts that are wanted."""
    if entry.content is None:
        return
    kinds = {what: None for what in (hardening.named(entry.path, policy),) if what}
    for data in _pieces(entry.content):
        kinds |= dict.fromkeys(hardening.secrets(entry.path, data, policy.patterns))
        if entry.path in KEPT or entry.path.startswith(KEPT_BELOW):
            texts[entry.path] = data.decode(errors="replace")
    yield from (Finding(rule="secrets", path=entry.path, found=kind, layer=entry.layer) for kind in kinds)


def _pieces(content: Any) -> Iterator[bytes]:
    """Return a file's bytes in pieces that overlap, so that no secret is cut in two."""
    last = b""
    while data := content.read(READ):
        yield last + data if last else data
        last = data[-OVERLAP:]


def _of_base(found: Finding, below: int) -> bool:
    """Tell whether the image below brought something; of packages, which no layer is known of, it always did."""
    return found.layer < below if found.layer is not None else found.path.startswith("deb ")


def _line(found: Finding) -> str:
    layer = f" (layer {found.layer})" if found.layer is not None else ""
    return f"{found.rule}: {found.path}: {found.found}{layer}"
