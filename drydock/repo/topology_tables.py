"""The tables of docs/reference/topology.md: keys of the file, connectors, findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drydock.core.files import compact
from drydock.model.record import Record
from drydock.model.transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.repo.schema import descriptions
from drydock.topology import records
from drydock.topology.findings import FINDINGS

Row = tuple[str, ...]

SECTIONS: tuple[tuple[str, type[Record]], ...] = (
    ("", records.Topology),
    ("nodes[].", records.Node),
    ("groups[].", records.Group),
    ("router.", records.Router),
    ("network.", records.Network),
    ("goals.", records.Goals),
)
_OF_SECTIONS = ("nodes", "groups", "router", "network", "goals")


def keys() -> Iterator[Row]:
    """Yield each key of a topology.yaml, its default, and what it means."""
    yield ("key", "default", "meaning")
    for prefix, record in SECTIONS:
        texts = descriptions(record)
        for name, field in record.model_fields.items():
            if record is not records.Topology or name not in _OF_SECTIONS:
                yield (
                    f"`{prefix}{field.alias or name}`",
                    _default(field.get_default(call_default_factory=True)),
                    texts.get(name, ""),
                )


def _default(value: object) -> str:
    if value is None or value in ((), {}):
        return ""
    return "required" if "Undefined" in repr(value) else f"`{value}`"


def connectors(variants: Sequence[Variant]) -> Iterator[Row]:
    """Yield how prefill and decode exchange the KV cache: each way once, with the variants that have it."""
    yield (
        "accelerator",
        "variants",
        "`--kv-transfer-config` of prefill",
        "kv_role of decode",
        "ports",
        "needs",
        "reason",
        "source",
    )
    found: dict[str, tuple[KvTransfer, list[Variant]]] = {}
    for variant in variants:
        if variant.kv_transfer:
            key = variant.accelerator + variant.kv_transfer.model_dump_json()
            found.setdefault(key, (variant.kv_transfer, []))[1].append(variant)
    for transfer, own in found.values():
        yield (own[0].accelerator, ", ".join(f"`{each.id}`" for each in own), *_connector(transfer))


def _connector(transfer: KvTransfer) -> Row:
    if transfer.connector is None:
        return ("none published", "", "", "", transfer.because, transfer.source)
    policy = {"kv_load_failure_policy": transfer.load_failure} if transfer.load_failure else {}
    words = {"kv_connector": transfer.connector, "kv_role": transfer.prefill, **policy, **transfer.config}
    ports = ", ".join(f"{purpose} (each {port.each})" for purpose, port in transfer.ports.items())
    because = f"{transfer.because} Not shown: {transfer.unproven}." if transfer.unproven else transfer.because
    return (
        f"`{compact(words)}`",
        f"`{transfer.decode}`",
        ports,
        ", ".join(transfer.packages),
        because,
        transfer.source,
    )


def findings() -> Iterator[Row]:
    """Yield what the plan of a topology warns of."""
    yield ("id", "text", "what to do", "source")
    for number, known in FINDINGS.items():
        yield (number, known.text.replace("{}", "…"), known.remediation, known.source)
