"""Failures by symptom: each line is found by its own entry and no other, and each check that tells it before exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from drydock.build.render import make_profile
from drydock.config.failures import read_failures
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock.vllm_lists import list_every
from drydock.model.record import dump_record
from entrypoints.checks.symptoms import add_failures, explain_log
from entrypoints.core.errors import EXIT_CODES, OK
from entrypoints.request.arguments import FLAGS
from tests.support.cases import for_each

VARIANTS = read_matrix(DRYDOCK)
FINDINGS = {check.id for variant in VARIANTS for check in variant.checks}.union(
    *(variant.findings for variant in VARIANTS)
)
PROFILES = {
    variant.accelerator: add_failures(
        dump_record(make_profile(variant)) | {"findings": {}, "checks": []},
        dump_record(read_failures(DRYDOCK, variant.accelerator)),
    )
    for variant in VARIANTS
}
"""One image of each accelerator, whose findings are left out: symptoms that contain an id match it too."""
ENTRIES = [
    (name, failure) for image_profile in PROFILES.values() for name, failure in image_profile["failures"].items()
]


def matches() -> Iterator[tuple[str, str, list[str]]]:
    for accelerator, image_profile in PROFILES.items():
        for name, failure in image_profile["failures"].items():
            yield accelerator, name, [match.id for match in explain_log(failure["symptom"], image_profile)]


@for_each(sorted(PROFILES), str)
def test_a_symptom_is_explained_by_its_own_entry_only(accelerator: str) -> None:
    wrong = {
        name: matched_ids for owner, name, matched_ids in matches() if owner == accelerator and matched_ids != [name]
    }

    assert wrong == {}


def test_the_check_that_tells_it_before_exists() -> None:
    assert {failure["check"] for _, failure in ENTRIES} - FINDINGS - {None} == set()


def test_every_exit_code_of_ours_has_an_entry() -> None:
    common = PROFILES["router"]["failures"].values()

    assert EXIT_CODES.keys() - {OK} == {code for failure in common for code in failure["exits"]} & EXIT_CODES.keys()


def test_a_page_of_ours_that_is_a_source_exists() -> None:
    ours = {str(failure["source"]).partition("#")[0] for _, failure in ENTRIES if failure["source"].startswith("docs/")}

    assert [name for name in sorted(ours) if not (ROOT / name).is_file()] == []


def test_what_an_entry_explains_exists_and_does_not_explain_it_in_turn() -> None:
    for image_profile in PROFILES.values():
        failures = image_profile["failures"]
        wrong = {
            (name, other_name)
            for name, failure in failures.items()
            for other_name in failure["explains"]
            if name in failures.get(other_name, {"explains": (name,)})["explains"]
        }
        assert wrong == set()


def test_no_two_accelerators_have_an_entry_of_the_same_name() -> None:
    common = PROFILES["router"]["failures"]
    owners: dict[str, set[str]] = {}
    for accelerator, image_profile in PROFILES.items():
        for name in image_profile["failures"].keys() - common.keys():
            owners.setdefault(name, set()).add(accelerator)

    assert {name: names for name, names in owners.items() if len(names) > 1} == {}


def test_an_entry_names_a_line_a_code_or_an_exit_code() -> None:
    def empty(failure: dict[str, Any]) -> bool:
        return not (failure["patterns"] or failure["exits"] or failure["codes"])

    assert [name for name, failure in ENTRIES if empty(failure)] == []


GENERIC = {
    "no-space",
    "tpu-backend",
    "ascend-npu-not-opened",
    "config-refused",
    "cuda-hardware-error",
    "cuda-out-of-memory",
    "gaudi-bridge-exception",
    "rocm-out-of-memory",
    "ascend-operator-failed",
    "ascend-operator-parameter",
    "ascend-runtime-failed",
}
"""Entries whose patterns are also in lines that a more specific entry explains."""


def test_no_pattern_is_in_the_symptom_of_another_entry() -> None:
    wrong = [
        (name, other_name)
        for image_profile in PROFILES.values()
        for name, failure in image_profile["failures"].items()
        for other_name, entry in image_profile["failures"].items()
        if other_name not in (name, *GENERIC, *failure["explains"])
        and _matches_alone(failure["symptom"], other_name, entry, image_profile)
    ]

    assert sorted(set(wrong)) == []


def _matches_alone(symptom: str, name: str, entry: dict[str, Any], image_profile: dict[str, Any]) -> bool:
    """Tell whether an entry's patterns find a line, whatever the other entries say."""
    if not any(pattern.split("*")[0] in symptom for pattern in entry["patterns"]):
        return False
    alone = {**image_profile, "failures": {name: {**entry, "exits": []}}}
    return bool(explain_log(symptom, alone))


FLAG, VARIABLE = re.compile(r"--[a-z][a-z0-9-]+"), re.compile(r"\bVLLM_[A-Z0-9_]+[A-Z0-9]\b")
OF_OTHER_PROGRAMS = {
    "--cap-add",
    "--cpuset-cpus",
    "--cpuset-mems",
    "--device",
    "--dns",
    "--entrypoint",
    "--gpus",
    "--group-add",
    "--ipc",
    "--memory",
    "--net",
    "--network",
    "--pids-limit",
    "--privileged",
    "--runtime",
    "--security-opt",
    "--shm-size",
    "--ulimit",
    "--user",
    "--force",
    "--now",
    "--previous",
    "--showpids",
    "--flag",
    "--update",
    "--help",
    "--library-search-path",
    "--version",
    "--add-subgids",
    "--add-subuids",
    "--pid",
    "--show",
    "--up",
}
"""Of docker, podman, kubectl, systemctl, rocm-smi, nvidia-ctk, wsl, setvars.sh, usermod, numactl and Gaudi's
manage_network_ifs.sh; `--flag` stands for any."""


def test_what_a_remedy_says_about_vllm_exists() -> None:
    lists = [version.lists for version in list_every(DRYDOCK)]
    flags = {flag for version_lists in lists for flag in version_lists["flags"]} | {*FLAGS} | OF_OTHER_PROGRAMS
    negated = {f"--no-{flag[2:]}" for flag in flags}
    common = PROFILES["router"]["failures"]
    unknown = {
        (name, flag)
        for name, failure in ENTRIES
        for flag in FLAG.findall(failure["remedy"])
        if flag not in flags | negated
    }
    variables = {name for version_lists in lists for name in version_lists["variables"]}
    wrong = {
        (name, variable)
        for name, failure in common.items()
        for variable in VARIABLE.findall(failure["remedy"])
        if variable not in variables
    }

    assert (sorted(unknown), sorted(wrong)) == ([], [])
