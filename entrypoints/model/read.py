"""A model folder, or a hub's small files → what a plan must know of a model: weights and geometry. IO.

A folder that is broken is an error, before vLLM spends a minute to find out. A hub id is looked up in the local cache,
then at the hub; where neither tells, nothing is known, and the plan says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.redact import redact_value
from entrypoints.model.geometry import Geometry, parse_geometry
from entrypoints.model.hub import Hub, NotAnswered, absent, fetch, snapshot
from entrypoints.model.modelconfig import group_size, modalities, packing, quantization, stored_type

FLOAT_SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
"""Bytes per number in safetensors files, for the types that vLLM converts to --dtype while loading."""

_HEADER_AT_MOST = 100_000_000
"""Bytes of JSON that the safetensors format allows."""

_TORCH_SIZES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}


MARK = "drydock-conversion.json"
"""In a folder that `convert` wrote: from what, by which script, of which image."""

_CONFIG, _INDEX, _SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
_MISTRAL = "params.json"


class Incomplete(EntrypointError):  # noqa: N818 -- what the folder is; for a hub id nothing is wrong with it
    """A folder without all of its weights: an error for a folder, a download to come for a hub id."""


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
    estimated: bool = False
    """Whether the weights were counted from the configuration."""
    modalities: tuple[str, ...] = ()
    """What it takes beside text: image, audio."""
    expert_share: float = 0.0
    """Of the weights' bytes, what routed experts take, which all engines share out among them."""
    elsewhere: bool = False
    """Whether the weights are still to be downloaded."""
    revision: str = ""
    """The hub's commit, or a digest of what lies in the folder; empty where neither is known."""
    converted: bool = False
    """Whether the vendor's script made its weights for the device: `convert` says so, or the model's name."""
    dtype: str = ""
    """The type that it was stored in, and so trained in as a rule; empty where the configuration does not say."""


def read_model(name: str, load_format: str = "auto", hub: Hub | None = None, converted_name: str = "") -> ModelFacts:
    """Read a model folder; a name that is no path is a hub id, which is looked up where a hub is given.

    `converted_name` is the word in a name that says that the weights are converted already; empty for none.
    Raises MODEL for a folder that is missing or broken, and for a model that the hub does not have.
    """
    model = _read(name, load_format, hub)
    words = name.rstrip("/").rsplit("/", 1)[-1].lower().split("-")
    return model._replace(converted=model.converted or converted_name.lower() in words)


def _read(name: str, load_format: str, hub: Hub | None) -> ModelFacts:
    if os.path.isdir(name):
        config = _read_config(name)
        facts = _facts(name, config, f"{name}/{_CONFIG}")
        converted = os.path.exists(os.path.join(name, MARK))
        return facts._replace(local=True, converted=converted, **_weights(name, config, load_format))
    if "://" in name:
        return _unknown(name, f"{name} is storage that only vLLM itself reads")
    _refuse_a_path(name)
    if hub is not None and ":" in name:
        return _unknown(name, f"{name} names a GGUF file of a hub id, which only vLLM itself reads")
    if hub is None:
        return _unknown(name, f"{name} is a hub id, not a folder: it is not here yet")
    folder = snapshot(hub, name)
    return _cached(name, folder, load_format) if folder else _asked(name, hub, load_format)


def _facts(name: str, config: Mapping[str, Any], where: str) -> ModelFacts:
    """Return what the configuration alone tells."""
    geometry, unknown, problem, share = None, "", "", 0.0
    try:
        geometry, unknown = parse_geometry(config)
    except ValueError as error:
        problem = f"{where}: {error}"
    if geometry is not None and geometry.experts:
        from entrypoints.model.parameters import expert_share

        share = expert_share(config, geometry)
    architectures = config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    return ModelFacts(
        name, False, architecture, quantization(config), None, geometry, unknown, problem, group_size(config),
        *packing(config), modalities=modalities(config), expert_share=share,
        dtype=stored_type(config),
    )  # fmt: skip


