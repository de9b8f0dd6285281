"""The command line `./inv`, installed `drydock`: help, checks of the arguments, completion, and then invoke.

invoke itself reads an unknown option as a positional value, and prints no hint.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from invoke.collection import Collection
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program

from drydock import INSTALLED
from drydock.cli import version
from drydock.cli.task_helpers import print_errors
from drydock.cli.verb import Verb, make_collection
from drydock.cli.verb_table import COMMANDS
from drydock.config.renamed import current_option, current_value, current_verb
from drydock.core.console import spell_commands, write_output
from drydock.core.errors import DrydockError, InputError, join_hints, suggest_nearest
from drydock.core.paths import PROGRAM, PROJECT_OPTION, PROJECT_VARIABLE
from drydock.core.process import check_current_folder, prepare_process
from drydock.core.user_language import translate_lines, wrap_lines
from drydock.core.verb_options import Field, VerbOptions, list_fields

Commands = Mapping[str, Mapping[str, Verb]]
"""Heading → verb as it is typed → what it does: as in verb_table.py."""

NAMING_ROWS = ("compare --from", "compare --to")
"""Verbs and options, other than --target, that take the name of a row."""
SHORT = {"-v": "--verbose"}
"""Short option → the long one. Each means the same in every verb, as -h does."""

COMPLETE = "complete"
"""First word of the line with which a shell asks for completions."""
VERSION = ("--version", "-V", "version")
ANSWERED = ("help", "completion", COMPLETE, *VERSION)
"""First words that are no verb."""

BEFORE_DASHES = ("entrypoint", "run", "plan", "check", "explain", "size")
"""Verbs whose words after -- are the image's: a verb, flags of vLLM, or a text."""
MOST_USED: Mapping[str, str] = {
    "--max-model-len TOKENS": "longest sequence, prompt and answer [default: what fits, at most the model's]",
    "--tensor-parallel-size N": "devices that share each layer [default: chosen, with the reason]",
    "--max-num-seqs N": "requests that are computed at the same time",
    "--gpu-memory-utilization PART": "part of each device's memory that vLLM may use",
    "--quantization METHOD": "how weights are compressed, if the model does not say it",
    "--kv-cache-dtype TYPE": "number format of the KV cache, such as fp8",
    "--devices LIST": "devices to use, such as 0-3,6 [default: all]",
    "--optimize AIM": "latency (of one answer) or throughput (of all answers)",
    "--concurrency N": "requests at the same time that are planned for",
    "--workload FILE": "lengths of real requests: JSON lines, CSV, or a server's /metrics",
}
"""Options of an image, and flags of vLLM, that people need most, for the help of verbs that pass them on."""
_OF_PLAN = {"--html FILE": "also write a page with pictures to a file", "--rehearse": "let vLLM itself check the plan"}
PASSING_FLAGS = ("plan", "run", "size")
"""Verbs with words after -- that are flags of `serve` and `plan`."""
_WITHOUT_IMAGE = "it is a verb of the image: ./inv entrypoint --target ROW -- {}"
_MISSPELT = 0.8
"""Likeness from 0 to 1 at which an unknown option is a misspelt one of the task, and none of vLLM's."""
OF_IMAGE: Mapping[str, str] = {
    **{verb: _WITHOUT_IMAGE.format(verb) for verb in ("facts", "report")},
    "serve": "./inv run --target ROW --model MODEL starts a server",
    **{verb: f"it is a verb of the image: ./inv run --target ROW -- {verb}" for verb in ("health", "warm")},
}
"""Verb of the image that is none of ./inv → where it goes."""
IMAGE_VERBS = (*OF_IMAGE, "check", "explain", "plan", "version")
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

