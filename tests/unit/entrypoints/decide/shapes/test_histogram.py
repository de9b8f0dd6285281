"""Buckets from real lengths: exactly the best ones, and what that saves."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.decide.shapes.buckets import Range, make_limited_buckets, make_linear_buckets
from entrypoints.decide.shapes.histogram import (
    best_linear,
    blocks_held,
    compare_spacings,
    compute_padding_share,
    decode_sizes,
    describe_spacings,
    find_optimal_buckets,
    prompt_sizes,
    split_prompts,
)

CHAT = {150: 40.0, 300: 30.0, 700: 20.0, 2900: 9.0, 8000: 1.0}
"""Mostly short questions, a few documents."""


def test_the_end_is_always_held() -> None:
    assert find_optimal_buckets(CHAT, 3, 128, 16384)[-1] == 16384
    assert find_optimal_buckets({100: 1.0}, 1, 128, 1024) == (1024,)


def test_no_more_buckets_than_there_are_sizes() -> None:
    assert find_optimal_buckets(CHAT, 100, 128) == (256, 384, 768, 2944, 8064)


@given(
    st.dictionaries(st.integers(1, 1200), st.integers(1, 9).map(float), min_size=1, max_size=9),
    st.integers(1, 4),
)
def test_no_other_choice_pads_less(sizes: dict[int, float], count: int) -> None:
    """Compared with every choice there is."""
    chosen = find_optimal_buckets(sizes, count, 100)
    edges = sorted({-(-size // 100) * 100 for size in sizes})
    other_choices = (
        (*few, edges[-1]) for number in range(min(count, len(edges))) for few in combinations(edges[:-1], number)
    )

    assert len(chosen) <= count
    assert (
        compute_padding_share(chosen, sizes)
        <= min(compute_padding_share(choice, sizes) for choice in other_choices) + 1e-9
    )


@given(
    st.dictionaries(st.integers(1, 16000), st.integers(1, 9).map(float), min_size=1, max_size=60),
)
def test_the_best_of_as_many_is_never_worse_than_a_vendors_way(sizes: dict[int, float]) -> None:
    for row in compare_spacings(sizes, Range(128, 128, 16384), 0.25):
        assert row.best <= row.padding + 1e-9


def test_what_it_saves_for_a_chat() -> None:
    rows = {row.name: row for row in compare_spacings(CHAT, Range(128, 128, 8192), 0.25)}

    assert len(rows["linear"].buckets) == 64
    assert len(rows["padding-limited"].buckets) < 20
    assert rows["exponential"].best < rows["exponential"].padding
    assert "at best" in describe_spacings(rows.values())


def test_the_best_linear_range_keeps_to_the_number_of_graphs() -> None:
    few = best_linear(CHAT, 12, Range(128, 128, 8192))

    assert len(make_linear_buckets(few)) <= 12
    assert few.last >= 8192
    assert compute_padding_share(make_linear_buckets(few), CHAT) <= compute_padding_share(
        make_linear_buckets(Range(1024, 1024, 8192)), CHAT
    )


def test_requests_become_prompt_lengths() -> None:
    assert prompt_sizes([(100, 5, 2.0), (100, 50, 1.0), (7, 1, 1.0)]) == {100: 3.0, 7: 1.0}


def test_long_prompts_are_computed_in_pieces() -> None:
    assert split_prompts({5000: 2.0, 100: 1.0}, 2048) == {2048: 4.0, 904: 2.0, 100: 1.0}
    assert split_prompts({5000: 2.0}, None) == {5000: 2.0}


def test_a_batch_holds_about_the_sum_of_its_sequences() -> None:
    sizes = decode_sizes(blocks_held([(1024, 1024, 1.0)], 128), 32)
    middle = sum(size * often for size, often in sizes.items()) / sum(sizes.values())

    assert 32 * 12 < middle < 32 * 13.5
    assert min(sizes) >= 32
    assert sum(sizes.values()) == pytest.approx(1, abs=0.01)


def test_equal_sequences_have_one_size() -> None:
    assert list(decode_sizes(blocks_held([(1, 1, 1.0)], 128), 8)) == [8]


def test_limited_buckets_can_be_beaten_by_knowing_the_lengths() -> None:
    plain = make_limited_buckets(Range(128, 128, 8192), 0.25)

    assert compute_padding_share(find_optimal_buckets(CHAT, len(plain), 128, 8192), CHAT) < compute_padding_share(
        plain, CHAT
    )
