"""Texts that an attacker puts into a record, and each place of a record where a text can stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

CANARY = "c4nary"
"""Part of every hostile text, by which it is found in what is made of it."""
ATTACKS = (
    f"`touch {CANARY}`",
    f"$(touch {CANARY})",
    f"; touch {CANARY} #",
    f"' ; touch {CANARY} ; '",
    f'" && touch {CANARY} && "',
    f"\nRUN touch {CANARY}",
    f"\r\nCOPY / /{CANARY}",
    f"\u2028USER {CANARY}",
    f"\\\n{CANARY}",
    f"<<{CANARY}",
    f"--upload-pack=touch {CANARY}",
    f"-{CANARY}",
    f"../../{CANARY}",
    f"/{CANARY}",
    f"a/../../{CANARY}",
    f"\x1b]0;{CANARY}\x07",
    f"a,target=/{CANARY}",
    f"${{{CANARY}}}",
    f"{CANARY}\x00",
    f"ext::sh -c {CANARY}",
    f"name @ file:///{CANARY}",
    f"# check=skip={CANARY}",
    f"{CANARY} * ? [a-z]",
)
Path = tuple[str | int, ...]


def texts() -> st.SearchStrategy[str]:
    """Return attacks, also in the middle of other text."""
    attack = st.sampled_from(ATTACKS)
    around = st.text(alphabet="a.-_/ '\"`$;|&<>\\\n{}*", max_size=4)
    return st.one_of(attack, st.tuples(around, attack, around).map("".join))


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the place of each text in plain data; that of a key ends with "<key>"."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*path, str(key), "<key>")
            yield from places(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def planted(value: Any, path: Path, text: str) -> Any:
    """Return plain data, or a record without validation, with a text at a place."""
    if not path:
        return text
    step, rest = path[0], path[1:]
    if isinstance(value, BaseModel) and rest == ("<key>",):  # a field, whose name is no data
        return value
    if isinstance(value, BaseModel):
        name = next(
            name
            for name, field in type(value).model_fields.items()
            if step in (name, field.alias, field.serialization_alias)
        )
        return value.model_copy(update={name: planted(getattr(value, name), rest, text)})
    if isinstance(value, Mapping):
        inner = {text: value[str(step)]} if rest == ("<key>",) else {str(step): planted(value[str(step)], rest, text)}
        return {**{key: sibling for key, sibling in value.items() if key != step}, **inner}
    changed = [planted(inner, rest, text) if index == step else inner for index, inner in enumerate(value)]
    return type(value)(changed)