OF_DOCKERS_BUILD: Mapping[str, str] = {
    **dict.fromkeys(("-t", "--tag"), "`./inv publish` names what it pushes, and build prints the image's name here"),
    **dict.fromkeys(("-f", "--file"), "`./inv render` writes images/ROW/Dockerfile; `additions` of a row adds lines"),
    **dict.fromkeys(
        ("--secret", "--ssh"), "no step has a secret: passwords belong into pip's configuration or ~/.netrc"
    ),
    **dict.fromkeys(
        ("--push", "-o", "--output"), "`./inv publish` pushes what was built; `./inv bundle create` writes it"
    ),
    **dict.fromkeys(("--cache-from", "--cache-to"), "`./inv foundations push` keeps layers in a registry"),
    **dict.fromkeys(("--label", "--annotation"), "`additions: {labels: {NAME: TEXT}}` of a row or of drydock.yaml"),
    "--build-arg": "settings of a compilation are `env` of the stack's `builds`; versions are in the stack",
    "--build-context": "--context NAME=FOLDER replaces a context",
    "--add-host": "no step has a network",
    "--network": "no step has a network",
    "--load": "build loads the image anyway",
    "--progress": "--verbose prints all that is done",
    "--pull": "`./inv lock --upgrade` takes a newer base",
    "--sbom": "`./inv publish` attaches one",
    "--provenance": "`./inv publish` attaches one",
}
"""Option of `docker build` that people write → what drydock has instead."""

CHOOSING = {"build": ("--all-locked", "--changed-since")}
"""Verb that requires a target → the options that choose rows instead of it."""

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

    def parse_core(self, argv: list[str] | None) -> None:
        without_bytecode = sys.dont_write_bytecode
        super().parse_core(argv)
        # invoke turns bytecode off: what a verb imports would be compiled again by each command.
        sys.dont_write_bytecode = without_bytecode

    def parse_tasks(self) -> None:
        try:
            super().parse_tasks()
        except ParseError as error:
            raise Exit(translate_lines(f"error: {_explain_parse_error(error)}"), code=InputError.code) from error


def main() -> None:
    """Run the verbs that the words of this process name: the console script `drydock`."""
    prepare_process()
    run_command_line(COMMANDS, sys.argv[1:])


def run_command_line(commands: Commands, arguments: Sequence[str]) -> None:
    """Run the verbs that the words name, or complete them. Exits with 2 if a word is wrong."""
    with print_errors(silent=_find_first_word(arguments) == COMPLETE):
        check_current_folder()
        _run_tasks(Verbs(commands), arguments)


