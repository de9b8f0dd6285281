"""The verb `topology down`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.topology.topology_options import TopologyStartOptions


@Verb
def stop_topology(options: TopologyStartOptions) -> None:
    """Stop what `topology up` started, and remove its containers. Models and compiled code stay."""
    from drydock.topology import up

    up.stop_topology(here(), Path(options.file), up.Options(options.format, options.output, ssh=options.make_ssh()))
