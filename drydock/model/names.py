r"""Types of the texts in records that reach a command, a path, a Dockerfile or a shell. Pure.

Whoever writes a lock, a matrix or an index may be hostile, so each type allows only what its use needs: no name begins
with a dash (an option), no path has a part `..`, no text has a line break. The patterns are in the JSON Schemas too.
They use only what Rust's, Python's and JavaScript's regular expressions agree on; `\d` for example matches other digits
in Rust.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as ParsedRequirement
from pydantic import AfterValidator, StringConstraints

from entrypoints.core import text

EXPECTED: dict[str, str] = {}
"""Pattern → what it allows, in the words of error messages."""


def make_text_constraint(pattern: str, expected: str) -> StringConstraints:
    """Return the constraint of a pattern, and note what it allows in words."""
    EXPECTED[pattern] = expected
    return StringConstraints(pattern=pattern)


_HIDDEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
UNSEEN = re.compile(f"[{_HIDDEN}]")
"""Control characters, line separators, and what reverses the order of text on a screen."""
_PART = r"\.?[A-Za-z0-9_+][A-Za-z0-9._+~:@=-]*"
_GLOB = r"\.?[A-Za-z0-9_+*?\[][A-Za-z0-9._+~:@=*?\[\]-]*"
_DISTRIBUTION = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9.!+_-]*"
_HOST = r"[A-Za-z0-9\[][A-Za-z0-9._~:@\[\]-]*"

OneLine = Annotated[str, make_text_constraint(f"^[^{_HIDDEN}]*$", "text on one line, without control characters")]
Line = Annotated[
    str, make_text_constraint(f"^[^{_HIDDEN}]+$", "text on one line, without control characters, and not empty")
]
Word = Annotated[str, make_text_constraint(r"^[A-Za-z0-9_.,:=/-]+$", "a word of letters, digits and _ . , : = / -")]
Commit = Annotated[str, make_text_constraint(r"^[0-9a-f]{40}$", "a git commit: 40 hexadecimal digits in lower case")]
Ref = Annotated[
    str,
    make_text_constraint(r"^(?:[A-Za-z0-9_][A-Za-z0-9._/+-]*)?$", "a tag or branch that does not begin with a dash"),
]
RepositoryUrl = Annotated[
    str,
    make_text_constraint(
        rf"^(?:(?:(?:https?|ssh|git)://{_HOST}|file://)(?:/[A-Za-z0-9._~:@%+=/-]*)?)?$",
        "the URL of a repository, with https, ssh, http, git or file",
    ),
]
ArchiveUrl = Annotated[
    str,
    make_text_constraint(
        rf"^(?:https?://{_HOST}(?:/[A-Za-z0-9._~@%+=-]+)+\.tar\.(?:gz|bz2))?$",
        "the http or https address of a .tar.gz or .tar.bz2 file",
    ),
]
Filename = Annotated[
    str,
    make_text_constraint(
        r"^[A-Za-z0-9_][A-Za-z0-9._+~!@=-]*$",
        "a file name of letters, digits and . _ + ~ ! @ = - that begins with a letter or digit",
    ),
]
FileName = Annotated[
    str, make_text_constraint(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$", "the name of a file, without a folder")
]
FilenameGlob = Annotated[
    str,
    make_text_constraint(
        r"^[A-Za-z0-9_*?\[][A-Za-z0-9._+~!@=*?\[\]-]*$", "a file name, or a pattern of one with * ? [ ]"
    ),
]
RelativePath = Annotated[
    str,
    make_text_constraint(
        f"^{_PART}(?:/{_PART})*$", "a path below the folder, of letters, digits and . _ + ~ : @ = - without .."
    ),
]
RelativeFolder = Annotated[
    str,
    make_text_constraint(
        rf"^(?:\.|{_PART}(?:/{_PART})*)$", "a folder below the source, without .., or . for the source itself"
    ),
]
RelativeGlob = Annotated[
    str,
    make_text_constraint(f"^{_GLOB}(?:/{_GLOB})*$", "a path below the folder, or a pattern with * ? [ ], without .."),
]
AbsolutePath = Annotated[
    str, make_text_constraint(f"^(?:/{_PART})+$", "an absolute path of letters, digits and . _ + ~ : @ = -")
]
AbsoluteGlob = Annotated[str, make_text_constraint(f"^(?:/{_GLOB})+$", "an absolute path, or a pattern with * ? [ ]")]
RecordGlob = Annotated[
    str, make_text_constraint(r"^[A-Za-z0-9._+~*?\[][A-Za-z0-9._+~@=/*?\[\]-]*$", "a pattern of paths in RECORD")
]
Distribution = Annotated[str, make_text_constraint(f"^{_DISTRIBUTION}$", "the name of a Python distribution")]
Version = Annotated[str, make_text_constraint(f"^{_VERSION}$", "a version, such as 2.13.0+cpu")]


@functools.cache
def _check_requirement(text: str) -> str:
    try:
        ParsedRequirement(text)
    except InvalidRequirement as error:
        raise ValueError("a requirement in pip's syntax, such as numpy>=2") from error
    return text


Requirement = Annotated[
    str,
    make_text_constraint(
        rf"""^{_DISTRIBUTION}(?:[ \[<>=!~;][A-Za-z0-9._ \[\],<>=!~*+;'"()-]*)?$""",
        "a requirement in pip's syntax, such as numpy>=2, without an address or an option",
    ),
    AfterValidator(_check_requirement),
]
PinnedSdist = Annotated[
    str,
    make_text_constraint(f"^(?:{_DISTRIBUTION}(?:=={_VERSION})?)?$", "a source distribution, such as vllm-tpu==0.32.0"),
]
Module = Annotated[
    str, make_text_constraint(r"^[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*$", "the name of a Python module")
]
VariableName = Annotated[
    str, make_text_constraint(f"^{text.VARIABLE_NAME.pattern}$", "the name of an environment variable")
]
SettingName = Annotated[str, make_text_constraint(r"^[A-Za-z0-9_.-]+$", "an environment variable or a flag of vLLM")]
PackageName = Annotated[str, make_text_constraint(r"^[a-z0-9][a-z0-9+.-]*$", "the name of a Debian package")]
PackageVersion = Annotated[
    str, make_text_constraint(r"^[A-Za-z0-9][A-Za-z0-9.+~:-]*$", "the version of a Debian package")
]
Suite = Annotated[str, make_text_constraint(r"^[a-z][a-z0-9.-]*$", "a release by code name, such as bookworm")]
Release = Annotated[str, make_text_constraint(r"^[a-z][a-z0-9.:-]*$", "a distribution's release, such as ubuntu:22.04")]
Architecture = Annotated[str, make_text_constraint(r"^[a-z0-9][a-z0-9-]*$", "a Debian architecture, such as amd64")]
Snapshot = Annotated[str, make_text_constraint(r"^[0-9]{8}T[0-9]{6}Z$", "a time such as 20261121T041500Z")]
IndexUrl = Annotated[
    str,
    make_text_constraint(
        r"^https://[A-Za-z0-9.-]+(?:/[A-Za-z0-9._~-]+)*$",
        "an https address without user, port or query; a password belongs into pip's configuration or ~/.netrc",
    ),
]
ImageReference = Annotated[
    str,
    make_text_constraint(
        r"^[A-Za-z0-9\[][A-Za-z0-9._:\[\]-]*(?:/[A-Za-z0-9][A-Za-z0-9._:-]*)*$",
        "an image by name and tag, such as docker.io/a/b:1; a digest has the key `digest`",
    ),
]
