"""Facts that were read in vLLM's own files name version, path and symbol. IO: files.

After a new version, the syntax tree of exactly these symbols is compared between the old and the new vLLM, without
docstrings and positions. What is the same gets the new version written next to it; the rest is for a person to read
again. Nothing is kept but the sentence. Nothing of vLLM is imported.
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import Version

from drydock.core.project import Project

FOLDERS = ("entrypoints", "drydock", "templates")
"""Where sentences name vLLM's files."""
KINDS = (".py", ".yaml", ".j2")
TRANSLATED = ".zh.yaml"
STACKS = re.compile(r"templates/[\w-]+/stacks/")
TOOLS = "templates/tools/"
"""Not searched: an edit of a tool would have every foundation built again."""
CHANGED, GONE, UNNAMED = "changed", "gone", "changed, and the sentence names no symbol of it"
DIFFERENCE_AT_MOST = 40
"""Lines of one difference that are shown."""
_SPACE = r"(?:[ \t]|\n[ \t]*(?:#[ \t]*)?)+"
_NUMBER = r"0\.\d+(?:\.\d+)?(?:\.?post\d+)?"
_PATH = r"(?<![\w/-])(?:(?:[\w*]+/)*[\w*]+\.py\b|(?:[\w*]+/)+[\w*]+)"
_START = re.compile(
    rf"\bvLLM(?:'s)?(?:{_SPACE}(?:{_NUMBER}(?:{_SPACE}(?:to|and){_SPACE}|,{_SPACE}))*(?P<version>{_NUMBER})(?:'s)?)?"
    rf"[:,]?{_SPACE}(?={_PATH})"
)
"""What comes before the first path: the product, and the versions in which it was read."""
_END = re.compile(
    rf'\.(?=\s+[A-Z]|\s*["\')]|\s*$)|"""|\n\s*\n|\n\s*- |\n\s*[\w"-]+:(?:\s|$)|;(?!{_SPACE}{_PATH})|{_START.pattern}'
)
"""Where a sentence about vLLM's files ends."""
_SENTENCE_AT_MOST = 400
_PROSE = ("and", "or", "to", "which", "whose", "where", "also")


class NamedFile(NamedTuple):
    """A file of vLLM's, with the symbols that a sentence names."""

    path: str
    symbols: tuple[str, ...]


class NamedSource(NamedTuple):
    """A sentence that names files of vLLM's."""

    file: Path
    line: int
    version: str
    """The last version in which it was read; empty if it names none."""
    start: int
    """Where the version is in the file's text."""
    files: tuple[NamedFile, ...]


class SourceChange(NamedTuple):
    """A symbol that a sentence names, and that is another one in the new vLLM."""

    place: str
    """Where the sentence is: templates/host.yaml:287."""
    symbol: str
    """utils/network_utils.py, get_open_zmq_ipc_path."""
    change: str
    """CHANGED, GONE or UNNAMED."""
    difference: tuple[str, ...] = ()


class SourcesCompared(NamedTuple):
    """What the sources of all facts are in a new vLLM."""

    changes: tuple[SourceChange, ...]
    unknown: tuple[str, ...]
    """Sentences that name what the old vLLM does not have either."""
    older: tuple[str, ...]
    """Sentences that were read in another version than the old one: they were not compared."""
    same: int
    """Sentences whose symbols are the same."""
    files: tuple[Path, ...]
    """In which the new version was written next to them."""


