"""Data → the pages of docs/reference/: images, findings, one page an accelerator, topologies. Pure, but for locks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from drydock.core.project import Project
from drydock.lock import code_lists
from drydock.lock.vllm_lists import list_every
from drydock.model.checks import Retired
from drydock.model.variant import Variant
from drydock.pages import files_page, matrix_table, topology_tables, variables_page
from drydock.pages.findings_page import format_finding_items, list_finding_rows, owners_of, render_findings_page
from drydock.pages.markdown import each_once, format_stacks, make_table
from drydock.run.option_reasons import list_record_options
from entrypoints.checks import code_for_cards
from entrypoints.model.parsers import REASONING, TOOLS, Rule

FOLDER = Path("docs", "reference")
NOTHING = "no further options"
_Row = tuple[str, ...]


def render_reference_pages(
    project: Project, variants: Sequence[Variant], rows: Iterable[Mapping[str, Any]], retired: Sequence[Retired]
) -> dict[Path, str]:
    """Return each page with its text. `rows` are those of `matrix`."""
    names = sorted({variant.accelerator for variant in variants})
    owners = owners_of(variants)
    texts = {"images": render_images_page(variants, rows)}
    texts["findings"] = render_findings_page(variants, owners, retired)
    texts |= {name: render_accelerator_page(variants, name, owners) for name in names} | {
        "topology": render_topology_tables(variants)
    }
    for name in sorted({*code_lists.ACCELERATORS} & {*names}):
        texts[name] += render_code_table(
            project, name, [variant for variant in variants if variant.accelerator == name]
        )
    texts |= {
        "parsers": render_parsers_page(project),
        "variables": variables_page.render_variables_page(variants),
        "files": files_page.render_files_page(),
    }
    pages = {project.root / FOLDER / f"{name}.md": text for name, text in texts.items()}
    if not project.below:
        pages[project / "docs/zh/reference/findings.md"] = render_findings_page(variants, owners, retired, "zh")
    return pages


# --- parsers --------------------------------------------------------------------------------------------------------


_PARSERS = """# Parsers of tool calls and reasoning

    docker run --rm --mount "type=bind,src=$PWD/model,dst=/models/m,ro" IMG plan --model /models/m | grep parser

Which of vLLM's parsers a server gets: [how they are chosen](../container.md#tool-calls-and-reasoning). A row is for
these architectures of `config.json`. If it has marks, the chat template must contain all of them. The first row that a
model meets counts. Of two parsers, the first one that the image's vLLM has is taken. *In vLLM* is the oldest version
among drydock's rows that has the parser.

