"""Small projects, whose rows another project takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

SETTINGS = """\
schema: 1
name: vendor
additions:
  labels: {com.vendor.release: "2027.1"}
  files: {/etc/vendor/motd: files/motd}
  dockerfile: [{name: mark, because: shows where it is from, lines: [RUN touch /vendor]}]
"""
ROWS = """\
schema: 1
variants:
  vendor-next:
    inherits: drydock/cpu-vllm0.32
    stack: vendor-cpu
    aliases: [next]
    default: true
    serve: {--max-num-seqs: {value: 32, because: measured, source: vendor}}
    additions:
      dockerfile: [{name: row, because: of the row, lines: [RUN touch /row]}]
"""
STACK = """\
inherits: drydock/cpu-0.32
summary: the vendor's next release
requirements+: [structlog==25.1.0]
"""
VENDOR: Mapping[str, str] = {
    "drydock.yaml": SETTINGS,
    "matrix.yaml": ROWS,
    "templates/cpu/stacks/vendor-cpu.yaml": STACK,
    "files/motd": "from the vendor\n",
}
"""A project with one row, which adds a package."""
ACME_ROWS = """\
schema: 1
variants:
  acme-cpu:
    inherits: vendor/vendor-next
    stack: acme-cpu
    serve: {--max-num-seqs: {value: 64, because: ours, source: us}}
"""
ACME: Mapping[str, str] = {
    "drydock.yaml": "schema: 1\nname: acme\nfrom: [ADDRESS]\nadditions: {labels: {com.acme.team: inference}}\n",
    "matrix.yaml": ACME_ROWS,
    "templates/cpu/stacks/acme-cpu.yaml": "inherits: vendor/vendor-cpu\nrequirements+: [rich==14.0.0]\n",
}
"""A project that takes the vendor's by ADDRESS, and has a row over its row."""


def write(folder: Path, files: Mapping[str, str], address: str = "") -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("ADDRESS", address))
    return folder
