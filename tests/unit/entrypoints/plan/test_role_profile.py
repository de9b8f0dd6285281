"""Settings by role: which win, where they come from, and the files that they name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from entrypoints.core.records import Reason, ServePlan
from entrypoints.plan.plan import make_serve_plan
from entrypoints.plan.plan_text import make_plan_document
from entrypoints.request.roles import Role
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts import expect
from tests.support.hosts.host_models import SMOLLM2

HOST = "cpu-xeon8380-2s"
PROFILE = expect.profile_of(HOST)
FACTS = expect.read(HOST, PROFILE)
SEQUENCES, FILE = "--max-num-seqs", "EXTRA_CONFIG"


def setting(name: str, value: Any, origin: str = "stack") -> dict[str, Any]:
    return {"setting": name, "value": value, "origin": origin, "because": f"{origin}'s", "source": "page 7"}


DECODE = {
    "settings": [setting(SEQUENCES, 32), setting(FILE, "{files}/extra.json")],
    "thresholds": {"shortest_context": {"value": 64, "because": "short", "source": "page 8"}},
    "files": {
        "extra.json": {
            "content": {
                "ranks": "{data_parallel}",
                "more": ["{files}/more.json", "tp{tensor_parallel}"],
                "kept": "{x}",
            },
            "because": "read by a plug-in",
            "source": "page 9",
        },
    },
}


def plan(
    role: str, *flags: str, row_settings: tuple[dict[str, Any], ...] = (), env: dict[str, str] | None = None
) -> ServePlan:
    user_flags = parse_user_flags((SMOLLM2.name, *flags, "--kv-transfer-config", "{}"), env or {})._replace(
        role=Role(role)
    )
    profile = {
        **PROFILE,
        "settings": [*PROFILE["settings"], setting(SEQUENCES, 128), *row_settings],
        "roles": {"decode": DECODE},
    }
    return make_serve_plan(profile, FACTS, SMOLLM2, user_flags)


def reason(serve_plan: ServePlan, name: str) -> Reason:
    return next(candidate for candidate in serve_plan.reasons if candidate.setting == name)


@pytest.mark.parametrize(("role", "sequences"), [("serve", "128"), ("prefill", "128"), ("decode", "32")])
def test_a_role_has_its_settings_and_no_other_role_has_them(role: str, sequences: str) -> None:
    serve_plan = plan(role)
    assert serve_plan.argv[serve_plan.argv.index(SEQUENCES) + 1] == sequences
    assert (FILE in serve_plan.env) == (role == "decode")
    assert bool(serve_plan.files) == (role == "decode")


def test_the_reason_names_the_role_and_the_source() -> None:
    plan_reason = reason(plan("decode"), SEQUENCES)
    assert (plan_reason.value, plan_reason.origin, plan_reason.because) == ("32", "stack", "decode: stack's (page 7)")


@pytest.mark.parametrize(
    ("flags", "row_settings", "env", "name", "expected"),
    [
        ((SEQUENCES, "9"), (), {}, SEQUENCES, ("9", "command line")),
        ((), (setting(SEQUENCES, 16, "variant"),), {}, SEQUENCES, ("16", "variant")),
        ((), (setting(SEQUENCES, 17, "project's stack"),), {}, SEQUENCES, ("17", "project's stack")),
        ((), (setting(SEQUENCES, 18, "accelerator"),), {}, SEQUENCES, ("32", "stack")),
        ((), (), {FILE: "/mine.json"}, FILE, ("/mine.json", "environment")),
    ],
)
def test_what_is_stronger_than_the_stack_is_stronger_than_its_roles(
    flags: tuple[str, ...],
    row_settings: tuple[dict[str, Any], ...],
    env: dict[str, str],
    name: str,
    expected: tuple[str, str],
) -> None:
    plan_reason = reason(plan("decode", *flags, row_settings=row_settings, env=env), name)
    assert (plan_reason.value, plan_reason.origin) == expected


def test_files_have_the_servers_parallelism_and_a_place_of_their_own() -> None:
    serve_plan = plan("decode", "--tensor-parallel-size", "3")
    ((path, text),) = serve_plan.files.items()
    assert path == serve_plan.env[FILE]
    assert path.startswith("/cache/roles/")
    folder = path.removesuffix("/extra.json")
    assert json.loads(text) == {"ranks": 1, "more": [f"{folder}/more.json", "tp3"], "kept": "{x}"}
    other = plan("decode", "--tensor-parallel-size", "1")
    assert other.env[FILE] != path, "another server on the same cache has another file"
    assert make_plan_document(serve_plan)["files"] == serve_plan.files
