"""Layers of settings become one command, and every setting shows its origin."""

from __future__ import annotations

import json
from typing import Any

from entrypoints.core.records import Limits, Reason, ServePlan
from entrypoints.plan import plan_text
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import PROFILE, check, facts


def plan(*flags: str, profile: dict[str, Any] = PROFILE, **env: str) -> ServePlan:
    return make_serve_plan(profile, facts(), SMOLLM2, parse_user_flags((SMOLLM2.name, *flags), env))


def reason(serve_plan: ServePlan, setting: str) -> Reason:
    return next(reason for reason in serve_plan.reasons if reason.setting == setting)


def test_the_command_is_the_profiles_interpreter_and_module() -> None:
    assert plan().argv[:3] == ("/opt/venv/bin/python3", "-m", "vllm.entrypoints.openai.api_server")


def test_the_users_words_reach_vllm_as_they_were_written() -> None:
    words = ("--max_num_seqs", "7", "-O3", "--compilation-config.mode=0", "--port=9")

    assert plan(*words).argv[-7:] == ("--model", SMOLLM2.name, *words)


def test_every_flag_appears_once() -> None:
    argv = plan("--dtype", "half", "--port=9", "-tp=1").argv

    assert "bfloat16" not in argv
    assert "--tensor-parallel-size" not in argv
    assert argv.count("--dtype") == 1
    assert "--port" not in argv


def test_what_the_user_sets_wins_and_says_what_it_overrode() -> None:
    serve_plan = plan("--dtype", "float32", VLLM_CPU_KVCACHE_SPACE="1")

    assert reason(serve_plan, "--dtype").origin == "command line"
    assert any(text.startswith("bfloat16 (decision, overruled by ") for text in reason(serve_plan, "--dtype").instead)
    assert reason(serve_plan, "VLLM_CPU_KVCACHE_SPACE").origin == "environment"
    assert "VLLM_CPU_KVCACHE_SPACE" not in serve_plan.env


def test_the_environment_holds_only_what_is_set_on_top() -> None:
    serve_plan = plan(VLLM_CPU_OMP_THREADS_BIND="nobind", PATH="/bin", HF_HOME="/mine")

    assert serve_plan.env.keys().isdisjoint({"VLLM_CPU_OMP_THREADS_BIND", "PATH", "HF_HOME"})
    assert reason(serve_plan, "HF_HOME").value == "/mine"
    assert "LD_PRELOAD" in serve_plan.env


def test_variables_of_vllms_that_nothing_else_sets_are_shown_too() -> None:
    serve_plan = plan(VLLM_CPU_SGL_KERNEL="1", VLLM_CPU_MOE_PREPACK="0", UNRELATED="1")

    assert reason(serve_plan, "VLLM_CPU_SGL_KERNEL").origin == "environment"
    assert reason(serve_plan, "VLLM_CPU_MOE_PREPACK").value == "0"
    assert not [item for item in serve_plan.reasons if item.setting == "UNRELATED"]


def test_a_switch_of_the_profile_is_a_bare_flag_that_its_opposite_takes_away() -> None:
    assert "--enforce-eager" in plan().argv
    assert reason(plan(), "--enforce-eager").origin == "stack"
    assert "--enforce-eager" not in plan("--no-enforce-eager").argv
    assert reason(plan("--no-enforce-eager"), "--enforce-eager").value == "false"


def test_host_port_and_served_name_have_defaults_that_can_be_changed() -> None:
    serve_plan = plan()

    assert (serve_plan.host, serve_plan.port, serve_plan.model) == ("0.0.0.0", 8000, "/models/smollm2")
    assert reason(serve_plan, "--served-model-name").value == "smollm2"
    assert (plan("--host", "::1", "--port", "9").host, plan("--port", "9").port) == ("::1", 9)


def test_code_of_a_model_runs_only_if_the_user_allows_it() -> None:
    serve_plan = plan("--trust-remote-code")

    assert "--trust-remote-code" not in plan().argv
    assert "only if you allow it" in reason(plan(), "--trust-remote-code").because
    assert serve_plan.argv[-1] == "--trust-remote-code"
    assert reason(serve_plan, "--trust-remote-code").origin == "command line"


def test_a_flag_that_vllm_lacks_is_not_passed() -> None:
    user_flags = parse_user_flags((SMOLLM2.name,), {}, ("--model", "--port"))

    serve_plan = make_serve_plan(PROFILE, facts(), SMOLLM2, user_flags)

    assert "--trust-remote-code" not in {reason.setting for reason in serve_plan.reasons}


def test_findings_come_from_the_checks_and_the_users_choices() -> None:
    profile = {**PROFILE, "checks": [check(expected="powersave")]}

    assert [finding.id for finding in plan("-pp", "1", "-tp", "1", LD_PRELOAD="/my.so", profile=profile).findings] == [
        "CPU-001",
        "PLAN-001",
        "PLAN-100",
        "PLAN-092",
    ]


def test_json_has_the_promised_keys() -> None:
    printed = plan_text.make_plan_document(plan())

    assert {"argv", "env", "reasons", "findings"} <= printed.keys()
    assert {"setting", "value", "origin", "because"} <= printed["reasons"][0].keys()


def test_secrets_are_hidden_wherever_a_plan_is_printed_and_kept_where_it_is_executed() -> None:
    serve_plan = plan("--api-key", "sk-1", "--hf-token=hf-2", HF_TOKEN="hf-3", VLLM_API_KEY="sk-4")  # noqa: S106 - made up
    printed = (
        json.dumps(plan_text.make_plan_document(serve_plan))
        + plan_text.format_plan_text(serve_plan)
        + plan_text.format_reasons_text(serve_plan)
    )

    assert not [secret for secret in ("sk-1", "hf-2", "hf-3", "sk-4") if secret in printed]
    assert serve_plan.env["VLLM_API_KEY"] == "sk-1"
    assert "--hf-token=hf-2" in serve_plan.argv


