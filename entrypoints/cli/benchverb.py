"""`bench --url URL | --model MODEL | --compare A B`: vLLM's own benchmarks, with the plan's lengths. IO.

    bench --url http://host:8000 [-- FLAG …]      measures a server
    bench --model MODEL [VLLM FLAGS] [-- FLAG …]  starts `serve` with these flags, measures it, and stops it
    bench --model MODEL --kind latency            runs without a server, with the flags of the plan

Words after -- go to the benchmark program; with --url, so do all words that are not drydock's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from entrypoints.cli.benchresults import compared, missing, number_of, read_results, table
from entrypoints.core.errors import CHECK_FAILED, HOST, OK, USAGE, EntrypointError
from entrypoints.core.text import counted, emit
from entrypoints.decide.spread.executor import PLUGIN
from entrypoints.request.arguments import Arguments
from entrypoints.request.benchmark import LATENCY, SERVE, THROUGHPUT, Load, loads
from entrypoints.request.vllm_flags import parse_given
from entrypoints.serve.benchmark import (
    Kit,
    Program,
    ask_model,
    endpoint_of,
    find_program,
    offline_words,
    read_result,
    require,
    serve_words,
    served,
    server_of,
    without_server,
)
from entrypoints.serve.benchmark import run as run_benchmark

Results = list[Mapping[str, Any]]


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


def compare(first: str, second: str) -> int:
    """Print how two files of results differ. Raises USAGE."""
    emit(compared(read_results(first), read_results(second)))
    return OK


def run(arguments: Arguments, scene: Scene) -> int:
    """Measure, print the figures, write what was asked for; return the exit code. Raises USAGE, HOST, NOT_READY."""
    from entrypoints.host.programs import stoppable

    asked, kind = arguments.bench, arguments.bench.kind
    program = find_program(kind, scene.profile["thresholds"], scene.profile["vllm"])
    todo = loads(asked, arguments.intents)
    _check(arguments, program)
    if asked.sweep:  # the server, or the engine, is planned for the largest
        arguments = arguments._replace(intents=arguments.intents._replace(concurrency=max(asked.sweep)))
    results: Results = []
    code = OK
    try:
        with stoppable("bench"), _folder() as folder:
            kit = Kit(scene.profile["python"], PLUGIN, scene.whole, folder)
            require(program, kit, scene.profile["vllm"])
            measure = _online if kind == SERVE else _offline
            results.extend(measure(arguments, scene, program, kit, todo))  # keeps the runs before one that fails
    finally:
        if results:
            code = _report(arguments, scene, todo[: len(results)], results)
    return code


def _folder() -> TemporaryDirectory[str]:
    """Return a folder for results, which is removed at the end. Raises HOST."""
    try:
        return TemporaryDirectory(prefix="bench-")
    except OSError as error:
        hint = "add --tmpfs /tmp to docker run, or an emptyDir at /tmp"
        raise EntrypointError(HOST, f"bench: no folder for results can be made: {error.strerror}", hint) from error


def _check(arguments: Arguments, program: Program) -> None:
    """Raise USAGE for what cannot be measured or written, before minutes are spent on it."""
    asked = arguments.bench
    if asked.url and asked.kind != SERVE:
        raise EntrypointError(USAGE, f"--url cannot be used with --kind {asked.kind}", "a server is measured by serve")
    if asked.sweep and (asked.kind == THROUGHPUT or not program.own):
        raise EntrypointError(USAGE, f"--sweep cannot be used with --kind {asked.kind}", "it has no concurrency")
    if asked.output and asked.output == _page(arguments):
        raise EntrypointError(USAGE, f"--output {asked.output}: is also where the page goes", "--output FILE.json")
    for option, path in (("--output", asked.output), ("--html", arguments.html)):
        folder = os.path.dirname(os.path.abspath(path))
        if path not in ("", "-") and not (os.access(folder, os.W_OK) and not os.path.isdir(path)):
            hint = "name a file in /cache, or in a folder that is mounted with -v"
            raise EntrypointError(USAGE, f"{option} {path}: cannot be written", hint)


def _page(arguments: Arguments) -> str:
    """Return where the page goes: --html, or for a sweep next to the file of --output; empty for none."""
    path = arguments.bench.output
    special = path in ("", "-") or (os.path.exists(path) and not os.path.isfile(path))
    return arguments.html or (f"{os.path.splitext(path)[0]}.html" if arguments.bench.sweep and not special else "")


def _online(
    arguments: Arguments, scene: Scene, program: Program, kit: Kit, todo: tuple[Load, ...]
) -> Iterator[Mapping[str, Any]]:
    """Measure a server: the user's, or one that is started with the user's flags."""
    asked = arguments.bench
    if asked.url:
        endpoint = server_of(asked.url, scene.whole.get("VLLM_API_KEY", ""))
        yield from _requests(endpoint, (*arguments.vllm, *asked.words), scene, program, kit, todo)
        return
    largest = (f"--concurrency={max(asked.sweep)}",) if asked.sweep else ()
    words = (*arguments.vllm, *asked.server, *largest)
    endpoint = endpoint_of(parse_given(arguments.vllm, scene.env, scene.flags), scene.whole)
    with served(scene.package, words, endpoint, arguments.options.status_port, scene.env, scene.say):
        yield from _requests(endpoint, asked.words, scene, program, kit, todo)


def _requests(
    endpoint: Any, given: tuple[str, ...], scene: Scene, program: Program, kit: Kit, todo: tuple[Load, ...]
) -> Iterator[Mapping[str, Any]]:
    told = ask_model(endpoint)
    key = {"OPENAI_API_KEY": endpoint.key} if endpoint.key else {}  # what vLLM's benchmark sends as the key
    kit = kit._replace(env={**kit.env, **key})
    for load in todo:
        scene.say(
            f"{counted(load.prompts, 'request')} of {load.input} and {load.output} tokens, {load.concurrency} at a time"
        )
        yield _result(program, kit, serve_words(program, load, str(endpoint), given, kit, told))


def _offline(
    arguments: Arguments, scene: Scene, program: Program, kit: Kit, todo: tuple[Load, ...]
) -> Iterator[Mapping[str, Any]]:
    """Measure a model without a server, with the plan's flags, environment, limits and caches."""
    from entrypoints.plan.plan import reasons_text
    from entrypoints.serve.launch import prepare_host

    facts, _, plan = scene.plan(arguments)
    if plan.group:
        raise EntrypointError(USAGE, f"--kind {arguments.bench.kind}: measures one host", "measure several by --url")
    scene.say(reasons_text(plan))
    caches, env = prepare_host(plan, scene.profile, facts, scene.env, arguments.options)
    kit, flags = kit._replace(env=env), plan.argv[plan.argv.index("-m") + 2 :]
    try:
        for load in todo:
            more = offline_words(arguments.bench.kind, load, program, kit)
            words = (*without_server(flags), *more, *arguments.bench.words)
            if program.own:
                yield _result(program, kit, words)
            else:  # it prints its figures itself
                _run(program, kit, words)
        caches.keep()
    finally:
        caches.close(patient=True)


