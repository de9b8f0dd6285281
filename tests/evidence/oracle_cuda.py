"""Asks the Python code of vLLM 0.33 for CUDA 13.0 about models, on a machine without CUDA, for given capabilities.

    python -m tests.evidence.oracle_cuda IMAGE [CAPABILITY …]

IMAGE is the CPU image, whose other packages are used. The locked wheel is unpacked without its extensions;
tests/evidence/without_cuda stands for these. Kernels are chosen and refused by their conditions; none computes.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.engine.run_container import run_to_end
from drydock.inputs.store import default_store
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.lock.vllm_lists import locked_vllm
from tests.evidence.oracle import PYTHON, WITHOUT_TOWERS, Split, _question
from tests.support.planned import configurations

ROW = "cuda13.0-vllm0.33"
CAPABILITIES = ("7.5", "8.0", "9.0", "10.0", "12.0")
MODELS = (
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B-FP8",
    "openai/gpt-oss-20b",
    "deepseek-ai/DeepSeek-V3.1",
    "nvidia/Qwen3.5-122B-A10B-NVFP4",
    "deepseek-ai/DeepSeek-V3.2",
)
WITHOUT_CUDA = Path(__file__).with_name("without_cuda")
EXTENSIONS = {"_C": "vllm/_C_stable_libtorch.abi3.so", "_moe_C": "vllm/_moe_C_stable_libtorch.abi3.so"}
SCHEMA = re.compile(
    rb"(?<![\w.:])[a-z_]\w{3,60}(?:\.\w+)?\((?:[A-Za-z(][^\x00-\x09\x0b-\x1f]{0,2500}?)?\)"
    rb"\s*->\s*(?:\([^)\x00]*\)|[A-Za-z]+(?:\[\])?)"
)
"""The schema of an operator, as it lies in an extension: `name.overload(Tensor! a, int b) -> ()`."""


def unpack(folder: Path) -> None:
    """Unpack the Python code of the locked wheel into vllm/, and the schemas of its operators into operators/."""
    lock = read_lock(path_of_lock(DRYDOCK, find_variant(read_matrix(DRYDOCK), ROW).id))
    wheel = locked_vllm(find_variant(read_matrix(DRYDOCK), ROW), lock)["linux/amd64"]
    with zipfile.ZipFile(default_store().path(wheel.sha256)) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if not name.endswith(".so")])
        schemas = {name: sorted(_schemas(archive.read(path))) for name, path in EXTENSIONS.items()}
    (folder / "operators").mkdir()
    (folder / "operators" / "operators.json").write_text(json.dumps(schemas))


def _schemas(extension: bytes) -> Iterator[str]:
    yield from {match.group().decode() for match in SCHEMA.finditer(extension)}


def ask(image: str, capability: str, folder: Path) -> Mapping[str, Any]:
    """Return model → what vLLM answers for a capability such as 9.0. `folder` has what `unpack` wrote."""
    recorded = {"capability": [*map(int, capability.split("."))], "name": "GPU", "memory": 80 << 30, "devices": 8}
    cases = [(name, Split(1)) for name in MODELS]
    for name in MODELS:
        path = folder / "asked" / name.replace("/", "--") / "config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(configurations()[name]["config"]))
    lines = ({"kind": "cuda", "recorded": recorded}, *map(_question, cases))
    (folder / "asked" / "questions").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    mounts = {folder / "asked": "/asked", folder: "/new", WITHOUT_CUDA: "/stand-in", WITHOUT_TOWERS: "/towers",
              ROOT / "entrypoints": "/here/entrypoints"}  # fmt: skip
    output = run_to_end(
        image,
        ("sh", "-c", f"exec {PYTHON} /here/entrypoints/rehearsal < /asked/questions"),
        volumes={str(source): {"bind": target, "mode": "ro"} for source, target in mounts.items()},
        environment={
            "PYTHONPATH": "/stand-in:/new:/new/operators:/towers",
            "HF_HUB_OFFLINE": "1",
            "HOME": "/tmp",
            "NUMBA_CACHE_DIR": "/tmp",
            "VLLM_LOGGING_LEVEL": "CRITICAL",
        },
        tmpfs={"/tmp": "exec"},
        network_mode="none",
        mem_limit="6g",
    )
    answers = [answer for answer in map(json.loads, output.splitlines()) if "outcome" in answer]
    return dict(zip(MODELS, answers, strict=True))


def main() -> None:
    """Ask for each capability, and print a line for each answer."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        unpack(folder)
        for capability in sys.argv[2:] or CAPABILITIES:
            for model, answer in ask(sys.argv[1], capability, folder).items():
                words = (answer["words"] or [answer["because"]])[0][:160]
                sys.stdout.write(f"{capability} {model}: {answer['outcome']}: {words}\n")


if __name__ == "__main__":
    main()
