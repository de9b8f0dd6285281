"""Turns a ServePlan into a running vLLM: prepares the host, then runs exec or the supervisor. IO.

Modules that are not needed before vLLM starts are imported later, while vLLM's interpreter starts.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from entrypoints.cache.trust import choose_umask
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.folders import locate_private_root, write_cache_file
from entrypoints.core.redact import redact_text
from entrypoints.core.text import print_message, tell_user
from entrypoints.host.limits import apply_limits
from entrypoints.host.processes import read_process_age
from entrypoints.request.flags import GROUP_SECRET, MASTER, NODES, SECRET_FILE, SHUTDOWN, SOCKET
from entrypoints.serve.client import find_flag_value, parse_endpoint
from entrypoints.serve.ports import check_port

if TYPE_CHECKING:
    from typing import NoReturn

    from entrypoints.cache.lifecycle import Caches
    from entrypoints.core.records import Facts, ServePlan
    from entrypoints.request.arguments import Options
    from entrypoints.serve.exit_status import End
    from entrypoints.serve.plugin_files import ReportFile
    from entrypoints.serve.rank_protocol import Member

SECRET_AT_LEAST = 16
"""Bytes of a group secret: who reads the network can try shorter ones until a signature fits."""
SECRET_AT_MOST = 1 << 20
"""Bytes of a --group-secret-file."""


def serve_plan(
    plan: ServePlan, profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str], options: Options
) -> int:
    """Run vLLM until it exits or is stopped; return the exit code. With `options.exec_`, replace this process by vLLM.

    Raises HOST if a requirement is missing, before anything is started.
    """
    member = as_member(plan, options, env)
    prepared = prepare_host(plan, profile, facts, env, options)
    if options.exec_:
        caches, vllm_env = prepared
        caches.hold()
        replace_by_vllm(plan, vllm_env)
    return _run_supervised(plan, profile, prepared, options, member, until_ready=False)


def warm_caches(
    plan: ServePlan, profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str], options: Options
) -> int:
    """Start vLLM, wait until it is ready, and stop it; the caches stay filled. Return the exit code. Raises HOST."""
    member = as_member(plan, options, env)
    prepared = prepare_host(plan, profile, facts, env, options)
    return _run_supervised(plan, profile, prepared, options, member, until_ready=True)


def prepare_host(
    plan: ServePlan, profile: Mapping[str, Any], facts: Facts, env: Mapping[str, str], options: Options
) -> tuple[Caches, dict[str, str]]:
    """Check that ports are free, raise limits, and open the caches; return the caches and vLLM's environment.

    Raises HOST or USAGE.
    """
    from entrypoints.cache.lifecycle import Caches

    if plan.group and not plan.group.address_given:
        message = f"{NODES} {plan.group.hosts}: the address of the first host is not given"
        raise EntrypointError(USAGE, message, f"give the same {MASTER} ADDRESS on every host")
    os.umask(choose_umask(env))
    tmp = facts.mounts.get("tmp")
    if tmp and not tmp.writable:
        hint = "add --tmpfs /tmp to docker run, or an emptyDir at /tmp"
        raise EntrypointError(HOST, f"{tmp.path}: cannot be written; vLLM's processes need it to communicate", hint)
    if options.status_port == plan.port and not options.exec_:
        hint = "choose another port with --status-port N"
        raise EntrypointError(USAGE, f"--status-port {plan.port} is also vLLM's --port", hint)
    if not find_flag_value(plan.argv, SOCKET):
        check_port(plan.host, plan.port)
    vllm_env = make_vllm_environment(plan, env)
    caches = Caches(plan.cache, locate_private_root(env, facts.user[0]), vllm_env, print_message, profile)
    caches.open()
    for path, text in plan.files.items():
        write_cache_file(path, text)
    if not options.recorded:
        enter_work_folder(vllm_env.get("DRYDOCK_WORK_FOLDER", ""))  # before Ray, whose workers start in its folder
    for words in plan.before:
        run_first(words, vllm_env)
    if not options.recorded:
        apply_limits(plan.limits, print_message)
        bind_cpus(vllm_env.get("DRYDOCK_CPUS", ""))
    return caches, caches.environment(vllm_env)


def run_first(words: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Run a command that the server needs, such as Ray's head, to its end. Raises HOST if it fails."""
    print_message(f"running {' '.join(words)}")
    try:
        pid = os.posix_spawn(words[0], list(words), dict(env), setsigmask=())
    except OSError as error:
        raise EntrypointError(HOST, f"{words[0]}: cannot be run: {error.strerror}") from error
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise EntrypointError(HOST, f"{' '.join(words)}: exit code {code}, expected 0", "its last lines say why")


