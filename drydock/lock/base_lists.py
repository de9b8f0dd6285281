"""images/ROW/vllm.json: what the vLLM in an adopted base says of itself, as the base's layers have it. IO.

The record belongs to one digest of the base. Anyone may have written what is in it: it becomes text that is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from drydock.core.errors import StaleError
from drydock.core.files import parse_any_json, read_bounded
from drydock.core.project import Project
from drydock.inputs.device_code import DeviceCode
from drydock.model.names import RelativePath
from drydock.model.record import Digest, Record
from drydock.model.variant import Variant

FILE = "vllm.json"
"""In the folder of a row, and next to the profile in its image."""
LARGEST = 1 << 20
"""Bytes of a record. Those of vLLM 0.32 have 0.1 million."""
MOST_ENTRIES = 10_000
"""Entries of one list; vLLM 0.32 has 600 flags."""
LONGEST_ENTRY = 2000
"""Characters. Some lists give a reason in a few sentences."""
TABLES = (
    *("attention", "constructor_packages", "flags"),
    *(
        "float16_refused",
        "imports",
        "keys",
        "later_architectures",
        "platform_quantisations",
        "processor_packages",
        "processors",
        "ranges",
    ),
    *("removed_architectures", "required_packages"),
)
"""Lists that have a value for each entry, as templates/tools/read_vllm.py makes them: code looks values up in them."""
WITH_NUMBERS = ("ranges",)
"""Lists with numbers too: the least and the most of an option."""


Library = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,80} [0-9A-Za-z.!+-]{1,80}$")]
MOST_LIBRARIES = 100
"""Libraries with code for cards; a dozen are looked for."""


class BaseLists(Record):
    """What the vLLM in a base says of itself."""

    digest: Digest
    """The base, or its index."""
    lists: Mapping[str, Any]
    """Name of a list → its entries, as read_vllm.py describes them."""
    assumed: str = ""
    """Why vLLM may have more than these lists say; empty if it has not."""
    code: Mapping[Library, Mapping[RelativePath, DeviceCode]] = Field(
        default={}, max_length=MOST_LIBRARIES, exclude_if=lambda code: not code
    )
    """Library, such as torch 2.14.0 → its files that have code for cards. It is not in the row's image."""

    @field_validator("lists")
    @classmethod
    def _check_lists(cls, lists: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse what is no list of words, and words that a terminal would not only print. Raises ValueError."""
        for name, entries in lists.items():
            is_table = name.removesuffix("_of_release") in TABLES
            if not isinstance(entries, dict if is_table else (list, tuple)):
                raise ValueError(f"{name!a:.60}: expected a {'table' if is_table else 'list'} of words")  # noqa: TRY004 - what pydantic reports
            if len(entries) > MOST_ENTRIES:
                raise ValueError(f"{name!a:.60}: {len(entries)} entries, expected at most {MOST_ENTRIES}")
            for word in (name, *_list_words(entries, with_numbers=name in WITH_NUMBERS)):
                if len(word) > LONGEST_ENTRY or not word.isprintable():
                    raise ValueError(f"{name!a:.60}: expected printable text, found {word!a:.60}")
        return lists


def _list_words(entries: Any, *, with_numbers: bool) -> Iterator[str]:
    """Yield all words of a list, or of a table with its values. Raises ValueError for anything else."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, Mapping):
        yield from _list_words([*entries, *entries.values()], with_numbers=with_numbers)
    elif isinstance(entries, (list, tuple)):
        for entry in entries:
            yield from _list_words(entry, with_numbers=with_numbers)
    elif not (with_numbers and isinstance(entries, (int, float))):
        raise ValueError(f"expected text, found {entries!a:.60}")


def name_file(row: str) -> str:
    """Return the name of a row's record in the project."""
    return f"images/{row}/{FILE}"


def read_base_lists(project: Project, variant: Variant) -> BaseLists | None:
    """Read what the base of an adopted row says; None if it was not read, or of another digest.

    Raises StaleError for a damaged file.
    """
    path = project / name_file(variant.id)
    if not variant.is_adopted or not path.is_file():
        return None
    record = parse_base_lists(path)
    return record if record.digest == getattr(variant.base, "digest", None) else None


def parse_base_lists(path: Path) -> BaseLists:
    """Read a record. Raises StaleError for a damaged file."""
    try:
        return BaseLists.model_validate(parse_any_json(read_bounded(path, LARGEST)))
    except (ValueError, OSError) as error:
        hint = "remove the file, and run ./inv adopt with --read-layers"
        raise StaleError(f"{path}: invalid lists of vLLM: {error}", hint=hint) from error
