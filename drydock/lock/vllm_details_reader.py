"""Reads what vLLM's lists leave out from the files of a wheel (vllm_details.py has its form).

Only `compare` on this machine needs it. So it is no part of the program that runs while an image is built
(templates/tools/read_vllm.py), and uses that program's forms of vLLM's tables. Nothing of vLLM is imported or executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from drydock.lock.vllm_details import (
    ANY,
    AUTO,
    MANY,
    MAYBE,
    NOTHING,
    ONE,
    SUFFIX,
    FlagDetails,
    KeyDetails,
    VariableDetails,
    VllmDetails,
)

BACKENDS = ("v1/attention/backends/registry.py", "attention/backends/registry.py", "platforms/interface.py")
"""Files with the enumeration of attention backends: since 0.14, of 0.12 and 0.13, and before."""
TYPES = ("entrypoints/", "renderers/", "v1/kv_cache_interface.py", "config/")
"""Where types are defined that the annotations of flags name."""
PLAIN = frozenset(
    (
        *("Annotated", "Any", "Callable", "ClassVar", "Dict", "InitVar", "List", "Literal", "None", "Optional"),
        *("Sequence", "Set", "SkipValidation", "Tuple", "Type", "Union", "bool", "dict", "float", "int", "list"),
        *("object", "set", "str", "tuple", "type"),
    )
)
"""Names in annotations that stand for themselves."""
CONVERTERS = re.compile(
    r"(parse_type|optional_type)\((str|int|float|json\.loads)\)|str|int|float|json\.loads|nullable_str|human_readable_int"
    r"|human_readable_int_or_auto|union_dict_and_str|argparse\.FileType.*"
)
"""Functions that turn a text into a value, and take what their names say."""
RECORDS = "config/utils.py"
"""The decorator of the classes that JSON flags are parsed into."""
KINDS = {
    **dict.fromkeys(("list", "List", "tuple", "Tuple", "set", "Set", "Sequence"), "list"),
    "str": "text",
    "int": "number",
    "float": "number",
    "bool": "boolean",
    "None": "none",
    "dict": "object",
    "Dict": "object",
    "Mapping": "object",
}
"""Name of a type → kind of the JSON value that it takes."""
COLLECTIONS = frozenset(("list", "List", "tuple", "Tuple", "set", "Set", "Sequence"))
SWITCHES = ("store_true", "store_false", "BooleanOptionalAction")
DEPRECATION_AT_MOST = 200
"""Characters of a message of vLLM's."""
DEPRECATED = "is deprecated"
"""Where vLLM says no more."""
_MARKS = r"(?i)[\[(]deprecated[\])]|\b(is|are) deprecated\b"
"""How the help of a flag says that the flag itself goes."""
_NESTED_AT_MOST = 8
"""Names that a default is looked up through: ModelConfig.x, which is a constant of another file."""


def read_details(program: Any, root: Path) -> VllmDetails:
    """Read the details of a wheel, a source distribution or a folder; `program` is read_vllm.py as a module."""
    package = program.Package(root, places=(*program.PLACES, *BACKENDS, *TYPES))
    reader = _FlagReader(program, package)
    flags = tuple({flag.names: flag for flag in reader.flags()}.values())  # of two with one name, the later one counts
    records: dict[str, dict[str, KeyDetails]] = {}
    for flag in flags:
        reader.add_record(flag.record, records)
    return VllmDetails(
        flags=flags,
        records=records,
        variables=dict(_read_variables(package)),
        closed=any(map(_forbids_extra, ast.walk(package.tree(RECORDS)))),
    )


