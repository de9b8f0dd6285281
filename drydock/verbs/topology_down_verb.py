"""The verb `topology down`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import log
from drydock.model.shared_options import TopologyStartOptions


@Verb
def stop_topology(options: TopologyStartOptions) -> None:
    """Stop what `topology up` started, and remove its containers. Models and compiled code stay."""
    from drydock.topology import up
    from drydock.topology.playbook.playbook_run import run_playbook

    file = Path(options.file)
    output = up.choose_output_folder(here(), file, options.output)
    started_format = up.find_started_format(output, options.format)
    if options.dry_run:
        log(f"would stop what {output} started by {started_format}, and remove its containers")
    elif started_format == up.ANSIBLE:
        run_playbook(output, ("stop",), ssh=options)
    else:
        up.stop_by_compose(file, output)
