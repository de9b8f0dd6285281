"""Commands that start vLLM in scripts, pages, Dockerfiles and units, with the image of each. Pure.

They are text: nothing of them is executed, expanded or looked up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.compare import pasted_command
from drydock.compare.pasted_command import PlacedWord
from drydock.core.errors import InputError
from drydock.oci.reference import parse_reference

SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash"))
QUOTING = frozenset(("echo", "printf", "grep", "pkill", "pgrep", "killall", "which", "cat", "git", "man", "pip"))
"""Programs that get the words of a command, and start none."""
NESTED_AT_MOST = 4
"""`bash -c` within `bash -c`."""
REQUIREMENT = "vllm=="
"""How a package of vLLM is named, where it stands for an image: what `pip install` got before a command."""
SHARED = "/dev/shm"  # noqa: S108 - where processes share memory
PLACES_AT_MOST = 500
"""Commands of one file."""
_FENCE = re.compile(r"^(?P<indent>[ \t>]*)(?P<mark>`{3,20}|~{3,20})[ \t]{0,8}(?P<language>[\w+-]{0,40})[^\n]*$")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1")
_INSTALLED = re.compile(r"vllm(?:\[[\w,.-]*\])?==(\d[\w.]*)")
_DEFAULT = re.compile(r"\$\{[A-Za-z_]\w*:?-([^${}]*)\}")
"""${NAME:-default}: a shell and Compose take the default where nothing is set."""
_SERVES_ALONE = re.compile(r"(vllm-openai|vllm-cpu-release-repo)(-[a-z0-9]+)*")
"""The last part of a repository whose images have `vllm serve`, or its module, as ENTRYPOINT."""


class Surroundings(NamedTuple):
    """What stands around a command and must agree with it."""

    ports: tuple[tuple[int, int], ...] = ()
    """Port in the container that is published, or that a probe asks, and its line."""
    shares_memory: bool | None = None
    """Whether /dev/shm is larger than an engine's 64 MB; None if that cannot be told."""
    patience: tuple[int, int] | None = None
    """Seconds after which a probe ends a container that does not answer yet, and the line of the probe."""


class CommandPlace(NamedTuple):
    """A command that starts vLLM."""

    file: str
    line: int
    kind: str
    """What holds it: compose, kubernetes, shell, dockerfile, unit, markdown."""
    image: str
    """As it is written; empty if none stands next to the command."""
    words: tuple[str, ...]
    """What vLLM's parser gets, after `serve`."""
    env: Mapping[str, str]
    entry: tuple[str, ...] = ()
    """Words that name a program although they follow the image's ENTRYPOINT, which is one already."""
    around: Surroundings = Surroundings()
    is_entered: bool = False
    """Whether the image's ENTRYPOINT gets the words, since nothing replaces it."""


class WrittenContainer(NamedTuple):
    """What a file says of a container."""

    file: str
    line: int
    kind: str
    image: str
    program: tuple[str, ...]
    """What replaces the image's ENTRYPOINT; empty if nothing does."""
    words: tuple[str, ...]
    env: Mapping[str, str]
    around: Surroundings = Surroundings()


def line_of(word: str, otherwise: int) -> int:
    """Return the line on which a word was written."""
    return word.line if isinstance(word, PlacedWord) else otherwise


def take_defaults(text: str) -> str:
    """Return a text with the defaults of ${NAME:-default} in place; other variables stay."""
    return _DEFAULT.sub(lambda match: match[1], text)


def names_vllm(image: str) -> bool:
    """Return whether an image is one whose ENTRYPOINT is vLLM's server, by the name of its repository."""
    try:
        return bool(_SERVES_ALONE.fullmatch(parse_reference(take_defaults(image)).repository.rpartition("/")[2]))
    except InputError:
        return False


