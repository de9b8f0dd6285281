"""The verb `bench`."""

from __future__ import annotations

from typing import Any

from drydock.cli.task_helpers import report_written
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.model.shared_options import JsonOption


class BenchOptions(JsonOption):
    """How a part is measured."""

    record: bool = False
    """write docs/benchmarks.json and the page generated from it"""
    rounds: int = 0
    """number of rounds [default: depends on the part]"""
    short: bool = False
    """measure some rows once, in five minutes, and print their ratios only"""


def make_bench_verb(part: str) -> Verb:
    """Return the verb that measures one part, or every part if no name is given."""

    def measure(options: BenchOptions) -> None:
        """Measure drydock and a plain Dockerfile alternately and print the comparison."""
        from bench import bench_page, run

        if options.short and (options.record or options.rounds):
            raise InputError("--short: excludes --record and --rounds", hint="leave --short out")
        parts: dict[str, Any] = {}
        try:
            run.run_benchmarks(part, options.rounds, parts, short=options.short)
        finally:
            if options.record:
                report_written(bench_page.record_parts(ROOT, parts))
            write_output(run.format_parts(parts, json=options.json, short=options.short))

    return Verb(measure)


measure_all_parts = make_bench_verb("")
