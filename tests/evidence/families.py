"""transformers' and vLLM's configuration classes → entrypoints/model/families.py, tests/models/architectures.json.

    python tests/evidence/families.py VLLM

VLLM is the folder of the `vllm` package. transformers must be importable; PyTorch is not needed. Both are in the CPU
image.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import logging
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from entrypoints.model.config import NESTED, TOWERS, parse_config  # noqa: E402 -- run as a script
from entrypoints.model.geometry import parse_geometry  # noqa: E402 -- run as a script
from entrypoints.model.keys import DEFAULTED  # noqa: E402 -- run as a script

CLASSES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
NAMED = {
    "LLaMAForCausalLM": "llama",
    "Rnj1ForCausalLM": "gemma3_text",
    "ExaoneMoEForCausalLM": "exaone_moe",
    "PhiMoEForCausalLM": "phimoe",
    "ChatGLMModel": "chatglm",
    "ChatGLMForConditionalGeneration": "chatglm",
    "PixtralForConditionalGeneration": "llava",
    "Qwen2_5OmniModel": "qwen2_5_omni",
    "DeepseekV4ForConditionalGeneration": "deepseek_v4",
    "DeepseekV41ForCausalLM": "deepseek_v41",
    "MiniMaxM3SparseForCausalLM": "minimax_m3_text",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_vl",
    "BailingMoeV3ForCausalLM": "bailing_hybrid",
    "BailingMoeV3VLForConditionalGeneration": "bailing_moe_v3_vl",
    "DeepseekVLV2ForCausalLM": "deepseek_vl_v2",
    "Dots3NoteForCausalLM": "dots3_note",
    "DotsOCRForCausalLM": "dots_ocr",
    "FunAudioChatForConditionalGeneration": "funaudiochat",
    "KimiK3ForConditionalGeneration": "kimi_k3",
    "MossTranscribeDiarizeForConditionalGeneration": "moss_transcribe_diarize",
    "MuseGlimmerForCausalLM": "muse_glimmer_text",
    "Step3TextForCausalLM": "step3_text",
    "Step3VLForConditionalGeneration": "step3_vl",
    "Step3p5ForCausalLM": "step3p5",
    "VoxtralRealtimeGeneration": "voxtral_realtime",
    "LightOnOCRForConditionalGeneration": "lighton_ocr",
    "InternS1ForConditionalGeneration": "internvl",
}
"""Architectures whose published configurations have the type of another class."""
REMOTE = (
    "its configuration class is in the models' repositories, so its defaults are unknown: a file must name all sizes"
)
WRITTEN = (*DEFAULTED, "layer_types", "layers_block_type", "compress_ratios", "compress_rates", "linear_attn_config",
           "linear_num_heads", "linear_head_dim", "mamba_d_state", "mamba_n_heads", "mamba_d_head", "mamba_n_groups",
           "mamba_d_conv", "mamba_expand", "ssm_state_size", "state_size", "conv_kernel", "mamba_num_heads",
           "mamba_head_dim", "n_groups", "attn_layer_period", "attn_layer_offset", "attn_layer_indices")  # fmt: skip
"""Keys of configurations without nested parts, where transformers leaves nothing out."""
NO_DEFAULTS = "its configuration class has no defaults for {}: a configuration must name them"


class Family(NamedTuple):
    """A configuration class."""

    kind: str
    """Its `model_type`."""
    stated: Mapping[str, Any]
    """The defaults that the class states."""
    table: Mapping[str, Any]
    """A configuration made without arguments."""


def architectures(vllm: Path) -> Iterator[str]:
    """Yield every architecture for text generation that vLLM registers."""
    tree = ast.parse((vllm / "model_executor/models/registry.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and node.targets[0].id in CLASSES:  # type: ignore[attr-defined]
            yield from (key.value for key in node.value.keys if isinstance(key, ast.Constant))


def vllms_own(vllm: Path) -> dict[str, Family]:
    """Return vLLM's own configuration classes, by `model_type`."""
    for name in ("vllm", "vllm.transformers_utils", "vllm.transformers_utils.configs"):
        package = types.ModuleType(name)
        package.__path__ = [str(vllm / name[5:].replace(".", "/"))]
        sys.modules[name] = package
    log = types.ModuleType("vllm.logger")
    log.init_logger = logging.getLogger  # type: ignore[attr-defined]
    sys.modules["vllm.logger"] = log
    families: dict[str, Family] = {}
    for path in sorted((vllm / "transformers_utils/configs").glob("[a-z]*.py")):
        try:
            module = importlib.import_module(f"vllm.transformers_utils.configs.{path.stem}")
        except ImportError:
            continue
        families |= {one.kind: one for item in vars(module).values() for one in defaults_of(item, module.__name__)}
    return families


def defaults_of(item: Any, module: str) -> Iterator[Family]:
    """Yield a configuration class that needs no arguments."""
    if not isinstance(item, type) or item.__module__ != module or not getattr(item, "model_type", ""):
        return
    try:
        yield Family(item.model_type, declared(item), item().to_dict())
    except (TypeError, ValueError, AssertionError):
        return


def declared(item: type) -> dict[str, Any]:
    """Return the defaults that a class states, without those that it computes from other sizes."""
    attributes: dict[str, Any] = {}
    for base in reversed(item.__mro__):
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            attributes |= {
                name: one.default for name, one in parameters.items() if one.default is not inspect.Parameter.empty
            }
        attributes |= {name: vars(base)[name] for name in vars(base).get("__annotations__", {}) if name in vars(base)}
    return attributes


