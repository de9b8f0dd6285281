"""The verb `bench plot`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import report_written
from drydock.cli.verb import Verb
from drydock.core.files import write_atomically
from drydock.core.verb_options import VerbOptions


class PlotOptions(VerbOptions):
    """What is drawn."""

    folder: str
    """JSON files that `bench --output` of an image wrote"""
    output: str = "bench.svg"
    """the SVG file"""


@Verb
def plot_results(options: PlotOptions) -> None:
    """Draw the results of vLLM's benchmarks, one plot for each figure."""
    from bench import results

    report_written(
        [Path(options.output)]
        if write_atomically(Path(options.output), results.plot_results(Path(options.folder)))
        else []
    )
