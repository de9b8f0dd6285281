"""The core that a server needs for exchanging its KV cache with other servers. Pure.

With NIXL, vLLM 0.32 moves the worker's main thread, which computes too, to the last core of a NUMA node
(distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py; platforms/cpu.py, discover_numa_topology). If another
computing thread is bound to that core, every step waits for the two. vLLM's own binding keeps a core free for each rank
(utils/ompmultiprocessing.py).
"""

from __future__ import annotations

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.core.parse import format_id_list
from entrypoints.core.records import Facts
from entrypoints.decide.decision_input import Case
from entrypoints.request.flags import KV_TRANSFER
from entrypoints.request.roles import NIXL, SERVE


def has_kv_transfer(case: Case) -> bool:
    """Return whether the server exchanges its KV cache with others."""
    return case.user_flags.role.name != SERVE or bool(case.user_flags.flag(KV_TRANSFER))


def require_last_core(case: Case) -> None:
    """Raise HOST if the container may use no core to which vLLM moves a worker with NIXL: vLLM would fail there."""
    if not (has_kv_transfer(case) and any(name in _read_kv_connector(case) for name in NIXL)):
        return
    usable, last = {cpu.id for cpu in case.facts.cpus}, _last_cpus(case.facts)
    if not last or usable & last:
        return
    have, need = format_id_list(tuple(sorted(usable))), format_id_list(tuple(sorted(last)))
    message = f"CPUs {have}: with NIXL, vLLM moves its worker to the last core of a NUMA node, CPU {need}"
    raise EntrypointError(HOST, message, f"allow the container a CPU of {need}, such as with --cpuset-cpus")


def _read_kv_connector(case: Case) -> str:
    """Return the connector's name or its whole configuration."""
    usual = (case.profile.get("kv_transfer") or {}).get("connector")
    return str(case.user_flags.flag(KV_TRANSFER) or usual)


def _last_cpus(facts: Facts) -> set[int]:
    """Return the CPU that vLLM takes on each NUMA node; empty if the nodes do not tell it.

    vLLM takes a core's last hardware thread on x86-64, otherwise its first: the same where cores have one.
    """
    node_cpus = {cpu for node in facts.nodes for cpu in node.cpus}
    one_thread = all(len(cpu.siblings) == 1 for cpu in facts.cpus)
    if not {cpu.id for cpu in facts.cpus} <= node_cpus or not (one_thread or facts.processor.architecture == "x86_64"):
        return set()
    return {max(node.cpus) for node in facts.nodes if node.cpus}
