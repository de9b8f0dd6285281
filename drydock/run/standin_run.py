"""How `run --stand-ins` starts a variant's stand-in: also on a machine without the devices, on a recorded host. IO."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from drydock.build.standins import SERVED
from drydock.core.errors import HostError, InputError
from drydock.core.files import format_json, write_atomically
from drydock.core.paths import cache_home
from drydock.model.record import Setting
from drydock.model.running import Run
from drydock.model.variant import Variant
from drydock.run import user_options
from drydock.run.container import RunRequest, is_native, name_of
from drydock.run.machine import Machine

RECORDED = ("serve", "plan", "check", "facts")
"""Verbs that take a recorded host."""
SERVES = Setting(
    value="serve",
    because="vLLM's stub prints what it is started with, and then answers on its port",
    source="drydock/build/stub_vllm.py",
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
}
"""A model that fits everywhere."""


def stand_in(variant: Variant, request: RunRequest, machine: Machine) -> tuple[Variant, RunRequest]:
    """Return what starts the stub in place of vLLM. A recorded host stands for the machine's devices, if one is given.

    Without a model, a tiny one is made. Raises HostError without devices and without a recorded host,
    InputError for an image without vLLM.
    """
    if not variant.serves:
        raise InputError(f"--stand-ins: {variant.id} has no vLLM for which a stub could stand")
    base_run = variant.run if not request.host else Run()  # a recorded host's devices are not on this machine
    if not is_native(base_run, machine):
        raise HostError(
            f"{variant.id}: this machine has none of its devices",
            hint=f"--root HOST.json runs it on a recorded host: tests/hosts/{variant.accelerator}-*/host.json",
        )
    name = f"{variant.id}-stand-in"
    names = {"name": request.name or name_of(name), "cache": request.cache or f"drydock-{name}-cache"}
    stand_in_request = request.model_copy(update={**names, "model": request.model or str(_make_stand_in_model())})
    run = base_run.model_copy(update={"env": {**base_run.env, SERVED: SERVES}})
    return variant.model_copy(update={"run": run}), _on_recorded_host(
        stand_in_request
    ) if request.host else stand_in_request


def _on_recorded_host(request: RunRequest) -> RunRequest:
    """Return a request whose container reads the recorded host instead of its own."""
    source = user_options.expand_user(request.host).absolute()
    verb, words = user_options.split_verb(request.arguments)
    target = "/recorded-host" if source.is_dir() else "/recorded-host.json"
    root = ("--root", target) if verb in RECORDED else ()
    alone = ("--exec",) if verb == user_options.SERVE and "--exec" not in words else ()
    return request.model_copy(
        update={
            "arguments": (verb, *root, *alone, *words),
            "volumes": (f"{source}:{target}:ro", *request.volumes),
        }
    )


def _make_stand_in_model() -> Path:
    """Make a folder with a configuration and a few bytes of weights; return it."""
    folder = cache_home() / "models" / "stand-in"
    header = json.dumps({"w": {"dtype": "BF16", "shape": [512], "data_offsets": [0, 1024]}}).encode()
    write_atomically(folder / "config.json", format_json(CONFIG))
    write_atomically(folder / "model.safetensors", struct.pack("<Q", len(header)) + header + bytes(1024))
    return folder
