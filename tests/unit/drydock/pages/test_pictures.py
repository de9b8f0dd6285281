"""The pictures of README show what two commands print, with the digest of the lock, and load nothing."""

from __future__ import annotations

from drydock.config.project_choice import DRYDOCK
from drydock.pages import pictures
from drydock.prove.demo import EXPECTED, QUESTION


def test_the_demo_has_the_digest_of_the_lock_or_the_one_that_it_printed() -> None:
    recorded = (DRYDOCK / pictures.DEMO).read_text()
    text = pictures.read_demo_output(DRYDOCK, f"sha256:{'ab' * 32}")
    question, answer, image, digest, _ = (line.split(maxsplit=1)[1] for line in text.splitlines())
    assert (question, EXPECTED in answer) == (QUESTION, True)
    assert (image, digest) == ("drydock/cpu-vllm0.32:abababababab", f"sha256:{'ab' * 32} (as committed)")
    assert pictures.read_demo_output(DRYDOCK, "") == recorded


def test_a_picture_is_a_terminal_without_fonts_from_elsewhere() -> None:
    pages = pictures.render_pictures(DRYDOCK)
    assert pages
    for path, text in pages.items():
        assert "url(&" not in text
        assert 'url("' not in text
        assert "<svg" in text
        assert "./inv&#160;" in text, path
