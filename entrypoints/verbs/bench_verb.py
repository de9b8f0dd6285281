"""`bench --url URL | --model MODEL`: `vllm bench`, or the vendor's programs, with the plan's lengths. IO.

    bench --url http://host:8000 [-- FLAG …]      measures a server
    bench --model MODEL [VLLM FLAGS] [-- FLAG …]  starts `serve` with these flags, measures it, and stops it
    bench --model MODEL --kind latency            runs without a server, with the flags of the plan

Words after -- go to the benchmark program; with --url, so do all words that are not drydock's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from entrypoints.cache.lifecycle import open_download_folders
from entrypoints.core.errors import CHECK_FAILED, HOST, OK, USAGE, EntrypointError
from entrypoints.core.output import emit_json, write_output
from entrypoints.core.text import format_count, print_message, tell_user
from entrypoints.facts.facts import probe_host
from entrypoints.facts.image_files import PACKAGE, make_program_environment, read_profile, read_vllm_lists
from entrypoints.host.programs import raise_on_stop_signal
from entrypoints.plan.command_line_plan import plan_command_line
from entrypoints.plan.plan_text import format_reasons_text
from entrypoints.request.access import read_keys
from entrypoints.request.arguments import Arguments
from entrypoints.request.benchmark import SERVE, Load, load_of
from entrypoints.request.flags import API_KEY_VARIABLE
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
    run_bench_program,
    serve_for_benchmark,
    serve_words,
    server_of,
    without_server,
)
from entrypoints.serve.client import Endpoint, first_key
from entrypoints.serve.launch import prepare_host

Result = Mapping[str, Any]


class Run(NamedTuple):
    """One benchmark."""

    arguments: Arguments
    env: Mapping[str, str]
    """The user's."""
    profile: Mapping[str, Any]
    program: Program
    kit: Kit
    """With the variables that the base image's scripts export, and the key of the server."""
    load: Load


def run_bench(arguments: Arguments, env: Mapping[str, str]) -> int:
    """Measure, write what was asked for; return the exit code. Raises USAGE, HOST, NOT_READY."""
    if arguments.intents.workload_file:
        from entrypoints.request.workload import read_workload

        arguments = arguments._replace(intents=read_workload(arguments.intents))
    bench, profile = arguments.bench, read_profile(env)
    program_env = _make_bench_environment(arguments, env, profile)
    program = find_program(bench.kind, profile["thresholds"], profile["vllm"])
    load = load_of(bench, arguments.intents)
    _check_bench(arguments)
    output = 2 if arguments.options.json or bench.output == "-" else 1  # standard output is the JSON's
    with raise_on_stop_signal("bench"), _make_result_folder() as folder:
        kit = Kit(profile["python"], program_env, folder, output)
        program = require_program(program, kit, profile["vllm"])
        measure = _measure_server if bench.kind == SERVE else _measure_offline
        result = measure(Run(arguments, env, profile, program, kit, load))
    return _write_result(arguments, load, result) if program.own else OK


def _make_bench_environment(arguments: Arguments, env: Mapping[str, str], profile: Mapping[str, Any]) -> dict[str, str]:
    """Return a benchmark's environment, with the keys of --api-key-file. Raises USAGE, HOST."""
    keys = read_keys(arguments.key_file) if arguments.key_file else ()
    facts = probe_host(arguments.root, profile, env).facts
    downloads = open_download_folders(profile, make_program_environment(env), facts)
    return downloads | ({API_KEY_VARIABLE: "\n".join(keys)} if keys else {})


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


def _measure_server(run: Run) -> Result:
    """Measure a server: the user's, or one that is started with the user's flags."""
    arguments, bench = run.arguments, run.arguments.bench
    if bench.url:
        endpoint = server_of(bench.url, first_key(run.kit.env))
        return _measure_requests(run, endpoint, (*arguments.vllm, *bench.words))
    words = (*arguments.vllm, *bench.server)
    options = tuple(sorted(read_vllm_lists(run.env).option_strings()))
    endpoint = endpoint_of(parse_user_flags(arguments.vllm, run.env, options), run.kit.env)
    with serve_for_benchmark(PACKAGE, words, endpoint, arguments.options.status_port, run.env, tell_user):
        return _measure_requests(run, endpoint, bench.words)


def _measure_requests(run: Run, endpoint: Endpoint, extra_words: tuple[str, ...]) -> Result:
    load, kit = run.load, run.kit
    served_model = ask_model(endpoint)
    key = {"OPENAI_API_KEY": endpoint.key} if endpoint.key else {}  # what vLLM's benchmark sends as the key
    requests = format_count(load.prompts, "request")
    tell_user(f"{requests} of {load.input} and {load.output} tokens, {load.concurrency} at a time")
    words = serve_words(run.program, load, str(endpoint), extra_words, kit, served_model)
    return _run_program(run.program, kit._replace(env={**kit.env, **key}), words)


def _measure_offline(run: Run) -> Result:
    """Measure a model without a server, with the plan's flags, environment, limits and caches."""
    arguments, kind = run.arguments, run.arguments.bench.kind
    facts, _, _, plan = plan_command_line(arguments, run.env, run.profile)
    if plan.group:
        raise EntrypointError(USAGE, f"--kind {kind}: measures one host", "measure several by --url")
    tell_user(format_reasons_text(plan))
    caches, env = prepare_host(plan, run.profile, facts, run.env, arguments.options)
    flags = without_server(plan.argv[plan.argv.index("-m") + 2 :])
    try:
        more = offline_words(kind, run.load, run.program, run.kit)
        result = _run_program(run.program, run.kit._replace(env=env), (*flags, *more, *arguments.bench.words))
        caches.keep()
    finally:
        caches.close(patient=True)
    return result


def _run_program(program: Program, kit: Kit, words: tuple[str, ...]) -> Result:
    """Run a benchmark; return what it wrote. The vendor's own programs only print their figures."""
    code = run_bench_program(program, kit, words)
    if code:
        raise EntrypointError(code, f"bench: {program.module} ended with exit code {code}", "see its last lines above")
    return read_result(f"{kit.folder}/result.json") if program.own else {}


def _write_result(arguments: Arguments, load: Load, result: Result) -> int:
    """Write the JSON, and return CHECK_FAILED if requests failed."""
    bench = arguments.bench
    text = json.dumps(result, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    try:
        if bench.output:
            write_output("--output", bench.output, text)
    finally:
        if arguments.options.json and bench.output != "-":
            emit_json(result)
    failed = count_failed_requests(result, load.prompts)
    if failed:
        print_message(f"{format_count(failed, 'request')} failed: the figures are of the others")
    return CHECK_FAILED if failed else OK


def count_failed_requests(result: Result, prompts: int) -> int:
    """Return how many requests of a server's benchmark failed; the user's own --num-prompts replaces `prompts`."""
    completed, prompts_sent = result.get("completed"), result.get("num_prompts")
    return (
        max(0, (prompts_sent if isinstance(prompts_sent, int) else prompts) - completed)
        if isinstance(completed, int)
        else 0
    )
