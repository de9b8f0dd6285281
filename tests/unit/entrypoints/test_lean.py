"""What stands in for slow modules does what they do, and nothing else."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import subprocess
import sys
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints import lean
from entrypoints.host import Host
from tests.unit.entrypoints.cli.test_cli import PACKAGE


class Own(lean.NamedTuple):
    number: int
    name: str = "unnamed"
    parts: tuple[int, ...] = ()

    def doubled(self) -> int:
        return 2 * self.number


class Theirs(typing.NamedTuple):
    number: int
    name: str = "unnamed"
    parts: tuple[int, ...] = ()


class Further(Own):
    """A record with one more method."""

    def tripled(self) -> int:
        return 3 * self.number


MADE: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "a", (2,)), {}),
    ((1, "a"), {"parts": (3,)}),
    ((), {"parts": (3,), "number": 4}),
]
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1, "a", (), 4), {}),
    ((1,), {"number": 2}),
    ((1,), {"other": 2}),
    ((), {"name": "a"}),
    ((), {"name": "a", "other": 1}),
]


@pytest.mark.parametrize(("values", "named"), MADE)
def test_a_record_holds_what_typings_would(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    own, theirs = Own(*values, **named), Theirs(*values, **named)
    assert tuple(own) == tuple(theirs)
    assert (own.number, own.name, own.parts) == (theirs.number, theirs.name, theirs.parts)
    assert own._asdict() == theirs._asdict()
    assert tuple(own._replace(name="b")) == tuple(theirs._replace(name="b"))
    assert repr(own) == repr(theirs).replace("Theirs", "Own")


@pytest.mark.parametrize(("values", "named"), REFUSED)
def test_a_record_refuses_what_typings_would(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Theirs(*values, **named)
    with pytest.raises(TypeError, match="expected number, name, parts"):
        Own(*values, **named)


def test_a_record_is_a_tuple_that_cannot_be_changed() -> None:
    own = Own(1, "a")
    with pytest.raises(AttributeError):
        own.number = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        own.other = 2  # type: ignore[attr-defined]
    match own:
        case Own(number, name):
            assert (number, name) == (1, "a")
    assert {own: 1}[Own(1, "a")] == 1
    assert own.doubled() == 2
    assert (Further(2).tripled(), Further(2).doubled(), Further(2)._replace(number=3).tripled()) == (6, 4, 9)


def test_a_record_is_copied_and_pickled_as_itself() -> None:
    own = Own(1, "a", (2,))
    assert [type(each) for each in (copy.copy(own), pickle.loads(pickle.dumps(own)))] == [Own, Own]  # noqa: S301 -- ours
    assert pickle.loads(pickle.dumps(own)) == own  # noqa: S301 -- ours


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(value=JSON, indent=st.sampled_from([None, 2]), around=st.text(" \t\r\n"))
def test_json_is_read_as_json_reads_it(value: Any, indent: int | None, around: str) -> None:
    text = f"{around}{json.dumps(value, indent=indent)}{around}"
    assert lean.loads(text) == json.loads(text) == value


@given(text=st.text('{}[]":,0123456789.eE+-truefalsnN \n\\u', max_size=12))
def test_what_is_no_json_is_refused_in_jsons_own_words(text: str) -> None:
    found, expected = [], []
    for read, said in ((lean.loads, found), (json.loads, expected)):
        try:
            said.append(repr(read(text)))
        except (ValueError, RecursionError) as error:
            said.append(str(error))
    assert found == expected


@pytest.mark.parametrize("text", ["{", "", '{"a": nope}', "[1, 2", '"open', '{"a": 1} trailing', "\ufeff{}"])
def test_it_is_refused_so_where_nobody_imported_json_before(text: str) -> None:
    """The scanner takes its exception from json's own modules, without which it breaks."""
    program = "import sys\nfrom entrypoints.lean import loads\nassert 'json' not in sys.modules\nloads(sys.argv[1])"
    command = [sys.executable, "-c", program, text]
    ran = subprocess.run(command, cwd=PACKAGE.parent, env={}, capture_output=True, text=True, check=False)
    with pytest.raises(ValueError) as expected:  # noqa: PT011 - its words are compared
        json.loads(text)
    assert ran.stderr.splitlines()[-1] == f"json.decoder.JSONDecodeError: {expected.value}"


def test_digests_are_hashlibs() -> None:
    assert lean.sha256(b"drydock").hexdigest() == hashlib.sha256(b"drydock").hexdigest()


def test_a_start_imports_none_of_what_it_replaces() -> None:
    modules = ", ".join(f"entrypoints.{name}" for name in ("launch", "command", "facts", "keeping", "decide.cpu"))
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import {modules}"
    slow = "{'typing', 'json', 're', 'enum', 'socket', 'signal', 'hashlib', 'contextlib', 'collections'}"
    ran = [sys.executable, "-I", "-S", "-c", f"{code}; print(sorted({slow} & sys.modules.keys()))"]
    assert subprocess.run(ran, capture_output=True, text=True, check=True).stdout == "[]\n"


NAMES = ("accel0", "accel2", "accel10", "accel_controlD0", ".hidden", "a", "accel")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/dev/accel[0-9]*", ["accel0", "accel2", "accel10"]),
        ("/dev/accel*", ["accel", "accel0", "accel2", "accel10", "accel_controlD0"]),
        ("/d*/accel?", ["accel0", "accel2"]),
        ("/dev/*l*0", ["accel0", "accel10", "accel_controlD0"]),
        ("/dev/accel[02]", ["accel0", "accel2"]),
        ("/dev/accel2", ["accel2"]),
        ("/dev/none", []),
        ("/none/*", []),
        ("/dev/a/*", []),
    ],
)
def test_paths_match_as_a_shell_would_have_it(tmp_path: Any, pattern: str, found: list[str]) -> None:
    (tmp_path / "dev").mkdir()
    for name in NAMES:
        (tmp_path / "dev" / name).touch()
    assert [path.rpartition("/")[2] for path in Host(str(tmp_path)).glob(pattern)] == found
