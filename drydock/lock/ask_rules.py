"""Asks releases of vLLM about the examples of entrypoints/plan/option_rules.py, and records their words. IO.

A release is asked in the CPU image, without network and with a limit of memory. The image's own vLLM is asked as it
is. Of another release the Python files are laid over it: its configuration is Python, and calls no kernel.
`python -m drydock.lock.ask_rules IMAGE [FOLDER …]`, where a FOLDER has the unpacked wheel of a release.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from drydock.core.console import log
from drydock.core.files import format_json
from drydock.engine.run_container import run_to_end
from entrypoints.plan.option_rules import ANSWERS, RULES, Rule, read_answers

CONFIGURATIONS = Path(__file__).parent.parent / "run" / "configurations.json"
ENTRYPOINTS = Path(ANSWERS).parent.parent
PYTHON = "/opt/venv/bin/python3"
PLATFORMS = {kind: {"kind": "cpu", "recorded": None, "like_cuda": kind == "cuda"} for kind in ("cpu", "cuda")}
"""Platforms of the examples. That of CUDA asks a driver: in its place, the CPU's says that it is like CUDA."""
RELEASE = "/release"
"""Where the container finds the Python files of another release than its own."""
REFUSED, TAKEN, NOT_ASKED = "refused", "constructed", "not asked"


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
                log(f"vLLM {version}: not asked: {rule.example}: {_explain(refused)} | {_explain(taken)}")
    return version.partition("+")[0], words


def _explain(answer: Mapping[str, Any]) -> str:
    return f"{answer['outcome']} {answer['because']} {' '.join(answer['words'])}"[:300]


def _ask_examples(image: str, package: Path | None, kind: str, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Return an answer for the example and for the near miss of each rule, one after the other."""
    configurations = json.loads(CONFIGURATIONS.read_text())
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for model in {rule.model for rule in rules}:
            path = folder / model.replace("/", "--")
            path.mkdir()
            (path / "config.json").write_text(json.dumps(configurations[model]["config"]))
        questions = [
            {
                "folder": f"/asked/{rule.model.replace('/', '--')}",
                "words": ["--model", rule.model, *text.split()],
                "ranks": [],
            }
            for rule in rules
            for text in (rule.refused, rule.taken)
        ]
        lines = (json.dumps(line) for line in (PLATFORMS[kind], *questions))
        (folder / "questions").write_text("".join(f"{line}\n" for line in lines))
        folders = {name: "/asked", str(ENTRYPOINTS): "/program/entrypoints"}
        if package:
            folders[str(package)] = RELEASE
        output = run_to_end(
            image,
            ("sh", "-c", f"exec {PYTHON} -B /program/entrypoints/rehearsal < /asked/questions"),
            entrypoint=[],
            volumes={source: {"bind": target, "mode": "ro"} for source, target in folders.items()},
            environment={
                "HF_HUB_OFFLINE": "1",
                "PYTHONPATH": RELEASE,
                "VLLM_DIST_IDENT": "asked",
                "VLLM_LOGGING_LEVEL": "CRITICAL",
            },
            tmpfs={"/tmp": "exec"},  # noqa: S108 - in the container
            network_mode="none",
            mem_limit="8g",
        )
    return [answer for answer in map(json.loads, output.splitlines()) if "outcome" in answer]


def main() -> None:
    """Ask the releases that are named, and record what they say."""
    image, *folders = sys.argv[1:]
    for folder in (None, *map(Path, folders)):
        version, words = ask_release(image, folder)
        refused = sum(map(bool, words.values()))
        log(f"vLLM {version}: {refused} of {len(RULES)} examples refused, {len(words) - refused} taken")
        if words:
            Path(ANSWERS).write_text(format_json(dict(sorted({**read_answers(), version: words}.items()))))


if __name__ == "__main__":
    main()
