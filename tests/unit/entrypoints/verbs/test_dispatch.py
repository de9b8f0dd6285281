"""The command line: main is called, and a process started where it becomes another program or takes signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from drydock.run.standin_run import CONFIG
from entrypoints.core import errors
from entrypoints.core.folders import READABLE
from entrypoints.core.identifiers import Redaction
from entrypoints.facts.image_files import digest_packages
from entrypoints.verbs import version_verb
from entrypoints.verbs.dispatch import main
from tests.support import terminal
from tests.support.hosts import expect
from tests.support.hosts.trees import HOSTS
from tests.support.loopback import Loopback
from tests.support.sample import PROFILE, check, write_model
from tests.support.unknown import UNKNOWN, VALUE

PACKAGE = ROOT / "entrypoints"
ENVIRONMENT = PACKAGE.parent / "templates" / "tools" / "environment.py"


LITTLE = {"server_memory_gib": 0.1, "rank_memory_gib": 0.1, "kv_share_of_unknown_model": 0.9}
"""Lets a model fit into what a busy machine has left: plans are made for this machine."""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    checks = [check(fact="processor.architecture", operator="present")]
    thresholds = PROFILE["thresholds"] | {name: {"value": value} for name, value in LITTLE.items()}
    path.write_text(json.dumps({**PROFILE, "checks": checks, "thresholds": thresholds}))
    return path


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(write_model(tmp_path / "model"))


def make_environment(profile: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(profile), "TMPDIR": str(profile.parent)}


def run(profile: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Call main; data goes to standard output, everything else to standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv, make_environment(profile) | env)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def start(profile: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the entrypoint as the image does."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(PACKAGE), *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=make_environment(profile) | env,
    )


def test_help_names_every_verb_flag_and_exit_code(profile: Path) -> None:
    ran = run(profile, "--help")

    assert ran.returncode == errors.OK
    assert not [word for word in ("serve", "--drain-timeout", *errors.EXIT_CODES.values()) if word not in ran.stdout]


def test_plan_prints_data_on_standard_output_only(profile: Path, model: str) -> None:
    ran = start(profile, "plan", model, "--json")

    assert ran.returncode == errors.OK
    assert ran.stderr == ""
    assert json.loads(ran.stdout)["model"] == model


def test_a_file_that_a_variable_names_must_exist_before_anything_starts(profile: Path, model: str) -> None:
    variables = {**PROFILE["variables"], "files": {"QUANT_CONFIG": "mount the folder of the measurements"}}
    profile.write_text(json.dumps({**PROFILE, "variables": variables}))
    ran = start(profile, "serve", model, QUANT_CONFIG="/no/such/maxabs_quant_g2.json")

    assert ran.returncode == errors.MODEL
    assert "QUANT_CONFIG=/no/such/maxabs_quant_g2.json: no such file" in ran.stderr
    assert run(profile, "plan", model, QUANT_CONFIG="/no/such/maxabs_quant_g2.json").returncode == errors.OK


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--chat-template", "/no/chat.jinja"), "--chat-template /no/chat.jinja"),
        (("--ssl_keyfile=./no/server.key",), "--ssl-keyfile ./no/server.key"),
        (("--chat-templ", "/no/chat.jinja"), "--chat-template /no/chat.jinja"),
        (("--config", "config.yaml"), "--chat-template /no/chat.jinja"),
    ],
)
def test_a_file_that_a_flag_names_must_exist_before_anything_starts(
    explaining: Path, model: str, words: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(explaining.parent)
    Path("config.yaml").write_text("chat_template: /no/chat.jinja\n")
    flags = {"--chat-template": "PATH", "--ssl-keyfile": "PATH", "--config": "FILE", "--model": "NAME"}
    Path("vllm.json").write_text(json.dumps({"flags": flags}))
    ran = start(explaining, "serve", model, *words)

    assert ran.returncode == errors.USAGE
    assert f"{named}: no such file" in ran.stderr
    assert run(explaining, "plan", model, *words).returncode == errors.OK


def test_findings_are_in_the_users_language_and_what_programs_read_is_not(profile: Path) -> None:
    wrong = check(fact="processor.architecture", operator="absent", text="It is {found}.")
    chinese = {"It is {found}.": "实测 {found}。", "fix (host): {}": "处理（主机）：{}"}
    profile.write_text(json.dumps({**PROFILE, "checks": [wrong], "translations": {"zh": chinese}}))
    result = start(profile, "check", "--only", "warn,fail", LC_ALL="zh_CN.GBK")

    assert f"实测 {os.uname().machine}。\n        处理（主机）：" in result.stdout
    assert "It is" in run(profile, "check", "--json", LANG="zh_CN.UTF-8").stdout
    assert "实测" in run(profile, "check", "--json", "--lang", "zh").stdout
    assert run(profile, "plan", "--lang", "fr").returncode == errors.USAGE


@pytest.fixture
def explaining(profile: Path) -> Path:
    """Return the profile of an image that knows two failures, and whose vLLM has two flags."""
    entry = {"exits": [], "check": None, "cause": "It is broken.", "remedy": "Mend it.", "source": "docs/x.md"}
    boom, flag = entry | {"patterns": ["boom at *"]}, entry | {"patterns": ["unrecognized arguments:"]}
    findings = {"TOPO-021": {"text": "… lacks images", "remediation": "pull them", "source": "docs/x.md"}}
    explanations = {"failures": {"boom": boom, "flag-unknown": flag}, "findings": findings}
    texts = {"translations": {"zh": {"It is broken.": "坏了。"}}}
    (profile.parent / "failures.json").write_text(json.dumps(explanations | texts))
    (profile.parent / "vllm.json").write_text(json.dumps({"flags": {"--max-model-len": "N", "--dtype": "NAME"}}))
    profile.write_text(json.dumps({**PROFILE, "translations": {"zh": {}}}))
    return profile


def explain(profile: Path, log: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run explain with a log on standard input."""
    command = [sys.executable, "-I", "-S", str(PACKAGE), "explain", *words]
    return subprocess.run(command, input=log, capture_output=True, check=False, env={"DRYDOCK_PROFILE": str(profile)})


