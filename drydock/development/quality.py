"""Run the tests and linters, and lock the requirements of this repository. IO."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from drydock.ci import workflow
from drydock.config.matrix import read_matrix
from drydock.config.rows import MATRIX
from drydock.core.console import log
from drydock.core.errors import BuildError, InputError
from drydock.core.files import write_atomically
from drydock.core.project import Project
from drydock.development import changed_tests, continued_run, installed, other_pythons
from drydock.development.ordinary_user import ordinary_user
from drydock.inputs.indexes import read_indexes, uv_environment
from drydock.inputs.uv import uv_binary
from drydock.lock import kind_runs
from drydock.lock.code_lists import list_contradictions

KINDS = {
    "unit": "not golden and not fuzz and not engine and not machines and not pipelines",
    "golden": "golden",
    "fuzz": "fuzz",
    "engine": "engine and not packages and not cluster and not oracle",
    "stand-ins": "standins",
    "packages": "packages",
    "topology": "machines",
    "cluster": "cluster",
    "oracle": "oracle",
    "ci": "pipelines",
}
"""Kind of test → pytest's marker expression."""
USUAL = {"": "not engine and not machines and not pipelines", "engine": KINDS["engine"]}
"""What runs without --kind: all that needs no engine, then the engine's."""
USUAL_ELSEWHERE = f"{KINDS['unit']} and not slow"
"""What runs with another Python without --all."""
WITH_ENGINE = ("engine", "stand-ins", "packages", "topology", "cluster", "oracle", "ci")
ENGINE_WORKERS = 3
"""Workers for engine tests (tests/support/xdist_groups.py): several servers at a time are not for a small machine."""
ROUNDS_AT_NIGHT = 200
"""Rounds of 50 damaged inputs for each parser with --all (tests/support/damage.py): 10,000 inputs."""

PYTHON_FILES = ("bench", "drydock", "entrypoints", "templates", "tests", "tasks.py", "hatch_build.py", "inv")
GENERATED_FILES = "tests.evidence.generated_files"
"""The module that writes and checks generated files: one of the tests, whose helpers make most of them."""
LINTERS = {
    "ruff check": ("ruff", "check", *PYTHON_FILES),
    "ruff format": ("ruff", "format", "--check", "--quiet", *PYTHON_FILES),
    "mypy": ("mypy",),
    "codespell": ("codespell_lib",),
    "generate --check": (GENERATED_FILES, "--check"),
}
"""Name → arguments of `python -m`. The last one takes a minute."""
SCHEMAS = {"github": "vendor.github-workflows", "gitlab": "vendor.gitlab-ci"}
"""Schemas built into check-jsonschema: those that SchemaStore and GitLab publish."""
SCRIPTS = Path(sys.executable).parent
"""Folder of this environment's programs that `python -m` cannot run."""
IMPORT_LINTER = (str(SCRIPTS / "lint-imports"), "--no-cache", "--no-logo")
"""Checks the contracts in pyproject.toml: which folder may import which."""


def run_tests(
    root: Path, kind: str, *, every: bool = False, record: bool = False, wheel: bool = False, python: str = ""
) -> None:
    """Run the linters and the usual tests, or one kind of tests; with `every`, the slow ones too.

    With `wheel`, the tests run against this checkout's wheel, those that are about the checkout itself excepted. With
    `python`, they run with another Python. The usual tests end with some of the distribution's Python; with `every`,
    with all unit tests of it, and those of the engine as an ordinary user.

    With `record`, the results of engine tests, slow ones too, are written into images/*/record.json, and the run of a
    kind that runs only if named into tests/record.json; it continues one that failed at the same commit. Raises
    BuildError if a test failed.
    """
    _check_kind(kind)
    project = Project(root)
    recorded = record and kind in kind_runs.read_kinds(project)
    commit = kind_runs.require_commit(project) if recorded else ""
    if record and wheel:
        raise InputError("--record: records are of the checkout", hint="leave --installed out")
    if not (kind or wheel or python):
        run_linters(root)
    interpreter = other_pythons.interpreter_of(python) if python else Path(sys.executable)
    selected = {kind: KINDS[kind]} if kind else USUAL
    usual = ("" if every or record else " and not slow") + (" and not checkout" if wheel else "")
    earlier_report = continued_run.locate_earlier_report(kind, commit) if recorded else Path()
    passed_before = continued_run.list_passed_tests(earlier_report) if recorded else []
    if passed_before:
        log(f"{kind}: {len(passed_before)} tests passed at this commit before; the others run ({earlier_report})")
    with (
        installed.make_wheel_environment(root) if wheel else nullcontext((interpreter, root)) as (program, folder),
        tempfile.TemporaryDirectory() as reports,
    ):
        report, left_out = Path(reports, "junit.xml"), Path(reports, "passed")
        left_out.write_text("\n".join(passed_before), encoding="utf-8")
        failed = [
            marks
            for name, marks in selected.items()
            if not _ends_well(
                folder,
                (
                    str(program),
                    "-m",
                    "pytest",
                    "-m",
                    marks + usual,
                    *_make_pytest_options(name, every=every, record=record),
                    *((f"--junitxml={report}", f"--leave-out={left_out}") if recorded else ()),
                ),
                **({"PYTHONPATH": str(folder)} if wheel else {}),
            )
        ]
        if recorded and failed:
            continued_run.keep_report(report, earlier_report)
        elif recorded:
            continued_run.finish_report(report, earlier_report)
            kind_runs.record_run(project, kind, commit, report)
    if not (kind or wheel or python or record):
        failed += _fail_with_distribution_python(root, every=every)
    if failed:
        raise BuildError(f"tests failed: {', '.join(failed)}")
    if every and not (kind or wheel or python or record):
        run_as_ordinary_user(root, "engine")


