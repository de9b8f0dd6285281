"""The user's own VLLM_CPU_OMP_THREADS_BIND: its lists fix how many ranks a host runs, and on which cores. Pure.

Source: vLLM 0.32's utils/ompmultiprocessing.py, OMPProcessManager.__init__ and _parse_omp_threads_bind_env, which end
with an assertion if lists and ranks differ in number.
"""

from __future__ import annotations

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.parse import format_id_list, parse_id_list
from entrypoints.core.records import Facts
from entrypoints.decide.cpu.binding import Domain, Rank
from entrypoints.decide.cpu.executor import BIND
from entrypoints.request.vllm_flags import UserFlags

WORDS = ("auto", "nobind")
"""Values that leave the number of ranks open."""
_EXPECTED = "expected auto, nobind, or a list of CPUs for each rank, such as 0-29|30-59"


def read_user_lists(facts: Facts, user_flags: UserFlags) -> tuple[tuple[int, ...], ...]:
    """Return the CPUs of each rank; empty if the user left them open. Raises USAGE for what vLLM cannot bind."""
    text = user_flags.variable(BIND)
    if text is None or text in WORDS:
        return ()
    try:
        lists = tuple(parse_id_list(part) for part in text.split("|"))
    except ValueError as error:
        raise EntrypointError(USAGE, f"{BIND}={text}: {_EXPECTED}") from error
    if not all(lists):
        raise EntrypointError(USAGE, f"{BIND}={text}: a rank has no CPU; {_EXPECTED}")
    here = {cpu.id for cpu in facts.cpus}
    absent = sorted({number for numbers in lists for number in numbers} - here)
    if absent:
        absent_cpus = f"CPUs {format_id_list(tuple(absent))} are not in this container"
        raise EntrypointError(USAGE, f"{BIND}={text}: {absent_cpus}", f"it has {format_id_list(tuple(sorted(here)))}")
    return lists


def place_on_lists(available: tuple[Domain, ...], lists: tuple[tuple[int, ...], ...]) -> tuple[Rank, ...]:
    """Give each rank the cores of its list, and a share of the memory of the node of its first CPU.

    vLLM allocates on that node. Source: v1/worker/cpu_worker.py, determine_available_memory.
    """
    homes = [_find_home_domain(available, numbers) for numbers in lists]
    return tuple(
        Rank(home.node, tuple((number,) for number in numbers), home.memory // homes.count(home))
        for home, numbers in zip(homes, lists, strict=True)
    )


def _find_home_domain(available: tuple[Domain, ...], numbers: tuple[int, ...]) -> Domain:
    nodes = (domain for domain in available if any(numbers[0] in core for core in domain.cores))
    return next(nodes, available[0])