@pytest.mark.parametrize("words", [("--json",), ("-", "--json")], ids=["nothing", "dash"])
def test_explain_reads_the_log_on_standard_input(explaining: Path, words: tuple[str, ...]) -> None:
    piped = explain(explaining, b"ok\n\x1b[31mboom at 0x1\x1b[0m\xff\n" + b"later\n" * 20_000, *words)

    (match,) = json.loads(piped.stdout)
    assert (match["id"], match["kind"], match["line"]) == ("boom", "cause", "boom at 0x1\ufffd")


def test_explain_reads_files_and_says_which_is_missing(explaining: Path, tmp_path: Path) -> None:
    for name in ("one.log", "two"):
        (tmp_path / name).write_text(f"boom at {name}\n")

    result = run(explaining, "explain", str(tmp_path / "one.log"), str(tmp_path / "two"))
    assert (result.returncode, result.stdout.split("\n")[0]) == (0, "boom at one.log")
    missing = run(explaining, "explain", str(tmp_path / "three.log"))
    assert missing.returncode == errors.USAGE
    assert "three.log: no such file" in missing.stderr
    assert "docker run -i IMG explain -" in missing.stderr
    assert f"explain: {tmp_path}: is a folder" in run(explaining, "explain", str(tmp_path)).stderr


def test_explain_says_what_a_line_means_and_names_no_file_of_the_repository(explaining: Path) -> None:
    result = run(explaining, "explain", "boom at 0x2", "--lang", "zh")

    assert result.stdout.startswith("boom at 0x2\n        坏了。\n")
    assert "docs/" not in result.stdout
    assert "pull them" in run(explaining, "explain", "TOPO-021").stdout


def test_explain_names_the_first_error_where_it_knows_nothing(explaining: Path) -> None:
    unknown = run(explaining, "explain", "all is well\nfoo.StrangeError: odd\nKeyError: 'x'")
    assert (unknown.returncode, unknown.stdout) == (errors.NOT_KNOWN, "")
    assert "the first error is: foo.StrangeError: odd" in unknown.stderr
    assert "docs/" not in unknown.stderr
    result = run(explaining, "explain", "XYZ-042")
    assert result.returncode == errors.NOT_KNOWN
    assert "XYZ-042 is a finding of another accelerator" in result.stderr
    empty = start(explaining, "explain")
    assert empty.returncode == errors.USAGE
    assert "docker logs CONTAINER 2>&1 | docker run -i IMG explain" in empty.stderr


@pytest.mark.parametrize(
    ("line", "explanation"),
    [
        ("error: unrecognized arguments: --swap-space 4", "--swap-space was removed: use --kv-offloading-size"),
        ("unrecognized arguments: --max-model-length=9", "the nearest is --max-model-len."),
        ("unrecognized arguments: --strange-thing x", "--strange-thing is not known to this vLLM; leave it out."),
        ("unrecognized arguments: --dtype half", "--dtype is a flag of this image's vLLM"),
    ],
)
def test_explain_says_what_stands_for_a_flag_that_vllm_does_not_know(
    explaining: Path, line: str, explanation: str
) -> None:
    assert explanation in run(explaining, "explain", line).stdout


@pytest.fixture
def modelscope() -> Iterator[str]:
    index = {"metadata": {"total_size": 4000}, "weight_map": {}}
    api = "/api/v1/models/Qwen/Qwen3-8B/repo?Revision=master&FilePath="
    with Loopback() as server:
        server.files[f"{api}config.json"] = json.dumps(CONFIG).encode()
        server.files[f"{api}model.safetensors.index.json"] = json.dumps(index).encode()
        yield server.url


def test_a_model_of_modelscope_is_planned_from_its_api_and_vllm_is_told_where_it_is(
    profile: Path, modelscope: str
) -> None:
    ran = run(profile, "plan", "modelscope:Qwen/Qwen3-8B", "--json", MODELSCOPE_DOMAIN=modelscope)
    plan = json.loads(ran.stdout)

    assert ran.returncode == errors.OK, ran.stderr
    assert plan["env"]["VLLM_USE_MODELSCOPE"] == "True"
    assert plan["argv"][plan["argv"].index("--model") + 1] == "Qwen/Qwen3-8B"
    silent = run(profile, "plan", "modelscope:Qwen/Other", "--json", MODELSCOPE_DOMAIN="127.0.0.1:9")
    assert silent.returncode == errors.MODEL
    assert "127.0.0.1:9" in silent.stderr


def test_modelscope_needs_its_package_in_the_image(profile: Path, tmp_path: Path, model: str) -> None:
    packages = tmp_path / "lib" / "python3.12" / "site-packages"
    (packages / "vllm-0.23.0.dist-info").mkdir(parents=True)
    profile.write_text(json.dumps({**PROFILE, "python": str(tmp_path / "bin" / "python3")}))
    lacking = run(profile, "plan", model, VLLM_USE_MODELSCOPE="True")
    (packages / "modelscope-1.40.2.dist-info").mkdir()

    assert lacking.returncode == errors.MODEL
    assert "lacks the package modelscope" in lacking.stderr
    assert run(profile, "plan", model, VLLM_USE_MODELSCOPE="True").returncode == errors.OK


