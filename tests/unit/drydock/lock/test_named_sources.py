"""Sentences that name symbols of vLLM's files are found, compared between two versions, and get the new version."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.project_choice import DRYDOCK
from drydock.core.project import Project
from drydock.lock.named_sources import (
    CHANGED,
    GONE,
    UNNAMED,
    NamedFile,
    SourcesCompared,
    VllmFiles,
    compare_sources,
    list_sources,
    parse_sources,
)
from drydock.lock.vllm_lists import read_program
from tests.support.hosts.trees import write_tree

OLD = {
    "config/parallel.py": '''
class ParallelConfig:
    """Documented."""
    nnodes: int = 1
    """How many."""
    def verify(self):
        return self.nnodes > 0
    def moved(self):
        return 1
''',
    "envs.py": 'environment_variables = {"VLLM_HOST_IP": lambda: 1, "VLLM_OTHER": lambda: 2}\n',
    "v1/worker/utils.py": "def request_memory(free):\n    return free\n",
}
NEW = {
    "config/parallel.py": '''
# Lines before it, other words in its docstrings, and comments do not change a symbol.
class ParallelConfig:
    """Documented in other words."""

    nnodes: int = 1  # hosts
    def verify(self):
        return self.nnodes > 1
''',
    "envs.py": 'environment_variables = {"VLLM_NEW": lambda: 0, "VLLM_HOST_IP": lambda: 1, "VLLM_OTHER": lambda: 3}\n',
    "v1/worker/utils.py": "def request_memory(free):\n    return free\n",
}


def compare(tmp_path: Path, text: str, *, old: str = "0.32.0", new: str = "0.33.0") -> tuple[SourcesCompared, str]:
    """Compare the sources of one file; return the result, and the file's text after it."""
    for name, files in (("old", OLD), ("new", NEW)):
        write_tree(tmp_path / name / "vllm", files)
    place = tmp_path / "project" / "templates" / "host.yaml"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    project, program = Project(tmp_path / "project"), read_program(DRYDOCK)
    sides = [VllmFiles(program, tmp_path / name) for name in ("old", "new")]
    compared = compare_sources(project, list_sources(project, ()), sides[0], sides[1], (old, new))
    return compared, place.read_text()


@pytest.mark.parametrize(
    ("text", "version", "files"),
    [
        ("source: vLLM 0.32 config/parallel.py, nnodes", "0.32", [("config/parallel.py", ("nnodes",))]),
        (
            'source: "vLLM 0.32: v1/worker/utils.py, request_memory"',
            "0.32",
            [("v1/worker/utils.py", ("request_memory",))],
        ),
        (
            "# Source: vLLM 0.6 to 0.33, config/model.py (get_x and Config.get_y), read\n# again. Not this_word.",
            "0.33",
            [("config/model.py", ("get_x", "Config.get_y"))],
        ),
        (
            "vLLM 0.32's a/b.py and\n    c.py, dcp_sharded; vllm-router 0.1.17",
            "0.32",
            [("a/b.py", ()), ("c.py", ("dcp_sharded",))],
        ),
        ("source: vLLM envs.py\nother_key: x", "", [("envs.py", ())]),
        ("x = 1  # vLLM's config/vllm.py replaces it\ny_z = 2", "", [("config/vllm.py", ())]),
        ("vLLM 0.32 v1/kv/nixl, kv_lease_duration; measured", "0.32", [("v1/kv/nixl", ("kv_lease_duration",))]),
    ],
)
def test_a_sentence_names_version_files_and_symbols(
    text: str, version: str, files: list[tuple[str, tuple[str, ...]]]
) -> None:
    (source,) = parse_sources(text, Path("file"))
    assert (source.version, source.files) == (version, tuple(NamedFile(*file) for file in files))


