"""Names that a misspelling would make useless, unseen: architectures of rules, and distributions of layers."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock import lockfile

NAME = re.compile(r"(?!For)[A-Z]\w+(ForCausalLM|ForConditionalGeneration|ChatModel)")
FALLBACKS = {"TransformersForCausalLM"}
"""What vLLM takes for models without a class of their own, and registers by another way."""


def registered() -> set[str]:
    """Return the architectures of every vLLM whose lists drydock has, those among them that a later one removed too."""
    names: set[str] = set()
    for path in (ROOT / "templates" / "vllm").glob("vllm-*.json"):
        lists = json.loads(path.read_text(encoding="utf-8"))["lists"]
        names |= {*lists["architectures"], *lists.get("removed_architectures", ())}
    return names


def named(path: Path) -> set[str]:
    """Return the architectures that a module writes down."""
    constants = (
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    )
    return {node.value for node in constants if isinstance(node.value, str) and NAME.fullmatch(node.value)}


def test_the_architectures_that_drydock_names_are_vllms() -> None:
    known = registered() | FALLBACKS
    names_by_file = {path: named(path) for path in sorted((ROOT / "entrypoints").rglob("*.py"))}

    assert len(set().union(*names_by_file.values())) > 50
    wrong = {
        str(path.relative_to(ROOT)): sorted(names - known) for path, names in names_by_file.items() if names - known
    }
    assert not wrong


def test_each_name_in_a_layer_is_a_locked_distribution() -> None:
    named, locked = set(), set()
    for variant in read_matrix(DRYDOCK):
        platforms = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id)).platforms.values()
        names = {wheel.name for pins in platforms for wheels in pins.layers.values() for wheel in wheels}
        locked |= {(variant.accelerator, name) for name in names}
        if names:
            named |= {(variant.accelerator, name) for layer in variant.layers for name in layer.distributions}
    assert named - locked == set()
