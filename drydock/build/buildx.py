"""Runs `docker buildx bake`, and shows its progress: one line on a terminal, else BuildKit's plain log. IO."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.build.bake_plan import list_plan_folders
from drydock.build.build_progress import Log
from drydock.config.mirrors import find_mirrors_file, read_mirrors
from drydock.core.console import is_quiet, is_verbose, log, printable, show_step
from drydock.core.errors import BuildError, DiskFullError, DrydockError, EngineError, RegistryError
from drydock.core.files import format_json, write_atomically
from drydock.core.paths import cache_home
from drydock.oci.reference import parse_reference
from entrypoints.core.redact import redact_text

TAIL = 20
"""Lines of a failing step that are shown."""
SILENCE = 60.0
"""Seconds without a line while images are looked up, after which a registry counts as one that does not answer."""
UNREAD = "failed to resolve source metadata"
"""How BuildKit says that it cannot read an image; its log and its summary both give the cause."""
CAUSES = (
    ("no such host", "the name of the server is not known (DNS)"),
    ("connection refused", "the connection was refused"),
    ("x509", "the engine does not trust the server's certificate"),
    ("server gave HTTP response to HTTPS client", "the server does not speak TLS as expected"),
    ("timeout", "no answer in time"),
    ("deadline exceeded", "no answer in time"),
    ("401", "the registry requires credentials, or rejects those it was given: docker login"),
    ("denied", "the registry refuses access: docker login"),
    (": not found", "the registry does not have it"),
)
"""What BuildKit says of a registry → what it means. The first row that is found counts."""
FAILING_STEP = "see the failing step's output above"
STOPS_WITHIN = 15
"""Seconds after which a buildx that must stop is killed."""


def run_bake(plan: Mapping[str, Any], *, builder: str | None = None, no_cache: bool = False) -> None:
    """Build a plan; write progress to standard error.

    Raises BuildError, DiskFullError or EngineError.
    """
    command = _make_bake_command(plan, builder, no_cache=no_cache)
    if is_quiet():
        _show_progress(command, plan)
    else:
        _log_progress(command, plan)


class Ended(NamedTuple):
    """How a bake ended that ran with others."""

    seen: Log
    error: DrydockError | None
    culprit: str
    """The target that failed, and ended the others of its bake; empty if none did, or none is named."""


def bake_together(
    plans: Sequence[tuple[Mapping[str, Any], str | None]], notice: Callable[[Log], object], *, no_cache: bool = False
) -> list[Ended]:
    """Build plans at the same time, each with its builder; call `notice` with the log of the one that went on.

    A failure is in the result, and stops no other plan. If this is interrupted, all are stopped.
    """
    logs = [Log([*plan["target"]]) for plan, _ in plans]
    lines: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    with contextlib.ExitStack() as running:
        processes = []
        for number, (plan, builder) in enumerate(plans):
            command = [*_make_bake_command(plan, builder, no_cache=no_cache), "--progress=rawjson"]
            processes.append(running.enter_context(_start_buildx(command, plan)))
            threading.Thread(target=_read_into, args=(lines, number, processes[-1]), daemon=True).start()
        for _ in plans:
            while (read := lines.get())[1] is not None:
                log_of = logs[read[0]]
                count = len(log_of.lines)
                log_of.read(str(read[1]).rstrip())
                for line in () if is_quiet() else log_of.lines[count:]:
                    log(line)
                notice(log_of)
        return [_finish_bake(process, build_log) for process, build_log in zip(processes, logs, strict=True)]


def _read_into(lines: queue.SimpleQueue[tuple[int, str | None]], number: int, process: subprocess.Popen[str]) -> None:
    """Hand on what a process writes, with its number, then None."""
    try:
        for line in _read_progress(process):
            lines.put((number, line))
    finally:
        lines.put((number, None))


def _finish_bake(process: subprocess.Popen[str], build_log: Log) -> Ended:
    if not process.wait():
        return Ended(build_log, None, "")
    match = re.search(r"^ERROR: target ([\w-]+): ", "\n".join(build_log.lines), re.MULTILINE)
    culprit = next(iter(build_log.targets)) if len(build_log.targets) == 1 else match[1] if match else ""
    hint = _keep_log(build_log.lines, culprit or "-".join(build_log.targets)[:100]) if is_quiet() else FAILING_STEP
    # What buildx itself says in the end; of the other targets' steps some report the end of the connection.
    lines = [line for line in build_log.lines if not line.startswith("#")] if match else build_log.lines
    error = _make_build_error(process.returncode, lines, hint)
    for line in (
        build_log.failing(TAIL, culprit) if is_quiet() and culprit and not isinstance(error, RegistryError) else ()
    ):
        log(line)
    return Ended(build_log, error, culprit)


def _make_bake_command(plan: Mapping[str, Any], builder: str | None, *, no_cache: bool) -> list[str]:
    options = [*_make_option("--builder", builder), *(["--no-cache"] if no_cache else [])]
    options += [f"--allow=fs={path}" for path in list_plan_folders(plan)]
    return ["docker", "buildx", "bake", *options, "--file", "-"]


def _log_progress(command: Sequence[str], plan: Mapping[str, Any]) -> None:
    """Run a command and log what it prints; of an image that cannot be read, the error says all, unless --verbose."""
    lines: list[str] = []
    held_lines: list[str] = []
    with show_step(_name_stage(plan)), _start_buildx([*command, "--progress=plain"], plan) as process:
        for line in _read_progress(process):
            lines.append(line.rstrip())
            if held_lines or (UNREAD in line and not is_verbose()):
                held_lines.append(lines[-1])
            else:
                log(lines[-1])
        error = _make_build_error(process.returncode, lines, FAILING_STEP) if process.wait() else None
        for line in () if isinstance(error, RegistryError) else held_lines:
            log(line)
        if error:
            raise error


def _show_progress(command: Sequence[str], plan: Mapping[str, Any]) -> None:
    """Run a command and show its progress; print the end of its log if it fails."""
    build_log = Log()
    with contextlib.ExitStack() as steps, _start_buildx([*command, "--progress=rawjson"], plan) as process:
        _follow_build(process, build_log, steps, _name_stage(plan))
        if process.wait():
            error = _make_build_error(
                process.returncode, build_log.lines, _keep_log(build_log.lines, "-".join(plan["target"]))
            )
            for line in () if isinstance(error, RegistryError) else build_log.failing(TAIL):
                log(line)
            raise error


def _follow_build(process: subprocess.Popen[str], build_log: Log, steps: contextlib.ExitStack, title: str) -> None:
    """Show what a build does until its output ends. The export is a step of its own."""
    current_step, exporting = steps.enter_context(show_step(title)), False
    for line in _read_progress(process):
        before = build_log.bytes
        build_log.read(line.rstrip())
        if build_log.exporting and not exporting:
            steps.close()
            current_step, exporting = steps.enter_context(show_step("export")), True
        current_step.advance(build_log.bytes - before)
        current_step.note(build_log.now)


def _read_progress(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield what buildx writes. Stop it if it is silent while it looks up an image: BuildKit waits without end."""
    image, given_up, timer = "", threading.Event(), threading.Timer(SILENCE, str)

    def give_up() -> None:
        given_up.set()
        process.terminate()

    try:
        for line in process.stderr or ():
            timer.cancel()
            looked_up = re.search(r'\] load metadata for ([^\s"]+)', line)
            image = looked_up[1] if looked_up else "" if re.search(r"\] (?!load )", line) else image
            if image:
                timer = threading.Timer(SILENCE, give_up)
                timer.start()
            yield line
    finally:
        timer.cancel()
    if given_up.is_set():
        yield f"ERROR: {UNREAD} for {image}: timeout of {SILENCE:g} s"


