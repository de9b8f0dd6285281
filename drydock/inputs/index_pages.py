"""Reads an index's page of a package: its files, and which of them were withdrawn. IO; reading is pure.

Sources: PEP 503 and PEP 691 (pages as HTML and as JSON), PEP 592 (a file is yanked, not a version).
"""

from __future__ import annotations

import html.parser
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from drydock.config.server_access import Access, redact_url
from drydock.core.errors import FetchError
from drydock.core.files import parse_json_object, read_bounded
from drydock.inputs.downloads import WORKERS, local_path, read_answer
from drydock.inputs.indexes import Indexes, page_of, pips_default

ACCEPTED = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01, */*;q=0.001"
)
"""Forms of a page, best first (PEP 691, "Version + Format Selection")."""
LARGEST_PAGE = 64 << 20
"""Bytes. The largest page of a public index, with every nightly build of a package, has a tenth of it."""

IndexFiles = Mapping[str, str | None]
"""File name → the reason for which the index withdrew the file, which may be empty; None if it did not."""


def read_index_files(names: Iterable[str], indexes: Indexes, access: Access) -> dict[str, IndexFiles]:
    """Return for each package the files on its page, in the first index that has one, as uv does.

    Raises FetchError for an index that gives no answer, or one that cannot be read.
    """
    names = tuple(names)
    places = () if indexes.no_index else (indexes.main or pips_default(), *indexes.extra)
    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(names, pool.map(partial(_read_first_page, places, access), names), strict=True))


def _read_first_page(places: Iterable[str], access: Access, name: str) -> IndexFiles:
    for place in places:
        page = read_page(page_of(place, name), name, access)
        if page is not None:
            return page
    return {}


def read_page(url: str, name: str, access: Access) -> IndexFiles | None:
    """Return the files on a page; None if the index has none or refuses. Raises FetchError."""
    if urlsplit(url).scheme == "file":
        path = local_path(url) / "index.html"
        return parse_html(read_bounded(path, LARGEST_PAGE).decode(errors="replace")) if path.is_file() else None
    headers = {"Accept": ACCEPTED, "Accept-Encoding": "gzip"}
    answer = read_answer(url, f"index page of {name}", access, LARGEST_PAGE, headers)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - uv has said what is wrong, or found the package elsewhere
        return None
    if "json" in answer.headers.get("Content-Type", ""):
        return parse_page(parse_json_object(answer.body, redact_url(url), FetchError), redact_url(url))
    return parse_html(answer.body.decode(errors="replace"))


def parse_page(page: Mapping[str, Any], where: str) -> IndexFiles:
    """Return the files of a page as JSON: `yanked` is true or the reason (PEP 691). Raises FetchError."""
    files = page.get("files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise FetchError(f"{where}: expected a list `files` (PEP 691)")
    marks = {str(file.get("filename")): file.get("yanked") for file in files}
    return {name: (mark if isinstance(mark, str) else "") if mark else None for name, mark in marks.items()}


def parse_html(text: str) -> IndexFiles:
    """Return the files of a page as HTML: data-yanked is the reason for which one was withdrawn (PEP 592)."""
    links = _Links()
    links.feed(text)
    return dict(links.list_files())


class _Links(html.parser.HTMLParser):
    """Collects the attributes of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self._links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._links.append(dict(attrs))

    def list_files(self) -> Iterator[tuple[str, str | None]]:
        """Yield the file name of each link, and the reason if it is yanked."""
        for link in self._links:
            path = urlsplit(urldefrag(link.get("href") or "").url).path
            yield unquote(path.rpartition("/")[2]), (link["data-yanked"] or "") if "data-yanked" in link else None
