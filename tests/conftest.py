"""Counts tests by kind at the end of a run, and with --record-proof commits what they showed of each image.

Kinds: unit, golden (compares with a committed file), fuzz (hundreds of cases a parser), engine (needs Docker), packages
(gigabytes of real ones), machines (several servers; faults), cluster (a real Kubernetes).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import hypothesis
import pytest

from drydock.build import build
from drydock.build.job import prepare
from drydock.config.matrix import read_matrix
from drydock.config.project import DRYDOCK
from drydock.core.console import log
from drydock.engine import daemon as docker_engine
from drydock.lock import proof
from drydock.repo import docs
from tests.support import damage

os.environ["LC_ALL"] = "C.UTF-8"
"""Findings in English, whatever the language of who runs the tests."""

KINDS = ("unit", "golden", "fuzz", "packages", "machines", "cluster", "pipelines", "engine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    tests = [report for report in reports if isinstance(report, pytest.TestReport)]
    terminalreporter.write_sep("=", ", ".join(count(kind, tests) for kind in KINDS))


def count(kind: str, reports: Iterable[pytest.TestReport]) -> str:
    """Say how many tests of a kind ran, how they ended, and how long they and their fixtures took."""
    mine = [report for report in reports if kind_of(report.keywords) == kind]
    ran = sum(report.when == "call" for report in mine)
    failed = len({report.nodeid for report in mine if report.failed})
    return f"{ran} {kind} ({failed} failed, {sum(report.duration for report in mine):.1f} s)"


def kind_of(keywords: Mapping[str, object]) -> str:
    """Return a test's kind by its markers."""
    return next((kind for kind in KINDS[1:] if kind in keywords), "unit")


STARTED = pytest.StashKey[bool]()
"""Whether this run, or one of its workers, started the engine."""


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> docker_engine.Engine:
    """Give a usable engine; it is stopped at the end of the run that started it."""
    found = docker_engine.ensure()
    request.config.stash[STARTED] = found.started
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop an engine that this run started. A worker leaves that to the run, because others may still need it."""
    started = session.config.stash.get(STARTED, False)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["engine"] = started
    elif started:
        docker_engine.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Note whether a worker started the engine."""
    config: pytest.Config = node.config
    config.stash[STARTED] = config.stash.get(STARTED, False) or getattr(node, "workeroutput", {}).get("engine", False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test with containers the engine, whether it asks for it or not."""
    for item in items:
        if {"engine", "machines"} & {*item.keywords} and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "engine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run groups of engine tests side by side."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from tests.support.groups import ByGroup  # noqa: PLC0415 - of a plugin that a run without workers does not need

    return ByGroup(config, log)


# --- proofs ---------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-rounds", type=int, default=1, help="rounds of 500 damaged inputs for each parser")
    parser.addoption("--record-proof", action="store_true", help="write images/*/proof.json and README's table")


def pytest_configure(config: pytest.Config) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    damage.rounds = config.getoption("--fuzz-rounds")
    # The usual run tries the same examples each time; --all looks for new ones. A busy machine is slow, not wrong.
    hypothesis.settings.register_profile("drydock", derandomize=damage.rounds == 1, deadline=None)
    hypothesis.settings.load_profile("drydock")
    if config.getoption("--record-proof"):
        config.pluginmanager.register(Recorder(), "drydock-proof")


class Recorder:
    """Collects the outcomes of the tests that carry `proves(variant, tier)`."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[tuple[str, str, bool]]] = {}
        self._digests: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Note what each phase of a proving test gave."""
        report: pytest.TestReport = yield  # type: ignore[misc] - a wrapper is sent the result
        for mark in item.iter_markers("proves"):
            variant, tier = mark.args
            self._outcomes.setdefault(variant, []).append((tier, item.nodeid, report.passed))
            self._digests.update((variant, str(value)) for name, value in item.user_properties if name == "digest")
        return report  # type: ignore[return-value] - as above

    def pytest_sessionfinish(self) -> None:
        """Write the proofs, for the images that are built now."""
        for variant, outcomes in self._outcomes.items():
            found = _proof(variant, outcomes, self._digests.get(variant, ""))
            if proof.write_proof(DRYDOCK, variant, found):
                log(f"wrote {proof.path_of(DRYDOCK, variant)}")
        docs.write(DRYDOCK, read_matrix(DRYDOCK))


def _proof(variant: str, outcomes: Sequence[tuple[str, str, bool]], digest: str) -> proof.Proof:
    """Return the proof of an image: of the one that was tested, or of the Dockerfile where stand-ins were all.

    Of the same inputs, what other runs showed of other tiers stays.
    """
    job, shown = prepare(DRYDOCK, variant), proof.shown(outcomes)
    inputs, old = job.inputs_sha256, proof.read_proof(DRYDOCK, variant)
    if set(shown) - {"stand-in"}:
        digest = digest or build.build(job).digest
    elif old and old.inputs_sha256 == inputs:
        digest = old.digest
    new = proof.Proof(date=proof.today(), digest=digest, inputs_sha256=inputs, shown=shown)
    return proof.joined(old, new, {tier for tier, _, _ in outcomes})