def transformers_own() -> dict[str, Family]:
    """Return transformers' configuration classes, by `model_type`."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES  # noqa: PLC0415 -- only where the package is

    families = {}
    for kind in CONFIG_MAPPING_NAMES:
        try:
            families[kind] = Family(kind, declared(CONFIG_MAPPING[kind]), CONFIG_MAPPING[kind]().to_dict())
        except Exception as error:  # noqa: BLE001 -- some classes need a network, a package or arguments
            print(f"{kind}: {str(error)[:80]}", file=sys.stderr)  # noqa: T201 -- a script
    return families


def types_of_architectures() -> dict[str, str]:
    """Return the shortest `model_type` that transformers gives to each class."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 -- only where the package is

    model_types: dict[str, str] = {}
    for name, mapping in vars(modeling_auto).items():
        if not name.endswith("_MAPPING_NAMES"):
            continue
        for kind, classes in mapping.items():
            for one in (classes,) if isinstance(classes, str) else classes:
                model_types[one] = min(model_types.get(one, kind), kind, key=len)
    return model_types


def parts(table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the configurations nested in one, with their keys."""
    for key in (*NESTED, *TOWERS):
        if isinstance(table.get(key), dict) and table[key].get("model_type"):
            yield key, table[key]


def collect(kind: str, known_families: Mapping[str, Family], families: dict[str, dict[str, Any]]) -> None:
    """Add a type's defaults, and those of its nested types."""
    if kind in families or kind not in known_families:
        return
    stated, table = known_families[kind].stated, known_families[kind].table
    stated_sizes = sizes(stated)
    layers = table.get("layer_types") or []
    if "sliding_attention" in layers and "full_attention" in layers:
        stated_sizes["sliding_window_pattern"] = layers.index("full_attention", 1) + 1
    else:
        stated_sizes.pop("sliding_window", None)
    full = next((kind for kind in ("full_attention", "indexed_attention") if kind in layers), "")
    if "linear_attention" in layers and full:
        stated_sizes["full_attention_interval"] = layers.index(full) + 1
    if "kv_lora_rank" in stated_sizes:  # latent attention has no heads of one size
        stated_sizes.pop("head_dim", None)
    families[kind] = stated_sizes
    for key, part in parts(table):
        inner = part["model_type"]
        families[kind][key] = inner
        collect(inner, known_families, families)
        if key in NESTED and inner in known_families:  # what a file without the nested part means
            usual = sizes(known_families[inner].table)
            families[kind] |= {name: size for name, size in sizes(part).items() if size != usual.get(name)}


def sizes(table: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: table[key] for key in DEFAULTED if type(table.get(key)) is int}
    return {key: number for key, number in numbers.items() if number > 0 or key == "qk_rope_head_dim"}


def innermost(kind: str, known_families: Mapping[str, Family]) -> Mapping[str, Any]:
    """Return the defaults of a type's language model."""
    while inner := next((part["model_type"] for key, part in parts(known_families[kind].table) if key in NESTED), ""):
        if inner not in known_families:
            break
        kind = inner
    return known_families[kind].table


def published(kind: str, known_families: Mapping[str, Family]) -> dict[str, Any]:
    """Return the shortest configuration that transformers would write: nested parts name their types only."""
    nested = {key: {"model_type": part["model_type"]} for key, part in parts(known_families[kind].table)}
    table = known_families[kind].table
    top_level = {} if any(key in NESTED for key in nested) else {key: table[key] for key in WRITTEN if table.get(key)}
    return {"model_type": kind, **top_level, **nested}


def main(vllm: Path) -> None:
    """Write both files."""
    import transformers  # noqa: PLC0415 -- only where the package is

    known_families = {**vllms_own(vllm), **transformers_own()}
    kinds = {**types_of_architectures(), **NAMED}
    here = committed()
    families: dict[str, dict[str, Any]] = {}
    listed: dict[str, dict[str, Any]] = {}
    for name in architectures(vllm):
        kind = kinds.get(name, "")
        if kind not in known_families:
            listed[name] = {"published": here[name]} if name in here else {"unknown": REMOTE}
            continue
        collect(kind, known_families, families)
        config = {"architectures": [name], **published(kind, known_families)}
        listed[name] = {"config": config, **expected(innermost(kind, known_families))}
        if "unknown" not in listed[name] and (why := parse_geometry(parse_config(config))[1]):
            listed[name]["cache"] = why
    source = f"transformers {transformers.__version__} and vLLM 0.32.0"
    lines = [f'    "{kind}": {json.dumps(table, sort_keys=True)},' for kind, table in sorted(families.items()) if table]
    head = (ROOT / "entrypoints/model/families.py").read_text().partition("# generated\n")[0]
    body = "\n".join(lines)
    (ROOT / "entrypoints/model/families.py").write_text(
        f"{head}# generated\nFAMILIES: Mapping[str, Mapping[str, int | str]] = {{  # of {source}\n{body}\n}}\n"
    )
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(listed.items()))
    text = f'{{\n "source": {json.dumps(source)},\n "architectures": {{\n{rows}\n }}\n}}\n'
    (ROOT / "tests/models/architectures.json").write_text(text)


def committed() -> dict[str, str]:
    """Return a committed configuration of each architecture that has one."""
    configuration_names = {}
    bodies = json.loads((ROOT / "drydock/run/configurations.json").read_text())
    for name in sorted(bodies, reverse=True):
        configuration_names |= dict.fromkeys(bodies[name]["config"].get("architectures", ()), name)
    return configuration_names


def expected(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the class itself says of layers, heads and width; or what it leaves open."""
    names = {
        "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"),
        "heads": ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"),
        "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    }
    values = {name: next((table[key] for key in keys if table.get(key)), None) for name, keys in names.items()}
    open_ones = [names[name][0] for name, value in values.items() if not isinstance(value, int)]
    return {"unknown": NO_DEFAULTS.format(", ".join(open_ones))} if open_ones else values


if __name__ == "__main__":
    main(Path(sys.argv[1]))
