"""The verbs of ./inv, as tasks of invoke: drydock/cli/verb_table.py lists them, drydock/verbs/ has a file for each."""

from __future__ import annotations

from drydock.core.lacking_package import exit_without_package

try:
    from drydock.core.process import short_lived, spare_imported_objects

    short_lived()  # first: the collector would run for each 700 objects that the imports make
    from drydock.cli import cli
    from drydock.cli.verb import make_collection
    from drydock.cli.verb_table import COMMANDS

    if __name__ != "__main__":  # read by invoke, which takes every verb; a command of ours imports its own alone
        namespace = make_collection({name: verb for verbs in COMMANDS.values() for name, verb in verbs.items()})
except ImportError as error:  # a bare `invoke`, which is another Python than that of ./inv
    exit_without_package(error)

spare_imported_objects()
if __name__ == "__main__":
    cli.main()
