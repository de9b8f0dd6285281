"""What each verb has: --json, which prints JSON in each branch; --dry-run, if it writes elsewhere than the cache."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

import bench
from drydock.cli.verb import Verb
from drydock.cli.verb_table import COMMANDS
from drydock.core.console import write_output
from drydock.core.files import format_json
from drydock.core.verb_options import list_fields
from drydock.model.shared_options import AlwaysJsonOption

VERBS: Mapping[str, Verb] = {
    name: verb for verbs in COMMANDS.values() for name, verb in verbs.items() if "json" in list_fields(verb.record)
}
ALWAYS_JSON = ("format_json", "profile_text")
"""Functions whose text is JSON."""
ENDLESS = ("serve_site",)
"""Functions that run until they are interrupted."""


def mentions_json(node: ast.AST) -> bool:
    """Tell whether code reads the option, or makes JSON whatever is asked for."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr in ("json", *ALWAYS_JSON))
        or (isinstance(part, ast.Name) and part.id in ("json", *ALWAYS_JSON, "options") and is_whole(part, node))
        for part in ast.walk(node)
    )


def is_whole(name: ast.Name, within: ast.AST) -> bool:
    """Tell whether a name is not only there for one of its attributes: `_print_row_statement(options)`."""
    return not any(isinstance(part, ast.Attribute) and part.value is name for part in ast.walk(within))


def all_branches_print(body: Sequence[ast.stmt]) -> bool:
    """Tell whether every way through statements comes by the option, or ends in an error or never."""
    for statement in body:
        if isinstance(statement, ast.If) and not mentions_json(statement.test):
            branches = [statement.body, statement.orelse]
            if all(map(all_branches_print, branches)):
                return True
            if any(leaves(branch) and not all_branches_print(branch) for branch in branches):
                return False
        elif (
            isinstance(statement, ast.Raise)
            or mentions_json(statement)
            or any(name in ast.dump(statement) for name in ENDLESS)
        ):
            return True
        elif isinstance(statement, ast.Return):
            return False
    return False


def leaves(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(part, ast.Return) for statement in body for part in ast.walk(statement))


def parse_function(function: Callable[..., Any]) -> ast.FunctionDef:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return definition


@pytest.mark.parametrize("name", sorted(VERBS))
def test_each_branch_of_a_verb_prints_json(name: str) -> None:
    verb = VERBS[name]
    function = parse_function(verb.function)
    assert all_branches_print(function.body), f"{name}: a branch prints nothing with --json"
    for helper in list_functions_with_json(verb.function):
        assert all_branches_print(parse_function(helper).body), f"{name}: {helper.__qualname__}: a branch"


def list_functions_with_json(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield the functions that a verb calls with json=…, wherever they are imported."""
    definition = parse_function(function)
    names = dict(vars(inspect.getmodule(function)))
    for part in ast.walk(definition):
        if isinstance(part, ast.ImportFrom):
            for alias in part.names:
                names[alias.asname or alias.name] = import_name(str(part.module), alias.name)
    for part in ast.walk(definition):
        if isinstance(part, ast.Call) and any(keyword.arg == "json" for keyword in part.keywords):
            target = part.func
            owner = names.get(target.value.id) if isinstance(target, ast.Attribute) else None  # type: ignore[attr-defined]
            found = getattr(owner, target.attr) if isinstance(target, ast.Attribute) else names[target.id]  # type: ignore[attr-defined]
            if inspect.isfunction(found):
                yield found


def import_name(module: str, name: str) -> Any:
    imported = importlib.import_module(module)
    return getattr(imported, name) if hasattr(imported, name) else importlib.import_module(f"{module}.{name}")


def test_the_check_sees_a_branch_that_prints_nothing() -> None:
    def forgets(options: Any) -> None:
        if options.check:
            return
        write_output(format_json(options.json))

    def prints(options: Any) -> None:
        if options.check:
            write_output(str(options.json))
            return
        write_output(format_json(options.json))

    assert not all_branches_print(parse_function(forgets).body)
    assert all_branches_print(parse_function(prints).body)
    assert len(VERBS) > 40
    assert any(issubclass(verb.record, AlwaysJsonOption) for verb in VERBS.values())


READS = (
    *("matrix", "doctor", "outdated", "lock diff", "compare", "size", "plan", "check", "explain", "entrypoint"),
    *("review", "topology plan", "topology diff", "topology check", "topology verify"),
    *("audit", "policy", "image verify", "image inspect", "image diff", "image audit"),
    *("ci changed", "ci variables", "lint", "release files", "bench", "bench plot", "bake"),
    *(f"bench {part}" for part in bench.PARTS),
)
"""Verbs that write into the cache at most, or into the file or folder that an option names."""
INSTEAD: Mapping[str, str] = {
    "run": "--print prints what would be started",
    "demo": "what it starts, it removes",
    "images": "removes with --prune --yes only, and says what else",
    "foundations": "removes with --prune --yes only, and says what else",
    "project upgrade": "writes with --write only",
    "model demo": "writes into the cache",
    "prove": "what it writes, only a real device shows",
    "ci propose": "`bump`, `recipes` and `lock` show with --dry-run what it would push",
    "test": "writes with --record only",
    "generate": "--check",
    "docs": "--check",
    "schema": "--check",
    "requirements": "a file of a checkout, whose git shows what changed",
}
"""Verb without --dry-run → what says beforehand what it writes."""
NO_DATA: Mapping[str, str] = {
    "demo": "a report for people",
    "explain": "prints what the image's verb prints, which has --json after --",
    "entrypoint": "as explain",
    "topology init": "writes YAML, and prints it with --dry-run",
    "topology down": "prints nothing",
    "review": "--format has json, and three more for programs",
    "policy": "prints YAML, which a cluster reads",
    "prove": "a report for people; images/ROW/record.json has the data",
    "ci propose": "a report for the job's log",
    "ci variables": "prints commands of a shell",
    **dict.fromkeys(("test", "generate", "lint", "release", "bench plot"), "of checkouts, for people"),
}
"""Verb without --json → why."""
ALL_VERBS: Mapping[str, Verb] = {name: verb for verbs in COMMANDS.values() for name, verb in verbs.items()}


@pytest.mark.parametrize("name", sorted(ALL_VERBS))
def test_a_verb_has_the_options_that_every_verb_has(name: str) -> None:
    fields = list_fields(ALL_VERBS[name].record)
    assert "quiet" in fields
    assert ("json" in fields) != (name in NO_DATA), f"{name}: --json, or NO_DATA says why not"
    places = [place for place, names in (("READS", READS), ("INSTEAD", INSTEAD)) if name in names]
    assert ("dry_run" in fields) or places, f"{name}: --dry-run, or READS or INSTEAD says why not"
    assert len(places) <= 1


def test_what_says_why_an_option_is_missing_is_about_a_verb() -> None:
    assert {*READS, *INSTEAD, *NO_DATA} - {*ALL_VERBS} == set()
    assert [name for name in (*READS, *INSTEAD) if "dry_run" in list_fields(ALL_VERBS[name].record)] == []


def test_every_option_says_what_it_does() -> None:
    silent = [(name, field) for name, verb in ALL_VERBS.items() for field, text in verb.help_texts.items() if not text]
    assert silent == []
