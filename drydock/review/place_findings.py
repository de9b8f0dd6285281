"""What is wrong with a command, by the vLLM of its image. Pure, but for the lists that are read.

A finding is certain of what it says, or it is not known: that is a level of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from drydock.compare.comparison import JudgedParts, judge_parts, read_recorded_model
from drydock.compare.flags import JudgedFlag, Sides
from drydock.compare.judgment import Judgment, Verdict, soften_judgment
from drydock.compare.pasted_command import PastedCommand
from drydock.compare.vllm_parser import split_words
from drydock.compare.vllm_version import ServedVersion
from drydock.review.named_images import ImageFinder, ImageVersion, is_upstream
from drydock.review.written_commands import CommandPlace, line_of
from entrypoints.model.parsers import REASONING, TOOLS
from entrypoints.request.flags import REASONING_PARSER, TOOL_PARSER

PORT, DEFAULT_PORT = "--port", 8000
SEVERAL = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
"""Flags that make processes which share memory in /dev/shm."""
OMNI = "--omni"
OF_OMNI = ImageVersion((), f"{OMNI} makes it a command of vLLM-Omni, whose flags are others")
PLUGINS = ("--tool-parser-plugin", "--reasoning-parser-plugin")
PATIENCE = 60
"""Seconds. A judgement: with a model of a few billion parameters, import, weights and compilation take longer, and a
probe that gives up earlier ends each start."""
_OPEN = re.compile(r"[$`{}]|<[^<>]{0,200}>|\.\.\.|…|^\[|\]$")
"""Parts of a word that a shell, a chart or a reader fills in."""
_LISTED = ": expected one of "
"""In what refuses a name that is in no list of vLLM's."""
_ONE_SIDE = (
    ("; the old version refuses it too", ""),
    ("both versions have removed it", "this vLLM has removed it"),
    ("neither version has this flag", "this vLLM has no such flag"),
    ("neither version reads it", "this vLLM does not read it"),
    ("no key of either version", "no key of this vLLM"),
    ("both versions have", "this vLLM has"),
    ("the new version", "this vLLM"),
)
"""What `compare` says of two versions → what is so if both are one."""


class Level(IntEnum):
    """How bad a finding is."""

    UNKNOWN = 0
    """Nothing that drydock has read tells."""
    WARNING = 1
    """It starts, and something is ignored, or contradicts what stands around the command."""
    REFUSED = 2
    """It would not start."""

    @property
    def word(self) -> str:
        """Return the level as it is printed."""
        return ("not known", "warning", "would not start")[self]


class PlaceFinding(NamedTuple):
    """One thing that is wrong, or not known."""

    level: Level
    line: int
    part: str
    """What is meant: a flag with its value, a variable, a port."""
    because: str
    instead: str = ""
    """What to write; empty if that is not known."""


class ReviewedPlace(NamedTuple):
    """A command with what is wrong with it."""

    place: CommandPlace
    image: ImageVersion
    findings: tuple[PlaceFinding, ...]

    @property
    def level(self) -> Level | None:
        """Return the worst level; None if all is well."""
        return max((finding.level for finding in self.findings), default=None)


def review_place(place: CommandPlace, finder: ImageFinder, to: ImageVersion | None) -> ReviewedPlace:
    """Judge a command by the image next to it, or by the one that comes instead."""
    image = OF_OMNI if OMNI in place.words else finder.find(place.image)
    target = image if image is OF_OMNI else to or image
    words = _close_words(place.words)
    env = {name: value for name, value in place.env.items() if not _OPEN.search(value)}
    command = PastedCommand(words, env, is_drydocks=target.is_drydocks)
    findings = [*_judge_entry(place, target), *_judge_surroundings(place, words)]
    if target.warning:
        findings.append(PlaceFinding(Level.WARNING, place.line, place.image, target.warning))
    if target.versions:
        findings += _judge_versions(place, command, image, target, finder)
    else:
        findings.append(PlaceFinding(Level.UNKNOWN, place.line, place.image or "image", target.how))
        findings += _judge_without_image(place, words, finder)
    return ReviewedPlace(place, target, tuple(sorted(findings, key=lambda finding: (-finding.level, finding.line))))


def _close_words(words: Sequence[str]) -> tuple[str, ...]:
    """Return words without those that a shell or a reader fills in, unless they are the value of a flag."""
    closed: list[str] = []
    for word in words:
        if (
            (closed and closed[-1].startswith("-") and "=" not in closed[-1] and not word.startswith("-"))
            or not _OPEN.search(word.partition("=")[0])
            or not closed
        ):
            closed.append(word)
    return tuple(closed)


