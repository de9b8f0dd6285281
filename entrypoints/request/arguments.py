"""The entrypoint's own command line: verb, own flags, and what belongs to vLLM. Pure.

Own flags are few and end where vLLM's begin by name, not by place: whatever is not ours is vLLM's, untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.request.intents import INTENTS, NONE, Intents, parse_intents

VERBS = {
    "serve": "look at the host, plan, start vLLM and watch over it (the default)",
    "plan": "print the command, the environment and every reason; start nothing",
    "check": "print findings with remediation; exit 3 if one is FAIL",
    "facts": "print what the host is",
    "warm": "start, wait until ready, leave the caches filled, exit",
    "convert": "make of a model what this device computes, with the vendor's script: --model DIR --output DIR",
    "cache": "list, export, import or remove what is kept between starts",
    "health": "ask whether the server is ready (HEALTHCHECK, probes)",
    "version": "print what this image is",
    "help": "print this",
}

FLAGS = {
    "--json": ("", "plan, check, facts, version: JSON on standard output"),
    "--junit": ("FILE", "check: JUnit XML into FILE, or - for standard output"),
    "--fix-script": ("", "check: print a script that mends the host, for a person to read and run"),
    "--root": ("PATH", "facts, check, plan: a recorded host, host.json or its folder, instead of this one"),
    "--record": ("PATH", "facts: write a recorded host, such as host.json"),
    "--diff": ("A B", "plan: what differs between two plans that `plan --json` wrote"),
    "--strict": ("", "serve: refuse to start when a check is FAIL"),
    "--exec": ("", "serve: become vLLM, without watching over it"),
    "--status-port": ("N", "serve: /livez /readyz /startupz /metrics (8001)"),
    "--drain-timeout": ("SECONDS", "serve: how long running requests may take after SIGTERM (25)"),
    **INTENTS,
}
"""Own flag → its value's name (none for a switch) and what it does."""


class Options(NamedTuple):
    """What the running verbs (serve, warm) are told."""

    status_port: int = 8001
    drain_timeout: float = 25.0
    """Seconds; below Kubernetes' 30 s of grace, so that vLLM can still end by itself."""
    exec_: bool = False
    strict: bool = False
    json: bool = False
    fix_script: bool = False
    recorded: bool = False
    """Whether the plan is another machine's, so that this one's CPUs are not bound."""


class Arguments(NamedTuple):
    """A command line, understood."""

    verb: str
    options: Options
    root: str
    """The recorded host's file or folder; empty for the running system."""
    record: str
    junit: str
    vllm: tuple[str, ...]
    """What is left for vLLM; for `exec` the command itself."""
    intents: Intents = NONE
    diff: tuple[str, ...] = ()
    """Two files that `plan --json` wrote."""


def parse_arguments(argv: tuple[str, ...]) -> Arguments:
    """Split a command line into verb, own flags and the rest; what is no verb is a command, verb `exec`.

    Raises USAGE.
    """
    verb, tokens = _verb(argv)
    if verb in ("exec", "health", "cache", "convert"):
        return Arguments(verb, Options(), "", "", "", tokens)
    values, rest = _own_flags(tokens)
    if "--help" in values or verb == "help":
        return Arguments("help", Options(), "", "", "", rest)
    options = Options(
        status_port=_port(values.get("--status-port", str(Options().status_port))),
        drain_timeout=_seconds(values.get("--drain-timeout", str(Options().drain_timeout))),
        exec_="--exec" in values,
        strict="--strict" in values,
        json="--json" in values,
        fix_script="--fix-script" in values,
        recorded="--root" in values,
    )
    root, record, junit = (values.get(flag, "") for flag in ("--root", "--record", "--junit"))
    return _checked(Arguments(verb, options, root, record, junit, rest, parse_intents(values), _files(values)))


def _verb(argv: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if not argv:
        return "serve", ()
    if argv[0] in ("-h", "--help"):
        return "help", ()
    if argv[0].startswith("-"):
        return "serve", argv
    return (argv[0], argv[1:]) if argv[0] in VERBS else ("exec", argv)


def _own_flags(tokens: tuple[str, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Take our flags out, in either form (`--root PATH`, `--root=PATH`)."""
    values: dict[str, str] = {}
    rest: list[str] = []
    waiting = iter(tokens)
    for token in waiting:
        name, equals, value = token.partition("=")
        if token in ("-h", "--help"):
            values["--help"] = ""
        elif name not in FLAGS:
            rest.append(token)
        elif not FLAGS[name][0]:
            if equals:
                raise EntrypointError(USAGE, f"{token}: {name} takes no value")
            values[name] = ""
        else:
            count = len(FLAGS[name][0].split()) - equals.count("=")
            given = [*([value] if equals else []), *(next(waiting, "") for _ in range(count))]
            values[name] = "\0".join(given)
            if not all(given):
                raise EntrypointError(USAGE, f"{name}: a value is missing", f"write {name} {FLAGS[name][0]}")
    return values, tuple(rest)


def _files(values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(values["--diff"].split("\0")) if "--diff" in values else ()


def _checked(arguments: Arguments) -> Arguments:
    """Refuse flags where they would mean nothing."""
    verb, options = arguments.verb, arguments.options
    wrong = {
        "--record": arguments.record and verb != "facts",
        "--junit": arguments.junit and (verb != "check" or options.fix_script),
        "--fix-script": options.fix_script and verb != "check",
        "--json": options.json and options.fix_script,
        "--diff": arguments.diff and verb != "plan",
        "--strict": options.strict and verb != "serve",
        "--exec": options.exec_ and verb != "serve",
        **dict.fromkeys(INTENTS, arguments.intents != NONE and verb not in ("serve", "plan", "warm")),
        "--root": arguments.root and not (verb in ("facts", "check", "plan") or (verb == "serve" and options.exec_)),
    }
    for flag, misplaced in wrong.items():
        if misplaced:
            raise EntrypointError(USAGE, f"{verb}: {flag} means nothing here", f"{flag} is for: {FLAGS[flag][1]}")
    if arguments.vllm and verb in ("facts", "check", "version"):
        unknown = arguments.vllm[0]
        raise EntrypointError(USAGE, f"{verb}: unknown argument {unknown!r}", f"own flags: {', '.join(FLAGS)}")
    return arguments


def _port(text: str) -> int:
    highest = 65535
    if not (text.isascii() and text.isdigit() and int(text) <= highest):
        raise EntrypointError(USAGE, f"--status-port {text}: expected a port from 0 to {highest}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise EntrypointError(USAGE, f"--drain-timeout {text}: expected seconds, such as 25 or 0.5")
    return seconds
