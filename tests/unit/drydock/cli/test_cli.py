"""The command line as one types it: help, wrong words, completion."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from drydock.cli import cli, version
from drydock.cli.verb import Verb
from drydock.cli.verb_table import COMMANDS
from drydock.config import renamed
from drydock.core.paths import ROOT
from drydock.core.verb_options import list_fields, read_help
from drydock.lock.proof import TIERS
from drydock.model.shared_options import JsonOption
from entrypoints.request import arguments
from tasks import namespace
from tests.support.command_line import run_in_process

pytestmark = pytest.mark.checkout


def started(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run what `./inv` becomes, as a process."""
    argv = [sys.executable, str(ROOT / "tasks.py"), *words]
    return subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


VERBS = {name: verb for members in COMMANDS.values() for name, verb in members.items()}


def test_the_overview_names_every_verb_once() -> None:
    shown = started().stdout
    assert shown == run_in_process("help").stdout == cli.format_overview(cli.Verbs(COMMANDS))
    listed = [line[2:19].strip() for line in shown.splitlines() if line.startswith("  ")]
    assert listed == [name for name in VERBS if not name.startswith("bench ")]


def test_each_file_of_a_verb_has_one_verb_that_the_table_names() -> None:
    files = {path.stem for path in Path(ROOT, "drydock/verbs").glob("*_verb.py")}
    assert files == {f"{name.replace(' ', '_')}_verb" for name in VERBS if name == "bench plot" or "bench " not in name}
    for name in files:
        module = import_module(f"drydock.verbs.{name}")
        assert len([value for value in vars(module).values() if isinstance(value, Verb)]) == 1, name


@pytest.mark.parametrize("without_bytecode", [False, True])
def test_a_verb_keeps_the_bytecode_of_what_it_imports(
    monkeypatch: pytest.MonkeyPatch, *, without_bytecode: bool
) -> None:
    """Invoke turns it off for what a verb imports, which would be compiled again by each command."""
    values: list[bool] = []

    @Verb
    def note_setting(_: JsonOption) -> None:
        values.append(sys.dont_write_bytecode)

    monkeypatch.setattr(sys, "dont_write_bytecode", without_bytecode)
    cli.run_command_line({"Test": {"note": note_setting}}, ["note"])
    assert values == [without_bytecode]


def test_every_option_of_every_verb_has_a_help() -> None:
    texts = {name: read_help(verb.record) for name, verb in VERBS.items()}
    assert len(texts) > 50
    assert [
        f"{name} {field}" for name, verb_texts in texts.items() for field, text in verb_texts.items() if not text
    ] == []


def test_the_tiers_of_matrix_are_those_of_proofs() -> None:
    assert list_fields(VERBS["matrix"].record)["proof"].choices == TIERS


@pytest.mark.parametrize(
    ("words", "warning", "error"),
    [
        ("init", "`init` is now `project init`", "project init requires --folder"),
        ("diff a", "`diff` is now `image diff`", "image diff requires --new"),
        (
            "verify --registry-only --reference a/b --key k --nope",
            "`verify --reference` is now `image verify`",
            "--nope",
        ),
        (
            "verify --reference=a/b --key k --nope",
            "image verify: --key is now --verify-key",
            "image verify: unknown option",
        ),
        ("lock --outdated --nope", "`lock --outdated` is now `outdated`", "outdated: unknown option --nope"),
        ("lock --advisories --nope", "`lock --advisories` is now `audit`", "audit: unknown option --nope"),
        ("bundle --target cpu --sign k", "bundle create: --sign is now --sign-key", "bundle create requires --output"),
        ("model nonsense", "`model` is now `model demo`", "unknown model 'nonsense', expected smollm2"),
        ("size --length 5 --hosts x --nope", "size: --length is now --max-model-len", "size: unknown option --nope"),
        (
            "run --target cpu --format k8s --nope",
            "run: --format k8s is now --format kubernetes",
            "unknown option --nope",
        ),
        ("verify --print-policy kyverno --reference a/b", "is now `policy`", "policy requires --verify-key"),
    ],
)
def test_an_old_name_warns_and_does_the_same(words: str, warning: str, error: str) -> None:
    ran = run_in_process(*words.split())
    assert warning in ran.stderr
    assert error in ran.stderr.partition("error: ")[2]