# --- what vLLM's lists say -------------------------------------------------------------------------------------------


def _judge_versions(
    place: CommandPlace, command: PastedCommand, image: ImageVersion, target: ImageVersion, finder: ImageFinder
) -> Iterator[PlaceFinding]:
    """Yield what every version that the image can be has against a command."""
    results: list[list[PlaceFinding]] = []
    for version in target.versions:
        is_other = target is not image and len(image.versions) == 1
        old = image.versions[0] if is_other else version
        sides = Sides(old, version, finder.parser(old), finder.parser(version))
        parts = judge_parts(command, sides, read_recorded_model)
        judgments = (_make_finding(place, item, parts, sides, finder) for item in parts.judgments)
        results.append([*filter(None, judgments), *_judge_parsers(place, parts)])
    for finding in results[0]:
        alike = [[item for item in findings if item.part == finding.part] for findings in results[1:]]
        if all(alike):
            most = Level.WARNING if target.is_guess else Level.REFUSED
            if target.is_of_others and _LISTED in finding.because:
                most = Level.UNKNOWN
            levels = [most, finding.level, *(min(item.level for item in items) for items in alike)]
            yield finding._replace(level=min(levels))


def _make_finding(
    place: CommandPlace, judgment: Judgment, parts: JudgedParts, sides: Sides, finder: ImageFinder
) -> PlaceFinding | None:
    """Return a judgment as a finding; None if the vLLM takes the part, or if the part is not known to anyone."""
    flag = next((item for item in parts.flags if judgment in item.judgments or judgment.name == item.written), None)
    judgment = soften_judgment(judgment, sides.new.assumed) if sides.new.assumed else judgment
    level = _level_of(judgment, flag, sides.new)
    if level is None:
        return None
    if _OPEN.search(judgment.name.partition(" ")[2].partition("{")[0]) and flag and flag.new.flag:
        level = Level.UNKNOWN  # a reader fills the value in
    because = judgment.because
    if sides.old is sides.new:
        for two, one in _ONE_SIDE:
            because = because.replace(two, one)
    if flag is not None and flag.new.flag is None and not flag.new.candidates:
        because += describe_releases(flag.new.name, sides.new.version, finder)
    return PlaceFinding(level, _line_of_part(place, judgment, flag), judgment.name, because, judgment.instead)


def _level_of(judgment: Judgment, flag: JudgedFlag | None, version: ServedVersion) -> Level | None:
    """Return how bad a judgment is: what `compare` leaves to a person may be refused, or only ignored."""
    if judgment.verdict is Verdict.SAFE:
        return None
    if judgment.verdict is Verdict.UNKNOWN:
        return None if judgment.kind in ("model", "variable") else Level.UNKNOWN
    is_closed = judgment.kind == "key" and version.details.closed
    if judgment.verdict is Verdict.BLOCKED or is_closed:
        return Level.REFUSED
    if judgment.kind != "flag" or flag is None or version.assumed:
        return Level.WARNING
    return _level_of_flag(flag)


def _level_of_flag(flag: JudgedFlag) -> Level | None:
    """Return how bad it is that a flag is not what it was, and has a successor."""
    new, old = flag.new, flag.old
    if new.flag is None:
        return Level.REFUSED
    if new.is_negated:  # both take it: --disable-x is the off form of --enable-x
        return None if old.is_negated else Level.WARNING
    is_renamed = old.flag is not None and old.flag.names != new.flag.names
    return Level.WARNING if is_renamed or "no effect" in new.flag.deprecated else Level.REFUSED


def describe_releases(flag: str, number: str, finder: ImageFinder) -> str:
    """Return which release before or after a version has a flag, of those that were read."""
    try:
        here = Version(number)
    except InvalidVersion:
        return ""
    names = [name for name, version in finder.releases.items() if flag in finder.parser(version).names]
    if later := [name for name in names if name > here]:
        return f" ({later[0]} has it)"
    return f" ({names[-1]} was the last read that has it)" if names else ""


def _line_of_part(place: CommandPlace, judgment: Judgment, flag: JudgedFlag | None) -> int:
    if judgment.kind == "variable":
        return line_of(place.env.get(judgment.name.partition("=")[0], ""), place.line)
    return _line_of_flag(place, flag.group.head if flag else judgment.name)


def _line_of_flag(place: CommandPlace, head: str) -> int:
    return next((line_of(word, place.line) for word in place.words if word.partition("=")[0] == head), place.line)


