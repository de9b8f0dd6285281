"""`explain LINE | CODE | ID | FILE … | -`: what the lines of a log mean. IO."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from entrypoints.checks.causes import read_profile_with_failures
from entrypoints.checks.logs import read_log
from entrypoints.checks.symptoms import CONSEQUENCE, Match, explain_log, find_first_error, find_ids, format_matches
from entrypoints.checks.unknown_flags import describe_names
from entrypoints.core.errors import NOT_KNOWN, OK, USAGE, EntrypointError
from entrypoints.core.language import translate_phrase, translate_text
from entrypoints.core.output import emit_json
from entrypoints.core.text import LOG_SECTION, emit_text, extract_section, print_message
from entrypoints.facts.image_files import read_vllm_lists
from entrypoints.request.arguments import Arguments
from entrypoints.request.vllm_lists import VllmLists

_STDIN = "-"
_LINES = (
    "write explain 'LAST LINE', explain EXIT_CODE, explain FINDING_ID, "
    "or docker logs CONTAINER 2>&1 | docker run -i IMG explain -"
)
_ELSEWHERE = "give the whole log to explain, from its first line; run check"
_OTHER_IMAGE = "{} is a finding of another accelerator: ask an image of that accelerator"
_PATH = re.compile(r"(?:\.{0,2}/|~)\S*|\S+\.(?:log|txt|out|err)")
"""A word that is meant as the path of a log."""


def run_explain(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Explain words, files or standard input; return OK, or NOT_KNOWN. Raises USAGE."""
    profile = read_profile_with_failures(arguments, env)
    text = extract_section(_read_explain_text(arguments.vllm), LOG_SECTION)
    if not text.strip():
        raise EntrypointError(USAGE, "explain: no line to explain", _LINES)
    lists = partial(read_vllm_lists, env)  # read only for a log that names unknown flags
    matches = tuple(_add_name_hints(match, text, lists, profile) for match in explain_log(text, profile))
    if arguments.options.json:
        emit_json([match._asdict() for match in matches])
    else:
        emit_text(format_matches(matches, profile.get("words") or {}))
    if all(match.kind == CONSEQUENCE for match in matches):
        _tell_first_error(text, profile, matches)
    return OK if matches else NOT_KNOWN


def _read_explain_text(words: Sequence[str]) -> str:
    """Return the lines to explain: the words, the files that they name, or standard input. Raises USAGE."""
    if words in ((), (_STDIN,)):
        stdin = sys.stdin
        return read_log(stdin.buffer) if stdin and (words or not stdin.isatty()) else ""
    if all(os.path.isfile(word) for word in words):
        return "\n".join(map(_read_log_file, words))
    is_folder = os.path.isdir(words[0])
    if len(words) == 1 and (is_folder or _PATH.fullmatch(words[0])):
        hint = "mount the file, or give the log on standard input: docker run -i IMG explain - < FILE"
        raise EntrypointError(USAGE, f"explain: {words[0]}: {'is a folder' if is_folder else 'no such file'}", hint)
    return " ".join(words)


def _read_log_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return read_log(file)
    except OSError as error:
        hint = f"make it readable for uid {os.getuid()}, or give the log on standard input"
        raise EntrypointError(USAGE, f"explain: {path}: {error.strerror}", hint) from error


def _add_name_hints(match: Match, text: str, lists: Callable[[], VllmLists], profile: Mapping[str, Any]) -> Match:
    """Return a match whose remedy says what stands for the flags and variables that vLLM did not know."""
    sentences = describe_names(match, text, lists, profile.get("words") or {})
    return match._replace(remedy=" ".join((*sentences, match.remedy))) if sentences else match


def _tell_first_error(text: str, profile: Mapping[str, Any], matches: Sequence[Match]) -> None:
    """Say on standard error that no cause is known, and what the first error is."""
    words = profile.get("words") or {}
    error = find_first_error(text)
    is_explained = error in {match.line for match in matches}
    error_text = (
        f"\n    {translate_phrase(words, 'the first error is: {}', error)}" if error and not is_explained else ""
    )
    if not matches:
        nothing = translate_text(words, f"image {profile['variant']} knows no failure with these lines")
        hint = _OTHER_IMAGE.format(find_ids(text)[0]) if find_ids(text) else _ELSEWHERE
        hint_text = translate_phrase(words, "hint: {}", translate_text(words, hint))
        print_message(f"explain: {nothing}{error_text}\n\n{hint_text}")
    elif error_text:
        print_message(f"explain: {translate_text(words, 'the cause is not known')}{error_text}")
