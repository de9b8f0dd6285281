"""Names that can be searched, and names that a misspelling would make useless: of architectures and distributions."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT

pytestmark = pytest.mark.checkout

EMPTY = {
    "asked", "both", "called", "done", "each", "found", "given", "gone", "held", "it", "kept", "known", "left", "lost",
    "made", "named", "needed", "other", "others", "own", "said", "seen", "sent", "shown", "taken", "these", "they",
    "those", "told", "used", "wanted", "weaker", "written",
}  # fmt: skip
"""Participles and pronouns. Some stay: fields of records, which JSON of drydock has too, and parameters of tests."""


class Figures(NamedTuple):
    """Shares of a folder's names, from 0 to 1."""

    of_one_word: float
    """Module-level functions whose name is one word, such as an entry point or a filter of templates."""
    shared: float
    """Module-level functions whose name four or more have."""
    empty: float
    """Variables and parameters that are in EMPTY."""


GOALS = {
    "drydock": Figures(0.05, 0.02, 0.005),
    "entrypoints": Figures(0.05, 0.02, 0.005),
    "bench": Figures(0.05, 0.02, 0.005),
    "tests": Figures(0.25, 0.16, 0.015),
}
"""At most. cibuildwheel 8832cf6b has 0.18, 0.16 and 0.000; tests keep the names that pytest passes parameters by."""


