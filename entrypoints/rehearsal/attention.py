"""Asks the platforms of a vLLM about attention backends: run in a container by drydock/lock/ask_rules.py. IO.

A platform chooses the backend of a layer, or checks the one that the user names, with `validate_configuration` of the
backend's class. Both are Python. The kernels that they import have stand-ins here: nothing is computed.
Standard output gets a line of JSON for each device: its platform, its name, and what is refused there.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args
from unittest.mock import MagicMock

ASKED = (
    ("cuda", ("9.0", "7.0", "7.5", "8.0", "8.6", "8.7", "8.9", "10.0", "10.3", "11.0", "12.0", "12.1")),
    *(("rocm", (architecture,)) for architecture in ("gfx942", "gfx950", "gfx1100", "gfx1201")),
    *(("xpu", ("",)), ("cpu", ("",))),
)
"""Platform, and compute capabilities or architectures that one process can ask about. ROCm's is read by an import."""
LAYERS: Mapping[str, Mapping[str, Any]] = {
    **{f"plain {size}": {"head_size": size} for size in (64, 128, 192, 256)},
    "sinks 64": {"head_size": 64, "has_sink": True},
    "latent 576": {"head_size": 576, "use_mla": True},
    "sparse 576": {"head_size": 576, "use_mla": True, "use_sparse": True},
}
"""Kind of a model's layers and size of their heads → what vLLM is told of them, as far as it is not the default."""
BLOCK_SIZES = tuple(1 << power for power in range(11))
TYPES = ("float16", "bfloat16", "float32")
BY_LAYER = ("turboquant", "ultraquant", "octave")
"""Beginnings of types of the cache with which some layers keep the type of the model."""
PACKED = "--kv-cache-dtype fp8_ds_mla"
"""What vLLM makes of an FP8 cache of sparse layers, on CUDA. Source: model_executor/models/config.py."""
KERNELS = {
    "": ("vllm._C", "vllm._moe_C", "gguf"),
    "cuda": ("vllm._flashmla", "vllm._qutlass_C", "vllm.vllm_flash_attn", "vllm.third_party", "flashinfer"),
    "rocm": ("vllm._rocm_C", "amdsmi", "aiter"),
    "xpu": ("vllm._xpu_C", "vllm_xpu_kernels"),
}
"""Platform → beginnings of the modules that only its images have; those of the empty name are on each."""
NOT_ASKED = re.compile(r"install|Install|FA4|FlashInfer|ModuleNotFound")
"""Words of vLLM about packages that only some images have, or of which a stand-in decides."""
BLACKWELL, BY_LIBRARY = 10, ("FLASH_ATTN", "FLASHINFER")
"""From this compute capability on, libraries that have stand-ins here decide what these backends take."""
BY_CLASS = re.compile(r"MLA|sparse|compute capability")
"""Words about what such a backend never takes, whatever its library can do."""
REFUSALS = (ValueError, NotImplementedError, RuntimeError)
"""What vLLM raises for a layer that no kernel takes."""


class KernelFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for each module of kernels that is not here."""

    def __init__(self, platform: str) -> None:
        self._beginnings = (*KERNELS[""], *KERNELS.get(platform, ()))

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Return the place of a module; None for one without kernels."""
        is_kernel = any(name == start or name.startswith((f"{start}.", f"{start}_")) for start in self._beginnings)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_kernel else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Return the stand-in."""
        return Kernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


class Kernels(types.ModuleType):
    """A module whose functions may be named, and say that their kernel is there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__, self.__file__ = [], "kernels.py"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return KernelClass(name, (), {}) if name[0].isupper() else MagicMock(name=name)


