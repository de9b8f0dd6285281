"""What is known of the model of a command: its architecture and quantisation. IO: a folder, a hub's cache, the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping

from drydock.run.recorded_host import CONFIGURATIONS
from entrypoints.core.errors import EntrypointError
from entrypoints.model.hub import parse_hub
from entrypoints.model.read import Instead, ModelFacts, read_model

WEIGHTS_AS_THEY_ARE = "auto"
NO_MODEL = ModelFacts("", False, "", "", None, None, "the command names no model")


def read_served_model(name: str, folder: str, env: Mapping[str, str] = os.environ) -> ModelFacts:
    """Return what is known of a model; `folder` has its config.json if this machine has it elsewhere.

    A model that cannot be read is unknown, with the reason.
    """
    if not name or "$" in name:
        return NO_MODEL._replace(unknown=NO_MODEL.unknown if not name else f"{name} is a shell variable")
    instead = Instead(file=folder, known=str(CONFIGURATIONS), no_weights=True)
    try:
        facts = read_model(name, WEIGHTS_AS_THEY_ARE, parse_hub(env), instead=instead)
    except EntrypointError as error:
        return NO_MODEL._replace(name=name, unknown=error.message)
    return facts