def measure_names(folder: Path) -> Figures:
    functions: Counter[str] = Counter()
    variables: list[str] = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text())
        functions.update(node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        variables += _list_bound_names(tree)
    one_word = sum(count for name, count in functions.items() if "_" not in name.strip("_"))
    shared = sum(count for count in functions.values() if count >= 4)
    empty = sum(name in EMPTY for name in variables)
    return Figures(one_word / functions.total(), shared / functions.total(), empty / len(variables))


def _list_bound_names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


@pytest.mark.parametrize("folder", GOALS)
def test_names_can_be_searched(folder: str) -> None:
    figures = measure_names(ROOT / folder)
    above = {name: value for name, value in figures._asdict().items() if value > getattr(GOALS[folder], name)}
    assert above == {}


def test_names_that_cannot_be_searched_are_measured(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def write(found): pass\ndef write_lock(lock): pass\n")
    assert measure_names(tmp_path) == Figures(0.5, 0.0, 0.5)


SAME_EVERYWHERE = {
    "ascend", "cpu", "cuda", "enflame", "habana", "neuron", "rocm", "tpu", "xpu",  # the probe and the decisions of each
    "access", "benchmark", "bucket", "caches", "cluster", "collective", "errors",
    "families", "findings", "flags", "foundations", "git", "hub", "intents", "parsers",
    "bench_verb", "check_verb", "explain_verb", "plan_verb",  # a verb of ./inv, and the image's that it runs
    "ports", "ranks", "recipes", "roles", "router", "standins", "tar", "vllm_lists",
}  # fmt: skip
"""Files' names that stand for the same thing in each folder: a feature on both sides, or in a test's helper too."""
DIFFERENT_IN_THE_IMAGE = {
    "files": "a model's, and how a file is written",
    "memory": "of an accelerator, and of the CPU",
    "plan": "the command, and what it keeps of caches",
    "record": "a recorded host, and the base of all records",
    "records": "the base of the image's records, and those of decisions",
    "stub_vllm": "what is imported in place of vLLM, and what answers in its place",
}
"""Names of the image side that have two meanings, each with both: a new file takes another name."""
BY_TOOLS = {"__init__", "__main__", "conftest", "sitecustomize"}
"""Names that Python and pytest look for."""


def list_repeated_files(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Return the names that several modules have; a test has the name of the module or feature that it tests."""
    paths: dict[str, list[str]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path.stem not in BY_TOOLS and not path.stem.startswith("test_"):
                paths.setdefault(path.stem, []).append(str(path.relative_to(folder.parent)))
    return {name: places for name, places in paths.items() if len(places) > 1}


def test_a_files_name_is_unique_or_stands_for_the_same_thing() -> None:
    repeated = list_repeated_files(ROOT / folder for folder in GOALS)
    listed = {*SAME_EVERYWHERE, *DIFFERENT_IN_THE_IMAGE}
    assert {name: places for name, places in repeated.items() if name not in listed} == {}
    assert listed - set(repeated) == set()


def test_a_files_name_that_two_folders_have_is_seen(tmp_path: Path) -> None:
    for name in ("a/tasks.py", "b/c/tasks.py", "b/conftest.py", "a/conftest.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert list_repeated_files([tmp_path / "a", tmp_path / "b"]) == {"tasks": ["a/tasks.py", "b/c/tasks.py"]}


def has_the_numbers_of(row: str, stack: str) -> bool:
    """Return whether a row's id has each number of its stack, which may say it in more detail: 1.24 and 1.24.1."""
    row_numbers, stack_numbers = (re.findall(r"\d+(?:\.\d+)+", name) for name in (row, stack))
    return all(any(f"{long}.".startswith(f"{short}.") for short in row_numbers) for long in stack_numbers)


def test_a_row_and_its_stack_agree_in_their_numbers() -> None:
    """That of vLLM is checked as the matrix is read."""
    rows = {variant.id: variant.stack for variant in read_matrix(DRYDOCK)}
    assert {row: stack for row, stack in rows.items() if not has_the_numbers_of(row, stack)} == {}
    assert not has_the_numbers_of("neuron2.29-vllm0.16", "neuron-2.31")


OURS = {"drydock", "drydock_plugin", "entrypoints", "bench", "tests", "tasks"}


def list_renaming_imports(folder: Path) -> list[str]:
    """Return each import, of a module and in a function, that gives a name of ours another one."""
    aliases = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for imported in node.names:
                is_ours = (module or imported.name).partition(".")[0] in OURS or getattr(node, "level", 0)
                if is_ours and imported.asname not in (None, imported.name):
                    name = f"{module}.{imported.name}".strip(".")
                    aliases.append(f"{path.relative_to(folder.parent)}: {name} as {imported.asname}")
    return aliases


@pytest.mark.parametrize("folder", GOALS)
def test_no_import_renames_what_is_ours(folder: str) -> None:
    """A search for a module finds its uses. Names of others, such as `datetime as dt`, are everyone's."""
    assert list_renaming_imports(ROOT / folder) == []


def test_an_import_that_renames_is_seen_in_a_function_too(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    lines = (
        "import datetime as dt",
        "def f():",
        "    from drydock.oci import strict as oci",
        "    from . import b as c",
    )
    (folder / "a.py").write_text("\n".join(lines))
    assert list_renaming_imports(folder) == ["a/a.py: drydock.oci.strict as oci", "a/a.py: b as c"]


ARCHITECTURE = re.compile(r"(?!For)[A-Z]\w+(ForCausalLM|ForConditionalGeneration|ChatModel)")
FALLBACKS = {"TransformersForCausalLM"}
"""What vLLM takes for models without a class of their own, and registers by another way."""


def list_registered_architectures() -> set[str]:
    """Return the architectures of every vLLM whose lists drydock has, those among them that a later one removed too."""
    names: set[str] = set()
    for path in (ROOT / "templates" / "vllm").glob("vllm-*.json"):
        lists = json.loads(path.read_text(encoding="utf-8"))["lists"]
        names |= {*lists["architectures"], *lists.get("removed_architectures", ())}
    return names


def read_architectures(path: Path) -> set[str]:
    """Return the architectures that a module writes down."""
    constants = (
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Constant)
    )
    return {node.value for node in constants if isinstance(node.value, str) and ARCHITECTURE.fullmatch(node.value)}


def test_the_architectures_that_drydock_names_are_vllms() -> None:
    known = list_registered_architectures() | FALLBACKS
    names_by_file = {path: read_architectures(path) for path in sorted((ROOT / "entrypoints").rglob("*.py"))}

    assert len(set().union(*names_by_file.values())) > 50
    wrong = {
        str(path.relative_to(ROOT)): sorted(names - known) for path, names in names_by_file.items() if names - known
    }
    assert not wrong
