"""What each environment variable of a command becomes in another version. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from drydock.compare.flags import LIKE
from drydock.compare.judgment import Judgment, Verdict
from drydock.compare.vllm_version import ServedVersion
from entrypoints.core.redact import redact_value
from entrypoints.request.vllm_successors import SUCCESSORS, describe_successor

OF_VLLM, OF_DRYDOCK = "VLLM_", "DRYDOCK_"
FAILS = "--fail-on-environ-validation"
"""The flag with which vLLM refuses variables VLLM_… that it does not read."""


def split_variables(
    env: Mapping[str, str], old: ServedVersion, new: ServedVersion
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a vLLM reads, or that look so, and the names of the others."""
    known_names = {*old.lists.get("variables", ()), *new.lists.get("variables", ())}
    vllm_variables = {name: value for name, value in env.items() if name in known_names or name.startswith(OF_VLLM)}
    return vllm_variables, tuple(sorted(env.keys() - vllm_variables.keys()))


def judge_variables(
    env: Mapping[str, str], old: ServedVersion, new: ServedVersion, *, is_strict: bool
) -> Iterator[Judgment]:
    """Yield a judgment for each variable; `is_strict` says that vLLM refuses those that it does not read."""
    for name, value in sorted(env.items()):
        variable_text = f"{name}={redact_value(name, value)}"
        yield _judge_variable(name, value, variable_text, old, new, is_strict=is_strict)


def _judge_variable(
    name: str, value: str, variable_text: str, old: ServedVersion, new: ServedVersion, *, is_strict: bool
) -> Judgment:
    was, is_ = name in old.lists.get("variables", ()), name in new.lists.get("variables", ())
    if not is_:
        return _not_read(name, variable_text, new, was_read=was, is_strict=is_strict)
    before, after = old.details.variables.get(name), new.details.variables.get(name)
    if after and after.choices and value.casefold() not in {choice.casefold() for choice in after.choices}:
        expected = ", ".join(after.choices)
        return Judgment(
            "variable", variable_text, Verdict.BLOCKED, f"the new version refuses this value: one of {expected}"
        )
    if not was:
        because = "the old version does not read it, the new one does"
        return Judgment("variable", variable_text, Verdict.MANUAL, because, "leave it out, or decide what it shall be")
    if before and after and before.reader != after.reader:
        readers = (_shorten_reader(variable.reader, name) for variable in (before, after))
        because = "it is read otherwise: {} before, {} now".format(*readers)
        return Judgment("variable", variable_text, Verdict.MANUAL, because, "check that the value means the same")
    return Judgment("variable", variable_text, Verdict.SAFE, "the same")


def _not_read(name: str, variable_text: str, new: ServedVersion, *, was_read: bool, is_strict: bool) -> Judgment:
    """Return the judgment of a variable that the new version does not read."""
    if not was_read and name not in SUCCESSORS:
        close = get_close_matches(name, sorted(new.lists.get("variables", ())), 1, LIKE)
        because = f"neither version reads it: a plugin's, or {f'did you mean {close[0]}?' if close else 'misspelled'}"
        return Judgment("variable", variable_text, Verdict.UNKNOWN, because)
    verdict = Verdict.BLOCKED if is_strict else Verdict.MANUAL
    effect = f"refused because of {FAILS}" if is_strict else "the new version warns and ignores it"
    instead = describe_successor(name) if name in SUCCESSORS else "leave it out: no successor is known"
    return Judgment("variable", variable_text, verdict, f"removed: {effect}", instead)


def _shorten_reader(reader: str, name: str) -> str:
    """Return how a variable is read, in a line."""
    text, most = reader.replace(f"os.getenv('{name}', DEFAULT)", "value"), 90
    return text if len(text) <= most else f"{text[:most]}…"