def _weights(folder: str, config: Mapping[str, Any], load_format: str) -> dict[str, Any]:
    """Return the fields of ModelFacts that the weights decide."""
    if not _is_readable(load_format):
        return {"weights": None, "unknown": f"--load-format {load_format} decides what the weights take"}
    return {"weights": read_weights(folder, config)}


def _is_readable(load_format: str) -> bool:
    """Tell whether vLLM loads what lies in the folder as it is."""
    return load_format in ("auto", "safetensors", "pt", "hf", "mistral")


def _unknown(name: str, why: str) -> ModelFacts:
    return ModelFacts(name, False, "", "", None, None, why)


def _cached(name: str, folder: str, load_format: str) -> ModelFacts:
    """Read a model from the local cache, whose weights may be still to come."""
    config = _read_config(folder)
    facts = _facts(name, config, f"{folder}/{_CONFIG}")
    try:
        return facts._replace(**_weights(folder, config, load_format))
    except Incomplete:
        index = os.path.join(folder, _INDEX)
        size = _total_size(_read_json(index)) if os.path.exists(index) else 0
        return _counted(facts, config, size, f"the weights are not in {folder} yet")._replace(elsewhere=True)


def _asked(name: str, hub: Hub, load_format: str) -> ModelFacts:
    """Ask the hub; what it does not answer is not known, since vLLM may still have its own way."""
    if hub.offline:
        places = ", ".join(hub.caches)
        return _unknown(name, f"{name} is not in {places}, and {hub.offline} forbids to ask {hub.site}")
    try:
        return _told(name, hub, load_format)._replace(elsewhere=True)
    except NotAnswered as error:
        return _unknown(name, f"{name} is a hub id, and not here yet: {error}")


def _told(name: str, hub: Hub, load_format: str) -> ModelFacts:
    text = fetch(hub, name, _CONFIG) or fetch(hub, name, _MISTRAL)
    if text is None:
        if load_format == "auto":
            raise absent(hub, name)
        return _unknown(name, f"{name} has no {_CONFIG}: --load-format {load_format} decides what is read")
    where = redact_value("", hub.url(name, _CONFIG))
    config = _parse_json(text, where)
    facts = _facts(name, config, where)
    if not _is_readable(load_format):
        return facts._replace(unknown=f"--load-format {load_format} decides what the weights take")
    index = fetch(hub, name, _INDEX)
    if index is not None:
        return _counted(facts, config, _total_size(_parse_json(index, f"{name}/{_INDEX}")), "")
    single = fetch(hub, name, _SINGLE, beginning=True)
    header = _begun(single) if single else None
    if header is None:
        return _counted(facts, config, 0, f"{hub.place} has no index of its weights")
    return facts._replace(weights=_tensors(header)._replace(on_disk=_data_end(header)))


def _begun(beginning: bytes) -> dict[str, Any] | None:
    """Parse the header at the beginning of a safetensors file; None where it is none, or longer."""
    length = int.from_bytes(beginning[:8], "little")
    try:
        header = json.loads(beginning[8 : 8 + length].decode()) if len(beginning) >= 8 + length else None
        if isinstance(header, dict):
            _tensors(header)
            return header
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return None


def _total_size(index: Mapping[str, Any]) -> int:
    """Return the bytes that an index names; 0 where it does not."""
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(total) if isinstance(total, (int, float)) and not isinstance(total, bool) and total > 0 else 0


def _counted(facts: ModelFacts, config: Mapping[str, Any], size: int, why: str) -> ModelFacts:
    """Take the weights' bytes where the index names them, else count them from the configuration."""
    if size:
        return facts._replace(weights=_by_size(size, config))
    if facts.geometry is None:
        return facts._replace(unknown=facts.unknown or why)
    from entrypoints.model.parameters import estimate

    weights = estimate(config, facts.geometry)
    return facts._replace(weights=weights, estimated=True, unknown=f"{why}: their size is counted from {_CONFIG}")


