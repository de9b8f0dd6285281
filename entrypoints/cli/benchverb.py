"""`bench --url URL | --model MODEL`: `vllm bench`, or the vendor's programs, with the plan's lengths. IO.

    bench --url http://host:8000 [-- FLAG …]      measures a server
    bench --model MODEL [VLLM FLAGS] [-- FLAG …]  starts `serve` with these flags, measures it, and stops it
    bench --model MODEL --kind latency            runs without a server, with the flags of the plan

Words after -- go to the benchmark program; with --url, so do all words that are not drydock's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from entrypoints.core.errors import CHECK_FAILED, HOST, OK, USAGE, EntrypointError
from entrypoints.core.text import emit_text, format_count
from entrypoints.request.arguments import Arguments
from entrypoints.request.benchmark import SERVE, Load, load_of
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.serve.benchmark import (
    Kit,
    Program,
    ask_model,
    endpoint_of,
    find_program,
    offline_words,
    read_result,
    require_program,
    serve_for_benchmark,
    serve_words,
    server_of,
    without_server,
)
from entrypoints.serve.benchmark import run_bench_program as run_benchmark
from entrypoints.serve.client import Endpoint, first_key

Result = Mapping[str, Any]


class Scene(NamedTuple):
    """What the verb gets from the command line's module."""

    profile: Mapping[str, Any]
    env: Mapping[str, str]
    whole: Mapping[str, str]
    """With the variables that the base image's scripts export, and the key of the server."""
    flags: tuple[str, ...]
    """vLLM's option strings; empty if the image did not record them."""
    package: str
    """The folder of the entrypoint."""
    say: Callable[[str], None]
    write: Callable[[str, str, str], None]
    """Writes what an option asks for: option, path, text."""
    plan: Callable[[Arguments], Any]
    """Returns the facts, the model and the plan."""


def run_bench(arguments: Arguments, scene: Scene) -> int:
    """Measure, write what was asked for; return the exit code. Raises USAGE, HOST, NOT_READY."""
    from entrypoints.host.programs import raise_on_stop_signal

    bench = arguments.bench
    program = find_program(bench.kind, scene.profile["thresholds"], scene.profile["vllm"])
    load = load_of(bench, arguments.intents)
    _check_bench(arguments)
    output = 2 if arguments.options.json or bench.output == "-" else 1  # standard output is the JSON's
    with raise_on_stop_signal("bench"), _make_result_folder() as folder:
        kit = Kit(scene.profile["python"], scene.whole, folder, output)
        program = require_program(program, kit, scene.profile["vllm"])
        measure = _measure_server if bench.kind == SERVE else _measure_offline
        result = measure(arguments, scene, program, kit, load)
    return _write_result(arguments, scene, load, result) if program.own else OK


def _make_result_folder() -> TemporaryDirectory[str]:
    """Return a folder for results, which is removed at the end. Raises HOST."""
    try:
        return TemporaryDirectory(prefix="bench-")
    except OSError as error:
        hint = "add --tmpfs /tmp to docker run, or an emptyDir at /tmp"
        raise EntrypointError(HOST, f"bench: no folder for results can be made: {error.strerror}", hint) from error


def _check_bench(arguments: Arguments) -> None:
    """Raise USAGE for what cannot be measured or written, before minutes are spent on it."""
    bench = arguments.bench
    if bench.url and bench.kind != SERVE:
        raise EntrypointError(USAGE, f"--url cannot be used with --kind {bench.kind}", "a server is measured by serve")
    folder = os.path.dirname(os.path.abspath(bench.output))
    if bench.output not in ("", "-") and not (os.access(folder, os.W_OK) and not os.path.isdir(bench.output)):
        hint = "name a file in /cache, or in a folder that is mounted with -v"
        raise EntrypointError(USAGE, f"--output {bench.output}: cannot be written", hint)


def _measure_server(arguments: Arguments, scene: Scene, program: Program, kit: Kit, load: Load) -> Result:
    """Measure a server: the user's, or one that is started with the user's flags."""
    bench = arguments.bench
    if bench.url:
        endpoint = server_of(bench.url, first_key(scene.whole))
        return _measure_requests(endpoint, (*arguments.vllm, *bench.words), scene, program, kit, load)
    words = (*arguments.vllm, *bench.server)
    endpoint = endpoint_of(parse_user_flags(arguments.vllm, scene.env, scene.flags), scene.whole)
    with serve_for_benchmark(scene.package, words, endpoint, arguments.options.status_port, scene.env, scene.say):
        return _measure_requests(endpoint, bench.words, scene, program, kit, load)


def _measure_requests(
    endpoint: Endpoint, extra_words: tuple[str, ...], scene: Scene, program: Program, kit: Kit, load: Load
) -> Result:
    served_model = ask_model(endpoint)
    key = {"OPENAI_API_KEY": endpoint.key} if endpoint.key else {}  # what vLLM's benchmark sends as the key
    requests = format_count(load.prompts, "request")
    scene.say(f"{requests} of {load.input} and {load.output} tokens, {load.concurrency} at a time")
    words = serve_words(program, load, str(endpoint), extra_words, kit, served_model)
    return _run_program(program, kit._replace(env={**kit.env, **key}), words)


def _measure_offline(arguments: Arguments, scene: Scene, program: Program, kit: Kit, load: Load) -> Result:
    """Measure a model without a server, with the plan's flags, environment, limits and caches."""
    from entrypoints.plan.plan_text import format_reasons_text
    from entrypoints.serve.launch import prepare_host

    facts, _, plan = scene.plan(arguments)
    if plan.group:
        raise EntrypointError(USAGE, f"--kind {arguments.bench.kind}: measures one host", "measure several by --url")
    scene.say(format_reasons_text(plan))
    caches, env = prepare_host(plan, scene.profile, facts, scene.env, arguments.options)
    flags = without_server(plan.argv[plan.argv.index("-m") + 2 :])
    try:
        more = offline_words(arguments.bench.kind, load, program, kit)
        result = _run_program(program, kit._replace(env=env), (*flags, *more, *arguments.bench.words))
        caches.keep()
    finally:
        caches.close(patient=True)
    return result


def _run_program(program: Program, kit: Kit, words: tuple[str, ...]) -> Result:
    """Run a benchmark; return what it wrote. The vendor's own programs only print their figures."""
    code = run_benchmark(program, kit, words)
    if code:
        raise EntrypointError(code, f"bench: {program.module} ended with exit code {code}", "see its last lines above")
    return read_result(f"{kit.folder}/result.json") if program.own else {}


def _write_result(arguments: Arguments, scene: Scene, load: Load, result: Result) -> int:
    """Write the JSON, and return CHECK_FAILED if requests failed."""
    bench = arguments.bench
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        if bench.output:
            scene.write("--output", bench.output, text)
    finally:
        if arguments.options.json and bench.output != "-":
            emit_text(text)
    failed = count_failed_requests(result, load.prompts)
    if failed:
        scene.say(f"drydock: {format_count(failed, 'request')} failed: the figures are of the others")
    return CHECK_FAILED if failed else OK


def count_failed_requests(result: Result, prompts: int) -> int:
    """Return how many requests of a server's benchmark failed; the user's own --num-prompts replaces `prompts`."""
    completed, prompts_sent = result.get("completed"), result.get("num_prompts")
    return (
        max(0, (prompts_sent if isinstance(prompts_sent, int) else prompts) - completed)
        if isinstance(completed, int)
        else 0
    )
