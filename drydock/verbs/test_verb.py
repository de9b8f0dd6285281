"""The verb `test`."""

from __future__ import annotations

from typing import Literal

from drydock.cli.verb import Verb
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.verb_options import VerbOptions


class TestOptions(VerbOptions):
    """Which tests are run, and by whom."""

    __test__ = False  # pytest's: no class of tests
    kind: Literal[
        "", "unit", "golden", "fuzz", "engine", "stand-ins", "packages", "topology", "cluster", "oracle", "ci"
    ] = ""
    """unit, golden, fuzz, engine, stand-ins, packages, topology, cluster, oracle or ci [default: the first four]"""
    all: bool = False
    """also run slow tests, every variant's stand-in and all rounds of fuzz tests, as CI does at night"""
    changed: bool = False
    """only the tests that the changes since main can break: no linters, engine or slow tests; about a minute"""
    record: bool = False
    """with all engine tests: write results into images/VARIANT/record.json, and that a named kind passed"""
    installed: bool = False
    """test this checkout's wheel, installed in an environment of its own"""
    python: str = ""
    """run the tests with this Python, such as /usr/bin/python3, in an environment of its own"""
    ordinary_user: bool = False
    """as root: run the engine tests, or those of --kind, as uid 1000 in group docker"""


@Verb
def run_tests(options: TestOptions) -> None:
    """Run the linters and the tests."""
    from drydock.development import quality

    if options.changed:
        if any((options.kind, options.all, options.record, options.installed, options.python, options.ordinary_user)):
            raise InputError("--changed: chooses the tests by itself", hint="leave the other options out")
        quality.run_changed_tests(ROOT)
        return
    if options.ordinary_user:
        quality.run_as_ordinary_user(ROOT, options.kind or "engine", every=options.all)
        return
    quality.run_tests(
        ROOT,
        options.kind,
        every=options.all,
        record=options.record,
        wheel=options.installed,
        python=options.python,
    )