def make_vllm_environment(plan: ServePlan, env: Mapping[str, str]) -> dict[str, str]:
    """Return the inherited environment, with the plan's variables replacing it.

    Kubernetes sets VLLM_PORT=tcp://… in its pods for a Service named `vllm`, and vLLM exits with an error on that value
    (vllm.envs.get_vllm_port). The user did not choose it, so it is dropped with a warning.
    """
    vllm_env = {**env, **plan.env}
    vllm_env.pop(GROUP_SECRET, None)  # vLLM and a model's code do not need it
    if vllm_env.get("VLLM_PORT", "").startswith(("tcp://", "udp://")):
        print_message(
            f"WARN VLLM_PORT={vllm_env.pop('VLLM_PORT')} ignored: it is a Kubernetes service link, not a port"
        )
    return vllm_env


def bind_cpus(cpus: str) -> None:
    """Bind this process, and so vLLM, to these CPUs. Raises USAGE for an invalid list."""
    from entrypoints.core.parse import parse_id_list

    if not cpus:
        return
    try:
        os.sched_setaffinity(0, parse_id_list(cpus))
    except (OSError, ValueError) as error:
        raise EntrypointError(
            USAGE, f"DRYDOCK_CPUS={cpus}: {error}", "name CPUs that the container has, such as 0-9"
        ) from error


def enter_work_folder(folder: str) -> None:
    """Start vLLM in this folder, which files without a path are written to. Raises USAGE for a missing folder."""
    try:
        if folder:
            os.chdir(folder)
    except OSError as error:
        raise EntrypointError(
            USAGE, f"DRYDOCK_WORK_FOLDER={folder}: {error.strerror}", "name a folder of the container, such as /cache"
        ) from error


