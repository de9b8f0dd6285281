"""Questions → answers: which parts of vLLM were asked, and what it said. IO."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TextIO

from entrypoints.plugin.drydock_plugin.supervisor_report import describe_error, list_error_causes
from entrypoints.rehearsal import classes
from entrypoints.rehearsal.replacements import KINDS, Platform, can_build, replace_after, replace_before

Say = Callable[[str], None]

CONSTRUCTED, REFUSED, NOT_ASKED = "constructed", "refused", "not asked"
"""Outcomes."""
COMMAND, CONFIGURATION = "command line", "configuration"
"""What is asked before the classes."""
_ARTEFACTS = (
    (r"'Meta' backend|meta tensor|torch\.nonzero\(\)", "vLLM calculates with numbers that a rehearsal does not have"),
    (
        r"libcuda|NVIDIA driver|not compiled with CUDA|requires CUDA support|No CUDA GPUs|nvml",
        "vLLM asks the driver, which is not here",
    ),
    (r"'_OpNamespace' '\w+' object has no attribute|No module named 'vllm\._", "vLLM asks a kernel that is not here"),
)
"""Words of errors that come from the rehearsal and not from the plan, and what they mean."""
_OWN_CODE = re.compile(r"trust[_-]remote[_-]code")


class Answer(NamedTuple):
    """What vLLM said to one question."""

    outcome: str
    vllm: str
    """Its version; empty if it cannot be imported."""
    checked: tuple[str, ...] = ()
    """The parts that took the plan: the command line, the configuration, the classes of a rank."""
    sizes: Mapping[str, int] = {}
    """Rank → bytes of its parameters."""
    words: tuple[str, ...] = ()
    """vLLM's own words, and those of the error that it followed from."""
    because: str = ""
    """Why something was not asked."""
    seconds: float = 0.0


def answer_all(lines: Iterable[str], answers: TextIO) -> None:
    """Answer each question that follows the platform."""

    def write(record: Mapping[str, Any]) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    remaining = iter(lines)
    platform = json.loads(next(remaining))
    started = time.monotonic()
    write({"phase": "is imported"})
    version, because = open_vllm(platform)
    gc.freeze()  # thousands of modules are never freed
    gc.disable()  # a collection visits all that was made, many times for one model
    for line in remaining:
        if because:
            answer = Answer(NOT_ASKED, version, because=because)
        else:
            builds = can_build(".".join(version.split(".")[:2]), platform)
            answer = answer_question(json.loads(line), version, lambda phase: write({"phase": phase}), builds=builds)
        write(answer._replace(seconds=round(time.monotonic() - started, 2))._asdict())
        gc.collect()
        gc.freeze()  # what is left are modules: the next collection need not visit them
        started = time.monotonic()


def open_vllm(platform: Platform) -> tuple[str, str]:
    """Import vLLM for a platform; return its version, and why it cannot be asked, empty if it can."""
    try:
        import vllm
    except Exception as error:  # noqa: BLE001 - a library that is not here may raise anything
        return "", f"vLLM cannot be imported here: {describe_error(error)[0]}"
    version = str(vllm.__version__)
    minor = ".".join(version.split(".")[:2])
    try:
        replace_before(platform)
        import vllm.engine.arg_utils

        replace_after(minor, platform)
    except Exception as error:  # noqa: BLE001 - as above
        return version, f"vLLM's platform {platform['kind']} cannot be opened here: {describe_error(error)[0]}"
    return version, ""


def answer_question(question: Mapping[str, Any], version: str, say: Say, *, builds: bool = True) -> Answer:
    """Ask vLLM's parser, its configuration, and the classes of each rank, until one refuses.

    `builds` is whether the classes can be built here.
    """
    checked: list[str] = []
    sizes: dict[str, int] = {}
    own_code = False
    try:
        say("parses the command line")
        parsed = classes.parse_command(question["words"])
        own_code = bool(parsed.trust_remote_code)
        checked.append(COMMAND)
        say("checks the configuration")
        config = classes.make_configuration(parsed, question)
        checked.append(CONFIGURATION)
        ranks = question.get("ranks", classes.choose_ranks(config))
        if ranks and not builds:
            because = f"a rehearsal builds classes of vLLM {', '.join(KINDS)} only, and on CPUs and CUDA"
            return Answer(NOT_ASKED, version, tuple(checked), because=because)
        for rank in ranks:
            say(f"builds the classes of rank {rank}")
            if sizes:  # a configuration keeps the layers of one rank
                config = classes.make_configuration(parsed, question)
            sizes[str(rank)] = classes.build_classes(config, rank)
            checked.append(f"classes of rank {rank}")
    except Exception as error:  # noqa: BLE001 - vLLM refuses with any type
        because, words = explain_failure(error, own_code=own_code), describe_error(error)
        outcome = NOT_ASKED if because else REFUSED
        return Answer(outcome, version, tuple(checked), sizes, words, because)
    return Answer(CONSTRUCTED, version, tuple(checked), sizes)


def explain_failure(error: Exception, *, own_code: bool) -> str:
    """Return why an error says nothing about the plan; empty if vLLM would refuse it in a server too."""
    text = " ".join(str(item) for item in list_error_causes(error))
    if own_code and _OWN_CODE.search(text):
        return "the model brings its own code, which a rehearsal does not run"
    if isinstance(error, OSError):
        return "vLLM reads a file that a rehearsal does not have"
    return next((meaning for pattern, meaning in _ARTEFACTS if re.search(pattern, text)), "")
