"""The vendors' commands beside what is planned instead.

A table (*.yaml) holds a manual's own commands, word for word, and what it only says in words as a command. Every
variable, flag and option in them must be in our plan too, unless the row says that it is the user's to say, or what
ours is and which words of our plan tell why.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import Field

from drydock.config.matrix import find
from drydock.model.record import Record
from drydock.run.container import Request, container
from drydock.run.docker import docker_argv
from drydock.run.machine import Machine
from entrypoints.cascade import COMMAND_LINE, ENVIRONMENT
from entrypoints.command import command
from entrypoints.model import Facts, Reason, ServePlan
from entrypoints.vllm_flags import parse_given
from entrypoints.wishes import parse_wishes
from tests.hosts import expect
from tests.support import decisions, sample

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NOWHERE = HERE / "nowhere"
"""The root of a machine without any accelerator, on which what is usual is assumed."""
GIB = 1 << 30

SAME, YOURS, BETTER = "the same", "yours", "otherwise"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_ALIASES = {"--net": "--network", "-v": "--volume", "-e": "--env", "-u": "--user", "-w": "--workdir"}
_BARE = {"-it", "-d", "--rm", "--privileged", "--read-only"}
"""Options of docker run without a value."""


class Better(Record):
    """What ours is instead, and where our plan says why."""

    ours: str
    """Empty where it is not set at all; up to a …, where the rest may change; of docker run, the options for it."""
    because: str = Field(min_length=8)
    """Words of the reason."""
    told_by: str = ""
    """Another setting with that reason, or a page of docs/; the setting's own when empty."""


class Made(Record):
    """A machine that a manual describes in words: equal NUMA nodes."""

    cores: int
    nodes: int = 1
    threads: int = 1
    """Of a core; the second threads are numbered behind all first ones, as Linux does."""
    memory: int
    """GiB."""


class Serve(Record):
    """A command that starts a server, or variables for one."""

    name: str
    lines: str
    """Of the manual."""
    command: str
    in_words: bool = False
    """Whether the manual has words, a table or a log in place of a command: then this is what they mean."""
    target: str
    host: str | Made
    """One of tests/hosts, or a machine as the manual describes it."""
    model: str
    """One of tests/models."""
    converted: bool = False
    """Whether the vendor's script made its weights for the device."""
    devices: int = 0
    """So many of the host's first device, instead of its own."""
    env: Mapping[str, str] = {}
    """What the user sets beside the manual's words."""
    wishes: Mapping[str, str] = {}
    yours: tuple[str, ...] = ()
    """Settings that only the user can know: they are passed on as they are."""
    better: Mapping[str, Better] = {}


class Start(Record):
    """A `docker run`."""

    name: str
    lines: str
    command: str
    target: str
    yours: tuple[str, ...] = ()
    better: Mapping[str, Better] = {}


class Other(Record):
    """A command that starts no server."""

    lines: str
    what: str
    here: str
    """Where the product has it, or that it has none."""
    page: str
    """Of docs/, that says so …"""
    says: str
    """… in these words."""


class Manual(Record):
    """One manual's commands."""

    seed: str
    """Its file's name."""
    title: str
    script: Mapping[str, str] = {}
    """Its own script's option → the flags, wish or variable that it means; of two, a colon parts the value."""
    serves: tuple[Serve, ...] = ()
    starts: tuple[Start, ...] = ()
    others: tuple[Other, ...] = ()


class Line(NamedTuple):
    """One setting of the manual's beside ours."""

    setting: str
    theirs: str
    ours: str
    verdict: str
    because: str
    problem: str
    """What is wrong with the row; empty when nothing is."""


def manuals() -> list[Manual]:
    """Read every table."""
    return [Manual.model_validate(yaml.safe_load(path.read_text())) for path in sorted(HERE.glob("*.yaml"))]


# --- the manual's words ---------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """Split a shell command, its comments and `export` left out."""
    joined = text.replace("\\\n", " ").replace("\n", " ")
    return [word for word in shlex.split(joined) if word not in ("export", "$")]


