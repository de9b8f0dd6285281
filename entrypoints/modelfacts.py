"""A local model folder → what a plan must know of it: weights and geometry. IO.

A hub id has no folder yet: then nothing is known, and the plan says so. A folder that is broken is an error, before
vLLM spends a minute to find out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from entrypoints.errors import MODEL, EntrypointError
from entrypoints.geometry import Geometry, parse_geometry, text_config

FLOAT_SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
"""Bytes per number in safetensors files, for the types that vLLM converts to --dtype while loading."""

_HEADER_AT_MOST = 100_000_000
"""Bytes of JSON that the safetensors format allows."""

_TORCH_SIZES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


class Weights(NamedTuple):
    """What lies on disk, split by what becomes of it when loaded."""

    on_disk: int
    elements: int
    """Floating-point numbers, which take --dtype's size in memory."""
    other: int
    """Bytes that stay as they are: quantised weights."""

    def loaded(self, size: int) -> int:
        """Return the bytes in memory when floating-point numbers take `size` bytes."""
        return self.elements * size + self.other


class ModelFacts(NamedTuple):
    """What is known of a model before it is loaded."""

    name: str
    """As it was given: a folder or a hub id."""
    local: bool
    architecture: str
    quantization: str
    weights: Weights | None
    geometry: Geometry | None
    unknown: str
    """Why weights or geometry are not known, where that is legitimate."""
    problem: str = ""
    """What is missing or wrong in its configuration: an error as soon as the geometry is needed."""
    group: int = 0
    """Numbers that share one scale in quantised weights, which ranks must not cut; 0 where that does not matter."""
    bits: int = 0
    """Of a quantised weight; 0 where the configuration does not say."""
    reordered: bool = False
    """Whether GPTQ quantised columns in the order of their activations, so that groups are not contiguous (g_idx)."""


def read_model(name: str, load_format: str = "auto") -> ModelFacts:
    """Read a model folder; a name that is no path is a hub id.

    Raises MODEL for a folder that is missing or broken.
    """
    if not os.path.isdir(name):
        return _hub_id(name)
    config, problem = _read_config(name), ""
    geometry, unknown = None, ""
    try:
        geometry, unknown = parse_geometry(config)
    except ValueError as error:
        problem = f"{name}/config.json: {error}"
    readable = load_format in ("auto", "safetensors", "pt", "hf", "mistral")
    weights = read_weights(name, config) if readable else None
    if weights is None:
        unknown = f"--load-format {load_format} decides what the weights take"
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return ModelFacts(
        name, True, architecture, quantization(config), weights, geometry, unknown, problem, group_size(config),
        *packing(config),
    )  # fmt: skip


def _read_config(folder: str) -> dict[str, Any]:
    """Read config.json, or Mistral's own params.json where only that exists."""
    names = ("config.json", "params.json")
    path = next((path for name in names if os.path.exists(path := os.path.join(folder, name))), None)
    return _read_json(path or os.path.join(folder, names[0]))


def _hub_id(name: str) -> ModelFacts:
    """Take a name as `owner/model`, unless it can only be a path."""
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or os.path.exists(name)
    if is_path:
        found = "is a file" if os.path.exists(name) else "is not there"
        raise EntrypointError(
            MODEL,
            f"{name}: {found}, expected a model folder with config.json",
            "mount it into the container, such as -v /models:/models:ro, and name it by its path inside",
        )
    return ModelFacts(name, False, "", "", None, None, f"{name} is a hub id, not a folder: it is not here yet")


def _read_json(path: str) -> dict[str, Any]:
    try:
        with _reading(path), open(path, encoding="utf-8") as file:
            loaded = json.load(file)
    except (ValueError, RecursionError) as error:
        raise EntrypointError(MODEL, f"{path}: {error}, expected JSON", "fetch the file again") from error
    if not isinstance(loaded, dict):
        raise EntrypointError(MODEL, f"{path}: found a {type(loaded).__name__}, expected an object", "fetch it again")
    return loaded


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Turn what the system says about a file into an error that says what to do."""
    try:
        yield
    except FileNotFoundError:
        raise EntrypointError(
            MODEL,
            f"{path}: no such file",
            "name the folder that holds config.json and the weights (in a hub cache: …/snapshots/<revision>)",
        ) from None
    except OSError as error:
        raise EntrypointError(
            MODEL,
            f"{path}: cannot be read by uid {os.getuid()}, gid {os.getgid()}: {error.strerror}",
            "make the whole folder readable: chmod -R a+rX FOLDER",
        ) from error


def quantization(config: Mapping[str, Any]) -> str:
    """Return the name of the quantisation method; empty for none."""
    text = text_config(config)
    found = config.get("quantization_config") or config.get("compression_config") or text.get("quantization_config")
    return str(found.get("quant_method", "unnamed")) if isinstance(found, dict) else ""


def packing(config: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the bits of a quantised weight (0 where it is not said), and whether GPTQ's groups are out of order.

    AutoGPTQ writes desc_act, and static_groups where groups were fixed before reordering, which keeps them contiguous.
    """
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return 0, False
    bits = found.get("bits") or found.get("w_bit")
    meta = found.get("meta")
    fixed = found.get("static_groups", meta.get("static_groups", True) if isinstance(meta, dict) else True)
    reordered = found.get("desc_act") is True and fixed is False and found.get("group_size") != -1
    return bits if isinstance(bits, int) and not isinstance(bits, bool) and 0 < bits <= 64 else 0, reordered  # noqa: PLR2004 - no wider number exists


