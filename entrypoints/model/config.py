"""A model's config.json as one record: where its parts are, and how its weights are quantised. Pure.

Model families use different keys, and may nest the language model's configuration. Keys of one subject alone are read
where that subject is: sizes in geometry.py, state layers in hybrid.py, parameter counts in parameters.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from entrypoints.core.parse import Infinite
from entrypoints.model.keys import DEFAULTED, HIDDEN, LAYERS, STATED, VOCABULARY, list_alike_keys

Table = Mapping[str, Any]

NESTED = ("text_config", "llm_config", "language_config", "decoder", "thinker_config")
"""Keys that may hold the language model's own configuration."""
TOWERS = ("vision_config", "audio_config")
"""Keys that may hold the configuration of what turns other input than text into embeddings."""

SPEECH = (
    "CohereAsrForConditionalGeneration", "FireRedASR2ForConditionalGeneration", "FunASRForConditionalGeneration",
    "MossTranscribeDiarizeForConditionalGeneration", "WhisperForConditionalGeneration",
)  # fmt: skip
"""Architectures that take speech only: vLLM 0.32, models with supports_transcription_only."""

_BLOCKS = "layers_block_type"
_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}
"""transformers' configuration_nemotron_h.py."""

LARGEST_SIZE = 1 << 28
"""Heads, layers, tokens: the longest published context is a twentieth of this."""
_NEVER_ZERO = (*HIDDEN, *VOCABULARY)
_WIDEST = 64
"""Bits: no number is wider."""


class Quantization(NamedTuple):
    """How the weights are quantised; all fields are empty for floating-point weights."""

    method: str = ""
    """The name that vLLM uses."""
    bits: int = 0
    """Bits of a quantised weight; 0 if the configuration does not name them."""
    group: int = 0
    """Weights that share one scale; 0 if a whole row or tensor shares it."""
    reordered: bool = False
    """Whether GPTQ ordered columns by activation, so that groups are not contiguous (g_idx)."""


class Config(NamedTuple):
    """One config.json."""

    outer: Table
    """The whole file."""
    text: Table
    """The language model's part, with its family's defaults; the whole file if nothing is nested."""
    vision: Table
    """The vision tower's part; empty without one."""
    quantization: Quantization
    architecture: str
    """The first of `architectures`; empty if there is none."""
    family: str
    """`model_type` of the language model."""
    model_type: str
    """`model_type` of the whole file, by which vLLM and transformers choose the configuration class."""
    dtype: str
    """The type in which the weights are stored; empty if the file does not name it."""
    modalities: tuple[str, ...]
    """Input other than text: image, audio."""
    layer_kinds: tuple[str, ...]
    """The kind of each layer, such as full_attention; empty if they are not listed.

    A file may list more, such as those of drafting layers; as vLLM does, only the first `num_hidden_layers` are read
    (vLLM 0.32, get_num_layers_by_block_type and configs/step3p5.py).
    """
    pattern: str
    """Nemotron-H's layers, one letter each: M Mamba, * attention, - feed-forward, E experts; empty for others."""
    filled: tuple[str, ...] = ()
    """Sizes of the language model that the file leaves to its family's defaults, each as `key=value`."""
    audio: Table = MappingProxyType({})
    """The audio tower's part; empty without one."""


def parse_config(outer: Table) -> Config:
    """Parse config.json. Raises ValueError that names the key and the value of a part that is not an object."""
    text, filled = _find_text_config(outer)
    thinker = optional_table(outer, "thinker_config") or {}
    towers = {
        kind: _find_tower_config(outer, thinker, key) for kind, key in zip(("image", "audio"), TOWERS, strict=True)
    }
    architecture = next((str(name) for name in as_list(outer, "architectures")), "")
    modalities = tuple(kind for kind, tower in towers.items() if tower is not None)
    types = (part.get(key) for part in (outer, text) for key in ("dtype", "torch_dtype"))
    pattern = _read_layer_pattern(text)
    if pattern:
        text = {"num_hidden_layers": len(pattern), **text}
    layers = _find_layer_count(text)
    return Config(
        outer=outer,
        text=text,
        vision=towers["image"] or {},
        quantization=_parse_quantization(outer, text),
        architecture=architecture,
        family=str(text.get("model_type") or outer.get("model_type") or ""),
        model_type=str(outer.get("model_type") or ""),
        dtype=str(next(filter(None, types), "")),
        modalities=modalities or (("audio",) if architecture in SPEECH else ()),
        layer_kinds=() if pattern else tuple(map(str, as_list(text, "layer_types") or as_list(text, _BLOCKS)))[:layers],
        pattern=pattern[:layers],
        filled=filled,
        audio=towers["audio"] or {},
    )