def settings(text: str, script: Mapping[str, str]) -> dict[str, str]:
    """Return the variables and flags of a command that serves, flags by their whole names; a bare one is `true`."""
    words = words_of(text)
    if words[0] == "bash":
        return _translated(words[2:], script)
    found = dict(word.split("=", 1) for word in words if _VARIABLE.match(word))
    start = next((at for at, word in enumerate(words) if word.startswith("-") and word != "-m"), len(words))
    given = parse_given(tuple(words[start:]), {})
    flags = {
        name: str(flag.value).lower() if flag.value is True else str(flag.value) for name, flag in given.flags.items()
    }
    return found | {name: value for name, value in flags.items() if name != "--model"}


def _translated(words: list[str], script: Mapping[str, str]) -> dict[str, str]:
    """Return what a script's options mean, each of which has a value."""
    found: dict[str, str] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        names = script[option].split()
        found.update(zip(names, value.split(":") if len(names) > 1 else (value,), strict=True))
    return {name: value for name, value in found.items() if name != "--model"}


def options(words: Iterable[str]) -> set[str]:
    """Return the options of docker run, each as one word: --device=/dev/kfd, --volume=/data:/data, --rm."""
    found, left = set(), list(words)
    while left and left[0].startswith("-"):
        name, equals, value = left.pop(0).partition("=")
        if name not in _BARE and not equals:
            value = left.pop(0)
        found.add(_option(_ALIASES.get(name, name), value))
    return found


def _option(name: str, value: str) -> str:
    if name in _BARE:
        return name
    if name == "--mount":
        fields = dict(part.partition("=")[::2] for part in value.split(","))
        return f"--volume={fields['source']}:{fields['target']}"
    spelt = {
        "--cap-add": value.upper().removeprefix("CAP_"),
        "--shm-size": value.lower(),
        "--volume": value.rstrip("/").replace("/:", ":"),
    }
    return f"{name}={spelt.get(name, value)}"


# --- ours -----------------------------------------------------------------------------------------------------------


def plan(row: Serve, script: Mapping[str, str]) -> ServePlan:
    """Plan what the row asks for, with nothing said but what is the user's to say."""
    profile, theirs = _profile(row.target), settings(row.command, script)
    said = {name: theirs[name] for name in row.yours}
    flags = tuple(f"{name}={value}" for name, value in said.items() if name.startswith("-") and value != "true")
    bare = tuple(name for name, value in said.items() if value == "true")
    env = {name: value for name, value in said.items() if not name.startswith("-")}
    given = parse_given((row.model, *flags, *bare), {**env, **row.env}, (), parse_wishes(row.wishes))
    model = decisions.models()[row.model]._replace(converted=row.converted)
    return command(profile, _facts(row, profile), model, given)


def _profile(target: str) -> dict[str, Any]:
    variant = find(expect.VARIANTS, target)
    profile: dict[str, Any] = json.loads((ROOT / "images" / variant.id / "profile.json").read_text())
    return profile


def _facts(row: Serve, profile: dict[str, Any]) -> Facts:
    if isinstance(row.host, str):
        seen = expect.read(row.host, profile)
        many = tuple(seen.devices[0]._replace(number=number) for number in range(row.devices))
        return seen._replace(devices=many) if many else seen
    made = row.host
    plain = sample.facts(made.cores, made.nodes, made.memory * GIB)
    return plain if made.threads == 1 else _threaded(plain, made)


def _threaded(plain: Facts, made: Made) -> Facts:
    numbers = [tuple(core + made.cores * thread for thread in range(made.threads)) for core in range(made.cores)]
    cpus = tuple(
        cpu._replace(id=number, siblings=numbers[cpu.id])
        for thread in range(made.threads)
        for cpu in plain.cpus
        for number in (numbers[cpu.id][thread],)
    )
    nodes = tuple(
        node._replace(cpus=tuple(numbers[core][thread] for thread in range(made.threads) for core in node.cpus))
        for node in plain.nodes
    )
    return plain._replace(cpus=cpus, nodes=nodes)


# --- both -----------------------------------------------------------------------------------------------------------