def _run(program: Program, kit: Kit, words: tuple[str, ...]) -> None:
    code = run_benchmark(program, kit, words)
    if code:
        raise EntrypointError(code, f"bench: {program.module} ended with exit code {code}", "see its last lines above")


def _result(program: Program, kit: Kit, words: tuple[str, ...]) -> Mapping[str, Any]:
    _run(program, kit, words)
    return read_result(f"{kit.folder}/result.json")


def _report(arguments: Arguments, scene: Scene, todo: tuple[Load, ...], results: Results) -> int:
    """Write the files, print the figures, and return CHECK_FAILED if requests failed."""
    asked, page = arguments.bench, _page(arguments)
    titles = [_title(asked.kind, load, result) for load, result in zip(todo, results, strict=True)]
    text = json.dumps(results if asked.sweep else results[0], indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        if asked.output:
            scene.write("--output", asked.output, text)
        if page:
            from entrypoints.cli.benchpage import bench_page

            what = asked.url or str(results[0].get("model_id", "a model"))
            scene.write("--html", page, bench_page(scene.profile["variant"], what, titles, results))
            scene.say(f"wrote {page}")
    finally:
        if "-" not in (asked.output, page):
            emit(text if arguments.options.json else table(titles, results))
    failed = sum(missing(result, load.prompts) for result, load in zip(results, todo, strict=True))
    if failed:
        scene.say(f"drydock: {counted(failed, 'request')} failed: the figures are of the others")
    return CHECK_FAILED if failed else OK


def _title(kind: str, load: Load, result: Mapping[str, Any]) -> str:
    if kind == LATENCY:
        return f"batch {load.concurrency}"
    if kind == THROUGHPUT:
        return f"prompts {number_of(result, 'num_requests', load.prompts)}"
    return f"concurrency {number_of(result, 'max_concurrency', load.concurrency)}"
