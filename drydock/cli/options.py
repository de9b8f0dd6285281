"""Options of verbs, declared once: a field of a record is an option, and the parser, help and pages are made from it.

A field's docstring is the help, its type what the parser takes, its default the default; without a default it is
required, and may be given as a plain word. `Literal` lists the values. Fields that verbs share are in small records.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin, get_type_hints

from invoke.collection import Collection
from invoke.context import Context as InvokeContext
from invoke.parser.argument import Argument
from invoke.tasks import Task

from drydock.cli.task_helpers import INTERRUPTED, command_line, print_errors
from drydock.core.console import log, set_verbose
from drydock.core.errors import InputError
from drydock.core.lacking_package import exit_without_package

REQUIRED = object()
"""Default of a field that has none."""


class Field(NamedTuple):
    """One option of a record."""

    name: str
    """As the record spells it: all_locked, from_."""
    kind: type
    """bool, int, str, or list for an option that may be repeated."""
    default: Any
    choices: tuple[str, ...]
    """The only values; empty if any is allowed."""

    @property
    def option(self) -> str:
        """Return the name on the command line, without dashes."""
        return self.name.rstrip("_").replace("_", "-")


class VerbOptions:
    """Options of a verb, as values."""

    TAKES_AUTO: ClassVar[bool] = False
    """Whether --target may be auto, the row that fits a host."""
    WORDS: ClassVar[tuple[str, ...]] = ()
    """Optional fields whose values may be given as plain words too, after those that are required."""

    def __init__(self, **values: Any) -> None:
        """Take values by the names of fields. Raises TypeError for an unknown or a missing one."""
        fields = list_fields(self.__class__)
        missing = [name for name, field in fields.items() if field.default is REQUIRED and name not in values]
        unknown = values.keys() - fields.keys()
        if missing or unknown:
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {sorted(unknown)}")
        for name, field in fields.items():
            value = values.get(name, field.default)
            setattr(self, name, tuple(value) if field.kind is list else value)


_FIELDS: dict[type[VerbOptions], Mapping[str, Field]] = {}
"""Record → its fields, once they were read."""


def list_fields(record: type[VerbOptions]) -> Mapping[str, Field]:
    """Return the fields of a record by name: its own first, then those of the records that it is made of."""
    if record not in _FIELDS:
        types = get_type_hints(record)
        names = [
            name for part in record.__mro__ for name in vars(part).get("__annotations__", ()) if not name.isupper()
        ]
        _FIELDS[record] = {
            name: _read_field(name, types[name], getattr(record, name, REQUIRED)) for name in dict.fromkeys(names)
        }
    return _FIELDS[record]


def _read_field(name: str, annotation: Any, default: Any) -> Field:
    if get_origin(annotation) is Literal:
        return Field(name, str, default, tuple(filter(None, get_args(annotation))))
    if get_origin(annotation) is tuple:
        choices = get_args(annotation)[0]
        return Field(name, list, default, get_args(choices) if get_origin(choices) is Literal else ())
    if get_origin(annotation) is UnionType:  # of a type and None
        return Field(name, get_args(annotation)[0], default, ())
    return Field(name, annotation, default, ())


def read_help(record: type[VerbOptions]) -> Mapping[str, str]:
    """Return the help of each field: the docstring after it. Reads the source, which only help and pages need."""
    texts: dict[str, str] = {}
    for part in reversed(record.__mro__):
        texts |= _read_docstrings(part.__module__).get(part.__name__, {})
    return {name: texts.get(name, "") for name in list_fields(record)}


@functools.cache
def _read_docstrings(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of fields, by class."""
    file = getattr(sys.modules[module], "__file__", None)
    if not file or not module.startswith("drydock."):
        return {}
    classes = [node for node in ast.parse(Path(file).read_bytes()).body if isinstance(node, ast.ClassDef)]
    return {node.name: dict(_list_docstrings(node)) for node in classes}


