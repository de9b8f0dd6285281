"""The entrypoint's own command line: verb, drydock's flags, and the words for vLLM. Pure.

drydock's flags are recognised by name and may stand anywhere. All other words are vLLM's and stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from entrypoints.core.errors import USAGE, EntrypointError
from entrypoints.core.language import LANG
from entrypoints.request.access import ACCESS_FLAGS, KEY_FILE, Access, parse_access
from entrypoints.request.benchmark import BENCHMARK_FLAGS, Benchmark, parse_benchmark
from entrypoints.request.flags import SECRET_FILE
from entrypoints.request.intents import INTENTS, NONE, Intents, parse_intents
from entrypoints.request.network import parse_hosts, parse_port
from entrypoints.request.recipes import FEATURE, RECIPE_FLAGS, RecipeChoice, parse_choice
from entrypoints.request.roles import ROLE_FLAGS, Role, parse_role
from entrypoints.request.vllm_lists import ACCEPT

VERBS = {
    "serve": "Check the host, choose vLLM's settings, start vLLM and supervise it (default)",
    "plan": "Print the command, the environment and the reason for each setting",
    "check": "Print findings and how to fix them; exit with 3 if one is FAIL",
    "facts": "Print what was found on the host, as JSON",
    "warm": "Start vLLM, wait until it is ready, keep the filled caches and exit",
    "convert": "Convert a model for this device with the vendor's script: [--model DIR] --output DIR [--kind KIND]",
    "bench": "Measure a server, or a model on this host, with vLLM's own benchmark",
    "fabric": "Measure an all-reduce over the devices of this host, or of several with --peers",
    "cache": "List, export, import or remove cache entries",
    "explain": "Print what a line of a log or an exit code means: explain 'LINE', FILE, or - for standard input",
    "report": "Print what a bug report needs, without secrets; the log comes on standard input",
    "health": "Exit with 0 if the server is ready, for HEALTHCHECK and probes: [--status-port N | --url URL]; "
    "or if servers give a topology's known answer: --topology JSON",
    "version": "Print the image's variant, accelerator, stack and vLLM version",
    "help": "Print this help",
}

_WITH_OWN_ARGUMENTS = ("exec", "health", "cache", "convert")
"""Verbs that parse their own words."""
_PLANNING = ("serve", "plan", "warm", "bench", "report")
"""Verbs that make a plan, and the one that can start a server."""
ONLY = "--only"
REHEARSE, IDLE = "--rehearse", "--idle"
_SEVERITIES = ("fail", "warn", "unknown", "info", "pass")
_REPEATABLE = (ONLY, ACCEPT, FEATURE)
"""Flags whose values are collected, with commas between."""
_ENDS = "--"
"""After it, `bench` passes words to the benchmark program."""
_SECONDS_AT_MOST = 1_000_000
"""Eleven days. The kernel's and Python's functions that wait have limits themselves, of about twice that."""


class Option(NamedTuple):
    """One of drydock's flags."""

    value: str
    """The name of its value, or of its two values; empty for a switch."""
    verbs: tuple[str, ...]
    """Verbs that accept it."""
    help: str