def compare_serve(row: Serve, script: Mapping[str, str]) -> list[Line]:
    """Compare a command's every setting with our plan's."""
    ours, manual = plan(row, script), settings(row.command, script)
    reasons = {reason.setting: reason for reason in ours.reasons}
    texts = {name: (reason.because, *reason.instead) for name, reason in reasons.items()}
    texts |= {finding.id: (finding.text, finding.found, finding.expected) for finding in ours.findings}
    lines = (
        _wish_line(name, theirs, row.wishes[name])
        if name in row.wishes
        else _setting_line(row, name, theirs, reasons.get(name), texts)
        for name, theirs in manual.items()
    )
    return [*lines, *_unused(row, manual)]


def _wish_line(name: str, theirs: str, wished: str) -> Line:
    return Line(name, theirs, wished, YOURS, "", "" if wished == theirs else "not what is wished for")


def _setting_line(
    row: Serve, name: str, theirs: str, reason: Reason | None, texts: Mapping[str, tuple[str, ...]]
) -> Line:
    value = "" if reason is None or (reason.value == "false" and name.startswith("-")) else reason.value
    said = reason is not None and reason.origin in (COMMAND_LINE, ENVIRONMENT)
    better = row.better.get(name)
    if name in row.yours:
        return Line(name, theirs, value, YOURS, "", "" if said and value == theirs else f"not passed on: {value}")
    if better is None:
        problem = f"ours is {value or 'not set'}" if value != theirs else "said, not decided" if said else ""
        return Line(name, theirs, value, SAME, reason.because if reason else "", problem)
    beginning, cut, _ = better.ours.partition("…")
    differs = value != better.ours and not (cut and value.startswith(beginning))
    problem = f"ours is {value or 'not set'}, not {better.ours}" if differs else _untold(better, name, texts)
    return Line(name, theirs, better.ours, BETTER, better.because, "it is the same" if value == theirs else problem)


def compare_start(row: Start) -> list[Line]:
    """Compare every option of a docker run with ours."""
    variant = find(expect.VARIANTS, row.target)
    ours = container(variant, Request(model="org/model"), Machine(NOWHERE))
    words = words_of(row.command)
    theirs = sorted(options(words[words.index("run") + 1 :]))
    texts = {"": ours.notes} | {item["setting"]: (item["because"],) for item in _profile(row.target)["settings"]}
    there = options(docker_argv(ours)[2:])
    return [*(_option_line(row, option, there, texts) for option in theirs), *_unused(row, theirs)]


def _option_line(row: Start, option: str, there: set[str], texts: Mapping[str, tuple[str, ...]]) -> Line:
    has, better = option in there, row.better.get(option)
    twice = "ours has it as well" if has else ""
    if option in row.yours:
        return Line(option, option, "", YOURS, "", twice)
    if better is None:
        return Line(option, option, option, SAME, _note(option, texts[""]), "" if has else "ours has no such option")
    absent = [word for word in better.ours.split() if word not in there]
    problem = f"ours has no {' '.join(absent)}" if absent else _untold(better, "", texts)
    return Line(option, option, better.ours, BETTER, better.because, twice or problem)


def _note(option: str, notes: tuple[str, ...]) -> str:
    """Return why we have an option, where a note says so."""
    words = re.sub(r"--volume=([^:]*):.*", r"--mount \1", option).replace("=", " ", 1).lower()
    found = (note.split(": ", 1)[1] for note in notes if re.split(r": | \(where", note)[0].lower() == words)
    return next(found, "")


def _untold(better: Better, name: str, texts: Mapping[str, tuple[str, ...]]) -> str:
    """Say that nothing of ours gives this reason."""
    where = better.told_by or name
    told = (ROOT / where).read_text() if where.startswith("docs/") else "\n".join(texts.get(where, ()))
    return "" if better.because in told else f"{where or 'no note'} does not say {better.because!r}, but {told[:200]!r}"


def _unused(row: Serve | Start, theirs: Container[str]) -> Iterator[Line]:
    for name in (*row.yours, *row.better):
        if name not in theirs:
            yield Line(name, "", "", "", "", "the manual's command has no such setting")