def _list_docstrings(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            yield field.target.id, " ".join(ast.literal_eval(text.value).split())  # type: ignore[attr-defined]


class Verb(Task[Any]):
    """A function that takes options, as an invoke task. It prints errors without a traceback."""

    def __init__(self, function: Callable[[Any], None]) -> None:
        """Read the record from the function's annotation."""
        self.record: type[VerbOptions] = next(iter(get_type_hints(function).values()))
        self.function = function
        super().__init__(self._run, name=function.__name__, positional=(), auto_shortflags=False)
        self.__doc__ = function.__doc__

    @property
    def help_texts(self) -> Mapping[str, str]:
        """Return the help of each option, by the name of its field."""
        return read_help(self.record)

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:  # noqa: ARG002 - invoke's
        """Return the options as invoke's parser takes them: required ones first, which may be plain words."""
        fields = list_fields(self.record).values()
        required = [field for field in fields if field.default is REQUIRED]
        return [_to_argument(field) for field in (*required, *(field for field in fields if field not in required))]

    def _run(self, _: InvokeContext, **values: Any) -> None:
        set_verbose(verbose=bool(values.get("verbose")))
        try:
            with print_errors():
                self.function(self.record(**values))
        except ModuleNotFoundError as error:  # a verb imports what only it needs
            exit_without_package(error)
        except KeyboardInterrupt:
            again = "start again" if values.get("no_cache") else "resume"
            log(f"interrupted; to {again}, run: {command_line()}")
            sys.exit(INTERRUPTED)


def _to_argument(field: Field) -> Argument:
    is_required = field.default is REQUIRED
    default = None if is_required else [] if field.kind is list else field.default
    attribute = field.name if field.name != field.option else None
    names = (field.option,)
    return Argument(names=names, kind=field.kind, default=default, positional=is_required, attr_name=attribute)


# --- options that verbs share ---------------------------------------------------------------------------------------


class JsonOption(VerbOptions):
    """The result as JSON, if asked for."""

    json: bool = False
    """print the result as JSON on standard output"""


class AlwaysJsonOption(VerbOptions):
    """The result is always JSON."""

    json: bool = False
    """accepted for scripts: the result is always JSON"""


class PruneOptions(VerbOptions):
    """Whether what is not needed is removed."""

    prune: bool = False
    yes: bool = False

    def check_prune(self) -> None:
        """Raise InputError for a consent to nothing."""
        if self.yes and not self.prune:
            raise InputError("--yes: nothing to confirm", hint="add --prune")


class RowOption(VerbOptions):
    """A row."""

    target: str
    """variant id, alias or accelerator"""


class RowOrAutoOption(VerbOptions):
    """A row, or the one that fits a host."""

    TAKES_AUTO = True
    target: str
    """variant id, alias or accelerator; auto: what fits this machine's devices and driver"""


class RowOrAllOption(VerbOptions):
    """A row, or each."""

    target: str = ""
    """variant id, alias or accelerator [default: every variant]"""


class CheckOption(VerbOptions):
    """Compare instead of writing."""

    check: bool = False
    """write nothing; fail if a file is outdated or was edited"""


class OfflineOption(VerbOptions):
    """Without the network."""

    offline: bool = False
    """do not use the network; fail if something is missing"""


class BuilderOption(VerbOptions):
    """Which BuildKit builds."""

    builder: str = ""
    """use this buildx builder instead of the engine's default"""


class NoCacheOption(VerbOptions):
    """Without BuildKit's cache."""

    no_cache: bool = False
    """do not use BuildKit's cache"""


class VerboseOption(VerbOptions):
    """How much is printed."""

    verbose: bool = False
    """-v for short: print all that is done and BuildKit's log instead of progress"""


class ContextOption(VerbOptions):
    """Build contexts that are replaced."""

    context: tuple[str, ...] = ()
    """NAME=FOLDER or NAME=docker-image://…: replace a named build context; repeatable"""


class PlatformOption(VerbOptions):
    """For which architecture."""

    platform: str = ""
    """target platform, such as linux/arm64 [default: this machine's]"""


class InsecureOption(VerbOptions):
    """Plain HTTP."""

    insecure: bool = False
    """allow plain HTTP to a registry on another machine"""


class TrustOptions(InsecureOption):
    """Whose signatures count."""

    verify_key: str = ""
    """accept signatures made with this public key"""
    identity: str = ""
    """accept keyless signatures of this identity; requires --issuer"""
    issuer: str = ""
    """OIDC issuer of the identity"""
    trusted_root: str = ""
    """trusted root file (cosign trusted-root create), to verify without network"""

    @property
    def signers(self) -> tuple[str, str, str, str]:
        """Return whose signatures count: key, identity, issuer and trusted root."""
        return self.verify_key, self.identity, self.issuer, self.trusted_root


class SignOptions(VerbOptions):
    """Who signs."""

    sign_key: str = ""
    """sign with this cosign key: a file, env://NAME or a KMS URI"""
    keyless: bool = False
    """sign with your OIDC identity instead of a key"""


class SuppliedOption(VerbOptions):
    """Files that only the user has."""

    supplied: tuple[str, ...] = ()
    """folder with files that only you have, such as a vendor's installer: pin them; repeatable"""


class LockedOptions(SuppliedOption):
    """Whether inputs may be pinned."""

    locked: bool = False
    """pin nothing: fail if the lock lacks an input, as with CI=true"""


class AdvisoryOptions(VerbOptions):
    """Known vulnerabilities."""

    advisories: bool = False
    """list known vulnerabilities of what the locks pin, and what could not be checked"""
    database: tuple[str, ...] = ()
    """with --advisories: OSV records in a file, all.zip or folder; uses no network; repeatable"""
    ignore: tuple[str, ...] = ()
    """with --advisories: accept the vulnerability with this id or alias; repeatable"""


def make_collection(verbs: Mapping[str, Verb]) -> Collection:
    """Return verbs as invoke's tasks. `lock diff` becomes lock.diff, and `lock` itself the default of its group."""
    groups: dict[str, Collection] = {name.partition(" ")[0]: Collection() for name in verbs if " " in name}
    collection = Collection()
    for name, verb in verbs.items():
        group, _, task = name.partition(" ")
        if group in groups:
            groups[group].add_task(verb, name=task or group, default=not task)
        else:
            collection.add_task(verb, name=name)
    for group, members in groups.items():
        collection.add_collection(members, name=group)
    return collection
