"""The verb `engine`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.model.shared_options import AlwaysJsonOption, DryRunOption


class EngineOptions(DryRunOption, AlwaysJsonOption):
    """What happens to the engine."""

    stop: bool = False
    """stop the engine that drydock started"""


@Verb
def start_engine(options: EngineOptions) -> None:
    """Check that a suitable Docker engine is running. On Debian as root, install and start one if needed."""
    from drydock.engine import daemon
    from drydock.model.record import dump_record

    if options.dry_run:
        write_output(format_json(daemon.describe_steps(stop=options.stop)))
        return
    write_output(
        format_json({"stopped": daemon.stop_engine()} if options.stop else dump_record(daemon.ensure_engine()))
    )