def test_every_old_name_leads_to_one_that_exists() -> None:
    assert {old.new for old in renamed.VERBS} <= VERBS.keys()
    options = {
        name: {f"--{field.option}" for field in list_fields(verb.record).values()} for name, verb in VERBS.items()
    }
    assert [old for old in renamed.OPTIONS if old.new and old.new not in options[old.where]] == []


@pytest.mark.parametrize("words", ["build --help", "build -h", "help build", "-h build", "--help build",
                                   "build --target cpu --help"])  # fmt: skip
def test_help_is_found_wherever_one_asks_for_it(words: str) -> None:
    result = run_in_process(*words.split())

    assert result.returncode == 0
    assert result.stdout.startswith("Usage: ./inv build --target TARGET [OPTIONS]")
    assert "--offline" in result.stdout


def test_help_of_a_task_below_another_and_of_one_without_options() -> None:
    assert run_in_process("lock", "diff", "--help").stdout.startswith("Usage: ./inv lock diff OLD NEW [OPTIONS]\n")
    assert run_in_process("lock", "--help").stdout.startswith("Usage: ./inv lock [OPTIONS]")
    assert run_in_process("lint", "--help").stdout.startswith("Usage: ./inv lint")


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("biuld", "unknown task 'biuld'", "did you mean 'build'?"),
        ("build --taget cpu", "build: unknown option --taget", "did you mean '--target'?"),
        ("build", "build requires --target", "./inv matrix lists the targets"),
        ("bake --target cpu --target matrix", "--target is given twice", "write --target VALUE once"),
        ("bake --target=cpu --target matrix", "--target is given twice", "write --target VALUE once"),
        ("build --target cpu,", "--target cpu,: a name between commas is empty", "write --target A,B"),
        ("build cpu --all-locked", "--target and --all-locked exclude each other", "leave out --all-locked"),
        ("build --all-locked --changed-since=x", "--all-locked and --changed-since exclude", "leave out --changed-s"),
        ("build cpu,tpu --supplied /x", "--supplied: names the files of one variant", "build that one by itself"),
        ("build --changed-since=--output=/x", "--changed-since --output=/x: git rev-parse", "name a commit, a tag"),
        ("build cpu gaud", "unknown target 'gaud'", "gaudi2, gaudi2e, gaudi3"),
        ("build --target", "--target requires a value", "--target VALUE"),
        ("build --target gaud", "unknown target 'gaud'", "gaudi2, gaudi2e, gaudi3"),
        ("facts --model x", "unknown task 'facts'", "./inv entrypoint --target ROW -- facts"),
        ("run --target cpu --format kubernets", "run: --format kubernets: unknown value", "did you mean 'kubernetes'?"),
        ("serve x", "unknown task 'serve'", "./inv run --target ROW --model MODEL"),
        (
            "entrypoint --target cpu plan -q",
            "'plan' is a verb of the image",
            "./inv entrypoint --target cpu -- plan -q",
        ),
        ("run --target cpu check", "'check' is a verb of the image", "write ./inv run --target cpu -- check"),
        ("run --target cpu --dtype half", "run: unknown option --dtype", "options of vLLM and of its image follow --"),
        ("run --target cpu --detahc", "run: unknown option --detahc", "did you mean '--detach'?"),
        ("run --modle x", "run: unknown option --modle", "did you mean '--model'? ./inv run --help lists the options"),
        ("bundel create", "unknown task 'bundel'", "did you mean 'bundle'? ./inv lists the tasks"),
        ("topology pln", "unknown task 'topology pln'", "did you mean 'topology plan'?"),
        ("logs", "unknown task 'logs'", "docker logs --follow NAME"),
        ("xyzzy", "unknown task 'xyzzy'", "none is like it; ./inv lists the tasks"),
        ("matrix --porof packages", "matrix: unknown option --porof", "did you mean '--proof'?"),
        ("build -t cpu", "build: unknown option -t", "./inv build --help"),
        ("lock diff cpu", "lock diff requires --new", "./inv lock diff --help"),
        ("topology render p.json", "topology render requires --format and --output", "./inv topology render --help"),
    ],
)
def test_a_wrong_word_exits_with_2_and_a_hint(words: str, error: str, hint: str) -> None:
    ran = run_in_process(*words.split())

    assert ran.returncode == 2
    assert ran.stdout == ""
    assert error in ran.stderr
    assert hint in ran.stderr.partition("hint: ")[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("size org/model --requests x", "a whole number"),
        ("size org/model --requests 0", "a whole number, at least 1"),
        ("image verify registry.example/x --unsigned --max-age 0", "a whole number, at least 1"),
        ("image verify registry.example/x --unsigned --max-age -1", "a whole number, at least 1"),
        ("publish --target cpu --registry registry.example/x --expires 0", "a whole number, at least 1"),
        ("publish --target cpu --registry registry.example/x --expires 36501", "a number of days, at most 36500"),
    ],
)
def test_a_number_that_cannot_be_names_its_option(words: str, expected: str) -> None:
    """A 0 that a script computes must not lift the limit that it means to set."""
    ran = run_in_process(*words.split())

    assert (ran.returncode, ran.stderr) == (2, f"error: {' '.join(words.split()[-2:])}: expected {expected}\n")


