"""Reads an index's page of a package, for what uv does not pass on: which files were withdrawn. IO; reading is pure.

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

YankedFiles = Mapping[str, str]
"""File name → the reason for which the index withdrew the file, which may be empty."""


def read_yanked(names: Iterable[str], indexes: Indexes, access: Access) -> dict[str, YankedFiles]:
    """Return for each package the yanked files on its page, in the first index that has one, as uv does.

    Raises FetchError for an index that gives no answer, or one that cannot be read.
    """
    names = tuple(names)
    places = () if indexes.no_index else (indexes.main or pips_default(), *indexes.extra)
    with ThreadPoolExecutor(WORKERS) as pool:
        return dict(zip(names, pool.map(partial(_read_first_page, places, access), names), strict=True))


def _read_first_page(places: Iterable[str], access: Access, name: str) -> YankedFiles:
    for place in places:
        page = read_page(page_of(place, name), name, access)
        if page is not None:
            return page
    return {}


def read_page(url: str, name: str, access: Access) -> YankedFiles | None:
    """Return the yanked files on a page; None if the index has none or refuses. Raises FetchError."""
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


def parse_page(page: Mapping[str, Any], where: str) -> YankedFiles:
    """Return the yanked files of a page as JSON: `yanked` is true or the reason (PEP 691). Raises FetchError."""
    files = page.get("files")
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise FetchError(f"{where}: expected a list `files` (PEP 691)")
    yanked = {str(file.get("filename")): file["yanked"] for file in files if file.get("yanked")}
    return {filename: reason if isinstance(reason, str) else "" for filename, reason in yanked.items()}


def parse_html(text: str) -> YankedFiles:
    """Return the yanked files of a page as HTML: links with data-yanked, whose value is the reason (PEP 592)."""
    links = _Links()
    links.feed(text)
    return dict(links.yanked())


class _Links(html.parser.HTMLParser):
    """Collects the attributes of a page's links."""

    def __init__(self) -> None:
        super().__init__()
        self._links: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self._links.append(dict(attrs))

    def yanked(self) -> Iterator[tuple[str, str]]:
        """Yield file name and reason of each link to a yanked file."""
        for link in self._links:
            if "data-yanked" in link:
                path = urlsplit(urldefrag(link.get("href") or "").url).path
                yield unquote(path.rpartition("/")[2]), link["data-yanked"] or ""
