"""Files of lengths, in every layout that is taken."""

from __future__ import annotations

import pytest

from entrypoints.request.workload import parse_workload
from tests.support.damage import fuzz, survives_damage

JSON = """\
{"input": 812, "output": 150}
{"usage": {"prompt_tokens": 20, "completion_tokens": 5}}
{"input": 812, "output": 150}
"""
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,374,44\n2023-11-16 18:15:50,396,109\n"
PLAIN = "812,150\n20,5,3\n"
METRICS = """\
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="1.0",model_name="m"} 0.0
vllm:request_prompt_tokens_bucket{engine="0",le="500.0",model_name="m"} 30.0
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 40.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 41.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 41.0
vllm:request_generation_tokens_bucket{engine="0",le="100.0",model_name="m"} 41.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 41.0
"""


def test_json_lines_plain_or_as_openai_reports_usage() -> None:
    assert parse_workload(JSON) == ((20, 5, 1.0), (812, 150, 2.0))


def test_columns_with_names_and_without() -> None:
    assert parse_workload(AZURE) == ((374, 44, 1.0), (396, 109, 1.0))
    assert parse_workload(PLAIN) == ((20, 5, 3.0), (812, 150, 1.0))


def test_a_running_servers_metrics() -> None:
    assert parse_workload(METRICS) == ((500, 100, 30.0), (1000, 100, 11.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("{}\n", "line 1: no value for input"),
        ('{"input": 5\n', "line 1"),
        ("812\n", "line 1: no value for output"),
        ("812,many\n", "'many'"),
        ("0,5\n", "'0'"),
        ("input,output,count\n5,5,-1\n", "'-1'"),
        ("5,5,0\n", "no request"),
        ('{"input": "nan", "output": 1}\n', "'nan'"),
    ],
)
def test_an_error_names_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_workload(text)


@fuzz
def test_damage() -> None:
    survives_damage(parse_workload, JSON, AZURE, PLAIN, METRICS)
