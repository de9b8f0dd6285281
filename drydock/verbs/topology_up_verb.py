"""The verb `topology up`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.project import Project
from drydock.core.user_language import translate_lines
from drydock.model.shared_options import JsonOption, TopologyStartOptions

if TYPE_CHECKING:
    from entrypoints.serve.topology_answer import ShownAnswers


class TopologyUpOptions(TopologyStartOptions, JsonOption):
    """What is started."""

    root: str = ""
    """folder with recorded hosts, for ranks that read ranktables [default: those of a topology.yaml]"""
    wait: int = 0
    """with compose: seconds that the start may take [default: an hour, or more by accelerator]"""


@Verb
def start_topology(options: TopologyUpOptions) -> None:
    """Render and start a topology by its engine's command, then verify it."""
    from drydock.topology import verify

    if options.dry_run:
        paths = list_files_to_write(here(), options)
        text = translate_lines("".join(f"would write {path}\n" for path in paths))
        write_result({"would_write": [*map(str, paths)]}, text, json=options.json)
        return
    write_output(verify.format_shown_answers(start_and_verify(here(), options), json=options.json))


def list_files_to_write(project: Project, options: TopologyUpOptions) -> tuple[Path, ...]:
    """Render a topology as `start_and_verify` does; return the files that would be written. Raises InputError."""
    from drydock.topology import up
    from drydock.topology.planned_file import plan_topology_file
    from drydock.topology.render import find_host_commands, write_plan

    file = Path(options.file)
    plan = plan_topology_file(project, file, options.model, options.target)
    up.check_format(plan, options.format)
    output = up.choose_output_folder(project, file, options.output)
    hosts = find_host_commands(file, plan, options.root)
    return write_plan(project, plan, options.format, output, hosts, dry_run=True)


def start_and_verify(project: Project, options: TopologyUpOptions) -> ShownAnswers:
    """Render a topology, start it by its engine's command, and ask for the known answer. Raises DrydockError."""
    from drydock.run.access import API_KEY
    from drydock.topology import up, verify
    from drydock.topology.planned_file import plan_topology_file
    from drydock.topology.playbook.playbook_run import run_playbook
    from drydock.topology.render import find_host_commands

    file = Path(options.file)
    plan = plan_topology_file(project, file, options.model, options.target)
    up.check_format(plan, options.format)
    output = up.choose_output_folder(project, file, options.output)
    hosts = find_host_commands(file, plan, options.root)
    secrets = up.write_files_to_start(project, plan, options.format, output, hosts)
    if options.format == up.COMPOSE:
        return up.start_by_compose(plan, file, output, options.wait or up.compute_start_seconds(project, plan))
    run_playbook(output, ("check", "ranktable", "run"), ssh=options, variables={"topology_secrets": secrets})
    return verify.prove_plan(plan, secrets.get(API_KEY, ""))
