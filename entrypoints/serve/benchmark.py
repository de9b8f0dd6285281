"""Runs `vllm bench`, or the vendor's programs: against a server, or a model without one. IO.

No code here measures tokens. The server is this entrypoint's own `serve`, started as a process, with its supervisor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from entrypoints.core.errors import HOST, NOT_READY, USAGE, EntrypointError
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.request.benchmark import LATENCY, SERVE, THROUGHPUT, Load
from entrypoints.request.flags import ADDRESS, COMMANDS, HIGHEST_PORT, MIDDLEWARE, PORT, SHUTDOWN, SOCKET
from entrypoints.request.vllm_flags import UserFlags, parse_count
from entrypoints.serve.client import Endpoint, Unreachable, find_flag_value, parse_endpoint, parse_url, send_request
from entrypoints.serve.known_answer import VLLM_PORT
from entrypoints.serve.ports import check_port, listen_on_status_port

RESULT_AT_MOST = 64 << 20
"""Bytes of a result, which --save-detailed makes large."""
_OK = 200
_NO_KEY = (401, 403)
_LONGEST_NAME = 512
"""Characters of a model's name, and of its folder."""
_AGAIN = 0.5
_VLLMS = "vllm.benchmarks."
_OF_SERVERS = {ADDRESS, PORT, SHUTDOWN, MIDDLEWARE, "--disable-log-requests", "--enable-reasoning"}
"""Flags of a plan that only the server's command line has."""
_NO_SPREAD = ("0.6.", "0.7.", "0.8.")
_SWITCHES = {"--disable-log-requests", "--enable-reasoning"}
_FIND = (
    "import importlib.util as u, os, sys; first, *rest = sys.argv[1].split('.'); spec = u.find_spec(first)\n"
    "places = list(spec.submodule_search_locations or ()) if spec else []\n"
    "print(*[p for p in (os.path.join(place, *rest) + '.py' for place in places) if os.path.exists(p)][:1])"
)
"""Prints the file of a module without an import of its package, which takes seconds."""
_RANDOM_LENGTHS = "add_random_dataset_base_args"
"""vLLM's function that adds --random-input-len: a benchmark that calls it ignores --input-len."""


class Program(NamedTuple):
    """A benchmark of the image."""

    module: str
    """The vendor's program, or the module of vLLM's that `vllm bench` calls."""
    words: tuple[str, ...] = ()
    own: bool = True
    """Whether it is vLLM's, so that it takes vLLM's options and writes its JSON."""
    spreads: bool = False
    """Whether --random-range-ratio is a share below and above the length; before vLLM 0.9, 1 was its own length."""
    prefix: str = "--"
    """What the options for lengths begin with, without a server."""


class Kit(NamedTuple):
    """How a benchmark is run."""

    python: str
    env: Mapping[str, str]
    folder: str
    """A temporary folder for results."""
    output: int = 1
    """The file descriptor for what the benchmark prints."""


def find_program(kind: str, table: Mapping[str, Mapping[str, Any]], version: str) -> Program:
    """Return the program of a kind of benchmark: the image's own, or vLLM's. Raises USAGE."""
    program_names = table["bench_programs"]["value"] if "bench_programs" in table else ()
    programs = dict(str(text).split("=", 1) for text in program_names)
    kinds = tuple(dict.fromkeys((SERVE, LATENCY, THROUGHPUT, *programs)))
    if kind not in kinds:
        raise EntrypointError(USAGE, f"--kind {kind}: invalid value", f"this image has: {', '.join(kinds)}")
    if kind in programs:
        module, *words = programs[kind].split()
        return Program(module, tuple(words), kind in (SERVE, LATENCY, THROUGHPUT))
    return Program(f"{_VLLMS}{kind}", spreads=not version.startswith(_NO_SPREAD))