@pytest.mark.parametrize("text", ["measured with vLLM 0.32 on CPU", "vLLM docs, engine arguments", "vllm/vllm-openai"])
def test_a_sentence_without_a_file_is_none(text: str) -> None:
    assert [*parse_sources(text, Path("file"))] == []


def test_what_is_the_same_says_the_new_version_and_the_rest_is_to_be_read_again(tmp_path: Path) -> None:
    same = (
        "vLLM 0.32 config/parallel.py, nnodes",
        "vLLM 0.19 and 0.32, parallel.py, ParallelConfig.nnodes",
        "vLLM 0.32.0 envs.py, VLLM_HOST_IP",
        "vLLM 0.32 v1/worker/utils.py",
    )
    other = (
        "vLLM 0.32 config/parallel.py, ParallelConfig.verify",
        "vLLM 0.32 config/parallel.py (moved)",
        "vLLM 0.32 envs.py, VLLM_HOST_IP and VLLM_OTHER",
        "vLLM 0.32 envs.py",
        "vLLM 0.32 envs.py, VLLM_UNKNOWN",
        "vLLM 0.32 config/gone.py, anything",
        "vLLM 0.27 config/parallel.py, nnodes",
        "vLLM 0.32 examples/online_serving",
        "vLLM 0.33 config/gone.py, anything",
    )
    text = "".join(f"- source: {line}\n" for line in (*same, *other))
    compared, after = compare(tmp_path, text)

    assert after.splitlines()[: len(same)] == [
        "- source: vLLM 0.33 config/parallel.py, nnodes",
        "- source: vLLM 0.19 and 0.33, parallel.py, ParallelConfig.nnodes",
        "- source: vLLM 0.33.0 envs.py, VLLM_HOST_IP",
        "- source: vLLM 0.33 v1/worker/utils.py",
    ]
    assert after.splitlines()[len(same) :] == text.splitlines()[len(same) :]
    assert [(change.symbol, change.change) for change in compared.changes] == [
        ("config/parallel.py, ParallelConfig.verify", CHANGED),
        ("config/parallel.py, moved", GONE),
        ("envs.py, VLLM_OTHER", CHANGED),
        ("envs.py", UNNAMED),
        ("envs.py", UNNAMED),
    ]
    assert {"-        return self.nnodes > 0", "+        return self.nnodes > 1"} < {*compared.changes[0].difference}
    assert compared.changes[0].place == "templates/host.yaml:5"
    assert compared.unknown == (
        "templates/host.yaml:9: envs.py, VLLM_UNKNOWN",
        "templates/host.yaml:10: config/gone.py",
        "templates/host.yaml:12: examples/online_serving",
    )
    assert compared.older == ("templates/host.yaml:11: vLLM 0.27",)
    assert compared.files == (tmp_path / "project" / "templates" / "host.yaml",)


def test_a_patch_is_compared_too_and_no_sentence_changes(tmp_path: Path) -> None:
    text = "- source: vLLM 0.32 envs.py, VLLM_OTHER\n- source: vLLM 0.32 config/parallel.py, nnodes\n"
    compared, after = compare(tmp_path, text, new="0.32.1")
    assert after == text
    assert ([change.symbol for change in compared.changes], compared.same) == (["envs.py, VLLM_OTHER"], 1)


def test_sources_of_other_stacks_are_left_alone(tmp_path: Path) -> None:
    stacks = tmp_path / "templates" / "cpu" / "stacks"
    stacks.mkdir(parents=True)
    for name in ("old", "new"):
        (stacks / f"{name}.yaml").write_text("source: vLLM 0.32 envs.py, VLLM_HOST_IP\n")
    (source,) = list_sources(Project(tmp_path), [stacks / "new.yaml"])
    assert source.file == stacks / "new.yaml"


def test_drydocks_own_sentences_are_found() -> None:
    sources = list_sources(DRYDOCK, ())
    versions = [source for source in sources if source.version and any(file.symbols for file in source.files)]
    assert len(versions) > 20