_OF_PLANS = ACCESS_FLAGS | INTENTS | ROLE_FLAGS | RECIPE_FLAGS
FLAGS: Mapping[str, Option] = {
    "--json": Option("", ("plan", "check", "explain", "bench", "fabric", "facts", "version"), "Print JSON"),
    ONLY: Option("SEVERITIES", ("check",), f"Print findings of these severities only: {','.join(_SEVERITIES)}"),
    "--junit": Option("FILE", ("check",), "Write JUnit XML to a file, or to standard output with -"),
    "--html": Option("FILE", ("plan", "check"), "Write a page with pictures to a file, or to standard output with -"),
    "--peers": Option("ADDRESSES", ("check", "fabric"), "Hosts on which the same command runs at this time"),
    "--peer-ports": Option("LIST", ("check",), "Ports that all hosts must be reached on (default: 8000,29501)"),
    "--peers-wait": Option(
        "SECONDS", ("check", "fabric"), "Time for the other hosts to begin (default: 20, fabric: 60)"
    ),
    "--fix-script": Option("", ("check",), "Print a script that fixes the host; read it before you run it"),
    "--model-config": Option("FILE", ("plan",), "Read this config.json (or its folder) instead of the model's files"),
    "--root": Option(
        "PATH", ("facts", "check", "plan", "serve", "report"), "Read a recorded host (host.json or its folder)"
    ),
    IDLE: Option("", ("plan",), "Plan as if no other process used the machine, and every device were healthy"),
    "--record": Option("PATH", ("facts",), "Write a recorded host, such as host.json"),
    REHEARSE: Option(
        "", ("plan",), "Let vLLM itself check the plan, without weights and devices; exit with 14 if it refuses"
    ),
    "--rehearse-seconds": Option("SECONDS", ("plan",), "Time for --rehearse (default: 120)"),
    "--diff": Option("A B", ("plan",), "Compare two files that `plan --json` wrote"),
    LANG: Option(
        "LANGUAGE",
        ("serve", "plan", "check", "warm", "explain"),
        "Language of findings: en or zh (default: the locale's)",
    ),
    "--strict": Option("", ("serve",), "Do not start if a check is FAIL"),
    "--exec": Option("", ("serve",), "Replace the entrypoint by vLLM, without supervision"),
    "--status-port": Option("N", (*_PLANNING, "check"), "Port of /livez, /readyz, /metrics, /group (default: 8001)"),
    "--drain-timeout": Option("SECONDS", _PLANNING, "Time for running requests after SIGTERM (default: 25)"),
    "--drain-pause": Option("SECONDS", _PLANNING, "Time for balancers to notice that it stops (default: 5)"),
    "--leader-status-port": Option("N", _PLANNING, "--status-port of rank 0 of several hosts, if it is another one"),
    "--group-patience": Option("SECONDS", _PLANNING, "Silence after which a host is lost (default: 30); 0: never"),
    "--group-wait": Option("SECONDS", _PLANNING, "Time for the other hosts to start (default: 600); 0: no limit"),
    SECRET_FILE: Option("FILE", _PLANNING, "Read the secret that several hosts sign their reports with"),
    ACCEPT: Option(
        "NAME", _PLANNING, "Overrule what refuses: a NAME that vLLM's lists lack, a check of cards; repeatable"
    ),
    "--stall-seconds": Option("SECONDS", _PLANNING, "Not ready after this time without progress; 0: never"),
    **{name: Option(value, ("bench",), text) for name, (value, text) in BENCHMARK_FLAGS.items()},
    **{name: Option(value, _PLANNING, text) for name, (value, text) in _OF_PLANS.items()},
}


class Options(NamedTuple):
    """Options that change how a verb runs or prints."""

    status_port: int = 8001
    drain_timeout: float = 25.0
    """Seconds; less than Kubernetes' grace period of 30 s, so that vLLM can exit by itself."""
    drain_pause: float = 5.0
    """Seconds, of the drain timeout's, in which new requests are still served."""
    stall: float | None = None
    """Seconds without progress; None for the plan's choice."""
    leader_port: int = 0
    """The status port of rank 0 of several hosts; 0 if it is the same."""
    group_patience: float = 30.0
    """Seconds of silence after which one of several hosts is lost; 0 does not look."""
    group_wait: float = 600.0
    """Seconds for the other hosts to start; 0 waits forever."""
    group_secret_file: str = ""
    """The file with the secret that several hosts sign their reports with."""
    exec_: bool = False
    strict: bool = False
    json: bool = False
    fix_script: bool = False
    recorded: bool = False
    """Whether the plan is for another machine, so that CPUs are not bound on this one."""


