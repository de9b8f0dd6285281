"""The parts of docs/reference/topology.md: connectors, findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drydock.core.files import compact
from drydock.model.topology_findings import FINDINGS
from drydock.model.transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.repo.markdown import anchor

Row = tuple[str, ...]


def connectors(variants: Sequence[Variant]) -> str:
    """Return how prefill and decode exchange the KV cache: each way once, with the images that have it."""
    found: dict[str, tuple[KvTransfer, list[Variant]]] = {}
    for variant in variants:
        if variant.kv_transfer:
            key = variant.accelerator + variant.kv_transfer.model_dump_json()
            found.setdefault(key, (variant.kv_transfer, []))[1].append(variant)
    return "".join(_connector(transfer, _images(variants, own)) for transfer, own in found.values())


def _images(variants: Sequence[Variant], own: Sequence[Variant]) -> str:
    """Return the images of one accelerator that are meant, or those that are not if they are fewer."""
    name = own[0].accelerator
    missing = [variant for variant in variants if variant.accelerator == name and variant not in own]
    ids = ", ".join(f"`{each.id}`" for each in min(own, missing, key=len))
    return name if not missing else f"{name}, all but {ids}" if len(missing) < len(own) else ids


def _connector(transfer: KvTransfer, images: str) -> str:
    """Return an item: the images, the reason, and the connector with its settings."""
    if transfer.connector is None:
        return f"- {images}: none published; {transfer.because}\n"
    policy = {"kv_load_failure_policy": transfer.load_failure} if transfer.load_failure else {}
    words = {"kv_connector": transfer.connector, "kv_role": transfer.prefill, **policy, **transfer.config}
    ports = ", ".join(f"{purpose} (each {port.each})" for purpose, port in transfer.ports.items())
    parts = (
        f"`{compact(words)}`",
        f"decode: `{transfer.decode}`",
        f"ports: {ports}" if ports else "",
        f"needs {', '.join(transfer.packages)}" if transfer.packages else "",
    )
    unproven = f" Not shown: {transfer.unproven}." if transfer.unproven else ""
    return f"- {images}: {transfer.because}{unproven}\n    - {'; '.join(filter(None, parts))}\n"


def findings() -> Iterator[str]:
    """Yield an item for each finding about a topology: its text, and what to do."""
    for number, known in FINDINGS.items():
        yield f"- {anchor(number)}**{number}** {known.text.replace('{}', '…')}\n    - fix: {known.remediation}\n"
