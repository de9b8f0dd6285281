"""The site of all pages builds without a warning, each link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.topology_finding_file import read_topology_findings
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.pages import site
from tests.support.hosts.trees import write_tree

pytest.importorskip("zensical", reason="there is no Zensical for this processor")
pytestmark = [pytest.mark.checkout, pytest.mark.xdist_group("site")]  # one at a time: it is built in build/site

SETTINGS = yaml.safe_load((ROOT / site.SETTINGS).read_text())
MENTIONED = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)


class Page(HTMLParser):
    """What a page links to and loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = {""}
        self.language = ""
        self.switch: dict[str, str] = {}
        """Language → where the switch of languages leads."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids.add(attributes.get("id", ""))
        if tag == "html":
            self.language = attributes["lang"]
        if attributes.get("class") == "md-select__link" and "hreflang" in attributes:
            self.switch[attributes["hreflang"]] = attributes["href"]
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if "src" in attributes or (tag == "link" and "href" in attributes):
            self.loads.append(attributes.get("src") or attributes["href"])


def of(folder: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in folder.rglob("*.html") if path.name != "404.html"}


def dead(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield each link and each file to load that is not there."""
    for path, page in pages.items():
        for target in (*page.links, *page.loads):
            parts = urlsplit(target)
            if not parts.scheme:
                leads = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                if not leads.is_file() or (leads in pages and unquote(parts.fragment) not in pages[leads].ids):
                    yield f"{path.name}: {target}"


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ./inv docs --site builds it, without a network: strictly, or this fails."""
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "_from_npm", lambda _: ROOT)
        patch.setattr(site, "place_file", lambda _, target, **__: target.write_text(""))
        site.build_site(ROOT, folder)
    return folder


def test_every_link_and_file_of_the_site_is_there(site_folder: Path) -> None:
    pages = of(site_folder)
    assert len(pages) > 50
    assert list(dead(pages)) == []


def test_nothing_is_loaded_from_elsewhere(site_folder: Path) -> None:
    assert [load for page in of(site_folder).values() for load in page.loads if urlsplit(load).netloc] == []
    (bundle,) = site_folder.glob("assets/javascripts/bundle.*.js")
    assert "/mermaid@" not in bundle.read_text()
    assert site.DIAGRAMS in bundle.read_text()


def test_a_bar_in_code_of_a_table_has_no_backslash(site_folder: Path) -> None:
    code = [text for path in site_folder.rglob("*.html") for text in re.findall("<code>(.*?)</code>", path.read_text())]
    assert any("|" in text for text in code)
    assert [text for text in code if r"\|" in text] == []


def test_each_code_of_a_page_has_an_end(site_folder: Path) -> None:
    """A list of headings lost the end of one, and the whole page was in the letters of code."""
    unequal = [
        path.name
        for path in site_folder.rglob("*.html")
        if (text := path.read_text()).count("<code>") + text.count("<code ") != text.count("</code>")
    ]
    assert unequal == []


def test_the_chinese_site_has_only_chinese_pages_and_the_switch_keeps_the_page(site_folder: Path) -> None:
    pages = of(site_folder)
    chinese = {path for path in pages if path.is_relative_to(site_folder / "zh")}
    assert {pages[path].language for path in chinese} == {"zh"}
    assert not (site_folder / "docs" / "zh").exists()
    for path in chinese:
        content = path.read_text().partition("<article")[2]
        assert len(re.findall("[\u4e00-\u9fff]", content)) > 50
        english = site_folder / path.relative_to(site_folder / "zh")
        same = {language: (path.parent / target).resolve() for language, target in pages[path].switch.items()}
        if english in pages:
            assert same == {"en": english, "zh": path}
            assert (english.parent / pages[english].switch["zh"]).resolve() == path
        else:
            assert same == {"en": site_folder / "index.html", "zh": path}


def test_each_finding_has_an_anchor(site_folder: Path) -> None:
    pages = of(site_folder)
    findings = set.union(*(pages[path].ids for path in (site_folder / "docs" / "reference").glob("*.html")))
    variants = read_matrix(DRYDOCK)
    numbers = {
        number for variant in variants for number in (*variant.findings, *(check.id for check in variant.checks))
    }
    assert {number.lower() for number in (*numbers, *read_topology_findings())} <= findings


def names(entry: Any) -> Iterator[str]:
    """Yield the pages of the navigation."""
    if isinstance(entry, str):
        yield entry
    else:
        for item in entry.values() if isinstance(entry, dict) else entry:
            yield from names(item)


def test_each_page_has_one_place_in_the_navigation() -> None:
    english_pages = [*ROOT.glob("*.md"), *(path for path in ROOT.glob("docs/**/*.md") if "zh" not in path.parts)]
    assert sorted(names(SETTINGS["nav"])) == sorted(str(path.relative_to(ROOT)) for path in english_pages)


def test_a_list_in_a_list_is_seen_as_one() -> None:
    """Python-Markdown takes four spaces, other readers two or four."""
    text = {path: MENTIONED.sub("", path.read_text()) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))}
    assert [str(path) for path, page in text.items() if re.search(r"^ {1,3}([-*]|\d+\.) ", page, re.MULTILINE)] == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with two pages, of which one is in Chinese too."""
    navigation = ["README.md", {"Operate": ["docs/run.md", "docs/fit.md"]}]
    pages = {
        "mkdocs.yml": yaml.safe_dump(SETTINGS | {"nav": navigation}),
        "README.md": "# Small\n\n[Run](docs/run.md)\n",
        "docs/run.md": "# Run\n\n[Data](../data.json) [Fit](fit.md#fit)\n",
        "docs/fit.md": "# Fit\n",
        "docs/zh/README.md": "# 小\n",
        "docs/zh/run.md": "# 运行\n\n[Fit](../fit.md)\n\n句子。\n`x` 继续，\n下一行\n用 `y`。\n\n- 项。\n- 项\n",
        "docs/zh/glossary.md": "# 术语\n",
        "docs/site.css": "",
        "data.json": "{}\n",
    }
    return write_tree(tmp_path / "small", pages)


