"""What drydock does for each step of the vendors' manuals: the records of steps/*.yaml, and their checks.

The manuals are not in the repository. With DRYDOCK_MANUALS, the folder that has them, tests check that every line of a
manual is in a step or is known to ask for nothing.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import yaml
from invoke.exceptions import ParseError
from invoke.parser import Parser, ParserContext
from pydantic import Field, model_validator

from drydock.cli import cli
from drydock.cli.verb_table import COMMANDS
from drydock.config.matrix import find_variant
from drydock.core.errors import DrydockError
from drydock.model.record import Record
from entrypoints.core.errors import EntrypointError
from entrypoints.request.arguments import parse_arguments
from tests.support.hosts import expect

ROOT = Path(__file__).resolve().parents[2]
MANUALS = ROOT / "tests" / "manuals"
MANUALS_VARIABLE = "DRYDOCK_MANUALS"
"""The variable with the folder of the manuals."""

CLIENTS = ("ansible-playbook", "curl")
"""Programs of the user's machine that a step may name."""
EXECUTED = ("bash", "huggingface-cli", "neuron-ls", "omni_cli", "python3", "ray")
"""Programs in an image that are not verbs."""
EXAMPLES = {"ascend-w8a8": "examples/ascend-w8a8"}
"""An image that an example builds → its folder."""
_REPLACED = {"…": "x", "IMG": "image"}


