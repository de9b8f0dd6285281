"""Environment variables → docs/reference/variables.md, and the table of an image's own in docs/container.md.

What people write is in variables.md; the tables are made of the stacks and of what CI needs. Pure, but for that file.
tests/contracts/test_ports.py compares the names with those that code reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from drydock.ci.ci_variables import GROUPS
from drydock.model.variant import ResolvedSetting, Variant
from drydock.pages.markdown import each_once, format_accelerators, format_rows, make_table

_PROSE = Path(__file__).with_name("variables.md")
"""The page, with a line in braces where each table comes. Its links are relative to docs/reference/."""


def make_image_table() -> str:
    """Return the variables of drydock's own that an image reads, as docs/container.md has them."""
    lines = _PROSE.read_text(encoding="utf-8").partition("## An image")[2].partition("## ")[0].splitlines()
    rows = "".join(f"{line}\n" for line in lines if line.startswith("| `DRYDOCK_"))
    return make_table(("variable", "description"), ()) + rows.replace("](../", "](")


def render_variables_page(variants: Sequence[Variant]) -> str:
    """Return the page."""
    tables = {
        "set by images": make_table(("variable", "value", "images", "reason"), _list_set_variables(variants)),
        "known to images": make_table(("group", "variables", "accelerators"), _list_known_groups(variants)),
        "jobs of CI": format_rows(_list_job_variables()),
    }
    page = _PROSE.read_text(encoding="utf-8")
    for name, table in tables.items():
        page = page.replace(f"{{{name}}}\n", table.replace("](", "](../"))
    return page


def _format_code_names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _list_set_variables(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    settings = (
        (
            ((item.setting, item.value, because),) * 2
            for item, because in _list_stated_settings(variant)
            if not item.setting.startswith("-")
        )
        for variant in variants
    )
    for (name, value, because), holders in sorted(each_once(settings), key=lambda entry: entry[0][0]):
        yield f"`{name}`", f"`{value}`", format_accelerators(variants, holders), because


def _list_stated_settings(variant: Variant) -> Iterator[tuple[ResolvedSetting, str]]:
    """Yield each setting with its reason, which names the role that has it; those of two roles once."""
    yield from ((item, item.because) for item in variant.settings)
    of_roles: dict[str, tuple[ResolvedSetting, list[str]]] = {}
    for role, profile in variant.roles.items():
        for item in profile.settings:
            of_roles.setdefault(item.model_dump_json(), (item, []))[1].append(role)
    for item, roles in of_roles.values():
        yield item, f"{' and '.join(roles)}: {item.because}"


def _list_known_groups(variants: Sequence[Variant]) -> Iterator[tuple[str, ...]]:
    """Yield the names of each group, by the accelerators that know them."""
    for group in ("shown", "compiling", "devices", "documented", "files"):
        names = each_once(((name, name) for name in getattr(variant.variables, group)) for variant in variants)
        names_by_holders: dict[str, list[str]] = {}
        for name, holders in names:
            names_by_holders.setdefault(format_accelerators(variants, holders), []).append(name)
        for holders_text, some in names_by_holders.items():
            yield group, _format_code_names(some), holders_text


def _list_job_variables() -> Iterator[tuple[str, str]]:
    purposes = {item.name: group.when for groups in GROUPS.values() for group in groups for item in group.variables}
    yield from ((f"`{name}`", when) for name, when in purposes.items())