def run_changed_tests(root: Path) -> None:
    """Run the tests that a change since main can break, without linters, engine and slow tests. Raises BuildError."""
    changed_files = changed_tests.list_changed_files(root)
    if not changed_files:
        log("no file differs from main: nothing to test")
        return
    selected = changed_tests.select_tests(root, changed_files)
    log(f"{len(changed_files)} changed files: {' '.join(selected)}")
    marks = f"{USUAL['']} and not slow"
    if not _run_module(root, "pytest", "-m", marks, *_make_pytest_options("", every=False), *selected):
        raise BuildError("tests of what changed failed")


def _check_kind(kind: str) -> None:
    if kind and kind not in KINDS:
        raise InputError(f"--kind: unknown kind {kind!r}", hint=f"known: {', '.join(KINDS)}")


def _fail_with_distribution_python(root: Path, *, every: bool) -> list[str]:
    """Run unit tests with the distribution's Python, where it is another; return what failed."""
    python = other_pythons.distribution_python()
    if python is None:
        return []
    log(f"unit tests with {python}")
    marks, folders = (KINDS["unit"], ()) if every else (USUAL_ELSEWHERE, other_pythons.DIFFERING)
    command = (
        str(other_pythons.interpreter_of(python)),
        "-m",
        "pytest",
        "-m",
        marks,
        *_make_pytest_options("unit", every=every),
    )
    return [] if _ends_well(root, (*command, *folders)) else [f"unit tests with {python}"]


def run_as_ordinary_user(root: Path, kind: str, *, every: bool = False) -> None:
    """Run tests of a kind as an ordinary user, in a copy of the checkout. Raises BuildError if one failed."""
    _check_kind(kind)
    if os.geteuid() != 0:
        log(f"as an ordinary user: skipped, as this user is one: `./inv test --kind {kind}` shows the same")
        return
    log(f"as an ordinary user: {kind}")
    marks = KINDS[kind] if every else f"({KINDS[kind]}) and not slow"
    with ordinary_user() as user:
        command = (str(user.python), "-m", "pytest", "-m", marks, *_make_pytest_options(kind, every=every))
        result = user.run(command, user.take_checkout(root), stdout=sys.stderr.fileno())
    if result.returncode:
        raise BuildError(f"tests failed as an ordinary user: {kind}")


def _make_pytest_options(kind: str, *, every: bool, record: bool = False) -> tuple[str, ...]:
    """Return pytest's options for a kind of tests, "" being all that need no engine."""
    cores = os.cpu_count() or 1
    if kind not in WITH_ENGINE:
        return ("-n", str(cores), *((f"--fuzz-rounds={ROUNDS_AT_NIGHT}",) if every and kind in ("", "fuzz") else ()))
    if record:
        return ("--record-proof",)  # one process collects all results
    return ("-n", str(min(cores, ENGINE_WORKERS)), "--dist=loadgroup") if kind in ("engine", "stand-ins") else ()


def run_linters(root: Path, *, quick: bool = False) -> None:
    """Run every linter; with `quick`, not the check of generated files. Raises BuildError naming those that failed."""
    commands = {name: command for name, command in LINTERS.items() if not (quick and GENERATED_FILES in command)}
    ran = {name: _run_module(root, *command) for name, command in commands.items()}
    ran["import-linter"] = _ends_well(root, IMPORT_LINTER)
    for name, command in {"hadolint": make_hadolint_command(root), "zizmor": make_zizmor_command(root)}.items():
        if command:
            ran[name] = _ends_well(root, command)
        else:
            log(f"{name}: skipped: not installed (available for x86_64 and aarch64 only)")
    for kind, path in workflow.PATHS.items():
        if (root / path).is_file():
            ran[f"schema of {kind}"] = _run_module(root, *schema_check(kind))
    if (root / MATRIX).is_file():
        rows = read_matrix(Project(root))
        contradictions = [text for row in rows for text in list_contradictions(Project(root), row)]
        for text in contradictions:
            log(text)
        ran["code for cards"] = not contradictions
    failed = [name for name, passed in ran.items() if not passed]
    if failed:
        raise BuildError(f"lint failed: {', '.join(failed)}")
    log(f"lint passed: {', '.join(ran)}")


