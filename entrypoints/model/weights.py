"""The weights of a model: what is on disk, and what it takes in memory. IO.

Only headers are read: of safetensors files, and of the index that lists them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import MODEL, EntrypointError
from entrypoints.core.folders import read_regular
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.model.config import Config
from entrypoints.model.files import make_read_error, read_json

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

_FLOAT_SIZES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
"""Bytes per number in safetensors files, for the types that vLLM converts to --dtype while loading."""

_TORCH_SIZES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
"""Bytes per number, by config.json's name of the type."""

LARGEST = 1 << 53
"""Bytes of weights, far above any: the largest integer that floating-point numbers hold exactly."""
_HEADER_AT_MOST = 100_000_000
"""Bytes of JSON that the safetensors format allows."""

_BROKEN = (ValueError, TypeError, KeyError, AttributeError)
"""What reading a header of the wrong shape raises."""


class Incomplete(EntrypointError):  # noqa: N818 -- the folder's state; a hub id may still be downloaded
    """Weights are missing from a folder: an error for a folder, a download to come for a hub id."""


class Weights(NamedTuple):
    """Weights on disk, split by what happens to them while loading."""

    on_disk: int
    """Bytes of the files."""
    elements: int
    """Floating-point numbers, which take --dtype's size in memory."""
    other: int
    """Bytes that stay as they are: quantised weights."""
    until_loaded: int = 0
    """Floating-point numbers that the device holds until all weights are loaded, and are quantised only then."""

    def peak(self, size: int) -> int:
        """Return the most bytes in memory while loading."""
        return max(self.loaded(size), (self.elements + self.until_loaded) * size)

    def loaded(self, size: int) -> int:
        """Return the bytes in memory when floating-point numbers take `size` bytes."""
        return self.elements * size + self.other


def read_weights(folder: str, config: Config) -> Weights:
    """Add up the weights that vLLM would load: safetensors, or else *.bin.

    Raises MODEL if there are none, a shard of the index is missing, or a file is shorter than its header says.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise make_read_error(folder, error) from error
    shards, binaries = list_weight_files(folder, names)
    if shards:
        parts = [_read_safetensors(os.path.join(folder, shard)) for shard in shards]
        return Weights(*map(sum, zip(*parts, strict=True)))
    return weights_by_size(sum(_read_file_size(os.path.join(folder, name)) for name in binaries), config)


def list_weight_files(folder: str, names: list[str]) -> tuple[list[str], list[str]]:
    """Return which of a folder's files vLLM would load: safetensors, and otherwise *.bin. Raises MODEL."""
    shards = _list_shards(folder, names)
    binaries = [name for name in names if name.endswith(".bin") and name != "training_args.bin"]
    if shards or binaries:
        return shards, binaries
    message, hint = (
        f"{folder}: no weights, expected *.safetensors or *.bin",
        "finish the download, or mount the weights",
    )
    gguf = next((name for name in names if name.endswith(".gguf")), "")
    if gguf:
        message, hint = f"{message}; {gguf} is GGUF", "convert it to safetensors"
    raise Incomplete(MODEL, message, hint)


def _read_file_size(path: str) -> int:
    """Return the size of a regular file. Raises MODEL."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise make_read_error(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise EntrypointError(MODEL, f"{path}: not a regular file", "download the file again")
    return status.st_size


def weights_by_size(on_disk: int, config: Config) -> Weights:
    """Return weights whose bytes are known but whose headers are not; config.json names their type."""
    size = _TORCH_SIZES.get(config.dtype or "float32")
    if config.quantization.method or not size:
        return Weights(on_disk, 0, on_disk)
    return Weights(on_disk, on_disk // size, 0)


def parse_total_size(index: Mapping[str, Any]) -> int:
    """Return the bytes of all weights that an index names; 0 if it does not."""
    metadata = index.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, bool) or not isinstance(total, (int, float)) or not 0 < total < LARGEST:
        return 0
    return int(total)


def parse_beginning(beginning: bytes) -> Weights | None:
    """Return what a safetensors file's first bytes tell; None if its header is invalid or longer."""
    length = int.from_bytes(beginning[:8], "little")
    if len(beginning) < 8 + length:
        return None
    try:
        header = parse_untrusted_json(beginning[8 : 8 + length].decode())
        return _parse_header(header)._replace(on_disk=_data_bytes(header))
    except _BROKEN:
        return None


def _list_shards(folder: str, names: list[str]) -> list[str]:
    """Return the safetensors files that vLLM loads: those of the index, or all if there is no index."""
    if INDEX not in names:
        return [name for name in names if name.endswith(".safetensors")]
    weight_map = read_json(os.path.join(folder, INDEX)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        message = f"{folder}/{INDEX}: weight_map: expected an object of tensor names and files"
        raise EntrypointError(MODEL, message, "download the file again")
    listed = sorted(set(weight_map.values()))
    missing = [name for name in listed if name not in names]
    if missing:
        message = f"{folder}: {len(missing)} of {len(listed)} files of {INDEX} are missing, such as {missing[0]}"
        raise Incomplete(MODEL, message, "finish the download")
    return listed


def _read_safetensors(path: str) -> Weights:
    """Read a safetensors file's header, and check that the file is as long as the header says. Raises MODEL."""
    try:
        length, on_disk = int.from_bytes(read_regular(path, 8), "little"), os.path.getsize(path)
        if length > min(on_disk, _HEADER_AT_MOST):
            raise ValueError(f"found a header of {length} bytes in a file of {on_disk} bytes")
        header = parse_untrusted_json(read_regular(path, 8 + length)[8:].decode())
        weights, end = _parse_header(header), 8 + length + _data_bytes(header)
    except OSError as error:
        raise make_read_error(path, error) from error
    except _BROKEN as error:
        message = f"{path}: not a safetensors file: {error}"
        raise EntrypointError(MODEL, message, "download the file again") from error
    if end > on_disk:
        message = f"{path}: truncated: the file has {on_disk} bytes, expected {end}"
        raise EntrypointError(MODEL, message, "download the file again")
    return weights._replace(on_disk=on_disk)


def _parse_header(header: Mapping[str, Any]) -> Weights:
    """Add up a header's tensors; `on_disk` is left 0."""
    elements = other_bytes = 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        if not 0 <= begin <= end < LARGEST:
            raise ValueError(f"{str(name)[:80]}: data_offsets {begin} to {end}")
        size = _FLOAT_SIZES.get(tensor["dtype"])
        if size:
            elements += (end - begin) // size
        else:
            other_bytes += end - begin
    return Weights(0, elements, other_bytes)


def _data_bytes(header: Mapping[str, Any]) -> int:
    """Return the bytes of all tensors: the end of the last one."""
    return max((int(tensor["data_offsets"][1]) for name, tensor in header.items() if name != "__metadata__"), default=0)