def _find_layer_count(text: Table) -> int | None:
    """Return the number of layers; None if it is missing or wrong, which geometry.py refuses by its key."""
    counts = (text.get(key) for key in LAYERS)
    return next((count for count in counts if isinstance(count, int) and count > 0), None)


def _read_layer_pattern(text: Table) -> str:
    """Return Nemotron-H's layers, which older files write as letters and newer ones as words."""
    pattern = text.get("hybrid_override_pattern")
    words = [_LETTERS.get(str(word), "") for word in as_list(text, _BLOCKS)]
    if isinstance(pattern, str) and pattern:
        return pattern
    return "".join(words) if words and all(words) and text.get("model_type") == "nemotron_h" else ""


def _find_text_config(outer: Table) -> tuple[Table, tuple[str, ...]]:
    """Return the innermost language model's configuration with its family's defaults, and these as `key=value`."""
    text, kind = outer, _read_model_type(outer)
    while key := next((key for key in NESTED if optional_table(text, key) is not None), ""):
        text, kind = text[key], _read_model_type(text[key]) or _nested_kind(kind, key)
    missing = _list_missing_sizes(text, kind)
    while inner := next(filter(None, (_nested_kind(kind, key) for key in NESTED)), ""):
        kind = inner  # not nested: left to the defaults, or written one level higher, as older releases did
        missing = {**_list_missing_sizes(text, kind), **missing}
    if text is outer and kind == _read_model_type(outer):
        missing = {key: value for key, value in missing.items() if key not in STATED}
    filled = tuple(f"{key}={value}" for key, value in missing.items() if key in DEFAULTED)
    return {**missing, **text}, filled


def _find_tower_config(outer: Table, thinker: Table, key: str) -> Table | None:
    """Return the configuration under a tower's key, with its family's defaults; None if there is none."""
    for part in (outer, thinker):
        tower = optional_table(part, key)
        if tower is not None:
            return {
                **_list_missing_sizes(tower, _read_model_type(tower) or _nested_kind(_read_model_type(part), key)),
                **tower,
            }
    return None


def _read_model_type(part: Table) -> str:
    """Return a part's `model_type`; empty without one."""
    return str(part.get("model_type") or "")


def _nested_kind(kind: str, key: str) -> str:
    """Return the type that a nested part has by its family's defaults; empty if they do not tell."""
    from entrypoints.model.families import FAMILIES

    inner = FAMILIES.get(kind, {}).get(key)
    return inner if isinstance(inner, str) else ""


def _list_missing_sizes(part: Table, kind: str) -> dict[str, int]:
    """Return the sizes that a part leaves to its family's defaults."""
    from entrypoints.model.families import FAMILIES

    defaults = FAMILIES.get(kind, {}).items()
    return {
        key: value
        for key, value in defaults
        if isinstance(value, int) and not any(name in part for name in list_alike_keys(key))
    }