def test_an_option_that_has_no_effect_any_more_warns_and_the_task_runs() -> None:
    result = run_in_process("build", "--allow-unlocked", "--target", "nonsense")

    warning, error = result.stderr.splitlines()[:2]
    assert warning.startswith("warning: build: --allow-unlocked has no effect any more: build pins")
    assert error == "error: --target: unknown target 'nonsense'"


def test_a_word_that_is_no_text_exits_with_2() -> None:
    ran = run_in_process("topology", "plan", os.fsdecode(b"a\xff.yaml"))

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: 'a\\udcff.yaml' is not UTF-8\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["HOST-010"], "GiB of memory are available"),
        (["137"], "exit code 137"),
        (["--target", "cpu", "RuntimeError: can't start new thread"], "can't start new thread"),
        (["- RuntimeError: can't start new thread", "--target=cpu"], "can't start new thread"),
        (["RuntimeError:", "can't", "start", "new", "thread", "lock", "diff"], "can't start new thread lock diff"),
        (["--json", "--", "HOST-010"], "unknown option --json"),
        (["--", "HOST-010"], "GiB of memory are available"),
    ],
)
def test_explain_takes_every_word_that_follows(words: list[str], text: str) -> None:
    ran = started("explain", *words)

    assert text in ran.stdout + ran.stderr


def test_several_tasks_run_in_one_line_and_targets_are_words_of_matrix() -> None:
    result = run_in_process("matrix", "gaudi2", "rocm7.0", "--json", "lock", "--target", "cpu", "--check")

    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["variants"]
    assert [row["id"] for row in rows] == ["habana1.22-fork0.9", "rocm7.0-vllm0.18"]


def test_it_runs_from_any_folder(tmp_path: Path) -> None:
    assert run_in_process("lock", "--check", "--target", "cpu", cwd=tmp_path).returncode == 0


def test_words_after_dashes_are_not_read() -> None:
    ran = run_in_process("run", "--target", "cpu", "--model", "/none", "--print", "--", "--help", "--no-such-flag")

    assert ran.returncode == 0, ran.stderr
    assert "--help --no-such-flag" in ran.stdout


