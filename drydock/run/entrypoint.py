"""An image's entrypoint, run from the checkout: on this machine, or on a recorded host. No image and no engine. IO.

It is a process of its own, with the variant's profile, so that the two sides never import each other.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.build import render
from drydock.build.build_job import choose_platform
from drydock.config.matrix import read_matrix
from drydock.core.console import log
from drydock.core.errors import HostError, InputError
from drydock.core.files import format_json
from drydock.core.paths import find_home_folder
from drydock.core.project import Project
from drydock.core.user_language import split_hint
from drydock.inputs.store import default_store
from drydock.lock import code_lists, lockfile, vllm_lists
from drydock.model.variant import Variant
from drydock.run.access import API_KEY
from drydock.run.container import FROM_THE_SHELL
from drydock.run.recorded_host import CONFIGURATIONS, KNOWN_MODELS
from drydock.run.user_options import parse_variables
from entrypoints.checks.findings import MACHINE_FACTS
from entrypoints.plan.other_rows import CODE, CODE_OF_ROWS

WITHOUT_IMAGE = ("plan", "check", "facts", "explain", "report", "version", "help")
"""Verbs that need nothing of the image but its profile."""

_READS_HOST = ("plan", "check", "facts")
"""Those of them that take --root; entrypoints/request/arguments.py refuses it for others."""

PROFILE = "DRYDOCK_PROFILE"
"""Variable with the path of the image's profile."""

HUB_CACHES = "DRYDOCK_HUB_CACHES"
"""Variable with the folders of this machine where hubs' models lie, with colons between."""

PASSED = ("PATH", "LD_LIBRARY_PATH", "LC_ALL", "LC_MESSAGES", "LANG", API_KEY, *FROM_THE_SHELL, "DRYDOCK_INSECURE_HUB")
"""Variables of the shell that the entrypoint gets, with proxies: what `run` passes, the locale, and vendors' own.

A container would not see the others, such as HOME and CUDA_VISIBLE_DEVICES.
"""

_PYTHON = (sys.executable, "-I", "-S")
_WITH_VARIABLES = (
    "import json, os, sys; sys.path.insert(0, sys.argv[1]); from entrypoints.verbs.dispatch import main; "
    "sys.exit(main(tuple(sys.argv[2:]), {**os.environ, **json.load(sys.stdin)}))"
)
"""Program that calls the entrypoint as its __main__.py does, with more variables as data."""

_USAGE, _CHECK_FAILED, _DOES_NOT_FIT = 2, 3, 5
"""Exit codes in entrypoints/core/errors.py."""


class DoesNotFitError(HostError):
    """The model does not fit the memory of the machine."""