def group_size(config: Mapping[str, Any]) -> int:
    """Return how many numbers of quantised weights share one scale; 0 for a whole row or tensor, or none.

    GPTQ and AWQ write group_size, block-wise fp8 weight_block_size, compressed-tensors one for each of config_groups.
    """
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return 0
    blocks, groups = found.get("weight_block_size"), found.get("config_groups")
    sizes = [found.get("group_size"), *(blocks if isinstance(blocks, list) else ())]
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        sizes += [weights.get("group_size")] if isinstance(weights, dict) else []
    return max((size for size in sizes if isinstance(size, int) and size > 1), default=0)


# --- weights --------------------------------------------------------------------------------------------------------


def read_weights(folder: str, config: Mapping[str, Any]) -> Weights:
    """Add up the weights: safetensors as vLLM would choose them, else *.bin.

    Raises MODEL when there are none, a shard of the index is missing, or a file is shorter than its header says.
    """
    with _reading(folder):
        names = sorted(os.listdir(folder))
    shards = _shards(folder, names)
    if shards:
        return _total(_read_header(os.path.join(folder, shard)) for shard in shards)
    binaries = [name for name in names if name.endswith(".bin") and name != "training_args.bin"]
    if binaries:
        return _binaries(folder, binaries, config)
    gguf = next((name for name in names if name.endswith(".gguf")), "")
    raise EntrypointError(
        MODEL,
        f"{folder}: no weights, expected *.safetensors or *.bin" + (f"; {gguf} is GGUF" if gguf else ""),
        "convert it to safetensors" if gguf else "finish the download, or mount the folder that has the weights",
    )


def _shards(folder: str, names: list[str]) -> list[str]:
    """Return the safetensors files that vLLM loads: the index's where there is one, else all."""
    index = "model.safetensors.index.json"
    present = [name for name in names if name.endswith(".safetensors")]
    if index not in names:
        return present
    weight_map = _read_json(os.path.join(folder, index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise EntrypointError(MODEL, f"{folder}/{index}: weight_map: expected tensor names → files", "fetch it again")
    listed = sorted(set(weight_map.values()))
    missing = [name for name in listed if name not in names]
    if missing:
        raise EntrypointError(
            MODEL,
            f"{folder}: {len(missing)} of {len(listed)} files of {index} are missing, such as {missing[0]}",
            "finish the download",
        )
    return listed


def _read_header(path: str) -> Weights:
    """Read one safetensors header and check that the file is as long as it says."""
    try:
        with _reading(path):
            size = os.path.getsize(path)
            tensors, start = _header(path, size)
        weights, end = _tensors(tensors), start + _data_end(tensors)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EntrypointError(MODEL, f"{path}: not a safetensors file: {error}", "fetch the file again") from error
    if end > size:
        raise EntrypointError(MODEL, f"{path}: cut short: {size} bytes, its header says {end}", "fetch the file again")
    return weights._replace(on_disk=size)


def _header(path: str, size: int) -> tuple[dict[str, Any], int]:
    """Return a file's header and where the data starts."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size, _HEADER_AT_MOST):
            raise ValueError(f"it announces a header of {length} bytes in a file of {size}")
        header: dict[str, Any] = json.loads(file.read(length))
    return header, 8 + length


def _tensors(header: Mapping[str, Any]) -> Weights:
    elements = other = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        size = FLOAT_SIZES.get(tensor["dtype"])
        elements += (end - begin) // size if size else 0
        other += 0 if size else end - begin
    return Weights(0, elements, other)


def _data_end(header: Mapping[str, Any]) -> int:
    ends = (tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    return int(max(ends, default=0))


def _total(parts: Iterable[Weights]) -> Weights:
    return Weights(*(sum(column) for column in zip(*parts, strict=True)))


def _binaries(folder: str, names: list[str], config: Mapping[str, Any]) -> Weights:
    """Take pickled weights by their size: they do not tell what is in them, but config.json says their type."""
    on_disk = sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if quantization(config) or stored not in _TORCH_SIZES:
        return Weights(on_disk, 0, on_disk)
    return Weights(on_disk, on_disk // _TORCH_SIZES[stored], 0)
