"""Settings of the user's that are beyond a limit that Gaudi's manuals state. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from entrypoints.checks.findings import make_notice
from entrypoints.core.parse import is_number
from entrypoints.core.records import Notice
from entrypoints.decide.habana.execution_modes import COLLECTIVES, LAZY, QUANT, HabanaCase, is_eager
from entrypoints.decide.habana.graphs import GraphDemand
from entrypoints.decide.parallelism.fit import Fit
from entrypoints.request.flags import TENSOR

CAPTURED, SMALLEST_CAPTURE = "--max-seq-len-to-capture", 2048
"""-g of start_gaudi_vllm_server.sh, "not smaller than 2048"."""


def check_manual_limits(case: HabanaCase, chosen: Fit, demand: GraphDemand) -> Iterator[Notice]:
    """Yield a notice for each setting of the user's that is beyond a limit."""
    yield from _too_many_ranks(case)
    yield from _short_capture(case)
    yield from _local_collectives(case, chosen)
    yield from _experimental_mode(case)
    yield from _foreign_measurements(case, chosen)
    yield from _short_buckets(case, demand)


def _too_many_ranks(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice for more ranks than KV heads; latent attention has none that ranks divide."""
    geometry, ranks = case.model.geometry, case.user_flags.number(TENSOR)
    if geometry and ranks and not geometry.latent and 0 < geometry.kv_heads < ranks:
        yield make_notice("HPU-054", f"{TENSOR} {ranks}", f"at most {geometry.kv_heads}", most=str(geometry.kv_heads))


def _short_capture(case: HabanaCase) -> Iterator[Notice]:
    tokens = case.user_flags.number(CAPTURED)
    if tokens is not None and tokens < SMALLEST_CAPTURE:
        yield make_notice("HPU-055", f"{CAPTURED} {tokens}", f"at least {SMALLEST_CAPTURE}")


def _local_collectives(case: HabanaCase, chosen: Fit) -> Iterator[Notice]:
    """Yield a notice if graphs of several cards lack lazy collectives."""
    text = case.user_flags.variable(COLLECTIVES)
    graphs = _lazy_mode(case) == "1" and not is_eager(case)
    if graphs and text is not None and not case.is_on(COLLECTIVES) and chosen.tensor * chosen.pipeline > 1:
        yield make_notice("HPU-056", f"{COLLECTIVES}={text}", "true")


def _experimental_mode(case: HabanaCase) -> Iterator[Notice]:
    """Yield a notice for the modes that the stack's manual calls experimental."""
    if _lazy_mode(case) == "0" and case.thresholds.number("experimental_eager"):
        yield make_notice("HPU-057", f"{LAZY}=0", "1")


def _lazy_mode(case: HabanaCase) -> str:
    return case.user_flags.variable(LAZY) or str(case.thresholds.whole("lazy_mode"))


def _foreign_measurements(case: HabanaCase, chosen: Fit) -> Iterator[Notice]:
    """Yield a notice for measurements of another number of ranks, of which each has a file of its own."""
    measured = case.thresholds.whole("measured_ranks")
    if measured and case.user_flags.variable(QUANT) and chosen.tensor != measured:
        yield make_notice(
            "HPU-058",
            f"{QUANT} with {chosen.tensor} ranks",
            f"{measured} ranks",
            measured=str(measured),
            ranks=str(chosen.tensor),
        )


def _short_buckets(case: HabanaCase, demand: GraphDemand) -> Iterator[Notice]:
    """Yield a notice for each end of the user's buckets that requests go beyond."""
    prompt = demand.length if demand.whole else min(demand.length, demand.budget)
    needs = {
        "VLLM_PROMPT_SEQ_BUCKET_MAX": prompt,
        "VLLM_PROMPT_QUERY_BUCKET_MAX": prompt,
        "VLLM_DECODE_BS_BUCKET_MAX": demand.sequences,
        "VLLM_DECODE_BLOCK_BUCKET_MAX": -(-demand.length // demand.block),
    }
    for variable, least in needs.items():
        text = case.user_flags.variable(variable) or ""
        if is_number(text) and int(text) < least:
            yield make_notice("HPU-059", f"{variable}={text}", f"at least {least}", variable=variable, least=str(least))