def write_generated_files(root: Path, part: str = "", *, check: bool = False) -> None:
    """Write or check the generated files, or one part of them. Exits with the code of the error that was printed."""
    options = (*(("--only", part) if part else ()), *(("--check",) if check else ()))
    code = subprocess.run((sys.executable, "-m", GENERATED_FILES, *options), cwd=root, check=False).returncode
    if code:
        sys.exit(code)


def update_generated_files(root: Path) -> list[Path]:
    """Write the generated files, as a part of other work; their names are logged. Raises BuildError."""
    if not _run_module(root, GENERATED_FILES):
        raise BuildError("a generated file could not be written: see above", hint="run `./inv generate`")
    return []


def check_generated_files(root: Path) -> None:
    """Check the generated files, as `lint` does. Raises BuildError."""
    if not _run_module(root, *LINTERS["generate --check"]):
        raise BuildError("a generated file is not current: see above", hint="run `./inv generate`")


def schema_check(kind: str) -> tuple[str, ...]:
    """Return the command, as arguments of `python -m`, that compares a CI server's file with its schema."""
    return "check_jsonschema", "--builtin-schema", SCHEMAS[kind], workflow.PATHS[kind]


def check_links(root: Path) -> None:
    """Check the links of all pages. Raises BuildError."""
    if not _run_module(root, "pytest", "-q", "-p", "no:cacheprovider", "tests/contracts/test_links.py"):
        raise BuildError("a page has a link that leads nowhere: see above")


def make_hadolint_command(root: Path, scripts: Path = SCRIPTS) -> list[str]:
    """Return the command that lints every image's Dockerfile; empty if hadolint is missing or there is no image."""
    program = scripts / "hadolint"
    files = sorted(str(path.relative_to(root)) for path in root.glob("images/*/Dockerfile"))
    return [str(program), "--config", ".hadolint.yaml", *files] if program.is_file() and files else []


def make_zizmor_command(root: Path, scripts: Path = SCRIPTS) -> list[str]:
    """Return the command that audits GitHub's workflow, offline; empty if zizmor or the workflow is missing."""
    program, path = scripts / "zizmor", workflow.PATHS["github"]
    is_present = program.is_file() and (root / path).is_file()
    return [str(program), "--offline", "--quiet", "--no-progress", path] if is_present else []


REQUIREMENTS = {
    # an environment has its own pip already, which installs the list
    "requirements": ("pyproject.toml", "--all-extras", "--no-emit-package", "pip"),
    # after the list above, whose versions it takes: what was tested is what a project's CI installs
    "requirements-install": ("pyproject.toml", "--constraint", "requirements.txt"),
    "requirements-ansible": ("requirements-ansible.in",),
    "requirements-build": ("requirements-build.in",),
}
"""Locked list → what it is made from, and options of uv: the lists of .venv, of what an installed drydock needs
(drydock/ci/ci_requirements.py), of the environment that playbooks run in
(drydock/topology/playbook/environment.py), and of what builds a release (drydock/development/release_files.py)."""


def lock_requirements(root: Path, *, upgrade: bool) -> list[Path]:
    """Resolve requirements to requirements*.txt with hashes; return the files that changed.

    Without `upgrade`, pinned versions are kept if possible.
    """
    resolved_files = (
        (root / f"{name}.txt", _resolve_requirements(root, name, upgrade=upgrade)) for name in REQUIREMENTS
    )
    return [path for path, content in resolved_files if write_atomically(path, content)]


def _resolve_requirements(root: Path, name: str, *, upgrade: bool) -> bytes:
    """Return the pins of a locked list. Raises InputError."""
    source, *more = REQUIREMENTS[name]
    options = (
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--no-header",
        "--no-annotate",
        "--quiet",
    )
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, f"{name}.txt")
        constraints = [word for word in more if word.endswith(".txt")]
        for file in (source, *constraints, *(() if upgrade else (result.name,))):
            shutil.copy(root / file, folder)
        command = (str(uv_binary()), "pip", "compile", source, *more, "--output-file", result.name, *options)
        # an extra index may lack some files of a version, and their hashes would be missing
        environment = uv_environment(read_indexes()._replace(extra=(), find_links=()), os.environ)
        if subprocess.run(command, cwd=folder, env=environment, check=False, stdout=subprocess.DEVNULL).returncode:
            raise InputError(f"{source}: uv could not resolve it; see above")
        return result.read_bytes()


def _run_module(root: Path, module: str, *arguments: str) -> bool:
    """Run a module of this environment in the repository, its output on standard error."""
    return _ends_well(root, (sys.executable, "-m", module, *arguments))


def _ends_well(folder: Path, command: Sequence[str], **variables: str) -> bool:
    """Run a command in a folder, its output on standard error."""
    env = {**os.environ, **variables}
    return subprocess.run(command, cwd=folder, env=env, stdout=sys.stderr.fileno(), check=False).returncode == 0