class VllmFiles:
    """The Python files of one vLLM."""

    def __init__(self, program: Any, root: Path) -> None:
        self._package = program.Package(root, places=("",))
        self._definitions: dict[tuple[str, str], dict[str, ast.Module]] = {}

    @cache  # noqa: B019 - two of these live as long as one command
    def find_files(self, path: str) -> tuple[str, ...]:
        """Return the files that a path means: exactly, as the end of a longer path, by a pattern, or in a folder."""
        path = path.removeprefix("vllm/").rstrip("/")
        names = self._package.every_name()
        if path in names:
            return (path,)
        return tuple(
            name
            for name in names
            if fnmatch.fnmatchcase(name, path) or fnmatch.fnmatchcase(name, f"*/{path}") or f"/{path}/" in f"/{name}"
        )

    def find_definitions(self, path: str, symbol: str) -> dict[str, ast.Module]:
        """Return file → where it defines a symbol; of `Class.method` the method. Empty for a symbol means the file."""
        if (path, symbol) not in self._definitions:
            definitions: dict[str, ast.Module] = {}
            for name in self.find_files(path):
                if symbol and symbol.rpartition(".")[2] not in self._package.text(name):
                    continue
                nodes: list[ast.AST] = [self._package.tree(name)]
                for part in symbol.split(".") if symbol else ():
                    nodes = [node for scope in nodes for node in _list_definitions(scope, part)]
                if nodes:
                    body: list[Any] = [_without_docstrings(node) for node in nodes]
                    definitions[name] = ast.Module(body, [])
            self._definitions[path, symbol] = definitions
        return self._definitions[path, symbol]

    def list_lines(self, name: str, definitions: ast.Module) -> list[str]:
        """Return the lines of definitions as the file has them, with comments."""
        lines = self._package.text(name).splitlines()
        spans = ((getattr(node, "lineno", 1), getattr(node, "end_lineno", len(lines))) for node in definitions.body)
        return [line for start, end in spans for line in lines[start - 1 : end]]


def _list_definitions(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield what defines a name in a scope: functions, classes, assignments, entries of tables, or else its users."""
    definitions = [*_list_own_definitions(scope, name)]
    yield from definitions or _list_users(scope, name)


def _list_users(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield the innermost functions that use a name as a variable, an attribute or a text."""
    functions = [node for node in ast.walk(scope) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    users = [
        node
        for node in functions
        if any(name in map(part.__dict__.get, ("id", "attr", "value")) for part in ast.walk(node))
    ]
    outer = {id(node) for node in users for inner in ast.walk(node) if inner is not node and inner in users}
    yield from (node for node in users if id(node) not in outer)


def _list_own_definitions(scope: ast.AST, name: str) -> Iterator[ast.AST]:
    """Yield what defines a name in a scope."""
    for node in ast.walk(scope):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name == name and node is not scope:
                yield node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(getattr(target, "id", getattr(target, "attr", "")) == name for target in targets):
                yield node
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    yield value


def _without_docstrings(node: ast.AST) -> ast.AST:
    """Remove the docstrings from a tree, and the texts that vLLM writes below fields."""
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list):
            inner.body = [  # type: ignore[attr-defined]
                item for item in body if not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))
            ]
    return node


def parse_sources(text: str, file: Path) -> Iterator[NamedSource]:
    """Yield each sentence of a text that names files of vLLM's."""
    for match in _START.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        files = tuple(_parse_files(_cut_sentence(text, match)))
        yield NamedSource(file, line, match["version"] or "", match.start("version"), files)


def _cut_sentence(text: str, match: re.Match[str]) -> str:
    """Return the rest of a sentence in one line; that of a comment ends with the comment."""
    tail = text[match.end() : match.end() + _SENTENCE_AT_MOST]
    end = _END.search(tail)
    tail = tail[: end.start()] if end else tail
    if "#" in text[text.rfind("\n", 0, match.start()) + 1 : match.start()]:
        tail = re.split(r"\n(?![ \t]*#)", tail, maxsplit=1)[0]
    return re.sub(_SPACE, " ", tail)


