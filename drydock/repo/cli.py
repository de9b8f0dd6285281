"""The command line `./inv`, installed `drydock`: help, checks of the arguments, completion, and then invoke.

invoke itself reads an unknown option as a positional value, and prints no hint.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program

from drydock import INSTALLED
from drydock.config.matrix import read_matrix
from drydock.config.project import OPTION, VARIABLE, find, read_settings
from drydock.config.renamed import current_option
from drydock.core.console import emit, spelled
from drydock.core.errors import DrydockError, InputError, nearest
from drydock.core.paths import PROGRAM
from drydock.core.process import check_current_folder, prepare_process
from drydock.inputs import others
from drydock.lock.proof import TIERS
from drydock.repo import version
from drydock.repo.task_helpers import print_errors

TASKS: Mapping[str, tuple[str, ...]] = {
    "Get an image": ("build", "run", "demo", "matrix", "images", "size", "entrypoint", "compare", "doctor",
                     "engine"),
    "Serve on several machines": ("topology.init", "topology.plan", "topology.diff", "topology.render",
                                  "topology.check", "topology.up", "topology.verify", "topology.down"),
    "Change what is in it": ("init", "lock", "lock.diff", "recipes", "update", "upgrade", "fetch", "render",
                             "bake"),
    "Trust it": ("verify", "audit", "inspect", "diff"),
    "Ship it": ("publish", "foundations", "foundations.push", "project.push", "bundle", "bundle.load",
                "model.pull", "model.push"),
    "Measure and prove it": ("bench", "model", "prove"),
    "Develop drydock": ("test", "lint", "docs", "schema", "requirements", "release", "release.files",
                        "ci", "ci.changed", "ci.publish", "ci.propose", "ci.variables"),
}  # fmt: skip
"""Heading → tasks, as the overview lists them. An installed drydock lacks some, and then their headings."""

WITH_AUTO = ("build", "run", "entrypoint")
"""Tasks whose --target may be auto."""
NAMING_ROWS = ("compare --from", "compare --to")
"""Tasks and options, other than --target, that take the name of a row."""
SHORT = {"-v": "--verbose"}
"""Short option → the long one. Each means the same in every task, as -h does."""

COMPLETE = "complete"
"""First word of the line with which a shell asks for completions."""
ANSWERED = ("help", "completion", COMPLETE, "--version")
"""First words that are no task."""

MANY = {"matrix": "--target", "build": "--target"}
"""Task → the option that takes its plain words as values."""

BEFORE_DASHES = ("entrypoint", "run")
"""Tasks whose words after -- are the image's: a verb, and flags of vLLM."""
_WITHOUT_IMAGE = "it is a verb of the image: ./inv entrypoint --target ROW -- {}"
_MISSPELT = 0.8
"""Likeness from 0 to 1 at which an unknown option is a misspelt one of the task, and none of vLLM's."""
OF_IMAGE: Mapping[str, str] = {
    **{verb: _WITHOUT_IMAGE.format(verb) for verb in ("check", "explain", "facts", "plan")},
    "serve": "./inv run --target ROW --model MODEL starts a server",
    **{verb: f"it is a verb of the image: ./inv run --target ROW -- {verb}" for verb in ("health", "warm", "version")},
}
"""Verb of the image → where it goes."""
OF_DOCKER: Mapping[str, str] = {
    "logs": "docker logs --follow NAME, with the name that run printed",
    "ps": "docker ps lists containers",
    "start": "./inv run --target ROW --model MODEL starts a server",
    "stop": "docker stop NAME; ./inv topology down stops a topology",
}
"""Word that people know from docker → what does it."""

DOCKERS: Mapping[str, Mapping[str, str]] = {
    "run": {"-d": "--detach", **dict.fromkeys(("-it", "-ti", "-i", "-t", "--rm", "--init"), "")}
}
"""Task → options of `docker run` that people write, and the task's own; empty for what it does by itself."""

CHOOSING = {"build": ("--all-locked", "--changed-since")}
"""Task that requires a target → the options that choose rows instead of it."""

