"""The verb `topology up`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import JsonOption
from drydock.topology.topology_options import TopologyStartOptions


class TopologyUpOptions(TopologyStartOptions, JsonOption):
    """What is started."""

    root: str = ""
    """folder with recorded hosts, for ranks that read ranktables [default: those of a topology.yaml]"""
    wait: int = 0
    """with compose: seconds that the start may take [default: an hour, or more by accelerator]"""


@Verb
def start_topology(options: TopologyUpOptions) -> None:
    """Render and start a topology by its engine's command, then verify it."""
    from drydock.topology import up, verify

    what = (options.format, options.output, options.model, options.target, options.root, options.wait)
    write_output(
        verify.format_shown_answers(
            up.start_topology(here(), Path(options.file), up.Options(*what, options.make_ssh())), json=options.json
        )
    )