class Arguments(NamedTuple):
    """A parsed command line."""

    verb: str
    options: Options
    root: str
    """The recorded host's file or folder; empty for the running system."""
    record: str
    junit: str
    html: str
    """File of the page; empty for none."""
    vllm: tuple[str, ...]
    """The words for vLLM; for `exec`, the command itself; for verbs with arguments of their own, these."""
    intents: Intents = NONE
    diff: tuple[str, ...] = ()
    """Two files that `plan --json` wrote."""
    key_file: str = ""
    """The file with the API keys."""
    access: Access = Access()
    role: Role = Role()
    peers: tuple[str, ...] = ()
    """Other hosts to check."""
    peer_ports: str = ""
    peers_wait: float = 20.0
    """Seconds."""
    bench: Benchmark = Benchmark()
    only: tuple[str, ...] = ()
    """Severities that `check` prints; empty for all but PASS."""
    model_config: str = ""
    """A config.json, or its folder, that describes the model; empty for the model's own files."""
    accepted: tuple[str, ...] = ()
    """Names of `--vllm-accepts`."""
    recipe: RecipeChoice = RecipeChoice()
    """What is said of published recipes."""
    rehearse: bool = False
    """Whether vLLM itself checks the plan."""
    rehearse_seconds: float = 120.0
    idle: bool = False
    """Whether the plan is for the machine without other processes."""
    language: str = ""
    """The language of --lang; empty for that of the locale."""


def parse_arguments(argv: tuple[str, ...]) -> Arguments:
    """Split a command line into verb, drydock's flags and the rest. An unknown first word is a command, verb `exec`.

    Raises USAGE.
    """
    verb, words = _split_verb(argv)
    if verb in _WITH_OWN_ARGUMENTS:
        return Arguments(verb, Options(), "", "", "", "", words)
    split = words.index(_ENDS) if verb == "bench" and _ENDS in words else len(words)
    flags, rest = _split_flags(words[:split])
    if "--help" in flags or verb == "help":
        return Arguments("help", Options(), "", "", "", "", rest)
    _check_flags(verb, flags)
    if rest and verb in ("facts", "check", "version"):
        raise EntrypointError(USAGE, f"{verb}: unknown argument {rest[0]!r}", _hint_at_flags(verb, rest[0]))
    values = {name: words[0] if words else "" for name, words in flags.items()}
    return Arguments(
        verb,
        _parse_server_options(values),
        root=values.get("--root", ""),
        record=values.get("--record", ""),
        junit=values.get("--junit", ""),
        html=values.get("--html", ""),
        vllm=rest,
        intents=parse_intents(values),
        diff=flags.get("--diff", ()),
        key_file=values.get(KEY_FILE, ""),
        access=parse_access(values),
        role=parse_role(values),
        peers=parse_hosts(values.get("--peers", "")),
        peer_ports=values.get("--peer-ports", ""),
        peers_wait=_read_seconds(values, "--peers-wait", 60.0 if verb == "fabric" else 20.0),
        bench=parse_benchmark(flags, words[split + 1 :])._replace(server=_for_server(flags)),
        only=_parse_severities(values.get(ONLY, "")),
        model_config=values.get("--model-config", ""),
        accepted=tuple(filter(None, values.get(ACCEPT, "").split(","))),
        recipe=parse_choice(values),
        language=values.get(LANG, ""),
        idle=IDLE in flags,
        rehearse=REHEARSE in flags,
        rehearse_seconds=_read_seconds(values, "--rehearse-seconds", 120.0),
    )


def _parse_server_options(values: Mapping[str, str]) -> Options:
    usual = Options()
    return Options(
        status_port=_read_port(values, "--status-port", usual.status_port),
        drain_timeout=_read_seconds(values, "--drain-timeout", usual.drain_timeout),
        drain_pause=_read_seconds(values, "--drain-pause", usual.drain_pause),
        stall=_read_seconds(values, "--stall-seconds", 0.0) if "--stall-seconds" in values else None,
        leader_port=_read_port(values, "--leader-status-port", usual.leader_port),
        group_patience=_read_seconds(values, "--group-patience", usual.group_patience),
        group_wait=_read_seconds(values, "--group-wait", usual.group_wait),
        group_secret_file=values.get(SECRET_FILE, ""),
        exec_="--exec" in values,
        strict="--strict" in values,
        json="--json" in values,
        fix_script="--fix-script" in values,
        recorded="--root" in values,
    )


