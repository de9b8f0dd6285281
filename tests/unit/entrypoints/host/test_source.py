"""A recorded host in memory answers as the same files below a folder do."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.host.host import Host
from entrypoints.host.source import READ_AT_MOST, Recorded
from tests.support.hosts.trees import write_tree

NAME = st.text("ab0129.[*:é ", min_size=1, max_size=4).filter(lambda name: name not in {".", ".."})
PATH = st.lists(NAME, min_size=1, max_size=4).map("/".join)
TEXT = st.text("a\n é", max_size=5) | st.just("crw-rw---- 0:110\n") | st.just("é" * READ_AT_MOST)
PATTERN = st.lists(st.sampled_from(["*", "a*", "[0-9]*", "a[0-9]", "?", "*0", "a", "b"]), min_size=1, max_size=4)


def fit(tree: dict[str, str]) -> dict[str, str]:
    """Leave out files that another path takes for a folder."""
    return {
        path: text for path, text in tree.items() if not any(descendant.startswith(f"{path}/") for descendant in tree)
    }


def recorded(tree: dict[str, str]) -> Host:
    return Host(source=Recorded({f"/{path}": text for path, text in tree.items()}, {}))


def answers(host: Host, paths: list[str], patterns: list[str]) -> list[object]:
    readings = [(host.text(path), host.exists(path), host.openable(path)) for path in paths]
    globs = [host.glob(pattern) for pattern in patterns]
    return [readings, globs, sorted(host.present), host.refused, host.texts, host.failures]


@given(tree=st.dictionaries(PATH, TEXT, max_size=6).map(fit), others=st.lists(PATH, max_size=3), patterns=st.lists(
    PATTERN.map(lambda parts: "/" + "/".join(parts)), max_size=3))  # fmt: skip
def test_a_recorded_host_answers_as_the_folder_does(
    tree: dict[str, str], others: list[str], patterns: list[str]
) -> None:
    folders = ["/".join(path.split("/")[:count]) for path in tree for count in range(1, path.count("/") + 1)]
    paths = [f"/{path}" for path in (*tree, *folders, *others, *(f"{path}/below" for path in tree))]
    with TemporaryDirectory() as folder:
        expected = answers(Host(str(write_tree(Path(folder), tree))), paths, ["/*", *patterns])

    assert answers(recorded(tree), paths, ["/*", *patterns]) == expected


@pytest.mark.parametrize("names", [("n1", "n01", "n001"), ("n001", "n01", "n1"), ("n01", "n1", "n001")])
def test_equal_numbers_have_one_order_whatever_the_folder_lists_first(names: tuple[str, ...]) -> None:
    assert recorded(dict.fromkeys(names, "")).glob("/n*") == ("/n001", "/n01", "/n1")


NAMES = ("accel0", "accel2", "accel10", "accel_controlD0", ".hidden", "a", "accel")


@pytest.mark.parametrize(
    ("pattern", "names"),
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
def test_paths_match_as_a_shell_would_have_it(tmp_path: Path, pattern: str, names: list[str]) -> None:
    tree = {f"dev/{name}": "" for name in NAMES}
    for host in (Host(str(write_tree(tmp_path, tree))), recorded(tree)):
        assert [path.rpartition("/")[2] for path in host.glob(pattern)] == names


@pytest.mark.parametrize("path", ["/a//b", "/a/b/", "//a/b"])
def test_slashes_are_counted_once(tmp_path: Path, path: str) -> None:
    assert recorded({"a/b": ""}).exists(path)
    assert Host(str(write_tree(tmp_path, {"a/b/c": ""}))).exists(path)


def test_a_link_out_of_a_recorded_host_is_not_followed(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "root", {"proc/a": "inside"})
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (root / "proc" / "b").symlink_to(tmp_path / "outside" / "secret")
    (root / "sys").symlink_to(tmp_path / "outside")
    (root / "proc" / "c").symlink_to("a")
    host = Host(str(root))

    assert (host.text("/proc/a"), host.text("/proc/c")) == ("inside", "inside")
    assert (host.text("/proc/b"), host.text("/sys/secret"), host.text("/proc/../../outside/secret")) == (None,) * 3
    assert [failure.found for failure in host.failures] == ["a link out of the recorded host (errno 18)"] * 3
    assert not host.exists("/sys/secret")
    assert host.glob("/sys/*") == ()


def test_pipes_and_large_files_of_a_recorded_host(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "root", {"proc/a": "a" * (READ_AT_MOST + 10)})
    os.mkfifo(root / "proc" / "b")
    host = Host(str(root))

    assert host.text("/proc/b") is None
    assert host.failures[0].found == "not a regular file (errno 22)"
    assert len(host.text("/proc/a") or "") == READ_AT_MOST - 1
