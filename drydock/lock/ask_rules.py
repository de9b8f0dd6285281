"""Asks releases of vLLM what they refuse, and records their words. IO.

The questions are the examples of entrypoints/plan/option_rules.py, and those of entrypoints/rehearsal/attention.py.

A release is asked in the CPU image, without network and with a limit of memory. The image's own vLLM is asked as it
is. Of another release the Python files are laid over it: its configuration is Python, and calls no kernel.
`bump` asks the version that it sets, if the CPU image is built. `python -m drydock.lock.ask_rules IMAGE [FOLDER …]`
asks others: a FOLDER has the unpacked wheel of a release, and the Python packages that only this release needs.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import docker
import docker.errors

from drydock.core.console import log
from drydock.core.errors import DrydockError
from drydock.core.files import format_compact_json, format_json
from drydock.engine.connection import connect_engine
from drydock.engine.run_container import run_to_end
from entrypoints.plan import kernel_limits
from entrypoints.plan.option_rules import ANSWERS, RULES, Rule, read_answers

CONFIGURATIONS = Path(__file__).parent.parent / "run" / "configurations.json"
ENTRYPOINTS = Path(ANSWERS).parent.parent
PYTHON = "/opt/venv/bin/python3"
PLATFORMS = {kind: {"kind": "cpu", "recorded": None, "like_cuda": kind == "cuda"} for kind in ("cpu", "cuda")}
"""Platforms of the examples. That of CUDA asks a driver: in its place, the CPU's says that it is like CUDA."""
PROGRAM, RELEASE = "/program", "/release"
"""Where the container finds this checkout's program, and the Python files of another release than its own."""
FILES = (Path(ANSWERS), Path(kernel_limits.ANSWERS))
"""What is written."""
REFUSED, TAKEN, NOT_ASKED = "refused", "constructed", "not asked"


class AskedContainer(NamedTuple):
    """Where a vLLM answers questions."""

    image: str
    mounts: Mapping[str, str]
    """Folder of this machine → where the container reads it."""
    variables: Mapping[str, str]
    memory: str
    """Its limit, as docker writes it."""
    program: str = "/opt/drydock"
    """The folder in the container with `entrypoints`."""


def ask_release(image: str, package: Path | None = None) -> tuple[str, dict[str, str]]:
    """Ask the vLLM of an image, or a release whose unpacked wheel is in a folder.

    Return its version, and example → its words: empty if it takes the example. An example that was not understood, or
    whose near miss it refuses too, is left out. Raises BuildError.
    """
    words: dict[str, str] = {}
    version = ""
    for kind in PLATFORMS:
        rules = [rule for rule in RULES if rule.platform == kind]
        answers = _ask_examples(image, package, kind, rules)
        version = version or answers[0]["vllm"]
        if all(answer["outcome"] == NOT_ASKED for answer in answers):
            log(f"vLLM {version}: {len(rules)} examples not asked: {answers[0]['because']}")
            continue
        for rule, refused, taken in zip(rules, answers[::2], answers[1::2], strict=True):
            if taken["outcome"] == TAKEN and refused["outcome"] in (REFUSED, TAKEN):
                words[rule.example] = (refused["words"] or [""])[-1]
            else:
                reasons = " | ".join(map(_describe_answer, (refused, taken)))
                log(f"vLLM {version}: not asked: {rule.example}: {reasons}")
    return version.partition("+")[0], words


