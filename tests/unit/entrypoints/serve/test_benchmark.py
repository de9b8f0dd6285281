"""The programs and options of a benchmark."""

from __future__ import annotations

import json

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.errors import EntrypointError
from entrypoints.request.benchmark import Load
from entrypoints.serve.benchmark import Kit, command, find_program, offline_words, serve_words, without_server

KIT = Kit("python3", "/plugin", {}, "/tmp/x")
LOAD = Load(200, 50, 4, 40, 0.5)
TOLD = {"id": "name", "root": "/models/m"}
GCU = json.loads((ROOT / "images" / "gcu3.5-vllm0.9.2" / "profile.json").read_text())["thresholds"]


def test_vllms_benchmark_is_called_through_the_plugin_and_the_vendors_directly() -> None:
    assert command(find_program("serve", {}, "0.32.0"), KIT, ("-x",)) == (
        "python3", "-m", "drydock_plugin.bench", "serve", "-x",
    )  # fmt: skip
    assert command(find_program("serve", GCU, "0.9.2"), KIT, ("-x",))[1:3] == ("-m", "vllm_utils.benchmark_serving")


def test_enflames_own_programs_get_the_lengths_in_their_options() -> None:
    program = find_program("test", GCU, "0.9.2")

    assert not program.own
    assert offline_words("test", LOAD, program, KIT) == (
        "--perf", "--input-len", "200", "--output-len", "50", "--num-prompts", "40",
    )  # fmt: skip
    with pytest.raises(EntrypointError) as caught:
        find_program("load", GCU, "0.9.2")
    assert caught.value.hint == "this image has: serve, latency, throughput, test, vision"


def test_lengths_are_spread_only_where_the_option_means_this() -> None:
    def ratio(program_of: str) -> bool:
        program = find_program("serve", {}, program_of)
        return "--random-range-ratio" in serve_words(program, LOAD, "http://h:1", (), KIT, TOLD)

    assert [ratio(version) for version in ("0.8.5", "0.9.0.1", "0.32.0")] == [False, True, True]


def test_a_model_that_the_user_names_is_the_only_one() -> None:
    words = serve_words(find_program("serve", {}, "0.32.0"), LOAD, "http://h:1", ("--model", "mine"), KIT, TOLD)

    assert words.count("--model") == 1
    assert "--served-model-name" not in words


def test_an_engine_has_no_flags_of_a_server() -> None:
    argv = ("--model", "m", "--host", "0.0.0.0", "--port=8", "--disable-log-requests", "--dtype", "float16")

    assert without_server(argv) == ("--model", "m", "--dtype", "float16")
