from __future__ import annotations

import pytest

from drydock.topology.rollout import metrics

TEXT = """\
# HELP vllm:prompt_tokens_by_source_total of
vllm:prompt_tokens_by_source_total{engine="0",model_name="a \\"b\\", c",source="external_kv_transfer"} 75.0
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="external_kv_transfer"} 1e2
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 102.0
vllm:prompt_tokens_by_source_created{engine="0",source="external_kv_transfer"} 1.7e9
vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0
vllm:cache_config_info{block_size="16",x="y"} 1.0
vllm:cache_config_info{block_size="128",x="y"} 1.0
vllm:num_requests_running 3
"""


def test_counters_are_summed_over_engines() -> None:
    assert metrics.transferred(TEXT) == 175
    assert metrics.expired(TEXT) == 2
    assert metrics.total(TEXT, metrics.RUNNING) == 3
    assert metrics.block_size(TEXT) == 128


def test_what_is_not_counted_is_not_zero() -> None:
    assert metrics.transferred("") is None
    assert metrics.expired("vllm:nixl_num_kv_expired_reqs_created{} 1.0\n") is None
    assert metrics.block_size("") == metrics.USUAL_BLOCK


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running{engine=0} 1.0",
        'vllm:num_requests_running{engine="0" 1.0',
        'vllm:num_requests_running{engine="0"} NaN',
        'vllm:num_requests_running{engine="0"} inf',
        "vllm:num_requests_running x",
        f'vllm:num_requests_running{{engine="{"0" * 9000}"}} 1.0',
    ],
)
def test_a_line_of_another_shape_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"no labels|no number|a line of"):
        metrics.total(line, metrics.RUNNING)


def test_lines_of_other_metrics_are_not_read() -> None:
    assert metrics.total("vllm:num_requests_running_by_x{broken\n", metrics.RUNNING) is None