def ask_wheel(images: Sequence[str], wheel: Path) -> str:
    """Ask the release of a wheel with the first image that the engine has; return why it was not asked, or nothing."""
    if not zipfile.is_zipfile(wheel):
        return f"{wheel.name} is no wheel"
    try:
        client = connect_engine()
        names = {tag for image in client.images.list() for tag in image.tags}
    except (docker.errors.DockerException, DrydockError) as error:
        return f"no engine answers: {error}"
    image = next((name for name in images if f"{name}:latest" in names), "")
    if not image:
        return f"no image of {' or '.join(images)} is built"
    with TemporaryDirectory() as name, zipfile.ZipFile(wheel) as archive:
        for item in archive.namelist():
            if item.endswith((".py", ".json", "METADATA")):
                archive.extract(item, name)
        for path in (Path(name), *Path(name).rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        version, words = ask_release(image, Path(name))
        record_attention(ask_attention(image, Path(name)))
    record_answers(version, words)
    return "" if words else f"vLLM {version} could not be opened in {image}"


def record_answers(version: str, words: Mapping[str, str]) -> None:
    """Write what a release said, next to what the others said."""
    refused = sum(map(bool, words.values()))
    log(f"vLLM {version}: {refused} of {len(RULES)} examples refused, {len(words) - refused} taken")
    if words:
        Path(ANSWERS).write_text(format_json(dict(sorted({**read_answers(), version: words}.items()))))


def ask_attention(image: str, package: Path | None = None) -> list[dict[str, Any]]:
    """Ask the platforms of a release about attention backends; return what each says of a device. Raises BuildError.

    A platform that cannot be opened is left out, and is said.
    """
    mounts = {str(ENTRYPOINTS): f"{PROGRAM}/entrypoints", **({str(package): RELEASE} if package else {})}
    output = run_to_end(
        image,
        (PYTHON, "-B", f"{PROGRAM}/entrypoints/rehearsal/attention.py"),
        entrypoint=[],
        volumes={source: {"bind": target, "mode": "ro"} for source, target in mounts.items()},
        environment={"PYTHONPATH": RELEASE, "VLLM_DIST_IDENT": "asked", "VLLM_LOGGING_LEVEL": "CRITICAL"},
        tmpfs={"/tmp": "exec"},  # noqa: S108 - in the container
        network_mode="none",
        mem_limit="8g",
    )
    answers = [json.loads(line) for line in output.splitlines() if line.startswith(b"{")]
    for answer in answers:
        if "because" in answer:
            log(f"vLLM {answer['vllm']}: {answer['platform']} {answer['device']} not asked: {answer['because'][:200]}")
    return [answer for answer in answers if "answers" in answer]


def record_attention(answers: Sequence[Mapping[str, Any]]) -> None:
    """Write what the platforms of a release say, next to what others said."""
    if not answers:
        return
    version = answers[0]["vllm"].partition("+")[0]
    path = Path(kernel_limits.ANSWERS)
    stored = kernel_limits.read_answers() if path.exists() else {}
    releases = dict(sorted({**stored, version: join_devices(answers)}.items()))
    lines = (f"{format_compact_json(name)}:{format_compact_json(release)}" for name, release in releases.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    log(f"vLLM {version}: attention backends asked on {', '.join(answer['platform'] for answer in answers)}")


def join_devices(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what devices of a release say, as entrypoints/plan/kernel_limits.py reads it.

    What a platform says most often of a backend and a kind of layers stands once, and each distinct answer once in the
    release.
    """
    refusals: dict[str, int] = {}
    platforms: dict[str, Any] = {}
    names = sorted({name for answer in answers for layers in answer["answers"].values() for name in layers if name})
    for platform in dict.fromkeys(answer["platform"] for answer in answers):
        devices = {answer["device"]: answer["answers"] for answer in answers if answer["platform"] == platform}
        backends: dict[str, dict[str, int | None]] = {}
        for name in filter(lambda name: kernel_limits.has_kernels(platform, name), ("", *names)):
            places: dict[str, dict[str, int | None]] = {}
            for device, layers in devices.items():
                for layer, said in layers.items():
                    place = refusals.setdefault(json.dumps(said[name]), len(refusals)) if name in said else None
                    places.setdefault(layer.split()[0], {})[f"{layer} {device}"] = place
            for kind, of_kind in places.items():
                usual = Counter(of_kind.values()).most_common(1)[0][0]
                others = {cell: place for cell, place in of_kind.items() if place != usual}
                backends.setdefault(name, {}).update({kind: usual, **others})
        platforms[platform] = {"devices": sorted(devices), "layers": sorted(layers), "backends": backends}
    return {"names": names, "platforms": platforms, "refusals": [json.loads(text) for text in refusals]}


def list_changed_refusals(old: str, new: str) -> list[str]:
    """Return the examples that one of two versions refuses and the other takes, or of which one was not asked."""
    before, after = read_answers().get(old, {}), read_answers().get(new, {})
    verbs = {None: "not asked", True: "refused", False: "taken"}

    def describe(answers: Mapping[str, str], example: str) -> str:
        return verbs[bool(answers[example]) if example in answers else None]

    changes = [(example, describe(before, example), describe(after, example)) for example in sorted({*before, *after})]
    return [f"{example}: {was} → {now}" for example, was, now in changes if was != now]


def _describe_answer(answer: Mapping[str, Any]) -> str:
    return f"{answer['outcome']} {answer['because']} {' '.join(answer['words'])}"[:300]


def _ask_examples(image: str, package: Path | None, kind: str, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return an answer for the example and for the near miss of each rule, one after the other."""
    configurations = json.loads(CONFIGURATIONS.read_text())
    models = {rule.model: configurations[rule.model]["config"] for rule in rules}
    questions = [
        make_question(rule.model, ["--model", rule.model, *text.split()], ranks=[])
        for rule in rules
        for text in (rule.refused, rule.taken)
    ]
    mounts = {str(ENTRYPOINTS): f"{PROGRAM}/entrypoints", **({str(package): RELEASE} if package else {})}
    variables = {"PYTHONPATH": RELEASE, "VLLM_DIST_IDENT": "asked"}
    container = AskedContainer(image, mounts, variables, "8g", PROGRAM)
    with TemporaryDirectory() as folder:
        return ask_questions(container, (PLATFORMS[kind], *questions), models, Path(folder))


def make_question(model: str, words: Sequence[str], **parts: Any) -> dict[str, Any]:
    """Return a question about a model, by its name, as entrypoints/rehearsal reads it."""
    return {"folder": f"/asked/{model.replace('/', '--')}", "words": [*words], **parts}


def ask_questions(
    container: AskedContainer, lines: Iterable[Mapping[str, Any]], models: Mapping[str, Any], folder: Path
) -> list[dict[str, Any]]:
    """Let vLLM answer questions, without network; `lines` are the platform and the questions.

    `models` is name → configuration, `folder` an empty one that the container may read. Raises BuildError.
    """
    folder.chmod(0o755)
    for model, configuration in models.items():
        path = folder / model.replace("/", "--")
        path.mkdir()
        (path / "config.json").write_text(json.dumps(configuration))
    (folder / "questions").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    mounts = {str(folder): "/asked", **container.mounts}
    output = run_to_end(
        container.image,
        ("sh", "-c", f"exec {PYTHON} -B {container.program}/entrypoints/rehearsal < /asked/questions"),
        entrypoint=[],
        volumes={source: {"bind": target, "mode": "ro"} for source, target in mounts.items()},
        environment={"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "CRITICAL", **container.variables},
        tmpfs={"/tmp": "exec"},  # noqa: S108 - in the container
        network_mode="none",
        mem_limit=container.memory,
    )
    return [answer for answer in map(json.loads, output.splitlines()) if "outcome" in answer]


def main() -> None:
    """Ask the releases that are named, and record what they say."""
    image, *folders = sys.argv[1:]
    for folder in (None, *map(Path, folders)):
        record_answers(*ask_release(image, folder))
        record_attention(ask_attention(image, folder))


if __name__ == "__main__":
    main()
