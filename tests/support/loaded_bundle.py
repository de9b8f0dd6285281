"""Create and load a bundle, as the verbs do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from drydock.bundle.create import Created
from drydock.bundle.load import Loaded
from drydock.core.project import Project
from drydock.verbs.bundle_create_verb import BundleCreateOptions, write_bundle
from drydock.verbs.bundle_load_verb import BundleLoadOptions, load_trusted


def create_bundle(
    project: Project, targets: Sequence[str], output: Path, *, key: str = "", models: Sequence[Path] = ()
) -> Created:
    """Write a bundle of rows and of models."""
    options = BundleCreateOptions(target=targets, output=str(output), sign_key=key, model=[*map(str, models)])
    return write_bundle(project, options)


def load_bundle(project: Project, file: Path, options: Mapping[str, Any] = MappingProxyType({})) -> Loaded:
    """Load a bundle with options of the verb; `models` may be a path."""
    texts = {**options, "models": str(options.get("models", ""))}
    return load_trusted(project, BundleLoadOptions(file=str(file), **texts))
