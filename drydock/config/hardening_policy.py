"""The hardening policy of a project, and the search for its patterns of secrets. Reads hardening.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal, NamedTuple

from pydantic import Field

from drydock.config.project_layers import Contents, read_layers
from drydock.config.validation import Problem, validate_document
from drydock.core.project import Project
from drydock.model.record import Because, Record

POLICY_FILE = "policy/hardening.yaml"
Rule = Literal["secrets", "tools", "rights", "writable", "user", "network"]
COMMITTED_HINT = (
    "this file is committed, and an image has its settings: remove it, withdraw the secret where it was issued, and "
    "set it when a container starts, as HF_TOKEN or VLLM_API_KEY of the shell in which you call `./inv run`; a "
    "password of an index belongs into pip's configuration or ~/.netrc"
)


class Pattern(Record):
    """A pattern of a secret."""

    name: str
    """Kind of secret, for the report."""
    marks: tuple[str, ...]
    """Fixed strings: every secret of this kind contains one. Searched first, because that is fast."""
    regex: str
    """Matches the secret."""
    within: tuple[str, ...] = ()
    """Globs of the files to search; all files if empty."""

    @cached_property
    def compiled(self) -> re.Pattern[bytes]:
        """Return the compiled regex."""
        return re.compile(self.regex.encode())


class Tool(Record):
    """Software that is only needed to build, or that a server does not need."""

    name: str
    """Kind of tool, for the report."""
    packages: tuple[str, ...] = ()
    """Globs of Debian packages."""
    but: tuple[str, ...] = ()
    """Globs of packages to exclude."""
    distributions: tuple[str, ...] = ()
    """Python distributions."""
    files: tuple[str, ...] = ()
    """Globs of paths."""
    unless: tuple[str, ...] = ()
    """Debian packages: variants whose base requests one of them compile at run time, so the tools may stay."""


class Allowed(Record):
    """An exception to a rule."""

    rule: Rule
    path: str
    """Glob of the path."""
    because: Because


class HardeningPolicy(Record):
    """hardening.yaml as written."""

    schema_: Literal[1] = Field(alias="schema")
    """Version of the file format."""
    files: Mapping[str, str]
    """Glob of a path → secrets that such a file contains."""
    patterns: tuple[Pattern, ...]
    tools: tuple[Tool, ...]
    writable: tuple[str, ...]
    """Paths that the image's user may write to."""
    allow: tuple[Allowed, ...] = ()


class Secret(NamedTuple):
    """Where bytes have a secret. Never the secret itself."""

    kind: str
    line: int
    """From 1."""


def read_policy(project: Project) -> HardeningPolicy:
    """Return the policy with what the project changes. Raises InputError with the position of each problem."""
    return validate_document(HardeningPolicy, read_layers(project, POLICY_FILE))


def find_secrets(path: str, data: bytes, patterns: Sequence[Pattern]) -> Iterator[Secret]:
    """Yield the secrets in some bytes of a file, one for each pattern."""
    for pattern in patterns:
        if pattern.within and not any(fnmatchcase(path, glob) for glob in pattern.within):
            continue
        has_mark = any(mark.encode() in data for mark in pattern.marks)
        if has_mark and (match := pattern.compiled.search(data)):
            yield Secret(pattern.name, data.count(b"\n", 0, match.start()) + 1)


def find_committed_secrets(project: Project, contents: Contents) -> Iterator[Problem]:
    """Yield each file of a project that has a secret: all that it says is committed, or is in an image."""
    if not project.list_layer_files(POLICY_FILE):
        return
    patterns = [pattern.model_copy(update={"within": ()}) for pattern in read_policy(project).patterns]
    for path, data in contents:
        for secret in find_secrets("", data, patterns):
            yield f"{project.shown(path)}: contains a secret: {secret.kind} (line {secret.line})", COMMITTED_HINT
