"""Every file that is generated, committed, and needs neither engine nor network: `./inv generate` runs this module.

Parts are rendered side by side, each in a process: those that take longest come first.
"""

from __future__ import annotations

import multiprocessing
import os
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench import bench_page
from drydock.build import render
from drydock.ci import workflow
from drydock.cli.task_helpers import print_errors
from drydock.cli.verb_table import COMMANDS
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import write_output
from drydock.core.errors import BuildError, DrydockError, InputError, StaleError, raise_all_errors, suggest_nearest
from drydock.core.files import write_atomically
from drydock.core.paths import ROOT
from drydock.lock import lockfile
from drydock.pages import commands_page, docs, schema
from tests.evidence import decisions, manuals_page, measured_memory, published, ranks_page
from tests.support import topology_files
from tests.support.hosts import cloudmatrix, expect

EXCERPT = 8
"""Lines of a difference that `--check` shows of each file."""


def render_dockerfiles() -> dict[Path, str]:
    """Return the Dockerfile of each row whose lock fits the matrix."""
    texts = {}
    for variant in read_matrix(DRYDOCK):
        try:
            lockfile.read_current(DRYDOCK, [variant])
        except StaleError:
            continue  # check_locks names it
        texts[render.dockerfile_path(DRYDOCK, variant)] = render.render_dockerfile(DRYDOCK, variant)
    return texts


def check_locks() -> dict[Path, str]:
    """Raise StaleError for the locks that do not fit the matrix: only `./inv lock`, with the network, writes them."""
    lockfile.read_current(DRYDOCK, read_matrix(DRYDOCK))
    return {}


def render_schemas() -> dict[Path, str]:
    return {ROOT / name: text for name, text in schema.make_schemas().items()}


def render_docs() -> dict[Path, str]:
    """Return the pages that `./inv docs` writes."""
    bench_files = bench_page.make_page_files(bench_page.read_report(ROOT))
    return {
        **docs.render_pages(DRYDOCK, read_matrix(DRYDOCK)),
        **{ROOT / path: text for path, text in bench_files.items()},
        ROOT / commands_page.FILE: commands_page.render_commands_page(COMMANDS),
    }


FIRST: dict[str, Callable[[], Mapping[Path, str]]] = {"dockerfiles": render_dockerfiles}
"""Parts that other parts read: an image's key, in README's table, is made of its Dockerfile."""
PARTS: dict[str, Callable[[], Mapping[Path, str]]] = {
    "manuals": manuals_page.pages,
    "models": lambda: {decisions.PAGE: decisions.page()},
    "topologies": lambda: {**cloudmatrix.hosts(), topology_files.EXPECTED: topology_files.render_shapes()},
    "sizes": lambda: {decisions.SIZES: decisions.sizes()},
    "docs": render_docs,
    "published": lambda: {published.PAGE: published.page()},
    "hosts": expect.render_expected_files,
    "ranks": lambda: {ranks_page.PAGE: ranks_page.page()},
    "ci": lambda: workflow.render_all_workflows(DRYDOCK, read_matrix(DRYDOCK)),
    "schemas": render_schemas,
    "memory": lambda: {measured_memory.PAGE: measured_memory.render_page()},
    "locks": check_locks,
}
Rendered = tuple[Mapping[Path, str], DrydockError | None]


def list_parts(only: str) -> list[str]:
    """Return the names of all parts, or the one that is named. Raises InputError for an unknown one."""
    names = [*FIRST, *PARTS]
    if only and only not in names:
        raise InputError(f"--only {only}: unknown part", hint=suggest_nearest(only, names))
    return [only] if only else names


def render_part(name: str) -> Rendered:
    """Return the texts of a part, or the error that there are none."""
    try:
        return (FIRST | PARTS)[name](), None
    except DrydockError as error:
        return {}, error
    except AssertionError as error:  # of a helper of tests, such as one that waits for a server
        return {}, BuildError(f"{name}: {error}", hint=f"run `./inv generate --only {name}` again")


def render_parts(names: Sequence[str]) -> Iterator[Rendered]:
    """Yield the texts of each part, rendered on all processors."""
    first_names = [name for name in FIRST if name in names]
    yield from map(render_part, first_names)
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        yield from pool.map(render_part, [name for name in PARTS if name in names])


def describe_stale_file(path: Path, text: str) -> str:
    """Return how a committed file differs from the generated text; empty if it does not."""
    name = path.relative_to(ROOT)
    if not path.is_file():
        return f"{name}: file not found"
    committed = path.read_bytes().decode(errors="replace")
    excerpt = render.excerpt_difference(committed, text, EXCERPT)
    return "" if committed == text else "\n".join((f"{name}: outdated, or edited by hand", *excerpt))


def write_files(names: Sequence[str]) -> None:
    """Write the files of parts, and print each path that changed. Raises DrydockError for what was not written."""
    errors = []
    for texts, error in render_parts(names):
        for path, text in texts.items():
            if write_atomically(path, text):
                write_output(f"{path.relative_to(ROOT)}\n")
        errors += [error] if error else []
    raise_all_errors(errors)


def check_files(names: Sequence[str]) -> None:
    """Raise StaleError if a file differs from what its sources give."""
    stale, errors = [], []
    for texts, error in render_parts(names):
        stale += [problem for path, text in texts.items() if (problem := describe_stale_file(path, text))]
        errors += [error] if error else []
    if stale:
        errors.append(StaleError(*stale, hint="run `./inv generate`, and read what it changes"))
    raise_all_errors(errors)


def main() -> None:
    """Write or check the parts that are named, or all."""
    parser = ArgumentParser(prog="./inv generate", description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    with print_errors():
        (check_files if options.check else write_files)(list_parts(options.only))


if __name__ == "__main__":
    main()
