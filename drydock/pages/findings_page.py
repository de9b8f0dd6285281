"""Findings → docs/reference/findings.md and the same page in Chinese, and the items of an accelerator's page. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from drydock.model.checks import Check, Condition, KnownFinding, Retired
from drydock.model.variant import Variant
from drydock.pages.markdown import each_once, format_accelerators, make_anchor, make_table

SCRIPTED = "(`--fix-script`)"
LONG = 60
"""Characters of a fix above which a second finding refers to the first one with it."""
TOPOLOGY = "TOPO"
"""The prefix of findings that the topology's page lists."""


class FindingRow(NamedTuple):
    """One finding, as a page shows it."""

    number: str
    severity: str
    scope: str
    text: str
    fact: str
    """Where its check reads its fact; empty for a finding of code."""
    operator: str
    value: str
    fix: str
    is_scripted: bool


class FindingLabels(NamedTuple):
    """What pages of findings say in one language, in addition to the findings' own texts."""

    introduction: str
    columns: tuple[str, str, str]
    below: str
    meanings: Mapping[str, str]
    """Prefix → what its findings are about."""
    retired: str
    """Heading and introduction of the retired ids."""
    expected: str
    fix: str
    same_as: str
    separator: str
    """Between label and text."""
    comma: str
    """Between names."""
    holders: tuple[str, str]
    """`, {}` for accelerators that have a finding, and `all but {}` where fewer lack it."""
    operators: Mapping[str, str]
    scopes: Mapping[str, str]
    up: str
    """From the page to the pages of accelerators."""
    marker: str
    """Behind a link to an English page."""


ENGLISH = FindingLabels(
    introduction="""# Findings

A finding is a line of `check`, and of `plan`: what is wrong, what was found, what was expected, and what to do. Its id
is a contract: an id has one meaning in every image and every version, and a retired id is never used again. Scripts and
alerts can rely on it.

The prefix tells which part reports the finding:

{prefixes}
Some PLAN ids are of one accelerator only: they are older than the prefixes and keep their names.
[An example](../container.md#check-the-hosts-tuning) shows one finding as `check` prints it.

- Severity and text are those of a condition that is not met. A check whose condition is met is PASS, with the text
  `passed` of its file. A check whose fact cannot be read is UNKNOWN. *host* or *container* says where to fix it.
- *Expected* shows where a check reads its fact in a container, and the value that it expects. Findings without this
  line come from code, not from a check in YAML. The same id can expect another value for another stack.
- *Fix* says what to do, or names the finding above it with the same fix. `(--fix-script)`: `check --fix-script` prints
  the change as a script, which also keeps it across restarts.
- A finding that not all images have names its accelerators, or stacks of an accelerator.
- Words in braces are filled in when the finding is made.

`check` prints the source of each finding. Written by `./inv docs` from `templates/host.yaml` and
`templates/<accelerator>/`.
""",
    columns=("prefix", "about", "list"),
    below="below",
    meanings={
        "CODE": "code that the image has for the cards",
        "HOST": "settings of any host",
        "IMG": "the image itself",
        "NET": "the network between hosts, and between devices",
        "PLAN": "decisions that accelerators share",
        "PROBE": "facts that could not be read",
        "RUN": "options of the container",
        TOPOLOGY: "the plan of several machines",
    },
    retired="""
## Retired

Each id, with those that replace it; `retired` in `templates/host.yaml` has what it meant:

""",
    expected="expected",
    fix="fix",
    same_as="as {}",
    separator=": ",
    comma=", ",
    holders=(", {}", "all but {}"),
    operators={
        "eq": "=", "ne": "≠", "in": "one of", "not_in": "none of", "gte": "≥", "lte": "≤", "contains": "has",
        "absent": "absent", "present": "present", "version_gte": "≥", "version_lt": "<",
    },
    scopes={},
    up="",
    marker="",
)  # fmt: skip
CHINESE = FindingLabels(
    introduction="""# 检查结果

[English](../../reference/findings.md) · 中文

`check` 和 `plan` 的每一行都是一条检查结果：有什么问题、实际值、预期值、如何处理。编号是约定：
同一编号在所有镜像和版本中含义相同，停用的编号不会再次使用。脚本和告警可以依赖编号。

前缀说明由哪一部分报告：

{prefixes}
有些 PLAN 编号只属于一种加速器：它们早于这些前缀，名称保持不变。
[示例](../container.md#检查主机的调优)是 `check` 打印的一条结果。

- 级别和文字对应条件不满足的情况。条件满足时为 PASS，文字是文件中的 `passed`。无法读取时为 UNKNOWN。
  *主机*或*容器*说明在哪里处理。
- *预期*说明检查在容器中读取哪里，以及预期的值。没有这一行的结果来自代码，而不是 YAML 中的检查。
  同一编号在不同的软件栈中可以有不同的预期值。
- *处理*说明怎么做，或指出上面处理方法相同的那一条。`(--fix-script)`：`check --fix-script` 把修改打印成脚本，
  重启后仍然有效。
- 并非所有镜像都有的结果，会列出加速器或软件栈。
- 花括号中的词在产生结果时填入。

`check` 会打印每条结果的来源。本页由 `./inv docs` 根据 `templates/host.yaml` 和 `templates/<accelerator>/` 生成。
""",
    columns=("前缀", "内容", "列表"),
    below="下文",
    meanings={
        "CODE": "镜像中为加速卡编译的代码",
        "HOST": "所有主机的设置",
        "IMG": "镜像本身",
        "NET": "主机之间和设备之间的网络",
        "PLAN": "各加速器共有的决策",
        "PROBE": "无法读取的信息",
        "RUN": "容器的选项",
        TOPOLOGY: "多机的方案",
    },
    retired="""
## 停用的编号

每个编号和代替它的编号；原来的含义在 `templates/host.yaml` 的 `retired` 中：

""",
    expected="预期",
    fix="处理",
    same_as="同 {}",
    separator="：",
    comma="、",
    holders=("，{}", "除 {} 外"),
    operators={**ENGLISH.operators, "in": "属于", "not_in": "不属于", "contains": "包含", "absent": "不存在",
               "present": "存在"},
    scopes={"host": "主机", "container": "容器"},
    up="../../reference/",
    marker="（英文）",
)  # fmt: skip