def _name_stage(plan: Mapping[str, Any]) -> str:
    """Return the stage that a plan builds, or build."""
    stages = {target.get("target", "build") for target in plan["target"].values()}
    return str(stages.pop()) if len(stages) == 1 else "build"


def _keep_log(lines: Sequence[str], name: str) -> str:
    """Keep the log of a failed build; return where, as a hint."""
    file = cache_home() / "logs" / f"{name}.log"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, printable(redact_text("\n".join([*lines, ""]))))
    except OSError:
        return "--verbose prints the whole log"
    return f"the whole log is in {file}; --verbose prints it during the build"


@contextlib.contextmanager
def _start_buildx(command: Sequence[str], plan: Mapping[str, Any]) -> Iterator[subprocess.Popen[str]]:
    """Start a command that reads the plan from a file without a name, which no kill leaves behind.

    Stop it if the block ends early, so that an interrupted build does not go on in the engine.
    """
    with tempfile.TemporaryFile("w+") as file:
        file.write(format_json(plan))
        file.seek(0)
        pipes: dict[str, Any] = {"stdin": file, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, **pipes, text=True, errors="replace") as process:
            try:
                yield process
            except BaseException:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOPS_WITHIN)
                process.kill()
                raise


def _make_build_error(code: int, lines: Sequence[str], hint: str) -> DrydockError:
    """Return the error of a build that failed."""
    text = "\n".join(lines)
    if "no space left on device" in text:
        return DiskFullError(
            "docker buildx: no space left on the disk", hint="free some space (docker builder prune), then build again"
        )
    if (
        "Cannot connect to the Docker daemon" in text
        or "error reading from server" in text
        or "connection reset" in text
    ):
        return EngineError(
            "docker buildx: lost connection to the engine, or to the builder, during the build",
            hint="start the engine with `./inv engine` (`docker buildx ls` shows builders), then build again",
        )
    if unread := re.search(rf"{UNREAD} for (\S+): (.+)", text):
        return _missing_image(unread[1], unread[2], text)
    errors = [line for line in lines if line.startswith(("ERROR", "error"))]
    reason = errors[-1] if errors else f"exit {code}"
    return BuildError(f"docker buildx bake: {reason}", hint=hint)


def _missing_image(reference: str, cause: str, text: str) -> RegistryError:
    """Return the error for an image that the engine could not read from its registry."""
    context = re.search(rf"\[context ([\w.-]+)\] load metadata for {re.escape(reference)}", text)
    meaning = next((words for part, words in CAUSES if part in cause), cause)
    mirrors = read_mirrors().registries.items()
    registry = next(
        (name for name, place in mirrors if reference.startswith(f"{place}/")), parse_reference(reference).host
    )
    option = f"--context {context[1] if context else 'base'}=docker-image://IMAGE"
    mirrors_file = find_mirrors_file(os.environ)
    return RegistryError(
        f"{reference}: the engine cannot read this image: {meaning}",
        hint=f"take it from elsewhere with {option}, or name a mirror of its registry in {mirrors_file}:\n"
        f'  registries: {{"{registry}": "HOST/PATH"}}\n`./inv doctor --target TARGET` asks each server that it needs;'
        " `./inv build --target TARGET --stand-ins` tries the row without the vendor's image",
    )


def _make_option(option: str, value: str | None) -> list[str]:
    return [option, value] if value else []
