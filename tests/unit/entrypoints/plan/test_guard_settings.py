"""A server's keys, and the settings of drydock's middleware in vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.records import ServePlan, Value
from entrypoints.decide.cpu.executor import PLUGIN, PYTHON_PATH
from entrypoints.model.read import ModelFacts
from entrypoints.plan import guard_settings, plan_text
from entrypoints.plan.plan import make_serve_plan
from entrypoints.request.access import ADMIN_KEY_VARIABLE, ALLOWED_HOSTS, Access
from entrypoints.request.flags import MIDDLEWARE
from entrypoints.request.vllm_flags import parse_user_flags
from tests.support.hosts.host_models import SMOLLM2
from tests.support.sample import PROFILE, facts

KEY = "VLLM_API_KEY"


NOTHING = Access()


def plan(
    *words: str,
    access: Access = NOTHING,
    option_strings: tuple[str, ...] = (),
    model: ModelFacts = SMOLLM2,
    **env: str,
) -> ServePlan:
    user_flags = parse_user_flags((SMOLLM2.name, *words), env, option_strings)._replace(access=access)
    return make_serve_plan(PROFILE, facts(), model, user_flags)


def about_keys(serve_plan: ServePlan) -> list[str]:
    return [finding.id for finding in serve_plan.findings if finding.id.startswith("PLAN-09")]


def setting(serve_plan: ServePlan, name: str) -> tuple[str, str]:
    return next((reason.value, reason.origin) for reason in serve_plan.reasons if reason.setting == name)


def test_the_name_that_vllm_gets_is_that_of_the_class() -> None:
    package, module, name = guard_settings.NAME.split(".")
    source = (ROOT / "entrypoints" / "plugin" / package / f"{module}.py").read_text()
    assert f"class {name}:" in source
    assert f'"{guard_settings.MOST_VARIABLE}"' in source
    assert f'"{guard_settings.ADMIN_VARIABLE}"' in source
    assert f'"{ALLOWED_HOSTS}"' in source
    assert f'"{ADMIN_KEY_VARIABLE}"' in source


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("--api-key", "sk-1"), "sk-1"),
        (("--api_key=sk-1",), "sk-1"),
        (("--api-key", "old", "--api-key=sk-1"), "sk-1"),
        (("--api-key", "sk-1", "sk-2"), "sk-1\nsk-2"),
        (("--config", "CONFIG", "--api-key", "sk-1"), "sk-1"),
    ],
)
def test_keys_are_moved_from_the_command_line_to_the_environment(
    words: tuple[str, ...], keys: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("port: 9\n")
    words = tuple(str(tmp_path / "c.yaml") if word == "CONFIG" else word for word in words)
    serve_plan = plan("--dtype", "half", *words, "--seed", "9", VLLM_API_KEY="weaker")

    assert serve_plan.env[KEY] == keys
    assert not [word for word in serve_plan.argv if "sk-" in word or word.startswith("--api")]
    assert setting(serve_plan, KEY)[1] == "command line"
    assert about_keys(serve_plan) == ["PLAN-090"]
    assert "sk-" not in plan_text.format_plan_text(serve_plan)


def test_keys_of_a_file_of_a_variable_and_of_vllms_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("api-key: sk-1\n")
    files = plan(access=Access(("sk-1", "sk-2")))
    variable = plan(VLLM_API_KEY="sk-1\n")
    empty_variable = plan(access=Access(("sk-1",)), VLLM_API_KEY="")
    config = plan("--config", str(tmp_path / "c.yaml"))

    assert (files.env[KEY], config.env[KEY], empty_variable.env[KEY]) == ("sk-1\nsk-2", "sk-1", "sk-1")
    assert KEY not in variable.env
    assert about_keys(files) == about_keys(variable) == about_keys(config) == []
    assert about_keys(plan()) == ["PLAN-092"]


@pytest.mark.parametrize(
    ("words", "access", "env", "message"),
    [
        (("--api-key", "sk-2"), Access(("sk-1",)), "", "--api-key-file and --api-key: both"),
        (("--api-key=sk-2", "--port", "9"), Access(("sk-1",)), "", "--api-key-file and --api-key: both"),
        (("--config", "CONFIG", "--api-key", "sk-2"), Access(), "", "api-key and --api-key: both"),
        (("--config", "CONFIG"), Access(("sk-2",)), "", "--api-key-file and .*: both"),
        (("--api-key",), Access(), "", "--api-key: found no key"),
        (("--api-key", ""), Access(), "", "--api-key: found no key"),
        ((), Access(), "", "VLLM_API_KEY: found no key"),
        ((), Access(), " \n", "VLLM_API_KEY: found no key"),
        ((), Access(), "schlüssel", "VLLM_API_KEY: a key has characters"),
    ],
)
def test_keys_from_two_places_and_places_without_a_key_are_refused(
    words: tuple[str, ...], access: Access, env: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("api-key: sk-1\n")
    words = tuple(str(tmp_path / "c.yaml") if word == "CONFIG" else word for word in words)
    with pytest.raises(EntrypointError, match=message) as caught:
        plan(*words, access=access, VLLM_API_KEY=env)
    assert caught.value.code == USAGE
    assert "sk-" not in str(caught.value)


def test_every_server_loads_the_middleware_after_the_users_own() -> None:
    serve_plan = plan("--middleware", "my.Own", option_strings=("--model", MIDDLEWARE))

    assert plan().argv[plan().argv.index(MIDDLEWARE) + 1] == guard_settings.NAME
    assert serve_plan.argv[-4:] == (MIDDLEWARE, "my.Own", MIDDLEWARE, guard_settings.NAME)
    assert setting(serve_plan, MIDDLEWARE) == (f"my.Own, {guard_settings.NAME}", "command line")


def test_a_vllm_that_cannot_load_it_serves_without_a_key_only() -> None:
    serve_plan = plan(option_strings=("--model",))
    assert MIDDLEWARE not in serve_plan.argv
    assert about_keys(serve_plan) == ["PLAN-092", "PLAN-093"]
    with pytest.raises(EntrypointError, match="no --middleware") as caught:
        plan(option_strings=("--model",), VLLM_API_KEY="sk-1")
    assert caught.value.code == HOST


@pytest.mark.parametrize(
    ("env", "exported", "path"),
    [("", "", PLUGIN), ("/mine", "", f"/mine:{PLUGIN}"), ("", "/cann", f"/cann:{PLUGIN}"), (PLUGIN, "", PLUGIN)],
)
def test_the_plugin_comes_after_the_folders_of_the_user_and_the_base(env: str, exported: str, path: str) -> None:
    base = {PYTHON_PATH: Value(exported, "the base image")} if exported else {}
    user_flags = parse_user_flags(("m",), {PYTHON_PATH: env})
    assert guard_settings.choose_request_limits(SMOLLM2, user_flags, base)[PYTHON_PATH].value == path
    assert exported or plan(PYTHONPATH=env).env[PYTHON_PATH] == path


@pytest.mark.parametrize(
    ("modalities", "most", "env", "expected"),
    [
        ((), "", "", (str(32 << 20), "default")),
        (("image",), "", "", (str(256 << 20), "default")),
        (("audio",), "", "1000", ("1000", "environment")),
        ((), "64M", "1000", (str(64 << 20), "command line")),
    ],
)
def test_the_limit_of_bodies(modalities: tuple[str, ...], most: str, env: str, expected: tuple[str, str]) -> None:
    model = SMOLLM2._replace(modalities=modalities)
    serve_plan = plan(access=Access(most=most), model=model, DRYDOCK_MAX_REQUEST_BYTES=env)
    assert setting(serve_plan, guard_settings.MOST_VARIABLE) == expected


@pytest.mark.parametrize(("flag", "env"), [("0", ""), ("much", ""), ("", "64M"), ("", "0"), ("", "9" * 5000)])
def test_a_limit_that_is_no_number_of_bytes_is_refused(flag: str, env: str) -> None:
    with pytest.raises(EntrypointError, match="bytes"):
        plan(access=Access(most=flag), DRYDOCK_MAX_REQUEST_BYTES=env)


def test_administration_is_closed_until_the_user_opens_it() -> None:
    assert setting(plan(), guard_settings.ADMIN_VARIABLE) == ("0", "default")
    assert setting(plan(access=Access(admin=True)), guard_settings.ADMIN_VARIABLE) == ("1", "command line")


@pytest.mark.parametrize("names", ["llm.example", "llm.example, 10.0.0.7,[fd00::7]", "localhost,LLM_1.example."])
def test_the_names_of_a_proxy_reach_vllms_process_as_they_are(names: str) -> None:
    assert ALLOWED_HOSTS not in plan(DRYDOCK_ALLOWED_HOSTS=names).env


@pytest.mark.parametrize(
    "names", ["", " ", ",", "a,,b", "*", "https://llm.example", "llm.example:8443", "a/b", "a b", "fd00::7", "-a", "ä"]
)
def test_what_no_host_header_has_is_refused_and_no_name_is_not_every_name(names: str) -> None:
    with pytest.raises(EntrypointError, match=ALLOWED_HOSTS) as caught:
        plan(DRYDOCK_ALLOWED_HOSTS=names)
    assert caught.value.code == USAGE


def test_the_keys_of_administrators_come_from_a_file_or_the_variable_and_are_not_shown() -> None:
    access = Access(keys=("sk-1",), admin_keys=("adm-1", "adm-2"))
    serve_plan = plan(access=access)
    assert serve_plan.env[ADMIN_KEY_VARIABLE] == "adm-1\nadm-2"
    assert "adm-1" not in plan_text.format_plan_text(serve_plan)
    assert "only a key of --admin-key-file administers" in plan_text.format_plan_text(serve_plan)
    assert ADMIN_KEY_VARIABLE not in plan(**{ADMIN_KEY_VARIABLE: "adm-1"}).env  # it is inherited


@pytest.mark.parametrize(
    ("access", "variables", "words"),
    [
        (Access(keys=("sk-1", "same"), admin_keys=("same",)), {}, "also a key of clients"),
        (Access(admin_keys=("same",)), {KEY: "same"}, "also a key of clients"),
        (NOTHING, {KEY: "a\nsame", ADMIN_KEY_VARIABLE: "same"}, "also a key of clients"),
        (NOTHING, {ADMIN_KEY_VARIABLE: ""}, "DRYDOCK_ADMIN_KEY: found no key"),
        (NOTHING, {ADMIN_KEY_VARIABLE: " \n"}, "DRYDOCK_ADMIN_KEY: found no key"),
    ],
)
def test_a_key_of_administrators_that_is_none_or_a_clients_is_refused(
    access: Access, variables: dict[str, str], words: str
) -> None:
    with pytest.raises(EntrypointError, match=words) as caught:
        plan(access=access, **variables)
    assert caught.value.code == USAGE
    assert "same" not in str(caught.value)


def test_a_vllm_without_middleware_refuses_the_keys_of_administrators() -> None:
    with pytest.raises(EntrypointError, match="this image's vLLM has no --middleware") as caught:
        plan(access=Access(admin_keys=("adm-1",)), option_strings=("--model", "--dtype"))
    assert caught.value.code == HOST