def list_container(container: WrittenContainer) -> Iterator[CommandPlace]:
    """Yield the commands that a container starts: one, or those of its script."""
    if "--help" in container.words:
        return
    full = (*container.program, *container.words)
    if (server := find_server(full)) is not None:
        start, words = server
        entry = full[:start] if not container.program and names_vllm(container.image) else ()
        yield _make_place(container, words, entry)
    elif (script := _find_script(full)) is not None:
        for place in list_script(script, container.file, line_of(script, container.line), container.kind):
            yield place._replace(
                image=place.image or container.image,
                env={**container.env, **place.env},
                around=container.around if not place.image else place.around,
            )
    elif not container.program and container.words and _is_server(container):
        is_subcommand = container.words[0] == "serve"
        yield _make_place(container, container.words[is_subcommand:], container.words[:is_subcommand], is_entered=True)


def _is_server(container: WrittenContainer) -> bool:
    """Return whether the words after an image are for vLLM's server, as far as names tell."""
    is_like = "vllm" in container.image.lower() and any(word.startswith("--model") for word in container.words)
    return is_like or names_vllm(container.image)


def _make_place(
    container: WrittenContainer, words: Sequence[str], entry: Sequence[str], *, is_entered: bool = False
) -> CommandPlace:
    return CommandPlace(
        file=container.file,
        line=container.line,
        kind=container.kind,
        image=container.image,
        words=tuple(words),
        env=container.env,
        entry=tuple(entry),
        around=container.around,
        is_entered=is_entered,
    )


def find_server(words: Sequence[str]) -> tuple[int, tuple[str, ...]] | None:
    """Return where a server's command begins in a command, and the words after it; None if there is none."""
    if words and words[0].rpartition("/")[2] in QUOTING:
        return None
    for place, word in enumerate(words):
        is_module = place > 0 and words[place - 1] == "-m"
        if [*words[place + 1 : place + 2]] == ["serve"] and (
            word.rpartition("/")[2] == "vllm" or (is_module and word == pasted_command.COMMANDS)
        ):
            return place + 2, tuple(words[place + 2 :])
        if is_module and word == pasted_command.API_SERVER:
            return place + 1, tuple(words[place + 1 :])
    return None


def _find_script(words: Sequence[str]) -> str | None:
    """Return the script of `bash -c SCRIPT` in a command; None if there is none."""
    for place, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in SHELLS:
            for number in range(place + 1, len(words) - 1):
                if re.fullmatch(r"-[a-z]*c", words[number]):
                    return words[number + 1]
                if not words[number].startswith(("-", "pipefail")):
                    break
    return None


def list_script(text: str, file: str, first_line: int, kind: str, depth: int = 0) -> Iterator[CommandPlace]:
    """Yield the commands of a script. Raises InputError for one that no shell could read either."""
    env: dict[str, str] = {}
    installed = ""
    for words in pasted_command.split_commands(_blank_heredocs(text), first_line):
        installed = next((f"{REQUIREMENT}{match[1]}" for word in words if (match := _INSTALLED.match(word))), installed)
        exported = words[1:] if words[0] == "export" else words
        assignments = [match for word in exported if (match := pasted_command.ASSIGNMENT.fullmatch(word))]
        if len(assignments) == len(exported):
            env.update((match[1], PlacedWord(match[2], words[0].line)) for match in assignments)
        elif words[0] not in QUOTING:
            for place in _list_command(words, file, kind, env, depth):
                yield place if place.image else place._replace(image=installed)


