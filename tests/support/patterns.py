"""Every regular expression of the product, and texts that make one slow: long runs of what it can repeat."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any, NamedTuple

FOLDERS = ("drydock", "entrypoints", "templates/tools")
SEARCHES = ("search", "match", "fullmatch", "sub", "subn", "findall", "finditer", "split")
ANCHORED = {"match", "fullmatch"}
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, getattr(codes, "POSSESSIVE_REPEAT", None))
GROUPS = {
    codes.CATEGORY_SPACE: " \n",
    codes.CATEGORY_DIGIT: "0",
    codes.CATEGORY_WORD: "a0_",
    codes.CATEGORY_NOT_SPACE: "a.",
}
ORDINARY = "a0 \t\n.-_/()\"'=,:[|;#@<"
LONG = 200
"""Repetitions from which a bounded repeat is attacked as an unbounded one is."""


class Pattern(NamedTuple):
    """A pattern, and how it is applied to a text."""

    place: str
    compiled: re.Pattern[Any]
    searches: bool
    """Whether it may begin anywhere in the text."""


def list_patterns(root: Path) -> Iterator[Pattern]:
    """Yield each pattern that can be evaluated outside of a function."""
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_call_of_re(node)]
        if not calls:
            continue
        try:
            module = _load(path, root)
        except (ImportError, RuntimeError):  # what needs a package of the image
            continue
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for call in calls:
            try:
                compiled = _compile(call, vars(module))
            except NameError:  # made of what a function gets
                continue
            methods = _find_methods(call, tree, parents)
            yield Pattern(f"{path.relative_to(root)}:{call.lineno}", compiled, not methods <= ANCHORED)


def _is_call_of_re(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "re"
        and function.attr in ("compile", *SEARCHES)
    )


def load_file(path: Path) -> ModuleType:
    """Import a file that is in no package, such as a script of templates/tools."""
    spec = importlib.util.spec_from_file_location(f"file_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _load(path: Path, root: Path) -> ModuleType:
    names = path.relative_to(root).with_suffix("").parts
    if names[0] != "templates":
        return importlib.import_module(".".join(names).removesuffix(".__init__"))
    return load_file(path)


def _compile(call: ast.Call, names: dict[str, Any]) -> re.Pattern[Any]:
    def evaluate(node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "pattern", "eval"), dict(names))  # noqa: S307 - our own source

    assert isinstance(call.func, ast.Attribute)
    flags = [evaluate(word.value) for word in call.keywords if word.arg == "flags"]
    place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(call.func.attr, 2)
    flags += [evaluate(node) for node in call.args[place : place + 1]]
    return re.compile(evaluate(call.args[0]), *flags)


def _find_methods(call: ast.Call, tree: ast.Module, parents: dict[ast.AST, ast.AST]) -> set[str]:
    """Return the methods by which a file applies a pattern; none for one that others apply."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "compile":
        return {call.func.attr}
    statement: ast.AST = call
    while not isinstance(statement, ast.stmt):
        statement = parents[statement]
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    methods = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names
    }
    return methods & {*SEARCHES} - {"split"} or {"search"}


def list_attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what stands before a long run, its unit, and what stands after it, so that the pattern fails there."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin1")
    items = parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    units = dict.fromkeys(_list_units(items, ""))
    for pick in range(3):
        sample = _make_sample(items, pick)
        for end in (len(sample), len(sample) - 1, len(sample) // 2):
            units |= dict.fromkeys((("", sample[:end]), ("", f"{sample[:end]}\n")))
    for before, unit in [*units]:
        units |= dict.fromkeys((("", before), ("", before + unit), ("", f"{before}{unit}\n"), ("\n", unit)))
    yield from ((before, unit, after) for before, unit in units if unit for after in ("", "\0", "\n\0"))


def _list_units(items: Any, before: str) -> Iterator[tuple[str, str]]:
    """Yield what a pattern can repeat, with a text by which it gets there."""
    for place, (code, value) in enumerate(items):
        here = before + _make_sample(items[:place], 0)
        if code in REPEATS:
            _, most, inner = value
            if most > LONG:
                yield from ((here, _make_sample(inner, pick)) for pick in range(6))
            yield from _list_units(inner, here)
        elif code is codes.SUBPATTERN:
            yield from _list_units(value[3], here)
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from _list_units(branch, here)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from _list_units(value[1], here)


def _make_sample(items: Any, pick: int) -> str:
    """Return a text that a part of a pattern takes; `pick` chooses among branches and characters."""
    return "".join(_make_piece(code, value, pick) for code, value in items)


def _make_piece(code: Any, value: Any, pick: int) -> str:  # noqa: PLR0911 - a case for each code
    if code is codes.LITERAL:
        return chr(value)  # type: ignore[no-any-return] - of a parse tree
    if code in (codes.NOT_LITERAL, codes.ANY):
        return "a \t."[pick % 4]
    if code is codes.IN:
        characters = [*_list_characters(value)]
        return characters[pick % len(characters)]
    if code in REPEATS:
        least, most, inner = value
        return _make_sample(inner, pick) * max(least, 1 if most and pick % 2 == 0 else 0)
    if code is codes.SUBPATTERN:
        return _make_sample(value[3], pick)
    if code is codes.BRANCH:
        return _make_sample(value[1][pick % len(value[1])], pick)
    return ""


def _list_characters(value: Any) -> Iterator[str]:
    names: list[str] = []
    for code, item in value:
        if code is codes.LITERAL:
            names.append(chr(item))
        elif code is codes.RANGE:
            names += [chr(item[0]), chr(item[1])]
        elif code is codes.CATEGORY:
            names += GROUPS.get(item, "-")
    if value[0][0] is codes.NEGATE:
        yield from (character for character in ORDINARY if character not in names)
        yield "~"
    yield from [] if value[0][0] is codes.NEGATE else names


def measure_search(pattern: Pattern, text: str) -> float:
    """Return the processor time of a search in a text, which does not depend on other processes."""
    compiled, data = (
        pattern.compiled,
        text if isinstance(pattern.compiled.pattern, str) else text.encode("latin1", "replace"),
    )
    start = time.process_time()
    if pattern.searches:
        for _ in compiled.finditer(data):
            pass
    else:
        compiled.fullmatch(data)
        compiled.match(data)
    return time.process_time() - start
