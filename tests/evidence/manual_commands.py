"""Compare the vendors' commands with drydock's plans.

Each table (*.yaml) contains the commands of one manual, word for word. Settings that the manual only describes in words
are written as a command. Every variable, flag and option must have the same value in our plan, unless the row either
lists it as the user's (`yours`), or states our value and the words of our plan that give the reason (`better`).
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import Field, model_validator

from drydock.config.matrix import find_variant
from drydock.model.record import Record
from drydock.run.container import RunRequest, make_container
from drydock.run.docker_command import docker_argv
from drydock.run.machine import Machine
from drydock.run.option_reasons import list_record_options
from entrypoints.core.records import Facts, Reason, ServePlan
from entrypoints.core.settings_precedence import COMMAND_LINE, ENVIRONMENT
from entrypoints.decide.parallelism.devices import arrange_devices
from entrypoints.facts.derived import make_idle
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.flags import PIPELINE, TENSOR
from entrypoints.request.intents import parse_intents
from entrypoints.request.vllm_flags import parse_user_flags
from tests.evidence import decisions
from tests.support import sample
from tests.support.containers import recorded
from tests.support.hosts import expect

ROOT = Path(__file__).resolve().parents[2]
MANUALS = ROOT / "tests" / "manuals"
NOWHERE = MANUALS / "nowhere"
"""The root of a machine without an accelerator: the defaults are assumed."""
GIB = 1 << 30

SAME, YOURS, BETTER = "same", "passed on", "different"
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")
_ALIASES = {"--net": "--network", "-v": "--volume", "-e": "--env", "-u": "--user", "-w": "--workdir"}
_BARE = {"-it", "-d", "--rm", "--privileged", "--read-only"}
"""Options of docker run without a value."""


class Better(Record):
    """Our value instead, and the place of its reason."""

    ours: str
    """Empty if not set; only the text before a … is compared; for docker run, our options for the same purpose."""
    because: str = Field(min_length=8)
    """A part of the reason's text."""
    stated_in: str = ""
    """Another setting with this reason, or a page of docs/. If empty, the setting itself has the reason."""


class Made(Record):
    """A machine that a manual describes in words; its NUMA nodes are equal."""

    cores: int
    nodes: int = 1
    threads: int = 1
    """Per core. As on Linux, the second threads have higher numbers than all first ones."""
    memory: int
    """GiB."""


class Serve(Record):
    """A command that starts a server, or variables for a server."""

    name: str
    lines: str
    """Of the manual."""
    command: str
    in_words: bool = False
    """Whether the manual has text, a table or a log instead of a command; `command` then has the same meaning."""
    target: str
    host: str | Made
    """One of tests/hosts, or a machine that the manual describes."""
    model: str
    """One of tests/models."""
    converted: bool = False
    """Whether the vendor's script converted its weights for the device."""
    devices: int = 0
    """If set, the machine has this number of copies of its first device."""
    env: Mapping[str, str] = {}
    """Variables that the user sets in addition to the manual's command."""
    request: Mapping[str, str] = {}
    yours: tuple[str, ...] = ()
    """Settings that only the user can know; they are passed on unchanged."""
    better: Mapping[str, Better] = {}


class Start(Record):
    """A `docker run`."""

    name: str
    lines: str
    command: str
    target: str
    host: str = ""
    """One of tests/hosts, whose device files and PCI cards decide on some options; empty if none does."""
    yours: tuple[str, ...] = ()
    better: Mapping[str, Better] = {}


