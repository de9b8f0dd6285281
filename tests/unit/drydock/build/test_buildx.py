"""How a build looks: progress on a terminal, BuildKit's log elsewhere, and the end of the log of a build that fails."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drydock.build import buildx
from drydock.build.build_progress import Log
from drydock.core.errors import BuildError, DiskFullError, RegistryError
from drydock.core.paths import ROOT
from drydock.engine import daemon
from drydock.engine.daemon import wait_for
from tests.support import terminal

DIGESTS = {"base": "sha256:a", "install": "sha256:b", "export": "sha256:c", "other": "sha256:d"}


def vertex(step: str, name: str, **fields: Any) -> str:
    return json.dumps({"vertexes": [{"digest": DIGESTS[step], "name": name, "started": "1", **fields}]})


def output(step: str, text: str) -> str:
    return json.dumps({"logs": [{"vertex": DIGESTS[step], "data": base64.b64encode(text.encode()).decode()}]})


def moved(step: str, current: int) -> str:
    return json.dumps({"statuses": [{"vertex": DIGESTS[step], "id": "transferring", "current": current}]})


INSTALL = "[foundation 2/3] RUN uv pip install"
BEGIN = [
    vertex("base", "[internal] load base", completed="2"),
    vertex("install", INSTALL),
    *(output("install", f"package {number}\n") for number in range(30)),
    moved("install", 3_000_000),
    moved("install", 5_000_000),
]
GOOD = [*BEGIN, vertex("install", INSTALL, completed="3"), vertex("export", "exporting to oci image format")]
BAD = [
    *BEGIN,
    vertex("other", "[builder] RUN make", error="context canceled"),
    vertex("install", INSTALL, error="process did not complete: exit code: 3"),
    "ERROR: failed to solve: exit code: 3",
]


def test_a_log_says_what_the_build_does_now_and_how_much_it_moved() -> None:
    log = Log()
    for line in BEGIN:
        log.read(line)
    assert (log.now, log.bytes, log.exporting) == (INSTALL, 5_000_000, False)
    assert log.lines[:3] == ["#1 [internal] load base", f"#2 {INSTALL}", "#2 package 0"]
    log.read(vertex("other", "[a 1/2] RUN --mount=type=bind,from=wheels --network=none uv --a=b pip"))
    assert log.now == "[a 1/2] RUN uv --a=b pip"
    log.read(GOOD[-1])
    assert log.exporting
    assert log.failing(5) == []


def test_the_failing_step_is_the_one_that_was_not_cancelled_by_another() -> None:
    log = Log()
    for line in BAD:
        log.read(line)
    assert log.failing(4) == [
        f"#2 {INSTALL}", "#2 package 28", "#2 package 29", "#2 ERROR: process did not complete: exit code: 3"
    ]  # fmt: skip
    assert log.lines[-1] == "ERROR: failed to solve: exit code: 3"


def test_what_is_no_event_is_kept_as_it_is() -> None:
    log = Log()
    for line in ("12", '"text"', "{", "WARN: a"):
        log.read(line)
    assert log.lines == ["12", '"text"', "{", "WARN: a"]


def test_what_a_program_writes_piece_by_piece_is_one_line() -> None:
    log = Log()
    for line in (
        vertex("install", INSTALL),
        output("install", "+ "),
        output("install", "cp a"),
        output("install", " b\nc"),
    ):
        log.read(line)
    assert log.lines == [f"#1 {INSTALL}", "#1 + cp a b"]
    log.read(vertex("install", INSTALL, completed="3"))
    assert log.lines[2:] == ["#1 c"]


def test_the_instructions_of_a_build_are_counted_with_those_that_were_cached() -> None:
    log = Log()
    log.read(vertex("install", "[foundation 1/2] RUN --mount=a --network=none uv", completed="2"))
    log.read(vertex("other", "[foundation 2/2] RUN cp", completed="2", cached=True))
    log.read(vertex("export", "[internal] load build context", completed="2"))
    assert log.done == {"foundation 1/2": False, "foundation 2/2": True}


FAKE = """#!{python}
import json, os, signal, sys, time
if sys.argv[1:] == ["buildx", "version"]:
    sys.exit(print("github.com/docker/buildx v0.29.1"))
