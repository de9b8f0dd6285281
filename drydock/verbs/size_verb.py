"""The verb `size`."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.task_helpers import after_dashes, here, terminal_columns
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.files import explain_unwritable, format_json, write_atomically
from drydock.core.user_language import UNWRAPPED, is_translated, wrap_notes
from drydock.model.shared_options import JsonOption


class SizeOptions(JsonOption):
    """A model, and how it shall be served."""

    model: str
    """hub id of the model, oci://…@sha256:…, or a folder with its config.json"""
    root: str = ""
    """folder with recorded hosts (facts --record) [default: those that come with drydock]"""
    max_model_len: int = 0
    """tokens of the longest sequence, prompt and answer [default: the model's]"""
    concurrency: int = 0
    """most sequences at a time of one server: plan's --concurrency, a cap"""
    requests: int = 0
    """requests at a time that are needed: how many servers answer them, first the machines of which one does"""
    html: str = ""
    """also write a page with the table to this file"""

    def list_flags(self) -> tuple[str, ...]:
        """Return the options that `plan` has too, as its words."""
        numbers = {"--max-model-len": self.max_model_len, "--concurrency": self.concurrency}
        return tuple(word for flag, number in numbers.items() if number for word in (flag, str(number)))


@Verb
def size_model(options: SizeOptions) -> None:
    """Print which machines serve a model: how many, with which split, length and requests. Flags of plan follow --."""
    from drydock.topology import topology_page
    from drydock.topology.size import format_capacities, list_recorded_machines, size_machines

    words = (*options.list_flags(), *after_dashes())
    sizes = size_machines(here(), options.model, list_recorded_machines(here(), options.root), words, options.requests)
    if options.html:
        with explain_unwritable(Path(options.html), "--html"):
            write_atomically(Path(options.html), topology_page.render_sizes_page(options.model, sizes))
    if options.json:
        write_output(format_json([size._asdict() for size in sizes]))
    else:
        # A text is translated before it is wrapped.
        columns = UNWRAPPED if is_translated() else terminal_columns()
        write_output(wrap_notes(format_capacities(options.model, sizes, columns), terminal_columns()))
