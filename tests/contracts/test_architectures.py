"""Every architecture that drydock names is one of vLLM's: a misspelt one would be a rule that no model ever meets."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

from drydock.core.paths import ROOT

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