def test_the_short_options_are_those_for_help_and_for_verbose() -> None:
    assert list(cli._check_words(["build", "--target", "cpu", "-v"], cli.Verbs(COMMANDS)))[-1] == "--verbose"
    refused = run_in_process("matrix", "-v")
    assert refused.returncode == 2
    assert "matrix: unknown option --verbose" in refused.stderr


def test_no_task_has_a_short_option_of_its_own() -> None:
    flags = [flag for context in namespace.to_contexts() for flag in context.flags]

    assert [flag for flag in flags if not flag.startswith("--")] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("./inv bui", {"build"}),
        ("./inv build --tar", {"--target"}),
        ("./inv build --target gau", {"gaudi2", "gaudi2e", "gaudi3"}),
        ("./inv build --target cpu,gau", {"cpu,gaudi2", "cpu,gaudi2e", "cpu,gaudi3"}),
        ("./inv build cpu gau", {"gaudi2", "gaudi2e", "gaudi3"}),
        ("./inv matrix habana1.2", set()),
        ("./inv lock diff --js", {"--json"}),
        ("./inv topology re", {"render"}),
        ("./inv help bui", {"build"}),
        ("./inv matrix --proof stand", {"stand-in"}),
        ("./inv topology render --format kub", {"kubernetes"}),
    ],
)
def test_tasks_options_and_targets_are_completed(line: str, expected: set[str]) -> None:
    _, *words = line.split()

    completed = set(run_in_process("complete", *words).stdout.split())

    assert completed
    assert all(word.startswith(words[-1]) for word in completed)
    assert expected <= completed


@pytest.mark.parametrize("line", ["./inv build --target cpu,gau", "./inv topology re"])
def test_bash_completes_a_line(line: str) -> None:
    _, *words = line.split()
    script = (
        f"cd {ROOT}; {cli.COMPLETIONS['bash']}\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _drydock ./inv '{words[-1]}'\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert result.stdout
    assert result.stdout == run_in_process("complete", *words).stdout


def test_a_group_lists_its_tasks_and_the_version_is_told() -> None:
    listed = run_in_process("topology")
    assert listed.returncode == 0
    assert listed.stdout == run_in_process("help", "topology").stdout
    assert {line.split()[0] for line in listed.stdout.splitlines()[2:]} == {
        name.partition(".")[2] for name in namespace.task_names if name.startswith("topology.")
    }
    assert run_in_process("--version").stdout.startswith("drydock ")


def test_an_unknown_shell_names_the_known_ones() -> None:
    assert "bash, zsh, fish" in run_in_process("completion", "tcsh").stdout


def test_a_table_is_as_wide_as_the_terminal() -> None:
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": "80"}
    subprocess.run([sys.executable, str(ROOT / "tasks.py"), "matrix", "cpu"], stdout=follower, env=env, check=True)
    os.close(follower)
    screen = os.read(leader, 100_000).decode()
    os.close(leader)

    assert "cpu-vllm0.32" in screen
    assert max(map(len, screen.splitlines())) <= 80


# --- a project ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--project", "{}"], ["--project={}"]])
def test_a_project_is_named_before_the_task(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: acme\n")
    (tmp_path / "matrix.yaml").write_text("variants: {ours: {inherits: drydock/cpu-vllm0.32}}\n")
    before = [word.format(tmp_path) for word in words]
    result = run_in_process(*before, "matrix", "ours", "--json")
    assert [row["id"] for row in json.loads(result.stdout)["variants"]] == ["ours"], result.stderr
    assert run_in_process("matrix", "ours", "--json", cwd=tmp_path).stdout == result.stdout
    assert run_in_process(*before, "--version").stdout == run_in_process("--version").stdout
    assert "ours" in run_in_process(*before, "complete", "build", "--target", "").stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("--project", "--project requires a value", "write --project DIR"),
        ("--project= matrix", "--project requires a value", "write --project DIR"),
        ("--project /nowhere matrix", "/nowhere: found no drydock.yaml", "--project or DRYDOCK_PROJECT"),
        ("matrix --project /x", "--project comes before the task", "write ./inv --project DIR matrix"),
    ],
)
def test_a_project_that_is_not_named_well_exits_with_2(words: str, error: str, hint: str) -> None:
    ran = run_in_process(*words.split())
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"error: {error}" in ran.stderr
    assert hint in ran.stderr.partition("hint: ")[2]


