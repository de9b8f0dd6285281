"""Pages of indexes: which files were withdrawn (PEP 503, 592 and 691)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import FetchError
from drydock.inputs.index_pages import parse_html, parse_page, read_index_files, read_page
from drydock.inputs.indexes import parse_config
from tests.support.fake_registry import Answer, Fake, Seen

QUICK = Access(pause=0.001, timeout=5)
HTML = """<!DOCTYPE html><html><body>
<a href="../files/a-1.0%2Bcu130-py3-none-any.whl#sha256=00" data-yanked="broken &amp; slow">a</a>
<A HREF="a-1.1-py3-none-any.whl?x=1" data-requires-python="&gt;=3.8" data-yanked>a</A>
<a href="https://files.example/a-1.2-py3-none-any.whl">a</a><a data-yanked="x">no address</a>
"""


def test_a_link_says_why_its_file_was_withdrawn() -> None:
    files = {name: reason for name, reason in parse_html(HTML).items() if name}
    plain = {"a-1.2-py3-none-any.whl": None}
    assert files == {"a-1.0+cu130-py3-none-any.whl": "broken & slow", "a-1.1-py3-none-any.whl": "", **plain}


def test_a_page_as_json_says_it_with_true_or_a_reason() -> None:
    marks = {"a.whl": True, "b.whl": "broken", "c.whl": False, "d.whl": None, "e.whl": ""}
    files = [{"filename": name, "yanked": mark} for name, mark in marks.items()]
    assert parse_page({"files": [*files, {"filename": "f.whl"}]}, "page") == {
        "a.whl": "",
        "b.whl": "broken",
        **dict.fromkeys(("c.whl", "d.whl", "e.whl", "f.whl")),
    }


@pytest.mark.parametrize("page", [{}, {"files": None}, {"files": ["a.whl"]}])
def test_a_page_that_is_none_is_an_error(page: dict[str, object]) -> None:
    with pytest.raises(FetchError, match="where: expected a list `files`"):
        parse_page(page, "where")


def test_the_first_index_with_a_page_counts_as_for_uv() -> None:
    def answer(request: Seen) -> Answer:
        pages = {
            "/one/b/": Answer(200, {"Content-Type": "text/html"}, b'<a href="b.whl" data-yanked="one">'),
            "/two/a/": Answer(
                200,
                {"Content-Type": "application/vnd.pypi.simple.v1+json"},
                json.dumps({"files": [{"filename": "a.whl", "yanked": "two"}]}).encode(),
            ),
            "/two/b/": Answer(200, {"Content-Type": "text/html"}, b'<a href="b.whl" data-yanked="two">'),
            "/two/c/": Answer(403),
        }
        return pages.get(request.path, Answer(404))

    with Fake(answer) as fake:
        config = f"global.index-url='http://{fake.host}/one/'\nglobal.extra-index-url='http://{fake.host}/two'\n"
        yanked = read_index_files(("a", "b", "c"), parse_config(config), QUICK)
        assert yanked == {"a": {"a.whl": "two"}, "b": {"b.whl": "one"}, "c": {}}
        assert read_index_files(("a",), parse_config(f"{config}global.no-index='1'\n"), QUICK) == {"a": {}}
        assert all("v1+json" in sent_request.headers["Accept"] for sent_request in fake.seen)


def test_an_index_may_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert read_page(f"{tmp_path.as_uri()}/a/", "a", QUICK) is None
    (tmp_path / "a" / "index.html").write_text('<a href="../a.whl" data-yanked="old">a</a>')
    assert read_page(f"{tmp_path.as_uri()}/a/", "a", QUICK) == {"a.whl": "old"}


def test_a_page_that_is_no_json_is_an_error() -> None:
    answer = Answer(200, {"Content-Type": "application/json"}, b"<html>")
    with Fake(lambda _: answer) as fake, pytest.raises(FetchError, match=rf"http://{fake.host}/a/"):
        read_page(f"http://{fake.host}/a/", "a", QUICK)
