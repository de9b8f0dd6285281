"""What each flag of a command becomes in another version. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple

from drydock.compare.judgment import Judgment, Verdict
from drydock.compare.values import JSON, Taken, judge_keys, judge_value
from drydock.compare.vllm_parser import OPTIMIZATION, FlagWords, Understood, VllmParser, long_name
from drydock.compare.vllm_version import ServedVersion
from drydock.lock.vllm_details import NOTHING
from entrypoints.core.redact import redact_argv
from entrypoints.request import arguments
from entrypoints.request.vllm_successors import SUCCESSORS, describe_successor

OFF = ("false", "0", "no", "off")
ON = ("true", "1", "yes", "on")
"""Values that older versions took for some flags: --enable-chunked-prefill=False."""
LIKE = 0.75
"""Likeness from 0 to 1 at which a name is suggested for an unknown one."""
COMPILATION = "--compilation-config"
FILE = "--config"
"""A file with more flags."""


class Sides(NamedTuple):
    """The two versions, with their parsers."""

    old: ServedVersion
    new: ServedVersion
    old_parser: VllmParser
    new_parser: VllmParser


class JudgedFlag(NamedTuple):
    """A flag of the command, and what it becomes."""

    group: FlagWords
    written: str
    """As in the command, without secrets."""
    old: Understood
    new: Understood
    judgments: tuple[Judgment, ...]


def judge_flag(group: FlagWords, sides: Sides, *, is_drydocks: bool, has_model: bool) -> JudgedFlag:
    """Return what a flag becomes; `has_model` says that a further word cannot be the model."""
    old, new = sides.old_parser.understand(group), sides.new_parser.understand(group)
    flag_text = " ".join(redact_argv(group.written.split(" ")))
    judgments = [*_judge_changes(group, flag_text, old, new, sides, is_drydocks=is_drydocks)]
    is_model = not has_model and len(new.rest) == 1
    if new.flag and new.rest and not is_model and not judgments:
        because = f"{new.rest[0]!r:.60} is no value of {new.name}, which takes {new.flag.count}"
        judgments.append(Judgment("flag", flag_text, Verdict.BLOCKED, because))
    return JudgedFlag(group, flag_text, old, new, tuple(judgments) or (_judge_safe(flag_text, old, new),))


def _judge_safe(flag_text: str, old: Understood, new: Understood) -> Judgment:
    because = "the same" if old.flag else "only the new version has it"
    if new.flag and new.flag.deprecated:
        because += f"; vLLM says: {new.flag.deprecated}"
        if "no effect" in new.flag.deprecated:
            return Judgment("flag", flag_text, Verdict.MANUAL, because, "leave it out")
    return Judgment("flag", flag_text, Verdict.SAFE, because)


def _judge_changes(
    group: FlagWords, flag_text: str, old: Understood, new: Understood, sides: Sides, *, is_drydocks: bool
) -> Iterator[Judgment]:
    """Yield what keeps a flag from being safe."""
    if new.flag is None:
        yield _judge_removed(flag_text, old, new, sides, is_drydocks=is_drydocks)
        return
    if new.is_negated and group.head.replace("_", "-") in SUCCESSORS:
        head = group.head.replace("_", "-")
        because = f"the new version takes it as the off form of {new.name}"
        yield Judgment("flag", flag_text, Verdict.MANUAL, because, describe_successor(head))
        return
    if old.flag is not None and not set(old.flag.names) & set(new.flag.names):
        yield _judge_renamed(flag_text, old, new, sides)
        return
    if new.name == FILE:
        yield Judgment("flag", flag_text, Verdict.UNKNOWN, "its file is not read: compare its flags too")
        return
    if new.flag.count == NOTHING and not new.keys and (new.values or new.rest):
        word = (new.values or new.rest)[0].lower()
        if word in (*OFF, *ON):
            yield _boolean_with_value(flag_text, new, word in ON, sides)
            return
    if new.problem:
        yield Judgment("flag", flag_text, Verdict.BLOCKED, f"the new version's {new.name} {new.problem}")
        return
    yield from _judge_values(flag_text, old, new, sides)


def _judge_values(flag_text: str, old: Understood, new: Understood, sides: Sides) -> Iterator[Judgment]:
    before, after = _make_taken(old, sides.old, sides.old_parser), _make_taken(new, sides.new, sides.new_parser)
    if after is None:
        return
    if new.keys:
        yield from _judge_dotted(flag_text, new, before, after)
        return
    for value in new.values:
        yield from judge_value(new.name, flag_text, value, before, after)


def _make_taken(understood: Understood, version: ServedVersion, parser: VllmParser) -> Taken | None:
    if understood.flag is None:
        return None
    is_json = understood.flag.record or understood.flag.annotation
    takes = parser.takes.get(understood.name, "") or (JSON if is_json else "")
    return Taken(takes, understood.flag, version.details)


def _judge_dotted(flag_text: str, new: Understood, before: Taken | None, after: Taken) -> Iterator[Judgment]:
    """Yield judgments of `--flag.key value`, which the parser turns into JSON."""
    if after.takes != JSON:
        because = f"the new version's {new.name} takes no JSON, and so no keys"
        yield Judgment("flag", flag_text, Verdict.BLOCKED, because)
        return
    try:
        content = json.loads(new.values[0])
    except ValueError:
        content = new.values[0]
    for key in reversed(new.keys):
        content = {key.removesuffix("+"): content}
    yield from judge_keys(new.name, content, before, after)


def _judge_removed(flag_text: str, old: Understood, new: Understood, sides: Sides, *, is_drydocks: bool) -> Judgment:
    """Return the judgment of a flag that the new version does not have."""
    if len(new.candidates) > 1:
        instead = old.name if old.flag and old.name in sides.new_parser.names else ""
        because = f"the new version could take it for {', '.join(new.candidates)}"
        return Judgment("flag", flag_text, Verdict.MANUAL if instead else Verdict.BLOCKED, because, instead)
    names = [name for name in (old.name, new.name) if name in SUCCESSORS]
    if names:
        because = "removed" if old.flag else "both versions have removed it"
        return Judgment("flag", flag_text, Verdict.MANUAL, because, describe_successor(names[0]))
    if new.name in arguments.FLAGS:
        because = "a flag of drydock's, which vLLM does not get"
        verdict = Verdict.SAFE if is_drydocks else Verdict.UNKNOWN
        return Judgment("flag", flag_text, verdict, because if is_drydocks else f"{because} from drydock's images only")
    if old.flag and old.is_negated and old.name in sides.new_parser.names:
        return Judgment("flag", flag_text, Verdict.BLOCKED, f"the new version has {old.name}, which has no off form")
    if old.flag:
        return Judgment("flag", flag_text, Verdict.BLOCKED, "removed, and no successor is known")
    close = get_close_matches(new.name, sorted(sides.new_parser.names), 1, LIKE)
    hint = f"did you mean {close[0]}?" if close else "no flag has a name like it"
    return Judgment("flag", flag_text, Verdict.BLOCKED, f"neither version has this flag: {hint}")


def _judge_renamed(flag_text: str, old: Understood, new: Understood, sides: Sides) -> Judgment:
    """Return the judgment of a spelling that means another flag in the new version."""
    because = f"it was {old.name}, and is a form of {new.name} now"
    if old.name in SUCCESSORS:
        return Judgment("flag", flag_text, Verdict.MANUAL, because, describe_successor(old.name))
    if new.name == OPTIMIZATION and COMPILATION in sides.new_parser.names:
        level = " ".join(new.values)
        instead = f"{COMPILATION}.mode {level} for that alone; {OPTIMIZATION} {level} sets more than the compilation"
        return Judgment("flag", flag_text, Verdict.MANUAL, because, instead)
    instead = f"{old.name}, in full" if old.name in sides.new_parser.names else f"{new.name}, if that is what you mean"
    return Judgment("flag", flag_text, Verdict.MANUAL, because, instead)


def _boolean_with_value(flag_text: str, new: Understood, is_on: bool, sides: Sides) -> Judgment:
    """Return the judgment of --flag=False, which only older versions take."""
    instead = new.name if is_on else f"--no-{new.name[2:]}"
    instead = instead if instead in sides.new_parser.names else "leave it out"
    return Judgment("flag", flag_text, Verdict.MANUAL, "the new version takes no value for it", instead)


def settings_of(flags: list[JudgedFlag], *, is_new: bool) -> dict[str, str]:
    """Return the flags that a version knows with their values, by long name, as the plan's lists judge them."""
    settings: dict[str, str] = {}
    for judged in flags:
        understood = judged.new if is_new else judged.old
        if understood.flag is not None and not understood.keys:
            settings[long_name(understood.flag)] = " ".join(understood.values) or "true"
    return settings