class Manual(Record):
    """One manual's commands.

    In its table, `usual` has what rows leave out, for `serves` and for `starts`. Of its `better`, a row takes the
    settings that its command has; where our value is the same, the row says null.
    """

    seed: str
    """Its file's name."""
    title: str
    script: Mapping[str, str] = {}
    """Option of the manual's own script → our flag, option or variable; a colon separates the values of two."""
    serves: tuple[Serve, ...] = ()
    starts: tuple[Start, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        usual = data.pop("usual", {})
        rows = {
            kind: [_completed(row, usual_values, data.get("script", {})) for row in data[kind]]
            for kind, usual_values in usual.items()
        }
        return data | rows


def _completed(row: Mapping[str, Any], usual: Mapping[str, Any], script: Mapping[str, str]) -> dict[str, Any]:
    """Return a row with what is usual in its manual."""
    text = row["command"]
    named_settings = started(text) if text.startswith("docker ") else settings(text, script)
    better = {name: value for name, value in usual.get("better", {}).items() if name in named_settings} | row.get(
        "better", {}
    )
    return {**usual, **row, "better": {name: value for name, value in better.items() if value is not None}}


class Line(NamedTuple):
    """One setting of the manual, compared with ours."""

    setting: str
    theirs: str
    ours: str
    verdict: str
    because: str
    problem: str
    """What is wrong with the row; empty if it is correct."""


class Part(NamedTuple):
    """A row and the result of its comparison."""

    row: Serve | Start
    lines: tuple[Line, ...]


def manuals() -> list[Manual]:
    """Read every table."""
    return [Manual.model_validate(yaml.safe_load(path.read_text())) for path in sorted(MANUALS.glob("*.yaml"))]


# --- the manual's text ----------------------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """Split a shell command; comments and `export` are omitted."""
    joined = text.replace("\\\n", " ").replace("\n", " ")
    return [word for word in shlex.split(joined) if word not in ("export", "$")]


def settings(text: str, script: Mapping[str, str]) -> dict[str, str]:
    """Return the variables and flags of a serve command. Flags have their full names; one without a value is `true`."""
    words = words_of(text)
    if words[0] == "bash":
        return _translated(words[2:], script)
    variables = dict(word.split("=", 1) for word in words if _VARIABLE.match(word))
    start = next((at for at, word in enumerate(words) if word.startswith("-") and word != "-m"), len(words))
    user_flags = parse_user_flags(tuple(words[start:]), {})
    flags = {
        name: str(flag.value).lower() if flag.value is True else str(flag.value)
        for name, flag in user_flags.flags.items()
    }
    return variables | {name: value for name, value in flags.items() if name != "--model"}


def _translated(words: list[str], script: Mapping[str, str]) -> dict[str, str]:
    """Translate the options of a manual's script, each of which has a value."""
    flag_values: dict[str, str] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        names = script[option].split()
        flag_values.update(zip(names, value.split(":") if len(names) > 1 else (value,), strict=True))
    return {name: value for name, value in flag_values.items() if name != "--model"}


def options(words: Iterable[str]) -> set[str]:
    """Return the options of docker run, each as one word: --device=/dev/kfd, --volume=/data:/data, --rm.

    An image of a registry is one of them; the name of an image that was built before is not.
    """
    container_options, remaining = set(), list(words)
    while remaining and remaining[0].startswith("-"):
        name, equals, value = remaining.pop(0).partition("=")
        if name not in _BARE and not equals:
            value = remaining.pop(0)
        container_options.add(_option(_ALIASES.get(name, name), value))
    return container_options | {image for image in remaining[:1] if "/" in image}


def started(text: str) -> set[str]:
    """Return the options of a docker run, as text."""
    words = words_of(text)
    return options(words[words.index("run") + 1 :])


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
    """Plan the row's request, with only the user's own settings given."""
    profile, theirs = _profile(row.target), settings(row.command, script)
    user_values = {name: theirs[name] for name in row.yours}
    flags = tuple(f"{name}={value}" for name, value in user_values.items() if name.startswith("-") and value != "true")
    bare = tuple(name for name, value in user_values.items() if value == "true")
    env = {name: value for name, value in user_values.items() if not name.startswith("-")}
    user_flags = parse_user_flags((row.model, *flags, *bare), {**env, **row.env}, (), parse_intents(row.request))
    model = decisions.models()[row.model]._replace(converted=row.converted)
    facts, device_count = _facts(row, profile), int(theirs.get(TENSOR, "1")) * int(theirs.get(PIPELINE, "1"))
    if (
        1 < device_count < len(facts.devices) and not row.devices
    ):  # the container gets as many cards as the command uses
        facts = facts._replace(devices=arrange_devices(facts.devices, facts.links, device_count, 1)[0])
    return make_serve_plan(profile, facts, model, user_flags)


def _profile(target: str) -> dict[str, Any]:
    return expect.profile_in(target)


def _facts(row: Serve, profile: dict[str, Any]) -> Facts:
    if isinstance(row.host, str):
        host_facts = make_idle(expect.read(row.host, profile))  # the manual's machine runs nothing else
        many = tuple(host_facts.devices[0]._replace(number=number) for number in range(row.devices))
        return host_facts._replace(devices=many) if many else host_facts
    host = row.host
    plain = sample.facts(host.cores, host.nodes, host.memory * GIB)
    return plain if host.threads == 1 else _threaded(plain, host)


def _threaded(plain: Facts, host: Made) -> Facts:
    numbers = [tuple(core + host.cores * thread for thread in range(host.threads)) for core in range(host.cores)]
    cpus = tuple(
        cpu._replace(id=number, siblings=numbers[cpu.id])
        for thread in range(host.threads)
        for cpu in plain.cpus
        for number in (numbers[cpu.id][thread],)
    )
    nodes = tuple(
        node._replace(cpus=tuple(numbers[core][thread] for thread in range(host.threads) for core in node.cpus))
        for node in plain.nodes
    )
    return plain._replace(cpus=cpus, nodes=nodes)


# --- both -----------------------------------------------------------------------------------------------------------


@cache
def compared() -> tuple[tuple[Manual, tuple[Part, ...]], ...]:
    return tuple((manual, tuple(_parts(manual))) for manual in manuals())


def _parts(manual: Manual) -> Iterator[Part]:
    yield from (Part(row, tuple(compare_serve(row, manual.script))) for row in manual.serves)
    yield from (Part(row, tuple(compare_start(row))) for row in manual.starts)


def compare_serve(row: Serve, script: Mapping[str, str]) -> list[Line]:
    """Compare every setting of a command with our plan."""
    ours, manual = plan(row, script), settings(row.command, script)
    reasons = {reason.setting: reason for reason in ours.reasons}
    texts = {name: (reason.because, *reason.instead) for name, reason in reasons.items()}
    texts |= {finding.id: (finding.text, finding.found, finding.expected) for finding in ours.findings}
    lines = (
        _request_line(name, theirs, row.request[name])
        if name in row.request
        else _setting_line(row, name, theirs, reasons.get(name), texts)
        for name, theirs in manual.items()
    )
    return [*lines, *_unused(row, manual)]


def _request_line(name: str, theirs: str, requested: str) -> Line:
    return Line(name, theirs, requested, YOURS, "", "" if requested == theirs else f"the row requests {requested}")


def _setting_line(
    row: Serve, name: str, theirs: str, reason: Reason | None, texts: Mapping[str, tuple[str, ...]]
) -> Line:
    value = "" if reason is None or (reason.value == "false" and name.startswith("-")) else reason.value
    is_user_set = reason is not None and reason.origin in (COMMAND_LINE, ENVIRONMENT)
    better = row.better.get(name)
    if name in row.yours:
        return Line(
            name, theirs, value, YOURS, "", "" if is_user_set and value == theirs else f"not passed on: {value}"
        )
    if better is None:
        problem = (
            f"ours is {value or 'not set'}" if value != theirs else "set by the user, not chosen" if is_user_set else ""
        )
        return Line(name, theirs, value, SAME, reason.because if reason else "", problem)
    beginning, cut, _ = better.ours.partition("…")
    differs = value != better.ours and not (cut and value.startswith(beginning))
    problem = f"ours is {value or 'not set'}, not {better.ours}" if differs else _unstated(better, name, texts)
    return Line(name, theirs, better.ours, BETTER, better.because, "it is the same" if value == theirs else problem)


def compare_start(row: Start) -> list[Line]:
    """Compare every option of a docker run with ours."""
    variant = find_variant(expect.VARIANTS, row.target)
    with tempfile.TemporaryDirectory() as folder:
        here = recorded(row.host, Path(folder)) if row.host else Machine(NOWHERE)
        ours = make_container(variant, RunRequest(model="org/model"), here)
    theirs = sorted(started(row.command))
    reasons = (f"{option}: {because}" for option, because, _ in list_record_options(ours.record))
    texts = {item["setting"]: (item["because"],) for item in _profile(row.target)["settings"]}
    texts[""] = (*reasons, *ours.notes)
    there = options(docker_argv(ours)[2:])
    if variant.base.kind == "image":
        there.add(variant.base.reference)
    return [*(_option_line(row, option, there, texts) for option in theirs), *_unused(row, theirs)]


def _option_line(row: Start, option: str, there: set[str], texts: Mapping[str, tuple[str, ...]]) -> Line:
    has, better = option in there, row.better.get(option)
    twice = "ours has it as well" if has else ""
    if option in row.yours:
        return Line(option, option, "", YOURS, "", twice)
    if better is None:
        return Line(option, option, option, SAME, _note(option, texts[""]), "" if has else "ours has no such option")
    absent = [word for word in better.ours.split() if word not in there]
    problem = f"ours has no {' '.join(absent)}" if absent else _unstated(better, "", texts)
    return Line(option, option, better.ours, BETTER, better.because, twice or problem)


def _note(option: str, notes: tuple[str, ...]) -> str:
    """Return the reason of one of our options, if a note states it."""
    words = re.sub(r"--volume=([^:]*):.*", r"--mount \1", option).replace("=", " ", 1).lower()
    note_texts = (note.split(": ", 1)[1] for note in notes if re.split(r": | \(where", note)[0].lower() == words)
    return next(note_texts, "")


def _unstated(better: Better, name: str, texts: Mapping[str, tuple[str, ...]]) -> str:
    """Return a problem if our plan, notes or page do not contain this reason; otherwise an empty string."""
    where = better.stated_in or name
    text = (ROOT / where).read_text() if where.startswith("docs/") else "\n".join(texts.get(where, ()))
    return "" if better.because in text else f"{where or 'no note'} does not say {better.because!r}, but {text[:200]!r}"


def _unused(row: Serve | Start, theirs: Container[str]) -> Iterator[Line]:
    for name in (*row.yours, *row.better):
        if name not in theirs:
            yield Line(name, "", "", "", "", "the manual's command has no such setting")