def _list_command(
    words: Sequence[PlacedWord], file: str, kind: str, exported: Mapping[str, str], depth: int
) -> Iterator[CommandPlace]:
    """Yield the servers of one command: of its container, of its script, or itself."""
    line, env = words[0].line, dict(exported)
    for word in words:
        match = pasted_command.ASSIGNMENT.fullmatch(word)
        if match:
            env[match[1]] = PlacedWord(match[2], word.line)
        elif word not in pasted_command.WRAPPERS:
            break
    programs = [word.rpartition("/")[2] for word in words[:6]]
    engine = next((place for place, name in enumerate(programs) if name in pasted_command.ENGINES), None)
    if engine is not None and {"run", "create"} & {*words[engine + 1 : engine + 3]}:
        try:
            container = pasted_command.split_container(words[engine + 1 :])
        except InputError:
            return
        around = _read_options(container.options, line)
        read_env = {name: PlacedWord(value, line) for name, value in container.env.items()}
        yield from list_container(
            WrittenContainer(file, line, kind, container.image, container.program, container.words, read_env, around)
        )
    elif (server := find_server(words)) is not None:
        if "--help" not in server[1]:
            yield CommandPlace(file, line, kind, "", server[1], env)
    elif depth < NESTED_AT_MOST and (script := _find_script(words)) is not None:
        for place in list_script(script, file, line_of(script, line), kind, depth + 1):
            yield place._replace(env={**env, **place.env})


def _read_options(options: Sequence[tuple[str, str]], line: int) -> Surroundings:
    """Return what options of `docker run` say of ports and shared memory."""
    names = dict(options)
    is_host = "host" in (names.get("--network"), names.get("--net"))
    published = [value for option, value in options if option in ("-p", "--publish")]
    ports = [] if is_host else [(port, line) for value in published if (port := container_port(value))]
    is_mounted = any(SHARED in value for value in names.values())
    return Surroundings(tuple(ports), is_mounted or shares_memory(names.get("--shm-size"), names.get("--ipc")))


_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([kmgt]?)i?b?")
_USUAL_MEMORY = 64 << 20
"""Bytes of /dev/shm that an engine gives (Docker, containerd)."""


def shares_memory(size: Any, ipc: Any) -> bool:
    """Tell whether options of a container give /dev/shm more than an engine does.

    A size that cannot be read does, such as a variable without a default.
    """
    if ipc == "host" or ":" in str(ipc or ""):  # container:NAME and service:NAME share that one's
        return True
    if size is None:
        return False
    text = take_defaults(str(size)).strip().lower()
    match = _SIZE.fullmatch(text)
    return match is None or float(match[1]) * 1024 ** " kmgt".index(match[2] or " ") > _USUAL_MEMORY


def container_port(published: str) -> int:
    """Return the container's side of HOST:CONTAINER/tcp; 0 if it is no number."""
    text = take_defaults(published).partition("/")[0].rpartition(":")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0  # noqa: PLR2004 - 65535


def _blank_heredocs(text: str) -> str:
    """Return a script with the lines of here-documents empty: they are data."""
    lines, end = text.split("\n"), ""
    for number, line in enumerate(lines):
        if end:
            end = "" if line.strip() == end else end
            lines[number] = ""
        elif match := _HEREDOC.search(line):
            end = match[2]
            lines[number] = line[: match.start()] + line[match.end() :]
    return "\n".join(lines)


class PageBlock(NamedTuple):
    """A fenced block of a page."""

    language: str
    line: int
    """Of its first line of text."""
    text: str


def list_blocks(text: str) -> Iterator[PageBlock]:
    """Yield the fenced blocks of a Markdown page (CommonMark, "Fenced code blocks")."""
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        match = _FENCE.match(line)
        if opened is None:
            opened, lines, start = match, [], number + 1
        elif match and match["mark"].startswith(opened["mark"]) and not match["language"]:
            yield PageBlock(opened["language"].lower(), start, "\n".join(lines))
            opened = None
        else:
            lines.append(line.removeprefix(opened["indent"]))