_FORMATS = ("ansible", "compose")
VALUES: Mapping[str, tuple[str, ...]] = {
    "matrix --proof": TIERS,
    "run --format": ("docker", "compose", "k8s", "quadlet", "apptainer"),
    "demo --topology": ("2p1d",),
    "test --kind": ("unit", "golden", "fuzz", "engine", "packages", "topology", "cluster", "oracle", "ci"),
    "release.files --upload": ("github", "gitlab"),
    "topology.init --shape": ("1p1d", "2p1d"),
    "topology.render --format": (*_FORMATS, "kubernetes", "disaggregatedset", "slurm", "ranktable"),
    "topology.up --format": _FORMATS,
    "topology.down --format": _FORMATS,
    "topology.check --format": (*_FORMATS, "kubernetes", "local"),
}
"""Task and option → the values that complete it; those of other options are free."""

_NAMES = PROGRAM if INSTALLED else "./inv inv"
"""The commands to complete."""
COMPLETIONS = {
    "bash": """_drydock() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" complete "${COMP_WORDS[@]:1:COMP_CWORD}")" -- "$2"))
}
"""
    f"complete -F _drydock {_NAMES}\n",
    "zsh": """autoload -U bashcompinit && bashcompinit
_drydock() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[1]}" complete "${(@)COMP_WORDS[2,$((COMP_CWORD+1))]}")" -- "$2"))
}
"""
    f"complete -F _drydock {_NAMES}\n",
    "fish": """function _drydock
    set --local words (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token)
    $words[1] complete $words[2..]
end
"""
    f"complete --command {_NAMES.split()[-1]} --no-files --arguments '(_drydock)'\n",
}
"""Shell → the script that `completion` prints."""


class _Checked(Program):
    """invoke's program; a wrong command line exits with 2 and a hint."""

    def parse_tasks(self) -> None:
        try:
            super().parse_tasks()
        except ParseError as error:
            raise Exit(f"error: {_explained(error)}", code=InputError.code) from error


def main() -> None:
    """Run the tasks of tasks.py: the console script `drydock`."""
    prepare_process()
    from tasks import namespace  # noqa: PLC0415 - it imports this module

    run(namespace, sys.argv[1:])


def run(tasks: Collection, arguments: Sequence[str]) -> None:
    """Run the tasks that the words name, or complete them. Exits with 2 if a word is wrong."""
    with print_errors(silent=_find_first_word(arguments) == COMPLETE):
        check_current_folder()
        _run_tasks(tasks, arguments)


def _find_first_word(arguments: Sequence[str]) -> str:
    """Return the word after --project DIR; empty if there is none."""
    option, equals, _ = arguments[0].partition("=") if arguments else ("", "", "")
    before = 0 if option != OPTION else 1 if equals else 2
    return next(iter(arguments[before:]), "")


def _run_tasks(tasks: Collection, arguments: Sequence[str]) -> None:
    """Answer, or check the words and let invoke start their tasks. Raises InputError."""
    contexts = {name: context for context in tasks.to_contexts() for name in (context.name or "", *context.aliases)}
    for word in arguments:
        if not word.isprintable() and re.search("[\ud800-\udfff]", word):  # how Python keeps bytes that are no text
            raise InputError(f"{word!a} is not UTF-8", hint="rename the file, or correct the word")
    own, dashes, rest = _split(_in_project(arguments))
    words = _joined(own, contexts)
    asks_help = bool({"-h", "--help"} & {*words})
    if words and words[0] in _groups(contexts) and not asks_help:
        _check_task_of_group(words, contexts)
    if not words or words[0] in (*ANSWERED, *_groups(contexts)) or asks_help:
        emit(spelled(_answer(tasks, contexts, words)))
        return
    checked = [*_checked(words, contexts)]
    checked += _default_target(checked, contexts)
    _Checked(namespace=tasks, binary=PROGRAM).run([PROGRAM, *checked, *dashes, *rest])


