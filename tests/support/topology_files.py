"""Topologies of the tests, and answers of the entrypoint that they are planned with."""

from __future__ import annotations

from pathlib import Path

TRIO = """\
model: /models/m
target: cpu
nodes:
  - {name: p0, address: 10.0.0.1, host: host.json}
  - {name: p1, address: 10.0.0.2, host: host.json}
  - {name: d0, address: 10.0.0.3, host: host.json}
groups:
  - name: prefill
    role: prefill
    replicas: 2
    among: [p0, p1]
  - name: decode
    role: decode
router: {node: p0}
goals:
  input: [16, 512]
"""
"""Two prefill servers and a decode server on processors."""


def write(folder: Path, text: str) -> Path:
    """Write a topology and the recorded host that its nodes have; return its path."""
    (folder / "host.json").write_text('{"files": {}}\n')
    path = folder / "topology.yaml"
    path.write_text(text)
    return path
