"""Records the commit in a wheel and in a source distribution. hatchling runs it; pyproject.toml says what goes in."""

from __future__ import annotations

import runpy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLACES = {"sdist": "COMMIT", "wheel": "drydock/data/COMMIT"}


class Commit(BuildHookInterface):
    """Adds one file; of an editable install, which has a checkout, it adds none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the commit to a temporary file and add that."""
        if version == "editable":
            return
        read = runpy.run_path(str(Path(self.root, "drydock", "core", "commit.py")))["read_commit"]
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name, "COMMIT")
        path.write_text(f"{read(Path(self.root))}\n", encoding="ascii")
        build_data["force_include"][str(path)] = PLACES[self.target_name]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove the temporary file."""
        if version != "editable":
            self.folder.cleanup()