def _in_project(arguments: Sequence[str]) -> Sequence[str]:
    """Take --project DIR before the task, which sets DRYDOCK_PROJECT; return the other words. Raises InputError."""
    option, equals, value = arguments[0].partition("=") if arguments else ("", "", "")
    if option != OPTION:
        return arguments
    value = value if equals else "".join(arguments[1:2])
    if not value:
        raise InputError(f"{OPTION} requires a value", hint=f"write {OPTION} DIR")
    os.environ[VARIABLE] = str(Path(value).absolute())
    find(Path.cwd(), os.environ)
    return arguments[1 if equals else 2 :]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words before `--`, the dashes, and what comes after them, which belongs to a container."""
    words = [*arguments]
    if "--" not in words:
        return words, [], []
    place = words.index("--")
    return words[:place], ["--"], words[place + 1 :]


def _joined(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> list[str]:
    """Write `lock diff` as invoke names it: lock.diff."""
    joined: list[str] = []
    for word in words:
        if joined and f"{joined[-1]}.{word}" in contexts:
            joined[-1] = f"{joined[-1]}.{word}"
        else:
            joined.append(word)
    return joined


def _checked(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> Iterator[str]:
    """Yield the words as invoke needs them. Raises InputError for an unknown task or option, or one given twice."""
    context: ParserContext | None = None
    positional = 0
    given: set[str] = set()
    remaining = iter(words)
    for word in remaining:
        if context and word in DOCKERS.get(str(context.name), {}):
            yield from filter(None, [DOCKERS[str(context.name)][word]])
        elif context and word.startswith("-"):
            yield from _option_words(context, word, given, remaining)
        elif context and context.name in BEFORE_DASHES and word in OF_IMAGE:
            raise _without_dashes(context, word, words)
        elif context and positional:
            positional -= 1
            yield word
        elif context and context.name in MANY and word not in contexts:
            yield from (MANY[context.name], word)
        else:
            context = _task(word, contexts)
            given.clear()
            positional = len(context.positional_args)
            yield word


UNLESS = {"verify": ("--reference",), "audit": ("--advisories",)}
"""Task → the options without which it requires a target."""


def _default_target(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> list[str]:
    """Return the option with the project's default target if the line's one task requires a target and has none."""
    name = words[0]
    required = [argument.name for argument in contexts[name].positional_args][:1] == ["target"]
    given = {word.partition("=")[0] for word in words[1:]}
    instead = {"--target", *CHOOSING.get(name, ()), *UNLESS.get(name, ())}
    if given & instead or not (required or name in CHOOSING or name in UNLESS):
        return []
    typed = len(words) > 1 and not words[1].startswith("-")
    settings = read_settings(find(Path.cwd(), os.environ))
    return [f"--target={settings.defaults.target}"] if settings and settings.defaults.target and not typed else []


def _option_words(context: ParserContext, word: str, given: set[str], remaining: Iterator[str]) -> Iterator[str]:
    """Yield an option as invoke needs it, with its value; nothing for one that has no effect any more."""
    written, equals, value = SHORT.get(word, word).partition("=")
    name = current_option(_shown(context), written)
    if name is None:
        return
    yield f"{name}{equals}{value}"
    option = _option(context, name)
    if option.takes_value and option.kind is not list:
        if name in given:  # invoke would take the second value for a task
            raise InputError(f"{name} is given twice", hint=f"write {name} VALUE once")
        given.add(name)
    if option.takes_value and not equals:
        yield from _value(name, remaining)


def _value(name: str, remaining: Iterator[str]) -> Iterator[str]:
    """Yield the next word, the value of an option. Raises InputError if there is none."""
    value = next(remaining, None)
    if value is None:
        raise InputError(f"{name} requires a value", hint=f"write {name} VALUE")
    yield value


def _option(context: ParserContext, name: str) -> Argument:
    known = {**context.flags, **{flag: context.flags[of] for flag, of in context.inverse_flags.items()}}
    if name not in known:
        if name == OPTION:
            raise InputError(f"{OPTION} comes before the task", hint=f"write ./inv {OPTION} DIR {_shown(context)}")
        message = f"{_shown(context)}: unknown option {name}"
        alike = nearest(name, known)
        if context.name in BEFORE_DASHES and not get_close_matches(name, known, 1, _MISSPELT):
            alike = "options of vLLM and of its image follow --"
        raise InputError(message, hint=f"{alike}; ./inv {_shown(context)} --help lists the options")
    found: Argument = known[name]
    return found


def _check_task_of_group(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> None:
    """Raise InputError if the word after a group, such as `topology`, is none of its tasks."""
    if len(words) > 1 and not words[1].startswith("-"):
        known = [name.replace(".", " ") for name in contexts if name.startswith(f"{words[0]}.")]
        message = f"unknown task {' '.join(words[:2])!r}"
        raise InputError(message, hint=f"{nearest(' '.join(words[:2]), known)}; ./inv {words[0]} lists its tasks")


def _task(word: str, contexts: Mapping[str, ParserContext]) -> ParserContext:
    if word in contexts:
        return contexts[word]
    known = [name.replace(".", " ") for name in contexts]
    where = OF_IMAGE.get(word) or OF_DOCKER.get(word) or nearest(word, known, "none is like it")
    raise InputError(f"unknown task {word!r}", hint=f"{where}; ./inv lists the tasks")


def _without_dashes(context: ParserContext, word: str, words: Sequence[str]) -> InputError:
    """Return the error for a verb of the image that was written as a word of the task."""
    place = words.index(word)
    written = shlex.join(_shown(context) if item == context.name else item for item in words[:place])
    message = f"{_shown(context)}: {word!r} is a verb of the image, and -- is missing before it"
    return InputError(message, hint=f"write ./inv {written} -- {shlex.join(words[place:])}")


def _explained(error: ParseError) -> str:
    """Return what was wrong, for errors that only invoke finds: a required option that is missing."""
    context = error.context
    missing = [argument.name for argument in context.missing_positional_args] if context else []
    if not (context and missing):
        return f"{error}\n\nhint: ./inv lists the tasks, ./inv TASK --help the options of one"
    lacking = " and ".join(f"--{str(name).rstrip('_')}" for name in missing)
    targets = "; ./inv matrix lists the targets" if "target" in missing else ""
    return f"{_shown(context)} requires {lacking}\n\nhint: ./inv {_shown(context)} --help{targets}"


def _shown(context: ParserContext) -> str:
    """Return a task's name as it is typed: `lock`, whose full name is lock.resolve; `lock diff`."""
    return min((str(context.name), *context.aliases), key=len).replace(".", " ")


