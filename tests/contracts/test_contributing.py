"""An accelerator is added as its page says, in a copy of the repository: no other file changes."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from tests.support.checkout_copy import copy_checkout, read_commands, run_in_copy
from tests.support.hosts.trees import write_tree
from tests.support.local_index import use_local_index
from tests.support.small_wheel import make_small_wheel

PAGE = "docs/develop/add-an-accelerator.md"
NEED_MORE = [
    "./inv build --target abacus --stand-ins",
    "./inv run --target abacus --stand-ins --root tests/hosts/abacus-rack/host.json",
    "./inv lint",
    ".venv/bin/pytest tests/contracts",
    ".venv/bin/pytest tests/engine/test_standins.py -k abacus",
    "./inv test",
]
"""The page's commands that need an engine, or run all linters or tests."""
AFFECTED = {
    "dockerfiles": {"images/abacus-vllm1/Dockerfile"},
    "hosts": {f"tests/hosts/abacus-rack/{name}.json" for name in ("facts", "findings", "plan")},
    "docs": {"README.md", "docs/reference/abacus.md"},
}
"""Part of `./inv generate` → files that it writes for a new accelerator."""

RACK = json.loads((ROOT / "tests" / "hosts" / "cpu-xeon8380-2s" / "host.json").read_text())
RACK["origin"] = "made up: a rack of rods"
RACK["files"] |= {f"/dev/abacus{number}": "" for number in range(4)}
RACK["files"] |= {"/sys/abacus/beads": f"{16 << 30}\n", "/sys/abacus/version": "1.9\n"}

NEW = {
    "tests/hosts/abacus-rack/host.json": json.dumps(RACK),
    "templates/abacus/accelerator.yaml": """\
schema: 1
accelerator: abacus
title: Abacus
summary: Rods of beads.
base:
  kind: image
  reference: registry.example/abacus:latest
  release: kylin:v10
  glibc: "2.28"
  unresolved: no one publishes it
variables:
  shown: [ABACUS_BEADS]
  compiling: [ABACUS_]
  not_compiling: [ABACUS_BEADS]
  devices: [ABACUS_VISIBLE_RODS]
  files:
    ABACUS_TABLE: mount the table
converted_name: Beaded
kv_transfer:
  - {because: No one publishes a connector., source: this test}
facts:
  versions.driver: /sys/abacus/version
thresholds:
  usable_share: {value: 0.8, because: some beads stick, source: this test}
run:
  devices:
    - {path: "/dev/abacus[0-9]*", each: true, because: a file for each, source: this test}
checks:
  - id: ABA-001
    fact: versions.driver
    operator: version_gte
    expected: "2.0"
    severity: WARN
    scope: host
    text: The rods are dry.
    passed: The rods are oiled.
    remediation: oil them
    source: this test
findings:
  ABA-031:
    severity: WARN
    scope: container
    text: A {part} needs fingers.
    remediation: lend a hand
    source: this test
""",
    "templates/abacus/accelerator.zh.yaml": """\
translations:
  zh:
    ? The rods are dry.
    : 算珠杆未上油。
    ? The rods are oiled.
    : 算珠杆已上油。
    ? oil them
    : 上油
    ? A {part} needs fingers.
    : '{part} 需要手指。'
    ? no fingers
    : 没有手指
    ? lend a hand
    : 请帮忙
    ? a file for each
    : 每个设备一个文件
""",
    "templates/abacus/stacks/abacus-1.yaml": """\
summary: vLLM on beads.
vllm: {version: "1.0", distribution: vllm, origin: this test}
python: "3.12"
module: vllm.entrypoints.openai.api_server
requirements: []
layers: []
compression: {algorithm: zstd, level: 3}
""",
    "templates/abacus/Dockerfile.j2": '{% extends "base.Dockerfile.j2" %}\n',
    "entrypoints/facts/probes/abacus.py": '''\
"""Rods of beads."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.parse import parse_line, parse_number
from entrypoints.core.records import Device, ProbeResult
from entrypoints.host.host import Host, Run


def probe(host: Host, run: Run, env: Mapping[str, str]) -> ProbeResult:
    """Return the rods."""
    del run, env
    paths = host.glob("/dev/abacus[0-9]*")
    beads = host.parsed("/sys/abacus/beads", parse_number, None)
    devices = tuple(Device(number, "Rod", beads, 0, None, path=path) for number, path in enumerate(paths))
    return ProbeResult(devices, (), {"driver": host.parsed("/sys/abacus/version", parse_line, "")})
''',
    "entrypoints/decide/abacus.py": '''\
"""What a rod can carry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entrypoints.checks.findings import make_notice
from entrypoints.core.records import Facts
from entrypoints.decide.parallelism.fit import Rules, fit_model
from entrypoints.decide.records import Decision, Thresholds
from entrypoints.model.read import ModelFacts
from entrypoints.request.vllm_flags import UserFlags


def decide(profile: Mapping[str, Any], facts: Facts, model: ModelFacts, given: UserFlags) -> Decision:
    """Decide what fits."""
    usable = Thresholds(profile["thresholds"]).number("usable_share")
    fitted = fit_model(facts, model, given, Rules(usable=usable, reserved=1 << 30, activations=1 << 30))
    fingers = make_notice("ABA-031", "no fingers", "ten", part="rod")
    return Decision(fitted.values, (*fitted.findings, fingers), uses=fitted.uses)
''',
    "docs/abacus.md": "# Abacus\n",
}
LINES = (
    ("entrypoints/accelerators.py", "ACCELERATORS = {\n", '    "abacus": Accelerator("abacus", "abacus"),\n'),
    ("matrix.yaml", "variants:\n", "  abacus-vllm1: {stack: abacus-1, default: true, platforms: [linux/amd64]}\n"),
    ("mkdocs.yml", "    - Accelerators:\n", "      - docs/abacus.md\n"),
    ("mkdocs.yml", "    - Options and findings:\n", "      - docs/reference/abacus.md\n"),
)

