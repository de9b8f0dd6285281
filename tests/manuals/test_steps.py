"""The account of every step of the manuals: nothing is left out, and what it names exists."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest

from tests.evidence import manual_account, manual_commands, manual_steps, manuals_page
from tests.evidence.manual_account import NOT_IN_DRYDOCK, stem
from tests.evidence.manual_steps import Account, Section

ACCOUNTS = manual_steps.accounts()
EACH = pytest.mark.parametrize("account", ACCOUNTS, ids=lambda account: account.seed)
ROWS = {manual.seed: (*manual.serves, *manual.starts) for manual in manual_commands.manuals()}


def ends(account: Account) -> list[tuple[Section, int]]:
    """Return each section with the line after its last one."""
    after = [section.line for section in account.sections[1:]]
    return list(zip(account.sections, [*after, account.lines + 1], strict=True))


def covered(account: Account) -> list[int]:
    return [number for step in account.steps for number in manual_steps.numbers(step.lines)]


def prose(account: Account) -> list[int]:
    return [number for section in account.sections for part in section.prose for number in manual_steps.numbers(part)]


def test_each_manual_has_an_account() -> None:
    assert {account.seed for account in ACCOUNTS} == set(ROWS)
    assert sum(len(account.steps) for account in ACCOUNTS) >= 400


@EACH
def test_sections_follow_the_manual_and_contain_their_steps(account: Account) -> None:
    assert all(one.line < later.line for one, later in pairwise(account.sections))
    for section, end in ends(account):
        for lines in (*(step.lines for step in section.steps), *section.prose):
            line_numbers = manual_steps.numbers(lines)
            assert section.line < line_numbers[0] <= line_numbers[-1] < end, f"{section.title}: {lines}"


@EACH
def test_a_line_is_in_one_step_only(account: Account) -> None:
    every = [*covered(account), *prose(account)]
    assert sorted(every) == sorted({*every})


@EACH
def test_no_line_of_the_manual_is_left_out(account: Account) -> None:
    manual = manual_steps.manual(account.seed)
    if manual is None:
        pytest.skip(f"{manual_steps.MANUALS_VARIABLE} does not name the folder of the manuals")
    covered_lines = {*covered(account)}
    assert {section.line for section in account.sections} == manual.headings
    assert max(manual.headings | manual.code | manual.text) == account.lines
    assert manual.code <= covered_lines
    assert manual.text <= covered_lines | {*prose(account)}
    assert not {*prose(account)} & manual.code


def test_every_command_exists() -> None:
    ours = {command for account in ACCOUNTS for step in account.steps for command in step.do}
    page_text = (manual_steps.ROOT / "docs" / "topology.md").read_text()
    page_commands = {*re.findall(r"^ *\$ (\./inv \w+ [^>\n#]+)", page_text, re.MULTILINE)}
    assert len(page_commands) >= 15
    assert {manual_steps.problem(command) for command in ours | page_commands} - {""} == set()


@EACH
def test_every_link_has_its_target(account: Account) -> None:
    assert account.steps
    for step in account.steps:
        name, _, heading = step.page.partition("#")
        text = (manual_steps.ROOT / name).read_text() if name else ""
        assert not heading or heading in manual_steps.anchors(text), step.page
        assert step.says in text, step.lines
        assert not step.go or step.go.startswith("https://"), step.go


@EACH
def test_each_compared_command_is_at_its_step(account: Account) -> None:
    rows = {row.name: row for row in ROWS[account.seed]}
    assert {name for step in account.steps for name in step.compare} == set(rows)
    for step in account.steps:
        for name in step.compare:
            assert {*manual_steps.numbers(rows[name].lines)} & {*manual_steps.numbers(step.lines)}, (
                f"{name}: {step.lines}"
            )


@EACH
def test_every_step_is_true_or_out_of_scope_or_says_why_not(account: Account) -> None:
    # `generate --check` runs each command, and is red if this page has another word for a step.
    index = (manuals_page.REFERENCE / "manuals.md").read_text()
    (row,) = re.findall(rf"^\| \[[^]]*\]\(manuals/{stem(account.seed)}\.md\) \|(.*)\|$", index, re.MULTILINE)
    steps, *counts = (int(cell) for cell in row.split("|"))
    declared = Counter(manual_account.OUT if step.out else step.verdict for step in account.steps)
    assert steps == len(account.steps)
    assert counts == [declared[word] for word in ("", *manual_account.VERDICTS[1:])]


@EACH
def test_the_page_of_a_manual_has_every_heading_and_step(account: Account) -> None:
    text = (manuals_page.REFERENCE / "manuals" / f"{stem(account.seed)}.md").read_text()
    assert [section.title for section in account.sections if section.steps and section.title not in text] == []
    listed = {lines for line_list in re.findall(r"- \*\*([\d, -]+)\*\*", text) for lines in line_list.split(", ")}
    assert [step.lines for step in account.steps if not {*step.lines.split(", ")} <= listed] == []
    assert text.count(NOT_IN_DRYDOCK) == sum(bool(step.out) for step in account.steps if not step.same)


# --- the account itself can fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("./inv build --target nothing", "unknown target"),
        ("./inv build --targte cuda", "build: unknown option --targte"),
        ("./inv buidl --target cuda", "no task buidl --target"),
        ("./inv topology plna file", "no task topology plna"),
        ("./inv prove", "'prove' did not receive required positional arguments: 'target'"),
        ("./inv run --target cuda --model M -- frobnicate", "no verb frobnicate"),
        ("./inv run --target cuda --model M -- --json", "--json cannot be used with serve"),
        ("docker run IMG check --role prefill", "--role cannot be used with check"),
        ("docker run … python3", "no IMG"),
        ("gcloud create", "no program gcloud"),
    ],
)
def test_a_command_that_does_not_exist_is_a_problem(command: str, problem: str) -> None:
    assert problem in manual_steps.problem(command)
