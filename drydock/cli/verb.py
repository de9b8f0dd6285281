"""A verb: a function that takes a record of options, as a task of invoke."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from invoke.collection import Collection
from invoke.context import Context as InvokeContext
from invoke.parser.argument import Argument
from invoke.tasks import Task

from drydock.cli.task_helpers import INTERRUPTED, command_line, print_errors, write_into_copy
from drydock.core.console import log, set_verbose
from drydock.core.errors import InputError
from drydock.core.lacking_package import exit_without_package
from drydock.core.verb_options import NO_DEFAULT, Field, VerbOptions, list_fields, read_help


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
        required = [field for field in fields if field.default is NO_DEFAULT]
        return [_to_argument(field) for field in (*required, *(field for field in fields if field not in required))]

    def _run(self, _: InvokeContext, **values: Any) -> None:
        verbose, quiet = bool(values.get("verbose")), bool(values.get("quiet"))
        try:
            with print_errors():
                if verbose and quiet:
                    raise InputError("--verbose and --quiet exclude each other", hint="leave one of them out")
                set_verbose(verbose=verbose, quiet=quiet)
                is_tried = self.record.WRITES_PROJECT and bool(values.get("dry_run"))
                with write_into_copy(json=bool(values.get("json"))) if is_tried else contextlib.nullcontext():
                    self.function(self.record(**values))
        except ModuleNotFoundError as error:  # a verb imports what only it needs
            exit_without_package(error)
        except KeyboardInterrupt:
            again = "start again" if values.get("no_cache") else "resume"
            log(f"interrupted; to {again}, run: {command_line()}")
            sys.exit(INTERRUPTED)


class _OptionArgument(Argument):
    """invoke's argument, which refuses a word that is not a number, with the option's name. Raises InputError.

    A default of 0 stands for an option that is not given. To read a given 0 like that would drop a limit unseen.
    """

    def set_value(self, value: Any, cast: bool = True) -> None:
        try:
            super().set_value(value, cast)
        except ValueError as error:
            raise InputError(f"--{self.names[0]} {value}: expected a whole number") from error
        if self.kind is int and self.default == 0 and self.value < 1:
            raise InputError(f"--{self.names[0]} {value}: expected a whole number, at least 1")


def _to_argument(field: Field) -> Argument:
    is_required = field.default is NO_DEFAULT
    default = None if is_required else [] if field.kind is list else field.default
    attribute = field.name if field.name != field.option else None
    names = (field.option,)
    return _OptionArgument(names=names, kind=field.kind, default=default, positional=is_required, attr_name=attribute)


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
