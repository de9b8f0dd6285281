"""`plan --rehearse`: vLLM itself checks the plan, in a process of its own, without weights and devices. IO."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from entrypoints.core.errors import HOST, REFUSED, EntrypointError
from entrypoints.core.folders import locate_private_root, make_private_folder, remove_folder, replace_file
from entrypoints.core.records import Facts, ServePlan
from entrypoints.core.redact import redact_text
from entrypoints.core.text import format_one_line
from entrypoints.core.units import GIB

if TYPE_CHECKING:
    from subprocess import Popen

    from entrypoints.model.config import Table
    from entrypoints.model.read import ModelFacts

CONSTRUCTED, REFUSES, NOT_ASKED = "constructed", "refused", "not asked"
"""Outcomes in entrypoints/rehearsal/answers.py."""
UNCHECKED = ("weights", "tokenizer", "kernels", "KV cache", "memory")
"""What no rehearsal asks vLLM about."""
PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "rehearsal")
_ARCHITECTURES = {"x86_64": "X86", "aarch64": "ARM", "ppc64le": "POWERPC", "s390x": "S390X", "riscv64": "RISCV"}
"""`uname -m` → vLLM's name. Source: vllm/platforms/interface.py, CpuArchEnum."""
_NEXT_TO_CONFIG = ("hf_quant_config.json", "quantize_config.json", "generation_config.json", "preprocessor_config.json")
"""Small files of a model's folder that vLLM reads while it makes its configuration."""
_AT_MOST = 1 << 20
"""Bytes of such a file, and characters of one line of an answer."""
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_DIST_IDENT": "rehearsal",
}


class Rehearsal(NamedTuple):
    """What vLLM said of a plan."""

    outcome: str
    vllm: str = ""
    """Its version; empty if it was not imported."""
    checked: tuple[str, ...] = ()
    """The parts of vLLM that took the plan."""
    sizes: Mapping[str, int] = {}
    """Rank → bytes of its parameters."""
    words: tuple[str, ...] = ()
    """vLLM's own, if it refuses or could not be asked."""
    because: str = ""
    """Why it could not be asked."""
    seconds: float = 0.0
    unchecked: tuple[str, ...] = UNCHECKED


class Case(NamedTuple):
    """What is rehearsed."""

    profile: Mapping[str, Any]
    facts: Facts
    model: ModelFacts
    plan: ServePlan
    recorded: bool
    """Whether the facts are of another machine."""
    limit: float
    """Seconds."""


def rehearse_plan(case: Case, env: Mapping[str, str], say: Callable[[str], None]) -> Rehearsal:
    """Let vLLM check a plan; `env` is the environment that its server would have. Raises HOST."""
    from entrypoints.host.programs import raise_on_stop_signal

    if not case.model.table:
        return Rehearsal(NOT_ASKED, because=f"the config.json of {case.model.name} is not known here")
    platform = describe_platform(case)
    if case.recorded and not platform["recorded"]:
        return Rehearsal(NOT_ASKED, because=f"platform {platform['kind']} cannot be given to vLLM from a recording")
    say("drydock: rehearsal: vLLM checks the plan without weights and devices, in about half a minute")
    with raise_on_stop_signal("plan --rehearse"), open_private_folder(env) as folder:
        question = {"folder": f"{folder}/model", "words": list_server_words(case.plan.argv)}
        write_model(case.model, f"{folder}/model")
        if case.model.draft and case.model.draft.table:
            write_model(case.model.draft, f"{folder}/draft")
            question["draft"] = f"{folder}/draft"
        lines = (json.dumps(platform), json.dumps(question))
        answer = ask_vllm(case, lines, make_rehearsal_environment(case.plan, env, folder), folder, say)
    return excuse_shortened(answer, case.model.shortened)


def excuse_shortened(answer: Rehearsal, shortened: str) -> Rehearsal:
    """Return the answer; what vLLM refuses of a shortened configuration says nothing of the whole one."""
    if answer.outcome != REFUSES or not shortened:
        return answer
    because = (
        f"drydock's copy of this config.json is shortened ({shortened}): name the model's folder or --model-config"
    )
    return answer._replace(outcome=NOT_ASKED, because=because)


# --- the question ---------------------------------------------------------------------------------------------------


def describe_platform(case: Case) -> dict[str, Any]:
    """Return the platform that vLLM is to see; `recorded` is null for this machine's, and if too little is known."""
    kind = str(case.profile["accelerator"])
    describe = {"cpu": _describe_processor, "cuda": _describe_cuda}.get(kind)
    return {"kind": kind, "recorded": describe(case.facts) if describe and case.recorded else None}


def _describe_processor(facts: Facts) -> dict[str, Any] | None:
    architecture = _ARCHITECTURES.get(facts.processor.architecture)
    if not architecture:
        return None
    return {"architecture": architecture, "amx": "amx_tile" in facts.processor.flags, "memory": facts.memory.total}


def _describe_cuda(facts: Facts) -> dict[str, Any] | None:
    """Return the devices' lowest capability; None if a device's is not known."""
    parts = [device.architecture.split(".") for device in facts.devices]
    if not parts or not all(len(part) == 2 and all(map(str.isdigit, part)) for part in parts):  # noqa: PLR2004 - 9.0
        return None
    return {
        "capability": min([int(major), int(minor)] for major, minor in parts),
        "name": facts.devices[0].name,
        "memory": min(device.memory_total or 0 for device in facts.devices),
        "devices": len(facts.devices),
    }


