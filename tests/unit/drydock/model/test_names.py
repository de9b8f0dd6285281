"""What the texts of records may contain."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from drydock.model import names

CASES = [
    (names.OneLine, ["", "NVIDIA's, 中文 `x` ${y}"], ["a\nb", "a\x85b", "a\u2028b", "\x1b[31m", "a\u202eb"]),
    (names.Line, ["x"], ["", "a\nb"]),
    (names.Commit, ["a" * 40], ["A" * 40, "a" * 39, f"{'a' * 40}\n", "--upload-pack=x"]),
    (names.Ref, ["", "v1.0", "aice/v1.22.0"], ["-x", "a b", "a^{}", "a\n"]),
    (names.RepositoryUrl, ["https://h.example/a.git", "ssh://git@h:22/a", "file:///a"], ["ext::sh", "-x", "ssh://-o/a"]),
    (names.Filename, ["a-1+cpu-py3-none-any.whl"], ["", ".", "..", ".a", "-a", "a/b", "a b", "a\n"]),
    (names.RelativePath, ["pool/a/b_1:2~x.deb", "a/.b"], ["/a", "a/../b", "a//b", "-a", "a/"]),
    (names.RelativeFolder, [".", "python", "a/b"], ["..", "a/..", "./a", "a;b", "/a"]),
    (names.RelativeGlob, ["calibration/*.py", "*"], ["../*", "-x", "a b"]),
    (names.AbsolutePath, ["/usr/bin/python3.11"], ["usr", "/a/../b", "/a b", "/a;b", "/"]),
    (names.Requirement, ["numpy", "a[b]>=1,<2", 'a; python_version < "3"'], ["-r x", "a @ b:c", "a\n-r x", "a/b"]),
    (names.PackageName, ["g++", "libc6"], ["-x", "a,b", "A"]),
    (names.ImageReference, ["docker.io/a/b:1.0", "[::1]:5000/a"], ["-x", "a/../b", "a b", "a@sha256:0"]),
    (names.VariableName, ["A_1"], ["1A", "A;B", "A-B", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "good", "bad"), CASES)
def test_each_type_takes_what_its_use_needs_and_nothing_else(kind: Any, good: list[str], bad: list[str]) -> None:
    adapter = TypeAdapter(kind)
    for text in good:
        assert adapter.validate_python(text) == text
    for text in bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)


@pytest.mark.parametrize("pattern", names.EXPECTED)
def test_a_pattern_of_a_schema_means_the_same_to_every_reader(pattern: str) -> None:
    re.compile(pattern)
    assert set(re.findall(r"\\(.)", pattern)) <= set(".[]*?xu")  # JavaScript refuses other escapes, with the flag u
    assert pattern.startswith("^")
    assert pattern.endswith("$")
