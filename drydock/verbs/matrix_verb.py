"""The verb `matrix`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.task_helpers import terminal_columns, write_result
from drydock.cli.verb import Verb
from drydock.core.console import write_output
from drydock.model.shared_options import JsonOption


class MatrixOptions(JsonOption):
    """Which variants are listed."""

    WORDS = ("target",)
    target: tuple[str, ...] = ()
    """row or its beginning, alias or accelerator; repeatable, `./inv matrix cuda rocm` for short"""
    accelerator: str = ""
    """only the variants of this accelerator"""
    unlocked: bool = False
    """only variants with an input that the lock could not pin"""
    proof: Literal["", "rendered", "stand-in", "packages", "hardware"] = ""
    """only variants with this tier: rendered, stand-in, packages or hardware"""
    explain: bool = False
    """print where each row is written; with a target, where each of its values is from"""
    from_: str = ""
    """list the rows of another project: a folder, oci://HOST/NAME@sha256:… or git+https://HOST/PATH@COMMIT"""


@Verb
def list_matrix(options: MatrixOptions) -> None:
    """List the variants, with versions, lock state and verification status."""
    from drydock.config.matrix import find_matching_variants
    from drydock.pages import matrix_table

    project, variants = matrix_table.list_project_variants(options.from_)
    rows = matrix_table.make_matrix_rows(project, find_matching_variants(variants, options.target))
    rows = matrix_table.select_rows(rows, matrix_table.Filter(options.accelerator, options.proof, options.unlocked))
    if options.explain:
        write_output(matrix_table.explain_rows(project, variants, rows, whole=bool(options.target), json=options.json))
    else:
        columns = terminal_columns(otherwise=matrix_table.WIDEST)
        write_result({"variants": rows}, matrix_table.format_matrix_table(rows, columns), json=options.json)
