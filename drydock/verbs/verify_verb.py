"""The verb `verify`."""

from __future__ import annotations

from drydock.cli.task_helpers import here, write_result
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.core.errors import InputError
from drydock.model.shared_options import BuilderOption, JsonOption, PreviewOption, StatementOptions, VerboseOption


class RebuildOptions(StatementOptions, BuilderOption, PreviewOption, VerboseOption, JsonOption):
    """How a row is built again."""

    target: str
    """row, alias or accelerator to build again and compare"""
    record: bool = False
    """if both builds have the same digest, write it into the lock"""
    from_foundation: bool = False
    """do not build the kept foundation again, if it has the lock's digest"""
    verify_key: str = ""
    """with --statement: accept a signature made with this public key"""

    def check_statement(self) -> None:
        """Raise InputError for options of one of the two that are given with the other."""
        super().check_statement()
        if self.verify_key and not self.statement:
            raise InputError("--verify-key: requires --statement; `image verify` checks an image in a registry")
        if self.max_age and not self.statement:
            raise InputError("--max-age: requires --statement; `image verify` compares the age of a channel")
        if self.record and self.statement:
            raise InputError("--record and --statement exclude each other: a statement is read, and nothing is built")
        if self.dry_run and self.statement:
            raise InputError("--dry-run and --statement exclude each other: a statement is read, and nothing is built")


@Verb
def rebuild_row(options: RebuildOptions) -> None:
    """Build again without cache or network and compare the digests, or verify what `prove` saw."""
    from drydock.build import rebuild
    from drydock.build.build_job import prepare_job

    options.check_statement()
    if options.statement:
        _print_row_statement(options)
        return
    job = prepare_job(here(), options.target)
    if options.dry_run:
        from drydock.ci.ci_rows import estimate_disk

        how = {"recording": options.record, "from_foundation": options.from_foundation}
        preview = rebuild.preview_verification(job, **how)
        text = rebuild.format_verification_preview(preview, estimate_disk(job.pins))
        write_result(preview, text, json=options.json)
        return
    builder = options.builder or None
    verified = rebuild.verify_build(
        job, builder=builder, recording=options.record, from_foundation=options.from_foundation
    )
    write_result(verified, f"{verified.first}\n{verified.second}\n", json=options.json)
    rebuild.settle_verification(job, verified, recording=options.record, builder=builder)


def _print_row_statement(options: RebuildOptions) -> None:
    """Print what `prove` saw of the image that a row's lock or proof records."""
    from drydock.prove import served_statement

    words = (options.target, options.statement, options.verify_key, options.root, options.max_age)
    shown = served_statement.verify_row_statement(here(), *words)
    write_output(served_statement.format_shown_statement(shown, json=options.json))