open({called!r}, "a").write(" ".join(sys.argv[1:]) + "\\n" + sys.stdin.read())
def stop(*_):
    open({called!r}, "a").write("stopped\\n")
    os._exit(1)
signal.signal(signal.SIGTERM, stop)
raw = "--progress=rawjson" in sys.argv
for line in json.loads({lines!r}):
    print(line if raw or line[0] != "{{" else "#1 plain", file=sys.stderr, flush=True)
time.sleep({pause})
sys.exit({code})
"""
TASK = """
import sys
from drydock.build import buildx
from drydock.cli.verb import Verb
from drydock.model.shared_options import VerboseOption
from invoke.context import Context

@Verb
def build(_: VerboseOption):
    target = {"target": "foundation", "context": ".", "contexts": {}, "output": ["type=oci,dest=."]}
    buildx.run_bake({"target": {"cpu": target}})

build(Context(), verbose="--verbose" in sys.argv)
"""


@pytest.mark.parametrize(("version", "allows"), [("0.13.1", False), ("0.17.0", True), ("0.29.1", True), ("", True)])
def test_folders_are_allowed_where_buildx_knows_of_it(
    version: str, allows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 13 has buildx 0.13.1: `unknown flag: --allow`."""
    monkeypatch.setattr(daemon, "read_buildx_version", lambda: version)
    plan = {"target": {"cpu": {"context": "/src", "contexts": {}, "output": ["type=oci,dest=/out"]}}}
    assert ("--allow=fs=/src" in buildx._make_bake_command(plan, None, no_cache=False)) == allows


class Builds:
    """Runs a task that builds, with a docker that writes given lines."""

    def __init__(self, folder: Path) -> None:
        self.cache, self.called = folder / "cache", folder / "called"
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.env = {
            "PATH": f"{self.folder}:{os.environ['PATH']}", "DRYDOCK_CACHE": str(self.cache), "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
        }  # fmt: skip

    def command(self, lines: list[str], code: int = 0, pause: float = 0, *words: str) -> list[str]:
        values = {"python": sys.executable, "called": str(self.called), "lines": json.dumps(lines)}
        fake = self.folder / "docker"
        fake.write_text(FAKE.format(**values, code=code, pause=pause))
        fake.chmod(0o755)
        return [sys.executable, "-c", TASK, *words]


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    return Builds(tmp_path)


def test_on_a_terminal_a_build_is_a_line_and_its_export_another(builds: Builds) -> None:
    code, terminal_output = terminal.run(builds.command(GOOD), builds.env)
    built, exported = terminal.lines(terminal_output)

    assert code == 0
    assert built.split()[0] == "foundation"
    assert built.endswith("5.0 MB")
    assert exported.split()[0] == "export"
    command, _, plan = builds.called.read_text().partition("\n")
    assert command == "buildx bake --file - --progress=rawjson"
    assert json.loads(plan)["target"]["cpu"]["target"] == "foundation"
    assert not (builds.cache / "logs").exists()


def test_on_a_terminal_a_failing_build_shows_the_end_of_its_log_and_where_the_rest_is(builds: Builds) -> None:
    code, terminal_output = terminal.run(builds.command(BAD, 1), builds.env)
    screen_lines, log = terminal.lines(terminal_output), builds.cache / "logs" / "cpu.log"

    assert code == BuildError.code
    assert next(line for line in screen_lines if line.startswith("#2 package")) == "#2 package 12"
    assert "error: docker buildx bake: ERROR: failed to solve: exit code: 3" in screen_lines
    assert f"hint: the whole log is in {log}; --verbose prints it during the build" in screen_lines
    assert "#2 package 0\n" in log.read_text()


def test_with_verbose_the_log_is_printed_as_it_comes(builds: Builds) -> None:
    _, terminal_output = terminal.run(builds.command(GOOD, 0, 0, "--verbose"), builds.env)

    assert terminal.lines(terminal_output)[:-1] == ["#1 plain"] * len(GOOD)