class KernelClass(type):
    """The class of classes of kernels, each of which has any method."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


def open_platform(kind: str, device: str) -> Any:
    """Make a device's platform the current one."""
    import torch
    from vllm import platforms

    sys.meta_path.append(KernelFinder(kind))
    empty = torch.empty
    torch.empty = lambda *sizes, **options: empty(*sizes, **{**options, "device": None})  # a workspace of a class
    torch._ops._OpNamespace.__getattr__ = _find_operator(torch._ops._OpNamespace.__getattr__)  # noqa: SLF001
    _name_more_types()
    torch.cuda.get_device_properties = lambda *_: MagicMock(multi_processor_count=132)
    if kind == "cpu":
        return platforms.current_platform
    from vllm.platforms.interface import DeviceCapability

    methods = {"get_device_name": _make_constant_method(device), "device_count": _make_constant_method(8)}
    if kind == "rocm":
        names = {"target_graphics_version": device, "market_name": device}
        sys.modules["amdsmi"] = Kernels("amdsmi")
        vars(sys.modules["amdsmi"]).update(
            amdsmi_get_processor_handles=lambda: [0], amdsmi_get_gpu_asic_info=lambda _: names
        )
        from vllm.platforms.rocm import RocmPlatform as Parent
    elif kind == "xpu":
        from vllm.platforms.xpu import XPUPlatform as Parent

        methods["get_device_capability"] = _make_constant_method(None)
    else:
        from vllm.platforms.cuda import CudaPlatformBase as Parent

        methods["get_device_capability"] = _make_constant_method(DeviceCapability(*map(int, device.split("."))))
    if type(platforms.current_platform).__name__ != "AskedPlatform":
        platforms.current_platform = type("AskedPlatform", (Parent,), methods)()
    for name, method in methods.items():
        setattr(type(platforms.current_platform), name, method)
    return platforms.current_platform


def _name_more_types() -> None:
    """Let vLLM's stand-in for Triton, which is not in the image, name each type of a kernel."""
    from vllm.triton_utils import tl

    type(tl).__getattr__ = lambda _, name: MagicMock(name=name)


def _make_constant_method(answer: Any) -> Any:
    return classmethod(lambda _, *__, **___: answer)


