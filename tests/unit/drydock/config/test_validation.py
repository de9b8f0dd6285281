from __future__ import annotations

import pytest

from drydock.config.validation import make_record
from drydock.core.errors import InputError
from drydock.model.bases import Base
from drydock.model.record import Record


class Row(Record):
    base: Base


def test_a_base_that_is_a_name_is_shown_what_a_base_looks_like() -> None:
    with pytest.raises(InputError, match='found "acme/base:1", expected keys and values') as caught:
        make_record(Row, "row", {"base": "acme/base:1"})
    assert "base: {kind: image, reference: ubuntu:24.04" in caught.value.hint