def list_dockerfile(text: str, file: str) -> Iterator[CommandPlace]:
    """Yield the command that a Dockerfile's last stage starts. Raises InputError."""
    image, line = "", 1
    program: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    arguments: dict[str, str] = {}
    env: dict[str, str] = {}
    stage, stages = "", dict[str, tuple[str, tuple[str, ...], tuple[str, ...], dict[str, str]]]()
    for number, instruction, rest in _list_instructions(text):
        if instruction == "ARG":
            name, _, value = rest.partition("=")
            arguments[name.strip()] = value.strip().strip("\"'")
        elif instruction == "FROM":
            stages[stage] = (image, program, words, env)
            parts = [part for part in rest.split() if not part.startswith("--")]
            base = re.sub(r"\$\{?(\w+)\}?", lambda match: arguments.get(match[1], match[0]), "".join(parts[:1]))
            image, program, words, env = stages.get(base.lower(), (base, (), (), {}))
            stage, env = "".join(parts[2:3]).lower(), dict(env)  # FROM IMAGE AS STAGE
        elif instruction == "ENV":
            pairs = [word for command in pasted_command.split_commands(rest, number) for word in command]
            if pairs and "=" not in pairs[0]:  # the older form: ENV NAME VALUE
                pairs = [PlacedWord(f"{pairs[0]}={' '.join(pairs[1:])}", number)]
            matches = [match for word in pairs if (match := pasted_command.ASSIGNMENT.fullmatch(word))]
            env.update((match[1], PlacedWord(match[2], number)) for match in matches)
        elif instruction == "ENTRYPOINT":
            program, words, line = _read_form(rest, number), (), number
        elif instruction == "CMD":
            words, line = _read_form(rest, number), number
    yield from list_container(WrittenContainer(file, line, "dockerfile", image, program, words, env))


def _list_instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and rest of each instruction, with continued lines joined."""
    joined, start = "", 0
    for number, line in enumerate(_blank_heredocs(text).split("\n"), 1):
        if line.lstrip().startswith("#") or (not joined and not line.strip()):
            continue
        start = start if joined else number
        joined += line.rstrip() + "\n"
        if not line.rstrip().endswith("\\"):
            name, _, rest = joined.strip().partition(" ")
            yield start, name.upper(), rest.strip()
            joined = ""


def _read_form(text: str, line: int) -> tuple[str, ...]:
    """Return the words of CMD or ENTRYPOINT: a JSON list, or a script for sh."""
    try:
        parts = json.loads(text.replace("\\\n", " "))
    except (ValueError, RecursionError):
        return ("sh", "-c", PlacedWord(text, line))
    return tuple(PlacedWord(str(part), line) for part in parts) if isinstance(parts, list) else ()


def list_unit(text: str, file: str) -> Iterator[CommandPlace]:
    """Yield the commands of a systemd unit or a Quadlet file. Raises InputError."""
    values: dict[str, list[PlacedWord]] = {}
    joined, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        start = start if joined else number
        joined += line.rstrip().removesuffix("\\") + ("\\\n" if line.endswith("\\") else "")
        if not line.endswith("\\"):
            key, equals, value = joined.partition("=")
            if equals:
                values.setdefault(key.strip(), []).append(PlacedWord(value.strip(), start))
            joined = ""
    env = dict(_read_unit_env(values.get("Environment", ())))
    for command in values.get("ExecStart", ()):
        for place in list_script(command.lstrip("@-:+!"), file, command.line, "unit"):
            yield place._replace(env={**env, **place.env})
    if images := values.get("Image"):
        image = images[-1]
        program, words = (
            tuple(word for text in values.get(key, ())[-1:] for word in split_line(text))
            for key in ("Entrypoint", "Exec")
        )
        published = [port for value in values.get("PublishPort", ()) if (port := container_port(value))]
        has_memory = "ShmSize" in values or any("ipc" in value for value in values.get("PodmanArgs", ()))
        around = Surroundings(tuple((port, image.line) for port in published), has_memory)
        yield from list_container(WrittenContainer(file, image.line, "unit", image, program, words, env, around))


def split_line(text: str, otherwise: int = 1) -> tuple[str, ...]:
    """Return the words of a command that no shell reads. Raises InputError."""
    commands = pasted_command.split_commands(text, line_of(text, otherwise))
    return tuple(word for command in commands for word in command)


def _read_unit_env(settings: Sequence[PlacedWord]) -> Iterator[tuple[str, str]]:
    for setting in settings:
        for word in split_line(setting):
            if match := pasted_command.ASSIGNMENT.fullmatch(word):
                yield match[1], PlacedWord(match[2], setting.line)
