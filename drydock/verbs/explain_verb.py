"""The verb `explain`."""

from __future__ import annotations

from drydock.cli.verb import Verb
from drydock.verbs.entrypoint_verb import PlannedRowOptions, exec_image_verb


class ExplainOptions(PlannedRowOptions):
    """A row, and what it shall explain."""

    target: str = "auto"
    """row, alias or accelerator; auto: what fits this machine's devices and driver [default: auto]"""
    text: tuple[str, ...] = ()
    """a line of a log, an exit code, an id of a finding, or files; without --text, all words that follow"""
    root: str = ""
    """recorded host instead of this machine, by which auto chooses"""
    WORDS = ("text",)
    TAKES_ALL_WORDS = True


@Verb
def explain_symptom(options: ExplainOptions) -> None:
    """Explain a log, an error, an exit code or a finding: all words that follow, or what comes on standard input."""
    exec_image_verb(options, "explain", *options.text)