def _read_config(folder: str) -> dict[str, Any]:
    """Read config.json, or Mistral's own params.json where only that exists."""
    names = (_CONFIG, _MISTRAL)
    path = next((path for name in names if os.path.exists(path := os.path.join(folder, name))), None)
    return _read_json(path or os.path.join(folder, names[0]))


def _refuse_a_path(name: str) -> None:
    """Take a name as `owner/model`, unless it can only be a path."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or os.path.exists(name):
        found = "is a file" if os.path.exists(name) else "is not there"
        raise EntrypointError(
            MODEL,
            f"{name}: {found}, expected a model folder with config.json",
            "mount it into the container, such as -v /models:/models:ro, and name it by its path inside",
        )


def _read_json(path: str) -> dict[str, Any]:
    with _Reading(path), open(path, "rb") as file:
        return _parse_json(file.read(), path)


def _parse_json(text: bytes, where: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EntrypointError(MODEL, f"{where}: {error}, expected JSON", "fetch the file again") from error
    if not isinstance(loaded, dict):
        raise EntrypointError(MODEL, f"{where}: found a {type(loaded).__name__}, expected an object", "fetch it again")
    return loaded


class _Reading:
    """Turns what the system says about a file into an error that says what to do."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise EntrypointError(
                MODEL,
                f"{self._path}: no such file",
                "name the folder that holds config.json and the weights (in a hub cache: …/snapshots/<revision>)",
            ) from None
        if isinstance(error, OSError):
            raise EntrypointError(
                MODEL,
                f"{self._path}: cannot be read by uid {os.getuid()}, gid {os.getgid()}: {error.strerror}",
                "make the whole folder readable: chmod -R a+rX FOLDER",
            ) from error


def read_weights(folder: str, config: Mapping[str, Any]) -> Weights:
    """Add up the weights: safetensors as vLLM would choose them, else *.bin.

    Raises MODEL when there are none, a shard of the index is missing, or a file is shorter than its header says.
    """
    with _Reading(folder):
        names = sorted(os.listdir(folder))
    shards = _shards(folder, names)
    if shards:
        return _total(_read_header(os.path.join(folder, shard)) for shard in shards)
    binaries = [name for name in names if name.endswith(".bin") and name != "training_args.bin"]
    if binaries:
        return _binaries(folder, binaries, config)
    gguf = next((name for name in names if name.endswith(".gguf")), "")
    raise Incomplete(
        MODEL,
        f"{folder}: no weights, expected *.safetensors or *.bin" + (f"; {gguf} is GGUF" if gguf else ""),
        "convert it to safetensors" if gguf else "finish the download, or mount the folder that has the weights",
    )


def _shards(folder: str, names: list[str]) -> list[str]:
    """Return the safetensors files that vLLM loads: the index's where there is one, else all."""
    index = _INDEX
    present = [name for name in names if name.endswith(".safetensors")]
    if index not in names:
        return present
    weight_map = _read_json(os.path.join(folder, index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise EntrypointError(MODEL, f"{folder}/{index}: weight_map: expected tensor names → files", "fetch it again")
    listed = sorted(set(weight_map.values()))
    missing = [name for name in listed if name not in names]
    if missing:
        raise Incomplete(
            MODEL,
            f"{folder}: {len(missing)} of {len(listed)} files of {index} are missing, such as {missing[0]}",
            "finish the download",
        )
    return listed


def _read_header(path: str) -> Weights:
    """Read one safetensors header and check that the file is as long as it says."""
    try:
        with _Reading(path):
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
        header: dict[str, Any] = json.loads(file.read(length).decode())
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
    return _by_size(on_disk, config)


def _by_size(on_disk: int, config: Mapping[str, Any]) -> Weights:
    """Take weights by their size and the type that the configuration names."""
    stored = stored_type(config) or "float32"
    if quantization(config) or stored not in _TORCH_SIZES:
        return Weights(on_disk, 0, on_disk)
    return Weights(on_disk, on_disk // _TORCH_SIZES[stored], 0)