def test_without_a_terminal_the_log_is_plain_lines(builds: Builds) -> None:
    env = {**os.environ, **builds.env}
    ran = subprocess.run(builds.command(BAD, 1), env=env, capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == BuildError.code
    assert ran.stderr.startswith("#1 plain\n")
    assert "\x1b" not in ran.stderr
    assert "\r" not in ran.stderr
    assert "hint: see the failing step's output above" in ran.stderr


def test_an_image_that_cannot_be_read_is_named_with_the_ways_to_give_it(builds: Builds) -> None:
    image = "docker.io/acme/base:1@sha256:" + "a" * 64
    dns_error = 'failed to do request: Head "https://docker.example/v2/": dial tcp: lookup docker.example: no such host'
    lines = [
        f"#3 [context base] load metadata for {image}",
        f"ERROR: failed to solve: failed to resolve source metadata for {image}: {dns_error}",
    ]
    code, terminal_output = terminal.run(builds.command(lines, 1), builds.env)
    screen = "\n".join(terminal.lines(terminal_output))

    assert code == RegistryError.code
    assert f"error: {image}: the engine cannot read this image: the name of the server is not known (DNS)" in screen
    assert "--context base=docker-image://IMAGE" in screen
    assert 'mirrors.yaml:\n  registries: {"docker.io": "HOST/PATH"}' in screen


@pytest.mark.parametrize(("words", "times"), [((), 1), (("--verbose",), 4)])
def test_without_a_terminal_the_cause_of_an_unreadable_image_is_there_once(
    words: tuple[str, ...], times: int, builds: Builds
) -> None:
    image = "docker.io/acme/base:1"
    error = f"failed to resolve source metadata for {image}: the proxy says no"
    metadata = f"[context base] load metadata for {image}"
    lines = [
        f"#3 {metadata}",
        f"#3 ERROR: {error}",
        "------",
        f" > {metadata}:",
        f"{error}:",
        "------",
        f"ERROR: {error}",
    ]
    command, env = builds.command(lines, 1, 0, *words), {**os.environ, **builds.env}
    ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == RegistryError.code
    assert ran.stderr.startswith(f"#3 {metadata}\n")
    assert ran.stderr.count("the proxy says no") == times


def test_lines_after_an_unreadable_image_are_there_if_the_build_fails_otherwise(builds: Builds) -> None:
    lines = ["#3 ERROR: failed to resolve source metadata for a/b:1: EOF", "#4 ERROR: no space left on device"]
    env = {**os.environ, **builds.env}
    ran = subprocess.run(builds.command(lines, 1), env=env, capture_output=True, text=True, check=False, timeout=60)

    assert ran.returncode == DiskFullError.code
    assert ran.stderr.startswith("\n".join(lines))


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        ("dial tcp 127.0.0.1:9: connect: connection refused", "the connection was refused"),
        ("tls: failed to verify certificate: x509: unknown authority", "the engine does not trust the server's certif"),
        ("docker.io/acme/base:1: not found", "the registry does not have it"),
        ("something else", "something else"),
    ],
)
def test_the_cause_is_in_plain_words_and_the_mirrors_key_is_the_registrys(
    message: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRYDOCK_MIRRORS", str(tmp_path / "mirrors.yaml"))
    (tmp_path / "mirrors.yaml").write_text('registries: {"docker.io": "127.0.0.1:9/hub"}\n')
    error = buildx._missing_image("127.0.0.1:9/hub/acme/base:1", message, "")
    assert f"cannot read this image: {meant}" in error.problems[0]
    assert 'registries: {"docker.io": "HOST/PATH"}' in error.hint


def test_a_registry_that_never_answers_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildx, "SILENCE", 0.3)
    program = (
        "import sys, time; print('#1 [context base] load metadata for a.example/b:1', file=sys.stderr, flush=True);"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        lines = list(buildx._read_progress(process))
    assert lines[-1].startswith("ERROR: failed to resolve source metadata for a.example/b:1: timeout")
    assert process.returncode == -signal.SIGTERM


def test_a_silent_step_that_runs_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buildx, "SILENCE", 0.3)
    lines = ("#1 [context base] load metadata for a.example/b:1", "#2 [foundation 1/3] RUN make")
    program = f"import sys, time; print({chr(10).join(lines)!r}, file=sys.stderr, flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert [line.rstrip() for line in buildx._read_progress(process)] == [*lines]
    assert process.returncode == 0


