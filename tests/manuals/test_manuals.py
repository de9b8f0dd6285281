"""The vendors' own commands: our plan sets the same values, or gives the reason for another value."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.evidence import manual_commands
from tests.evidence.manual_commands import Better, Line, Serve, Start

MANUALS = manual_commands.manuals()
SERVES = [(row, manual.script) for manual in MANUALS for row in manual.serves]
STARTS = [row for manual in MANUALS for row in manual.starts]


def wrong(lines: list[Line]) -> list[str]:
    return [f"{line.setting}={line.theirs}: {line.problem}" for line in lines if line.problem]


@pytest.mark.parametrize(("row", "script"), SERVES, ids=lambda value: getattr(value, "name", ""))
def test_the_plan_has_a_serve_commands_settings_or_gives_a_reason(row: Serve, script: Mapping[str, str]) -> None:
    assert wrong(manual_commands.compare_serve(row, script)) == []


@pytest.mark.parametrize("row", STARTS, ids=lambda row: row.name)
def test_a_container_has_a_start_commands_options_or_a_reason(row: Start) -> None:
    assert wrong(manual_commands.compare_start(row)) == []


def test_each_seed_has_its_table() -> None:
    assert {manual.seed for manual in MANUALS} == {
        "gaudi2e-manual-1.21.md",
        "gaudi2e-manual-1.22.md",
        "omni-infer-guide.md",
        "vllm-gcu-readme.md",
        "vllm-install-all-hardware.md",
    }
    assert len(SERVES) + len(STARTS) >= 60


# --- the comparison itself can fail ---------------------------------------------------------------------------------

OMNI = next(row for row, _ in SERVES if row.name.startswith("Mixed deployment"))
IMAGE = next(row for row in STARTS if row.target == "cloudmatrix384")
GAUDI, SCRIPT = next((row, script) for row, script in SERVES if "-a 127.0.0.1" in row.command)


def problems(row: Serve | Start, **changes: object) -> str:
    changed = row.model_copy(update=changes)
    comparison = (
        manual_commands.compare_serve(changed, {})
        if isinstance(changed, Serve)
        else manual_commands.compare_start(changed)
    )
    return "; ".join(wrong(comparison))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("VLLM_ENABLE_MC2=0", "VLLM_ENABLE_MC2=1", "VLLM_ENABLE_MC2=1: ours is 0"),
        ("--tensor-parallel-size 1", "--tensor-parallel-size 2", "--tensor-parallel-size=2: ours is 1"),
        ("--enforce-eager", "--enforce-eager --swap-space 4", "--swap-space=4: ours is not set"),
        ("--trust_remote_code", "", "--trust-remote-code=: the manual's command has no such setting"),
        ("VISIBLE_DEVICES=0", "VISIBLE_DEVICES=14", "ASCEND_RT_VISIBLE_DEVICES=14: it is the same"),
    ],
)
def test_a_difference_that_no_row_explains_is_a_failure(old: str, new: str, problem: str) -> None:
    assert problem in problems(OMNI, command=OMNI.command.replace(old, new))


def test_a_reason_that_the_plan_does_not_give_is_a_failure() -> None:
    chosen = OMNI.better["ASCEND_RT_VISIBLE_DEVICES"]
    unstated = {**OMNI.better, "ASCEND_RT_VISIBLE_DEVICES": chosen.model_copy(update={"because": "it is Tuesday"})}
    changed_better = {**OMNI.better, "ASCEND_RT_VISIBLE_DEVICES": chosen.model_copy(update={"ours": "3"})}

    assert "does not say 'it is Tuesday'" in problems(OMNI, better=unstated)
    assert "ours is 14, not 3" in problems(OMNI, better=changed_better)


def test_a_scripts_options_must_match_the_request_and_the_plan() -> None:
    longer = GAUDI.model_copy(update={"command": GAUDI.command.replace("800,1024", "800,2048")})
    more = GAUDI.model_copy(update={"command": GAUDI.command.replace("-t 4", "-t 8")})

    assert wrong(manual_commands.compare_serve(longer, SCRIPT)) == ["--input-range=800,2048: the row requests 800,1024"]
    assert wrong(manual_commands.compare_serve(more, SCRIPT)) == ["--tensor-parallel-size=8: ours is 4"]
    with pytest.raises(KeyError, match="-y"):
        manual_commands.settings("bash script.sh -y 1", SCRIPT)


def test_a_setting_that_drydock_chooses_must_not_be_listed_as_the_users() -> None:
    assert "set by the user, not chosen" in problems(OMNI, yours=OMNI.yours, env={"VLLM_USE_V1": "1"})


def test_options_of_a_container_fail_likewise() -> None:
    more = IMAGE.command.replace("-u root", "-u root --cap-add=sys_admin")
    wide = {**IMAGE.better, "--privileged": Better(ours="--device=/dev/davinci99", because="a die each")}

    assert "--cap-add=SYS_ADMIN: ours has no such option" in problems(IMAGE, command=more)
    assert "ours has no --device=/dev/davinci99" in problems(IMAGE, better=wide)
    assert "--device=/dev/devmm_svm: ours has it as well" in re.sub(
        "=--device=[^:]*", "", problems(IMAGE, yours=(*IMAGE.yours, "--device=/dev/devmm_svm"))
    )
