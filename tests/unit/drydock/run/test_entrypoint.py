from __future__ import annotations

import sys

import pytest

from drydock.core.errors import InputError
from drydock.run.entrypoint import with_root
from tests.support import terminal


def test_a_root_before_the_dashes_is_the_entrypoints() -> None:
    assert with_root(("check",), "host.json") == ("check", "--root", "host.json")
    assert with_root(("check",), "") == ("check",)
    with pytest.raises(InputError, match="--root is given twice"):
        with_root(("check", "--root", "a"), "b")


BECOME = """
from drydock.config.matrix import find, read_matrix
from drydock.config.project import DRYDOCK
from drydock.core.paths import ROOT
from drydock.run.entrypoint import become
host = ROOT / "tests" / "hosts" / "cpu-untuned-2s"
become(DRYDOCK, find(read_matrix(DRYDOCK), "cpu"), ("check", "--root", str(host)))
"""


def test_check_has_colours_on_a_terminal_unless_told_otherwise() -> None:
    written = [terminal.run([sys.executable, "-c", BECOME], env)[1] for env in ({}, {"NO_COLOR": "1"})]

    assert [bool(terminal.COLOURS.search(each)) for each in written] == [True, False]
    assert "FAIL    HOST-011" in written[1]