def list_server_words(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command that vLLM's parser gets: after `-m MODULE`, and after `serve`."""
    words = argv[3:]
    return words[1:] if words[:1] == ("serve",) else words


def write_model(model: ModelFacts, folder: str) -> None:
    """Write a model's configuration, and copy what vLLM reads with it. Raises HOST."""
    from entrypoints.core.folders import read_bounded

    os.mkdir(folder)
    name = "config.json" if {"model_type", "architectures"} & model.table.keys() else "params.json"
    replace_file(f"{folder}/{name}", json.dumps(_make_plain(model.table)))
    for file_name in _NEXT_TO_CONFIG if model.local else ():
        try:
            text = read_bounded(os.path.join(model.name, file_name), _AT_MOST).decode()
        except (OSError, UnicodeDecodeError):  # most models have none; vLLM says what it misses
            continue
        replace_file(f"{folder}/{file_name}", text)


def _make_plain(value: Table | Any) -> Any:
    """Return a value as json writes it."""
    if isinstance(value, Mapping):
        return {key: _make_plain(item) for key, item in value.items()}
    return [_make_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def make_rehearsal_environment(plan: ServePlan, env: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the server's environment, without the network, and with the caches that it writes in a folder."""
    caches = {name: f"{folder}/cache/{name}" for name in plan.cache.folders if not name.startswith("HF_")}
    return {**env, **caches, **_OFFLINE, "HOME": folder, "TMPDIR": folder}


@contextmanager
def open_private_folder(env: Mapping[str, str]) -> Iterator[str]:
    """Give a folder that only this user can write to; remove it in the end. Raises HOST."""
    root = locate_private_root(env, os.getuid())
    folder = f"{root}/rehearsal-{os.getpid()}"
    make_private_folder(root)
    make_private_folder(folder)
    try:
        yield folder
    finally:
        remove_folder(folder)


# --- the answer -----------------------------------------------------------------------------------------------------


def ask_vllm(
    case: Case, lines: tuple[str, ...], env: Mapping[str, str], folder: str, say: Callable[[str], None]
) -> Rehearsal:
    """Run the program with vLLM's Python; return its answer, or why there is none. Raises HOST."""
    import subprocess
    from threading import Timer

    argv = (str(case.profile["python"]), PROGRAM)
    with open(f"{folder}/log", "w+b") as log:
        try:
            process = subprocess.Popen(
                argv, env=dict(env), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise EntrypointError(
                HOST, f"{argv[0]}: cannot be run: {error.strerror}", "rehearse in an image"
            ) from error
        late: list[str] = []

        def stop() -> None:
            late.append(f"it gave no answer within {case.limit:g} s")
            _kill_process(process)

        timer = Timer(case.limit, stop)
        timer.start()
        try:
            answer, phase = read_answer(_exchange_lines(process, lines), say)
        finally:
            timer.cancel()
            _kill_process(process)
        if answer:
            return answer
        ended = late or [f"its process ended with exit code {process.returncode}: {_read_last_log_line(log)}"]
        return Rehearsal(NOT_ASKED, because=f"while vLLM {phase}, {ended[0]}")


def _exchange_lines(process: Popen[str], lines: tuple[str, ...]) -> Iterator[str]:
    """Write the question; yield the lines of the answer."""
    if not (process.stdin and process.stdout):
        return
    try:
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.close()
    except OSError:  # it ended already: its exit code and its log say why
        return
    while line := process.stdout.readline(_AT_MOST):
        yield line


def read_answer(lines: Iterator[str], say: Callable[[str], None]) -> tuple[Rehearsal | None, str]:
    """Say each phase; return the answer, None if there is none, and the last phase."""
    phase = "starts"
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if "outcome" in record:
            texts = {name: tuple(map(str, record[name])) for name in ("checked", "words")}
            return Rehearsal(**{**record, **texts}), phase
        phase = str(record.get("phase"))
        say(f"drydock: rehearsal: vLLM {format_one_line(phase)}")
    return None, phase


def _kill_process(process: Popen[str]) -> None:
    """End the program and all processes that it started."""
    import contextlib
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read_last_log_line(log: IO[bytes]) -> str:
    """Return the last line of a log that is not empty."""
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
    lines = log.read().decode("utf-8", "replace").split("\n")
    return next((redact_text(line.strip()) for line in reversed(lines) if line.strip()), "it wrote nothing")


# --- what is printed ------------------------------------------------------------------------------------------------


def format_rehearsal(rehearsal: Rehearsal) -> str:
    """Format one paragraph: what vLLM checked, and what it did not."""
    if rehearsal.outcome == NOT_ASKED:
        checked = f"vLLM took: {', '.join(rehearsal.checked)}. " if rehearsal.checked else ""
        words = f" Its words: {quote_vllm_words(rehearsal.words)}." if rehearsal.words else ""
        return f"rehearsal: not asked: {rehearsal.because}. {checked}{words.strip()}".rstrip() + "\n"
    checked, unchecked = ", ".join(rehearsal.checked), ", ".join(rehearsal.unchecked)
    most = max(rehearsal.sizes.values(), default=0) / GIB
    return (
        f"rehearsal: vLLM {rehearsal.vllm} takes this plan, by its {checked}; a rank has up to {most:.2f} GiB of"
        f" parameters. Not asked: {unchecked}. {rehearsal.seconds:.0f} s\n"
    )


def make_refusal(rehearsal: Rehearsal) -> EntrypointError:
    """Return the error for a plan that vLLM refuses."""
    checked = f"it took: {', '.join(rehearsal.checked)}" if rehearsal.checked else "it took nothing of the command line"
    message = f"vLLM {rehearsal.vllm} refuses this plan: {quote_vllm_words(rehearsal.words)}"
    return EntrypointError(REFUSED, message, f"change what vLLM names ({checked}); the reasons above say who set it")


def quote_vllm_words(words: Iterable[str]) -> str:
    """Return vLLM's words as one line without secrets, the cause last."""
    return redact_text(format_one_line(" -- from: ".join(words)))