def _number_forms(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield field and form of the whole numbers that may have suffixes, from the tests in vLLM's get_kwargs."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for function in (node for node in functions if node.name in ("get_kwargs", "_compute_kwargs")):
        assignments = [node for node in ast.walk(function) if isinstance(node, ast.Assign)]
        tables = {
            _get_last_name(node.targets[0]): node.value for node in assignments if _get_last_name(node.targets[0])
        }
        for test in (node for node in ast.walk(function) if isinstance(node, ast.If)):
            first = ast.unparse(test.body[0])
            if "human_readable_int" in first and first.count("\n") == 0:
                names = [tables.get(_get_last_name(node), node) for node in ast.walk(test.test)]
                form = AUTO if "or_auto" in first else SUFFIX
                yield from ((word, form) for node in names for word in _list_text_constants(ast.walk(node)))


def _forbids_extra(node: ast.AST) -> bool:
    """Return whether a node is `extra="forbid"`."""
    return isinstance(node, ast.keyword) and node.arg == "extra" and getattr(node.value, "value", "") == "forbid"


class _FlagReader:
    """Reads flags and the classes of their JSON."""

    def __init__(self, program: Any, package: Any) -> None:
        self._program, self._package = program, package
        self._records = program.Records(package)
        self._classes: Mapping[str, ast.ClassDef] = self._records._classes  # noqa: SLF001 - one reader in two files
        paths = (*BACKENDS, *package.names("config"), "config.py")
        classes = (node for path in paths for node in package.tree(path).body if isinstance(node, ast.ClassDef))
        self._enums = {
            node.name: node for node in classes if any("Enum" in _get_last_name(base) for base in node.bases)
        }
        for path in ("engine/arg_utils.py", *program.ARGUMENTS, *package.names("config")):
            self._add_imported(path)
        self._numbers = dict(_number_forms(package.tree("engine/arg_utils.py")))

    def _add_imported(self, path: str) -> None:
        """Add the types that a file imports from another one of vLLM's to the names that annotations use."""
        for node in self._package.tree(path).body:
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm.")):
                continue
            module = str(node.module).removeprefix("vllm.").replace(".", "/")
            for source in (f"{module}.py", f"{module}/__init__.py"):
                values = self._program.assignments(self._package.tree(source))
                if any(alias.name in values for alias in node.names):
                    self._records.known.update({**values, **self._records.known})

    def flags(self) -> Iterator[FlagDetails]:
        """Yield the flags of engine and server."""
        for name in ("EngineArgs", "AsyncEngineArgs"):
            function = self._records.method(name, "add_cli_args")
            yield from self._flags_of(function) if function else ()
        frontend = next((path for path in self._program.ARGUMENTS if self._package.tree(path).body), "")
        for node in self._package.tree(frontend).body:
            if isinstance(node, ast.FunctionDef) and node.name == "make_arg_parser":
                yield from self._flags_of(node)
        changes = self._customised()
        for field, annotation in self._records.fields("FrontendArgs").items():
            name = f"--{field.replace('_', '-')}"
            details = self._of_field("FrontendArgs", field, (name,), annotation)
            yield details.model_copy(update=changes.get(name, {}))

    def _flags_of(self, function: ast.FunctionDef) -> Iterator[FlagDetails]:
        tables = dict(self._program._tables_of(function))  # noqa: SLF001 - as above
        fields = {name: field for node in ast.walk(function) for name, field in _field_variables(node, tables)}
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            names = tuple(word for word in _list_text_constants(call.args) if word.startswith("-"))
            if _get_last_name(call.func) == "add_argument" and names:
                yield self._of_call(call, names, tables, fields)
        for loop in (node for node in ast.walk(function) if isinstance(node, ast.For)):  # in [("--a", str), …]
            for word in _list_text_constants(ast.walk(loop.iter)):
                if word.startswith("--"):
                    deprecated = DEPRECATED if "deprecated=True" in ast.unparse(loop) else ""
                    yield FlagDetails(names=(word,), default="None", deprecated=deprecated)

    def _of_call(
        self,
        call: ast.Call,
        names: tuple[str, ...],
        tables: Mapping[str, str],
        fields: Mapping[str, tuple[str, str]],
    ) -> FlagDetails:
        """Return the flag of one add_argument call; its own words are stronger than those of the field it names."""
        keywords = {word.arg: word.value for word in call.keywords if word.arg}
        field = next((word.value for word in call.keywords if word.arg is None), None)
        if isinstance(field, ast.Dict):  # **{**kwargs["x"], "default": None}
            pairs = list(zip(field.keys, field.values, strict=True))
            keywords |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            field = next((value for key, value in pairs if key is None), None)
        details = FlagDetails(names=names, default="None", is_custom=field is not None)
        record, key = _field_of(field, tables) or fields.get(_get_last_name(field), ("", "")) if field else ("", "")
        annotation = self._records.fields(record).get(key)
        details = self._of_field(record, key, names, annotation) if annotation is not None else details
        return details.model_copy(update=self._own_words(keywords))

    def _own_words(self, keywords: Mapping[str, ast.expr]) -> dict[str, Any]:
        """Return what the words of an add_argument call say of a flag."""
        update: dict[str, Any] = {}
        action = keywords.get("action")
        if action is not None:
            name = str(action.value) if isinstance(action, ast.Constant) else _get_last_name(action)
            update["count"] = NOTHING if name in SWITCHES else MAYBE if name == "StoreBoolean" else ONE
            update["default"] = "False" if name == "store_true" else "None"
            update["is_custom"] = name not in (*SWITCHES, "StoreBoolean", "append", "store")
        if "default" in keywords:
            update["default"] = self._text(keywords["default"])
        if "nargs" in keywords:
            update["count"] = _parse_value_count(keywords["nargs"])
        if "type" in keywords:
            text = ast.unparse(keywords["type"])
            update["takes_none"] = "optional" in text or "nullable" in text
            update["number"] = SUFFIX if "human_readable_int" in text else ""
            update["is_custom"] = CONVERTERS.fullmatch(text) is None
        if "choices" in keywords:
            words = tuple(sorted(set(_list_text_constants(ast.walk(keywords["choices"])))))
            update |= {"words": words, "is_custom": not words}
        if text := _find_deprecation(self._help(keywords)):
            update["deprecated"] = text
        return update

    def _help(self, keywords: Mapping[str, ast.expr]) -> str:
        """Return the help of an add_argument call, which may be a constant of the module; `deprecated` is one too."""
        node = keywords.get("help")
        node = self._records.known.get(node.id, node) if isinstance(node, ast.Name) else node
        text = " ".join(_list_text_constants(ast.walk(node))) if node else ""
        return text or (DEPRECATED if getattr(keywords.get("deprecated"), "value", False) else "")

    def _of_field(self, record: str, field: str, names: tuple[str, ...], annotation: ast.expr) -> FlagDetails:
        """Return the flag that vLLM's get_kwargs makes of a field."""
        takes = self._records.accepted(annotation)
        name, text = self._json_class(annotation) if takes == self._program.JSON else ("", "")
        parts = [*self._parts(annotation), *self._item_parts(annotation)]
        heads = {_get_last_name(getattr(part, "value", part)) for part in parts}
        words = self._named_words(annotation)
        literal = self._records._words(parts)  # noqa: SLF001 - as above
        unknown = {part for part in heads - PLAIN - self._enums.keys() if part and not self._records.is_record(part)}
        items = {_get_last_name(part) for part in self._item_parts(annotation)}
        return FlagDetails(
            names=names,
            default=self._default(record, field),
            count=self._field_count(annotation, takes),
            words=words,
            only_words=bool(literal) and "str" not in heads and not heads & self._enums.keys(),
            item="" if "str" in items else "int" if "int" in items else "float" if "float" in items else "",
            is_custom=takes == "" and bool(unknown or ("Literal" in heads and not literal)),
            record=name,
            annotation=text,
            deprecated=_find_deprecation(self._docstring(record, field)),
            number=self._numbers.get(field, "") if takes == self._program.INTEGER else "",
            takes_none=re.search(r"\bOptional\[|\bNone\b", ast.unparse(annotation)) is not None,
        )

    def _parts(self, annotation: ast.expr) -> list[ast.expr]:
        return [*self._records._parts(annotation)]  # noqa: SLF001 - as above

    def _item_parts(self, annotation: ast.expr) -> list[ast.expr]:
        """Return the types of a list's values; none for another type."""
        parts = (part for part in self._parts(annotation) if isinstance(part, ast.Subscript))
        lists = [part for part in parts if _get_last_name(part.value) in COLLECTIONS]
        inner = [part.slice.elts[0] if isinstance(part.slice, ast.Tuple) else part.slice for part in lists]
        return [item for part in inner for item in self._parts(part)]

    def _json_class(self, annotation: ast.expr) -> tuple[str, str]:
        """Return the class of a JSON flag, or else its type as text."""
        parts = self._parts(annotation)
        for name in (_get_last_name(getattr(part, "value", part)) for part in parts):
            if self._records.is_record(name):
                tables = [
                    base for base in self._classes[name].bases if _get_last_name(getattr(base, "value", base)) == "dict"
                ]
                return ("", ast.unparse(tables[0])) if tables else (name, "")
        return "", " | ".join(sorted(ast.unparse(part) for part in parts))

    def _field_count(self, annotation: ast.expr, takes: Any) -> str:
        heads = {_get_last_name(getattr(part, "value", part)) for part in self._parts(annotation)}
        if takes in (self._program.SWITCH, self._program.BOOLEAN):
            return NOTHING
        if takes == self._program.JSON:
            return ONE
        if "bool" in heads:
            return MAYBE
        return MANY if heads & COLLECTIONS else ONE

    def _named_words(self, annotation: ast.expr) -> tuple[str, ...]:
        """Return the words of Literal[…] and of enumerations in an annotation."""
        parts = [*self._parts(annotation), *self._item_parts(annotation)]
        words = [*(self._records._words(parts) or ())]  # noqa: SLF001 - as above
        for part in parts:
            enum = self._enums.get(_get_last_name(part))
            words += _list_member_words(enum) if enum else ()
        return tuple(sorted(set(words)))

    def _kinds(self, annotation: ast.expr) -> Iterator[str]:
        """Yield the kinds of JSON values that a type names."""
        if re.search(r"\bOptional\[", ast.unparse(annotation)):
            yield "none"
        for part in self._parts(annotation):
            head = _get_last_name(getattr(part, "value", part)) if not isinstance(part, ast.Constant) else "None"
            if head == "Literal":
                words = self._records._words([part])  # noqa: SLF001 - as above
                yield from ("number" if word.isdigit() else "text" for word in words or ("x", "1"))
            elif head in self._enums:
                yield from ("number", "text")
            else:
                yield "object" if self._records.is_record(head) else KINDS.get(head, ANY)

    def _items(self, record: str) -> Iterator[tuple[str, ast.AnnAssign, ast.stmt | None]]:
        """Yield name, statement and the statement after it, of each field of a class and of its bases."""
        node = self._classes.get(record)
        body = node.body if node else []
        for item, following in zip_longest(body, body[1:]):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                yield item.target.id, item, following
        for base in node.bases if node else ():
            yield from self._items(_get_last_name(base)) if _get_last_name(base) != record else ()

    def _default(self, record: str, field: str, depth: int = 0) -> str:
        """Return Python's text of a field's default; empty if it is not written down."""
        return next((self._text(item.value, depth) for name, item, _ in self._items(record) if name == field), "")

    def _docstring(self, record: str, field: str) -> str:
        following = next((after for name, _, after in self._items(record) if name == field), None)
        text = following.value if isinstance(following, ast.Expr) else None
        return str(text.value) if isinstance(text, ast.Constant) else ""

    def _text(self, node: ast.expr | None, depth: int = 0) -> str:
        """Return Python's text of a default: ModelConfig.x is that field's, Field(default=x) is x."""
        if node is None or depth > _NESTED_AT_MOST:
            return ""
        if isinstance(node, ast.Attribute) and _get_last_name(node.value) in self._classes:
            return self._default(_get_last_name(node.value), node.attr, depth + 1) or ast.unparse(node)
        if isinstance(node, ast.Name) and node.id in self._records.known:
            return self._text(self._records.known[node.id], depth + 1)
        if isinstance(node, ast.Subscript):  # kwargs["x"]["default"]
            return ""
        return self._called(node, depth) if isinstance(node, ast.Call) else ast.unparse(node)

    def _called(self, node: ast.Call, depth: int) -> str:
        """Return Python's text of a default that a call makes."""
        words = {word.arg: word.value for word in node.keywords}
        if _get_last_name(node.func) == "get_field":
            return self._default(_get_last_name(node.args[0]), _list_text_constants(node.args)[0], depth + 1)
        if _get_last_name(node.func) not in ("Field", "field"):
            return ast.unparse(node)
        if "default_factory" in words:
            return {"list": "[]", "dict": "{}", "set": "set()"}.get(_get_last_name(words["default_factory"]), "")
        return self._text(words.get("default", node.args[0] if node.args else None), depth + 1)

    def _customised(self) -> dict[str, dict[str, Any]]:
        """Return what the server changes of its flags: frontend_kwargs["x"]["default"] = …, del …["nargs"]."""
        changes: dict[str, dict[str, Any]] = {}
        methods = [
            self._records.method(name, method)
            for name in ("BaseFrontendArgs", "FrontendArgs")
            for method in ("_customize_cli_kwargs", "add_cli_args")
        ]
        for node in (node for method in methods if method for node in ast.walk(method)):
            if isinstance(node, ast.Assign):
                self._customise(node.targets[0], node.value, changes)
            elif isinstance(node, ast.Delete):
                for target in node.targets:
                    self._customise(target, None, changes)
        return changes

    def _customise(self, target: ast.expr, value: ast.expr | None, changes: dict[str, dict[str, Any]]) -> None:
        inner = target.value if isinstance(target, ast.Subscript) else None
        if not (isinstance(target, ast.Subscript) and isinstance(inner, ast.Subscript)):
            return
        flag = f"--{''.join(_list_text_constants([inner.slice])).replace('_', '-')}"
        update = changes.setdefault(flag, {})
        match _list_text_constants([target.slice]):
            case ["nargs"]:
                update["count"] = _parse_value_count(value) if value else ONE
            case ["flags"] if isinstance(value, ast.List):
                update["names"] = (*_list_text_constants(value.elts), flag)
            case ["default"] if value:
                update["default"] = self._text(value)
            case ["action"] if value:
                update["is_custom"] = isinstance(value, ast.Name)

    def add_record(self, name: str, records: dict[str, dict[str, KeyDetails]]) -> None:
        """Add the keys of a JSON flag's class, and those of the classes in it."""
        if not name or name in records:
            return
        records[name] = {}
        for field, annotation in self._records.fields(name).items():
            if field.startswith("_"):
                continue
            takes = self._records.accepted(annotation)
            inner = self._json_class(annotation)[0] if takes == self._program.JSON else ""
            inner = "" if "SkipValidation" in ast.unparse(annotation) else inner  # vLLM fills it in
            default, words = self._default(name, field), self._named_words(annotation)
            kinds = tuple(sorted(set(self._kinds(annotation))))
            records[name][field] = KeyDetails(default=default, takes=takes, kinds=kinds, words=words, record=inner)
            self.add_record(inner, records)


def _field_of(node: ast.AST, tables: Mapping[str, str]) -> tuple[str, str] | None:
    """Return class and field of `kwargs["x"]`, and of get_kwargs(Config)["x"]."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
        return None
    source = node.value
    if isinstance(source, ast.Call) and _get_last_name(source.func) == "get_kwargs" and source.args:
        return _get_last_name(source.args[0]), str(node.slice.value)
    return (tables[_get_last_name(source)], str(node.slice.value)) if _get_last_name(source) in tables else None


def _field_variables(node: ast.AST, tables: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield variable, class and field of `x = kwargs["x"]`."""
    if isinstance(node, ast.Assign) and (field := _field_of(node.value, tables)):
        yield from ((_get_last_name(target), field) for target in node.targets if _get_last_name(target))


def _get_last_name(node: ast.AST) -> str:
    """Return x of `x` and of `a.b.x`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _list_text_constants(nodes: Iterable[ast.AST]) -> list[str]:
    """Return the texts among nodes."""
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _parse_value_count(node: ast.expr) -> str:
    value = node.value if isinstance(node, ast.Constant) else ""
    return {"?": MAYBE, "+": MANY, "*": MANY}.get(str(value), ONE)


def _find_deprecation(text: str) -> str:
    """Return the text from the sentence on that says that a flag is deprecated; empty if none does."""
    sentences = re.split(r"(?<=[.!])\s+(?=[A-Z`\-])", " ".join(text.split()))
    first = next((place for place, sentence in enumerate(sentences) if re.search(_MARKS, sentence)), len(sentences))
    return " ".join(sentences[first:])[:DEPRECATION_AT_MOST]


def _list_member_words(enum: ast.ClassDef) -> list[str]:
    """Return the words with which a user names the members of an enumeration: their texts, or else their names."""
    members = {
        target.id: item.value
        for item in enum.body
        if isinstance(item, ast.Assign) and isinstance(target := item.targets[0], ast.Name) and target.id[0] != "_"
    }
    numbers = [
        str(node.value) for node in members.values() if isinstance(node, ast.Constant) and type(node.value) is int
    ]
    if len(numbers) == len(members):
        return [*members, *numbers]
    texts = _list_text_constants(members.values())
    plain = len(texts) == len(members) and all(text and "." not in text for text in texts)
    return texts if plain else [*members]


# --- variables ------------------------------------------------------------------------------------------------------


def _read_variables(package: Any) -> Iterator[tuple[str, VariableDetails]]:
    """Yield each environment variable with its default and how it is read."""
    for node in package.tree("envs.py").body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", ())
        if "environment_variables" in map(_get_last_name, targets) and isinstance(node.value, ast.Dict):
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), _read_variable(str(key.value), value)


def _read_variable(name: str, node: ast.expr) -> VariableDetails:
    """Return a variable from what reads it: a lambda with os.getenv(NAME, default), or env_with_choices(NAME, …)."""
    body = node.body if isinstance(node, ast.Lambda) else node
    for call in (item for item in ast.walk(body) if isinstance(item, ast.Call)):
        function = _get_last_name(call.func)
        if (function in ("getenv", "get") or function.startswith("env_")) and _list_text_constants(call.args[:1]) == [
            name
        ]:
            default = ast.unparse(call.args[1]) if call.args[1:] else "None"
            choices = tuple(
                text for listed in call.args[2:3] for text in _list_text_constants(getattr(listed, "elts", ()))
            )
            call.args[1:] = [ast.Name("DEFAULT")]
            return VariableDetails(default=default, reader=_reader_text(body), choices=choices)
    return VariableDetails(default="", reader=_reader_text(body))


def _reader_text(node: ast.expr) -> str:
    """Return the text of a reader, with os.environ.get written as os.getenv."""
    return ast.unparse(node).replace("os.environ.get(", "os.getenv(")
