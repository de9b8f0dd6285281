"""Records of how the KV cache of a prompt travels from a prefill server to a decode server. Pure data.

vLLM calls what moves it a connector. Names, JSON, ports and environment depend on accelerator and version of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator

from drydock.model.names import Distribution, OneLine, SettingName, VariableName
from drydock.model.record import Because, Count, Identifier, Record, Setting, Source

Connector = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
KvRole = Literal["kv_producer", "kv_consumer", "kv_both"]


class KvPort(Record):
    """A port, or several in a row, on which servers reach each other."""

    variable: VariableName | None = None
    """Environment variable that takes the first one; if left out, `{purpose}` in `config` takes it."""
    each: Literal["node", "engine", "device"] = "node"
    """Whether a node uses one, one for each of its devices, or one for each of its data-parallel engines, which are
    numbered over all nodes of a server."""
    least: Count = 1
    """Lowest number that the first one may have."""
    least_each_device: Count = 0
    """What is added to `least` for each device of a node."""


class KvTransfer(Record):
    """The connector of some versions of vLLM, or that none is published."""

    vllm: OneLine = ""
    """Versions of vLLM, such as >=0.12; all if left out. The first entry that matches counts."""
    connector: Connector | None = None
    """Name in vLLM's registry of connectors; if left out, none is published, and `because` says so."""
    config: Mapping[Identifier, JsonValue] = {}
    """Further keys of --kv-transfer-config. A text {NAME} stands for a value of the plan: a port by its purpose, role,
    instance (number of the server, prefill first), prefills, decodes, servers, prefill_tp, prefill_dp, decode_tp,
    decode_dp, decode_addresses (of nodes; those of a server are separated by commas, servers by semicolons)."""
    prefill: KvRole = "kv_producer"
    """kv_role of prefill servers."""
    decode: KvRole = "kv_consumer"
    """kv_role of decode servers."""
    load_failure: Literal["fail", "recompute"] | None = "fail"
    """kv_load_failure_policy, always written; null for versions of vLLM that refuse the key."""
    most_decodes: Count = 0
    """Most decode servers of a topology; 0 for any number."""
    ports: Mapping[Identifier, KvPort] = {}
    """Purpose → port."""
    address: tuple[VariableName, ...] = ()
    """Environment variables that take the node's IP address."""
    interfaces: tuple[VariableName, ...] = ()
    """Environment variables that take the network interface between nodes."""
    env: Mapping[VariableName, Setting] = {}
    """Environment variables of prefill and decode servers. Names are replaced as in `config`."""
    serve: Mapping[SettingName, Setting] = {}
    """vLLM flags that prefill and decode must share."""
    packages: tuple[Distribution, ...] = ()
    """Distributions that the image must contain."""
    router: Literal["nixl", "mooncake", "moriio"] = "nixl"
    """How vllm-router passes a request on: its --kv-connector."""
    unproven: OneLine = ""
    """What no one has shown yet of this way; the plan says it."""
    because: Because
    source: Source

    @field_validator("vllm")
    @classmethod
    def _is_specifier(cls, text: str) -> str:
        try:
            SpecifierSet(text)
        except InvalidSpecifier as error:
            raise ValueError("versions such as >=0.12,<0.16") from error
        return text

    @model_validator(mode="after")
    def _config_is_its_own(self) -> Self:
        """Check that `config` repeats nothing that has a key of its own."""
        repeated_keys = {"kv_connector", "kv_role", "kv_load_failure_policy"} & {*self.config}
        if repeated_keys:
            raise ValueError(
                f"config without {', '.join(sorted(repeated_keys))}: connector, prefill, decode and load_failure"
            )
        return self

    def fits(self, version: str) -> bool:
        """Return whether it is for a version of vLLM."""
        return SpecifierSet(self.vllm).contains(version, prereleases=True)


Transfers = Annotated[
    tuple[KvTransfer, ...],
    Field(description="How prefill and decode servers exchange the KV cache, by version of vLLM."),
]
