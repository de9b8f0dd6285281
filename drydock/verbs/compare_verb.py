"""The verb `compare`."""

from __future__ import annotations

from drydock.cli.task_helpers import after_dashes, here, terminal_columns, write_result
from drydock.cli.verb import Verb
from drydock.model.shared_options import JsonOption


class CompareOptions(JsonOption):
    """Two versions, and where the command is."""

    from_: str
    """the row that the command is written for: row, alias or accelerator; or a version such as 0.18"""
    to: str
    """the row, or the version of vLLM, that it shall move to"""
    command_file: str = ""
    """read the command from this text file, or from standard input with -, instead of after --"""
    model: str = ""
    """folder on this machine with the model's config.json, if the command names another place"""
    root: tuple[str, ...] = ()
    """recorded host on which both rows are planned; repeatable [default: the accelerator's]"""
    all: bool = False
    """also list what changed between the two versions, whether this command has it or not"""


@Verb
def compare_versions(options: CompareOptions) -> None:
    """Print what breaks for a vLLM command between two versions. The command follows --, and is never executed."""
    from drydock.compare import verdict_text
    from drydock.compare.comparison import compare_command
    from drydock.compare.host_plans import find_recorded_hosts
    from drydock.compare.pasted_command import read_command
    from drydock.compare.vllm_version import find_served_version

    command = read_command(after_dashes(), options.command_file)
    old = find_served_version(here(), "--from", options.from_)
    new = find_served_version(here(), "--to", options.to)
    hosts = find_recorded_hosts(here(), options.root, old, new)
    comparison = compare_command(here(), command, old, new, hosts, options.model)
    write_result(
        verdict_text.make_comparison_json(comparison, every=options.all),
        verdict_text.format_comparison(comparison, terminal_columns(), every=options.all),
        json=options.json,
    )
    verdict_text.raise_verdict(comparison)