def test_a_task_that_requires_a_target_takes_the_projects_default(tmp_path: Path) -> None:
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: acme\ndefaults: {target: nonsense}\n")
    for words, target in (
        (("bake",), "nonsense"),
        (("bake", "--target", "other"), "other"),
        (("bake", "third"), "third"),
        (("build",), "nonsense"),
        (("build", "--json"), "nonsense"),
        (("build", "third"), "third"),
    ):
        result = run_in_process("--project", str(tmp_path), *words)
        assert (result.returncode, f"unknown target '{target}'" in result.stderr) == (2, True), result.stderr
    assert "--target" in run_in_process("bake").stderr
    chosen = run_in_process("--project", str(tmp_path), "build", "--changed-since", "v0")
    assert "--changed-since v0: git rev-parse" in chosen.stderr


PLANTED = {
    "entrypoint --target cpu -- version": "entrypoints/__main__.py",
    "run --target auto --model Qwen/Qwen3-0.6B --print": "entrypoints/__main__.py",
    "render --check --target cpu": "templates/base.Dockerfile.j2",
}
"""Command → a file of a project that it runs as code."""


@pytest.mark.parametrize("words", PLANTED)
def test_what_another_user_planted_in_a_folder_above_does_not_run(words: str, tmp_path: Path) -> None:
    """As git since CVE-2022-24765: whoever can write to the folder would run code as whoever types a command in it."""
    ran = tmp_path / "ran"
    planted = tmp_path / "shared" / PLANTED[words]
    planted.parent.mkdir(parents=True)
    if planted.suffix == ".py":
        planted.write_text(f"open({str(ran)!r}, 'w')\n")
    else:
        touch = f'{{{{ cycler.__init__.__globals__.os.system("touch {ran}") }}}}\n'
        planted.write_text((ROOT / PLANTED[words]).read_text() + touch)
    (tmp_path / "shared" / "drydock.yaml").write_text("schema: 1\nname: planted\nrows: all\n")
    below = tmp_path / "shared" / "mine"
    below.mkdir()
    (tmp_path / "shared").chmod(0o1777)

    refused = run_in_process(*words.split(), cwd=below)
    assert not ran.exists()
    assert refused.returncode == 2
    assert f"{tmp_path}/shared: every user can write to it" in refused.stderr
    assert f"--project {tmp_path}/shared" in refused.stderr
    assert "Traceback" not in refused.stderr

    started("--project", str(tmp_path / "shared"), *words.split(), cwd=below)
    assert ran.exists()  # it does run if it is named, so this test can fail


def test_a_project_above_is_named_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: acme\nrows: all\n")
    (tmp_path / "deep").mkdir()
    assert run_in_process("matrix", "cpu", cwd=tmp_path / "deep").stderr == f"project: {tmp_path}\n"
    assert run_in_process("matrix", "cpu", cwd=tmp_path).stderr == ""
    assert run_in_process("--project", str(tmp_path), "matrix", "cpu", cwd=ROOT).stderr == f"project: {tmp_path}\n"
    assert run_in_process("complete", "build", "--target", "cpu", cwd=tmp_path / "deep").stderr == ""


