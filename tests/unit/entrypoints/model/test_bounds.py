"""Model folders and hubs that never end, or hold what takes a parser apart: each is an error with a hint."""

from __future__ import annotations

import itertools
import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drydock.run.standin_run import CONFIG
from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.model.config import parse_config
from entrypoints.model.files import FILE_AT_MOST, parse_model_json
from entrypoints.model.geometry import parse_geometry
from entrypoints.model.hub import NotAnswered, fetch_hub_file, parse_hub
from entrypoints.model.parameters import estimate_weights
from entrypoints.model.read import read_model
from entrypoints.model.revision import read_revision
from entrypoints.model.weights import parse_beginning, parse_total_size
from tests.support.damage import fuzz, survives_damage
from tests.support.fake_registry import Answer, Fake
from tests.support.sample import write_model

MIB = b" " * (1 << 20)
INDEX = "model.safetensors.index.json"


def refused(folder: Path) -> str:
    with pytest.raises(EntrypointError) as error:
        read_model(str(folder))
    assert (error.value.code, bool(error.value.hint)) == (MODEL, True)
    assert len(error.value.message) < 1000
    return error.value.message


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(FILE_AT_MOST + 1)


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pipe": (pipe, "not a regular file"),
    "a device": (device, "not a regular file"),
    "a gigabyte": (large, "larger than 64 MiB"),
}


@pytest.mark.parametrize("file", ["config.json", INDEX, "model.safetensors"])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_without_end_is_refused(tmp_path: Path, kind: str, file: str) -> None:
    folder = write_model(tmp_path / "m")
    make, expected_error = FILES[kind]
    (folder / file).unlink(missing_ok=True)
    make(folder / file)
    assert (
        expected_error if file != "model.safetensors" or kind != "a gigabyte" else "not a safetensors file"
    ) in refused(folder)
    assert len(read_revision(str(folder), parse_hub({}))) in (0, 12)


def test_a_pipe_is_no_weights(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "pytorch_model.bin")
    assert "pytorch_model.bin: not a regular file" in refused(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a":' * 65 + "1" + "}" * 65])
def test_a_deep_configuration_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_text(text)
    assert "nested deeper than 64 levels" in refused(folder)


@pytest.mark.parametrize("value", ["9" * 4000, "9" * 30, "1e999", "Infinity", "-1", str(1 << 40)])
def test_impossible_sizes_are_named(tmp_path: Path, value: str) -> None:
    folder = write_model(tmp_path / "m")
    text = json.dumps({**CONFIG, "num_hidden_layers": "HERE"}).replace('"HERE"', value)
    (folder / "config.json").write_text(text)
    model = read_model(str(folder))
    assert model.geometry is None
    assert "num_hidden_layers: found" in model.problem
    assert len(model.problem) < 300


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, -5) for key in ("vocab_size", "hidden_size", "intermediate_size", "num_experts", "n_shared_experts")),
        *((key, 0) for key in ("vocab_size", "hidden_size", "head_dim", "num_attention_heads")),
        *(("vocab_size", value) for value in ("50k", 1.5, [1, 2])),
        ("vision_config", {"hidden_size": 64, "patch_size": -5}),
        ("vision_config", {"hidden_size": 64, "patch_size": 8, "depth": -5}),
    ],
)
@pytest.mark.parametrize("more", [{}, {"quantization_config": {"quant_method": "fp8"}}])
def test_a_size_that_is_none_is_named(tmp_path: Path, key: str, value: Any, more: dict[str, Any]) -> None:
    model = read_model(str(write_model(tmp_path / "m", {**CONFIG, **more, key: value})))
    key_name, wrong = list(value.items())[-1] if isinstance(value, dict) else (key, value)
    assert f"{key_name}: found {str(wrong)!r}, expected a whole number above zero" in model.problem
    assert model.geometry is None


