"""What `check` prints: order, wrapping, colours and the summary."""

from __future__ import annotations

import re

import pytest

from entrypoints.checks.report import Look, format_check_report
from entrypoints.core.records import Finding

SOURCE = "the manual"
COMMAND = "sysctl -w vm.nr_hugepages=15000; for good, echo vm.nr_hugepages=15000 > /etc/sysctl.d/90-gaudi.conf"


def finding(severity: str, number: int = 1, **changes: str) -> Finding:
    words = {"text": f"{severity.lower()} of a host", "found": "a = 1", "expected": "2", "remediation": "mend it"}
    return Finding(f"CPU-{number:03}", severity, **{**words, **changes}, scope="host", source=SOURCE)


ALL = tuple(finding(severity) for severity in ("PASS", "INFO", "UNKNOWN", "WARN", "FAIL"))


def heads(text: str) -> list[str]:
    return [word for line in text.splitlines() for word in re.findall(r"^[A-Z]+(?= +CPU-)", line)]


def test_the_worst_comes_first_and_what_passed_is_counted() -> None:
    assert (
        format_check_report([*ALL, finding("PASS", 2)], "cpu-x", (), Look())
        == """\
FAIL    CPU-001  fail of a host
        fix (host): mend it
        found a = 1; expected 2; source: the manual
WARN    CPU-001  warn of a host
        fix (host): mend it
        found a = 1; expected 2; source: the manual
UNKNOWN CPU-001  unknown of a host
        fix (host): mend it
        found a = 1; expected 2; source: the manual
INFO    CPU-001  info of a host
        fix (host): mend it
        found a = 1; expected 2; source: the manual

cpu-x: 1 FAIL, 1 WARN, 1 UNKNOWN, 1 INFO, 2 PASS
`check --only pass` lists what passed.
"""
    )


@pytest.mark.parametrize(
    ("only", "shown"),
    [(("FAIL",), ["FAIL"]), (("PASS", "FAIL"), ["FAIL", "PASS"]), (("WARN", "INFO"), ["WARN", "INFO"])],
)
def test_only_some_severities_are_shown_and_all_are_counted(only: tuple[str, ...], shown: list[str]) -> None:
    text = format_check_report(ALL, "cpu-x", only, Look())

    assert heads(text) == shown
    assert text.endswith("\ncpu-x: 1 FAIL, 1 WARN, 1 UNKNOWN, 1 INFO, 1 PASS\n")


def test_a_report_longer_than_the_screen_begins_with_the_summary() -> None:
    many = [finding("WARN", number) for number in range(3)]

    assert format_check_report(many, "cpu-x", (), Look(height=8)).startswith("cpu-x: 3 WARN\n\nWARN    CPU-000")
    assert format_check_report(many, "cpu-x", (), Look(height=9)).startswith("WARN    CPU-000")
    assert format_check_report([], "cpu-x", (), Look()) == "cpu-x: no findings\n"


def test_what_a_script_fixes_is_counted() -> None:
    fixable = finding("WARN")._replace(fix={"sysctl": {"vm.swappiness": 1}})
    hint = "`check --fix-script` prints a script for the host that fixes 1 of these, also after a restart.\n"

    assert format_check_report([fixable, fixable._replace(severity="INFO")], "cpu-x", (), Look()).endswith(hint)


def test_lines_wrap_at_the_width_with_the_details_indented() -> None:
    long = finding("WARN", text="one two three " * 12, found="/a-long-path/of-files " * 6, remediation="mend")
    lines = format_check_report([long], "cpu-x", (), Look(width=60, height=99)).splitlines()

    assert max(map(len, lines)) <= 60
    assert [line for line in lines[1:-2] if not line.startswith("        ")] == []
    assert " ".join(" ".join(lines[:-2]).split()).startswith(f"WARN CPU-001 {'one two three ' * 12}fix (host): mend")
    assert "/a-long-path/of-files" in lines[5]


def test_a_command_is_never_broken() -> None:
    lines = format_check_report(
        [finding("WARN", remediation=COMMAND)], "cpu-x", (), Look(width=60, height=99)
    ).splitlines()

    assert lines[1:4] == [
        "        fix (host): sysctl -w vm.nr_hugepages=15000;",
        "        for good,",
        "        echo vm.nr_hugepages=15000 > /etc/sysctl.d/90-gaudi.conf",
    ]


def test_colours_are_the_only_escapes() -> None:
    odd = finding("FAIL", text="red \x1b[31m", found="a\nb")
    plain, coloured = (format_check_report([odd], "cpu-x", (), Look(width=40, coloured=how)) for how in (False, True))

    assert "\x1b" not in plain
    assert "red \\u001b[31m" in plain
    assert coloured.startswith("\x1b[1;31mFAIL\x1b[0m    CPU-001")
    assert "cpu-x: 1 \x1b[1;31mFAIL\x1b[0m\n" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_chinese_is_wrapped_by_columns_between_characters_and_commands_stay_whole() -> None:
    words = {"fix (host): {}": "处理（主机）：{}", "found {}; expected {}": "实测 {}；期望 {}", "; ": "；"}
    changes = {"text": "没有大页，主机与加速卡之间的缓冲区会变慢。", "remediation": f"{COMMAND[:31]}；echo a > b"}
    text = format_check_report([finding("WARN", **changes)], "cpu-x", (), Look(40, words=words))

    assert text.splitlines()[:5] == [
        "WARN    CPU-001  没有大页，主机与加速卡",
        "        之间的缓冲区会变慢。",
        "        处理（主机）：sysctl -w vm.nr_hugepages=15000；",
        "        echo a > b",
        "        实测 a = 1；期望 2；source: the",
    ]
