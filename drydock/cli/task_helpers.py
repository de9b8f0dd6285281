"""Helpers of the verbs: error messages, targets, reports of written files."""

from __future__ import annotations

import contextlib
import filecmp
import functools
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drydock.core.commit import GitFailedError
from drydock.core.console import log, name_copy, write_output
from drydock.core.errors import DrydockError, InputError, explain_os_error
from drydock.core.files import format_json
from drydock.core.paths import PROGRAM, ROOT
from drydock.core.project import Project
from drydock.core.user_language import translate_lines

if TYPE_CHECKING:
    from drydock.model.variant import Variant

FOUNDATIONS = "DRYDOCK_FOUNDATIONS"
"""Variable with the repository of foundations, which a CI server sets for its jobs."""
_copies: list[Project] = []
"""The copy of the project in which a verb writes with --dry-run."""
_COPIED_FOLDERS = (".github", ".schemas")
"""Hidden folders that verbs write into."""
_COPIED_AT_MOST = 4 << 20
"""Bytes of a file. The largest that a verb writes into a project, a record of vLLM's lists, has a quarter of it."""
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""


@contextlib.contextmanager
def print_errors(*, silent: bool = False) -> Iterator[None]:
    """Print an error of the block without a traceback, unless it is `silent`, and exit with its code.

    An error of the operating system that no function has explained is explained by its number and path.
    """
    try:
        yield
    except (DrydockError, GitFailedError, OSError) as problem:
        error = _explain_problem(problem)
        if not silent:
            log(f"error: {error}")
        sys.exit(error.code)


def _explain_problem(problem: DrydockError | GitFailedError | OSError) -> DrydockError:
    if isinstance(problem, GitFailedError):
        return InputError(problem.args[0], hint=problem.hint)
    return explain_os_error(problem) if isinstance(problem, OSError) else problem


def here() -> Project:
    """Return the project that this command is about, over those of others, and name it. Raises DrydockError."""
    from drydock.inputs import others

    if _copies:
        return _copies[-1]
    project = others.read_current_project()
    _name_project(project.root)
    return project


@contextlib.contextmanager
def write_into_copy(*, json: bool) -> Iterator[None]:
    """Let the block read and write a copy of the project; say which files it would write and remove.

    What a link to a folder leads to is copied too, else a file would be written through it.
    """
    project = here()
    with tempfile.TemporaryDirectory(prefix="drydock-dry-run-") as folder:
        root = Path(folder) / project.root.name
        _copy_folder(project.root, root, ())
        before = {path.relative_to(root) for path in _list_copied_files(root)}
        _copies.append(replace(project, root=root, is_discovered=False))
        try:
            with name_copy(str(root)), print_errors():  # errors name files of the copy, too
                yield
        finally:
            _copies.pop()
        after = {path.relative_to(root) for path in _list_copied_files(root)}
        written = {name for name in after if name not in before or not _is_alike(root / name, project.root / name)}
        report_dry_run(map(str, sorted(written)), map(str, sorted(before - after)), json=json)


def _copy_folder(source: Path, target: Path, above: tuple[Path, ...]) -> None:
    """Copy the files of a folder; what is hidden, large or unreadable is a link to it, and so is a folder `above`."""
    target.mkdir()
    line = (*above, source.resolve())
    for path in source.iterdir():
        copy = target / path.name
        is_hidden = path.name.startswith(".") and path.name not in _COPIED_FOLDERS
        if path.is_dir() and not is_hidden and path.resolve() not in line:
            _copy_folder(path, copy, line)
        elif path.is_file() and os.access(path, os.R_OK) and path.stat().st_size <= _COPIED_AT_MOST:
            shutil.copyfile(path, copy)
        else:
            copy.symlink_to(path)


def _list_copied_files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]


def _is_alike(path: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(path, other, shallow=False)


@functools.cache
def _name_project(root: Path) -> None:
    """Log once which project is used, unless it is the current folder or drydock itself."""
    if root not in (ROOT, Path.cwd()):
        log(f"project: {root}")


def registry_of(option_value: str) -> str:
    """Return the registry of an option, else that of the project. Raises InputError."""
    from drydock.config.project_choice import read_settings

    settings = read_settings(here())
    if not (option_value or (settings and settings.registry)):
        raise InputError(
            "--registry: missing", hint="name host and path, such as ghcr.io/acme; or `registry` in drydock.yaml"
        )
    return option_value or (settings.registry if settings else "")


def foundations_of(option_value: str, required: str = "") -> str:
    """Return the repository of an option, else of DRYDOCK_FOUNDATIONS, else of the project; maybe none.

    Raises InputError if the option is `required` and there is none.
    """
    from drydock.config.project_choice import read_settings

    settings = read_settings(here())
    repository = option_value or os.environ.get(FOUNDATIONS, "").lower() or (settings.foundations if settings else "")
    if required and not repository:
        hint = "name host and repository, such as ghcr.io/acme/foundations; or `foundations` in drydock.yaml"
        raise InputError(f"{required}: missing", hint=hint)
    return repository


def require_target(verb: str, target: str, otherwise: str) -> str:
    """Return --target of a task that may do without it. Raises InputError if it is empty."""
    if not target:
        raise InputError(f"{verb}: --target is missing", hint=otherwise)
    return target


def command_line() -> str:
    """Return this command as one types it."""
    return shlex.join([PROGRAM, *sys.argv[1:]])


def choose_variants(target: str) -> Sequence[Variant]:
    """Return the variant that --target names, or every variant if it is empty. Raises TargetError."""
    from drydock.config.matrix import find_variant, read_matrix

    variants = read_matrix(here())
    return [find_variant(variants, target)] if target else variants


def terminal_columns(otherwise: int = 100) -> int:
    """Return the width of the terminal; `otherwise` if standard output is not one."""
    return shutil.get_terminal_size((otherwise, 24)).columns if sys.stdout.isatty() else otherwise


def write_result(result: Any, text: str, *, json: bool) -> None:
    """Print the result of a verb: as JSON, in which each record is an object, or else the text for people."""
    from drydock.model.record import Record, dump_record

    if json:
        text = format_json(result, lambda part: dump_record(part) if isinstance(part, Record) else part._asdict())
    write_output(text)


def report_dry_run(written: Iterable[str], removed: Iterable[str] = (), *, json: bool = False) -> None:
    """Print which files would be written; with `json`, where the result is printed as JSON, on standard error."""
    lines = [*(f"would write {name}\n" for name in written), *(f"would remove {name}\n" for name in removed)]
    text = "".join(lines) or "would write nothing\n"
    if json:
        log(text.rstrip())
    else:
        write_output(translate_lines(text))


def report_written(paths: Iterable[Path], *, json: bool = False) -> None:
    """Print which files were written; or, with `json`, as JSON on standard output."""
    if json:
        write_output(format_json({"wrote": [here().name_of(path) for path in paths]}))
        return
    log("\n".join(f"wrote {here().name_of(path)}" for path in paths) or "nothing to do")


def report_checked(*, json: bool) -> None:
    """Print, with `json`, that a check which passed has written nothing."""
    if json:
        report_written((), json=True)


def words_of(option: str, text: str) -> tuple[str, ...]:
    """Split an option's text as a shell does. Raises InputError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}", hint="or pass the arguments after --") from error


def after_dashes(argv: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the arguments after `--`. Unlike invoke, which joins them, this keeps spaces within an argument."""
    words = sys.argv if argv is None else argv
    return tuple(words[words.index("--") + 1 :]) if "--" in words else ()
