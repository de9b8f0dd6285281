"""Run the commands of the account on the manuals' own machines, without devices, images or network.

What stands for a run, by kind of command:
- `./inv run`: the real task with --print, then the image's `plan` of the printed words on the recorded host.
- `./inv entrypoint`, `docker run IMG VERB`: the image side of the row, on the recorded host. Programs that the verb
  starts are replaced by one that prints how it was started.
- `./inv build`, `lock`, `fetch`, and a program in an image: the Dockerfile that is rendered now, the lock and the row's
  settings, after a check of every option that the row must have (contexts, platforms, supplied files).
- `./inv topology`, `matrix`: the real task. `up`, `down` and the check of nodes start the engine's command, for which
  a program stands that prints how it was started. `ansible-playbook` and its tags: the rendered playbook.
- `./inv model pull`: the real task, against a hub on loopback.
- `curl`: the supervisor with a server on loopback that answers as vLLM does.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import yaml

from bench.startup import copy_host
from drydock.build import buildx, render
from drydock.cli import cli
from drydock.cli.verb_table import COMMANDS
from drydock.config.matrix import find_variant
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import DrydockError
from drydock.engine import daemon
from drydock.inputs import overrides
from drydock.lock import lockfile
from drydock.model.variant import Variant
from drydock.run import entrypoint
from entrypoints.core.errors import EntrypointError
from entrypoints.core.settings_precedence import COMMAND_LINE, ENVIRONMENT
from entrypoints.request.arguments import parse_arguments
from entrypoints.request.vllm_flags import parse_user_flags
from entrypoints.serve import topology_answer
from entrypoints.verbs import fabric_verb
from tests.evidence import manual_steps
from tests.evidence.manual_steps import Account, Machine, Step
from tests.support import topologies
from tests.support.fake_topology import ROUTERS, Servers
from tests.support.hosts import expect
from tests.support.hosts.trees import HOSTS
from tests.support.loopback import Loopback
from tests.support.ports import free_port
from tests.support.running_server import Running
from tests.support.supervisor_process import Start

ROOT = manual_steps.ROOT
FOUND, BARE, FAILED = VERDICTS = "true", "weak", "false"
"""The run shows the manual's value; it would show as much for another case; it fails, or shows another value."""
SHELL = {"PATH": os.environ.get("PATH", os.defpath), "HF_HUB_OFFLINE": "1"}
"""The environment of the entrypoint: the same plan on every machine, whatever models its hub caches hold."""


class Done(NamedTuple):
    """A command that was run."""

    text: str
    """What it printed or rendered."""
    problem: str = ""
    """Why it failed; empty if it did not."""
    code: int = 0
    """Its exit code, if it failed."""
    evidence: int = 0
    """How many options of the user it was shown to have taken."""


class Place(NamedTuple):
    """Where a command is run."""

    target: str = ""
    host: str = ""
    """One of tests/hosts."""
    model: str = ""
    """For a path that this machine does not have."""


class Outcome(NamedTuple):
    """The word for a step, and what is wrong."""

    verdict: str
    problem: str = ""


# --- the word for a step --------------------------------------------------------------------------------------------


def judge(step: Step, account: Account) -> Outcome:
    """Run the commands of a step; return the word, and why it is not true."""
    done = [run(command, step, account) for command in step.do]
    runs = zip(step.do, done, strict=True)
    problems = [
        f"{command}: {result.problem}"
        for command, result in runs
        if result.problem and not 0 < step.code == result.code
    ]
    text = _plain("\n".join(result.text for result in done))
    problems += [f"{step.do[-1]}: shows no {words!r}" for words in step.shows if _plain(words) not in text]
    if problems:
        return Outcome(FAILED, "; ".join(problems))
    if not step.shows:
        bare = any(not result.evidence for result in done)
        return Outcome(BARE, "nothing of what it prints is compared") if bare else Outcome(FOUND)
    if echoed := [words for words in step.shows if any(_plain(words) in _plain(command) for command in step.do)]:
        return Outcome(BARE, f"its own command has {', '.join(map(repr, echoed))}")
    return _judge_counter_case(step, account)


