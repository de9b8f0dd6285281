"""What the kernel writes, as values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoints.core import parse


@given(st.sets(st.integers(0, 4095)))
def test_id_lists_read_back_as_they_were_written(ids: set[int]) -> None:
    assert parse.parse_id_list(parse.format_id_list(tuple(ids))) == tuple(sorted(ids))


@pytest.mark.parametrize("text", ["0-", "3-1", "a", "0-99999999999999999999", "1 2", "-1", "٣"])
def test_a_broken_id_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse.parse_id_list(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("-1\n", None), ("9223372036854771712\n", None), ("8589934592\n", 8589934592), ("0", 0)],
)
def test_a_cgroup_limit_is_a_number_or_none(text: str, limit: int | None) -> None:
    assert parse.parse_cgroup_limit(text) == limit


@pytest.mark.parametrize(("text", "quota"), [("250000 100000", 2.5), ("max 100000", None), ("50000 100000", 0.5)])
def test_cpu_max_is_cpus_worth_of_time(text: str, quota: float | None) -> None:
    assert parse.parse_cpu_max(text) == quota


@pytest.mark.parametrize("text", ["", "100000", "1 0", "x 100000"])
def test_a_broken_cpu_max_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quota|period|number"):
        parse.parse_cpu_max(text)


def test_meminfo_of_host_and_node_are_in_bytes() -> None:
    assert parse.parse_meminfo("MemTotal:       1024 kB\nHugePages_Total:     0\n") == {"MemTotal": 1048576}
    assert parse.parse_meminfo("Node 0 MemTotal: 2 kB\nNode 0 Active(file): 1 kB\n") == {
        "MemTotal": 2048,
        "Active(file)": 1024,
    }


def test_meminfo_without_a_total_is_refused() -> None:
    with pytest.raises(ValueError, match="MemTotal"):
        parse.parse_meminfo("MemFree: 1 kB\n")


def test_limits_are_soft_and_hard() -> None:
    text = (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n"
    )

    assert parse.parse_limits(text) == {"Max open files": (1024, 524288), "Max locked memory": (None, None)}


def test_words_of_a_command_line_are_those_asked_for_and_the_last_counts() -> None:
    line = "BOOT_IMAGE=/vmlinuz root=UUID=1 pci=noaer quiet pci=realloc=off init_on_alloc"

    assert parse.parse_kernel_words(line, ("pci", "init_on_alloc")) == {"pci": "realloc=off"}


def test_the_bracketed_choice_is_the_current_one() -> None:
    assert parse.parse_bracketed("always [madvise] never\n") == "madvise"


def test_cgroup_paths_keep_colons_and_joined_controllers() -> None:
    assert parse.parse_cgroup_paths("2:cpu,cpuacct:/a:b\n0::/\n") == {"cpu,cpuacct": "/a:b", "": "/"}


def test_the_limit_of_hidden_ancestors_is_in_memory_stat() -> None:
    assert parse.parse_hierarchical_limit("cache 0\nhierarchical_memory_limit 4096\n") == 4096
    assert parse.parse_hierarchical_limit("cache 0\n") is None


_PARSERS = [
    parse.parse_id_list,
    parse.parse_number,
    parse.parse_line,
    parse.parse_bracketed,
    parse.parse_fields,
    parse.parse_meminfo,
    parse.parse_limits,
    parse.parse_cgroup_paths,
    parse.parse_cgroup_limit,
    parse.parse_cpu_max,
    parse.parse_hierarchical_limit,
]


@pytest.mark.parametrize("parser", _PARSERS, ids=lambda parser: parser.__name__)
@given(text=st.text())
def test_whatever_is_not_understood_is_a_value_error(parser: object, text: str) -> None:
    assert callable(parser)
    expected = "nothing was wrong"
    try:
        parser(text)
    except ValueError as error:
        expected = str(error)

    assert expected


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.32.1", (0, 32, 1)),
        ("v0.9.1rc2", (0, 9, 1)),
        ("0.11.0+gaudi.1.22", (0, 11, 0)),
        ("0.33", (0, 33)),
        ("main", ()),
        ("", ()),
    ],
)
def test_a_version_is_its_first_three_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert parse.parse_version_numbers(version) == numbers


def test_architectures_have_the_names_of_oci_platforms() -> None:
    assert [parse.name_oci_architecture(name) for name in ("x86_64", "aarch64", "s390x")] == ["amd64", "arm64", "s390x"]
