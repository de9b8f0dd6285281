"""The text about the steps of the vendors' manuals, in docs/reference/manuals*: what takes the place of each step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import NamedTuple

from tests.evidence import manual_runs
from tests.evidence.decisions import table
from tests.evidence.manual_commands import SAME, YOURS, Made, Part, Serve, Start, compared
from tests.evidence.manual_runs import Outcome
from tests.evidence.manual_steps import Account, Section, Step, accounts

OUT = "out of scope"
VERDICTS = (*manual_runs.VERDICTS, OUT)
NOT_IN_DRYDOCK = "not in drydock"
DOCS, REFERENCE = "../../", "docs/reference/"
"""From a manual's page to docs/, and the folder that the page of all manuals is in."""


class Answer(NamedTuple):
    """The answer to a step, with the comparisons that it names."""

    account: Account
    section: Section
    step: Step
    parts: tuple[Part, ...]

    @property
    def outcome(self) -> Outcome:
        """The word for the step, from the runs of its commands and the comparisons of its settings."""
        if self.step.out:
            return Outcome(OUT)
        problems = [f"{line.setting}: {line.problem}" for part in self.parts for line in part.lines if line.problem]
        outcome = Outcome(manual_runs.FOUND)
        if problems:
            outcome = Outcome(manual_runs.FAILED, "; ".join(problems))
        elif self.step.do:
            outcome = manual_runs.judge(self.step, self.account)
        known = Outcome(self.step.verdict, self.step.because)
        return known if self.step.verdict and outcome.verdict != manual_runs.FAILED else outcome

    @property
    def place(self) -> str:
        """The recorded host on which its commands are run; empty if they are the same for every machine."""
        verbs = ("./inv run", "./inv entrypoint", "docker run")
        on_host = any(command.startswith(verbs) for command in self.step.do)
        return manual_runs.machine_of(self.step.do[0], self.step, self.account).host if on_host else ""

    @property
    def commands(self) -> list[str]:
        return [*(" ".join(_words(part.row)) for part in self.parts), *self.step.do]


def answers(account: Account) -> list[Answer]:
    """Return the answer to each step of a manual."""
    parts = {part.row.name: part for manual, parts in compared() if manual.seed == account.seed for part in parts}
    return [
        Answer(account, section, step, tuple(parts[name] for name in step.compare))
        for section in account.sections
        for step in section.steps
    ]


def every() -> list[tuple[Account, list[Answer]]]:
    """Return every manual with the answers to its steps."""
    return [(account, answers(account)) for account in accounts()]


def counts(read: Sequence[tuple[Account, list[Answer]]]) -> str:
    """Return how many steps of each manual have which kind of answer."""
    total = [answer for _, step_answers in read for answer in step_answers]
    titles = [(f"[{account.title}](manuals/{stem(account.seed)}.md)", step_answers) for account, step_answers in read]
    rows = ([title, *_numbers(step_answers)] for title, step_answers in [*titles, ("all", total)])
    return table(["manual", "steps", *VERDICTS], rows)


def _numbers(step_answers: list[Answer]) -> list[str]:
    words = [answer.outcome.verdict for answer in step_answers]
    return [str(len(step_answers)), *(str(words.count(verdict)) for verdict in VERDICTS)]


def stem(seed: str) -> str:
    """Return the name of a manual's page, without .md."""
    return PurePath(seed).stem


def open_text(step_answers: list[Answer]) -> str:
    """Return an item for each step that is false or weak, the false ones first; empty if there is none."""
    doubtful = [(answer.outcome, answer.step) for answer in step_answers]
    items = [
        f"- **{outcome.verdict}**, {step.lines} {cell(step.what)}: {cell(outcome.problem)}\n"
        for verdict in (manual_runs.FAILED, manual_runs.BARE)
        for outcome, step in doubtful
        if outcome.verdict == verdict
    ]
    return f"## False and weak\n\n{''.join(items)}\n" if items else ""


def steps_text(account: Account, step_answers: list[Answer]) -> str:
    """Return a manual's steps by its headings, each with what takes its place; a page or heading is linked once."""
    linked: set[str] = set()
    parts = (
        f"\n### {cell(section.title)}\n\n{_section(account, [a for a in step_answers if a.section is section], linked)}"
        for section in account.sections
        if section.steps
    )
    return "".join(parts)