@pytest.mark.parametrize("key", ["n_shared_experts", "first_k_dense_replace", "shared_expert_intermediate_size"])
def test_a_part_that_a_model_lacks_may_be_zero(tmp_path: Path, key: str) -> None:
    assert read_model(str(write_model(tmp_path / "m", {**CONFIG, "num_experts": 4, key: 0}))).geometry is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": float("nan")}, "config.json: invalid JSON: rope_theta: found NaN, expected a number"),
        ({"a": {"b": [1, float("nan")]}}, "config.json: invalid JSON: a.b[1]: found NaN, expected a number"),
        ({"model_max_length": float("inf")}, "model_max_length: found 'Infinity', expected a whole number"),
    ],
)
def test_what_is_no_number_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    assert message in (refused(folder) if "NaN" in message else read_model(str(folder)).problem)


def test_an_impossible_number_in_a_key_that_nobody_reads_does_no_harm(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    text = json.dumps({**CONFIG, "limits": [0.0, float("inf")], "largest": 10**30})
    (folder / "config.json").write_text(text)
    assert read_model(str(folder)).geometry is not None


@pytest.mark.parametrize("total", [float("inf"), float("nan"), 1e300, "9" * 30, -1, True, None])
def test_an_impossible_total_counts_as_unknown(total: Any) -> None:
    assert parse_total_size({"metadata": {"total_size": total}}) == 0


def test_a_safetensors_header_of_impossible_offsets_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    for offsets in ([0, 1 << 55], [-8, 0], [8, 0]):
        header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": offsets}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
        assert "data_offsets" in refused(folder)


# --- the hub --------------------------------------------------------------------------------------------------------


def ask(answer: Answer) -> None:
    with Fake(lambda _: answer) as fake:
        hub = parse_hub({"HF_ENDPOINT": f"http://{fake.host}", "HF_HUB_ETAG_TIMEOUT": "1"})
        fetch_hub_file(hub, "owner/model", "config.json")


def drip() -> Any:
    for _ in range(200):
        threading.Event().wait(0.05)
        yield b" "


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: Answer(200, {}, itertools.repeat(MIB)), "more than 67108864 bytes"),
        (lambda: Answer(200, {}, drip()), "no complete answer in 6 s"),
        (lambda: Answer(302, {"Location": "/again"}, itertools.repeat(MIB)), "302"),
    ],
)
def test_an_endless_hub_is_given_up(answer: Callable[[], Answer], message: str) -> None:
    with pytest.raises(NotAnswered, match=message):
        ask(answer())


# --- damage ---------------------------------------------------------------------------------------------------------


@fuzz
def test_no_damaged_configuration_stops_a_start() -> None:
    def parse(text: str) -> None:
        try:
            config = parse_config(parse_model_json(text.encode("utf-8", "surrogatepass"), "config.json"))
        except EntrypointError as error:
            raise ValueError(error.message) from error
        geometry, _ = parse_geometry(config)
        if geometry is not None:
            estimate_weights(config, geometry)

    hybrid = {"model_type": "jamba", "mamba_d_state": 16, "mamba_expand": 2, "attn_layer_period": 8, "hidden_size": 64}
    rope = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "vocab_size": 100, "intermediate_size": 64}
    survives_damage(parse, json.dumps({**CONFIG, **rope}), json.dumps({**CONFIG, **hybrid}))


@fuzz
def test_no_damaged_safetensors_header_stops_a_start() -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {}})
    beginning = (struct.pack("<Q", len(header)) + header.encode()).decode("latin-1")
    survives_damage(lambda text: parse_beginning(text.encode("latin-1", "replace")), beginning)


@fuzz
def test_no_damaged_index_stops_a_start() -> None:
    def parse(text: str) -> None:
        try:
            parse_total_size(parse_model_json(text.encode("utf-8", "surrogatepass"), INDEX))
        except EntrypointError as error:
            raise ValueError(error.message) from error

    survives_damage(parse, json.dumps({"metadata": {"total_size": 10}, "weight_map": {"a": "model.safetensors"}}))
