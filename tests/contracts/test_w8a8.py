"""The edits around msModelSlim, as docs/ascend.md#w8a8 runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from entrypoints.model.read import read_model
from tests.support.sample import write_model

FOLDER = ROOT / "examples" / "ascend-w8a8"
MODELING = """from transformers.utils import is_flash_attn_2_available, logging

if is_flash_attn_2_available():
    from flash_attn import flash_attn_func, flash_attn_varlen_func
    from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input  # noqa


if is_torch_fx_available():
    pass
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_model(tmp_path / "DeepSeek-R1")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["DeepseekV3ForCausalLM"], "quantization_config": {"quant_method": "fp8"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_deepseek.py").write_text(MODELING)
    (folder / "drydock-model.json").write_text("{}")
    return folder


def edit(when: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / "edit.py"), when, str(folder)], capture_output=True, text=True, check=False
    )


def test_before_the_conversion_flash_attn_and_float8_are_gone_and_a_second_run_changes_nothing(model: Path) -> None:
    first = edit("before", model)
    source = (model / "modeling_deepseek.py").read_text()

    assert first.returncode == 0, first.stderr
    assert "quantization_config" not in json.loads((model / "config.json").read_text())
    assert "\n# if is_flash_attn_2_available():\n#     from flash_attn import flash_attn_func" in source
    assert "\n\n\nif is_torch_fx_available():\n    pass\n" in source
    compile(source, "modeling_deepseek.py", "exec")
    assert not (model / "drydock-model.json").exists()
    assert edit("before", model).stdout == ""


@pytest.mark.parametrize("why", ["another model", "a link"])
def test_what_msmodelslim_would_refuse_hours_later_is_refused_now(model: Path, why: str) -> None:
    if why == "a link":
        (model / "model.safetensors").rename(model.parent / "w")
        (model / "model.safetensors").symlink_to(model.parent / "w")
    else:
        (model / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    ran = edit("before", model)

    assert ran.returncode == 1
    assert "is a link" in ran.stderr or "expected ['DeepseekV3ForCausalLM']" in ran.stderr


@pytest.mark.parametrize("architectures", ["DeepseekV3Fusion", "DeepseekV3ForCausalLM"])
def test_after_the_conversion_vllm_can_read_the_result(model: Path, architectures: str) -> None:
    """As both releases of the branch write it: num_bits is a table, which says the bits by layer."""
    config = json.loads((model / "config.json").read_text())
    weights = {"num_bits": {"mlp.experts": 8}, "strategy": "channel", "type": "int"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}}}
    quantization = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups}
    config |= {"architectures": architectures, "num_hidden_layers": 62, "quantization_config": quantization}
    (model / "config.json").write_text(json.dumps(config))
    result = edit("after", model)
    read = read_model(str(model))

    assert result.returncode == 0, result.stderr
    assert (read.architecture, read.quantization) == ("DeepseekV3ForCausalLM", "compressed-tensors")
    assert json.loads((model / "config.json").read_text())["num_hidden_layers"] == 61


def test_every_package_of_the_image_has_a_hash() -> None:
    lines = (FOLDER / "requirements.txt").read_text().splitlines()
    pinned = [line.split("==")[0] for line in lines if not line.startswith((" ", "#"))]
    requirements = [line.split("=")[0].split("<")[0] for line in (FOLDER / "requirements.in").read_text().splitlines()]

    assert {name for name in requirements if not name.startswith("#")} <= {*pinned}
    assert all(line.endswith(" \\") for line in lines if not line.startswith((" ", "#")))
