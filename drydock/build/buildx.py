"""Runs `docker buildx bake`, and shows its progress: one line on a terminal, else BuildKit's plain log. IO."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from drydock.build.bake_plan import list_plan_folders
from drydock.build.build_progress import Log
from drydock.config.mirrors import find_mirrors_file, read_mirrors
from drydock.core.console import Step, is_verbose, log, printable, show_step, shows_progress
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
ALLOWED_SINCE = (0, 17)
"""The first buildx with `bake --allow`, which those from 0.20 on require (docker/buildx, releases 0.17 and 0.20)."""
STOPS_WITHIN = 15
"""Seconds after which a buildx that must stop is killed."""


Plan = Mapping[str, Any]
"""A docker-bake.json of one target."""
Bake = Callable[[Plan], object]
"""Builds a plan."""
_ROW_PROCESSES: dict[subprocess.Popen[str], bool] = {}
"""Bake of a row that is built at once with others, in a thread → whether it was stopped."""
_ROWS_LOCK = threading.Lock()
CANCELLED = "context canceled"
"""What buildx says in the end if Ctrl-C reaches it."""


class StoppedError(BuildError):
    """A bake was stopped."""


def run_bake(plan: Plan, *, builder: str | None = None, no_cache: bool = False) -> None:
    """Build a plan; write progress to standard error.

    Raises BuildError, DiskFullError or EngineError.
    """
    command = _make_bake_command(plan, builder, no_cache=no_cache)
    if shows_progress():
        _show_progress(command, plan)
    else:
        _log_progress(command, plan)


def run_row_bake(plan: Plan, row: str, step: Step, *, builder: str | None = None, no_cache: bool = False) -> Log:
    """Build a plan of one of several rows that are built at once; return the build's log.

    `step` shows what the build does; without a terminal each line of its log begins with the row. Raises as `run_bake`
    does.
    """
    build_log, shown_lines = Log(), 0
    command = [*_make_bake_command(plan, builder, no_cache=no_cache), "--progress=rawjson"]
    with _start_buildx(command, plan) as process, _as_running(process):
        for count in _follow_log(process, build_log):
            _show_activity(step, build_log, count)
            for line in () if shows_progress() else build_log.lines[shown_lines:]:
                log(f"{row}: {line}")
            shown_lines = len(build_log.lines)
        if process.wait():
            if _ROW_PROCESSES[process] or any(CANCELLED in text for text in build_log.lines[-1:]):
                raise StoppedError(f"{row}: stopped")
            _raise_build_error(process.returncode, build_log, row)
    return build_log


def stop_row_bakes(*, kill: bool = False) -> None:
    """End the bakes of rows that run in this process's threads. Each of them then fails."""
    with _ROWS_LOCK:
        for process in _ROW_PROCESSES:
            _ROW_PROCESSES[process] = True
            process.kill() if kill else process.terminate()


@contextlib.contextmanager
def _as_running(process: subprocess.Popen[str]) -> Iterator[None]:
    with _ROWS_LOCK:
        _ROW_PROCESSES[process] = False
    try:
        yield
    finally:
        with _ROWS_LOCK:
            del _ROW_PROCESSES[process]


def _raise_build_error(code: int, build_log: Log, name: str) -> NoReturn:
    """Raise the error of a build that failed; where its log was not written, write the end of the failing step."""
    hint = _keep_log(build_log.lines, name) if shows_progress() else FAILING_STEP
    error = _make_build_error(code, build_log.lines, hint)
    for line in build_log.failing(TAIL) if shows_progress() and not isinstance(error, RegistryError) else ():
        log(line)
    raise error


def _make_bake_command(plan: Mapping[str, Any], builder: str | None, *, no_cache: bool) -> list[str]:
    options = [*_make_option("--builder", builder), *(["--no-cache"] if no_cache else [])]
    from drydock.engine import daemon  # noqa: PLC0415 - it imports docker; who only reads a row imports this module

    version = daemon.parse_version(daemon.read_buildx_version())
    if not version or version >= ALLOWED_SINCE:
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
            _raise_build_error(process.returncode, build_log, "-".join(plan["target"]))


def _follow_build(process: subprocess.Popen[str], build_log: Log, steps: contextlib.ExitStack, title: str) -> None:
    """Show what a build does until its output ends. The export is a step of its own."""
    current_step, exporting = steps.enter_context(show_step(title)), False
    for count in _follow_log(process, build_log):
        if build_log.exporting and not exporting:
            steps.close()
            current_step, exporting = steps.enter_context(show_step("export")), True
        _show_activity(current_step, build_log, count)


def _follow_log(process: subprocess.Popen[str], build_log: Log) -> Iterator[int]:
    """Read what buildx writes into a log, and yield after each line how many bytes it tells of."""
    for line in _read_progress(process):
        before = build_log.bytes
        build_log.read(line.rstrip())
        yield build_log.bytes - before


def _show_activity(step: Step, build_log: Log, count: int) -> None:
    """Show `count` more bytes, and what the build does now."""
    step.advance(count)
    step.note(build_log.now)


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
