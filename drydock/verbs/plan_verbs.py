"""Verbs that answer before a model is served, without the image: plan, check, explain, size, compare, entrypoint."""

from __future__ import annotations

from pathlib import Path

from drydock.cli.options import JsonOption, RowOrAutoOption, Verb
from drydock.cli.task_helpers import after_dashes, here, terminal_columns
from drydock.core.console import write_output
from drydock.core.files import explain_unwritable, format_json, write_atomically


class PlannedRowOptions(RowOrAutoOption):
    """A row whose verb is run here, on this machine or a recorded host."""

    root: str = ""
    """recorded host instead of this machine; also after --"""
    env: tuple[str, ...] = ()
    """a variable that the container would have: NAME=VALUE, or NAME to pass it from your shell; repeatable"""


class ModelOfRowOptions(PlannedRowOptions, JsonOption):
    """A row, and the model that it would serve."""

    model: str = ""
    """hub id of the model, oci://…@sha256:…, or a folder with its config.json"""


@Verb
def plan_row(options: ModelOfRowOptions) -> None:
    """Print what serve would run with a row: parallelism, length, flags, variables, and why. Flags follow --."""
    _run_image_verb(options, "plan", *_list_words(options))


@Verb
def check_row(options: ModelOfRowOptions) -> None:
    """Check this machine's tuning, or a recorded host's, for a row. Flags of the image's check follow --."""
    _run_image_verb(options, "check", *_list_words(options))


class ExplainOptions(PlannedRowOptions):
    """A row, and what it shall explain."""

    target: str = "auto"
    """variant id, alias or accelerator; auto: what fits this machine's devices and driver [default: auto]"""


@Verb
def explain_symptom(options: ExplainOptions) -> None:
    """Explain a log, an error, an exit code or a finding: the text follows --, or comes on standard input."""
    _run_image_verb(options, "explain")


@Verb
def run_image_verb(options: PlannedRowOptions) -> None:
    """Run a verb of an image on this machine, without the image: plan, check, facts, explain, version; after --."""
    _run_image_verb(options)


def _list_words(options: ModelOfRowOptions) -> tuple[str, ...]:
    model = ("--model", options.model) if options.model else ()
    return (*model, *(("--json",) if options.json else ()))


def _run_image_verb(options: PlannedRowOptions, *words: str) -> None:
    """Become the image's entrypoint, with these words and those after --."""
    from drydock.inputs import model_images
    from drydock.run import auto
    from drydock.run import entrypoint as image_side

    words = model_images.replace_model_address(image_side.with_root((*words, *after_dashes()), options.root))
    image_side.check_verb(options.target, words)
    variant = auto.resolve_target(here(), options.target, image_side.recorded_host(words))
    image_side.exec_entrypoint(here(), variant, words, options.env)


class SizeOptions(JsonOption):
    """A model, and how it shall be served."""

    model: str
    """hub id of the model, oci://…@sha256:…, or a folder with its config.json"""
    root: str = ""
    """folder with recorded hosts (facts --record) [default: those that come with drydock]"""
    max_model_len: int = 0
    """tokens of the longest sequence, prompt and answer [default: the model's]"""
    concurrency: int = 0
    """sequences at a time"""
    html: str = ""
    """also write a page with the table to this file"""

    def list_flags(self) -> tuple[str, ...]:
        """Return the options that `plan` has too, as its words."""
        numbers = {"--max-model-len": self.max_model_len, "--concurrency": self.concurrency}
        return tuple(word for flag, number in numbers.items() if number for word in (flag, str(number)))


@Verb
def size_machines(options: SizeOptions) -> None:
    """Print which machines serve a model: how many, with which split, length and requests. Flags of plan follow --."""
    from drydock.topology import size as sizing
    from drydock.topology import topology_page

    words = (*options.list_flags(), *after_dashes())
    sizes = sizing.size_machines(here(), options.model, sizing.list_recorded_machines(here(), options.root), words)
    if options.html:
        with explain_unwritable(Path(options.html), "--html"):
            write_atomically(Path(options.html), topology_page.render_sizes_page(options.model, sizes))
    if options.json:
        write_output(format_json([size._asdict() for size in sizes]))
    else:
        write_output(sizing.format_capacities(options.model, sizes, terminal_columns()))


class CompareOptions(JsonOption):
    """Two versions, and where the command is."""

    from_: str
    """the row that the command is written for: variant id, alias or accelerator; or a version such as 0.18"""
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
    from drydock.compare import compare_tasks, comparison

    command = compare_tasks.read_command(after_dashes(), options.command_file)
    question = comparison.ComparedCommand(options.from_, options.to, command, options.model, options.root)
    compare_tasks.print_comparison(here(), question, terminal_columns(), every=options.all, json=options.json)
