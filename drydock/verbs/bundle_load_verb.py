"""The verb `bundle load`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import ContextOption, JsonOption


class BundleLoadOptions(ContextOption, JsonOption):
    """Which bundle is loaded, and how it is trusted."""

    file: str
    """a bundle, as `bundle create` wrote it"""
    engine: bool = False
    """also load the images into the engine"""
    digest: str = ""
    """expected digest of the bundle, as `bundle create` printed it: sha256:…; this or --verify-key is required"""
    verify_key: str = ""
    """public key whose owner must have signed the bundle; this or --digest is required"""
    models: str = ""
    """folder to write the bundle's models to"""
    context: tuple[str, ...] = ()
    """NAME=FOLDER: files that only their vendor may distribute, found by hash; repeatable"""


@Verb
def load_bundle(options: BundleLoadOptions) -> None:
    """Load a bundle into the store, to run, publish and rebuild its images without network."""
    from drydock.bundle import bundle_tasks, load
    from drydock.inputs import overrides

    contexts, models = overrides.parse_contexts(options.context), Path(options.models) if options.models else None
    settings = load.LoadOptions(options.engine, options.digest, contexts, options.verify_key, models)
    write_output(bundle_tasks.load_and_report(here(), Path(options.file), settings, json=options.json))