def test_completion_in_a_project_of_others_is_silent(tmp_path: Path) -> None:
    (tmp_path / "drydock.yaml").write_text("schema: 1\nname: acme\nrows: all\n")
    tmp_path.chmod(0o777)
    result = run_in_process("complete", "build", "--target", "cp", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("text", ["schema: [", "schema: 9\n", "name: \\xff\n"])
def test_completion_in_a_project_that_cannot_be_read_prints_no_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "drydock.yaml").write_text(text)

    targets = run_in_process("complete", "build", "--target", "", cwd=tmp_path)
    options = run_in_process("complete", "build", "--targ", cwd=tmp_path)

    assert (targets.returncode, targets.stderr, targets.stdout) == (0, "", "auto\n")
    assert (options.stderr, options.stdout) == ("", "--target\n")


@pytest.mark.parametrize("words", [["complete", "\udcff"], ["--project", "/nowhere", "complete", ""]])
def test_completion_of_a_line_that_is_wrong_prints_nothing(words: list[str]) -> None:
    ran = run_in_process(*words)

    assert (ran.stdout, ran.stderr) == ("", "")


def test_options_of_docker_that_people_write_are_the_tasks_own() -> None:
    printed = run_in_process("run", "--target", "cpu", "-it", "--rm", "--model", "Qwen/Qwen3-8B", "--print")
    detached = run_in_process("run", "-d", "--target", "cpu", "--model", "Qwen/Qwen3-8B", "--print")

    assert printed.returncode == 0
    assert "  --detach \\\n" in detached.stdout


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (["build", "--target", "cpu", "--secret", "id=a"], "passwords belong into pip's configuration or ~/.netrc"),
        (["build", "-t", "acme:1", "."], "`./inv publish` names what it pushes"),
        (["build", "--target", "cpu", "--lockd"], "did you mean '--locked'?"),
        (["publish", "--target", "cpu", "--registry", "a.example", "--registry", "b.example"], "a line for each value"),
    ],
)
def test_an_option_of_docker_is_answered_with_what_drydock_has(line: list[str], hint: str) -> None:
    result = run_in_process(*line)
    assert result.returncode == 2
    assert hint in result.stderr
    assert "--insecure" not in result.stderr


def test_the_help_of_a_verb_has_what_it_takes_by_place_and_the_options_of_its_image() -> None:
    usages = {
        name: run_in_process(*name.split(), "--help").stdout for name in ("adopt", "topology plan", "plan", "size")
    }
    assert usages["adopt"].startswith("Usage: ./inv adopt IMAGE [TO] [OPTIONS]\n")
    assert usages["topology plan"].startswith("Usage: ./inv topology plan FILE [OPTIONS]\n")
    assert usages["size"].startswith("Usage: ./inv size MODEL [OPTIONS] [-- OPTIONS OF THE IMAGE]\n")
    for word in ("--html FILE", "--max-model-len", "--optimize", "./inv entrypoint --target TARGET -- --help"):
        assert word in usages["plan"]
    own = {word for option, text in arguments.FLAGS.items() for word in (f"{option} {text.value}".strip(),)}
    of_vllm = {"--max-model-len", "--tensor-parallel-size", "--max-num-seqs", "--gpu-memory-utilization"}
    of_vllm |= {"--quantization", "--kv-cache-dtype"}
    named = {*cli.MOST_USED, *cli._OF_PLAN}
    assert {option for option in named if option not in own} == {o for o in named if o.split()[0] in of_vllm}


@pytest.mark.parametrize("word", cli.VERSION)
def test_the_version_is_told_by_each_of_its_names(word: str) -> None:
    assert run_in_process(word).stdout == version.format_version()


def test_no_verb_is_read_with_the_libraries_of_the_matrix() -> None:
    # Help and completion read a verb's options only: these libraries take longer than the parser.
    code = (
        "import importlib, pkgutil, sys, drydock.verbs as verbs\n"
        "for module in pkgutil.iter_modules(verbs.__path__):\n"
        "    importlib.import_module(f'drydock.verbs.{module.name}')\n"
        "from drydock.cli import cli\n"
        "print(sorted({'pydantic', 'jinja2', 'docker'} & {*sys.modules}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