def _judge_counter_case(step: Step, account: Account) -> Outcome:
    """Return whether each word is absent where another row, machine, model or file is taken."""
    places = make_counter_case(step, account)
    if not places:
        return Outcome(BARE, "no counter-case")
    text = _plain("\n".join(_run(command, place.target, place.host, place.model).text for command, place in places))
    also = [words for words in step.shows if _plain(words) in text]
    where = ", ".join(dict.fromkeys(_describe(command, place) for command, place in places))
    return Outcome(BARE, f"{where} shows {', '.join(map(repr, also))} too") if also else Outcome(FOUND)


def _describe(command: str, place: Place) -> str:
    return command + (f" on {place.host}" if place.host else "") + (f" with {place.model}" if place.model else "")


def make_counter_case(step: Step, account: Account) -> list[tuple[str, Place]]:
    """Return commands that differ from those of a step in what its words are about, and where they are run."""
    if step.counter:
        return [(command, machine_of(command, step, account)) for command in step.counter]
    return [case for command in step.do for case in _vary_command(command, step, account)]


OTHER_TOPOLOGY = "./inv topology plan examples/topologies/tpu-v6e-slice.yaml"


def _vary_command(command: str, step: Step, account: Account) -> Iterator[tuple[str, Place]]:
    """Yield the command for another row, machine, model or file, or without the options that the step is about."""
    place = machine_of(command, step, account)
    machine = account.machines.get(place.target) or Machine()
    other = machine.other or account.other
    other_host = step.other_host or (machine.other_host if place.host == machine.host else machine.host)
    words = shlex.split(command)
    verb = words[1]
    inside = words[words.index("--") + 1 :] if "--" in words else []
    if "IMG" in words and _starts_verb(words):
        yield command, place._replace(target=other)
    elif "IMG" in words:
        yield "docker run IMG python3 --version", Place(other)
    elif words[0] == "docker" or verb in ("build", "lock", "fetch"):
        yield f"./inv build --target {other}", Place(other)
    elif words[0] == "ansible-playbook":
        yield "ansible-playbook -i inventory.yml playbook.yml --tags check", place
    elif verb == "model":
        yield "./inv model pull org/other --output /data/other", place
    elif verb == "topology":
        yield OTHER_TOPOLOGY, place
    elif verb == "matrix":
        yield "./inv matrix tpu", place
    elif verb == "entrypoint" and inside[0] in ("check", "facts"):
        yield command, place._replace(host=other_host)
    elif verb in ("run", "entrypoint"):
        plain = f"./inv {verb} --target {place.target}" + (
            " -- plan --model M" if verb == "entrypoint" else " --model M"
        )
        yield plain, place if command != plain else place._replace(model=machine.other_model)


def _starts_verb(words: Sequence[str]) -> bool:
    """Return whether the words start a verb of an image, and not a program in it."""
    return parse_arguments(tuple(words[words.index("IMG") + 1 :])).verb != "exec"


def _plain(text: str) -> str:
    """Return a text with each run of blanks and line ends as one blank."""
    return re.sub(r"[\s\\]+", " ", text)


def run(command: str, step: Step, account: Account) -> Done:
    place = machine_of(command, step, account)
    return _run(command, place.target, place.host, place.model)


def machine_of(command: str, step: Step, account: Account) -> Place:
    words = shlex.split(command)
    target = words[words.index("--target") + 1] if "--target" in words else step.image or account.image
    machine = account.machines.get(target) or Machine()
    return Place(target, step.host or machine.host, step.model or machine.model)


@cache
def _run(command: str, target: str, host: str, model: str) -> Done:
    """Run a command. Commands of several steps are run once."""
    problem = manual_steps.problem(command)
    if problem:
        return Done("", problem)
    words = [model if word == "M" else word for word in shlex.split(command)]
    task_words, rest = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    try:
        if words[:2] == ["docker", "run"] and "IMG" in words:
            return _image(Place(target, host, model), words[words.index("IMG") + 1 :])
        if words[0] != "./inv":
            return _client(words)
        return _TASKS[task_words[1]](Place(target, host, model), task_words[1:], rest)
    except (DrydockError, EntrypointError) as error:
        return Done("", str(error))


# --- tasks ----------------------------------------------------------------------------------------------------------


def _task(words: Sequence[str], env: Mapping[str, str] = {}, folder: Path | None = None) -> Done:
    """Run a task of ours in this process."""
    out, before, place = io.StringIO(), (sys.argv, dict(os.environ)), Path.cwd()
    code: Any = 0
    try:
        sys.argv = ["drydock", *words]
        os.environ.update(env)
        os.chdir(folder or ROOT)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            cli.run_command_line(COMMANDS, words)
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before[0]
        os.environ.clear()
        os.environ.update(before[1])
        os.chdir(place)
    return Done(out.getvalue(), f"exit code {code}: {_end(out.getvalue())}" if code else "", code)