def _find_operator(find: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Return a function that finds an operator of PyTorch, or a stand-in for one of a library that is not here."""

    def find_operator(namespace: Any, name: str) -> Any:
        try:
            return find(namespace, name)
        except AttributeError:
            if "supports" not in name:  # an operator that is there is registered
                raise
            return MagicMock(name=name)

    return find_operator


def list_questions(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each question about a kind of layer, and what vLLM is told; first that without options."""
    import torch
    from vllm.config.cache import CacheDType

    layer = {"dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": None, **LAYERS[kind]}
    yield "", layer
    for name in TYPES:
        yield f"--dtype {name}", {**layer, "dtype": getattr(torch, name)}
    for name in (name for name in get_args(CacheDType) if name != "auto" and not name.startswith(BY_LAYER)):
        yield f"--kv-cache-dtype {name}", {**layer, "kv_cache_dtype": name}
    for size in BLOCK_SIZES:
        yield f"--block-size {size}", {**layer, "block_size": size}


def ask_platform(platform: Any, kind: str) -> dict[str, dict[str, Any]]:
    """Return kind of layer → backend → vLLM's words for why it refuses it, or else the options with which it does.

    The empty name of a backend lets vLLM choose. What cannot be asked here is left out, also a backend of a user's own.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    backends: dict[str, Any] = {"": None}
    if kind != "cpu":
        backends |= {member.name: member for member in AttentionBackendEnum if member.value is not None}
    answers: dict[str, dict[str, Any]] = {layer: {} for layer in LAYERS}
    for layer in LAYERS:
        for name, member in backends.items():
            questions = list_questions(layer)
            words = {question: _ask_backend(platform, kind, member, fields) for question, fields in questions}
            for fp8 in ("fp8", "fp8_e4m3") if "use_sparse" in LAYERS[layer] else ():
                words[f"--kv-cache-dtype {fp8}"] = words[f"--kv-cache-dtype {fp8}"] and words.get(PACKED)
            if words[""] is not None:
                answers[layer][name] = words[""] or [question for question in words if words[question]]
    return answers


def leave_out_libraries(kind: str, device: str, answers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers without those that a library of kernels would give, which has a stand-in here."""

    def is_known(name: str, answer: Any) -> bool:
        if kind == "rocm" and not name:  # its choice depends on VLLM_ROCM_USE_AITER
            return False
        if isinstance(answer, str) and NOT_ASKED.search(answer):
            return False
        is_of_library = (
            kind == "cuda" and int(device.partition(".")[0]) >= BLACKWELL and any(x in name for x in BY_LIBRARY)
        )
        return not is_of_library or (isinstance(answer, str) and BY_CLASS.search(answer) is not None)

    return {
        layer: {name: answer for name, answer in said.items() if is_known(name, answer)}
        for layer, said in answers.items()
    }


def ask_with_config(platform: Any, kind: str) -> dict[str, dict[str, Any]]:
    """Ask a platform while vLLM's default configuration is the current one, which some backends look at."""
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        return ask_platform(platform, kind)


def _ask_backend(platform: Any, kind: str, backend: Any, fields: Mapping[str, Any]) -> str | None:
    """Return why a platform refuses a backend for a layer; empty if it takes it, None if it cannot be asked here."""
    from vllm.v1.attention.selector import AttentionSelectorConfig

    if kind == "cpu":
        return _ask_cpu(fields)
    try:
        platform.get_attn_backend_cls(backend, AttentionSelectorConfig(**fields))
    except REFUSALS as error:
        _, heading, listed = str(error).rpartition("Reason: [")
        is_list = heading and listed.endswith("]")
        reasons = listed[:-1].replace("'", "").split(", ") if is_list else [str(error).strip() or "refused"]
        asked_reasons = [reason for reason in reasons if not NOT_ASKED.search(reason)]
        return None if "ImportError" in str(error) or not asked_reasons else ", ".join(asked_reasons)
    except Exception:  # noqa: BLE001 - what is not a refusal says nothing about the layer
        return None
    return ""


def _ask_cpu(fields: Mapping[str, Any]) -> str:
    """Return why the kernels of CPUs do not take a block; they ignore the rest, and choose the size for latent ones.

    Source: v1/worker/utils.py, select_common_block_size.
    """
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    is_taken = fields.get("use_mla") or CPUAttentionBackend.supports_block_size(fields["block_size"])
    return "" if is_taken else "block_size not supported"


def main() -> None:
    """Print what each device's platform says. A platform is chosen once in a process, so each has one of its own."""
    import torch
    import transformers
    import vllm

    assert torch  # noqa: S101 - both are imported once, for all processes
    assert transformers  # noqa: S101 - as above
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM and its libraries write to standard output

    def write(kind: str, device: str, said: Mapping[str, Any]) -> None:
        answers.write(json.dumps({"vllm": vllm.__version__, "platform": kind, "device": device, **said}) + "\n")
        answers.flush()

    for kind, devices in ASKED:
        with _in_process() as is_child:
            if is_child:
                _ask_devices(kind, devices, write)


@contextmanager
def _in_process() -> Iterator[bool]:
    """Run the body in a process of its own, where it gets True; wait for it."""
    is_child = os.fork() == 0
    try:
        yield is_child
    finally:
        if is_child:
            os._exit(0)
        os.wait()


def _ask_devices(kind: str, devices: Sequence[str], write: Callable[[str, str, Mapping[str, Any]], None]) -> None:
    """Write what the platform of each device says. Backends are imported once, for the first."""
    try:
        _import_backends(open_platform(kind, devices[0]), kind)
    except Exception as error:  # noqa: BLE001 - a library that is not here may raise anything
        write(kind, devices[0], {"because": f"{type(error).__name__}: {error}"})
        return
    for device in devices:
        with _in_process() as is_child:
            if is_child:
                write(kind, device, _ask_device(kind, device))


def _ask_device(kind: str, device: str) -> dict[str, Any]:
    try:
        platform = open_platform(kind, device)
        answers = ask_platform(platform, kind) if kind == "cpu" else ask_with_config(platform, kind)
        return {"answers": leave_out_libraries(kind, device, answers)}
    except Exception as error:  # noqa: BLE001 - as above
        return {"because": f"{type(error).__name__}: {error}"}


def _import_backends(platform: Any, kind: str) -> None:
    """Let vLLM import its backends."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    _, fields = next(list_questions("plain 128"))
    for backend in AttentionBackendEnum:
        _ask_backend(platform, kind, backend, fields)


if __name__ == "__main__":
    main()
