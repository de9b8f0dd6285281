"""A finding of topologies as a line, and lines and findings in the user's language. IO: reads translations."""

from __future__ import annotations

import re
from collections.abc import Mapping

from drydock.config.project_choice import DRYDOCK
from drydock.config.strict_yaml import read_yaml
from drydock.config.topology_finding_file import read_topology_findings
from entrypoints.core.language import Translations, Words, read_locale_language, translate_text
from entrypoints.core.records import Finding

_LINE = re.compile(r"([A-Z]+-\d+): (.*)", re.DOTALL)


def format_topology_finding(number: str, detail: str) -> str:
    """Return a finding as one line: its id, what was found, what to do."""
    finding = read_topology_findings()[number]
    return f"{number}: {finding.text.format(detail)}; {finding.remediation}"


def read_words(env: Mapping[str, str]) -> Words:
    """Return drydock's translations into the language of the user's locale; none for English. Raises InputError."""
    language = read_locale_language(env)
    if not re.fullmatch("[a-z]{2}", language):
        return {}
    names = ("host", "*/accelerator", "topology")
    templates = [f"templates/{name}.{language}.yaml" for name in names]
    files = [path for name in templates for path in DRYDOCK.glob(name)]
    words: dict[str, str] = {}
    for file in files:
        words |= read_yaml(file, file.name).data["translations"][language]
    return Translations(words)


def translate_line(words: Words, line: str) -> str:
    """Return a line of `finding` in the user's language; that of an image's check keeps its id and severity."""
    match = _LINE.fullmatch(line)
    if not match:
        return translate_text(words, line)
    number, text = match.groups()
    finding = read_topology_findings().get(number)
    remediation = finding.remediation if finding and text.endswith(f"; {finding.remediation}") else ""
    if not remediation:
        return f"{number}: {translate_text(words, text)}"
    text = text.removesuffix(f"; {remediation}")
    return f"{number}: {translate_text(words, text)}{words.get('; ', '; ')}{translate_text(words, remediation)}"


def translate_finding(words: Words, finding: Finding) -> Finding:
    """Return a finding of a node in the user's language."""
    texts = (finding.text, finding.found, finding.expected, finding.remediation)
    text, found, expected, remediation = (translate_text(words, each) for each in texts)
    return finding._replace(text=text, found=found, expected=expected, remediation=remediation)