def owners_of(variants: Sequence[Variant]) -> dict[str, str]:
    """Return prefix → the only accelerator that has findings with it."""
    holders: dict[str, set[str]] = {}
    for variant in variants:
        for row in _list_variant_findings(variant):
            holders.setdefault(_get_prefix(row.number), set()).add(variant.accelerator)
    shared = set(variants[0].findings)
    for variant in variants:
        shared &= set(variant.findings)
    common = {_get_prefix(number) for number in shared}
    return {prefix: min(names) for prefix, names in holders.items() if len(names) == 1 and prefix not in common}


def render_findings_page(
    variants: Sequence[Variant], owners: Mapping[str, str], retired: Iterable[Retired], language: str = "en"
) -> str:
    """Return the page of the findings that accelerators share, with the retired ids."""
    labels = CHINESE if language == "zh" else ENGLISH
    words = {
        text: translation
        for variant in variants
        for text, translation in variant.translations.get(language, {}).items()
    }
    rows = list(list_finding_rows(variants, format_accelerators))
    shared = sorted({_get_prefix(row.number) for row, _ in rows} - owners.keys())
    index = [(prefix, labels.meanings[prefix], f"[{labels.below}](#{prefix.lower()})") for prefix in shared]
    pages = {TOPOLOGY: "topology", **owners}
    titles = {variant.accelerator: words.get(variant.title, variant.title) for variant in variants}
    for prefix, page in pages.items():
        link = f"[{page}]({labels.up}{page}.md#findings){labels.marker}"
        index.append((prefix, labels.meanings[prefix] if prefix == TOPOLOGY else titles[page], link))
    parts = (
        f"\n## {prefix}\n\n"
        + format_finding_items((row for row in rows if row[0].number.startswith(prefix)), labels, words)
        for prefix in shared
    )
    retired_ids = "".join(f"- {line}\n" for line in _format_retired_ids(retired))
    introduction = labels.introduction.format(prefixes=make_table(labels.columns, sorted(index)))
    return f"{introduction}{''.join(parts)}{labels.retired}{retired_ids}"