def _section(account: Account, step_answers: list[Answer], linked: set[str]) -> str:
    """Return an item for each command, with the steps that follow each other and have the same command."""
    return "".join(_item(account, list(steps), linked) for _, steps in groupby(step_answers, _alike))


def _alike(answer: Answer) -> tuple[object, ...]:
    step = answer.step
    return bool(step.same), () if step.same else (
        tuple(answer.commands),
        step.page,
        bool(step.out),
        step.compare and step.lines,
    )


def _item(account: Account, alike: list[Answer], linked: set[str]) -> str:
    if alike[0].step.same:
        assert account.like
        there, lines = (", ".join(words) for words in zip(*((a.step.same, a.step.lines) for a in alike), strict=True))
        return f"- **{lines}**: as [lines {there}]({stem(account.like.seed)}.md)\n"
    if len(alike) == 1:
        answer = alike[0]
        return f"- **{answer.step.lines}** {cell(answer.step.what)}{_instead(answer, linked)}{_otherwise(answer)}\n"
    step_lines = (f"    - **{answer.step.lines}** {cell(answer.step.what)}{_otherwise(answer)}\n" for answer in alike)
    return f"- {_instead(alike[0], linked).removeprefix(': ')}\n{''.join(step_lines)}"


def _instead(answer: Answer, linked: set[str]) -> str:
    """Return the commands in place of a step, with links to a page, and the comparison of settings."""
    step = answer.step
    references = {step.page: link(step.page), step.go: f"<{step.go}>"}
    links = ", ".join(text for to, text in references.items() if to and to not in linked)
    linked.update(references)
    commands = ", ".join(map(code, dict.fromkeys(answer.commands)))
    references = " ".join(filter(None, (commands, f"({links})" if links else "")))
    return "; ".join(filter(None, (f": {references}" if references else "", *map(_comparison, answer.parts))))


def _otherwise(answer: Answer) -> str:
    """Return what differs, or why drydock does not do a step."""
    step = answer.step
    text = f"{NOT_IN_DRYDOCK}: {step.out}" if step.out else step.differs
    return "".join(cell(f"; {part}") for part in (text, _shown(answer)) if part)


def _shown(answer: Answer) -> str:
    """Return what the run of a step's commands printed, and on which recorded host; or the word if it is not true."""
    if answer.outcome.verdict in (manual_runs.BARE, manual_runs.FAILED):
        return f"**{answer.outcome.verdict}**"
    shows = ", ".join(code(words) for words in answer.step.shows)
    return f"shows {shows}{f' on {answer.place}' if answer.place else ''}" if shows else ""


def _comparison(part: Part) -> str:
    """Return on which machine a command is compared, and how many of its settings are the same or passed on."""
    row, kinds = part.row, [line.verdict for line in part.lines]
    machine = f" on {_machine(row.host, row.devices)}" if isinstance(row, Serve) else ""
    request_settings = row.request if isinstance(row, Serve) else ()
    yours = ", ".join(
        code(line.setting) for line in part.lines if line.verdict == YOURS and line.setting not in request_settings
    )
    return f"{kinds.count(SAME)} of {len(kinds)} the same{machine}{f', yours: {yours}' if yours else ''}"


def _machine(host: str | Made, devices: int) -> str:
    if isinstance(host, str):
        return f"{host} with {devices} cards" if devices else host
    threads = f" of {host.threads} threads" if host.threads > 1 else ""
    nodes = f"{host.nodes} NUMA nodes" if host.nodes > 1 else "one NUMA node"
    return f"a machine of {host.cores} cores{threads}, {nodes}, {host.memory} GiB"


def _words(row: Serve | Start) -> Iterator[str]:
    yield from ("./inv run --target", row.target)
    if isinstance(row, Start):
        yield "--model M"
        return
    yield from ("--model", row.model)
    yield from (f"--env {name}={value}" for name, value in row.env.items())
    words = [f"{name} {value}" for name, value in row.request.items()]
    if words or row.yours:
        yield from ("--", *words, *(["…"] if row.yours else []))


def link(page: str) -> str:
    """Return a link to a page of docs/, from the page of a manual."""
    name = f"../{page.removeprefix(REFERENCE)}" if page.startswith(REFERENCE) else f"{DOCS}{page.removeprefix('docs/')}"
    return f"[{PurePath(page.partition('#')[0]).stem}]({name})" if page else ""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    """Return a text as code in a cell of a table."""
    return f"`{cell(text)}`" if text else ""