def test_a_full_disk_is_one_on_a_terminal_too(builds: Builds) -> None:
    code, _ = terminal.run(builds.command(["ERROR: write: no space left on device"], 1), builds.env)
    assert code == DiskFullError.code


def test_ctrl_c_stops_buildx_and_says_the_command_that_resumes(builds: Builds, tmp_path: Path) -> None:
    command = builds.command(BEGIN, 0, 60, "build", "--target", "a b")
    code, terminal_output = terminal.run(
        command, builds.env, awaited="uv pip", then=lambda process: process.send_signal(signal.SIGINT)
    )
    screen_lines = terminal.lines(terminal_output)

    assert code == 130
    assert screen_lines[-1] == "interrupted; to resume, run: ./inv build --target 'a b'"
    assert screen_lines[-2].split()[0] == "foundation"
    assert screen_lines[-2].endswith("stopped")
    assert terminal_output.rindex(terminal.CURSOR_SHOWN) > terminal_output.rindex(terminal.CURSOR_HIDDEN)
    assert builds.called.read_text().splitlines()[-1] == "stopped"
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "called"}


ROWS = """
import sys
from drydock.build import buildx
from drydock.core.console import show_step, write_output
from drydock.core.errors import DrydockError
from drydock.core.threads import start_daemon
from drydock.core.verb_options import VerbOptions
from drydock.cli.verb import Verb
from invoke.context import Context

def bake(row, builder):
    target = {"context": ".", "contexts": {}, "output": ["type=oci,dest=."]}
    with show_step(row) as step:
        buildx.run_row_bake({"target": {row: target}}, row, step, builder=builder, no_cache=True)

@Verb
def build(_: VerbOptions):
    with show_step("build"):
        futures = [start_daemon(lambda: bake("one", None)), start_daemon(lambda: bake("two", "far"))]
        try:
            for future in futures:
                try:
                    future.result()
                except DrydockError as error:
                    write_output(f"{type(error).__name__}\\n")
        except BaseException:
            buildx.stop_row_bakes()
            for future in futures:
                future.exception()
            raise

build(Context())
"""


def test_rows_bake_at_once_each_with_its_builder_and_name_their_lines(builds: Builds) -> None:
    builds.command([BEGIN[0], "ERROR: failed to solve: exit code: 3"], 1)
    env = {**os.environ, **builds.env}
    ran = subprocess.run([sys.executable, "-c", ROWS], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert ran.stdout.splitlines() == ["BuildError"] * 2, ran.stderr
    assert {"one: ERROR: failed to solve: exit code: 3", "two: ERROR: failed to solve: exit code: 3"} <= {
        *ran.stderr.splitlines()
    }
    words = {line for line in builds.called.read_text().splitlines() if line.startswith("buildx")}
    raw = "--no-cache --file - --progress=rawjson"
    assert words == {f"buildx bake {raw}", f"buildx bake --builder far {raw}"}
    assert "\x1b" not in ran.stderr


def interrupt(process: subprocess.Popen[bytes], call_log: Path) -> None:
    """Send SIGINT once both bakes run."""
    assert wait_for(lambda: call_log.is_file() and call_log.read_text().count("buildx bake") == 2, 30)
    process.send_signal(signal.SIGINT)


def test_ctrl_c_stops_the_bakes_of_all_rows(builds: Builds, tmp_path: Path) -> None:
    builds.command(BEGIN, 0, 60)
    code, terminal_output = terminal.run(
        [sys.executable, "-c", ROWS], builds.env, awaited="build",
        then=lambda process: interrupt(process, builds.called),
    )  # fmt: skip
    assert code == 130
    assert terminal.lines(terminal_output)[-1].startswith("interrupted; to resume, run: ")
    assert builds.called.read_text().splitlines().count("stopped") == 2
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "called"}