`docs/` and `vllm/` are folders of [vLLM's repository](https://github.com/vllm-project/vllm), `recipes` are files below
`models/` of [its recipes](https://github.com/vllm-project/recipes). If the source also adds a chat template, which
vLLM's wheel does not contain, `plan` names it. Written by `./inv docs` from `entrypoints/model/parsers.py`.
"""


def render_parsers_page(project: Project) -> str:
    """Return the page of vLLM's parsers."""
    head = ("family", "architectures", "marks", "parser", "in vLLM", "source")
    tables_of = {"Tool calls": (TOOLS, "tool_parsers"), "Reasoning": (REASONING, "reasoning_parsers")}
    parts = (
        f"\n## {title}\n\n{make_table(head, (_make_parser_row(rule, first_versions(project, kind)) for rule in rules))}"
        for title, (rules, kind) in tables_of.items()
    )
    return _PARSERS + "".join(parts)


def first_versions(project: Project, kind: str) -> dict[str, str]:
    """Return name → the oldest vLLM of drydock's rows that has it in a list."""
    versions: dict[str, str] = {}
    for lists in sorted(list_every(project), key=lambda lists: Version(lists.version)):
        for name in lists.lists.get(kind, ()):
            versions.setdefault(name, lists.version)
    return versions


def _make_parser_row(rule: Rule, since: Mapping[str, str]) -> Sequence[str]:
    lists = (rule.architectures, rule.marks, rule.parsers)
    versions = ", ".join(since.get(name, "none of drydock's rows") for name in rule.parsers)
    source = f"{rule.source}; adds `{rule.template}`" if rule.template else rule.source
    return rule.family, *(", ".join(f"`{text}`" for text in names) for names in lists), versions, source


# --- images ---------------------------------------------------------------------------------------------------------


_IMAGES = """# Images

What each image is made of, and how far tests have shown it to work. Written by `./inv docs` from `matrix.yaml`, the
locks and the records of the last release; `./inv matrix` compares these with the inputs of today, and `--json` has more
of each image, such as its digest and its base's tag.

The tiers, from weakest to strongest: `rendered` (the Dockerfile renders and passes lint), `stand-in` (the image builds
and starts on stand-in inputs, which tests of each release show), `packages` (built from the real packages), `hardware`
(served a real model on the real device). The date is the day on which the tier was shown. *Foundation reproduced*: two
builds without cache gave the same layers below the entrypoint. `images/IMAGE/record.json` names tests, digests and
commits. *Locked* names the inputs that are not pinned: [build pins them](../lock.md#unpinned-inputs) where it reaches
their server.

Every image builds without network, unless the table says otherwise.
"""


def render_images_page(variants: Iterable[Variant], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the page of images: a table for each accelerator."""
    rows_by_accelerator: dict[str, list[Mapping[str, Any]]] = {}
    titles = {variant.accelerator: variant.title for variant in variants}
    for row in rows:
        rows_by_accelerator.setdefault(row["accelerator"], []).append(row)
    head = ("image", "aliases", "vLLM", "base", "platforms", "locked", "tier")
    parts = (
        f"\n## {titles[name]}\n\n{make_table(head, map(_make_image_row, image_rows))}"
        for name, image_rows in sorted(rows_by_accelerator.items())
    )
    return _IMAGES + "".join(parts)


def _make_image_row(row: Mapping[str, Any]) -> Sequence[str]:
    locked = matrix_table.format_locked(row) + ("" if row["hermetic"] else "; needs a network to build")
    platforms = ", ".join(platform.removeprefix("linux/") for platform in row["platforms"])
    base = row["base"] if row["base"].startswith("debian:") else row["base"].rpartition(":")[0]
    names = (f"`{row['id']}`", ", ".join(row["aliases"]), row["vllm"], base, platforms)
    return *names, locked, describe_proof(row)


def describe_proof(row: Mapping[str, Any]) -> str:
    """Return the tier that was shown, with its day, and whether two builds agreed."""
    tier = f"{row['proof']}, {row['date']}" if row["date"] else str(row["proof"])
    return tier + ("; foundation reproduced" if row["reproduced"] else "")


# --- an accelerator -------------------------------------------------------------------------------------------------


_ACCELERATOR = """# {title}: reference

Options and findings of the {title} images ([how to use them](../{guide}.md)). Written by `./inv docs` from
`templates/{name}/`.
"""
_OPTIONS = """
## Container options

`./inv run --target {name}` sets these options, where the machine and the server need them:

"""
_OWN = """
## Findings

Of {title} only ([how to read them](findings.md)):

"""
_THRESHOLDS = """
## Thresholds

Decisions compare with `thresholds` in `templates/{name}/accelerator.yaml` or in a stack (`templates/{name}/stacks/`),
each with its reason and source. `plan` prints those that decided something.
"""


def render_accelerator_page(variants: Sequence[Variant], name: str, owners: Mapping[str, str]) -> str:
    """Return an accelerator's page."""
    accelerator_variants = [variant for variant in variants if variant.accelerator == name]
    prefixes = {prefix for prefix, owner in owners.items() if owner == name}
    rows = [
        (row, holders)
        for row, holders in list_finding_rows(accelerator_variants, format_stacks)
        if row.number.partition("-")[0] in prefixes
    ]
    guide = name if accelerator_variants[0].serves else "topology"
    texts = {"title": accelerator_variants[0].title, "name": name, "guide": guide}
    parts = [_ACCELERATOR.format(**texts), _OPTIONS.format(**texts), render_run_options(accelerator_variants)]
    if rows:
        parts += [_OWN.format(**texts), format_finding_items(rows)]
    if any(variant.thresholds for variant in accelerator_variants):
        parts.append(_THRESHOLDS.format(**texts))
    return "".join(parts)


_CODE = """
## Code for cards

Which cards the PyTorch and the vLLM of a row have code for, by their files. *PTX*: the card's driver compiles it at the
first start (CODE-002). *none*: `plan` ends (CODE-001). For a vLLM that a row compiles, the architectures that its build
names count. Not known before they are locked or built: {unknown}.

"""


def render_code_table(project: Project, accelerator: str, variants: Sequence[Variant]) -> str:
    """Return the section with rows and the cards that their libraries have code for."""
    code_of_rows = code_lists.list_rows_code(project, accelerator)
    cards = [*dict.fromkeys(card for (name, _), its in code_lists.CARDS.items() if name == accelerator for card in its)]
    lines: list[_Row] = []
    for variant in variants:
        for platform, code in code_of_rows.get(variant.id, {}).items():
            card_codes = code_lists.CARDS.get((accelerator, platform), ())
            cells = (_judge_card(card, code) if card in card_codes else "" for card in sorted(cards, key=_card_order))
            lines += [(f"{variant.id}, {platform}", ", ".join(sorted(code)), *cells)] if code else []
    unknown = [f"`{row.id}`" for row in variants if not any(code_of_rows.get(row.id, {}).values())]
    table = make_table(("row", "read of", *sorted(cards, key=_card_order)), lines)
    return _CODE.format(unknown=", ".join(unknown) or "no row") + table


def _judge_card(card: str, code: code_for_cards.Code) -> str:
    if code_for_cards.find_missing_code(card, code):
        return "none"
    return "PTX" if code_for_cards.find_compiled_code(card, code) else "yes"


def _card_order(card: str) -> list[str | int]:
    """Return what sorts 9.0 before 10.0, and gfx90a before gfx1100."""
    return [len(card), card]


def render_run_options(variants: Sequence[Variant]) -> str:
    """Return the options that containers of one accelerator are started with: a table for each group of stacks."""
    option_holders = each_once(((word, word) for word in _list_run_options(variant)) for variant in variants)
    groups: dict[str, list[tuple[str, str]]] = {}
    for (option, because), holders in option_holders:
        groups.setdefault(format_stacks(variants, holders), []).append((f"`{option}`", because))
    every = {of: make_table(("option", "reason"), lines) for of, lines in groups.items()}
    parts = (text if of == "all" else f"Stacks: {of}\n\n{text}" for of, text in every.items())
    return "\n".join(parts)


def _list_run_options(variant: Variant) -> Iterator[tuple[str, str]]:
    """Yield each option with its reason, and the oldest engine where the vendor says more of it than run.md."""
    options = [(option, because) for option, because, _ in list_record_options(variant.run)]
    yield from options or [(NOTHING, "the options that every container gets are enough")]
    engine, _, layers = variant.compression.summary.partition(": ")
    if variant.compression.because:
        yield f"engine: {engine}", f"{layers}. {variant.compression.because}"


# --- topologies -----------------------------------------------------------------------------------------------------


_TOPOLOGY = """# Topologies: reference

Written by `./inv docs`. [Several machines](../topology.md) explains how they are used, and
[Files](files.md#topologyyaml) has the keys of a topology.yaml.
"""
_CONNECTORS = """How prefill and decode servers exchange the KV cache: `--kv-transfer-config` of prefill, `kv_role` of
decode. `kv_transfer` in `templates/` has the sources.

"""
_ROLES = """What stacks set for servers of one role only: `--role`, which a topology's groups give their servers. A
setting of yours wins. In all other images the roles differ in their connector only.

"""


def render_topology_tables(variants: Sequence[Variant]) -> str:
    """Return the page of topologies: connectors, settings of roles, findings."""
    parts = {
        "Connectors": _CONNECTORS + topology_tables.format_connectors(variants),
        "Roles": _ROLES + topology_tables.roles(variants),
        "Findings": "".join(topology_tables.list_topology_findings()),
    }
    return _TOPOLOGY + "".join(f"\n## {heading}\n\n{text}" for heading, text in parts.items())