def _end(text: str) -> str:
    return " ".join(text.split())[-300:]


def _started(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:
    """Print the command of `run`, then plan what it starts, as the image would on the recorded host."""
    printed = _task(
        ["run", *task_words[1:], *([] if "--print" in task_words else ["--print"]), *(["--", *rest] if rest else [])]
    )
    if printed.problem or "--format" in task_words:
        return printed
    docker = words_of_docker(printed.text)
    missing = [word for word in _docker_words(task_words) if word not in docker.options]
    if missing:
        return printed._replace(problem=f"docker run lacks {' '.join(missing)}")
    variables = _pairs(task_words, "--env")
    if "--modules" in task_words:
        variables["HABANA_VISIBLE_MODULES"] = task_words[task_words.index("--modules") + 1]
    shown = len(_docker_words(task_words))
    inside = _image(place, docker.arguments, {name: value for name, value in variables.items() if value})
    return Done(printed.text + inside.text, inside.problem, inside.code, shown + inside.evidence)


class Docker(NamedTuple):
    """A printed docker run."""

    options: tuple[str, ...]
    """--name=value or --name."""
    arguments: tuple[str, ...]
    """Of the image."""


def words_of_docker(text: str) -> Docker:
    """Return the options and the image's arguments of a printed `docker run`."""
    command = text[text.index("docker run \\\n") :].replace("\\\n", " ").partition("\n")[0]
    words, options = shlex.split(command)[2:], []
    while words[0].startswith("--"):
        name = words.pop(0)
        options.append(name if name in _BARE else f"{name}={words.pop(0)}")
    return Docker(tuple(options), tuple(words[1:]))


_BARE = ("--rm", "--read-only", "--interactive", "--tty", "--detach", "--privileged", "--init")


def _pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Return NAME → value of a repeatable option NAME=value."""
    values = [words[place + 1] for place, word in enumerate(words) if word == option]
    return {name: value for name, _, value in (text.partition("=") for text in values)}


def _docker_words(task_words: Sequence[str]) -> list[str]:
    """Return the options that docker must get for options of `run`."""
    options: list[str] = []
    volumes = [value.partition(":")[2] for before, value in pairwise(task_words) if before == "--volume"]
    for word, value in pairwise(task_words):
        source, _, target = value.partition(":")
        address, _, port = value.rpartition(":")
        as_docker = {
            "--env": [f"--env={value}"],
            "--modules": [f"--env=HABANA_VISIBLE_MODULES={value}"],
            "--network": [f"--network={value}"],
            "--port": [f"--publish={address or '127.0.0.1'}:{port}:8000"],
            "--cache": [f"--mount=type=bind,source={value},target=/cache"],
            "--volume": [f"--mount=type=bind,source={source},target={target}"],
        }
        options += as_docker.get(word, [])
        if word == "--model" and value.startswith("/") and not any(value.startswith(f"{path}/") for path in volumes):
            options.append(f"--mount=type=bind,source={value},target={value},readonly")
    return options


def _built(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:  # noqa: ARG001 - as the others
    """Return what the image of a row is made of; its options must be the row's."""
    variant = find_variant(expect.VARIANTS, place.target)
    options = [pair for pair in pairwise(task_words) if pair[0] in ("--context", "--supplied", "--platform")]
    for option, value in options:
        if option == "--platform" and value not in variant.platforms:
            return Done("", f"{variant.id} has no {value}: {', '.join(variant.platforms)}")
        if option == "--supplied" and not variant.supplied and not _lacks_wheels(variant):
            return Done("", f"{variant.id} takes no supplied files")
        if option == "--context":
            name, _, source = value.partition("=")
            location = source if "://" in source else str(ROOT)
            overrides.resolve_contexts(variant, _lock(variant).platforms[variant.platforms[0]], {name: location})
    return Done(made_of(variant.id))


def _lacks_wheels(variant: Variant) -> bool:
    return any("wheels" in pins.unresolved for pins in _lock(variant).platforms.values())


def _lock(variant: Variant) -> Any:
    return lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, variant.id))