def _judge_parsers(place: CommandPlace, parts: JudgedParts) -> Iterator[PlaceFinding]:
    """Yield a parser that no rule has for the model's architecture."""
    if any(item.new.name in PLUGINS for item in parts.flags):
        return
    for option, rules in ((TOOL_PARSER, TOOLS), (REASONING_PARSER, REASONING)):
        flag = next((item for item in parts.flags if item.new.name == option and item.new.values), None)
        fitting = {name for rule in rules if parts.facts.architecture in rule.architectures for name in rule.parsers}
        names = {name for rule in rules if fitting & {*rule.parsers} for name in rule.parsers}  # and of the same form
        if flag and names and flag.new.values[0] not in names and not _OPEN.search(flag.new.values[0]):
            because = f"{parts.facts.architecture} writes in another form: {parts.facts.name}"
            instead = f"{option} {' or '.join(sorted(names))}"
            yield PlaceFinding(Level.WARNING, _line_of_flag(place, flag.group.head), flag.written, because, instead)


def _judge_without_image(place: CommandPlace, words: Sequence[str], finder: ImageFinder) -> Iterator[PlaceFinding]:
    """Yield flags that no release has: which vLLM it is does not matter then."""
    if OMNI in words or (place.image and not is_upstream(place.image)):
        return  # another project's server may have flags of its own
    for group in split_words(words)[1]:
        is_closed = group.head.startswith("--") and not _OPEN.search(group.head)
        meanings = [finder.parser(version).understand(group) for version in finder.all_versions]
        if is_closed and not any(meaning.flag or meaning.candidates for meaning in meanings):
            releases = f"{finder.all_versions[0].version} to {finder.all_versions[-1].version}"
            because = f"none of the {len(meanings)} releases of vLLM that were read, {releases}, has it"
            yield PlaceFinding(Level.WARNING, _line_of_flag(place, group.head), group.head, because)


# --- what stands around the command ----------------------------------------------------------------------------------


def _judge_entry(place: CommandPlace, image: ImageVersion) -> Iterator[PlaceFinding]:
    """Yield a program that the image's ENTRYPOINT gets as arguments, and an ENTRYPOINT that is none of vLLM's."""
    if place.entry:
        because = "the image's ENTRYPOINT is vLLM's server, which gets these words as arguments"
        yield PlaceFinding(Level.REFUSED, place.line, " ".join(place.entry), because, "the arguments alone")
    elif place.is_entered and image.entrypoint is not None and "vllm" not in " ".join(image.entrypoint):
        because = f"the image's ENTRYPOINT is {list(image.entrypoint)!a:.80}, which starts no vLLM with these words"
        yield PlaceFinding(Level.REFUSED, place.line, place.image, because, "vllm serve before them, as the command")


def _judge_surroundings(place: CommandPlace, words: Sequence[str]) -> Iterator[PlaceFinding]:
    """Yield ports, probes and shared memory that contradict the command."""
    values = _values_of(words)
    port = values.get(PORT, str(DEFAULT_PORT))
    for number, line in place.around.ports:
        if port.isdigit() and number != int(port) and all(other != int(port) for other, _ in place.around.ports):
            because = f"vLLM listens on {port}{'' if PORT in values else ', its default'}"
            yield PlaceFinding(Level.WARNING, line, f"port {number}", because, f"{PORT} {number}, or port {port} here")
    if place.around.patience and place.around.patience[0] < PATIENCE:
        seconds, line = place.around.patience
        because = f"it ends a container that does not answer within {seconds} s, and vLLM needs a minute or more"
        yield PlaceFinding(
            Level.WARNING,
            line,
            "probe",
            because,
            "a startupProbe with failureThreshold times periodSeconds of 600 or more",
        )
    several = next(
        (f"{flag} {values[flag]}" for flag in SEVERAL if re.fullmatch(r"[2-9]|\d\d+", values.get(flag, ""))), ""
    )
    if several and place.around.shares_memory is False:
        because = "its processes share memory in /dev/shm, of which an engine gives 64 MB"
        instead = "emptyDir with medium Memory at /dev/shm" if place.kind == "kubernetes" else "shm_size or ipc: host"
        yield PlaceFinding(Level.WARNING, place.line, several, because, instead)


def _values_of(words: Sequence[str]) -> dict[str, str]:
    """Return the value of each flag that these checks ask for, whatever the version is."""
    short = {"-tp": SEVERAL[0], "-pp": SEVERAL[1], "-dp": SEVERAL[2]}
    groups = split_words(words)[1]
    heads = ((short.get(group.head, group.head.replace("_", "-")), group.values) for group in groups)
    return {head: values[0] for head, values in heads if values}
