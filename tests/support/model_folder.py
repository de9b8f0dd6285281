"""A small folder with the files of a model, for tests that do not serve it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.hosts.trees import write_tree

CARD = b"---\nlicense: apache-2.0\ntags:\n- x\n---\n# Tiny\n"
FILES: Mapping[str, bytes] = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "a.safetensors": bytes(1000),
    "b.safetensors": b"b" * 100_000,
    "README.md": CARD,
    "sub/vocab.txt": b"a",
}


def write(folder: Path, files: Mapping[str, bytes] = FILES) -> Path:
    return write_tree(folder, files)
