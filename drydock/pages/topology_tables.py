"""The parts of docs/reference/topology.md: connectors, settings of roles, findings. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drydock.config.topology_finding_file import read_topology_findings
from drydock.core.files import format_compact_json
from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.pages.markdown import make_anchor, make_table

Row = tuple[str, ...]


def format_connectors(variants: Sequence[Variant]) -> str:
    """Return how prefill and decode exchange the KV cache: each way once, with the images that have it."""
    transfers: dict[str, tuple[KvTransfer, list[Variant]]] = {}
    for variant in variants:
        if variant.kv_transfer:
            key = variant.accelerator + variant.kv_transfer.model_dump_json()
            transfers.setdefault(key, (variant.kv_transfer, []))[1].append(variant)
    return "".join(
        _format_connector(transfer, _list_image_ids(variants, users)) for transfer, users in transfers.values()
    )


def _list_image_ids(variants: Sequence[Variant], users: Sequence[Variant]) -> str:
    """Return the images of one accelerator that are meant, or those that are not if they are fewer."""
    name = users[0].accelerator
    missing = [variant for variant in variants if variant.accelerator == name and variant not in users]
    ids = ", ".join(f"`{variant.id}`" for variant in min(users, missing, key=len))
    return name if not missing else f"{name}, all but {ids}" if len(missing) < len(users) else ids


def _format_connector(transfer: KvTransfer, images: str) -> str:
    """Return an item: the images, the reason, and the connector with its settings."""
    if transfer.connector is None:
        return f"- {images}: none published; {transfer.because}\n"
    policy = {"kv_load_failure_policy": transfer.load_failure} if transfer.load_failure else {}
    words = {"kv_connector": transfer.connector, "kv_role": transfer.prefill, **policy, **transfer.config}
    ports = ", ".join(f"{purpose} (each {port.each})" for purpose, port in transfer.ports.items())
    parts = (
        f"`{format_compact_json(words)}`",
        f"decode: `{transfer.decode}`",
        f"ports: {ports}" if ports else "",
        f"needs {', '.join(transfer.packages)}" if transfer.packages else "",
    )
    unproven = f" Not shown: {transfer.unproven}." if transfer.unproven else ""
    return f"- {images}: {transfer.because}{unproven}\n    - {'; '.join(filter(None, parts))}\n"


def roles(variants: Sequence[Variant]) -> str:
    """Return what stacks set for servers by role: each setting once, with the images and the roles that have it."""
    settings: dict[tuple[str, ...], tuple[dict[str, Variant], dict[str, None]]] = {}
    for variant in variants:
        for role, role_settings in variant.roles.items():
            for item in role_settings.settings:
                value = str(item.value).lower() if isinstance(item.value, bool) else str(item.value)
                key = (variant.accelerator, item.setting, value, item.because, item.source)
                images, names = settings.setdefault(key, ({}, {}))
                images[variant.id] = variant
                names[role] = None
    rows = (
        (_list_image_ids(variants, [*images.values()]), ", ".join(names), f"`{setting}`", f"`{value}`", because, source)
        for (_, setting, value, because, source), (images, names) in sorted(
            settings.items(), key=lambda entry: entry[0]
        )
    )
    return make_table(("images", "roles", "setting", "value", "why", "source"), rows)


def list_topology_findings() -> Iterator[str]:
    """Yield an item for each finding about a topology: its text, and what to do."""
    for number, finding in read_topology_findings().items():
        text = finding.text.replace("{}", "…")
        yield f"- {make_anchor(number)}**{number}** {text}\n    - fix: {finding.remediation}\n"
