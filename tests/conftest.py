"""Counts tests by kind at the end of a run, and with --record-proof writes what they showed of each image.

Kinds: unit, golden (compares with a committed file), fuzz (damaged inputs), engine (needs Docker), packages
(gigabytes of real ones), machines (several servers; faults), cluster (a real Kubernetes), oracle (vLLM's own classes).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from drydock.build import build
from drydock.build.build_job import Job, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import log
from drydock.engine import daemon
from drydock.lock import image_record, proof
from drydock.lock.image_record import PlatformRecord
from drydock.oci import image_layout
from tests.support import damage

os.environ["LC_ALL"] = "C.UTF-8"
"""Findings in English, whatever the language of who runs the tests."""

TESTS = Path(__file__).parent
FOLDERS = {"engine": ("engine",), "registry": ("engine",), "topology": ("machines",), "pipelines": ("pipelines",)}
FOLDERS |= {"cluster": ("cluster", "engine")}
"""Folder → markers of everything below it."""
KINDS = ("unit", "golden", "fuzz", "packages", "machines", "cluster", "oracle", "pipelines", "engine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome_reports in terminalreporter.stats.values() for report in outcome_reports]
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
def engine(request: pytest.FixtureRequest) -> daemon.Engine:
    """Give a usable engine; it is stopped at the end of the run that started it."""
    usable_engine = daemon.ensure_engine()
    request.config.stash[STARTED] = usable_engine.started
    return usable_engine


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop an engine that this run started. A worker leaves that to the run, because others may still need it."""
    started = session.config.stash.get(STARTED, False)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["engine"] = started
    elif started:
        daemon.stop_engine()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Note whether a worker started the engine."""
    config: pytest.Config = node.config
    config.stash[STARTED] = config.stash.get(STARTED, False) or getattr(node, "workeroutput", {}).get("engine", False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of a folder, and give every test with containers the engine, whether it asks for it or not."""
    if file := config.getoption("--leave-out"):
        left_out = set(Path(file).read_text(encoding="utf-8").splitlines())
        items[:] = [item for item in items if item.nodeid not in left_out]
    for item in items:
        for name in FOLDERS.get(item.path.relative_to(TESTS).parts[0], ()) if TESTS in item.path.parents else ():
            item.add_marker(name)
        if {"engine", "machines"} & {*item.keywords} and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "engine")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each module, or group of modules, to one worker."""
    from tests.support.xdist_groups import ByGroup  # noqa: PLC0415 - of a plugin that a run without workers does not need

    return ByGroup(config, log)


# --- proofs ---------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-rounds", type=int, default=1, help="rounds of 50 damaged inputs for each parser")
    parser.addoption("--record-proof", action="store_true", help="write images/*/record.json")
    parser.addoption("--leave-out", help="file with ids of tests that do not run, a line each")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTHONUNBUFFERED", None)  # programs that tests start would hide what an ordinary user meets
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
    damage.rounds = config.getoption("--fuzz-rounds")
    # The usual run tries the same examples each time; --all looks for new ones. A busy machine is slow, not wrong.
    hypothesis.settings.register_profile("drydock", derandomize=damage.rounds == 1, deadline=None)
    hypothesis.settings.load_profile("drydock")
    if config.getoption("--record-proof"):
        config.pluginmanager.register(Recorder(), "drydock-proof")


FOUNDATION, IMAGE = "foundation", "image"
DIGESTS = {"digest": IMAGE, "foundation_digest": FOUNDATION}
"""Property that a test records → what has that digest."""
Outcome = tuple[str, str, str]
"""Tier, test, what this phase gave: `passed`, `failed` or `skipped`."""


class Recorder:
    """Collects the outcomes of the tests that carry `proves(variant, tier)`."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[str, list[Outcome]]] = {}
        """Variant → foundation or image → outcomes."""
        self._digests: dict[tuple[str, str], str] = {}
        """Variant, and foundation or image → digest of what was tested, as the tests told it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """Note what each phase of a proving test gave."""
        report: pytest.TestReport = yield  # type: ignore[misc] - a wrapper is sent the result
        subject = FOUNDATION if item.get_closest_marker("of_foundation") else IMAGE
        for mark in item.iter_markers("proves"):
            variant, tier = mark.args
            outcomes = self._outcomes.setdefault(variant, {FOUNDATION: [], IMAGE: []})
            outcomes[subject].append((tier, item.nodeid, report.outcome))
            digest_pairs = ((DIGESTS.get(name), str(value)) for name, value in item.user_properties)
            self._digests.update(((variant, kind), digest) for kind, digest in digest_pairs if kind)
        return report  # type: ignore[return-value] - as above

    def pytest_sessionfinish(self) -> None:
        """Write the records, for the images that are built now."""
        for variant, outcomes in self._outcomes.items():
            job = prepare_job(DRYDOCK, variant)
            digests = {subject: self._digests.get((variant, subject), "") for subject in (FOUNDATION, IMAGE)}
            record = prove(job, outcomes, digests)
            if record == PlatformRecord():
                continue  # every test of it was skipped
            if path := image_record.write_platform_record(DRYDOCK, variant, job.platform, record):
                log(f"wrote {path}")


def prove(job: Job, outcomes: Mapping[str, Sequence[Outcome]], digests: Mapping[str, str]) -> PlatformRecord:
    """Return a variant's record with what these outcomes show of its foundation and of its image.

    `digests` are those of what was tested, as far as the tests told them.
    """
    inputs = {FOUNDATION: job.foundation_key, IMAGE: job.inputs_sha256}
    proven: dict[str, dict[str, proof.Evidence]] = {}
    for subject, results in outcomes.items():
        refuted = {tier for tier, _, outcome in results if outcome == "failed"}
        proven[subject] = {
            tier: evidence
            for tier, evidence in getattr(job.record, subject).items()
            if tier not in refuted or evidence.inputs_sha256 != inputs[subject]
        }
        for tier, tests in group_passed_tiers(results).items():
            digest = digests[subject] or digest_of_tested(job, subject)
            proven[subject][tier] = image_record.make_evidence(DRYDOCK, digest, inputs[subject], tests)
    return job.record.model_copy(update=proven)


def group_passed_tiers(outcomes: Sequence[Outcome]) -> dict[str, tuple[str, ...]]:
    """Return tier → tests; a tier of which a test did not pass in each phase is left out."""
    tiers: dict[str, set[str]] = {}
    for tier, test, _ in outcomes:
        tiers.setdefault(tier, set()).add(test)
    lacking = {tier for tier, _, outcome in outcomes if outcome != "passed"}
    return {tier: tuple(sorted(tests)) for tier, tests in tiers.items() if tier not in lacking}


def digest_of_tested(job: Job, subject: str) -> str:
    """Return the digest of the image or the foundation that tests of this run used."""
    if subject == IMAGE:
        return build.build_image(job).digest
    return image_layout.read_digest(job.foundation)