def test_text_can_be_pasted_into_a_shell() -> None:
    text = plan_text.format_plan_text(plan())

    assert text.startswith("DO_NOT_TRACK=1 \\\n")
    assert " \\\n/opt/venv/bin/python3 -m vllm.entrypoints.openai.api_server --" in text


def test_only_findings_that_need_attention_are_wrong() -> None:
    serve_plan = plan(profile={**PROFILE, "checks": [check(), check(id="CPU-002", fact="kernel.none")]})

    assert [finding.id for finding in plan_text.select_problems(serve_plan.findings)] == ["CPU-002", "PLAN-092"]


def test_vllm_gets_the_drain_timeout_if_it_has_the_flag() -> None:
    option_strings = ("--model", "--shutdown-timeout")
    able = make_serve_plan(PROFILE, facts(), SMOLLM2, parse_user_flags(("--model", "m"), {}, option_strings), 7.5)
    unable = make_serve_plan(PROFILE, facts(), SMOLLM2, parse_user_flags(("--model", "m"), {}), 7.5)
    user_flags = parse_user_flags(("--model", "m", "--shutdown-timeout", "3"), {}, option_strings)
    chosen = make_serve_plan(PROFILE, facts(), SMOLLM2, user_flags, 7.5)

    assert able.argv[able.argv.index("--shutdown-timeout") + 1] == "8"
    assert "--shutdown-timeout" not in unable.argv
    assert chosen.argv.count("--shutdown-timeout") == 1
    assert chosen.argv[chosen.argv.index("--shutdown-timeout") + 1] == "3"


def test_variables_of_the_base_reach_vllm_unless_the_user_changed_them() -> None:
    variables = {"LD_LIBRARY_PATH": ["/usr/lib", "/cann/lib:/usr/lib"], "CANN": ["", "/cann"]}
    profile = PROFILE | {"environment": {"scripts": ["/cann/set_env.sh"], "variables": variables}}
    as_built = plan(profile=profile, LD_LIBRARY_PATH="/usr/lib")
    assert (as_built.env["LD_LIBRARY_PATH"], as_built.env["CANN"]) == ("/cann/lib:/usr/lib", "/cann")
    assert reason(as_built, "CANN").because == "as /cann/set_env.sh of the base image exports it"
    serve_plan = plan(profile=profile, LD_LIBRARY_PATH="/mine")
    assert "LD_LIBRARY_PATH" not in serve_plan.env


def downloads(*, elsewhere: bool = True, free: int = 0, **env: str) -> list[str]:
    """Return what a plan says of the room for weights on a cache volume with so much free."""
    host = facts()
    cache = host.mounts["cache"]._replace(free=free)
    model = SMOLLM2._replace(local=False, elsewhere=elsewhere)
    serve_plan = make_serve_plan(
        PROFILE, host._replace(mounts={**host.mounts, "cache": cache}), model, parse_user_flags((model.name,), env)
    )
    return [finding.found for finding in serve_plan.findings if finding.id == "PLAN-060"]


def test_weights_to_be_downloaded_need_free_space() -> None:
    assert downloads() == ["0.0 GiB free in /cache"]
    assert downloads(free=1 << 40) == []
    assert downloads(elsewhere=False) == []
    assert downloads(HF_HOME="/models/hub") == []


def test_soft_limits_that_are_raised_are_in_the_plan_with_their_reason() -> None:
    host = facts(limits=Limits(1024, None, None, 4096, None))
    serve_plan = make_serve_plan(PROFILE, host, SMOLLM2, parse_user_flags((SMOLLM2.name,), {}))

    assert serve_plan.limits == {"RLIMIT_NOFILE": 4096}
    assert reason(serve_plan, "RLIMIT_NOFILE").value == "4096"


# --- recommendations ------------------------------------------------------------------------------------------------

ADVICE = {
    "when": {"model": "smollm2*", "architecture": "", "card": "", "devices": 0},
    "serve": {"--dtype": {"value": "float32", "because": "measured on our hosts", "source": "our benchmark"}},
}


def advised(**when: object) -> dict[str, Any]:
    return {**PROFILE, "recommended": [ADVICE | {"when": {**ADVICE["when"], **when}}]}


def test_a_recommendation_is_stronger_than_a_decision_and_weaker_than_the_user() -> None:
    dtype_reason = reason(plan(profile=advised()), "--dtype")
    assert (dtype_reason.value, dtype_reason.origin, dtype_reason.because) == (
        "float32",
        "recommendation",
        "measured on our hosts",
    )
    assert any(text.startswith("bfloat16 (decision, overruled by ") for text in dtype_reason.instead)
    mine = plan("--dtype", "half", profile=advised())
    assert reason(mine, "--dtype").value == "half"
    assert "float32" not in mine.argv


def test_decisions_follow_from_a_recommendation() -> None:
    twice = plan(profile=advised()).uses[0].weights / plan().uses[0].weights
    assert twice == 2


def test_a_recommendation_is_for_its_model_and_its_devices() -> None:
    for when in ({"model": "Qwen*"}, {"architecture": "QwenForCausalLM"}, {"card": "gaudi2"}, {"devices": 8}):
        assert reason(plan(profile=advised(**when)), "--dtype").origin == "decision"
    assert reason(plan(profile=advised(model="", architecture=SMOLLM2.architecture)), "--dtype").value == "float32"
