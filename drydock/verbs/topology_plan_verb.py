"""The verb `topology plan`."""

from __future__ import annotations

import sys
from pathlib import Path

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import log
from drydock.core.files import explain_unwritable, write_atomically
from drydock.core.user_language import translate_lines
from drydock.model.shared_options import JsonOption, PlannedOptions


class TopologyPlanOptions(PlannedOptions, JsonOption):
    """What is planned, and written."""

    file: str
    """a topology.yaml"""
    html: str = ""
    """also write a page with pictures to this file"""
    rehearse: bool = False
    """let the image's vLLM check the plan of each node here; exit with 14 if it refuses one"""


@Verb
def plan_topology(options: TopologyPlanOptions) -> None:
    """Print what each node of a topology runs, and why."""
    from drydock.topology import planned_file, rehearsal, topology_page, topology_plan_text

    plan = planned_file.plan_topology_file(here(), Path(options.file), options.model, options.target)
    if options.html:
        with explain_unwritable(Path(options.html), "--html"):
            write_atomically(Path(options.html), topology_page.render_topology_page(plan))
    text = translate_lines(topology_plan_text.format_topology_plan(plan))
    write_result(plan, text, json=options.json)
    if options.rehearse:
        outcomes = set()
        for answer in rehearsal.rehearse_topology(here(), plan, Path(options.file), options.model):
            log(rehearsal.format_rehearsed_rank(answer))
            outcomes.add(answer.outcome)
        sys.exit(rehearsal.REFUSED if "refused" in outcomes else 0)
