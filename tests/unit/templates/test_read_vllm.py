"""What vLLM says of itself is read from its files, in each form that its versions have used."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock.vllm_lists import PROGRAM, read_program
from tests.support.hosts.trees import write_tree

read_vllm = read_program(DRYDOCK)

REGISTRY = """
_TEXT = {"LlamaForCausalLM": ("llama", "LlamaForCausalLM"), "OldForCausalLM": ("llama", "x")}
_EMBEDDING = {"BertModel": ("bert", "x"), **{k: v for k, v in _TEXT.items() if v}}
_VLLM_MODELS = {**_TEXT, **_EMBEDDING}
_PREVIOUSLY_SUPPORTED_MODELS = {"GoneForCausalLM": "0.9.2"}
"""
ARG_UTILS = """
class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group()
        group.add_argument("--dtype", **model_kwargs["dtype"])
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        group.add_argument("--enforce-eager", **model_kwargs["enforce_eager"])
        group.add_argument("--limit-mm-per-prompt", **{**model_kwargs["limits"], "default": None})
        group.add_argument("--pooler-config", **model_kwargs["pooler"])
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--seed", type=int)
        group.add_argument("--disable-logs", action="store_true")
        group.add_argument("--backend", choices=["ray", "mp"])
class AsyncEngineArgs(EngineArgs):
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--log-requests", action=argparse.BooleanOptionalAction)
"""
CONFIG = """
Dtype = Literal["auto", "half"]
class Pooler: kind: str
class Mode(enum.IntEnum): A = 1
class ModelConfig:
    dtype: Dtype | torch.dtype = "auto"
    max_model_len: Optional[int] = None
    enforce_eager: bool = False
    limits: dict[str, int] = {}
    pooler: Pooler | None = None
    quantization: "QuantizationMethods | str | None" = None
    known: ClassVar[int] = 1
_FLOAT16_NOT_SUPPORTED_MODELS = {"gemma2": "unstable"}
"""
FRONTEND = """
class BaseFrontendArgs:
    chat_template: str | None = None
class FrontendArgs(BaseFrontendArgs):
    port: int = 8000
    enable_auto_tool_choice: bool = False
    headers: list[str] = []
    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["headers"]["type"] = json.loads
def make_arg_parser(parser):
    parser.add_argument("--headless", action="store_true")
