"""The size of the host's memory that keeps the KV cache of earlier requests (--offload-kv-cache). Pure.

vLLM 0.32 keeps it, for each engine, in one file of /dev/shm that all ranks map, on ROCm in memory of each rank; a start
fails if the file is larger than what is free (v1/kv_offload/cpu/spec.py, shared_offload_region.py).
--kv-offloading-size is in GiB, for all ranks of an engine together (config/cache.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Device, Facts, Value
from entrypoints.core.text import format_count
from entrypoints.core.units import GIB
from entrypoints.decide.parallelism.rules import Split
from entrypoints.decide.records import does_not_fit, gib
from entrypoints.request.flags import KV_BACKEND, KV_OFFLOAD, SWAP
from entrypoints.request.vllm_flags import UserFlags

SHARED, PRIVATE = "shared", "private"
"""Values of Rules.offload: one file in /dev/shm for each engine, or memory of each rank."""
_OF_MEMORY = 0.5
"""Share of the free memory. The rest is for the processes, which take some GiB each, and for the files of the weights,
which loading keeps in the page cache."""
_SWAP_AT_MOST = 0.7
"""Share of the host's memory above which vLLM refuses --swap-space."""
_OF_FILES = 0.9
"""Share of the free space of /dev/shm. The rest is for messages between ranks."""


class Pool(NamedTuple):
    """Memory that limits the size."""

    name: str
    free: float
    """Bytes for each engine."""
    share: float = _OF_MEMORY

    @property
    def most(self) -> int:
        """Bytes that may be taken for each engine."""
        return int(self.share * self.free)


def choose_offload(facts: Facts, devices: tuple[Device, ...], engines: int, kind: str) -> dict[str, Value]:
    """Choose the size for each engine, by the pool that has least for it. Raises HOST if that is too small.

    `devices` are those of all engines of this host, in their order.
    """
    pool = min(_list_memory_pools(facts, devices, engines, kind), key=lambda pool: pool.most)
    pool_size = f"{pool.name} has {gib(int(pool.free))} free for each of {format_count(engines, 'engine')}"
    if pool.most < GIB:
        hint = "give the container more memory and a larger --shm-size, or leave the flag out"
        message = f"--offload-kv-cache: {pool_size}, and {pool.share:.0%} of it is less than 1 GiB"
        raise EntrypointError(HOST, message, hint)
    because = f"{pool_size}, the least of all limits; {1 - pool.share:.0%} of it stays for other uses"
    vllm_way = "vLLM's own way, without another server; earlier versions offload nothing without this flag"
    return {KV_OFFLOAD: Value(str(pool.most // GIB), because), KV_BACKEND: Value("native", vllm_way)}


def check_user_offload(model: str, facts: Facts, user_flags: UserFlags, split: Split) -> None:
    """Raise DOES_NOT_FIT for caches of the user's in the host's memory that exceed it.

    --kv-offloading-size is of each engine, --swap-space of each rank of one. Source: vLLM config/cache.py, to 0.11 also
    verify_with_parallel_config (Too large swap space).
    """
    total, limit = facts.memory.total, facts.cgroup.memory_limit
    engines = max(1, split.data)
    for name, number, most in (
        (KV_OFFLOAD, engines, min(total, limit or total)),
        (SWAP, split.tensor, int(_SWAP_AT_MOST * total)),
    ):
        stated = user_flags.flags.get(name)
        size = int(float(str(stated.value)) * GIB) * number if stated else 0
        if stated and total and size > most:
            message = (
                f"{model}: {stated.given}, {number} times, is {gib(size)} of the host's memory; at most {gib(most)}"
            )
            raise does_not_fit(message, f"{name} {most // number // GIB} fits")


def _list_memory_pools(facts: Facts, devices: tuple[Device, ...], engines: int, kind: str) -> Iterator[Pool]:
    limit, shm = facts.cgroup.memory_limit, facts.mounts.get("shm")
    yield Pool("the host", facts.memory.available / engines)
    yield from _list_near_pools(facts, devices, engines)
    if limit is not None and limit < facts.memory.total:
        yield Pool("the container's memory limit", max(0, limit - facts.cgroup.memory_used) / engines)
    if kind == SHARED and shm is not None and shm.exists:
        yield Pool(shm.path, shm.free / engines, _OF_FILES)


def _list_near_pools(facts: Facts, devices: tuple[Device, ...], engines: int) -> Iterator[Pool]:
    """Yield the part of each engine in the free memory of the NUMA nodes of its devices, if these are known."""
    free = {node.id: node.memory_free for node in facts.nodes if node.memory_total}
    devices_per_engine = max(1, len(devices) // engines)
    homes = [
        {device.node for device in devices[start : start + devices_per_engine]}
        for start in range(0, devices_per_engine * engines, devices_per_engine)
    ]
    sharing = Counter(node for home in homes for node in home)
    if len(free) > 1 and sharing.keys() <= free.keys():
        for home in homes:
            nodes = tuple(node for node in home if node is not None)
            yield Pool(f"NUMA node {format_id_list(nodes)}", sum(free[node] / sharing[node] for node in nodes))
