"""A small project whose image serves with the tests' own stub, and whose builds tests interrupt, compare and record."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from bench.small_project import VARIANT, SmallProject
from drydock.build import standins
from drydock.build.build_job import prepare_job
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.model.variant import Variant
from tests.support.local_registry import record


def stub_vllm() -> dict[str, str]:
    """Return a package vllm whose server is the tests' stand-in."""
    stub = (ROOT / "tests" / "support" / "stub_vllm.py").read_text()
    refusal = 'raise RuntimeError("Failed to infer device type")'  # of its start; a real vLLM imports without a device
    refused = f'import os\nif not os.environ.get("{standins.SERVED}"):\n    {refusal}\n'
    packages = ("vllm", "vllm/entrypoints", "vllm/entrypoints/openai")
    texts = dict.fromkeys((f"{name}/__init__.py" for name in packages), "")
    return {**texts, f"{packages[-1]}/__init__.py": refused, f"{packages[-1]}/api_server.py": stub}


class Small(SmallProject):
    """A small project of the tests."""

    def make_vllm(self, variant: Variant) -> dict[str, str]:
        return stub_vllm() if variant.accelerator == "cpu" else standins.stub_vllm(variant.module)

    def start_build(self, *, below: bool = False, **changes: str) -> subprocess.Popen[str]:
        """Start a build from nothing, or on a kept foundation, offline, that loads nothing into the engine."""
        words = (VARIANT, "linux/amd64", "", "below" if below else "", str(self.root))
        return self.start("drydock", *words, **changes)

    def build(self, *, below: bool = False, **changes: str) -> dict[str, Any]:
        """Build from nothing, or on a kept foundation, and return what came out."""
        stdout, stderr = (process := self.start_build(below=below, **changes)).communicate(timeout=300)
        assert process.returncode == 0, stderr[-3000:]
        result: dict[str, Any] = json.loads(stdout)
        return result

    def record(self, digest: str) -> None:
        """Record the digest of what was built, so that it can be published."""
        record(prepare_job(Project(self.root), VARIANT), digest)

    def leftovers(self) -> list[str]:
        """Return what a broken-off build left among the layouts, after a good one has tidied up."""
        return [path.name for folder in ("images", "foundations") for path in (self.cache / folder).rglob(".*")]
