"""Records of what a project puts into its images, on top of what drydock's rows have. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from drydock.model.names import AbsolutePath, Line, OneLine, RelativePath, make_text_constraint
from drydock.model.record import Because, Identifier, Record


def _not_ours(name: str) -> str:
    if name.startswith("io.drydock."):
        raise ValueError("another name: labels of drydock begin with io.drydock")
    return name


LabelName = Annotated[
    str,
    make_text_constraint(
        r"^[a-z0-9]+([.-][a-z0-9]+)*$",
        "a label's name of lower-case letters, digits, . and -, such as com.example.team",
    ),
    AfterValidator(_not_ours),
]
"""A label's name, such as com.example.team."""
User = Annotated[
    str,
    make_text_constraint(r"^([1-9][0-9]{0,8}(:[0-9]{1,9})?)?$", "UID or UID:GID in quotes, such as 20000:0; no root"),
]


class Block(Record):
    """Lines of a Dockerfile, as they are: the way out for what no key says. drydock checks nothing in them."""

    name: Identifier
    """Name of the block, for the comment above it."""
    because: Because
    lines: tuple[Line, ...]
    """Instructions; they run without network, as root where the base's user is root, before the image's own USER."""


class Additions(Record):
    """What is added at the end of an image. Paths are below the project's folder."""

    certificates: RelativePath | None = None
    """Folder with *.crt files in PEM: authorities that the image trusts: Debian's and Red Hat's store, and certifi."""
    files: Mapping[AbsolutePath, RelativePath] = {}
    """Path in the image → file of the project, which is readable for every user."""
    labels: Mapping[LabelName, OneLine] = {}
    """More labels of the image."""
    user: User = Field(default="", description="Optional: UID, or UID:GID, instead of 10001:0; no root.")
    dockerfile: tuple[Block, ...] = ()
    """Lines of a Dockerfile that no key expresses."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is added."""
        return self == Additions()

    def over(self, below: Additions) -> Additions:
        """Return these additions over others: tables are merged key by key, blocks follow one another."""
        return Additions(
            certificates=self.certificates or below.certificates,
            files={**below.files, **self.files},
            labels={**below.labels, **self.labels},
            user=self.user or below.user,
            dockerfile=(*below.dockerfile, *self.dockerfile),
        )