"""
CONFIGURATIONS = """
_OVERRIDE = {"kimi_k2": "DeepseekV3Config"}
_CONFIG_REGISTRY = LazyConfigDict(chatglm="ChatGLMConfig", **{"unlimited-ocr": "X"}, **_OVERRIDE)
"""
FILES = {
    "model_executor/models/registry.py": REGISTRY,
    "model_executor/layers/quantization/__init__.py": 'QuantizationMethods = Literal["awq", "fp8"]',
    "model_executor/model_loader/__init__.py": '_LOAD_FORMAT_TO_MODEL_LOADER = {"auto": A, "hf": B}',
    "tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("a", "b")}',
    "reasoning/__init__.py": "",
    "reasoning/qwen.py": '@ReasoningParserManager.register_module(["qwen3", "qwen"])\nclass Q: pass',
    "distributed/kv_transfer/kv_connector/factory.py": 'KVConnectorFactory.register_connector("Nixl", "m", "C")',
    "config/parallel.py": 'DistributedExecutorBackend = Literal["ray", "mp"]',
    "config/model.py": CONFIG,
    "engine/arg_utils.py": ARG_UTILS,
    "entrypoints/openai/cli_args.py": FRONTEND,
    "transformers_utils/config.py": CONFIGURATIONS,
    "utils/argparse_utils.py": "class EnableDisableAction: pass",
    "envs.py": 'environment_variables: dict[str, Any] = {"VLLM_A": lambda: 1, "VLLM_B": lambda: 2}',
    "platforms/__init__.py": 'builtin_platform_plugins = {"cuda": f, "cpu": g}',
}
LISTS: Mapping[str, Any] = {
    "architectures": ["BertModel", "LlamaForCausalLM", "OldForCausalLM"],
    "removed_architectures": {"GoneForCausalLM": "0.9.2"},
    "quantisations": ["awq", "fp8"],
    "load_formats": ["auto", "hf"],
    "tool_parsers": ["hermes"],
    "reasoning_parsers": ["qwen", "qwen3"],
    "connectors": ["Nixl"],
    "executors": ["mp", "ray"],
    "platforms": ["cpu", "cuda"],
    "variables": ["VLLM_A", "VLLM_B"],
    "float16_refused": {"gemma2": "unstable"},
    "inverses": ["--disable-", "--enable-"],
    "config_types": ["chatglm", "kimi_k2", "unlimited-ocr"],
    "flags": {
        "--dtype": ["auto", "half"],
        "--max-model-len": "int",
        "--enforce-eager": "boolean",
        "--limit-mm-per-prompt": "json",
        "--pooler-config": "json",
        "--quantization": "",
        "-q": "",
        "--seed": "int",
        "--disable-logs": "switch",
        "--backend": ["mp", "ray"],
        "--log-requests": "boolean",
        "--headless": "switch",
        "--chat-template": "",
        "--port": "int",
        "--enable-auto-tool-choice": "boolean",
        "--headers": "json",
    },
}


def write_package(folder: Path, files: Mapping[str, str] = FILES) -> Path:
    write_tree(folder / "vllm", {"__init__.py": "raise SystemExit('it was imported')", **files})
    return folder


def test_every_list_is_read_without_importing_anything(tmp_path: Path) -> None:
    assert read_vllm.read_package(write_package(tmp_path)) == LISTS


def test_a_wheel_and_a_source_distribution_say_the_same_as_a_folder(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "folder")
    wheel, sdist = tmp_path / "vllm-1-py3-none-any.whl", tmp_path / "vllm-1.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in folder.rglob("*.py"):
            archive.write(path, path.relative_to(folder))
    with tarfile.open(sdist, "w:gz") as archive_of_sources:
        archive_of_sources.add(folder, "vllm-1")

    assert read_vllm.read_package(wheel) == read_vllm.read_package(sdist) == LISTS


@pytest.mark.parametrize(
    "files",
    [
        {"configuration_auto.py": 'CONFIG_MAPPING_NAMES = OrderedDict([("llama", "L"), ("gpt-sw3", "G")])'},
        {
            "configuration_auto.py": "from .auto_mappings import CONFIG_MAPPING_NAMES\n"
            'CONFIG_MAPPING_NAMES.update({"gpt-sw3": "G"})\nOTHER.update({"x": "X"})\n'
            "CONFIG_MAPPING_NAMES = OrderedDict(**CONFIG_MAPPING_NAMES)",
            "auto_mappings.py": 'CONFIG_MAPPING_NAMES = OrderedDict([("llama", "L")])',
        },
    ],
)
def test_the_model_types_of_transformers_are_read(files: Mapping[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "transformers/models/auto"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    assert read_vllm.read_model_types(tmp_path) == ["gpt-sw3", "llama"]


@pytest.mark.parametrize("value", ["compute()", "[name for name in TYPES]", "OrderedDict(TYPES.items())"])
def test_model_types_that_are_computed_are_not_known(value: str, tmp_path: Path) -> None:
    path = tmp_path / "transformers/models/auto/configuration_auto.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"CONFIG_MAPPING_NAMES = {value}")
    assert read_vllm.read_model_types(tmp_path) is None


IMPORTING = {
    "model_executor/models/registry.py": '_VLLM_MODELS = {"A": ("pictures", "A"), "B": ("text", "B"), '
    '"C": ("vllm.models.c", "C"), "D": ("later", "D")}',
    "model_executor/models/pictures.py": "from transformers.models.gemma3.image_processing_gemma3 import (\n"
    "    X,  # pictures\n)\nfrom transformers import AutoProcessor, Gemma3Processor, Gemma3ImageProcessor\n",
    "model_executor/models/text.py": '"""\nimport timm\n"""\nif TYPE_CHECKING:\n    import timm\n'
    "try:\n    import librosa\nexcept ImportError:\n    librosa = None\ndef f():\n    import av\n",
    "models/c/__init__.py": "from .model import C",
    "models/c/model.py": "from ...model_executor.models import pictures\nimport numpy, timm.layers as layers\n",
    "model_executor/models/later.py": "from vllm.transformers_utils.processors import Later\n",
    "transformers_utils/processors/__init__.py": '_CLASS_TO_MODULE = {"Later": "vllm.transformers_utils.processors.x"}',
    "transformers_utils/processors/x.py": "import torchaudio",
}
GEMMA3 = ["transformers.Gemma3Processor", "transformers.models.gemma3.image_processing_gemma3"]


def test_what_the_import_of_a_class_needs_is_read_through_modules(tmp_path: Path) -> None:
    imports = read_vllm.read_package(write_package(tmp_path, IMPORTING))["imports"]

    assert imports == {"A": GEMMA3, "C": ["timm", *GEMMA3], "D": ["torchaudio"]}


CONSTRUCTING = {
    "model_executor/models/registry.py": '_VLLM_MODELS = {"A": ("tower", "A"), "B": ("tower", "B"), '
    '"C": ("sound", "C")}',
    "model_executor/models/tower.py": "class A:\n    def tower(self):\n        try:\n            import timm\n"
    "        except ImportError as e:\n            raise ImportError('install timm') from e\n"
    "class B:\n    def tower(self):\n        try:\n            import timm\n"
    "        except ImportError:\n            timm = None\n",
    "model_executor/models/sound.py": "from vllm.transformers_utils.processors.sound import Own\n",
    "transformers_utils/processors/sound.py": 'knf = LazyLoader("knf", globals(), "kaldi_native_fbank")\n',
}


def test_what_constructors_of_vllm_need_is_read(tmp_path: Path) -> None:
    lists = read_vllm.read_package(write_package(tmp_path, CONSTRUCTING))

    assert lists["constructor_packages"] == {"A": ["timm"], "C": ["kaldi-native-fbank"]}
    assert lists["own_processors"] == ["C"]


def test_what_constructors_of_processors_need_is_read(tmp_path: Path) -> None:
    texts = {
        "small/processing_small.py": "class SmallProcessor:\n    def __init__(self):\n        if not num2words:\n"
        "            raise ImportError('num2words')\n",
        "sound/feature_extraction_sound.py": "class SoundFeatureExtractor:\n    def __init__(self):\n"
        "        requires_backends(self, ['torchaudio', 'torch'])\n",
        "later/processing_later.py": "class LaterProcessor:\n    def save(self):\n"
        "        requires_backends(self, ['soundfile'])\n",
        "marked/processing_marked.py": "@requires(backends=('librosa',))\nclass MarkedProcessor: 1\n",
        "pictures/image_processing_pictures.py": "@requires(backends=('torchaudio',))\n"
        "class PicturesImageProcessor: 1\n",
    }
    write_tree(tmp_path / "transformers/models", texts)

    assert read_vllm.read_library(tmp_path)["processor_packages"] == {
        "marked": ["librosa"],
        "small": ["num2words"],
        "sound": ["torchaudio"],
    }


def test_what_transformers_needs_joins_the_architectures(tmp_path: Path) -> None:
    folder = tmp_path / "transformers/models/gemma3"
    folder.mkdir(parents=True)
    pictures = "from torchvision.transforms import x\nclass Gemma3ImageProcessor: 1"
    (folder / "image_processing_gemma3.py").write_text(pictures)
    (folder / "image_processing_pil_gemma3.py").write_text("import PIL\nclass Gemma3ImageProcessorPil: 1")
    text = "if is_vision_available():\n    from .image_processing_gemma3 import x\nclass Gemma3Processor(P): 1\n"
    (folder / "processing_gemma3.py").write_text(
        f'{text}@requires(backends=("torchvision",))\nclass OtherProcessor: 1\n'
    )
    (folder / "modeling_gemma3.py").write_text("import timm")
    library = read_vllm.read_library(tmp_path)

    assert library["processors"] == {
        "transformers.Gemma3Processor": ["torchvision"],
        "transformers.models.gemma3.image_processing_gemma3": ["torchvision"],
        "transformers.models.gemma3.processing_gemma3": ["torchvision"],
    }
    joined = read_vllm.join_lists({"imports": {"A": GEMMA3, "B": ["timm"], "C": ["transformers.X"]}, **library})
    assert joined == {"required_packages": {"A": ["torchvision"], "B": ["timm"]}}


def test_the_architectures_that_transformers_runs_for_vllm_follow_from_both(tmp_path: Path) -> None:
    text = "def resolve():\n    return a.is_backend_compatible() or a._can_set_attn_implementation()"
    registry = {"model_executor/models/registry.py": f'{text}\n_VLLM_MODELS = {{"AForCausalLM": 1}}'}
    attention = "class XAttention(nn.Module): 1\n"
    files = {
        "a": f"{attention}class AForCausalLM(P):\n    _supports_attention_backend = True\nclass BForCausalLM(P): 1",
        "c": f"{attention}x = ALL_ATTENTION_FUNCTIONS.get_interface(1)\nclass CForCausalLM(P): 1",
        "d": f"{attention}class DForCausalLM(P): 1",
        "e": "class EForConditionalGeneration(P): 1\nclass EModel(P): 1",
    }
    for name, source in files.items():
        path = tmp_path / f"transformers/models/{name}/modeling_{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(source)
    lists = read_vllm.read_package(write_package(tmp_path, registry)) | read_vllm.read_library(tmp_path)

    served = ["BForCausalLM", "CForCausalLM", "EForConditionalGeneration"]
    assert read_vllm.join_lists(lists)["fallback_architectures"] == served
    older = {**lists, "fallback": lists["fallback"][:1]}
    assert read_vllm.join_lists(older)["fallback_architectures"] == ["BForCausalLM"]


def test_older_forms_are_read(tmp_path: Path) -> None:
    files = {
        "model_executor/models/__init__.py": '_GENERATION = {"A": 1}\n_MODELS = {**_GENERATION}',
        "config.py": 'class LoadFormat(str, enum.Enum):\n    AUTO = "auto"\n    PT = "pt"\n',
        "engine/arg_utils.py": "class EngineArgs:\n    def add_cli_args(parser):\n        pass\n"
        "class AsyncEngineArgs:\n    def add_cli_args(parser):\n        pass\n",
        "entrypoints/openai/cli_args.py": "def make_arg_parser(parser):\n"
        "    parser.add_argument('--tool-call-parser', choices=['mistral', 'hermes'])\n",
    }
    lists = read_vllm.read_package(write_package(tmp_path, files))

    assert lists["architectures"] == ["A"]
    assert lists["load_formats"] == ["auto", "pt"]
    assert lists["tool_parsers"] == ["hermes", "mistral"]


@pytest.mark.parametrize(
    "registry", ["", "_VLLM_MODELS = make()", "_VLLM_MODELS = {**other()}", "_VLLM_MODELS = {name: 1}"]
)
def test_what_a_version_computes_is_not_known(tmp_path: Path, registry: str) -> None:
    files = {**FILES, "model_executor/models/registry.py": registry}

    assert "architectures" not in read_vllm.read_package(write_package(tmp_path, files))


@pytest.mark.parametrize(
    ("check", "accepted"),
    [
        ("if self.max_lora_rank not in possible: raise ValueError", ["16", "8"]),
        ("if self.max_lora_rank not in (8, 16, 320): raise ValueError", ["16", "320", "8"]),
        ("if self.max_lora_rank not in possible: self.max_lora_rank = 8", "int"),
        ("if self.other:\n            if self.max_lora_rank not in possible: raise ValueError", "int"),
        ("if self.max_lora_rank not in computed(): raise ValueError", "int"),
    ],
)
def test_numbers_that_a_class_checks_are_what_its_flag_takes(tmp_path: Path, check: str, accepted: object) -> None:
    lora = f"class LoRAConfig:\n    def __post_init__(self):\n        possible = (8, 16)\n        {check}\n"
    flag = 'group.add_argument("--max-lora-rank", type=int)\n        group.add_argument("--seed", type=int)'
    arguments = ARG_UTILS.replace('group.add_argument("--seed", type=int)', flag)
    package = {**FILES, "config/lora.py": lora, "engine/arg_utils.py": arguments}

    flags = read_vllm.read_package(write_package(tmp_path, package))["flags"]

    assert (flags["--max-lora-rank"], flags["--seed"]) == (accepted, "int")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    files = {**FILES, "envs.py": "#" * (read_vllm.FILE_AT_MOST + 1) + "\n" + FILES["envs.py"]}

    assert "variables" not in read_vllm.read_package(write_package(tmp_path, files))


def test_the_installed_vllm_is_read_with_what_its_plugin_adds(tmp_path: Path) -> None:
    write_package(tmp_path, {**FILES, "tools.py": 'parser.add_argument("--of-another-program")'})
    plugin, info = tmp_path / "vllm_npu", tmp_path / "vllm_npu-1.dist-info"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(
        '@register_quantization_config("ascend")\nclass Q: pass\n'
        'ModelRegistry.register_model("NpuForCausalLM", "x:Y")\nparser.add_argument("--npu-graph")\n'
        'ModelRegistry.register_model(name, "x:Y")\n'
    )
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: Runai_Model.Streamer\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\nnpu = vllm_npu:register\nown = vllm.tools:register\n"
    )
    target = tmp_path / "out.json"
    command = [sys.executable, "-B", str(ROOT / PROGRAM), str(target)]
    subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, check=True)
    lists = json.loads(target.read_text())

    assert lists["quantisations"] == ["ascend", "awq", "fp8"]
    assert "NpuForCausalLM" in lists["architectures"]
    assert lists["flags"].keys() == {*LISTS["flags"], "--npu-graph"}
    assert "runai-model-streamer" in lists["packages"]


def test_an_image_without_vllm_fails_the_build(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-B", str(ROOT / PROGRAM), str(tmp_path / "out.json")]
    result = subprocess.run(command, env={}, capture_output=True, text=True, check=False)

    assert result.returncode
    assert "no package vllm is installed" in result.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"def f(:"])
def test_a_damaged_file_is_an_error_and_never_an_empty_list(tmp_path: Path, damage: bytes) -> None:
    wheel = tmp_path / "vllm.whl"
    wheel.write_bytes(damage)

    with pytest.raises((tarfile.TarError, zipfile.BadZipFile, EOFError, OSError)):
        read_vllm.read_package(wheel)


def test_a_wheel_with_a_path_outside_the_package_adds_nothing(tmp_path: Path) -> None:
    wheel, content = tmp_path / "vllm.whl", io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("../vllm/envs.py", FILES["envs.py"])
        archive.writestr("other/vllm/envs.py", FILES["envs.py"])
    wheel.write_bytes(content.getvalue())

    assert read_vllm.read_package(wheel) == {}