def require_program(program: Program, kit: Kit, version: str) -> Program:
    """Return the program with the names of its options. Raises HOST if the image lacks it.

    It is called before a server is started.
    """
    argv = (kit.python, "-c", _FIND, program.module)
    with _report_failed_start(kit.python):
        process = subprocess.run(argv, capture_output=True, text=True, check=False, env=dict(kit.env))
    path = process.stdout.strip()
    if not path:
        message = f"bench: vLLM {version} of this image has no {program.module}"
        hint = (
            "`vllm bench` came with vLLM 0.9: measure this server with a newer image: docker run NEWER bench --url URL"
        )
        raise EntrypointError(HOST, message, hint)
    with open(path, encoding="utf-8") as file:
        return program._replace(prefix="--random-") if _RANDOM_LENGTHS in file.read() else program


@contextmanager
def _report_failed_start(program: str) -> Iterator[None]:
    """Raise HOST if the program that the block starts cannot be run."""
    try:
        yield
    except OSError as error:
        raise EntrypointError(HOST, f"{program}: cannot be run: {error.strerror}") from error


def make_bench_command(program: Program, kit: Kit, words: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a benchmark."""
    if program.module.startswith(_VLLMS):
        return (kit.python, "-m", COMMANDS, "bench", program.module.removeprefix(_VLLMS), *words)
    return (kit.python, "-m", program.module, *words)


def run_bench_program(program: Program, kit: Kit, words: Sequence[str]) -> int:
    """Run a benchmark and return its exit code. Raises HOST."""
    from entrypoints.host.programs import run_program

    return run_program(make_bench_command(program, kit, words), kit.env, kit.folder, output=kit.output)


# --- the words of a benchmark ---------------------------------------------------------------------------------------


def serve_words(
    program: Program, load: Load, url: str, user_words: Sequence[str], kit: Kit, served_model: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the options of a benchmark of a server; those that the user gives win, as the later ones."""
    model_words = (
        ()
        if find_flag_value(user_words, "--model")
        else ("--model", served_model["root"], "--served-model-name", served_model["id"])
    )
    spread = ("--random-range-ratio", f"{load.spread:g}") if load.spread and program.spreads else ()
    return (
        *("--base-url", url, *model_words, "--dataset-name", "random", "--ignore-eos"),
        *("--random-input-len", str(load.input), "--random-output-len", str(load.output), *spread),
        *("--num-prompts", str(load.prompts), "--max-concurrency", str(load.concurrency)),
        *("--save-result", "--result-dir", kit.folder, "--result-filename", "result.json", *user_words),
    )


def offline_words(kind: str, load: Load, program: Program, kit: Kit) -> tuple[str, ...]:
    """Return the options of a benchmark without a server, in addition to the flags of its engine."""
    if not program.own:
        values = {"input": load.input, "output": load.output, "prompts": load.prompts}
        return tuple(word.format(**values) for word in program.words)
    count: tuple[str, ...] = ("--num-prompts", str(load.prompts))
    if kind == LATENCY:
        count = ("--batch-size", str(load.concurrency), "--num-iters", str(load.prompts))
    lengths = (f"{program.prefix}input-len", str(load.input), f"{program.prefix}output-len", str(load.output))
    return (*lengths, *count, "--output-json", f"{kit.folder}/result.json")


def without_server(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a server's flags without those that only a server has."""
    bench_words: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _OF_SERVERS:
            bench_words.append(word)
        elif not equals and name not in _SWITCHES:
            next(words, "")
    return tuple(bench_words)


# --- the server -----------------------------------------------------------------------------------------------------


def server_of(url: str, key: str) -> Endpoint:
    """Return the server of a URL. Raises USAGE."""
    try:
        endpoint, path = parse_url(url)
    except ValueError:
        path = ""
    if path != "/" or "?" in url:
        raise EntrypointError(USAGE, f"--url {url!r}: expected a scheme, a host and a port", "--url http://host:8000")
    return endpoint._replace(key=key)


def endpoint_of(user_flags: UserFlags, env: Mapping[str, str]) -> Endpoint:
    """Return where a server with the user's flags, and those of their --config file, listens. Raises USAGE."""
    # the first value of each: of several keys, any will do
    words = tuple(f"{name}={str(user_flag.value).partition(' ')[0]}" for name, user_flag in user_flags.flags.items())
    port = parse_count(user_flags.flag(PORT) or str(VLLM_PORT), PORT, most=HIGHEST_PORT)
    return parse_endpoint(words, find_flag_value(words, ADDRESS), port, env)


def ask_model(endpoint: Endpoint) -> dict[str, str]:
    """Return the name of the server's first model, and the folder or hub id of its tokenizer. Raises NOT_READY.

    Both become words of a command, so a server cannot give an option there.
    """
    try:
        reply = send_request(endpoint, "/v1/models", timeout=10, most=1 << 20)
        model = parse_untrusted_json(reply.body)["data"][0] if reply.status == _OK else {}
        return {"id": _require_name(model["id"]), "root": _require_name(model.get("root") or model["id"])}
    except Unreachable as error:
        raise EntrypointError(NOT_READY, f"bench: the server does not answer: {error}", "start it first") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        message = f"bench: {endpoint}/v1/models: answered {reply.status}, expected the list of models"
        refused = reply.status in _NO_KEY
        hint = "give the key of the server with --api-key-file" if refused else "is this vLLM's server? see its log"
        raise EntrypointError(NOT_READY, message, hint) from error


def _require_name(name: Any) -> str:
    """Return a name that can be a word of a command. Raises ValueError."""
    text = name if isinstance(name, str) else ""
    if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable() or text.startswith("-"):
        raise ValueError("a name")
    return text


@contextmanager
def serve_for_benchmark(
    package: str,
    words: Sequence[str],
    endpoint: Endpoint,
    status_port: int,
    env: Mapping[str, str],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Start `serve` with these words, wait until it is ready, and stop it at the end.

    Raises NOT_READY, USAGE, and HOST for a port in use: another server there would be measured instead.
    """
    if endpoint.socket or not status_port:
        raise EntrypointError(USAGE, f"bench: {SOCKET} and --status-port 0 leave no port to measure at")
    listen_on_status_port(status_port).close()
    check_port(endpoint.host, endpoint.port)
    argv = (sys.executable, "-I", "-S", package, "serve", *words)
    with _report_failed_start(sys.executable):
        server = subprocess.Popen(argv, env=dict(env), stdout=2, start_new_session=True)
    try:
        _wait_until_ready(server, status_port)
        say("the server is ready: measuring")
        yield
        if server.poll() is not None:
            message = f"bench: the server ended with exit code {_get_exit_code(server)} while it was measured"
            raise EntrypointError(NOT_READY, message, "see its last lines above")
    finally:
        server.terminate()
        server.wait()


def _wait_until_ready(server: subprocess.Popen[bytes], port: int) -> None:
    while server.poll() is None:
        try:
            if send_request(Endpoint("127.0.0.1", port), "/readyz").status == _OK:
                return
        except Unreachable:
            pass
        time.sleep(_AGAIN)
    raise EntrypointError(_get_exit_code(server) or NOT_READY, "bench: the server ended before it was ready")


def _get_exit_code(ended: subprocess.Popen[bytes]) -> int:
    return 128 - ended.returncode if ended.returncode < 0 else ended.returncode


def read_result(path: str) -> dict[str, Any]:
    """Return what a benchmark wrote. Raises HOST."""
    from entrypoints.core.folders import read_bounded

    try:
        value = parse_untrusted_json(read_bounded(path, RESULT_AT_MOST))
        os.remove(path)
    except (OSError, ValueError) as error:
        raise EntrypointError(HOST, f"bench: the benchmark wrote no result: {error}", "see its last lines") from error
    if not isinstance(value, dict):
        raise EntrypointError(HOST, f"bench: the benchmark wrote {type(value).__name__}, expected an object")
    return value
