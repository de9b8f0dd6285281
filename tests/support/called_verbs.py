"""Call a verb by its name, as the command line does after it has checked the words."""

from __future__ import annotations

from typing import Any

from drydock.cli.verb_table import COMMANDS


def call_verb(name: str, **options: Any) -> None:
    """Run what a verb does; its errors are raised."""
    verb = next(verbs[name] for verbs in COMMANDS.values() if name in [*verbs])
    verb.function(verb.record(**options))
