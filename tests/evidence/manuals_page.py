"""docs/reference/manuals.md and a page for each of the vendors' manuals, which `./inv generate` writes.

A manual's page has what takes the place of each step, and compares its commands with drydock's plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drydock.core.paths import ROOT
from tests.evidence import manual_account
from tests.evidence.decisions import table
from tests.evidence.manual_account import Answer, cell, code, link, stem
from tests.evidence.manual_commands import BETTER, SAME, YOURS, Line, Part, compared
from tests.evidence.manual_steps import Account

REFERENCE = ROOT / "docs" / "reference"

_INDEX = """# Vendors' manuals

For every step of {manuals} manuals, a page says which command of drydock takes its place and what differs. Tests run
each command on a recorded host of the manual's machine, and compare each setting of the manual's commands with
drydock's plan for the same model and machine. Written by `./inv generate`.

## Steps

{steps}
A manual's page has its steps by its headings, each with the lines of the manual's text. `IMG` is the image that
`./inv build` made, `M` the model. `build` pins inputs that the lock of an image lacks ([images](images.md)). *2 of 9
the same* counts the settings of the manual's command that have the same value in the plan for a recorded machine.
*Yours* are those that you set and drydock passes on. *Shows* is what the test found in the output of the commands. The
table at the end of a page has settings with another value.

- **true**: the output has the manual's value (a setting, a variable, a flag, a finding or an exit code), which is not
  in the command itself and not in the output for a *counter-case*: another row, machine, model or file, or the command
  without the option. Every option that you set is in the plan as yours. Of a compared command, each setting has the
  same value, or is yours, or the plan gives the reason for another one.
- **weak**: the command runs, but its output for a counter-case is the same, or the test cannot show the whole step.
- **false**: the command fails, or its output lacks the value.
- **out of scope**: drydock does not do it; the page says "not in drydock", why, and where to go.

What is run: `run` as with `--print`, and then the plan of what it starts; a verb of an image as in the image, with
programs that it starts (converters, benchmarks, hccl_demo) replaced by one that prints its own arguments; `topology`
with Ansible, whose connections end at this machine; `model pull` from a hub on this machine; `curl` against a server
that answers as vLLM does. `build`, `lock` and `fetch` are not run: *shows* is then in the Dockerfile, in the lock or
in the settings of the image.

## Settings

{settings}
- **same**: drydock chooses the same value.
- **passed on**: only you can know the value: set it, and drydock passes it on.
- **different**: drydock chooses another value, for the reason on the manual's page.
"""
_PAGE = """# {title}, step by step

What takes the place of each step of the manual ([how to read it](../manuals.md#steps)).
{like}
{doubtful}## Steps
{steps}
## Settings with another value

{different}"""


def pages() -> dict[Path, str]:
    read = manual_account.every()
    accounts_by_seed = {account.seed: (account, answers) for account, answers in read}
    of_manuals = {
        REFERENCE / "manuals" / f"{stem(manual.seed)}.md": page(parts, *accounts_by_seed[manual.seed])
        for manual, parts in compared()
    }
    return {REFERENCE / "manuals.md": index(read)} | of_manuals


def index(read: Sequence[tuple[Account, list[Answer]]]) -> str:
    """Return the page that leads to the manuals."""
    lines = {manual.title: [line for part in parts for line in part.lines] for manual, parts in compared()}
    lines["all"] = [line for manual_lines in lines.values() for line in manual_lines]
    rows = ([title, *_numbers(manual_lines)] for title, manual_lines in lines.items())
    settings = table(["manual", "settings", SAME, YOURS, BETTER], rows)
    return _INDEX.format(manuals=len(read), steps=manual_account.counts(read), settings=settings)


def _numbers(lines: Sequence[Line]) -> list[str]:
    kinds = [line.verdict for line in lines]
    return [str(len(kinds)), *(str(kinds.count(name)) for name in (SAME, YOURS, BETTER))]


def page(parts: Sequence[Part], account: Account, answers: list[Answer]) -> str:
    return _PAGE.format(
        title=account.title,
        like=_like(account),
        doubtful=manual_account.open_text(answers),
        steps=manual_account.steps_text(account, answers),
        different=_different(parts, account),
    )


def _like(account: Account) -> str:
    """Return which other manual steps refer to, and what else its targets are called here."""
    if account.like is None:
        return ""
    targets = ", ".join(
        f"`{their_target}` is `{our_target}` here" for their_target, our_target in account.like.targets.items()
    )
    return f"\nSteps that refer to lines are as in {_manual(account.like.seed)}{f'; {targets}' if targets else ''}.\n"


def _manual(seed: str) -> str:
    title = next(manual.title for manual, _ in compared() if manual.seed == seed)
    return f"[{title}]({stem(seed)}.md)"


def _like_parts(account: Account) -> Sequence[Part]:
    """Return the commands of the manual that another one is like."""
    return next((parts for manual, parts in compared() if account.like and manual.seed == account.like.seed), ())


def _different(parts: Sequence[Part], account: Account) -> str:
    """Return a line for each setting that has another value, with the lines of the commands that have it.

    Lines that the page of the manual has that this one is like are not repeated.
    """
    rows, like_rows = _rows(parts), _rows(_like_parts(account))
    lines = [
        [name, _once(values), ours, why, _once(where)]
        for (name, ours, why), (values, where) in rows.items()
        if {*values} - {*like_rows.get((name, ours, why), ([], []))[0]}
    ]
    table_text = table(["setting", "manual", "drydock", "reason", "lines"], lines)
    if account.like is None:
        return table_text
    return f"{table_text}\n{len(rows) - len(lines)} others are as in {_manual(account.like.seed)}.\n"


def _rows(parts: Sequence[Part]) -> dict[tuple[str, str, str], tuple[list[str], list[str]]]:
    """Return setting, our value and reason → the manual's values, and the lines of its commands."""
    rows: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for part in parts:
        for line in part.lines:
            if line.verdict == BETTER:
                ours = code(line.ours) if line.ours else "not set"
                theirs = "" if line.theirs == line.setting else code(line.theirs)
                entry = rows.setdefault((code(line.setting), ours, _reason(part, line)), ([], []))
                entry[0].append(theirs)
                entry[1].append(part.row.lines)
    return rows


def _once(texts: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _reason(part: Part, line: Line) -> str:
    improvement = part.row.better.get(line.setting)
    where = improvement.stated_in if improvement else ""
    source = link(where) if where.startswith("docs/") else f"`{where}`"
    return cell(line.because) + (f" ({source})" if where else "")