def test_another_language_has_its_own_pages_and_links_to_the_english_ones_that_it_lacks(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://127.0.0.1:1")
    monkeypatch.setenv("NPM_CONFIG_FETCH_RETRIES", "0")
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    site.build_site(small, tmp_path / "made")
    english, chinese = of(tmp_path / "made"), of(tmp_path / "made" / "zh")

    page = chinese[tmp_path / "made" / "zh" / "docs" / "run.html"]
    assert page.language == "zh"
    assert english[tmp_path / "made" / "docs" / "run.html"].language == "en"
    assert [target for target in dead(english) if site.SEARCH not in target] == []
    links = {link.removeprefix("./") for link in page.links}
    assert {"run.html", "../../docs/fit.html", "glossary.html"} <= links
    assert sorted(path.name for path in chinese) == ["glossary.html", "index.html", "run.html"]
    assert page.switch == {"en": "../../docs/run.html", "zh": "run.html"}
    assert english[tmp_path / "made" / "docs" / "fit.html"].switch["zh"] == "../zh/index.html"
    text = (tmp_path / "made" / "zh" / "docs" / "run.html").read_text()
    assert "<p>句子。<code>x</code> 继续，下一行用 <code>y</code>。</p>" in text  # a line's end is shown as a space
    assert text.count("<li>项") == 2
    assert (tmp_path / "made" / "data.json").read_text() == "{}\n"
    assert "WARNING: the site shows the text of its diagrams" in capfd.readouterr().err


def test_a_folder_with_something_else_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for output in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(InputError, match="neither empty nor a site"):
            site.publish_site(ROOT, output)


def test_each_language_of_a_version_lists_the_versions(tmp_path: Path) -> None:
    """The theme reads ../versions.json, and goes to ../VERSION/, of the folder in which the pages of a language lie."""
    for folder in ("0.1.0", "0.2.0/zh", "main/zh"):
        (tmp_path / folder).mkdir(parents=True)
    for version in ("0.1.0", "0.2.0", "main"):
        site._list_translated_versions(tmp_path, version, ("0.2.0", "0.1.0", "main"))
    assert not (tmp_path / "0.1.0" / "versions.json").exists()
    listed = json.loads((tmp_path / "main" / "versions.json").read_text())
    assert [item["title"] for item in listed] == ["0.2.0", "0.1.0", "main"]
    assert [item["aliases"] for item in listed] == [[], [], ["zh"]]
    base = tmp_path / "main" / "zh"
    leads = [(base / ".." / item["version"]).resolve() for item in listed]
    assert leads == [tmp_path / folder for folder in ("0.2.0/zh", "0.1.0", "main/zh")]