def _parse_files(sentence: str) -> Iterator[NamedFile]:
    """Yield each path with the symbols after it: words that only code has, and a word right after the path."""
    paths = [*re.finditer(_PATH, sentence)]
    for path, following in zip(paths, (*paths[1:], None), strict=True):
        rest = sentence[path.end() : following.start() if following else len(sentence)]
        words = [
            word[0]
            for word in re.finditer(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", rest)
            if re.search(r"[_.]|[a-z][A-Z]", word[0]) or rest[: word.start()] in (", ", " (")
        ]
        yield NamedFile(path[0], tuple(word for word in words if word not in _PROSE))


def list_sources(project: Project, stacks: Sequence[Path]) -> list[NamedSource]:
    """Return the sentences of a project's own files; of stacks only those of these files."""
    paths = [path for folder in FOLDERS for path in sorted((project.root / folder).rglob("*")) if path.suffix in KINDS]
    sources: list[NamedSource] = []
    for path in paths:
        name = project.name_of(path)
        is_other_stack = STACKS.match(name) and path not in stacks
        if not (is_other_stack or name.endswith(TRANSLATED) or name.startswith(TOOLS)):
            sources += parse_sources(path.read_text(encoding="utf-8"), path)
    return sources


def compare_sources(
    project: Project, sources: Sequence[NamedSource], old: VllmFiles, new: VllmFiles, versions: tuple[str, str]
) -> SourcesCompared:
    """Compare what sentences name between two versions, and write the new one where all is the same."""
    before, after = versions
    changes: list[SourceChange] = []
    unknown: list[str] = []
    older: list[str] = []
    same: list[NamedSource] = []
    for source in sources:
        place = f"{project.name_of(source.file)}:{source.line}"
        stamp = _cut_patch(source.version)
        if stamp and stamp != _cut_patch(before):
            if Version(stamp) < Version(_cut_patch(after)):  # a later one was read in the new version
                older.append(f"{place}: vLLM {source.version}")
            continue
        problems: list[str] = []
        differing: list[SourceChange] = []
        for file in source.files:
            if not old.find_files(file.path):  # without a folder it is not vLLM's package: setup.py, a Dockerfile
                problems += [f"{place}: {file.path}"] if re.fullmatch(r".+/.+\.py", file.path) else []
                continue
            symbols = [symbol for symbol in file.symbols if old.find_definitions(file.path, symbol)]
            problems += [
                f"{place}: {file.path}, {symbol}" for symbol in file.symbols if "_" in symbol and symbol not in symbols
            ]
            for symbol in symbols or [""]:
                differing += _compare_symbol(place, file.path, symbol, old, new)
        if not any(old.find_files(file.path) for file in source.files):  # such as examples/, which no wheel has
            problems = [f"{place}: {', '.join(file.path for file in source.files)}"] if source.version else []
            unknown += problems
            continue
        unknown += problems
        changes += differing
        if not problems and not differing:
            same.append(source)
    return SourcesCompared(
        tuple(changes), tuple(unknown), tuple(older), len(same), tuple(_write_new_version(same, after))
    )


def _compare_symbol(place: str, path: str, symbol: str, old: VllmFiles, new: VllmFiles) -> Iterator[SourceChange]:
    before, after = old.find_definitions(path, symbol), new.find_definitions(path, symbol)
    if [ast.dump(tree) for tree in before.values()] == [ast.dump(tree) for tree in after.values()]:
        return
    name = f"{path}, {symbol}" if symbol else path
    if not after:
        yield SourceChange(place, name, GONE)
        return
    if not symbol:
        yield SourceChange(place, name, UNNAMED)
        return
    lines = [
        line
        for file in dict.fromkeys((*before, *after))
        for line in difflib.unified_diff(
            old.list_lines(file, before[file]) if file in before else [],
            new.list_lines(file, after[file]) if file in after else [],
            f"old/{file}",
            f"new/{file}",
            n=2,
            lineterm="",
        )
    ]
    rest = len(lines) - DIFFERENCE_AT_MOST
    shown = lines if rest <= 0 else [*lines[:DIFFERENCE_AT_MOST], f"… and {rest} more lines"]
    yield SourceChange(place, name, CHANGED, tuple(shown))


def _cut_patch(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _write_new_version(sources: Sequence[NamedSource], version: str) -> Iterator[Path]:
    """Write a version where sentences have an older one; yield the files that changed."""
    by_file: dict[Path, list[NamedSource]] = {}
    for source in sources:
        if source.version and _cut_patch(source.version) != _cut_patch(version):
            by_file.setdefault(source.file, []).append(source)
    for file, stamped in by_file.items():
        text = file.read_text(encoding="utf-8")
        for source in sorted(stamped, key=lambda item: -item.start):
            new = ".".join(version.split(".")[: source.version.count(".") + 1])
            text = text[: source.start] + new + text[source.start + len(source.version) :]
        file.write_text(text, encoding="utf-8")
        yield file
