"""Stands for the compiled extensions of vLLM 0.33 for CUDA 13.0 on a machine without CUDA, for the oracle alone.

Every operator exists with the schema that the wheel's own extension has, and computes nothing; `operators.json` on
PYTHONPATH has the schemas (tests/evidence/oracle_cuda.py). What vLLM asks the extension about a compute capability is
answered as its source does: csrc/quantization/w8a8/cutlass/scaled_mm_entry.cu and csrc/quantization/fp4/ of 0.33.0,
compiled for the architectures of its wheel.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

CORE = "vllm._C_stable_libtorch"
"""The extension with whose import all operators are defined."""
EXTENSIONS = (
    *(CORE, "vllm._moe_C_stable_libtorch", "vllm._qutlass_C", "vllm._flashmla_C", "vllm._flashmla_extension_C"),
    *("vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C"),
)
ANSWERS: Mapping[str, Callable[[int], bool]] = {
    "cutlass_scaled_mm_supports_fp8": lambda capability: capability >= 89,
    "cutlass_scaled_mm_supports_block_fp8": lambda capability: capability >= 90,
    "cutlass_scaled_mm_supports_fp4": lambda capability: 100 <= capability < 130,
    "cutlass_group_gemm_supported": lambda capability: 90 <= capability < 120,
}
SPACES: Mapping[str, tuple[str, ...]] = {
    "_C": ("_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils"),
    "_moe_C": ("_moe_C",),
}
"""Extension → the namespaces of its operators."""
_libraries: list[Any] = []
"""Kept, because a library that is collected takes its operators with it."""


class Extensions(MetaPathFinder, Loader):
    """Finds the extensions, as empty modules."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in EXTENSIONS else None

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == CORE:
            define_operators()


def define_operators() -> None:
    import torch  # noqa: PLC0415 - this file is imported before everything else

    folder = next(folder for folder in sys.path if folder.endswith("/operators"))
    schemas = json.loads(Path(folder, "operators.json").read_text())
    for extension, spaces in SPACES.items():
        for space in spaces:
            library = torch.library.Library(space, "FRAGMENT")
            _libraries.append(library)
            for schema in schemas[extension]:
                library.define(schema)
            for name, answer in ANSWERS.items() if space == "_C" else ():
                library.impl(name, answer, "CompositeExplicitAutograd")


sys.meta_path.insert(0, Extensions())
