from __future__ import annotations

import pytest

from drydock.core.errors import InputError
from drydock.run.entrypoint import with_root


def test_a_root_before_the_dashes_is_the_entrypoints() -> None:
    assert with_root(("check",), "host.json") == ("check", "--root", "host.json")
    assert with_root(("check",), "") == ("check",)
    with pytest.raises(InputError, match="--root is given twice"):
        with_root(("check", "--root", "a"), "b")