WORDS = """
from drydock.build import render
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.inputs.wheels import find_image_environment
from entrypoints.cache.lifecycle import hash_variables
from entrypoints.checks.grants import explain_no_device
from entrypoints.verbs.dispatch import main
from entrypoints.decide.conversions import output_name
from entrypoints.model.read import read_model
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA
variant = find_variant(read_matrix(DRYDOCK), "abacus")
assert find_image_environment(variant.python, "linux/amd64", variant.base).glibc == 28
profile = expect.profile_of("abacus-rack")
facts = expect.read("abacus-rack", profile)
plans = [
    make_serve_plan(profile, facts, LLAMA, parse_user_flags((LLAMA.name,), env))
    for env in ({}, {"ABACUS_BEADS": "wood"}, {"ABACUS_BEADS": "glass"})
]
shown = [reason.value for plan in plans for reason in plan.reasons if reason.setting == "ABACUS_BEADS"]
assert shown == ["wood", "glass"]
assert len({entry.name for plan in plans for entry in plan.cache.entries}) == 2  # the device's and one plan's
assert list(hash_variables({"ABACUS_X": "1", "OTHER": "1"}, tuple(profile["variables"]["compiling"]))) == ["ABACUS_X"]
hidden = explain_no_device(profile, facts._replace(devices=()), {"ABACUS_VISIBLE_RODS": "7"})
assert "ABACUS_VISIBLE_RODS=7" in str(hidden)
name = output_name(profile, "owner/Model")
assert (name, read_model(name, converted_name=profile["converted_name"]).converted) == ("owner/Model-Beaded", True)
path = DRYDOCK.root / "profile.json"
path.write_text(render.profile_text(variant))
main(("serve", "owner/model"), {"DRYDOCK_PROFILE": str(path), "ABACUS_TABLE": "/none"})
"""

SAID = """
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import LLAMA
profile = expect.profile_of("abacus-rack")
plan = make_serve_plan(profile, expect.read("abacus-rack", profile), LLAMA, parse_user_flags((LLAMA.name,), {}))
assert "A rod needs fingers." in [finding.text for finding in plan.findings if finding.id == "ABA-031"]
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the repository with one more accelerator."""
    copy = copy_checkout(tmp_path / "checkout")
    write_tree(copy, NEW)
    for name, after, line in LINES:
        text = (copy / name).read_text()
        assert text.count(after) == 1, f"{name}: expected {after!r} once"
        (copy / name).write_text(text.replace(after, after + line))
    return copy


def run(copy: Path, *arguments: str) -> str:
    return run_in_copy(copy, sys.executable, *arguments).stderr


def test_an_accelerator_takes_the_files_and_commands_of_its_page_and_no_other(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, generate, check, *others = read_commands(PAGE)
    assert [*map(" ".join, others)] == NEED_MORE, f"{PAGE}: run its other commands here, or add them to NEED_MORE"
    tool, data = make_small_wheel("uv", importlib.metadata.version("uv"))
    (use_local_index(monkeypatch, tmp_path) / tool).write_bytes(data)
    (tmp_path / "mirrors.yaml").write_text("schema: 1\nregistries: {registry.example: 127.0.0.1:1}\n")

    locked = run_in_copy(copy, *lock, code=4)
    assert "abacus-vllm1: linux/amd64: base is unresolved: no one publishes it" in locked.stderr
    assert "wrote images/abacus-vllm1/lock.json" in locked.stderr
    written = {part: {*run_in_copy(copy, *generate, "--only", part).stdout.split()} for part in AFFECTED}
    missing = {part: AFFECTED[part] - written[part] for part in AFFECTED}
    assert not any(missing.values()), f"`./inv generate` did not write {missing}"
    assert re.search(r"^WARN +ABA-001 +The rods are dry\.$", run_in_copy(copy, *check).stdout, re.MULTILINE)

    run(copy, "-c", SAID)
    assert "ABACUS_TABLE=/none: no such file\n\nhint: mount the table" in run(copy, "-c", WORDS)
    dockerfile = (copy / "images" / "abacus-vllm1" / "Dockerfile").read_text()
    plan = json.loads((copy / "tests" / "hosts" / "abacus-rack" / "plan.json").read_text())
    findings = json.loads((copy / "tests" / "hosts" / "abacus-rack" / "findings.json").read_text())
    assert "registry.example/abacus:latest" in dockerfile
    assert plan["llama-3.1-8b"]["argv"][:3] == ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert "--tensor-parallel-size" in plan["llama-3.1-8b"]["argv"]
    assert {"ABA-001": "WARN"}.items() <= {finding["id"]: finding["severity"] for finding in findings}.items()
    run(copy, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/contracts/test_translations.py")


def test_the_page_has_a_line_for_each_of_these_files() -> None:
    rows = [line.split("|")[2] for line in (ROOT / PAGE).read_text().splitlines() if re.match(r"\| \d", line)]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(names) == sorted({*NEW, *(name for name, _, _ in LINES)}), f"{PAGE}: its table has other files"
