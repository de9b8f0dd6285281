"""Defaults, spellings, keys and readers are read from vLLM's files, in each form that its versions have used."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.lock.vllm_details import FlagDetails, KeyDetails, VariableDetails, VllmDetails
from drydock.lock.vllm_details_reader import read_details
from drydock.lock.vllm_lists import list_every, read_program, read_stored_details
from tests.support.hosts.trees import write_tree

ARG_UTILS = """
from vllm.renderers.formats import Format
def get_kwargs(cls):
    readable = {"batch"}
    if name == "length":
        kwargs["type"] = human_readable_int_or_auto
    elif name in readable:
        kwargs["type"] = human_readable_int
class EngineArgs:
    batch: int | None = None
    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        parser.add_argument("--length", **model_kwargs["length"])
        parser.add_argument("--batch", "-b", **{**model_kwargs["batch"], "default": 8})
        parser.add_argument("--format", **model_kwargs["format"])
        parser.add_argument("--backend", **model_kwargs["backend"])
        parser.add_argument("--pooler", **model_kwargs["pooler"])
        parser.add_argument("--limits", **model_kwargs["limits"])
        parser.add_argument("--sizes", **model_kwargs["sizes"])
        parser.add_argument("--ids", type=lambda text: text.split(","))
        parser.add_argument("--old", action="store_true", help="[DEPRECATED] Gone. It has no effect.")
        level = model_kwargs["level"]
        level["type"] = str.lower
        parser.add_argument("--level", **level)
"""
CONFIG = """
DEFAULT = "mean"
class Backend(enum.Enum):
    FLASH = "vllm.a.B"
    TRITON = "vllm.a.C"
class Level(enum.IntEnum):
    O1 = 1
class Pooler:
    kind: Literal["mean", "cls"] = DEFAULT
    size: int | None = Field(default=None, ge=1)
    names: list[str] = field(default_factory=list)
    _hidden: int = 1
class ModelConfig:
    length: int = Field(default=4096, ge=1)
    batch: int | None = EngineArgs.batch
    format: Format = "auto"
    backend: Backend | None = None
    pooler: Pooler | None = None
    limits: dict[str, int] = {}
    sizes: list[int] | None = None
    level: Level = Level.O1
"""
ENVS = """
environment_variables: dict[str, Callable[[], Any]] = {
    "A": lambda: bool(int(os.environ.get("A", "0"))),
    "B": env_with_choices("B", None, ["x", "y"]),
    "C": lambda: os.path.join(get_root(), "c"),
}
"""
FILES = {
    "engine/arg_utils.py": ARG_UTILS,
    "config/model.py": CONFIG,
    "config/utils.py": 'def config(cls):\n    return dataclass(cls, config=ConfigDict(extra="forbid"))',
    "renderers/formats.py": 'Kind = Literal["plain"]\nFormat = Literal["auto", Kind]',
    "envs.py": ENVS,
}


@pytest.fixture
def details(tmp_path: Path) -> VllmDetails:
    write_tree(tmp_path / "vllm", FILES)
    return read_details(read_program(DRYDOCK), tmp_path)


def test_flags_have_defaults_spellings_and_what_they_take(details: VllmDetails) -> None:
    flags = {flag.names[0]: flag for flag in details.flags}

    assert flags["--length"] == FlagDetails(names=("--length",), default="4096", number="auto")
    assert flags["--batch"] == FlagDetails(names=("--batch", "-b"), default="8", number="suffix", takes_none=True)
    assert flags["--format"].words == ("auto", "plain")
    assert flags["--format"].only_words
    assert (flags["--backend"].words, flags["--backend"].only_words) == (("FLASH", "TRITON"), False)
    assert flags["--level"].words == ("1", "O1")
    assert flags["--pooler"].record == "Pooler"
    assert flags["--limits"].annotation == "dict[str, int]"
    assert (flags["--sizes"].count, flags["--sizes"].item) == ("many", "int")
    assert flags["--ids"].is_custom
    assert flags["--old"].deprecated == "[DEPRECATED] Gone. It has no effect."
    assert details.closed


def test_keys_of_json_have_defaults_and_kinds(details: VllmDetails) -> None:
    assert details.records["Pooler"] == {
        "kind": KeyDetails(default="'mean'", takes=["cls", "mean"], kinds=("text",), words=("cls", "mean")),
        "size": KeyDetails(default="None", takes="int", kinds=("none", "number")),
        "names": KeyDetails(default="[]", kinds=("list",)),
    }


def test_variables_have_defaults_and_how_they_are_read(details: VllmDetails) -> None:
    assert details.variables == {
        "A": VariableDetails(default="'0'", reader="bool(int(os.getenv('A', DEFAULT)))"),
        "B": VariableDetails(default="None", reader="env_with_choices('B', DEFAULT)", choices=("x", "y")),
        "C": VariableDetails(default="", reader="os.path.join(get_root(), 'c')"),
    }


def test_every_version_that_was_read_has_details_of_the_same_flags_and_variables() -> None:
    records = [*list_every(DRYDOCK)]

    assert len(records) >= 24
    for record in records:
        details = read_stored_details(DRYDOCK, record)
        assert details is not None, record.version
        assert {name for flag in details.flags for name in flag.names} == set(record.lists["flags"]), record.version
        assert sorted(details.variables) == record.lists["variables"], record.version
