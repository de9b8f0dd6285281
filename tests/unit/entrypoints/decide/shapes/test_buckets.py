"""Buckets as the manuals, READMEs and the vendors' own docstrings list them, and what must hold for all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.decide.shapes.buckets import (
    Buckets,
    Graph,
    Range,
    count_decode_graphs,
    count_doublings,
    find_bucket,
    make_exponential_buckets,
    make_limited_buckets,
    make_linear_buckets,
    prompt_graphs,
)


def list_decode_graphs(batches: Buckets, blocks: Buckets, most: int | None = None) -> tuple[Graph, ...]:
    """Return what is counted: each batch with at least as many blocks; those above `most` become one with `most`."""
    graphs = []
    for batch in batches:
        for count in blocks:
            if most is not None and count >= most:
                graphs.append((batch, most))
                break
            if batch <= count:
                graphs.append((batch, count))
    return tuple(graphs)


# --- the manuals' examples


def test_the_ramp_up_lists_of_the_seed() -> None:
    assert make_linear_buckets(Range(2, 32, 64)) == (2, 4, 8, 16, 32, 64)
    assert make_linear_buckets(Range(128, 128, 512)) == (128, 256, 384, 512)


def test_the_24_prompt_buckets_of_the_seed() -> None:
    """INFO hpu_model_runner.py:499] Generated 24 prompt buckets, for bs:[1, 32, 4], seq:[128, 128, 1024]."""
    lengths = (128, 256, 384, 512, 640, 768, 896, 1024)
    graphs = prompt_graphs(make_linear_buckets(Range(1, 32, 4)), make_linear_buckets(Range(128, 128, 1024)), 8192)

    assert graphs == tuple((batch, length) for batch in (1, 2, 4) for length in lengths)
    assert len(graphs) == 24


def test_the_48_decode_buckets_of_the_seed() -> None:
    """INFO hpu_model_runner.py:509] Generated 48 decode buckets, for bs:[1, 128, 4], seq:[128, 128, 2048]."""
    graphs = list_decode_graphs(make_linear_buckets(Range(1, 128, 4)), make_linear_buckets(Range(128, 128, 2048)))

    assert graphs == tuple((batch, blocks) for batch in (1, 2, 4) for blocks in range(128, 2049, 128))
    assert len(graphs) == 48


def test_the_padding_of_the_seeds_three_sequences() -> None:
    """3 sequences of 412 tokens: (4, 512); one less: (2, 512); past 512 tokens: (4, 640)."""
    batches, lengths = make_linear_buckets(Range(1, 32, 4)), make_linear_buckets(Range(128, 128, 1024))

    assert (find_bucket(3, batches), find_bucket(412, lengths)) == (4, 512)
    assert find_bucket(2, batches) == 2
    assert find_bucket(513, lengths) == 640
    assert find_bucket(1025, lengths) is None


@pytest.mark.parametrize(
    ("spread", "most", "percent", "expected"),
    [
        (Range(0, 8, 64), 64, 0, (0, 1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)),
        (Range(0, 8, 64), 64, 50, (0, 1, 2, 4, 8, 16, 32, 64)),
        (Range(0, 8, 64), 16, 50, (0, 1, 2, 4, 8, 16, 32, 48, 64)),
        (Range(16, 16, 128), 32, 25, (16, 32, 48, 64, 80, 96, 128)),
    ],
)
def test_the_padding_aware_examples_of_vllm_gaudi(spread: Range, most: int, percent: int, expected: Buckets) -> None:
    """docs/features/bucketing_mechanism.md of vllm-gaudi 0.26, (min, step, max, pad_max, pad_percent)."""
    assert make_limited_buckets(spread, percent / 100, most) == expected


def test_the_exponential_examples_of_vllm_hpu_extension() -> None:
    """warmup_range_with_limit's docstring: ten buckets, with duplicates left out and filled."""
    spread = Range(128, 128, 2048)

    assert make_exponential_buckets(spread, 10, fill=False) == (128, 256, 384, 512, 640, 896, 1152, 1536, 2048)
    assert make_exponential_buckets(spread, 10) == (128, 256, 384, 512, 640, 768, 896, 1152, 1536, 2048)


def test_the_42_decode_buckets_of_the_forks_log() -> None:
    """README_GAUDI.md of aice/v1.22.0: three batches and 5746 blocks, which its list rounds up to 5888."""
    blocks = make_exponential_buckets(Range(128, 128, 5746), count_doublings(5746))

    assert blocks == (128, 256, 384, 512, 640, 768, 896, 1024, 1408, 1792, 2432, 3328, 4352, 5746)
    assert len(list_decode_graphs((1, 2, 4), blocks)) == 42


def test_long_prompts_are_spaced_evenly_above() -> None:
    """As warmup_range_with_limit of vllm-hpu-extension does with long_context, for (128, 128, 16384, 15)."""
    buckets = make_exponential_buckets(Range(128, 128, 16384), count_doublings(16384), long=True)

    assert buckets[:6] == (128, 256, 384, 512, 640, 768)
    assert buckets[6:] == (1152, 3072, 4992, 6912, 8832, 10752, 12672, 14592, 16384)


# --- graphs


def test_a_budget_leaves_out_large_batches_of_long_prompts() -> None:
    assert prompt_graphs((1, 2, 4), (128, 1024), 2048) == ((1, 128), (1, 1024), (2, 128), (2, 1024), (4, 128))
    assert prompt_graphs((4,), (1024,), 2048) == ((4, 1024),)


def test_a_batch_has_a_block_for_each_sequence_at_least() -> None:
    assert list_decode_graphs((1, 256), (128, 256)) == ((1, 128), (1, 256), (256, 256))
    assert list_decode_graphs((1,), (128, 256, 384), most=200) == ((1, 128), (1, 200))


# --- what always holds

SPREADS = st.builds(
    lambda first, step, more: Range(first, step, first + more),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(0, 20_000),
)


@given(SPREADS, st.floats(0, 0.5), st.integers(1, 5000))
def test_limited_buckets_ascend_and_end_where_they_should(spread: Range, share: float, most: int) -> None:
    for buckets in (make_limited_buckets(spread, share), make_limited_buckets(spread, share, most)):
        assert buckets[0] == spread.first
        assert buckets[-1] == spread.last
        assert all(sooner < later for sooner, later in pairwise(buckets))


@given(SPREADS, st.floats(0.01, 0.5))
def test_no_more_than_the_share_is_padding_above_the_ramp(spread: Range, share: float) -> None:
    buckets = make_limited_buckets(spread, share)
    for sooner, later in pairwise(buckets):
        most = max(share * later, 2 * spread.step)
        assert sooner <= 2 * spread.step or later - sooner - 1 <= most + 1


@given(SPREADS)
def test_linear_and_exponential_buckets_ascend(spread: Range) -> None:
    for buckets in (make_linear_buckets(spread), make_exponential_buckets(spread, count_doublings(spread.last))):
        assert all(sooner < later for sooner, later in pairwise(buckets))
        assert not buckets or buckets[-1] <= spread.last


@pytest.mark.parametrize("most", [None, 1, 128, 130, 5000, 10**6])
def test_decode_graphs_are_counted_as_they_are_listed(most: int | None) -> None:
    batches, blocks = make_linear_buckets(Range(1, 32, 256)), make_linear_buckets(Range(128, 128, 4096))

    assert count_decode_graphs(batches, blocks, most) == len(list_decode_graphs(batches, blocks, most))