def test_plan_reads_a_hub_id_from_the_cache_that_vllm_will_use(profile: Path, tmp_path: Path) -> None:
    repository = tmp_path / "home" / "hub" / "models--owner--model"
    write_model(repository / "snapshots" / "abc", elements=1 << 20)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    ran = run(profile, "plan", "owner/model", "--json", HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    missing = run(profile, "plan", "owner/other", "--json", HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")

    assert ran.returncode == errors.OK, ran.stderr
    assert "is not in" not in ran.stdout
    assert f"owner/other is not in {tmp_path}/home/hub" in missing.stderr


def test_without_a_name_the_only_model_is_planned_and_the_first_line_says_which(profile: Path, model: str) -> None:
    folder = str(Path(model).parent)
    ran = run(profile, "plan", "--json", DRYDOCK_MODELS=folder)
    plan = json.loads(ran.stdout)

    assert ran.stderr.splitlines()[0] == f"drydock: model {model}: the only model below {folder}"
    assert plan["argv"][plan["argv"].index("--model") + 1] == plan["model"] == model
    reason = next(reason for reason in plan["reasons"] if reason["setting"] == "--model")
    assert (reason["origin"], reason["because"]) == ("default", f"the only model below {folder}")


def test_a_draft_that_the_command_line_names_is_no_second_model(profile: Path, model: str) -> None:
    folder, small = str(Path(model).parent), str(write_model(Path(model).parent / "small"))
    drafts = json.dumps({"model": small, "num_speculative_tokens": 3})
    ran = run(profile, "plan", "--json", "--speculative-config", drafts, DRYDOCK_MODELS=folder)

    assert json.loads(ran.stdout)["model"] == model
    assert f"are 2 models: {model}; {small}" in run(profile, "plan", DRYDOCK_MODELS=folder).stderr


def test_the_model_of_the_row_comes_before_those_that_lie_there(profile: Path, model: str, tmp_path: Path) -> None:
    other = str(write_model(tmp_path / "models" / "other"))
    named = {"setting": "--model", "value": model, "origin": "project's variant", "because": "we serve it everywhere"}
    content = json.loads(profile.read_text())
    profile.write_text(json.dumps({**content, "settings": [*content["settings"], {**named, "source": "us"}]}))
    ran = run(profile, "plan", "--json", DRYDOCK_MODELS=str(tmp_path / "models"))

    assert ran.stderr.splitlines()[0] == f"drydock: model {model}: we serve it everywhere"
    assert json.loads(ran.stdout)["argv"].count(model) == 1
    assert json.loads(run(profile, "plan", other, "--json").stdout)["model"] == other


@pytest.mark.parametrize("words", [("--model",), ("--model", ""), ("--model=",)])
def test_a_name_that_is_empty_means_no_other_model(profile: Path, model: str, words: tuple[str, ...]) -> None:
    ran = run(profile, "plan", *words, DRYDOCK_MODELS=str(Path(model).parent))

    assert ran.returncode == errors.MODEL
    assert "--model has no value" in ran.stderr


def test_plan_and_check_take_a_recorded_host(profile: Path, model: str) -> None:
    recorded = str(PACKAGE.parent / "tests" / "hosts" / "cpu-cgroup2-limited")
    plan = run(profile, "plan", model, "--json", "--root", recorded)

    assert json.loads(plan.stdout)["env"]["OMP_NUM_THREADS"] == "2"
    assert run(profile, "check", "--json", "--root", recorded).returncode == errors.OK


def test_a_file_of_lengths_must_be_one(profile: Path, model: str, tmp_path: Path) -> None:
    recorded = str(PACKAGE.parent / "tests" / "hosts" / "cpu-cgroup2-limited")
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("812,150\n20,many\n")
    words = ("plan", model, "--root", recorded, "--workload")

    assert "line 2: 'many'" in run(profile, *words, str(lengths)).stderr
    assert run(profile, *words, str(tmp_path / "none")).returncode == errors.USAGE
    lengths.write_text("812,150\n")
    assert run(profile, *words, str(lengths)).returncode == errors.OK


def test_facts_are_recorded_and_read_back(profile: Path, tmp_path: Path) -> None:
    for recorded, file in (("host.json", "host.json"), ("host", "host/host.json")):
        ran = run(profile, "facts", "--record", str(tmp_path / recorded))

        assert (ran.returncode, ran.stderr) == (errors.OK, f"recorded {tmp_path / file}\n")
        assert json.loads(run(profile, "facts", "--root", str(tmp_path / recorded)).stdout)["failures"] == []


def test_a_model_that_is_not_here_and_that_no_hub_serves_stops_the_start_at_once(profile: Path, tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}

    planned = run(profile, "plan", "owner/other", **env)
    served = start(profile, "serve", "owner/other", **env)
    offline = start(profile, "serve", "owner/other", HF_HUB_OFFLINE="1", **env)

    assert planned.returncode == errors.MODEL
    assert "or plan with a config.json that you have: --model-config FILE" in planned.stderr
    assert served.returncode == offline.returncode == errors.MODEL
    assert "127.0.0.1:9" in served.stderr
    assert "HF_HUB_OFFLINE forbids" in offline.stderr
    assert "hint: unset HF_HUB_OFFLINE, or mount" in offline.stderr
    assert "Traceback" not in served.stderr + offline.stderr
    assert served.stdout == offline.stdout == ""


@pytest.fixture
def described(tmp_path: Path, model: str) -> Path:
    """Return a folder with a model's configuration and the index of its weights, and without these."""
    folder = tmp_path / "described"
    folder.mkdir()
    (folder / "config.json").write_bytes((Path(model) / "config.json").read_bytes())
    index = {"metadata": {"total_size": 5 << 30}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_plan_needs_no_weights_and_a_server_does(profile: Path, described: Path) -> None:
    planned = run(profile, "plan", str(described), "--json")
    served = start(profile, "serve", str(described))

    plan = json.loads(planned.stdout)
    assert plan["uses"][0]["weights"] == 5 << 30
    assert "PLAN-063" in {finding["id"] for finding in plan["findings"]}
    assert served.returncode == errors.MODEL
    assert "1 of 1 files of model.safetensors.index.json are missing" in served.stderr


def test_a_plan_reads_the_configuration_that_is_given(profile: Path, described: Path) -> None:
    folder = run(profile, "plan", "owner/other", "--model-config", str(described), "--json")
    file = run(profile, "plan", "owner/other", "--model-config", str(described / "config.json"), "--json")
    refused = start(profile, "serve", "owner/other", "--model-config", str(described))

    assert json.loads(folder.stdout)["uses"][0]["weights"] == 5 << 30
    assert 0 < json.loads(file.stdout)["uses"][0]["weights"] < 5 << 30  # counted from config.json
    assert "--model-config" not in json.loads(folder.stdout)["argv"]
    assert refused.returncode == errors.USAGE


def test_a_plan_outside_a_container_uses_known_configurations_and_this_machines_caches(
    profile: Path, described: Path, tmp_path: Path
) -> None:
    known_file = tmp_path / "known.json"
    body = {"config": json.loads((described / "config.json").read_text()), "parameters": 1 << 30, "source": "a page"}
    known_file.write_text(json.dumps({"owner/other": body}))
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "DRYDOCK_KNOWN_MODELS": str(known_file)}
    planned = json.loads(run(profile, "plan", "owner/other", "--json", **env).stdout)
    cached = tmp_path / "hub" / "models--owner--other" / "snapshots"
    cached.mkdir(parents=True)
    (cached / "main").symlink_to(described)
    here = json.loads(
        run(profile, "plan", "owner/other", "--json", DRYDOCK_HUB_CACHES=f"/no:{tmp_path}/hub", **env).stdout
    )

    (finding,) = (item for item in planned["findings"] if item["id"] == "PLAN-064")
    assert "from a page" in finding["text"]
    assert planned["uses"][0]["weights"] == 2 << 30
    assert here["uses"][0]["weights"] == 5 << 30
    assert start(profile, "serve", "owner/other", **env).returncode == errors.MODEL


@pytest.mark.parametrize(
    "words", ["--gpu-memory-utilization 5", "--cpu-offload-gb -3", "-tp 0", "--max-loras 0 --enable-lora"]
)
def test_a_number_out_of_its_range_stops_the_start_at_once(profile: Path, model: str, words: str) -> None:
    served = start(profile, "serve", model, *words.split())

    assert (served.returncode, served.stdout) == (errors.USAGE, "")
    assert served.stderr.startswith(f"drydock: {words.partition(' --enable')[0]}: ")
    assert "Traceback" not in served.stderr


def test_plan_and_check_write_a_page(profile: Path, model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"

    assert run(profile, "check", "--html", "-").stdout.startswith("<!doctype html>")
    planned = run(profile, "plan", model, "--html", str(page))

    assert page.read_text().startswith("<!doctype html>")
    assert "vllm.entrypoints" in planned.stdout
    assert run(profile, "plan", model, "--html", "/no/such/page").returncode == errors.USAGE


def test_plan_writes_a_page_of_a_model_that_does_not_fit(profile: Path, tmp_path: Path) -> None:
    recorded = str(PACKAGE.parent / "tests" / "hosts" / "cpu-cgroup2-limited")
    large = str(write_model(tmp_path / "large", elements=1 << 34))
    ran = run(profile, "plan", large, "--root", recorded, "--html", "-")

    assert ran.returncode == errors.DOES_NOT_FIT
    assert "<b>Does not fit</b>" in ran.stdout
    assert f"drydock: {large}: " in ran.stderr


def test_check_exits_3_on_fail_and_writes_junit(profile: Path, tmp_path: Path) -> None:
    failing = check(fact="processor.architecture", expected="pdp11", severity="FAIL")
    profile.write_text(json.dumps({**PROFILE, "checks": [failing]}))
    ran = run(profile, "check", "--json", "--junit", str(tmp_path / "checks.xml"))

    assert ran.returncode == errors.CHECK_FAILED
    assert json.loads(ran.stdout)[0]["remediation"] == "mend it"
    assert "<failure" in (tmp_path / "checks.xml").read_text()
    assert run(profile, "check", "--junit", "-").stdout.startswith("<?xml")


def test_a_file_that_an_option_asks_for_can_be_read_by_other_users_of_the_host(profile: Path, tmp_path: Path) -> None:
    file = tmp_path / "checks.xml"
    umask = os.umask(0o027)  # as with a cache
    try:
        run(profile, "check", "--junit", str(file))
    finally:
        os.umask(umask)
    assert file.stat().st_mode & 0o777 == READABLE


def test_strict_serve_starts_nothing_when_a_check_fails(profile: Path, model: str) -> None:
    failing = check(fact="processor.architecture", expected="pdp11", severity="FAIL")
    profile.write_text(json.dumps({**PROFILE, "checks": [failing], "python": "/bin/echo"}))
    ran = start(profile, "serve", model, "--strict", "--exec")

    assert (ran.returncode, ran.stdout) == (errors.CHECK_FAILED, "")
    assert "--strict" in ran.stderr


def test_serve_prints_its_reasons_then_becomes_vllm(profile: Path, model: str, tmp_path: Path) -> None:
    profile.write_text(json.dumps({**PROFILE, "python": "/bin/echo"}))
    ran = start(profile, "serve", model, "--exec", "--api-key", "sk-1", DRYDOCK_CACHE_DIR=str(tmp_path))

    assert ran.returncode == errors.OK, ran.stderr
    assert ran.stdout.startswith("-m vllm.entrypoints.openai.api_server")
    assert "sk-1" not in ran.stdout + ran.stderr  # /bin/echo prints the arguments
    assert "PLAN-090" in ran.stderr
    assert "[decision]" in ran.stderr


@pytest.mark.parametrize(
    "words",
    [("plan", "MODEL"), ("plan", "MODEL", "--json"), ("plan", "MODEL", "--html", "-"), ("check", "--json"), ("facts",),
     ("facts", "--record", "-"), ("cache", "list")],
)  # fmt: skip
def test_an_unknown_variables_value_is_in_no_output(
    profile: Path, model: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    variables = expect.profile_in("cpu")["variables"]
    profile.write_text(json.dumps({**json.loads(profile.read_text()), "variables": variables}))
    output_file = tmp_path / "written.json"
    argv = [{"MODEL": model, "-": str(output_file)}.get(word, word) for word in words]
    known_variables = {
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_API_KEY": VALUE,
        "HF_TOKEN": VALUE,
        "DRYDOCK_GROUP_SECRET": VALUE,
    }
    ran = run(
        profile, *argv, **known_variables, **dict.fromkeys(UNKNOWN, VALUE), HF_ENDPOINT=f"https://me:{VALUE}@h.example"
    )

    output = ran.stdout + ran.stderr + (output_file.read_text() if output_file.exists() else "")
    assert ran.returncode == errors.OK, output
    assert VALUE not in output
    assert words != ("plan", "MODEL") or "VLLM_LOGGING_LEVEL=DEBUG" in output.replace(" = ", "=")


def test_api_keys_are_read_from_a_file(profile: Path, model: str, tmp_path: Path) -> None:
    profile.write_text(json.dumps({**PROFILE, "python": "/usr/bin/env"}))
    (tmp_path / "key").write_text("sk-1\n\nsk-2\n")
    ran = run(profile, "plan", model, "--api-key-file", str(tmp_path / "key"))

    assert ran.returncode == errors.OK, ran.stderr
    assert "VLLM_API_KEY='<redacted>'" in ran.stdout
    assert "sk-" not in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("\n", "found no key"),
        ("a b", "has a space"),
        (b"\xff", "not ASCII"),
        (b"a\0b", "not printable"),
    ],
)
def test_a_file_without_keys_is_refused(
    profile: Path, model: str, tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    ran = run(profile, "plan", model, "--api-key-file", str(path))

    assert ran.returncode == errors.USAGE
    assert message in ran.stderr


@pytest.mark.parametrize("option", ["--config", "--api-key-file"])
@pytest.mark.parametrize("device", [True, False], ids=["zeros", "pipe"])
def test_a_file_of_the_command_line_is_a_regular_one(
    profile: Path, model: str, tmp_path: Path, option: str, device: bool
) -> None:
    path = Path("/dev/zero") if device else tmp_path / "pipe"
    if not device:
        os.mkfifo(path)
    ran = run(profile, "plan", model, option, str(path))

    assert ran.returncode == errors.USAGE
    assert "not a regular file" in ran.stderr


def test_a_defect_has_its_own_exit_code_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise KeyError("https://user:hunter2@example.org")

    monkeypatch.setattr(version_verb, "run_version", fail)
    assert main(("version",), {}) == errors.INTERNAL == 70
    stderr = capsys.readouterr().err
    assert "hunter2" not in stderr
    assert "Traceback" in stderr
    assert stderr.splitlines()[-1].startswith(
        "drydock: ended with exit code 70: a defect of drydock's entrypoint: KeyError"
    )


def test_a_device_is_written_and_not_replaced(profile: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    ran = run(profile, "check", "--junit", str(pipe))

    assert ran.returncode == errors.OK
    assert os.read(reader, 64).startswith(b"<?xml")
    assert pipe.is_fifo()
    os.close(reader)


def test_ctrl_c_is_no_defect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(version_verb, "run_version", interrupt)
    assert main(("version",), {}) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


def test_a_page_of_a_hostile_name_is_written(profile: Path, model: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    name = os.fsdecode(b"\xff") + "\u202egpj.exe<script>"
    ran = run(profile, "plan", model, "--served-model-name", name, "--html", str(page))

    assert ran.returncode == errors.OK, ran.stderr
    assert "\\udcff\\u202egpj.exe&lt;script&gt;" in page.read_text()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_stream_has_an_exit_code_of_the_table(profile: Path, tmp_path: Path, stream: str) -> None:
    command = [sys.executable, "-I", "-S", str(PACKAGE), "cache", "list"]
    env = {"DRYDOCK_PROFILE": str(profile), "DRYDOCK_CACHE_DIR": str(tmp_path)}
    (tmp_path / "compiled" / "plan-a").mkdir(parents=True)
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        result = subprocess.run(command, env=env, check=False, **{"stdout": subprocess.DEVNULL, stream: full})
    assert result.returncode in (errors.OK, errors.HOST)


@pytest.mark.parametrize("number", ["9" * 5000, "1e300", "nan", "\u00b2"])
@pytest.mark.parametrize("flag", ["--status-port", "--stall-seconds", "--drain-timeout", "--max-model-len"])
def test_a_number_that_no_clock_or_port_can_have_is_refused(profile: Path, model: str, flag: str, number: str) -> None:
    ran = run(profile, "plan", model, flag, number)

    assert ran.returncode == errors.USAGE, ran.stderr
    assert flag in ran.stderr


def test_a_misspelt_flag_is_refused_before_vllm_starts(profile: Path, model: str) -> None:
    (profile.parent / "vllm.json").write_text('{"flags": {"--model": "", "--max-model-len": "int"}}')
    ran = run(profile, "plan", model, "--max-modle-len", "9")

    assert ran.returncode == errors.USAGE
    assert "did you mean --max-model-len?" in ran.stderr


def test_anything_else_becomes_that_program(profile: Path) -> None:
    ran = start(profile, sys.executable, "-c", "import sys; print('hi'); sys.exit(7)")

    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "hi\n", "")


def sourced(profile: Path, *scripts: str, **env: str) -> None:
    """Record beside the profile what shell scripts export, with the program that an image's build runs."""
    folder = profile.parent / "scripts"
    folder.mkdir()
    for number, text in enumerate(scripts):
        script = folder / f"{number}.sh"
        script.write_text(text)
        command = [
            sys.executable,
            "-BS",
            str(ENVIRONMENT),
            "save",
            str(profile.parent / "environment.json"),
            str(script),
        ]
        subprocess.run(command, check=True, env={"PATH": os.environ["PATH"], **env})


ASCEND = (
    "export CANN=/usr/local/Ascend/ascend-toolkit/latest\nexport LD_LIBRARY_PATH=${CANN}/lib64:$LD_LIBRARY_PATH\n",
    "export ATB_HOME_PATH=${CANN%/ascend-toolkit*}/nnal/atb\n",
)
XPU = ('set -- "$@"; export ONEAPI_ROOT=/opt/intel/oneapi CCL_ROOT=/opt/intel/oneapi/ccl/2021.15\n',)


@pytest.mark.parametrize(
    ("scripts", "name", "value"),
    [
        (ASCEND, "LD_LIBRARY_PATH", "/usr/local/Ascend/ascend-toolkit/latest/lib64:/usr/lib"),
        (ASCEND, "ATB_HOME_PATH", "/usr/local/Ascend/nnal/atb"),
        (XPU, "CCL_ROOT", "/opt/intel/oneapi/ccl/2021.15"),
    ],
)
def test_a_program_gets_the_environment_of_the_vendors_scripts(
    profile: Path, scripts: tuple[str, ...], name: str, value: str
) -> None:
    sourced(profile, *scripts, LD_LIBRARY_PATH="/usr/lib")
    show = (sys.executable, "-c", f"import os; print(os.environ['{name}'])")

    assert start(profile, *show, LD_LIBRARY_PATH="/usr/lib").stdout == f"{value}\n"
    assert start(profile, *show, **{name: "/mine"}).stdout == "/mine\n"


def test_a_program_is_found_on_the_path_of_the_vendors_scripts(profile: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "omni_cli"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho started\n")
    program.chmod(0o755)
    sourced(profile, f"export PATH={program.parent}:$PATH\n")

    assert start(profile, "omni_cli").stdout == "started\n"


def test_an_unknown_verb_names_the_nearest_one(profile: Path) -> None:
    ran = run(profile, "srve")

    assert ran.returncode == errors.USAGE
    assert "did you mean serve?" in ran.stderr


def test_version_says_what_the_image_is(profile: Path) -> None:
    assert json.loads(run(profile, "version", "--json").stdout)["vllm"] == "0.32.0"


def test_a_missing_profile_or_root_is_named(profile: Path, tmp_path: Path) -> None:
    assert "No such file" in run(profile, "check", "--root", str(tmp_path / "none")).stderr
    profile.unlink()
    ran = run(profile, "check")

    assert ran.returncode == errors.USAGE
    assert str(profile) in ran.stderr


@pytest.mark.parametrize(
    "flags", [("-tp", "1G"), ("-dp", "1G"), ("-pp", "1M"), ("--nnodes", "1G"), ("--port", "70000")]
)
def test_absurd_numbers_are_refused_at_once(profile: Path, model: str, flags: tuple[str, ...]) -> None:
    result = run(profile, "plan", model, *flags)
    assert result.returncode == errors.USAGE, result.stderr
    assert "expected" in result.stderr


def test_an_empty_first_word_is_no_verb(profile: Path) -> None:
    result = run(profile, "")
    assert result.returncode == errors.USAGE
    assert "Traceback" not in result.stderr


def test_unwritable_standard_output_is_an_error(profile: Path) -> None:
    command = [sys.executable, "-I", "-S", str(PACKAGE), "version"]
    env = {"DRYDOCK_PROFILE": str(profile)}
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        result = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == errors.HOST
    assert "cannot write to standard output" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_signal_that_comes_while_planning_is_not_lost(profile: Path, model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(PACKAGE), "serve", "--model", model, "--status-port", "0"]
    env = make_environment(profile) | {"DRYDOCK_CACHE_DIR": str(tmp_path)}
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # inherited, as PID 1 starts out deaf
    try:
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in {errors.OK, errors.HOST}, stderr


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """Return a profile with one check that this host does not meet, and a fix for it."""
    fix = {
        "sysctl": {"vm.swappiness": 10},
        "write": {},
        "commands": [],
        "parameters": [],
        "firmware": "",
        "caution": "",
    }
    broken = check(id="HOST-004", fact="processor.architecture", expected="abacus", severity="FAIL", fix=fix)
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**PROFILE, "checks": [broken]}))
    return path


def test_the_fix_script_is_all_of_standard_output_and_changes_nothing(wrong: Path) -> None:
    before = Path("/proc/sys/vm/swappiness").read_text()
    ran = run(wrong, "check", "--fix-script")

    assert (ran.returncode, ran.stderr) == (errors.OK, "")
    assert ran.stdout.startswith("#!/bin/sh\n")
    assert '\nif begin HOST-004 FAIL; then\n    set_now 10 "$root"/proc/sys/vm/swappiness\n' in ran.stdout
    assert "    keep_sysctl vm.swappiness 10\n" in ran.stdout
    assert Path("/proc/sys/vm/swappiness").read_text() == before


def test_the_fix_is_data_in_json(wrong: Path) -> None:
    ran = run(wrong, "check", "--json")

    assert ran.returncode == errors.CHECK_FAILED
    assert json.loads(ran.stdout)[0]["fix"] == {"sysctl": {"vm.swappiness": 10}}


def test_check_wraps_and_colours_on_a_terminal_only(wrong: Path) -> None:
    command = [sys.executable, "-I", "-S", str(PACKAGE), "check"]
    env = {"DRYDOCK_PROFILE": str(wrong), "COLUMNS": "40"}
    (code, coloured), (_, plain) = (terminal.run(command, {**env, **more}) for more in ({}, {"NO_COLOR": "1"}))
    piped = start(wrong, "check", COLUMNS="40").stdout

    assert code == errors.CHECK_FAILED
    assert terminal.COLOURS.search(coloured)
    assert "\x1b" not in plain + piped
    assert terminal.lines(coloured) == terminal.lines(plain)
    assert max(map(len, terminal.lines(plain))) <= 40 < max(map(len, piped.splitlines()))
    assert plain.split() == piped.split()


def test_only_chooses_what_is_printed_not_what_is_written(wrong: Path, tmp_path: Path) -> None:
    ran = run(wrong, "check", "--only", "pass", "--json", "--junit", str(tmp_path / "checks.xml"))

    assert (ran.returncode, json.loads(ran.stdout)) == (errors.CHECK_FAILED, [])
    assert "HOST-004" in (tmp_path / "checks.xml").read_text()
    assert run(wrong, "check", "--only", "pass").stdout == "cpu-test: 1 FAIL\n"


@pytest.mark.parametrize(
    "argv",
    [("plan", "x", "--fix-script"), ("check", "--fix-script", "--json"), ("check", "--fix-script", "--junit", "-")],
)
def test_the_fix_script_comes_from_check_and_alone(wrong: Path, argv: tuple[str, ...]) -> None:
    ran = run(wrong, *argv)

    assert ran.returncode == errors.USAGE
    assert "cannot be used with" in ran.stderr


def test_the_digest_of_packages_covers_names_and_versions(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "torch-2.13.0.dist-info").mkdir(parents=True)
    python = str(tmp_path / "bin" / "python3")
    before = digest_packages(python)
    (packages / "vllm").mkdir()
    assert digest_packages(python) == before
    (packages / "vllm-0.32.0.dist-info").mkdir()
    assert digest_packages(python) not in ("", before)
    assert not digest_packages("/no/such/bin/python3")


EARLY = """
import os, runpy, signal, sys

class Early:
    def find_spec(self, name, *_):
        if name == "entrypoints.verbs.dispatch":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Early())
sys.argv = [sys.argv[1], *sys.argv[2:]]
sys.path.insert(0, sys.argv[0])
runpy.run_path(os.path.join(sys.argv[0], "__main__.py"), run_name="__main__")
"""
"""Runs the entrypoint, and sends it SIGTERM when it begins to import its command line."""


def test_sigterm_in_the_first_milliseconds_is_not_lost(profile: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", EARLY, str(PACKAGE), "serve", "/no/such/model"]
    env = {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(profile)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)

    assert ran.returncode == errors.MODEL, ran.stderr  # it went on as far as it could; -15 is a lost signal elsewhere


def test_a_verb_without_a_supervisor_ends_at_once(profile: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", EARLY, str(PACKAGE), "version"]
    env = {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(profile)}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)

    assert ran.returncode == -signal.SIGTERM
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("words", "code"), [((), errors.HOST), (("--vllm-accepts", "GCU-001"), errors.OK), (("--json",), errors.HOST)]
)
def test_a_plan_for_cards_without_kernels_is_no_success(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    recorded = json.loads((HOSTS / "enflame-s60-2x" / "host.json").read_text())
    host, named = tmp_path / "host.json", tmp_path / "profile.json"
    host.write_text(json.dumps(recorded).replace("S60", "I20"))
    named.write_text(json.dumps(expect.profile_of("enflame-s60-2x")))
    model = str(write_model(tmp_path / "model"))
    printed, messages = io.StringIO(), io.StringIO()

    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(messages):
        ended = main(["plan", model, "--root", str(host), *words], {"DRYDOCK_PROFILE": str(named)})

    assert ended == code
    assert "vllm" in printed.getvalue()
    assert ("--vllm-accepts GCU-001 plans for it" in messages.getvalue()) == (code != errors.OK)


@pytest.mark.parametrize(
    ("host", "row", "words", "code", "named"),
    [
        ("neuron-trn1.2xlarge", "trn1", (), errors.HOST, "NRN-012"),  # a driver that is too old
        ("cuda-v100-8x", "v100", (), errors.HOST, "CUDA-124"),
        ("cuda-v100-8x", "v100", ("--vllm-accepts", "CUDA-124"), errors.OK, ""),
        ("cuda-v100-8x", "cuda11.8-vllm0.6", (), errors.OK, ""),
        ("cuda-v100-8x", "cuda11.8-vllm0.6", ("--dtype", "bfloat16"), errors.REFUSED, "CUDA-031"),
    ],
)
def test_what_a_machine_or_vllm_refuses_is_no_success(
    host: str, row: str, words: tuple[str, ...], code: int, named: str, tmp_path: Path
) -> None:
    (tmp_path / "profile.json").write_text(json.dumps(expect.profile_in(row)))
    model, messages = str(write_model(tmp_path / "model")), io.StringIO()
    env = {"DRYDOCK_PROFILE": str(tmp_path / "profile.json")}

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(messages):
        ended = main(["plan", model, "--root", str(HOSTS / host), *words], env)

    assert ended == code
    assert not named or f"drydock: {named}: " in messages.getvalue()


@pytest.mark.parametrize(
    ("version", "help_flag"), [("0.8.5", "--help"), ("0.10.2", "--help"), ("0.32.0", "--help=all")]
)
def test_vllms_own_help_needs_no_model(tmp_path: Path, version: str, help_flag: str) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    changed = {**PROFILE, "python": str(python), "vllm": version}
    (tmp_path / "profile.json").write_text(json.dumps(changed))
    ran = start(tmp_path / "profile.json", "serve", "--help=all")
    assert (ran.returncode, ran.stdout) == (0, f"-m {PROFILE['module']} {help_flag}\n")


SECRETS = {
    "hf_abcdefghijklmnopqrstuvwx": "ERROR cannot read token=hf_abcdefghijklmnopqrstuvwx",
    "10.1.2.3": "connect to 10.1.2.3:29501 failed, and to fd00:12::5",
    "fd00:12::5": "boom at 127.0.0.1",
    "/home/alice": "no file /home/alice/models",
    "the weather": "INFO Received request cmpl-1: prompt: 'how is the weather', params: x",
    "GPU-1f2e3d4c-0000-1111-2222-333344445555": "device GPU-1f2e3d4c-0000-1111-2222-333344445555",
    "/data/home/carol": "no file /data/home/carol/models",
    r"C:\Users\dave": r"no file C:\Users\dave\models",
    "s3cr3t-flag": "docker run vllm/vllm-openai:v0.11.0 --api-key s3cr3t-flag",
    "s3cr3t-list": "non-default args: {'api_key': ['s3cr3t-list'], 'model': 'x'}",
    "s3cr3t-line": "password: s3cr3t-line",
    "eyJhbGciOiJIUzI1NiJ9": "cookie eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
}


def test_a_report_is_one_file_for_people_explain_and_root_without_secrets(
    explaining: Path, model: str, tmp_path: Path
) -> None:
    (explaining.parent / "vllm.json").unlink()  # this vLLM has every flag
    log = "\n".join((*SECRETS.values(), "## Host", "    {}", "\x1b]0;title\x07")).encode()
    command = [sys.executable, "-I", "-S", str(PACKAGE), "report", model, "--api-key", "sk-secret-key"]
    ran = subprocess.run(
        command, input=log, capture_output=True, timeout=60, env=make_environment(explaining), check=True
    )
    report = tmp_path / "report.md"
    report.write_bytes(ran.stdout)
    text = ran.stdout.decode()

    assert [secret for secret in (*SECRETS, "sk-secret-key", "\x1b") if secret in text] == []
    assert "    connect to address-1:29501 failed, and to address-2\n    boom at 127.0.0.1\n" in text
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == [
        *("Versions", "Findings", "Plan", "State", "Metrics", "Stacks", "Log", "Host")
    ]
    assert "| IP addresses, except loopback | `address-N` | 2 |\n" in text
    assert "| IP addresses, except loopback | `address-N` | 2 |\n" in ran.stderr.decode()
    assert model in text.partition("## Plan")[2].partition("## State")[0]
    explained = run(explaining, "explain", str(report))
    assert (explained.returncode, explained.stdout.count("It is broken.")) == (errors.OK, 1)
    facts = json.loads(run(explaining, "facts", "--root", str(report)).stdout)
    here = json.loads(run(explaining, "facts").stdout)
    assert (facts["processor"], facts["memory"]["total"]) == (here["processor"], here["memory"]["total"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("to 10.1.2.3.", "to address-1."),
        ("master_addr:10.1.2.3", "master_addr:address-1"),
        ("10.1.2.3-10.1.2.9", "address-1-address-2"),
        ("[::ffff:10.1.2.3]:80 is 10.1.2.3", "[address-1]:80 is address-1"),
        ("fe80::1%eth0, addr:2001:db8::1.", "address-1%eth0, addr:address-2."),
        *((line, line) for line in ("::ffff:127.0.0.1", "12:34:56.7", "libfoo-1.2.3.4.so", "a::b::c", "0000:3b:00.0")),
        *(
            (line, line)
            for line in ("KeyError: 'model'", "/cache/home/.triton", "eos_token_id: [1]", "--api-key-file f")
        ),
    ],
)
def test_a_report_removes_each_form_of_an_address_and_nothing_else(line: str, expected: str) -> None:
    assert Redaction(()).clean_text(line, is_log=True) == expected


@pytest.mark.parametrize("host", ["cuda-h100-8x", "habana-gaudi2-8x", "ascend-910b3-8x"])
def test_a_report_of_a_recorded_host_has_the_same_devices(profile: Path, host: str, tmp_path: Path) -> None:
    accelerator = host.partition("-")[0]
    profile.write_text(json.dumps({**PROFILE, "accelerator": accelerator, "checks": []}))
    recorded = str(HOSTS / host / "host.json")
    ran = start(profile, "report", "--root", recorded)
    report = tmp_path / "report.md"
    report.write_text(ran.stdout)
    before, after = (json.loads(run(profile, "facts", "--root", path).stdout) for path in (recorded, str(report)))

    kept = ("number", "name", "memory_total", "node", "architecture")
    assert before["devices"]
    assert [[device.get(key) for key in kept] for device in after["devices"]] == [
        [device.get(key) for key in kept] for device in before["devices"]
    ]
    assert after["failures"] == before["failures"]
