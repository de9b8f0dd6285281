"""Model folders, whole and broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from drydock.run.standin_run import CONFIG
from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.model import mounted_models
from entrypoints.model.config import parse_config
from entrypoints.model.mounted_models import MountedModels, find_mounted_models
from entrypoints.model.read import read_model
from entrypoints.model.weights import Weights
from tests.support.sample import write_model, write_safetensors


def refused(name: str | Path) -> str:
    with pytest.raises(EntrypointError) as error:
        read_model(str(name))
    assert error.value.code == MODEL
    assert error.value.hint
    return error.value.message


def test_a_folder_has_weights_and_geometry(tmp_path: Path) -> None:
    model = read_model(str(write_model(tmp_path / "m", elements=1000)))

    assert model.weights is not None
    assert (model.weights.elements, model.weights.other) == (1000, 0)
    assert model.weights.on_disk == (tmp_path / "m" / "model.safetensors").stat().st_size
    assert model.geometry is not None
    assert (model.local, model.architecture, model.problem, model.unknown) == (True, "LlamaForCausalLM", "", "")


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16", "text_config": {"dtype": "float32"}}, "float16"),
        ({"text_config": {"hidden_size": 8, "torch_dtype": "float32"}}, "float32"),
        ({}, ""),
    ],
)
def test_the_type_that_a_model_is_stored_in(config: dict[str, object], dtype: str) -> None:
    assert parse_config(config).dtype == dtype


def test_numbers_take_the_size_they_are_loaded_with_and_quantised_bytes_stay(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_safetensors(folder / "model.safetensors", {"a": ("F32", 400), "b": ("BF16", 20), "c": ("I8", 7)})
    weights = read_model(str(folder)).weights

    assert weights is not None
    assert (weights.elements, weights.other) == (110, 7)
    assert weights.loaded(2) == 227


def test_the_type_is_a_fact_of_a_folder(tmp_path: Path) -> None:
    assert read_model(str(write_model(tmp_path / "m"))).dtype == CONFIG["dtype"]


def test_a_hub_id_without_a_hub_is_unknown() -> None:
    model = read_model("meta-llama/Llama-3.1-8B")

    assert (model.local, model.weights, model.geometry) == (False, None, None)
    assert "hub id" in model.unknown


@pytest.mark.parametrize("name", ["/nowhere/model", "./model", "~/model", "a/b/c"])
def test_a_path_that_is_not_there_is_named(name: str) -> None:
    assert f"{name}: no such folder" in refused(name)


def test_a_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("GGUF")

    assert "is a file" in refused(tmp_path / "model.gguf")


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/config.json: no such file" in refused(tmp_path)


def test_an_unreadable_file_names_the_uid(tmp_path: Path) -> None:
    file = write_model(tmp_path) / "model.safetensors"
    file.unlink()
    file.mkdir()

    assert f"model.safetensors: cannot be read by uid {os.getuid()}" in refused(tmp_path)


def test_params_of_mistral_stand_in_for_config(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").unlink()
    (folder / "params.json").write_text(json.dumps({"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}))

    assert read_model(str(folder)).geometry is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "nul", "\xff", '{"a": ' * 3000])
def test_a_config_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path)
    (folder / "config.json").write_bytes(text.encode("latin-1"))

    assert "config.json" in refused(folder)


def test_a_missing_key_is_a_problem_that_waits_until_it_matters(tmp_path: Path) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "num_hidden_layers"}
    model = read_model(str(write_model(tmp_path, config)))

    assert model.geometry is None
    assert f"{tmp_path}/config.json: " in model.problem
    assert "num_hidden_layers" in model.problem


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").rename(folder / "model.gguf")

    assert "model.gguf is GGUF" in refused(folder)


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1])
def test_a_safetensors_file_that_is_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    file = write_model(tmp_path) / "model.safetensors"
    os.truncate(file, keep if keep >= 0 else file.stat().st_size + keep)

    assert "model.safetensors: " in refused(tmp_path)


@pytest.mark.parametrize(
    "header", [b"[]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}', b'{"a": {"data_offsets": ["x", 1]}}']
)
def test_a_safetensors_header_of_the_wrong_shape_is_named(tmp_path: Path, header: bytes) -> None:
    file = write_model(tmp_path) / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)

    assert "not a safetensors file" in refused(tmp_path)


def test_an_index_decides_which_files_count_and_a_missing_one_is_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    write_safetensors(folder / "a.safetensors", {"x": ("BF16", 20)})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    weights = read_model(str(folder)).weights
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))

    assert weights is not None
    assert weights.elements == 10
    assert "1 of 2 files" in refused(folder)
    assert "b.safetensors" in refused(folder)


@pytest.mark.parametrize("index", ["[]", '{"weight_map": 3}', '{"weight_map": {"x": 1}}'])
def test_a_broken_index_is_named(tmp_path: Path, index: str) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors.index.json").write_text(index)

    assert "model.safetensors.index.json" in refused(folder)


def test_pickled_weights_count_by_size_and_the_configs_type(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x" * 100)
    (folder / "training_args.bin").write_bytes(b"x" * 1000)

    assert read_model(str(folder)).weights == Weights(100, 50, 0)


def test_a_load_format_of_its_own_leaves_the_weights_unknown(tmp_path: Path) -> None:
    model = read_model(str(write_model(tmp_path)), "dummy")

    assert model.weights is None
    assert "--load-format dummy" in model.unknown


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_the_quantisation_is_named(tmp_path: Path, key: str) -> None:
    assert read_model(str(write_model(tmp_path, {**CONFIG, key: {"quant_method": "awq"}}))).quantization == "awq"


@pytest.mark.parametrize(
    ("file", "table", "method"),
    [
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, "modelopt"),
        ("quantize_config.json", {"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128, "zero_point": True}, "awq"),
        ("generation_config.json", {"quant_method": "gptq"}, ""),
    ],
)
def test_the_quantisation_of_older_checkpoints_is_in_a_file_of_its_own(
    tmp_path: Path, file: str, table: dict[str, object], method: str
) -> None:
    folder = write_model(tmp_path)
    (folder / file).write_text(json.dumps(table))
    assert read_model(str(folder)).quantization == method

    write_model(tmp_path, {**CONFIG, "quantization_config": {"quant_method": "fp8"}})
    assert read_model(str(folder)).quantization == "fp8"


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt"),
        ({"quant_method": "awq"}, "awq"),
        ({"bits": 4}, "unnamed"),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}, "modelopt_fp4"),
        ({}, ""),
        (None, ""),
    ],
)
def test_modelopts_four_bits_differ_from_its_eight(config: object, method: str) -> None:
    assert parse_config({"quantization_config": config}).quantization.method == method


@pytest.mark.parametrize(
    ("table", "reordered"),
    [
        ({"desc_act": True, "group_size": 128}, True),
        ({"desc_act": True, "group_size": 128, "static_groups": False}, True),
        ({"desc_act": True, "group_size": 128, "static_groups": True}, False),
        ({"desc_act": True, "group_size": 128, "meta": {"static_groups": True}}, False),
        ({"desc_act": True, "group_size": -1}, False),
        ({"desc_act": False, "group_size": 128}, False),
        ({"config_groups": {"group_0": {"weights": {"group_size": 128, "actorder": "group"}}}}, True),
        ({"config_groups": {"group_0": {"weights": {"group_size": 128, "actorder": "static"}}}}, False),
        ({"config_groups": {"group_0": {"weights": {"group_size": 128, "actorder": None}}}}, False),
    ],
)
def test_groups_that_were_not_fixed_before_reordering_are_not_contiguous(
    table: dict[str, object], reordered: bool
) -> None:
    assert parse_config({"quantization_config": {"quant_method": "any", **table}}).quantization.reordered == reordered


@pytest.mark.parametrize("key", ["text_config", "vision_config", "quantization_config"])
def test_a_part_that_is_not_an_object_is_an_error_with_its_value(tmp_path: Path, key: str) -> None:
    folder = write_model(tmp_path, {**CONFIG, key: "awq"})

    assert f"{folder}/config.json: {key}: found 'awq', expected an object" in refused(folder)


def test_compressed_tensors_names_bits_and_group_per_config_group() -> None:
    groups = {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}}
    table = {"quant_method": "compressed-tensors", "config_groups": groups}

    assert parse_config({"compression_config": table}).quantization[:3] == ("compressed-tensors", 4, 128)


# --- the models below /models ---------------------------------------------------------------------------------------


def put_model(folder: Path, **config: object) -> None:
    write_model(folder, {**CONFIG, **config})


def put_file(path: Path, text: str = "{}") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def put_snapshot(root: Path, revision: str, *, complete: bool = True) -> None:
    """Write a snapshot as huggingface_hub does: links to files next to it."""
    blobs, snapshot = root / "blobs", root / "snapshots" / revision
    put_model(blobs / revision)
    snapshot.mkdir(parents=True)
    for name in ("config.json", *(["model.safetensors"] if complete else [])):
        (snapshot / name).symlink_to(f"../../blobs/{revision}/{name}")


def look(folder: Path) -> tuple[list[str], list[str]]:
    """Return the models, and what else there is, by their paths below the folder."""
    found = find_mounted_models(str(folder))
    models = [model.hub_id or model.path.removeprefix(str(folder)) or "." for model in found.models]
    return models, [f"{other.path.removeprefix(str(folder))}: {other.problem}" for other in found.others]


@pytest.mark.parametrize("place", ["", "m", "org/name", "models/org/name", "hub/models/org/name"])
def test_a_model_is_found_where_people_mount_it(tmp_path: Path, place: str) -> None:
    put_model(tmp_path / place)
    put_model(tmp_path / "a/b/c/d/e")  # too deep for any cache of models

    assert find_mounted_models(str(tmp_path)).require_one("serve --model").path == str(tmp_path / place).rstrip("/")


@pytest.mark.parametrize(
    ("config", "drafts"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, True),
        ({"architectures": ["EagleLlamaForCausalLM"]}, True),
        ({"architectures": ["DFlashDraftModel"]}, True),
        ({"architectures": ["Qwen3_5MTP"]}, True),
        ({"architectures": ["MedusaModel"], "model_type": "medusa"}, True),
        ({"speculators_config": {"algorithm": "eagle3"}}, True),
        ({"architectures": ["Eagle2_5_VLForConditionalGeneration"]}, False),
        ({"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}, False),
    ],
)
def test_what_only_drafts_tokens_is_no_second_model(tmp_path: Path, config: dict[str, object], *, drafts: bool) -> None:
    put_model(tmp_path / "a")
    put_model(tmp_path / "b", **config)

    assert look(tmp_path)[0] == (["/a"] if drafts else ["/a", "/b"])


def test_what_lies_next_to_a_model_is_passed_over_with_its_reason(tmp_path: Path) -> None:
    put_model(tmp_path / "m")
    put_file(tmp_path / "lora/adapter_config.json")
    write_safetensors(tmp_path / "lora/adapter_model.safetensors", {"a": ("BF16", 2)})
    put_file(tmp_path / "pipeline/model_index.json")
    put_model(tmp_path / "pipeline/text_encoder")
    put_file(tmp_path / "quant/q4.gguf")
    put_file(tmp_path / "tokens/tokenizer_config.json")
    put_file(tmp_path / "part/config.json", json.dumps(CONFIG))
    put_file(tmp_path / "part/model.safetensors.index.json", json.dumps({"weight_map": {"a": "1.safetensors"}}))
    put_file(tmp_path / "broken/config.json", "[]")
    put_model(tmp_path / ".cache/m")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/config.json").symlink_to("../../blobs/0")
    (tmp_path / "same").symlink_to("m")
    (tmp_path / "m/loop").symlink_to("..")
    (tmp_path / "lost+found").mkdir(mode=0)

    assert look(tmp_path) == (
        ["/m"],
        [
            "/broken: config.json: expected a JSON object, found a list",
            "/linked: config.json is a link to a file that is not there: mount the whole cache",
            "/lora: an adapter (LoRA) of a model",
            "/part: 1 of 1 files of model.safetensors.index.json are missing, such as 1.safetensors",
            "/pipeline: a pipeline of diffusers",
            "/quant: q4.gguf is GGUF, to be converted to safetensors",
            "/tokens: a tokenizer without config.json",
        ],
    )


def test_a_whole_model_next_to_an_adapter_in_one_folder_is_a_model(tmp_path: Path) -> None:
    put_model(tmp_path / "m")
    put_file(tmp_path / "m/adapter_config.json")

    assert look(tmp_path) == (["/m"], [])


@pytest.mark.parametrize("home", ["", "hub", "huggingface/hub"])
def test_the_snapshots_of_a_hub_are_one_model(tmp_path: Path, home: str) -> None:
    repository = tmp_path / home / "models--Org--Name--v2"
    put_snapshot(repository, "a" * 40)
    put_snapshot(repository, "b" * 40)
    put_file(repository / "refs/main", "a" * 40)
    put_file(tmp_path / home / "datasets--x/snapshots/0/config.json")
    model = find_mounted_models(str(tmp_path)).require_one("serve --model")

    assert (model.hub_id, Path(model.path).name) == ("Org/Name--v2", "a" * 40)
    assert read_model(model.path).short == "Org/Name--v2"


def test_without_the_branch_the_last_snapshot_is_the_model_and_with_it_an_older_one_is_not(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    put_snapshot(repository, "b" * 40)
    put_snapshot(repository, "a" * 40, complete=False)
    os.utime(repository / "snapshots" / ("a" * 40), (1, 1))
    assert look(tmp_path)[0] == ["org/name"]

    put_file(repository / "refs/main", "a" * 40)
    assert look(tmp_path)[0] == []


def test_nothing_is_to_be_mounted_where_there_is_no_container(tmp_path: Path) -> None:
    """`./inv plan` runs on the machine itself."""
    with pytest.raises(EntrypointError) as error:
        find_mounted_models(str(tmp_path / "absent")).require_one("plan --model", can_mount=False)

    assert error.value.hint == "name one: plan --model Qwen/Qwen3-8B"


def test_several_models_are_listed_with_a_command_that_names_one(tmp_path: Path) -> None:
    put_model(tmp_path / "it's")
    put_model(tmp_path / "fp8\x1b[31m\nred")
    with pytest.raises(EntrypointError) as error:
        find_mounted_models(str(tmp_path)).require_one("plan --model")

    assert error.value.code == MODEL
    assert error.value.message.startswith(
        f"no model given; below {tmp_path} are 2 models: {tmp_path}/fp8\\u001b[31m\\nred"
    )
    assert error.value.hint == f"name one of them: plan --model '{tmp_path}/it'\"'\"'s'"


def test_without_any_model_the_error_says_what_is_there_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    texts = []
    for folder in ("absent", "empty"):
        with pytest.raises(EntrypointError) as error:
            find_mounted_models(str(tmp_path / folder)).require_one("serve --model")
        texts.append(error.value.message)
        assert f":{tmp_path}/{folder}/Qwen3-8B:ro; or name one: serve --model Qwen/Qwen3-8B" in error.value.hint

    assert texts == [
        f"no model given; there is no folder {tmp_path}/absent",
        f"no model given; none below {tmp_path}/empty",
    ]


def test_a_walk_ends_and_then_one_model_may_not_be_the_only_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_model(tmp_path / "a")
    for number in range(9):
        (tmp_path / f"b{number}").mkdir()
    monkeypatch.setattr(mounted_models, "_FOLDERS_AT_MOST", 5)
    models: MountedModels = find_mounted_models(str(tmp_path))

    assert not models.has_one
    assert "are more folders than the 5 that are looked at" in models.lack


def test_a_folder_that_the_command_line_names_for_something_else_is_no_model(tmp_path: Path) -> None:
    put_model(tmp_path / "m")
    put_model(tmp_path / "small")

    assert find_mounted_models(str(tmp_path), (f"{tmp_path}/small/",)).has_one


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every folder")
def test_an_unreadable_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)

    assert look(tmp_path)[1] == [f"/closed: cannot be read by uid {os.getuid()}: Permission denied"]
