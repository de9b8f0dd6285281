"""What a server of prompts (prefill) or of answers (decode) gets: connector, addresses, ports, and the lease. Pure.

The connector of a stack is data (`kv_transfer` of the profile). Sources: vLLM 0.32 config/kv_transfer.py
(kv_load_failure_policy), distributed/kv_transfer/kv_connector/v1/nixl (kv_lease_duration), envs.py
(VLLM_NIXL_SIDE_CHANNEL_HOST, VLLM_NIXL_SIDE_CHANNEL_PORT; the port is a part of the key of vLLM's compile cache, the
host is not).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.core.records import Facts, Notice, Value
from entrypoints.request.flags import KV_TRANSFER
from entrypoints.request.roles import DECODE, NIXL, SERVE
from entrypoints.request.vllm_flags import UserFlags

POLICY, FAIL = "kv_load_failure_policy", "fail"
SIDE_HOST, SIDE_PORT = "VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_NIXL_SIDE_CHANNEL_PORT"
SIDE_PORT_DEFAULT = 5600
LEASE, LEASE_DEFAULT = "kv_lease_duration", 30.0
"""Seconds for which a prefill server keeps the KV cache of an answer that no decode server has read."""
_NAMES_AT_MOST = 4


def role_settings(profile: Mapping[str, Any], facts: Facts, user_flags: UserFlags) -> dict[str, Value]:
    """Return the settings of the role. Raises HOST if the stack has no published way, USAGE for options without one."""
    role = user_flags.role
    if role.name == SERVE:
        if role.host or role.port:
            hint = "add --role prefill or --role decode"
            raise EntrypointError(USAGE, "--side-channel-host and --side-channel-port need a role", hint)
        return {}
    transfer: Mapping[str, Any] = profile.get("kv_transfer") or {}
    users = _parse_connector_config(user_flags.flag(KV_TRANSFER) or "")
    settings = _make_connector_settings(transfer, facts) if transfer.get("connector") else {}
    if not users:
        settings |= _make_connector_config(profile, transfer, role.name)
    if (users.get("kv_connector") or transfer.get("connector")) in NIXL:
        settings |= _side_channel(user_flags)
    return settings


def _make_connector_config(profile: Mapping[str, Any], transfer: Mapping[str, Any], role: str) -> dict[str, Value]:
    """Return the connector's configuration for a role. Raises HOST."""
    hint = f"serve without a role, use an image of another stack, or give {KV_TRANSFER} yourself"
    if not transfer.get("connector"):
        why = f": {transfer['because']}" if transfer else ""
        message = f"--role {role}: no way to split prefill and decode is published for {profile['variant']}{why}"
        raise EntrypointError(HOST, message, hint)
    open_names = sorted(_open_names(transfer["config"]))
    if open_names:
        names = ", ".join(open_names[:_NAMES_AT_MOST])
        message = f"--role {role}: {transfer['connector']} needs what only a plan of all servers knows: {names}"
        raise EntrypointError(HOST, message, f"give {KV_TRANSFER} yourself, as drydock's `topology plan` prints it")
    config = {**transfer["config"], "kv_connector": transfer["connector"], "kv_role": transfer[role]}
    if transfer["load_failure"]:
        config[POLICY] = transfer["load_failure"]
    never = "recompute: a decode server would compute prompts again, and no one would notice"
    because = f"{role}: {transfer['because']} ({transfer['source']})"
    return {KV_TRANSFER: Value(json.dumps(config, sort_keys=True), because, (never,))}


def _open_names(value: Any) -> set[str]:
    """Return the texts {NAME} in a configuration, which stand for values of a topology's plan."""
    if isinstance(value, Mapping):
        return {name for item in value.values() for name in _open_names(item)}
    if isinstance(value, (list, tuple)):
        return {name for item in value for name in _open_names(item)}
    return {value} if isinstance(value, str) and value.startswith("{") and value.endswith("}") else set()


def _make_connector_settings(transfer: Mapping[str, Any], facts: Facts) -> dict[str, Value]:
    """Return the flags and variables that prefill and decode servers share, and the network interface."""
    every = {**(transfer.get("serve") or {}), **(transfer.get("env") or {})}
    complete_items = {name: item for name, item in every.items() if not _open_names(item["value"])}
    settings = {
        name: Value(item["value"] if isinstance(item["value"], bool) else str(item["value"]), item["because"])
        for name, item in complete_items.items()
    }
    interface = next(iter(facts.kernel.get("interfaces", "").split()), "")
    for name in (transfer.get("interfaces") or ()) if interface else ():
        settings[name] = Value(interface, "the first interface that is up, which the connector uses between hosts")
    return settings


def _side_channel(user_flags: UserFlags) -> dict[str, Value]:
    """Return where NIXL's handshake is answered."""
    role, host_ip = user_flags.role, user_flags.variable("VLLM_HOST_IP")
    why_same = "the same on every host: it is a part of the compile cache's key"
    because = f"given as --side-channel-port; {why_same}" if role.port else f"vLLM's usual port; {why_same}"
    settings = {SIDE_PORT: Value(str(role.port or SIDE_PORT_DEFAULT), because)}
    if role.host or host_ip:
        reason = "given as --side-channel-host" if role.host else "as in VLLM_HOST_IP"
        settings[SIDE_HOST] = Value(role.host or host_ip or "", f"{reason}: where other hosts reach NIXL's handshake")
    return settings


def role_notices(
    profile: Mapping[str, Any], user_flags: UserFlags, chosen: Mapping[str, Any], stall: float
) -> tuple[Notice, ...]:
    """Return what is missing for a role, or dangerous. `chosen` are the values of all settings by name.

    `stall` is the number of seconds for which a server without progress still counts as ready; 0 is forever.
    """
    config = _parse_connector_config(str(chosen.get(KV_TRANSFER, "")))
    if not config:
        return ()
    notices = []
    connector, refused = str(config.get("kv_connector")), (profile.get("kv_transfer") or {}).get("load_failure", FAIL)
    if POLICY not in config and refused is not None:
        notices.append(make_notice("PLAN-130", f"{KV_TRANSFER} without {POLICY}", f'"{POLICY}": "{FAIL}"'))
    if connector in NIXL and SIDE_HOST not in chosen and not user_flags.variable(SIDE_HOST):
        notices.append(make_notice("PLAN-131", f"{SIDE_HOST} is not set: localhost", "--side-channel-host ADDRESS"))
    lease = _read_lease(config)
    if user_flags.role.name == DECODE and connector in NIXL and not 0 < stall <= lease:
        longest = f"{stall:g} s" if stall else "no limit"
        notices.append(
            make_notice("PLAN-132", f"a lease of {lease:g} s, and a wait of {longest}", "a lease that is longer")
        )
    return tuple(notices)


def _parse_connector_config(text: str) -> dict[str, Any]:
    """Return a connector's configuration; empty if there is none, or it is a file or broken, which vLLM tells."""
    try:
        value = parse_untrusted_json(text) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_lease(config: Mapping[str, Any]) -> float:
    extra = config.get("kv_connector_extra_config")
    value = extra.get(LEASE) if isinstance(extra, dict) else None
    return float(value) if isinstance(value, (int, float)) else LEASE_DEFAULT