def argv_of(
    project: Project, variant: Variant, words: Sequence[str], env: Mapping[str, str] = os.environ
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a variant's entrypoint, with the options that the image uses."""
    files = {**render.image_files(project, variant), **_lists_of(project, variant)}
    profile = default_store().folder({}, files) / render.PROFILE
    argv = [*_PYTHON, str(_image_side(project) / "entrypoints"), *words]
    passed = {name: value for name, value in env.items() if name in PASSED or name.lower().endswith("_proxy")}
    read_here = {KNOWN_MODELS: str(CONFIGURATIONS), HUB_CACHES: ":".join(_hub_caches(env))}
    return argv, {**passed, **read_here, PROFILE: str(profile)}


def _find_known(project: Project, variant: Variant) -> vllm_lists.KnownLists | None:
    """Return what is known of a row's vLLM before its image is built."""
    lock = lockfile.read_previous(lockfile.path_of_lock(project, variant.id))
    return vllm_lists.find_lists(project, variant, lock, choose_platform(variant, None))


def _lists_of(project: Project, variant: Variant) -> dict[str, bytes]:
    """Return what the row's vLLM says of itself, as its image will have it; nothing if that is not known."""
    known_lists = _find_known(project, variant)
    if known_lists is None:
        return {}
    code = code_lists.list_rows_code(project, variant.accelerator)
    row_facts = {
        "rows": vllm_lists.find_other_rows(project, variant, known_lists),
        "versions": vllm_lists.find_versions(project, variant),
        "row_platforms": {row.id: row.platforms for row in _list_rows(project, variant)},
        "row_checks": {row.id: _list_machine_checks(row) for row in _list_rows(project, variant)},
        CODE: code.get(variant.id, {}),
        CODE_OF_ROWS: code,
    }
    return {vllm_lists.FILE: format_json({**known_lists.lists, "assumed": known_lists.assumed, **row_facts}).encode()}


def _list_rows(project: Project, variant: Variant) -> list[Variant]:
    """Return the rows of the same accelerator that serve."""
    return [row for row in read_matrix(project) if row.accelerator == variant.accelerator and row.serves]


def _list_machine_checks(variant: Variant) -> list[dict[str, Any]]:
    """Return the conditions of a row's checks of which a FAIL means that it does not run on a machine."""
    deciding = (check for check in variant.checks if check.severity == "FAIL" and check.fact.startswith(MACHINE_FACTS))
    fields = {"fact", "operator", "expected", "when"}
    return [check.model_dump(mode="json", include=fields) for check in deciding]


def _hub_caches(env: Mapping[str, str]) -> list[str]:
    """Return where huggingface_hub and ModelScope keep models on this machine, by their own variables."""
    cache = env.get("XDG_CACHE_HOME") or str(find_home_folder(env) / ".cache")
    home = env.get("HF_HOME") or f"{cache}/huggingface"
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    modelscope = env.get("MODELSCOPE_CACHE") or str(find_home_folder(env) / ".cache" / "modelscope" / "hub")
    return [hub, f"{modelscope}/models", modelscope]


def _image_side(project: Project) -> Path:
    """Return the folder with `entrypoints/`: the layer that has it, or a copy of those of several layers."""
    layers = [layer for layer in project.layers if (layer / "entrypoints").is_dir()]
    if len(layers) == 1:
        return layers[0]
    return default_store().folder({}, {f"entrypoints/{name}": text for name, text in project.entrypoint.items()})


def exec_entrypoint(project: Project, variant: Variant, words: Sequence[str], texts: Sequence[str] = ()) -> None:
    """Replace this process by the entrypoint, which then prints what it prints in a container, with its exit code.

    `texts` are variables of the container, NAME or NAME=VALUE. Raises InputError for one that is not written so, or
    that the shell does not have.
    """
    argv, env = argv_of(project, variant, words)
    env |= {name: os.environ[name] for name in ("NO_COLOR", "TERM") if name in os.environ}
    container_variables = _resolve_variables(texts)
    note = describe_unchecked(project, variant, words)
    if note:
        log(note)
    if container_variables:
        argv = [*_PYTHON, "-c", _WITH_VARIABLES, str(_image_side(project)), *words]
        sys.exit(
            subprocess.run(argv, env=env, input=json.dumps(container_variables), text=True, check=False).returncode
        )
    os.execve(argv[0], argv, env)  # noqa: S606 - a list, no shell


def _resolve_variables(texts: Sequence[str]) -> dict[str, str]:
    parsed = parse_variables(texts)
    absent = [name for name in parsed.passed_names if name not in os.environ]
    if absent:
        raise InputError(f"--env {absent[0]}: your shell has no such variable", hint=f"export {absent[0]} first")
    return {**parsed.user_env, **{name: os.environ[name] for name in parsed.passed_names}}


def describe_unchecked(project: Project, variant: Variant, words: Sequence[str]) -> str:
    """Return what `plan` cannot check before the row's image is built; empty if it checks flags as the image does."""
    if words[:1] != ("plan",):
        return ""
    known_lists = _find_known(project, variant)
    if known_lists and not known_lists.assumed and "flags" in known_lists.lists:
        return ""
    why = f"this vLLM's own list is read when the image is built ({variant.vllm.origin})"
    return f"note: names and values of flags are not checked: {why}"


def check_verb(target: str, words: Sequence[str]) -> None:
    """Check that the words need no image. As in the container, no verb means serve. Raises InputError."""
    first = words[0] if words else "serve"
    verb = "help" if first in ("-h", "--help") else "serve" if first.startswith("-") else first
    if verb in WITHOUT_IMAGE:
        return
    raise InputError(
        f"{verb}: expected one of {', '.join(WITHOUT_IMAGE)}; any other verb needs the image, which contains vLLM",
        hint=f"./inv run --target {target} --model MODEL -- {shlex.join(words) or verb} runs it in the image",
    )


def with_root(words: Sequence[str], root: str) -> tuple[str, ...]:
    """Return the entrypoint's words with a --root that was given before them, for a verb that reads a host.

    For another, such as explain, the host only chooses the row. Raises InputError if --root is given twice.
    """
    if root and recorded_host(words):
        raise InputError("--root is given twice: before and after --", hint="write --root VALUE once")
    return (*words, "--root", root) if root and words[:1] and words[0] in _READS_HOST else (*words,)


def recorded_host(words: Sequence[str]) -> str:
    """Return the value of --root among the entrypoint's words; empty without one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--root", nargs="?", default="")
    return parser.parse_known_args(words)[0].root or ""


def ask_entrypoint(project: Project, variant: Variant, verb: str, host: str = "") -> Any:
    """Return the JSON of `facts` or `check`; `host` is a recorded host, empty for this machine.

    Raises InputError if the recorded host cannot be read, HostError for any other failure.
    """
    words = [verb, *(["--json"] if verb == "check" else []), *(["--root", host] if host else [])]
    argv, env = argv_of(project, variant, words)
    result = subprocess.run(argv, env=env, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode not in (0, _CHECK_FAILED):
        raise make_entrypoint_error(result.returncode, result.stderr)
    return json.loads(result.stdout)


def compare_plans(
    project: Project, target: str, hosts: tuple[str, str], words: Sequence[str], texts: Sequence[str] = ()
) -> str:
    """Return what the image prints of the plans of two recorded hosts, of which an empty one is this machine.

    With the target auto, each host has the row that fits it. `--json` is the last of the words, if it is one of them.
    `texts` are variables of the container. Raises what choosing a row raises, and what planning does.
    """
    from drydock.run import auto  # noqa: PLC0415 - it asks this module

    variants = [auto.resolve_target(project, target, host) for host in hosts]
    as_json = words[-1:] == ("--json",)
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{place}.json" for place in range(len(hosts))]
        for path, variant, host in zip(paths, variants, hosts, strict=True):
            plan_words = ("plan", *words, *(() if as_json else ("--json",)))
            plan = _capture_output(project, variant, with_root(plan_words, host), texts)
            Path(path).write_text(plan, encoding="utf-8")
            log(f"{host or 'this machine'}: {variant.id}")
        return _capture_output(project, variants[0], ("plan", "--diff", *paths, *(("--json",) if as_json else ())))


def _capture_output(project: Project, variant: Variant, words: Sequence[str], texts: Sequence[str] = ()) -> str:
    """Return what the entrypoint prints. Raises InputError and HostError for what it refuses."""
    _, env = argv_of(project, variant, words)
    argv = [*_PYTHON, "-c", _WITH_VARIABLES, str(_image_side(project)), *words]
    result = subprocess.run(
        argv, env=env, input=json.dumps(_resolve_variables(texts)), capture_output=True, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    if result.returncode:
        raise make_entrypoint_error(result.returncode, result.stderr)
    return result.stdout


def answer_for_container(
    project: Project,
    variant: Variant,
    words: Sequence[str],
    container_variables: Mapping[str, str],
    env: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Any:
    """Return the JSON that the entrypoint prints for a container with the variables `container_variables`.

    They are data: an LD_PRELOAD that the container needs must not load a library into a process of this machine.
    Paths among the words are relative to a folder, or else to the current one. Raises InputError and HostError.
    """
    _, passed = argv_of(project, variant, words, env)
    argv = [*_PYTHON, "-c", _WITH_VARIABLES, str(_image_side(project)), *words]
    text = json.dumps(dict(container_variables))
    result = subprocess.run(
        argv, env=passed, cwd=folder, input=text, capture_output=True, text=True, errors="replace", check=False
    )
    if result.returncode:
        raise make_entrypoint_error(result.returncode, result.stderr)
    return json.loads(result.stdout)


def make_entrypoint_error(code: int, text: str) -> InputError | HostError:
    """Return the error for an exit code of the entrypoint and what it wrote to standard error."""
    message, hint = split_hint(text.strip().removeprefix("drydock: "))
    kinds: dict[int, type[InputError | HostError]] = {_USAGE: InputError, _DOES_NOT_FIT: DoesNotFitError}
    kind = kinds.get(code, HostError)
    return kind(message or f"the entrypoint ended with {code}", hint=hint)