def _format_retired_ids(retired: Iterable[Retired]) -> Iterator[str]:
    """Yield each retired id with the ids that have its meanings now, or with a meaning that no id has."""
    replaced: dict[str, list[str]] = {}
    for old in retired:
        replaced.setdefault(old.id, []).append(old.replaced_by or f"none ({old.meaning})")
    yield from (f"{number}: {', '.join(now)}" for number, now in replaced.items())


def format_finding_items(
    rows: Iterable[tuple[FindingRow, str]], labels: FindingLabels = ENGLISH, words: Mapping[str, str] = {}
) -> str:
    """Return an item for each finding with its holders: its text, what is expected, what to do; an anchor for each id.

    `words`: English text → the page's language.
    """
    first: dict[str, str] = {}
    items: dict[str, str] = {}
    for row, holders in rows:
        items[row.number] = items.get(row.number, "") + _format_finding_item(row, holders, first, labels, words)
    return "".join(item.replace("- ", f"- {make_anchor(number)}", 1) for number, item in items.items())


def _format_finding_item(
    row: FindingRow, holders: str, first: dict[str, str], labels: FindingLabels, words: Mapping[str, str]
) -> str:
    """Return an item; `first` has each fix that was written before, with its finding."""
    fix = words.get(row.fix, row.fix) + (f" {SCRIPTED}" if row.is_scripted else "")
    if (same := first.setdefault(fix, row.number)) != row.number and len(fix) > LONG:
        fix = labels.same_as.format(same)
    expected = f"`{row.fact}` {labels.operators[row.operator]} {row.value}".rstrip() if row.fact else ""
    with_holders, all_but = labels.holders
    names = labels.comma.join(holders.removeprefix("all but ").split(", "))
    names = all_but.format(names) if holders.startswith("all but ") else names
    of = "" if holders == "all" else with_holders.format(names)
    title = f"- **{row.number}** {row.severity} {labels.scopes.get(row.scope, row.scope)}{of}"
    lines = ((labels.expected, expected), (labels.fix, fix))
    details = "".join(f"    - {label}{labels.separator}{text}\n" for label, text in lines if text)
    return f"{title}{labels.separator}{words.get(row.text, row.text)}\n{details}"


def list_finding_rows(
    variants: Sequence[Variant], name_holders: Callable[[Sequence[Variant], Sequence[int]], str]
) -> Iterator[tuple[FindingRow, str]]:
    """Yield each finding of some variants once, by id, with the variants that have it as `name_holders` says."""
    finding_rows = each_once(((row, row) for row in _list_variant_findings(variant)) for variant in variants)
    for row, holders in sorted(finding_rows, key=lambda entry: entry[0].number):
        yield row, name_holders(variants, holders)


def _list_variant_findings(variant: Variant) -> Iterator[FindingRow]:
    texts: list[tuple[str, Check | KnownFinding]] = [(check.id, check) for check in variant.checks]
    for number, finding in (*texts, *variant.findings.items()):
        check = finding if isinstance(finding, Check) else None
        expected = _describe_expected(check, variant.facts) if check else ("", "", "")
        is_scripted = bool(check and check.fix)
        yield FindingRow(
            number, finding.severity, finding.scope, finding.text, *expected, finding.remediation, is_scripted
        )


def _describe_expected(condition: Condition, places: Mapping[str, str]) -> tuple[str, str, str]:
    """Return where a fact is read, how it is compared, and with what: /proc/sys/vm/swappiness, lte, 10."""
    value = condition.expected
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
    return places.get(condition.fact, condition.fact), condition.operator, text


def _get_prefix(number: str) -> str:
    return number.partition("-")[0]
