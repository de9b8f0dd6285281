"""Known failures → docs/failures.md, and the same page in each language that has texts. Pure, but for reading them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.config.failures import read_failures
from drydock.core.project import Project
from drydock.model.checks import Failure
from drydock.model.variant import Variant
from drydock.pages.markdown import make_anchor
from drydock.pages.reference_pages import owners_of

NAME = "failures.md"
_WIDEST = 120
"""Characters of a line, as in pages that are written by hand. A heading and a link stay on one line."""


class _Labels(NamedTuple):
    """What the page says in one language."""

    title: str
    common: str
    fix: str
    before: str
    source: str
    folder: str
    """The page's folder below docs/."""


_LABELS = {
    "en": _Labels(
        """# Failures by symptom

    docker run --rm IMG explain 'RuntimeError: No HIP GPUs are available'   # or an exit code: explain 137
    docker logs CONTAINER 2>&1 | docker run --rm -i IMG explain -

`explain` finds the entries of this page that a line of a log or an exit code shows, of its image's accelerator and of
any: causes first, then what follows from them, then notes. It reads the whole log on standard input or in a file
(`explain FILE`), and needs no device. The exit code is 13 if it knows nothing.

An entry's heading is the line as it is printed. Below it are the cause, what to do, and where that is known from.
*Before* names the finding with which `check` would have told it. Search this page for the words of your line.

Written by `./inv docs` from `templates/failures.yaml` and `templates/<accelerator>/failures.yaml`.
""",
        "Any accelerator",
        "**Fix:** {}",
        "**Before:** {}",
        "[Source]({})",
        "",
    ),
    "zh": _Labels(
        """# 按现象查找故障

[English](../failures.md) · 中文

    docker run --rm IMG explain 'RuntimeError: No HIP GPUs are available'   # 或退出码：explain 137
    docker logs CONTAINER 2>&1 | docker run --rm -i IMG explain -

`explain` 根据一行日志或退出码，找出本页中的条目：镜像所属加速器的，以及所有加速器共有的。
先列原因，再列后果，最后列提示。它读取标准输入或文件（`explain FILE`）中的整个日志，不需要设备。
没有已知条目时退出码为 13。加上 `--lang zh`，输出为中文。

每个条目的标题是打印出来的原文，其下是原因、处理方法和依据。
“事前”列出 `check` 本可提前报告的检查项。请用日志中的词语搜索本页。

本页由 `./inv docs` 根据 `templates/failures.yaml` 和 `templates/<accelerator>/failures.yaml` 生成。
""",
        "所有加速器",
        "**处理**：{}",
        "**事前**：{}",
        "[依据]({})",
        "zh/",
    ),
}


def render_failure_pages(project: Project, variants: Sequence[Variant]) -> dict[Path, str]:
    """Return each page with its text; none for a project that is not drydock itself. Raises InputError."""
    if project.below:
        return {}
    docs = project / "docs"
    return {
        docs / labels.folder / NAME: _render_failure_page(project, variants, name) for name, labels in _LABELS.items()
    }


def _render_failure_page(project: Project, variants: Sequence[Variant], language: str) -> str:
    labels, owners = _LABELS[language], owners_of(variants)
    common = read_failures(project)
    titles = {variant.accelerator: variant.title for variant in variants}
    parts = [(labels.common, common.failures, common.translations.get(language, {}))]
    for name, title in sorted(titles.items()):
        known_failures = read_failures(project, name)
        group = {item: failure for item, failure in known_failures.failures.items() if item not in common.failures}
        parts += [(title, group, known_failures.translations.get(language, {}))] if group else []
    entries = (
        f"\n## {title}\n{''.join(_format_failure(name, item, labels, words, owners) for name, item in group.items())}"
        for title, group, words in parts
    )
    return labels.title + "".join(entries)


def _format_failure(
    name: str, failure: Failure, labels: _Labels, words: Mapping[str, str], owners: Mapping[str, str]
) -> str:
    up = "../" if labels.folder else ""
    english = "（英文）" if labels.folder else ""
    before = f"[{failure.check}]({up}{_link_finding(failure.check, owners)}){english}" if failure.check else ""
    source = failure.source.removeprefix("docs/")
    facts = (
        labels.fix.format(_escape_prose(words.get(failure.remedy, failure.remedy))),
        labels.before.format(before) if before else "",
        labels.source.format(source) if source == failure.source else labels.source.format(f"{up}{source}") + english,
    )
    cause = _escape_prose(words.get(failure.cause, failure.cause))
    listed = "".join(f"{_wrap_text(f'- {text}', '  ')}\n" for text in facts if text)
    return f"\n### {make_anchor(name)}{_format_code(failure.symptom)}\n\n{_wrap_text(cause)}\n\n{listed}"


def _wrap_text(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDEST, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _link_finding(number: str, owners: Mapping[str, str]) -> str:
    prefix = number.partition("-")[0]
    owner = owners.get(prefix)
    return f"reference/{owner or 'findings'}.md#{number.lower()}"


def _format_code(text: str) -> str:
    """Return a line as code, whatever backticks it has."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _escape_prose(text: str) -> str:
    """Return text as Markdown shows it, with what is between backticks as it is."""
    return "".join(_escape_parts(text))


def _escape_parts(text: str) -> Iterator[str]:
    for part in re.split("(`[^`]*`)", text):
        yield part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part)
