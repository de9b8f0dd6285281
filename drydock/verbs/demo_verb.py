"""The verb `demo`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.verb import Verb
from drydock.config.project_choice import DRYDOCK
from drydock.model.shared_options import VerboseOption


class DemoOptions(VerboseOption):
    """What the demo starts."""

    topology: Literal["", "1p1d", "2p1d", "tp3"] = ""
    """several servers: 1p1d or 2p1d (prefill and decode), tp3 (three hosts, one server)"""


@Verb
def show_demo(options: DemoOptions) -> None:
    """Build the CPU image, serve a small real model and ask it a question."""
    from drydock.prove import demo

    if options.topology:
        from drydock.prove import demo_topology

        demo_topology.run_topology_demo(DRYDOCK, options.topology)
    else:
        demo.run_demo(DRYDOCK)