@cache
def made_of(row: str) -> str:
    """Return the Dockerfile, the pinned inputs, what they were chosen from, and the settings of a row, as text."""
    variant = find_variant(expect.VARIANTS, row)
    pins = [
        f"{item['name']} {item.get('version') or item.get('url') or item.get('repository', '')} {item.get('commit')}"
        for item in _named(json.loads(lockfile.path_of_lock(DRYDOCK, variant.id).read_text()))
    ]
    base = getattr(variant.base, "reference", variant.base.kind)
    settings = [f"{item['setting']}={item['value']}" for item in expect.profile_in(row)["settings"]]
    head = f"{variant.id} {variant.stack} vllm {variant.vllm.version} base {base} {' '.join(variant.platforms)}"
    lock_inputs = json.dumps(lockfile.collect_lock_inputs(variant))
    indexes = [index.url for index in variant.indexes]
    dockerfile = render.render_dockerfile(DRYDOCK, variant)
    return "\n".join((head, dockerfile, *dict.fromkeys(pins), *settings, lock_inputs, *indexes))


def _named(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each record of a lock that has a name."""
    if isinstance(value, dict):
        if isinstance(value.get("name"), str):
            yield value
        for below in value.values():
            yield from _named(below)
    elif isinstance(value, list):
        for below in value:
            yield from _named(below)


# --- the image side -------------------------------------------------------------------------------------------------


@cache
def _entrypoint(row: str) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return how the entrypoint of a row is started here, without its words."""
    argv, env = entrypoint.argv_of(DRYDOCK, find_variant(expect.VARIANTS, row), (), SHELL)
    return tuple(argv), env


def _inside(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:  # noqa: ARG001 - as the others
    return _image(place, rest)


def _image(place: Place, words: Sequence[str], env: Mapping[str, str] = {}) -> Done:
    """Run a verb of an image on a recorded host; `serve` and `warm` are planned."""
    parsed = parse_arguments(tuple(words))
    variant = find_variant(expect.VARIANTS, place.target)
    if parsed.verb in ("exec", "convert", "bench", "fabric") or "--help=all" in words:
        return _started_inside(place, variant, words, parsed.verb)
    if parsed.verb in ("serve", "warm", "plan"):
        plain = [word for word in words if word not in ("serve", "warm", "plan")]
        known = [place.model if word.startswith("/") and before == "--model" else word
                 for before, word in pairwise(("", *plain))]  # fmt: skip
        done = _planned(variant, known, place.host, env)
        return done._replace(text=f"{' '.join(words)}\n{done.text}")
    if "--peers" in words:
        return _asked(variant, ("check", "--peers", _NO_PEER, "--peers-wait", "1"), env)
    on = ("--root", str(HOSTS / place.host)) if place.host and parsed.verb in ("check", "facts") else ()
    printed = _asked(variant, (*words, *on), env)
    if parsed.verb == "check" and "--fix-script" not in words and not printed.problem:  # also what passed
        findings = json.loads(_asked(variant, (*words, *on, "--json"), env).text)
        lines = (
            f"{finding['severity']} {finding['id']}: {finding['found']} ({finding['text']})" for finding in findings
        )
        printed = printed._replace(text="\n".join((printed.text, *lines)))
    return printed


_CHECK_FAILED = 3
_NO_PEER = "192.0.2.1"
"""An address of no machine (RFC 5737)."""


def _asked(variant: Variant, words: Sequence[str], env: Mapping[str, str]) -> Done:
    """Run a verb that needs nothing of the image but its profile."""
    argv, variables = _entrypoint(variant.id)
    whole = {**variables, **env}
    done = subprocess.run([*argv, *words], env=whole, capture_output=True, text=True, check=False, timeout=60)
    accepted = (0, _CHECK_FAILED) if words[0] == "check" else (0,)
    problem = "" if done.returncode in accepted else f"exit code {done.returncode}: {_end(done.stderr)}"
    return Done(done.stdout + ("" if "--json" in words else done.stderr), problem)


def _planned(variant: Variant, words: Sequence[str], host: str, env: Mapping[str, str]) -> Done:
    """Plan words of `serve`; every flag of vLLM and every variable of the user must be in the plan, as the user's."""
    argv, variables = _entrypoint(variant.id)
    command = [*argv[:-1], "-c", entrypoint._WITH_VARIABLES, str(ROOT), "plan", *words]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "requests.csv").write_text("input,output\n100,20\n900,40\n")
        done = subprocess.run(
            [*command, "--json", "--root", str(HOSTS / host)],
            env=dict(variables), cwd=folder, input=json.dumps(dict(env)), capture_output=True, text=True, check=False,
            timeout=60,
        )  # fmt: skip
        written = "".join(path.read_text() for path in Path(folder).glob("*.html"))
    if done.returncode:
        return Done(done.stderr, f"exit code {done.returncode}: {_end(done.stderr)}", done.returncode)
    plan = json.loads(done.stdout)
    user_reasons = {
        reason["setting"]: reason for reason in plan["reasons"] if reason["origin"] in (COMMAND_LINE, ENVIRONMENT)
    }
    user_settings = _given(words) | env
    problems = [
        f"{name} is not {value}"
        for name, value in user_settings.items()
        if not _is_taken(name, value, user_reasons, plan)
    ]
    return Done(_text(plan) + written, "; ".join(problems), evidence=len(user_settings))


def _given(words: Sequence[str]) -> dict[str, str]:
    """Return vLLM's own flags among the words, with their values as text."""
    parsed = parse_arguments(("plan", *words))
    flags = parse_user_flags(parsed.vllm, {}).flags
    values = {name: "true" if flag.value is True else str(flag.value) for name, flag in flags.items()}
    return {name: value for name, value in values.items() if name != "--model"}


def _is_taken(name: str, value: str, user_reasons: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    if name in user_reasons:
        return bool(user_reasons[name]["value"] == value)
    argv = plan["argv"]
    return bool(plan["env"].get(name) == value or (name in argv and (value == "true" or value in argv)))


def _text(plan: Mapping[str, Any]) -> str:
    """Return a plan as text: the command, then a line for each reason and finding."""
    env = (f"{name}={value}" for name, value in plan["env"].items())
    reasons = (f"{reason['setting']}={reason['value']}: {reason['because']}" for reason in plan["reasons"])
    findings = (
        f"{finding['severity']} {finding['id']} {finding['text']} {finding['found']} {finding['remediation']}"
        for finding in plan["findings"]
    )
    return "\n".join((*env, " ".join(plan["argv"]), *reasons, *findings, json.dumps(plan.get("uses"))))


# --- programs that an image starts ----------------------------------------------------------------------------------

_RECORDER = """#!/bin/sh
echo "started: ${0##*/} $*" >&2
case "$1 $3" in "-c vllm_utils."*) echo "$0" ;; esac
case "$*" in *hccl_demo*) cat "${0%/*}/hccl" ;; esac
"""
"""Prints how it was started, where a module of the vendor's is, and what hccl_demo prints."""
_HCCL = """
[BENCHMARK] hcclAllReduce(src!=dst, data_size=33554432, count=8388608, dtype=float, iterations=1000)
[BENCHMARK]     NW Bandwidth   : 258.209121 GB/s
"""
"""Of hccl_demo's README."""


def _started_inside(place: Place, variant: Variant, words: Sequence[str], verb: str) -> Done:
    """Return what an image contains for a program; `convert`, `bench`, `fabric` and vLLM's help also start theirs."""
    if verb == "exec":
        return Done(made_of(variant.id))
    server = _supervisor() if "--url" in words else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as name, server as running:
        folder, words = Path(name), [*words]
        image = _stub_image(variant, folder)
        if running:
            words[words.index("--url") + 1] = f"http://127.0.0.1:{running.start.port}"
        elif verb == "bench":  # the usual port may be another program's
            words[1:1] = ["--port", str(free_port()), "--status-port", str(free_port())]
        if verb == "fabric":
            return _measured(place, image)
        env = {**_entrypoint(variant.id)[1], **image, "ROOT": str(copy_host(folder, place.host)) if place.host else ""}
        argv = [
            *_entrypoint(variant.id)[0][:-1],
            *(("-c", _ON_HOST, str(ROOT)) if verb == "bench" else (str(ROOT / "entrypoints"),)),
        ]
        done = subprocess.run(
            [*argv, verb, *_with_folders(words[1:], folder)],
            env=env, cwd=folder, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    output = done.stdout + done.stderr
    own_help = "--help" in words and not done.returncode
    return Done(output, "" if "started: " in output or own_help else f"starts nothing: {_end(output)}")


_ON_HOST = """
import os, sys
sys.path.insert(0, sys.argv[1])
from entrypoints.request.arguments import parse_arguments
from entrypoints.verbs.bench_verb import run_bench
sys.exit(run_bench(parse_arguments(tuple(sys.argv[2:]))._replace(root=os.environ.pop("ROOT")), dict(os.environ)))
"""
"""Program that calls `bench` for a recorded host, which its words cannot name."""


def _measured(place: Place, image: Mapping[str, str]) -> Done:
    """Measure the links of a recorded host's cards, with a program that prints what hccl_demo prints."""
    profile = json.loads(Path(image[entrypoint.PROFILE]).read_text())
    programs = profile["thresholds"]["fabric_tests"]
    python = f"{Path(profile['python']).parent}/hccl_demo"
    Path(python).write_text("")
    programs["value"] = [f"{text.partition('=')[0]}={python}" for text in programs["value"]]
    facts, out = expect.read(place.host, profile), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = fabric_verb.measure_fabric(parse_arguments(("fabric",)), {**image}, profile, facts)
    return Done(out.getvalue(), f"exit code {code}" if code else "")


def _with_folders(words: Sequence[str], folder: Path) -> list[str]:
    """Return the words with a model's folder, and a place for output, that exist here."""
    changed, after = [], ""
    for word in words:
        changed.append(str(folder / Path(word).name) if after in ("--model", "--output") else word)
        after = word
    if "--model" in words:
        model = Path(changed[words.index("--model") + 1])
        known = json.loads((ROOT / "drydock" / "run" / "configurations.json").read_text())
        alike = next((name for name in known if name.endswith(f"/{model.name}")), "deepseek-ai/DeepSeek-R1-0528")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(known[alike]["config"]))
        header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}).encode()
        (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    return changed


def _stub_image(variant: Variant, folder: Path) -> dict[str, str]:
    """Write the files of an image whose interpreter prints how it was started; return its variables."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "python3", "bash", "jq"):
        (programs / name).write_text(_RECORDER)
        (programs / name).chmod(0o755)
    (programs / "hccl").write_text(_HCCL)
    profile = expect.profile_in(variant.id) | {"python": str(programs / "python3")}
    (folder / "profile.json").write_text(json.dumps(profile))
    for conversion in profile.get("conversions", ()):
        for file in conversion["files"]:
            path = folder / "conversions" / conversion["context"] / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return {entrypoint.PROFILE: str(folder / "profile.json"), "PATH": f"{programs}:{os.environ['PATH']}"}


# --- several machines -----------------------------------------------------------------------------------------------

TOPOLOGY = "2p1d-omni.yaml"
"""The example that topology.yaml is."""
HOST, DEVICES = "ascend-cloudmatrix384", 16


def _topology(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:  # noqa: ARG001 - as the others
    """Run a task of `topology` in a folder with a file, its plan and the nodes' recorded hosts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = _topology_files(folder, with_file=task_words[1] != "init")
        if task_words[1] == "down":  # what `up` rendered
            _task(shlex.split(_RENDER), environment, folder)
        words = [*task_words, *(("--output", "deploy") if task_words[1] in ("up", "down") else ())]
        with _answering(task_words[1] == "verify"):
            done = _task(words, environment, folder)
        files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".yml", ".yaml", ".json")]
        written = [
            f"{path.relative_to(folder)}\n{path.read_text()}"
            for path in files
            if "deploy" in path.parts or task_words[1] == "init"
        ]
    return Done("\n".join((done.text, *written)), "" if "started: " in done.text else done.problem, done.code)


