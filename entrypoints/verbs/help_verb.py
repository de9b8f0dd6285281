"""`help`, or --help: prints the verbs, the options and the exit codes. IO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from entrypoints.core.errors import EXIT_CODES, OK
from entrypoints.core.text import emit_text
from entrypoints.request.arguments import FLAGS, VERBS, Arguments


def run_help(_arguments: Arguments, _env: Mapping[str, str]) -> int:
    """Print the help."""
    emit_text(_format_help())
    return OK


def _format_help() -> str:
    """Return the verbs, the options below the verbs that accept them, and the exit codes."""
    lines = [
        "Usage: docker run IMG [VERB] [MODEL] [OPTIONS]",
        "",
        "Serve a model with vLLM on this host.",
        "",
        "Verbs:",
        *(f"  {name:9} {text}" for name, text in VERBS.items()),
        "",
        "Any other word is run as a command: docker run IMG bash",
        *_list_options(),
        "",
        "All other options are passed to vLLM. To list them: docker run IMG serve --help=all",
        "",
        "Exit codes:",
        *(f"  {code:3}  {text}" for code, text in EXIT_CODES.items()),
        "",
        "Any other exit code is vLLM's own; 128 + N means that signal N ended it.",
    ]
    return "\n".join(lines) + "\n"


def _list_options() -> Iterator[str]:
    """Yield drydock's flags, grouped by the verbs that accept them, the largest group first."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, option in FLAGS.items():
        groups.setdefault(option.verbs, []).append(f"  {f'{name} {option.value}':27} {option.help}")
    for verbs, lines in sorted(groups.items(), key=lambda group: -len(group[1])):
        yield from ("", f"Options of {', '.join(verbs)}:", *lines)