def _for_server(flags: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return drydock's flags that `serve` takes too, as words."""
    mine = {name: values for name, values in flags.items() if "serve" in FLAGS[name].verbs}
    return tuple(f"{name}={values[0]}" if values else name for name, values in mine.items())


def _split_verb(argv: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if not argv:
        return "serve", ()
    if argv[0] in ("-h", "--help"):
        return "help", ()
    if argv[0].startswith("-"):
        return "serve", argv
    return (argv[0], argv[1:]) if argv[0] in VERBS else ("exec", argv)


def _split_flags(words: tuple[str, ...]) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return drydock's flags with their values (`--root PATH` or `--root=PATH`), and all other words. Raises USAGE."""
    flags: dict[str, tuple[str, ...]] = {}
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            flags["--help"] = ()
        elif name in FLAGS:
            flag_values = _flag_values(name, [value] if equals else [], remaining)
            flags[name] = (",".join((*flags.get(name, ()), *flag_values)),) if name in _REPEATABLE else flag_values
        else:
            rest.append(word)
    return flags, tuple(rest)


def _flag_values(name: str, values: list[str], remaining: Iterator[str]) -> tuple[str, ...]:
    """Return all values of a flag; those that do not follow an equals sign are the next words. Raises USAGE."""
    expected = FLAGS[name].value
    count = len(expected.split())
    if len(values) > count:
        raise EntrypointError(USAGE, f"{name} takes no value, found {values[0]!r}")
    while len(values) < count:
        values.append(next(remaining, ""))
    if not all(values):
        raise EntrypointError(USAGE, f"{name} requires a value", f"write {name} {expected}")
    return tuple(values)


def _check_flags(verb: str, flags: Mapping[str, tuple[str, ...]]) -> None:
    """Raise USAGE for a flag that the verb does not accept, and for flags that exclude each other."""
    for flag in flags:
        verbs = FLAGS[flag].verbs
        if verb not in verbs:
            raise EntrypointError(USAGE, f"{flag} cannot be used with {verb}", f"{flag} is for: {', '.join(verbs)}")
    if verb == "serve" and "--root" in flags and "--exec" not in flags:
        raise EntrypointError(
            USAGE, "serve: --root requires --exec", "use plan --root PATH to see the plan of that host"
        )
    for other_flag in ("--root", "--fix-script"):
        if "--peers" in flags and other_flag in flags:
            raise EntrypointError(USAGE, f"--peers cannot be used with {other_flag}", "run check once for each")
    for flag in ("--json", "--junit", "--html", ONLY):
        if "--fix-script" in flags and flag in flags:
            raise EntrypointError(USAGE, f"{flag} cannot be used with --fix-script", "run check once for each")


def _parse_severities(text: str) -> tuple[str, ...]:
    """Parse severities, such as fail,warn. Raises USAGE."""
    words = text.lower().split(",") if text else []
    for word in words:
        if word not in _SEVERITIES:
            raise EntrypointError(
                USAGE, f"{ONLY} {text}: unknown severity {word!r}", f"write one or several of {','.join(_SEVERITIES)}"
            )
    return tuple(word.upper() for word in words)


def _hint_at_flags(verb: str, word: str) -> str:
    """Return the hint for an unknown argument: the flag of this verb that looks like it, or all of them."""
    from difflib import get_close_matches

    flags = [name for name, option in FLAGS.items() if verb in option.verbs]
    close = get_close_matches(word.partition("=")[0], flags, n=1)
    return f"did you mean {close[0]}?" if close else f"flags of {verb}: {', '.join(flags)}"


def _read_port(values: Mapping[str, str], flag: str, usual: int) -> int:
    return parse_port(values[flag], flag) if flag in values else usual


def _read_seconds(values: Mapping[str, str], flag: str, usual: float) -> float:
    text = values.get(flag)
    if text is None:
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _SECONDS_AT_MOST:
        raise EntrypointError(USAGE, f"{flag} {text}: expected seconds, such as 25 or 0.5, at most {_SECONDS_AT_MOST}")
    return seconds