@contextlib.contextmanager
def _answering(answers: bool) -> Iterator[None]:
    """Let servers that answer as vLLM and its router do take the place of the topology's."""
    servers = Servers()
    servers.routes = DECODE
    with pytest.MonkeyPatch.context() as patch:
        if answers:
            patch.setattr(
                topology_answer, "ask_server", lambda url, question=None, *_, **__: servers(_as_router(url), question)
            )
            patch.setattr(topology_answer, "COUNTED", 0.0)
        yield


def _as_router(url: str) -> str:
    return url.replace("10.0.0.1:7000", f"10.0.0.1:{ROUTERS}")


_RENDER = "topology render plan.json --format ansible --root hosts --output deploy"
DECODE = "10.0.0.3:9000"
"""The decode server of the example."""


def _topology_files(folder: Path, *, with_file: bool) -> dict[str, str]:
    """Write the files of a topology, and programs that print how they were started; return the environment."""
    programs = folder / "bin"
    programs.mkdir()
    for program in ("ansible-playbook", "docker", "ssh"):
        (programs / program).write_text(_RECORDER)
        (programs / program).chmod(0o755)
    (folder / "examples").symlink_to(ROOT / "examples")
    (folder / "hosts").mkdir()
    document = yaml.safe_load((ROOT / "examples" / "topologies" / TOPOLOGY).read_text())
    for number, node in enumerate(document["nodes"]):
        node["host"] = f"hosts/{node['name']}.json"
        recorded = json.loads((HOSTS / HOST / "host.json").read_text())
        recorded["commands"] |= topologies.chips(number, DEVICES)
        (folder / node["host"]).write_text(json.dumps(recorded))
    if with_file:
        (folder / "topology.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        (folder / "plan.json").write_text(_topology_plan())
    return {"PATH": f"{programs}:{os.environ['PATH']}", "VLLM_API_KEY": "key"}


@cache
def _topology_plan() -> str:
    with contextlib.redirect_stderr(io.StringIO()):
        return _task(["topology", "plan", f"examples/topologies/{TOPOLOGY}", "--json"]).text


@cache
def _playbook() -> str:
    """Return the rendered playbook and inventory."""
    return _topology(Place(), shlex.split(_RENDER), ()).text


def _any(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:  # noqa: ARG001 - as the others
    return _task(task_words)


def _engine(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:  # noqa: ARG001 - as the others
    """Return how images are built, and what the engine's own configuration must have; no engine is started."""
    command = buildx._make_bake_command({"target": {}}, None, no_cache=False)
    return Done(f"{shlex.join(command)}\n{json.dumps(daemon.SNAPSHOTTER)}")


# --- hubs and clients -----------------------------------------------------------------------------------------------


def _pulled(place: Place, task_words: Sequence[str], rest: Sequence[str]) -> Done:  # noqa: ARG001 - as the others
    """Download a model of two small files from a hub on loopback."""
    name = task_words[2]
    with Loopback() as hub, tempfile.TemporaryDirectory() as folder:
        revision = task_words[task_words.index("--revision") + 1] if "--revision" in task_words else ""
        fill_hub(hub, name, revision)
        words, output = [*task_words], Path(folder, "model")
        words[words.index("--output") + 1] = str(output)
        if "--endpoint" in words:
            words[words.index("--endpoint") + 1] = hub.url
        done = _task(words, {"HF_ENDPOINT": hub.url, "MODELSCOPE_DOMAIN": hub.url, "DRYDOCK_CACHE": f"{folder}/cache"})
        files = [str(path.relative_to(output)) for path in sorted(output.rglob("*"))] if output.is_dir() else []
        requested_paths = [path for path, _, _ in hub.requests]
    return Done("\n".join((done.text, *files, *requested_paths)), done.problem, evidence=len(files))


def fill_hub(hub: Loopback, name: str, revision: str) -> None:
    """Give a hub a model of two small files, in the API of the hub that the name belongs to."""
    files = {"config.json": b'{"architectures": []}', "model.safetensors": b"weights"}
    of_modelscope, model = name.startswith("modelscope:"), name.removeprefix("modelscope:")
    hashes = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    if of_modelscope:
        base, at = f"/api/v1/models/{model}/repo", revision or "master"
        entries = [
            {"Path": path, "Type": "blob", "Size": len(data), "Sha256": hashes[path]} for path, data in files.items()
        ]
        listed = {"Code": 200, "Success": True, "Data": {"Files": entries}}
        hub.files[f"{base}/files?Revision={at}&Recursive=true"] = json.dumps(listed).encode()
        hub.files |= {f"{base}?Revision={at}&FilePath={path}": data for path, data in files.items()}
        return
    siblings = [
        {"rfilename": path, "size": len(data), "lfs": {"sha256": hashes[path], "size": len(data), "pointerSize": 130}}
        for path, data in files.items()
    ]
    listed_path = f"/api/models/{model}/revision/{revision or 'main'}?blobs=true"
    hub.files[listed_path] = json.dumps({"sha": _COMMIT, "siblings": siblings}).encode()
    hub.files |= {f"/{model}/resolve/{_COMMIT}/{path}": data for path, data in files.items()}


_COMMIT = "0" * 40
STATUS_PORT = 8001


@contextlib.contextmanager
def _supervisor() -> Iterator[Running]:
    """Start the image's supervisor with a server that answers as vLLM does; yield it once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        start = Start(cache=f"{folder}/cache", port=free_port())
        running = Running(start, {}, {}, Path(folder, "log"))
        try:
            running.until_ready()
            yield running
        finally:
            running.end()


def _post(port: int, path: str) -> tuple[int, Any]:
    """Ask the server a question."""
    messages = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    question = {"model": "stub", "max_tokens": 4, **(messages if "chat" in path else {"prompt": "x"})}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(question), {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def _served(words: Sequence[str]) -> Done:
    """Ask a supervisor, or the server below it, what a step asks for."""
    address = urlsplit(words[1])
    with _supervisor() as running:
        if address.port == STATUS_PORT:
            code, body = running.status(address.path)
        else:
            code, body = _post(running.start.port, address.path)
    return Done(json.dumps(body), "" if code == HTTPStatus.OK else f"{words[1]}: {code}", evidence=1)


def _play(tag: str) -> Done:
    """Return the plays of the rendered playbook that a tag selects, with the files of their roles."""
    parts = re.split(r"^deploy/(\S+)\n", _playbook(), flags=re.MULTILINE)
    files = dict(zip(parts[1::2], parts[2::2], strict=True))
    plays = [
        play
        for play in yaml.safe_load(files["playbook.yml"])
        if tag in play["tags"] or (not tag and "never" not in play["tags"])
    ]
    roles = [f"roles/{role['role']}/" for play in plays for role in play["roles"]]
    texts = [f"{path}\n{text}" for path, text in files.items() if path.startswith(tuple(roles))]
    return Done("\n".join((yaml.safe_dump(plays), *texts)), "" if plays else f"the playbook has no tag {tag}")


def _client(words: Sequence[str]) -> Done:
    """Run a program of the user's machine."""
    if words[0] == "curl":
        return _served(words)
    if words[0] == "ansible-playbook":
        return _play(words[words.index("--tags") + 1] if "--tags" in words else "")
    folder = next(folder for image, folder in manual_steps.EXAMPLES.items() if image in words)
    return Done("\n".join(path.read_text() for path in sorted((ROOT / folder).iterdir()) if path.is_file()))


_TASKS = {
    "run": _started,
    **dict.fromkeys(("build", "lock", "fetch"), _built),
    "entrypoint": _inside,
    "topology": _topology,
    "matrix": _any,
    "engine": _engine,
    "model": _pulled,
}
"""Task → how it is run here."""


# --- options that a user sets ---------------------------------------------------------------------------------------

_PLACEHOLDERS = {
    "${NAME}": "server",
    "<cpu-id-list, optional>": "0-31",
    "<memory-node, optional>": "0",
    "<path/to/model>": "/data/model",
}
"""What a manual writes for a value → a value."""
BY_ITSELF = ("-it", "-d")
"""Options that `run` accepts and that docker need not get: it attaches, or with --detach starts docker so."""


def problem_of_options(target: str, options: Sequence[str]) -> str:
    """Return what `run` says against options of docker run that the user sets, or which it does not give to docker."""
    real = [_with_values(option) for option in options]
    words = [word for option in real for word in (option.split("=", 1) if "=" in option else [option])]
    if "-d" in words:  # which --print does not go with
        words.remove("-d")
        if problem := manual_steps.problem(f"./inv run --target {target} --model M -d"):
            return problem
    done = _task(["run", "--target", target, "--model", "org/model", *words, "--print"])
    if done.problem:
        return done.problem
    printed_options = words_of_docker(done.text).options
    option_texts = {option: option.replace("--volume=", "--mount=type=bind,source=") for option in real}
    missing = [
        option for option, text in option_texts.items() if option not in BY_ITSELF and not _has(printed_options, text)
    ]
    return f"docker run lacks {' '.join(missing)}" if missing else ""


def _with_values(option: str) -> str:
    for placeholder, value in _PLACEHOLDERS.items():
        option = option.replace(placeholder, value)
    return option


def _has(options: Sequence[str], text: str) -> bool:
    return text in options or any(text.replace(":", ",target=") == word for word in options)
