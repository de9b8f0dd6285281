"""The words and the environment with which servers of a topology exchange the KV cache. Pure.

Names and values are data: kv_transfer in templates/<accelerator>/accelerator.yaml and its stacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drydock.core.errors import InputError
from drydock.core.files import format_compact_json
from drydock.model.kv_transfer import KvTransfer
from drydock.model.variant import Variant
from drydock.topology.findings import format_topology_finding
from drydock.topology.topology_records import Group

CONFIG = "--kv-transfer-config"
_NIXL = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
_LEASE, _LEASE_MORE = "kv_lease_duration", 30
"""vLLM's own lease, 30 s, is added to the time for which a server may make no progress."""
_NAME = re.compile(r"\{([a-z_-]+)\}")

Names = Mapping[str, int | str]
"""What stands for {NAME} in the data."""


def choose_transfer(variant: Variant, groups: Sequence[Group]) -> KvTransfer | None:
    """Return how prefill and decode exchange the KV cache; None without such groups.

    Raises InputError if none is published for the variant.
    """
    if all(group.role == "serve" for group in groups):
        return None
    transfer = variant.kv_transfer
    if transfer is None or transfer.connector is None:
        why = transfer.because if transfer else "no file in templates/ names one"
        text = f"prefill and decode: none published for {variant.id} (vLLM {variant.vllm.version}): {why}"
        raise InputError(
            text, hint="use groups with role serve, or another target; docs/reference/topology.md lists connectors"
        )
    decodes = sum(group.replicas for group in groups if group.role == "decode")
    if transfer.most_decodes and decodes > transfer.most_decodes:
        text = f"found {decodes} decode servers, expected at most {transfer.most_decodes}: {transfer.connector}"
        raise InputError(text, hint="use more nodes for one decode server instead of more servers")
    return transfer


def compute_lease(stalls: Iterable[int]) -> int:
    """Return for how many seconds a prefill server keeps a KV cache that no decode server has asked for.

    A decode server asks for it again and again while it runs, and is not ready after `stalls` seconds without progress.
    So no ready server reads blocks that another request has overwritten.
    """
    return max(stalls) + _LEASE_MORE


def format_transfer_config(transfer: KvTransfer, role: str, names: Names, lease: int) -> str:
    """Return the JSON of --kv-transfer-config; what happens if a load fails is always written.

    `lease` is in seconds; only NIXL's connectors have one.
    """
    words: dict[str, Any] = {"kv_connector": transfer.connector, "kv_role": getattr(transfer, role)}
    if transfer.load_failure:
        words["kv_load_failure_policy"] = transfer.load_failure
    words |= _fill_names(dict(transfer.config), names)
    if transfer.connector in _NIXL:
        words["kv_connector_extra_config"] = {_LEASE: lease, **words.get("kv_connector_extra_config", {})}
    return format_compact_json(words)


def _fill_names(value: Any, names: Names) -> Any:
    """Put names' values into a JSON value. Raises InputError for a name that is not known."""
    if isinstance(value, dict):
        return {key: _fill_names(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_names(item, names) for item in value]
    match = _NAME.fullmatch(value) if isinstance(value, str) else None
    if not match:
        return value
    if match[1] not in names:
        raise InputError(f"kv_transfer: unknown name {value}, expected one of {', '.join(sorted(names))}")
    return names[match[1]]


def make_transfer_environment(transfer: KvTransfer, names: Names) -> dict[str, str]:
    """Return the environment of prefill and decode servers, but for addresses, interfaces and ports."""
    return {name: str(_fill_names(setting.value, names)) for name, setting in transfer.env.items()}


def list_transfer_flags(transfer: KvTransfer) -> dict[str, str]:
    """Return vLLM's flags that prefill and decode must share."""
    return {name: str(setting.value) for name, setting in transfer.serve.items()}


def check_transfer_support(transfer: KvTransfer, variant: Variant) -> Iterator[str]:
    """Yield what the image lacks for the connector, and what no one has shown."""
    has = {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in variant.requirements}
    has |= {build.distribution for build in variant.builds}
    lacking = [name for name in transfer.packages if name not in has]
    if lacking:
        yield format_topology_finding("TOPO-004", " and ".join(lacking))
    if transfer.unproven:
        yield format_topology_finding("TOPO-005", transfer.unproven)