def replace_by_vllm(plan: ServePlan, env: Mapping[str, str]) -> NoReturn:
    """Replace this process by vLLM. Raises HOST if its interpreter cannot be run."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # unblock what was blocked while planning
    try:
        os.execve(plan.argv[0], list(plan.argv), dict(env))  # noqa: S606 -- a list, no shell: what --exec means
    except OSError as error:
        raise _cannot_run(plan, error) from error


def make_spawner(plan: ServePlan, env: Mapping[str, str]) -> Callable[[], int]:
    """Return a function that starts vLLM in its own session, so that Ctrl-C reaches only the supervisor."""

    def spawn() -> int:
        try:
            return os.posix_spawn(
                plan.argv[0],
                list(plan.argv),
                dict(env),
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),  # Python ignores them, and vLLM would inherit that
            )
        except OSError as error:
            raise _cannot_run(plan, error) from error

    return spawn


def _cannot_run(plan: ServePlan, error: OSError) -> EntrypointError:
    from errno import EAGAIN

    from entrypoints.serve.job import MORE_PROCESSES

    hint = MORE_PROCESSES if error.errno == EAGAIN else "this image lacks its interpreter"
    return EntrypointError(HOST, f"{plan.argv[0]}: cannot be run: {error.strerror}", hint)


def as_member(plan: ServePlan, options: Options, env: Mapping[str, str]) -> Member | None:
    """Return which of several hosts this is, with the secret that it signs its reports with. Raises USAGE."""
    if not plan.group:
        return None
    from entrypoints.serve.rank_protocol import Member

    return Member(
        plan.group.rank,
        plan.group.hosts,
        plan.group.address,
        options.leader_port or options.status_port,
        options.group_patience,
        options.group_wait,
        plan.group.headless,
        not plan.group.ray,
        _read_secret(options.group_secret_file, env),
    )


def _read_secret(path: str, env: Mapping[str, str]) -> bytes:
    """Return what the hosts sign their reports with: the file's text, else the variable's; empty for none.

    Raises USAGE.
    """
    from entrypoints.core.folders import read_bounded

    try:
        secret = read_bounded(path, SECRET_AT_MOST) if path else os.fsencode(env.get(GROUP_SECRET, ""))
    except OSError as error:
        message = f"{SECRET_FILE} {path}: {error.strerror}"
        raise EntrypointError(USAGE, message, "mount a file that contains the secret") from error
    secret = secret.strip()
    if len(secret) < SECRET_AT_LEAST and (path or GROUP_SECRET in env):
        message = f"{f'{SECRET_FILE} {path}' if path else GROUP_SECRET}: found {len(secret)} bytes"
        raise EntrypointError(
            USAGE, f"{message}, expected at least {SECRET_AT_LEAST}", "make one: openssl rand -hex 32"
        )
    return secret


def _run_supervised(
    plan: ServePlan,
    profile: Mapping[str, Any],
    prepared: tuple[Caches, dict[str, str]],
    options: Options,
    member: Member | None,
    *,
    until_ready: bool,
) -> int:
    """Start vLLM below this supervisor, and return the exit code once it has ended; `warm` ends it when it is ready.

    Raises HOST, and REFUSED in vLLM's words if it refuses its configuration.
    """
    import time

    from entrypoints.host.events import explain_limit_events, limit_events
    from entrypoints.plan import guard_settings
    from entrypoints.serve.job import ServeJob
    from entrypoints.serve.plugin_files import (
        DRAINING_VARIABLE,
        REPORT_VARIABLE,
        STACKS_VARIABLE,
        DrainFile,
        ReportFile,
        StacksFolder,
    )
    from entrypoints.serve.starting import supervise_server

    caches, env = prepared
    before, drain_file, report_file, stacks = limit_events(), DrainFile(env), ReportFile(env), StacksFolder.create(env)
    paths = {
        DRAINING_VARIABLE: drain_file.path,
        REPORT_VARIABLE: report_file.path,
        STACKS_VARIABLE: stacks.path,
    }
    start = make_spawner(plan, {**env, **paths})

    def spawn() -> int:
        leader = start()
        caches.count()  # while vLLM's interpreter starts: writing JSON takes 5 ms to import
        print_start_line(plan, profile, env)
        return leader

    job = ServeJob(
        member=member,
        spawn=spawn,
        endpoint=parse_endpoint(plan.argv, plan.host, plan.port, env),
        model=plan.model,
        began=time.monotonic() - read_process_age(),
        status_port=options.status_port,
        drain_timeout=options.drain_timeout,
        drain_pause=options.drain_pause,
        stall=plan.stall,
        engines=len({use.engine for use in plan.uses}) or 1,
        refuses=guard_settings.NAME in plan.argv,
        drain_file=drain_file,
        drains_itself=find_flag_value(plan.argv, SHUTDOWN) not in ("", "0"),
        until_ready=until_ready,
        keep_wrong=env.get("DRYDOCK_KEEP_WRONG") == "1",
        digest=env.get("DRYDOCK_IMAGE_DIGEST", ""),
        cache="hit" if caches.hit else "miss",
        on_ready=caches.keep_behind,
        prints=any(word.startswith("--help") for word in plan.argv),
        limits=lambda: explain_limit_events(before, limit_events()),
        measured=lambda: _compare_memory(report_file, plan, profile),
        refusal=lambda: _describe_refusal(report_file, profile),
        find_plan_hash=lambda: hash_plan(plan),
        stacks=stacks,
        find_tool=lambda: _find_device_tool(profile),
    )
    end = supervise_server(job, profile, print_message)
    report_file.take()  # of a start that did not become ready
    stacks.remove()
    return _close_caches_and_tell_end(end, caches, profile, patient=until_ready)


def _close_caches_and_tell_end(end: End, caches: Caches, profile: Mapping[str, Any], *, patient: bool) -> int:
    """Keep or drop what vLLM compiled, print why it ended, and return the exit code; or restart without bad entries.

    `patient`: wait until the entries are written. Raises the end as an error if it has a hint.
    """
    from entrypoints.core.language import translate_text
    from entrypoints.serve.exit_status import advise_on_memory

    suspects = caches.suspects() if end.failed else ""
    caches.close(patient=patient)
    if suspects:
        _restart_without_suspects(end.cause, suspects)
    if end.hint:
        raise EntrypointError(end.code, end.cause, end.hint)
    words = profile.get("words") or {}
    if end.code:
        print_message(translate_text(words, "what it means: docker logs CONTAINER 2>&1 | docker run -i IMG explain"))
    remedies = profile.get("thresholds", {}).get("memory_remedies", {}).get("value", ())
    cause = f"ended with exit code {end.code}: {end.cause}{advise_on_memory(end, remedies)}"
    print_message(translate_text(words, cause))
    return end.code


def print_start_line(plan: ServePlan, profile: Mapping[str, Any], env: Mapping[str, str]) -> None:
    """Print one line of JSON, by which the logs of a fleet tell which machine runs what."""
    import json

    names = ("variant", "stack", "vllm")
    fields = {name: str(profile[name]) for name in names} | {
        "event": "start",
        "plan": hash_plan(plan),
        "model": redact_text(plan.model),
        "digest": env.get("DRYDOCK_IMAGE_DIGEST", ""),
        "host": os.uname().nodename,
    }
    tell_user(json.dumps({"drydock": dict(sorted(fields.items()))}, ensure_ascii=False))


def hash_plan(plan: ServePlan) -> str:
    """Return the same text for the same command, variables and files, without secrets."""
    import hashlib
    import json

    from entrypoints.plan.plan_text import redact_plan

    public_plan = redact_plan(plan)
    parts = [public_plan.argv, dict(public_plan.env), public_plan.before, dict(plan.files)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _find_device_tool(profile: Mapping[str, Any]) -> tuple[str, ...]:
    from entrypoints.serve.hang import find_device_tool

    return find_device_tool(profile["accelerator"])


def _describe_refusal(file: ReportFile, profile: Mapping[str, Any]) -> str:
    """Return that and how vLLM refused its configuration; empty if it did not."""
    from entrypoints.plan.rehearse import quote_vllm_words
    from entrypoints.serve.plugin_files import parse_refusal

    words = parse_refusal(file.take())
    return f"vLLM {profile['vllm']} refuses this command: {quote_vllm_words(words)}" if words else ""


def _compare_memory(file: ReportFile, plan: ServePlan, profile: Mapping[str, Any]) -> str:
    """Return what vLLM measured against the plan, and keep it in the cache."""
    from entrypoints.serve.measured import as_document, describe_difference, keep_document, parse_lines

    measured = parse_lines(file.take())
    difference = describe_difference(measured, plan.uses)
    if difference:
        keep_document(as_document(measured, plan, profile), "" if plan.cache.why else plan.cache.volume)
    return difference


def _restart_without_suspects(failure: str, suspects: str) -> NoReturn:
    """Restart this process without the cache entries that worked for an earlier start and not for this one."""
    from entrypoints.cache.lifecycle import SUSPECT, explain_repeat

    print_message(explain_repeat(failure, suspects))
    new_environment = {**os.environ, SUSPECT: suspects}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], new_environment)  # noqa: S606 -- itself