def _parse_quantization(outer: Table, text: Table) -> Quantization:
    """Parse how weights are quantised.

    ModelOpt's checkpoints are named modelopt for every algorithm, or by their producer; vLLM selects by the algorithm
    (its modelopt.py, and transformers_utils/model_arch_config_convertor.py). It takes an empty table for none.
    """
    parts = [(outer, "quantization_config"), (outer, "compression_config"), (text, "quantization_config")]
    table = next(filter(None, (optional_table(part, key) for part, key in parts)), None)
    if not table:
        return Quantization()
    method, algorithm = str(table.get("quant_method", "unnamed")), table.get("quant_algo")
    nested = optional_table(table, "quantization") or {}
    if (optional_table(table, "producer") or {}).get("name") == "modelopt" and "quant_algo" in nested:
        method, algorithm = "modelopt", nested["quant_algo"]
    if method == "modelopt" and "NVFP4" in str(algorithm).upper():
        method = "modelopt_fp4"
    groups = [
        weights
        for group in (optional_table(table, "config_groups") or {}).values()
        if isinstance(group, dict) and (weights := optional_table(group, "weights"))
    ]
    bits = read_size(groups[0], "num_bits") if groups else 0
    bits = bits or read_size(table, "bits", "w_bit", "num_bits")
    return Quantization(
        method, bits if bits <= _WIDEST else 0, _group_size(table, groups), _is_reordered(table, groups)
    )


def _group_size(table: Table, groups: list[Table]) -> int:
    """Return how many weights share one scale.

    GPTQ and AWQ write group_size, block-wise fp8 weight_block_size, compressed-tensors one for each of config_groups.
    """
    sizes = [
        table.get("group_size"),
        *as_list(table, "weight_block_size"),
        *(group.get("group_size") for group in groups),
    ]
    return max((number for number in sizes if isinstance(number, int) and number > 1), default=0)


def _is_reordered(table: Table, groups: list[Table]) -> bool:
    """Return whether GPTQ's groups are not contiguous, so that a column's group is looked up (g_idx).

    AutoGPTQ writes desc_act, and static_groups if groups were fixed before reordering, which keeps them contiguous. It
    is false by default (AutoGPTQ, BaseQuantizeConfig; transformers, GPTQConfig). compressed-tensors writes actorder:
    "group" and "dynamic" reorder, "weight" and "static" do not (its quantization/quant_args.py).
    """
    meta = optional_table(table, "meta") or {}
    fixed = table.get("static_groups", meta.get("static_groups", False))
    if table.get("desc_act") is True and fixed is not True and table.get("group_size") != -1:
        return True
    return any(weights.get("actorder") in ("group", "dynamic", True) for weights in groups)


# --- reading keys ---------------------------------------------------------------------------------------------------


def optional_table(table: Table, key: str) -> Table | None:
    """Return a nested object; None if the key is absent or null. Raises ValueError for anything else."""
    value = table.get(key)
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{key}: found {str(value)[:40]!r}, expected an object")
    return value


def as_list(table: Table, key: str) -> list[Any]:
    """Return a list; empty if the key holds none."""
    value = table.get(key)
    return value if isinstance(value, list) else []


def count_listed_layers(table: Table, key: str, layers: range) -> int:
    """Count the model's layers that a list names by their numbers; it may also name drafting layers."""
    return sum(isinstance(number, int) and number in layers for number in as_list(table, key))


def read_size(table: Table, *keys: str) -> int:
    """Return the first key's whole number above zero, or one that a list repeats for all layers; 0 without one.

    A zero says that a model lacks a part, such as shared experts. Raises ValueError for Infinity, numbers below zero,
    and anything but a whole number above zero in the sizes that every model has.
    """
    for key in keys:
        value = table.get(key)
        values = value if isinstance(value, list) else [value]
        number = values[0] if values and all(item == values[0] for item in values) else None
        if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LARGEST_SIZE:
            return number
        below = any(isinstance(item, (int, float)) and item < 0 for item in values)
        if below or isinstance(value, Infinite) or (value is not None and key in _NEVER_ZERO):
            raise ValueError(f"{key}: found {str(value)[:40]!r}, expected a whole number above zero")
    return 0


def required_size(table: Table, *keys: str, default: int | None = None) -> int:
    """Return the first key's whole number above zero.

    Raises ValueError for any other value, and for keys that are all absent if there is no default.
    """
    for key in keys:
        value = table.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_SIZE:
            raise ValueError(f"{key}: found {str(value)[:40]!r}, expected a whole number above zero")
        return value
    if default is None:
        raise ValueError(f"{' or '.join(keys)}: missing, expected a whole number above zero")
    return default