# --- help and completion --------------------------------------------------------------------------------------------


def _answer(tasks: Collection, contexts: Mapping[str, ParserContext], words: Sequence[str]) -> str:
    """Return the overview, the help of a task, a completion script, or what completes a line."""
    if words and words[0] == COMPLETE:
        return "".join(f"{word}\n" for word in _candidates(contexts, words[1:]))
    if words and words[0] == "--version":
        return version.text()
    if words and words[0] == "completion":
        shell = words[1] if len(words) > 1 else "bash"
        return COMPLETIONS.get(shell) or f"unknown shell {shell}, expected one of {', '.join(COMPLETIONS)}\n"
    named = next((word for word in _joined([w for w in words if w != "help"], contexts) if word in contexts), "")
    group = next((word for word in words if word in _groups(contexts)), "")
    return help_of(tasks, contexts[named]) if named else _listed(tasks, group) if group else overview(tasks)


def _groups(contexts: Mapping[str, ParserContext]) -> set[str]:
    """Return the first words of tasks that are none by themselves: topology."""
    return {name.partition(".")[0] for name in contexts} - {*contexts}


def _listed(tasks: Collection, group: str) -> str:
    """Return the tasks below a word, with one line each."""
    names = [name for listed in TASKS.values() for name in listed if name.startswith(f"{group}.")]
    lines = [f"  {name.partition('.')[2]:13} {_summary(tasks, name)}" for name in names]
    return "\n".join([f"Usage: ./inv {group} TASK [OPTIONS]", "", *lines]) + "\n"


