"""Texts that the entrypoint's code makes, read from its source: errors, notices and reasons, with {} for each value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

from drydock.core.paths import ROOT

TEXT_ARGUMENTS = {
    "EntrypointError": 1,
    "does_not_fit": 0,
    "make_notice": 1,
    "Value": 1,
    "Reason": 3,
    "Refusal": 1,
    "Fault": 1,
}
"""Functions that take texts for users, and their first argument that is one."""
HINTING = ("hint_", "suggest_", "describe_")
"""How functions begin that return a text for an error or a note."""
_DEEPEST = 6
"""Names and expressions that are looked into."""
_VARIANTS_AT_MOST = 12
"""Texts of one expression: two branches of a few conditions."""

Names = Mapping[str, tuple[ast.expr, ...]]
"""Name → what is assigned to it."""


class CodeText(NamedTuple):
    """A text, and the line of the code that makes it."""

    place: str
    text: str


@cache
def list_code_texts() -> tuple[CodeText, ...]:
    """Return the texts of each call in TEXT_ARGUMENTS, and those that functions of decisions return.

    A conditional expression has a text for each of its branches.
    """
    return tuple(sorted(set(_read_texts())))


def _read_texts() -> Iterator[CodeText]:
    for path in sorted((ROOT / "entrypoints").rglob("*.py")):
        constants = _read_constants(path)
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            names = {**constants, **_collect_assignments(ast.walk(function))}
            described = _returns_text(function) and path.is_relative_to(ROOT / "entrypoints" / "decide")
            for node in ast.walk(function):
                texts: Iterable[str] = ()
                if isinstance(node, ast.Call):
                    texts = _render_arguments(node, names)
                elif (
                    described and isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr | ast.Constant)
                ):
                    texts = _render(node.value, names)
                yield from (CodeText(f"{path.relative_to(ROOT)}:{node.lineno}", text) for text in texts)


def list_call_texts(path: Path, functions: Iterable[str]) -> Iterator[CodeText]:
    """Yield the texts that a module passes to some functions, its errors, with those of their hints."""
    constants = _read_constants(path)
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            names = {**constants, **_collect_assignments(ast.walk(function))}
            for node in ast.walk(function):
                arguments: list[ast.expr] = []
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions:
                    hints = (keyword.value for keyword in node.keywords if keyword.arg == "hint")
                    arguments = [_unpack_one(argument) for argument in (*node.args, *hints)]
                elif isinstance(node, ast.Return) and node.value and function.name.startswith(HINTING):
                    arguments = [node.value]
                texts = (text for argument in arguments for text in _render(argument, names))
                yield from (CodeText(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text) for text in texts)


def _unpack_one(argument: ast.expr) -> ast.expr:
    """Return one of several arguments that are made in a loop: *(… for … in …)."""
    is_loop = isinstance(argument, ast.Starred) and isinstance(argument.value, ast.GeneratorExp | ast.ListComp)
    return argument.value.elt if is_loop else argument  # type: ignore[attr-defined]


def _returns_text(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "str"


@cache
def _read_constants(path: Path) -> Names:
    """Return the constants of a module, and those that it imports from another one of the entrypoint."""
    body = ast.parse(path.read_text()).body
    imported: dict[str, tuple[ast.expr, ...]] = {}
    for node in body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("entrypoints."):
            module = ROOT / f"{(node.module or '').replace('.', '/')}.py"
            values = _read_constants(module) if module.is_file() else {}
            imported |= {alias.asname or alias.name: values[alias.name] for alias in node.names if alias.name in values}
    return imported | _collect_assignments(body)


def _collect_assignments(nodes: Iterable[ast.AST]) -> dict[str, tuple[ast.expr, ...]]:
    names: dict[str, tuple[ast.expr, ...]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target, value in _pair_targets(node.targets[0], node.value):
                if isinstance(target, ast.Name):
                    names[target.id] = (*names.get(target.id, ()), value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            names[node.target.id] = (node.value,)
    return names


def _pair_targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _render_arguments(call: ast.Call, names: Names) -> Iterator[str]:
    first = TEXT_ARGUMENTS.get(getattr(call.func, "id", ""))
    if first is not None:
        for argument in (*call.args[first:], *(keyword.value for keyword in call.keywords if keyword.arg)):
            yield from _render(argument, names)


def _render(node: ast.expr, names: Names, depth: int = 0) -> list[str]:
    """Return the texts that an expression can have."""
    if depth > _DEEPEST:
        return ["{}"]
    render = partial(_render, names=names, depth=depth + 1)
    match node:
        case ast.Constant(value=str() | int() | float() as value):
            texts = [str(value)]
        case ast.JoinedStr(values=parts):
            texts = _join_parts([render(part) for part in parts])
        case ast.FormattedValue(value=ast.Name() | ast.IfExp() | ast.JoinedStr() as value, format_spec=None):
            texts = render(value) or ["{}"]
        case ast.IfExp(body=body, orelse=orelse):
            texts = [*render(body), *render(orelse)]
        case ast.BoolOp(values=values) | ast.Tuple(elts=values):
            texts = [text for value in values for text in render(value)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = _join_parts([render(left), render(right)])
        case ast.Name(id=name) if name in names:
            others = {other: values for other, values in names.items() if other != name}
            texts = [text for value in names[name] for text in _render(value, others, depth + 1)]
        case _:
            texts = ["{}"]
    return texts


def _join_parts(parts: list[list[str]]) -> list[str]:
    return ["".join(chosen) for _, chosen in zip(range(_VARIANTS_AT_MOST), product(*parts), strict=False)]