class Step(Record):
    """One step of a manual, and its answer. `as` takes the answer of another manual's step."""

    lines: str
    """Of the manual: "3-5, 9"."""
    what: str = ""
    """In our words."""
    same: str = Field(default="", alias="as")
    """Lines of a step of the manual that the account is `like`."""
    do: tuple[str, ...] = ()
    """Our commands."""
    compare: tuple[str, ...] = ()
    """Rows of the comparison of commands, which have the command and each of its settings."""
    differs: str = ""
    """What else is otherwise with us, and why. Settings that `compare` finds different are not repeated."""
    out: str = ""
    """Why drydock does not do it."""
    go: str = ""
    """Where to go instead: an address."""
    page: str = ""
    """A page of docs/, or a heading: docs/run.md#who-can-connect."""
    says: str = ""
    """Words on that page."""
    host: str = ""
    """The recorded host for `do`, if it is not the usual one of the target in the account's `machines`."""
    model: str = ""
    """The model that `M` is, if it is not the usual one."""
    image: str = ""
    """The target that `IMG` is an image of, if it is not the account's."""
    code: int = 0
    """The exit code of `do`, such as of a check that finds no machine."""
    shows: tuple[str, ...] = ()
    """Words that the run of `do` must print: the manual's value. Options of the user need none: each must be taken."""
    counter: tuple[str, ...] = ()
    """Commands whose run must print none of these words; by default `do` for another row, machine, model or file."""
    other_host: str = ""
    """The machine of the counter-case, if it is not that of the account's `machines`."""
    verdict: Literal["", "weak", "false"] = ""
    """What the step is known to be, if it is neither true nor out of scope."""
    because: str = ""
    """Why it is no better."""

    @model_validator(mode="before")
    @classmethod
    def _one(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return data | {name: [data[name]] for name in ("do", "shows", "counter") if isinstance(data.get(name), str)}

    @model_validator(mode="after")
    def _answered(self) -> Self:
        answers = bool(self.same), bool(self.do or self.compare), bool(self.out)
        if sum(answers) != 1:
            raise ValueError(f"{self.lines}: expected either `as`, or `do` or `compare`, or `out`")
        if not (self.same or self.what) or (self.same and self.what):
            raise ValueError(f"{self.lines}: expected `what`, unless `as` is given")
        if bool(self.verdict) != bool(self.because) or (self.counter and not self.shows):
            raise ValueError(f"{self.lines}: `verdict` needs `because`, and `counter` needs `shows`")
        if (self.out and self.differs) or (self.go and not self.out) or (self.says and not self.page):
            raise ValueError(f"{self.lines}: `differs` is not for `out`, `go` only for it, and `says` needs `page`")
        return self


class Section(Record):
    """A heading of a manual."""

    line: int
    title: str
    steps: tuple[Step, ...] = ()
    prose: tuple[str, ...] = ()
    """Lines that ask for nothing: introductions, and where something is explained that a step covers."""


class Like(Record):
    """The manual from which `as` takes answers."""

    seed: str
    targets: Mapping[str, str] = {}
    """Its targets → this manual's."""


class Machine(Record):
    """Where the commands for a target are run."""

    host: str = ""
    """One of tests/hosts."""
    model: str = ""
    """What `M` is: a model that drydock knows by its hub id."""
    other: str = ""
    """Where a step's words must be absent: another row …"""
    other_host: str = ""
    """… another machine …"""
    other_model: str = ""
    """… and another model."""


class Account(Record):
    """All sections of one manual."""

    seed: str
    title: str
    lines: int
    """How many the manual has."""
    machines: Mapping[str, Machine] = {}
    """Target → its machine."""
    other: str = ""
    """The row whose image must lack the words of a step about an image, unless the machine names one."""
    image: str = ""
    """The target that `IMG` is an image of."""
    like: Like | None = None
    sections: tuple[Section, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(step for section in self.sections for step in section.steps)


class Block(NamedTuple):
    """A manual as a test sees it."""

    headings: frozenset[int]
    code: frozenset[int]
    """Lines inside a fence, and both fences."""
    text: frozenset[int]
    """Other lines that are not empty."""


def accounts() -> list[Account]:
    """Read every account, with `as` filled in."""
    paths = sorted((MANUALS / "steps").glob("*.yaml"))
    read = [Account.model_validate(yaml.safe_load(path.read_text())) for path in paths]
    accounts_by_seed = {account.seed: account for account in read}
    return [_filled(account, accounts_by_seed) for account in read]


def _filled(account: Account, accounts_by_seed: Mapping[str, Account]) -> Account:
    if account.like is None:
        return account
    like_steps = {step.lines: step for step in accounts_by_seed[account.like.seed].steps}
    targets = account.like.targets

    def filled(section: Section) -> Section:
        return section.model_copy(update={"steps": tuple(_taken(step, like_steps, targets) for step in section.steps)})

    return account.model_copy(update={"sections": tuple(map(filled, account.sections))})


def _taken(step: Step, like_steps: Mapping[str, Step], targets: Mapping[str, str]) -> Step:
    if not step.same:
        return step
    like_step = like_steps[step.same]
    commands = tuple(" ".join(targets.get(word, word) for word in command.split(" ")) for command in like_step.do)
    counter = tuple(" ".join(targets.get(word, word) for word in command.split(" ")) for command in like_step.counter)
    fields = {
        "lines": step.lines,
        "same": step.same,
        "shows": step.shows or like_step.shows,
        "counter": step.counter or counter,
    }
    return like_step.model_copy(update={**fields, "do": commands, "says": ""})


def numbers(lines: str) -> list[int]:
    """Return the line numbers of "3-5, 9". Raises ValueError."""
    line_numbers: list[int] = []
    for part in lines.split(", "):
        first, _, last = part.partition("-")
        line_numbers += range(int(first), int(last or first) + 1)
    if not line_numbers or any(later <= earlier for earlier, later in pairwise(line_numbers)):
        raise ValueError(f"{lines}: expected rising line numbers")
    return line_numbers


# --- the manual's own text ------------------------------------------------------------------------------------------


def manual(seed: str) -> Block | None:
    """Read a manual from the folder that DRYDOCK_MANUALS names; None if the variable is not set."""
    folder = os.environ.get(MANUALS_VARIABLE)
    return blocks((Path(folder) / seed).read_text()) if folder else None


def blocks(text: str) -> Block:
    """Tell headings, code and other text apart, by line number."""
    headings, code, text_lines = set(), set(), set()
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        if inside or fence:
            code.add(number)
            inside ^= fence
        elif re.match(r"#+ ", line):
            headings.add(number)
        elif line.strip(" >") and line.strip() != "---":
            text_lines.add(number)
    return Block(frozenset(headings), frozenset(code), frozenset(text_lines))


# --- our commands ---------------------------------------------------------------------------------------------------


def problem(command: str) -> str:
    """Return what does not exist in a command of ours: a task, an option, a verb, a flag, a target. Empty if all do."""
    words = [_REPLACED.get(word, word) for word in shlex.split(command)]
    if words[0] == "./inv":
        return _task_problem(words[1:])
    folder = next((folder for image, folder in EXAMPLES.items() if image in words), "")
    if folder:
        return "" if (ROOT / folder).is_dir() else f"no folder {folder}"
    if words[:2] == ["docker", "run"]:
        return _verb_problem(words[words.index("image") + 1 :]) if "image" in words else f"{command}: no IMG"
    return "" if words[0] in CLIENTS else f"no program {words[0]}"


def _task_problem(words: list[str]) -> str:
    task_words, _, rest = cli._split_at_dashes(words)
    verbs, parser = _tasks()
    try:
        parsed_tasks = parser.parse_argv(
            [*cli._check_words(cli._join_task_words(cli._rename_verb(task_words, verbs), verbs.contexts), verbs)]
        )
        (parsed,) = (context for context in parsed_tasks if context.name)
        _check_target(parsed)
    except (DrydockError, ParseError) as error:
        return f"no task {' '.join(task_words[:2])}" if "unknown task" in str(error) else _short(error)
    if not rest:
        return ""
    return _verb_problem(["serve", "model", *rest] if rest[0].startswith("-") else rest)


def _check_target(parsed: ParserContext) -> None:
    """Raise TargetError if --target names nothing in the matrix."""
    value = parsed.args["target"].value if "target" in parsed.args else ""
    for target in [value] if isinstance(value, str) else value or ():
        if target not in ("", "auto"):
            find_variant(expect.VARIANTS, target)


@cache
def _tasks() -> tuple[cli.Verbs, Parser]:
    verbs = cli.Verbs(COMMANDS)
    return verbs, Parser(contexts=[*verbs.contexts.values()])


def _verb_problem(words: list[str]) -> str:
    try:
        parsed = parse_arguments(tuple(words))
    except EntrypointError as error:
        return _short(error)
    return f"no verb {words[0]}" if parsed.verb == "exec" and Path(words[0]).name not in EXECUTED else ""


def _short(error: Exception) -> str:
    return str(error).splitlines()[0]


# --- links ----------------------------------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and site generators name them, and those that it sets."""
    headings = [re.sub("<[^>]*></a>", "", heading) for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]
    return {*anchor_names(headings), *re.findall(r'<a id="([\w-]+)"></a>', page)}


def anchor_names(headings: list[str]) -> list[str]:
    """Return an anchor for each heading; those of equal headings are numbered."""
    counts: dict[str, int] = {}
    page_anchors = []
    for heading in headings:
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        page_anchors.append(plain + (f"-{counts[plain]}" if plain in counts else ""))
        counts[plain] = counts.get(plain, 0) + 1
    return page_anchors