def overview(tasks: Collection) -> str:
    """Return the tasks with one line each, grouped by purpose."""
    known = {name for full, aliases in tasks.task_names.items() for name in (full, *aliases)}
    lines = ["Usage: ./inv TASK [OPTIONS]", ""]
    for heading, listed in TASKS.items():
        if names := [name for name in listed if name in known]:
            lines += [f"{heading}:", *(f"  {name.replace('.', ' '):13} {_summary(tasks, name)}" for name in names), ""]
    lines += [
        "Options of a task: ./inv TASK --help",
        'Completion: eval "$(./inv completion bash)", or zsh, fish',
        f"In a project, a folder with drydock.yaml: ./inv {OPTION} DIR TASK, or start in that folder",
        "For this machine's devices: ./inv run --target auto --model MODEL",
        "First image: ./inv demo, then ./inv matrix for the targets of ./inv build --target TARGET",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _summary(tasks: Collection, name: str) -> str:
    return (tasks[name].__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")


def help_of(tasks: Collection, context: ParserContext) -> str:
    """Return the usage of a task, what it does and its options."""
    shown = _shown(context)
    words = [f"--{str(argument.name).rstrip('_')} {placeholder(argument)}" for argument in context.positional_args]
    required = "".join(f" {word}" for word in words)
    required = " --target TARGET" if context.name in CHOOSING else required
    lines = [f"Usage: ./inv {shown}{required} [OPTIONS]", "", tasks[str(context.name)].__doc__ or ""]
    options = {flag: argument for flag, argument in context.flags.items() if flag.startswith("--")}
    if options:
        names = {flag: f"{flag} {placeholder(argument)}".rstrip() for flag, argument in options.items()}
        width = max(map(len, names.values()))
        lines += ["", "Options:", *(_described(names[flag], options[flag].help or "", width) for flag in options)]
    return "\n".join(lines) + "\n"


def placeholder(argument: Argument) -> str:
    """Return what stands for an option's value; empty if it takes none."""
    return str(argument.name).rstrip("_").upper().replace("-", "_") if argument.takes_value else ""


def _described(name: str, text: str, width: int) -> str:
    columns = max(60, min(shutil.get_terminal_size((100, 24)).columns, 100))
    indent = " " * (width + 4)
    return textwrap.fill(text, columns, initial_indent=f"  {name:{width}}  ", subsequent_indent=indent) or f"  {name}"


def _candidates(contexts: Mapping[str, ParserContext], words: Sequence[str]) -> Iterable[str]:
    """Return what the last word may become: a task, one below it, an option of the task, or a value of the option."""
    *before, last = words or [""]
    *_, named = ("", *(word for word in _joined(before, contexts) if word in contexts))
    option = before[-1] if before else ""
    found: Iterable[str]
    if (
        f"{named} {option}" in NAMING_ROWS
        or option == "--target"
        or (named in MANY and not last.startswith("-") and f"{named} {option}" not in VALUES)
    ):
        listed, comma, _ = last.rpartition(",") if named in CHOOSING else ("", "", last)
        found = {f"{listed}{comma}{word}" for word in _targets() | ({"auto"} if named in WITH_AUTO else set())}
    elif named and option in contexts[named].flags and contexts[named].flags[option].takes_value:
        found = VALUES.get(f"{named} {option}", ())
    else:
        below = {name.partition(".")[2] for name in contexts if name.startswith(f"{option}.")}
        flags = [flag for flag in contexts[named].flags if flag.startswith("--")] if named else []
        found = {*below, *flags} or {name.partition(".")[0] for name in contexts}
    return sorted(word for word in found if word.startswith(last))


def _targets() -> set[str]:
    """Return the words that name rows; none if the project cannot be read: a line that is typed shows no error."""
    try:
        variants = read_matrix(others.current())
    except (DrydockError, OSError):
        return set()
    return {word for variant in variants for word in (variant.id, variant.accelerator, *variant.aliases)}
