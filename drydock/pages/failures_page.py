"""Known failures → docs/failures.md, and the same page in each language that has texts. Pure, but for reading them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from drydock.config.failures import read_failures
from drydock.core.project import Project
from drydock.model.checks import Failure
from drydock.model.variant import Variant
from drydock.pages.findings_page import owners_of
from drydock.pages.markdown import make_table

NAME = "failures.md"


class _Labels(NamedTuple):
    """What the page says in one language."""

    introduction: str
    common: str
    columns: tuple[str, ...]
    folder: str
    """The page's folder below docs/."""


_LABELS = {
    "en": _Labels(
        """# Failures by symptom

    docker run --rm IMG explain 'RuntimeError: No HIP GPUs are available'   # or an exit code: explain 137
    docker logs CONTAINER 2>&1 | docker run --rm -i IMG explain -

`explain` finds what a line of a log or an exit code shows among {count} known failures, those of its image's
accelerator and of any: causes first, then what follows from them, then notes. What another cause of the log explains is
left out. Where none of these is a cause it looks among the other accelerators' failures, and says whose it found. It
reads the whole log on standard input or in a file (`explain FILE`), and needs no device. The exit code is 13 if it
knows nothing.

This page has the {shown} that `check` can tell before the start, with the finding that tells it. Every other one is in
`templates/failures.yaml` and `templates/<accelerator>/failures.yaml`, from which `./inv docs` writes this page.
""",
        "Any accelerator",
        ("line", "cause", "what to do", "finding"),
        "",
    ),
    "zh": _Labels(
        """# 按现象查找故障

[English](../failures.md) · 中文

    docker run --rm IMG explain 'RuntimeError: No HIP GPUs are available'   # 或退出码：explain 137
    docker logs CONTAINER 2>&1 | docker run --rm -i IMG explain -

`explain` 根据一行日志或退出码，在 {count} 个已知故障中查找：镜像所属加速器的，以及所有加速器共有的。
先列原因，再列后果，最后列提示；日志中另一个原因已能解释的不再列出。
其中没有原因时，再在其他加速器的故障中查找，并说明属于哪种加速器。
它读取标准输入或文件（`explain FILE`）中的整个日志，不需要设备。
没有已知条目时退出码为 13。加上 `--lang zh`，输出为中文。

本页列出 `check` 可在启动前报告的 {shown} 个故障及其检查项。其余故障在 `templates/failures.yaml` 和
`templates/<accelerator>/failures.yaml` 中；本页由 `./inv docs` 据此生成。
""",
        "所有加速器",
        ("日志行", "原因", "处理", "检查项"),
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
    parts = [(labels.common, common.failures, common.translations.get(language, {}))]
    for name, title in sorted({variant.accelerator: variant.title for variant in variants}.items()):
        known_failures = read_failures(project, name)
        of_accelerator = {
            item: failure for item, failure in known_failures.failures.items() if item not in common.failures
        }
        parts.append((title, of_accelerator, known_failures.translations.get(language, {})))
    tables = ""
    for title, failures, words in parts:
        shown_failures = sorted(filter(lambda failure: failure.check, failures.values()), key=_find_place)
        rows = [_list_cells(failure, labels, words, owners) for failure in shown_failures]
        tables += f"\n## {title}\n\n{make_table(labels.columns, rows)}" if rows else ""
    every_failure = [failure for _, failures, _ in parts for failure in failures.values()]
    shown = sum(bool(failure.check) for failure in every_failure)
    return labels.introduction.format(count=len(every_failure), shown=shown) + tables


def _find_place(failure: Failure) -> tuple[bool, int]:
    """Return where a failure is in its table: exit codes first, by number; the others as in their file."""
    code = re.fullmatch(r"exit code (\d+)", failure.symptom)
    return (code is None, int(code[1]) if code else 0)


def _list_cells(
    failure: Failure, labels: _Labels, words: Mapping[str, str], owners: Mapping[str, str]
) -> tuple[str, ...]:
    finding = _link_finding(str(failure.check), owners, is_chinese=bool(labels.folder))
    prose = (_escape_prose(words.get(text, text)) for text in (failure.cause, failure.remedy))
    return _format_code(failure.symptom), *prose, finding


def _link_finding(number: str, owners: Mapping[str, str], *, is_chinese: bool) -> str:
    """Return a link to a finding; the findings of one accelerator are on an English page."""
    owner = owners.get(number.partition("-")[0])
    page = f"reference/{owner or 'findings'}.md#{number.lower()}"
    return f"[{number}](../{page})（英文）" if is_chinese and owner else f"[{number}]({page})"


def _format_code(text: str) -> str:
    """Return a line as code, whatever backticks it has."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _escape_prose(text: str) -> str:
    """Return text as Markdown shows it, with what is between backticks as it is."""
    return "".join(_escape_parts(text))


def _escape_parts(text: str) -> Iterator[str]:
    for part in re.split("(`[^`]*`)", text):
        yield part if part.startswith("`") else re.sub(r"([*<\[\]])", r"\\\1", part)