class Verbs:
    """The verbs by their names, and how invoke parses each. A verb is imported when it is asked for."""

    def __init__(self, commands: Commands) -> None:
        self.commands = commands
        self.headings = {name: heading for heading, members in commands.items() for name in members}
        self.contexts = ParserContexts(self)

    def __getitem__(self, name: str) -> Verb:
        """Return a verb. Raises KeyError."""
        return self.commands[self.headings[name]][name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names, as they are typed."""
        return iter(self.headings)

    def make_tasks(self, words: Sequence[str]) -> Collection:
        """Return the verbs of a checked line as invoke's tasks."""
        names = {word.replace(".", " ") for word in words if word in self.contexts}
        return make_collection({name: self[name] for name in names})

    def find_verb(self, context: ParserContext) -> Verb:
        """Return the verb that a context parses."""
        return self[_format_task_name(context)]

    def takes_word(self, context: ParserContext, word: str) -> bool:
        """Tell whether a word is text of a verb that takes all words: no option, as a quoted line that begins so."""
        is_option = word.startswith("-") and word != "-" and not re.search(r"\s", word)
        return self.find_verb(context).record.TAKES_ALL_WORDS and not is_option

    def find_field(self, context: ParserContext, option: str) -> Field | None:
        """Return the field of an option that is typed with its dashes."""
        fields = list_fields(self.find_verb(context).record).values()
        return next((field for field in fields if f"--{field.option}" == option), None)

    @property
    def groups(self) -> set[str]:
        """Return the first words of verbs that are none by themselves: topology."""
        return {name.partition(" ")[0] for name in self} - {*self}


class ParserContexts(Mapping[str, ParserContext]):
    """How invoke parses each verb, by invoke's name of it: lock.diff."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._names = {name.replace(" ", "."): name for name in verbs}

    def __getitem__(self, name: str) -> ParserContext:
        """Return what parses one verb. Raises KeyError."""
        return ParserContext(name=name, args=self._verbs[self._names[name]].get_arguments())

    def __contains__(self, name: object) -> bool:
        """Tell whether there is such a verb, without importing it."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Yield invoke's names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return how many verbs there are."""
        return len(self._names)


def _find_first_word(arguments: Sequence[str]) -> str:
    """Return the word after --project DIR; empty if there is none."""
    option, equals, _ = arguments[0].partition("=") if arguments else ("", "", "")
    before = 0 if option != PROJECT_OPTION else 1 if equals else 2
    return next(iter(arguments[before:]), "")


def _run_tasks(verbs: Verbs, arguments: Sequence[str]) -> None:
    """Answer, or check the words and let invoke start their tasks. Raises InputError."""
    for word in arguments:
        if not word.isprintable() and re.search("[\ud800-\udfff]", word):  # how Python keeps bytes that are no text
            raise InputError(f"{word!a} is not UTF-8", hint="rename the file, or correct the word")
    typed, dashes, rest = _split_at_dashes(_in_project(arguments))
    asks_help = bool({"-h", "--help"} & {*typed})
    if typed[:1] != [COMPLETE] and not asks_help:
        typed = _rename_verb(typed, verbs)
    is_text = typed[:1] != [] and typed[0] in verbs.contexts and verbs[typed[0]].record.TAKES_ALL_WORDS
    words = typed if is_text else _join_task_words(typed, verbs.contexts)
    if words and words[0] in verbs.groups and not asks_help:
        _check_verb_of_group(words, verbs)
    if not words or words[0] in (*ANSWERED, *verbs.groups) or asks_help:
        write_output(spell_commands(_answer_query(verbs, words)))
        return
    checked = [*_check_words(words, verbs)]
    checked += _default_target(checked, verbs)
    _Checked(namespace=verbs.make_tasks(checked), binary=PROGRAM).run([PROGRAM, *checked, *dashes, *rest])


def _rename_verb(words: Sequence[str], verbs: Verbs) -> list[str]:
    """Return the words with the present name of their verb. A group's name alone lists the group."""
    if " ".join(words[:2]) in {*verbs} or (len(words) == 1 and words[0] in verbs.groups):
        return [*words]
    first, *rest = current_verb(words) or [""]
    return [*first.split(), *rest]


def _in_project(arguments: Sequence[str]) -> Sequence[str]:
    """Take --project DIR before the task, which sets DRYDOCK_PROJECT; return the other words. Raises InputError."""
    option, equals, value = arguments[0].partition("=") if arguments else ("", "", "")
    if option != PROJECT_OPTION:
        return arguments
    from drydock.config.project_choice import find_project

    value = value if equals else "".join(arguments[1:2])
    if not value:
        raise InputError(f"{PROJECT_OPTION} requires a value", hint=f"write {PROJECT_OPTION} DIR")
    os.environ[PROJECT_VARIABLE] = str(Path(value).absolute())
    find_project(Path.cwd(), os.environ)
    return arguments[1 if equals else 2 :]


def _split_at_dashes(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the words before `--`, the dashes, and what comes after them, which belongs to a container."""
    words = [*arguments]
    if "--" not in words:
        return words, [], []
    place = words.index("--")
    return words[:place], ["--"], words[place + 1 :]


def _join_task_words(words: Sequence[str], contexts: Mapping[str, ParserContext]) -> list[str]:
    """Write `lock diff` as invoke names it: lock.diff."""
    joined: list[str] = []
    for word in words:
        if joined and f"{joined[-1]}.{word}" in contexts:
            joined[-1] = f"{joined[-1]}.{word}"
        else:
            joined.append(word)
    return joined


def _check_words(words: Sequence[str], verbs: Verbs) -> Iterator[str]:
    """Yield the words as invoke needs them. Raises InputError for an unknown verb or option, or one given twice."""
    context: ParserContext | None = None
    positional = 0
    set_options: set[str] = set()
    remaining = iter(words)
    for word in remaining:
        if context and verbs.takes_word(context, word):
            yield from (f"--{verbs.find_verb(context).record.WORDS[0]}", word)
        elif context and word in DOCKERS.get(str(context.name), {}):
            yield from filter(None, [DOCKERS[str(context.name)][word]])
        elif context and word.startswith("-"):
            yield from _option_words(verbs, context, word, set_options, remaining)
        elif context and context.name in BEFORE_DASHES and word in IMAGE_VERBS:
            raise _without_dashes(context, word, words)
        elif context and positional:
            positional -= 1
            yield _check_value(verbs, context, context.positional_args[-1 - positional], word)
        elif context and verbs.find_verb(context).record.WORDS and word not in verbs.contexts:
            yield from (f"--{verbs.find_verb(context).record.WORDS[0]}", word)
        else:
            context = _find_task(word, verbs)
            set_options.clear()
            positional = len(context.positional_args)
            yield word


UNLESS = {"audit": ("--advisories", "--database")}
"""Verb → the options without which it requires a target."""


def _default_target(words: Sequence[str], verbs: Verbs) -> list[str]:
    """Return the option with the project's default target if the line's one verb requires a target and has none."""
    from drydock.config.project_choice import find_project, read_settings

    name = words[0]
    required = [argument.name for argument in verbs.contexts[name].positional_args][:1] == ["target"]
    option_names = {word.partition("=")[0] for word in words[1:]}
    instead = {"--target", *CHOOSING.get(name, ()), *UNLESS.get(name, ())}
    if option_names & instead or not (required or name in CHOOSING or name in UNLESS):
        return []
    typed = len(words) > 1 and not words[1].startswith("-")
    settings = read_settings(find_project(Path.cwd(), os.environ))
    return [f"--target={settings.defaults.target}"] if settings and settings.defaults.target and not typed else []


def _option_words(
    verbs: Verbs, context: ParserContext, word: str, set_options: set[str], remaining: Iterator[str]
) -> Iterator[str]:
    """Yield an option as invoke needs it, with its value; nothing for one that has no effect any more."""
    typed_name, equals, value = SHORT.get(word, word).partition("=")
    name = current_option(_format_task_name(context), typed_name)
    if name is None:
        return
    option = _find_option(context, name)
    if option.takes_value and option.kind is not list:
        if name in set_options:  # invoke would take the second value for a task
            raise InputError(f"{name} is given twice", hint=f"write {name} VALUE once, or a line for each value")
        set_options.add(name)
    if not option.takes_value:
        yield f"{name}{equals}{value}"
        return
    yield name
    yield _check_value(verbs, context, option, value if equals else _next_value(name, remaining))


def _next_value(name: str, remaining: Iterator[str]) -> str:
    """Return the next word, the value of an option. Raises InputError if there is none."""
    value = next(remaining, None)
    if value is None:
        raise InputError(f"{name} requires a value", hint=f"write {name} VALUE")
    return value


def _check_value(verbs: Verbs, context: ParserContext, argument: Argument, value: str) -> str:
    """Return the present name of a value. Raises InputError if the option lists its values, and this is none."""
    option = _to_option(argument.name)
    value = current_value(_format_task_name(context), option, value)
    field = verbs.find_field(context, option)
    if field and field.choices and value not in field.choices:
        message = f"{_format_task_name(context)}: {option} {value}: unknown value"
        raise InputError(message, hint=suggest_nearest(value, field.choices))
    return value


def _find_option(context: ParserContext, name: str) -> Argument:
    options_by_flag = {**context.flags, **{flag: context.flags[of] for flag, of in context.inverse_flags.items()}}
    if name not in options_by_flag:
        if name == PROJECT_OPTION:
            raise InputError(
                f"{PROJECT_OPTION} comes before the task",
                hint=f"write ./inv {PROJECT_OPTION} DIR {_format_task_name(context)}",
            )
        message = f"{_format_task_name(context)}: unknown option {name}"
        instead = OF_DOCKERS_BUILD.get(name) if context.name == "build" else ""
        alike = instead or suggest_nearest(name, options_by_flag)
        if context.name in BEFORE_DASHES and not get_close_matches(name, options_by_flag, 1, _MISSPELT):
            alike = "options of vLLM and of its image follow --"
        raise InputError(
            message, hint=join_hints(alike, f"./inv {_format_task_name(context)} --help lists the options")
        )
    argument: Argument = options_by_flag[name]
    return argument


def _check_verb_of_group(words: Sequence[str], verbs: Verbs) -> None:
    """Raise InputError if the word after a group, such as `topology`, is none of its verbs."""
    if len(words) > 1 and not words[1].startswith("-"):
        members = [name for name in verbs if name.startswith(f"{words[0]} ")]
        message = f"unknown task {' '.join(words[:2])!r}"
        raise InputError(
            message, hint=join_hints(suggest_nearest(" ".join(words[:2]), members), f"./inv {words[0]} lists its tasks")
        )


def _find_task(word: str, verbs: Verbs) -> ParserContext:
    if word in verbs.contexts:
        return verbs.contexts[word]
    names = [*verbs, *verbs.groups]
    where = OF_IMAGE.get(word) or OF_DOCKER.get(word) or suggest_nearest(word, names, "none is like it")
    raise InputError(f"unknown task {word!r}", hint=join_hints(where, "./inv lists the tasks"))


def _without_dashes(context: ParserContext, word: str, words: Sequence[str]) -> InputError:
    """Return the error for a verb of the image that was written as a word of the task."""
    place = words.index(word)
    task_line = shlex.join(_format_task_name(context) if item == context.name else item for item in words[:place])
    message = f"{_format_task_name(context)}: {word!r} is a verb of the image, and -- is missing before it"
    return InputError(message, hint=f"write ./inv {task_line} -- {shlex.join(words[place:])}")


def _explain_parse_error(error: ParseError) -> str:
    """Return what was wrong, for errors that only invoke finds: a required option that is missing."""
    context = error.context
    missing = [argument.name for argument in context.missing_positional_args] if context else []
    if not (context and missing):
        return f"{error}\n\nhint: ./inv lists the tasks, ./inv TASK --help the options of one"
    lacking = " and ".join(_to_option(name) for name in missing)
    targets = "; ./inv matrix lists the targets" if "target" in missing else ""
    return (
        f"{_format_task_name(context)} requires {lacking}\n\nhint: ./inv {_format_task_name(context)} --help{targets}"
    )


def _to_option(name: object) -> str:
    """Return an option as one types it; invoke names an argument by its attribute: from_, verify_key."""
    return f"--{str(name).rstrip('_').replace('_', '-')}"


def _format_task_name(context: ParserContext) -> str:
    """Return a task's name as it is typed: `lock diff`."""
    return str(context.name).replace(".", " ")


# --- help and completion --------------------------------------------------------------------------------------------


def _answer_query(verbs: Verbs, words: Sequence[str]) -> str:
    """Return the overview, the help of a verb, a completion script, or what completes a line."""
    if words and words[0] == COMPLETE:
        return "".join(f"{word}\n" for word in _list_completions(verbs, words[1:]))
    if words and words[0] in VERSION:
        return version.format_version()
    if words and words[0] == "completion":
        shell = words[1] if len(words) > 1 else "bash"
        return COMPLETIONS.get(shell) or f"unknown shell {shell}, expected one of {', '.join(COMPLETIONS)}\n"
    joined = _join_task_words([word for word in words if word != "help"], verbs.contexts)
    task_name = next((word for word in joined if word in verbs.contexts), "")
    group = next((word for word in words if word in verbs.groups), "")
    if task_name:
        return help_of(verbs, verbs.contexts[task_name])
    return _list_group(verbs, group) if group else format_overview(verbs)


def _list_group(verbs: Verbs, group: str) -> str:
    """Return the verbs below a word, with one line each."""
    members = {name.partition(" ")[2]: verbs[name] for name in verbs if name.startswith(f"{group} ")}
    lines = [f"  {name:13} {_summarise_task(verb)}" for name, verb in members.items()]
    return "\n".join([translate_lines(f"Usage: ./inv {group} TASK [OPTIONS]"), "", *lines]) + "\n"


def format_overview(verbs: Verbs) -> str:
    """Return the verbs with one line each, grouped by purpose. Benchmarks are parts of one verb, and not listed."""
    lines = [translate_lines("Usage: ./inv TASK [OPTIONS]"), ""]
    for heading, members in verbs.commands.items():
        listed = {name: verb for name, verb in members.items() if not name.startswith("bench ")}
        lines += [
            translate_lines(f"{heading}:"),
            *(f"  {name:17} {_summarise_task(verb)}" for name, verb in listed.items()),
            "",
        ]
    lines += map(translate_lines, [
        "Options of a task: ./inv TASK --help",
        'Completion: eval "$(./inv completion bash)", or zsh, fish',
        f"In a project, a folder with drydock.yaml: ./inv {PROJECT_OPTION} DIR TASK, or start in that folder",
        "For this machine's devices: ./inv run --target auto --model MODEL",
        "First image: ./inv demo, then ./inv matrix for the targets of ./inv build --target TARGET",
    ])  # fmt: skip
    return "\n".join(lines) + "\n"


def _summarise_task(verb: Verb) -> str:
    return translate_lines((verb.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip("."))


def help_of(verbs: Verbs, context: ParserContext) -> str:
    """Return the usage of a verb, what it does and its options."""
    task_name, verb = _format_task_name(context), verbs.find_verb(context)
    required = "".join(f" {_format_word(argument)}" for argument in context.positional_args)
    required = " --target TARGET" if context.name in CHOOSING else required
    if verb.record.WORDS and context.name not in CHOOSING:
        is_repeated = list_fields(verb.record)[verb.record.WORDS[0]].kind is list or verb.record.TAKES_ALL_WORDS
        required += f" [{verb.record.WORDS[0].upper()}{' …' if is_repeated else ''}]"
    option_words = "[OPTIONS] [-- OPTIONS OF THE IMAGE]" if context.name in BEFORE_DASHES else "[OPTIONS]"
    required += f" {translate_lines(option_words)}"
    lines = [translate_lines(f"Usage: ./inv {task_name}{required}"), "", translate_lines(verb.__doc__ or "")]
    if texts := list_help(verb, context):
        width = max(map(len, texts))
        lines += [
            "",
            translate_lines("Options:"),
            *(_format_option_help(name, text, width) for name, text in texts.items()),
        ]
    if context.name in PASSING_FLAGS:
        texts = {**MOST_USED, **(_OF_PLAN if context.name == "plan" else {})}
        texts = {name: text for name, text in texts.items() if name.split()[0] not in context.flags}
        width = max(map(len, texts))
        lines += ["", translate_lines("Options of the image that are used most, after --:")]
        lines += [_format_option_help(name, text, width) for name, text in texts.items()]
    if context.name in BEFORE_DASHES:
        lines += ["", translate_lines("All options of the image: ./inv entrypoint --target TARGET -- --help")]
    return "\n".join(lines) + "\n"


def _format_word(argument: Argument) -> str:
    """Return a required option as one types it: a target by its name, others by their place."""
    word = format_placeholder(argument)
    return f"--target {word}" if argument.name == "target" else word


def list_help(verb: Verb, context: ParserContext) -> dict[str, str]:
    """Return each option with its placeholder, and its help."""
    options = {flag: argument for flag, argument in context.flags.items() if flag.startswith("--")}
    return {
        f"{flag} {format_placeholder(argument)}".rstrip(): verb.help_texts[str(argument.attr_name or argument.name)]
        for flag, argument in options.items()
    }


def format_placeholder(argument: Argument) -> str:
    """Return what stands for an option's value; empty if it takes none."""
    return str(argument.name).rstrip("_").upper().replace("-", "_") if argument.takes_value else ""


def _format_option_help(name: str, text: str, width: int) -> str:
    columns = max(60, min(shutil.get_terminal_size((100, 24)).columns, 100))
    indent = " " * (width + 4)
    return wrap_lines(text, columns, f"  {name:{width}}  ", indent) or f"  {name}"


def _list_completions(verbs: Verbs, words: Sequence[str]) -> Iterable[str]:
    """Return what the last word may become: a verb, one below it, an option of the verb, or a value of the option."""
    *before, last = words or [""]
    *_, task_name = ("", *(word for word in _join_task_words(before, verbs.contexts) if word in verbs.contexts))
    option = before[-1] if before else ""
    context = verbs.contexts[task_name] if task_name else None
    field = verbs.find_field(context, option) if context else None
    record = verbs.find_verb(context).record if context else VerbOptions
    words_are_targets = record.WORDS[:1] == ("target",)
    is_value = bool(field) and context is not None and context.flags[option].takes_value
    candidates: Iterable[str]
    if (
        f"{task_name} {option}" in NAMING_ROWS
        or option == "--target"
        or (words_are_targets and not last.startswith("-") and not is_value)
    ):
        listed, comma, _ = last.rpartition(",") if task_name in CHOOSING else ("", "", last)
        words_of_rows = _list_target_words() | ({"auto"} if record.TAKES_AUTO else set())
        candidates = {f"{listed}{comma}{word}" for word in words_of_rows}
    elif field and is_value:
        candidates = field.choices
    else:
        below = {name.partition(" ")[2] for name in verbs if name.startswith(f"{option} ")}
        flags = [flag for flag in context.flags if flag.startswith("--")] if context else []
        candidates = {*below, *flags} or {name.partition(" ")[0] for name in verbs}
    return sorted(word for word in candidates if word.startswith(last))


def _list_target_words() -> set[str]:
    """Return the words that name rows; none if the project cannot be read: a line that is typed shows no error."""
    from drydock.config.matrix import read_matrix
    from drydock.inputs import others

    try:
        variants = read_matrix(others.read_current_project())
    except (DrydockError, OSError):
        return set()
    return {word for variant in variants for word in (variant.id, variant.accelerator, *variant.aliases)}
