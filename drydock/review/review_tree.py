"""A folder → what is wrong with each vLLM command in it. IO."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from drydock.compare.pasted_command import WORDS_AT_MOST
from drydock.core.errors import InputError
from drydock.core.project import Project
from drydock.oci.reference import parse_reference
from drydock.review.named_images import ImageFinder
from drydock.review.place_findings import PlaceFinding, ReviewedPlace, review_place
from drydock.review.review_output import Review
from drydock.review.tree_files import SkippedFile, TreeFile, read_tree
from drydock.review.written_commands import (
    PLACES_AT_MOST,
    REQUIREMENT,
    CommandPlace,
    list_blocks,
    list_dockerfile,
    list_script,
    list_unit,
    take_defaults,
)
from drydock.review.yaml_containers import list_yaml

SHELL_LANGUAGES = frozenset(("", "bash", "sh", "shell", "console", "zsh", "shell-session", "shellsession"))
YAML_LANGUAGES = frozenset(("yaml", "yml"))
_TEMPLATE = re.compile(r"\{\{-?\s*[.$\w(/]")


def review_folder(project: Project, folder: str, to: str, *, offline: bool) -> Review:
    """Judge every command below a folder, by the image next to it or by `to`. Raises DrydockError."""
    finder = ImageFinder(project, offline=offline)
    target = finder.find_option("--to", to) if to else None
    skipped: list[SkippedFile] = []
    places = []
    for file in read_tree(Path(folder), skipped):
        for place in _list_places(file, skipped):
            instead = target if target and is_replaced(place.image, to) else None
            places.append(review_place(place, finder, instead))
    return Review(folder, to, tuple(_without_repetitions(places)), tuple(skipped))


def _without_repetitions(places: Iterable[ReviewedPlace]) -> Iterator[ReviewedPlace]:
    """Yield places without what was found on the same line before: files name one argument for several commands."""
    known: set[tuple[str, PlaceFinding]] = set()
    for place in places:
        new = [finding for finding in place.findings if (place.place.file, finding) not in known]
        known.update((place.place.file, finding) for finding in new)
        yield place._replace(findings=tuple(new))


def is_replaced(image: str, to: str) -> bool:
    """Return whether another image comes instead: of the same name; a row or a version comes instead of every one."""
    if not image or image.startswith(REQUIREMENT) or not re.search(r"[/:@]", to):
        return True
    try:
        names = [parse_reference(take_defaults(text)).repository.rpartition("/")[2] for text in (image, to)]
    except InputError:
        return False
    return names[0] == names[1]


def _list_places(file: TreeFile, skipped: list[SkippedFile]) -> list[CommandPlace]:
    """Return the commands of a file; what cannot be read of it is added to `skipped`."""
    if file.kind == "yaml" and _TEMPLATE.search(file.text) and "/templates/" in f"/{file.path}":
        skipped.append(SkippedFile(file.path, "a template that is not rendered"))
        return []
    places: list[CommandPlace] = []
    try:
        places.extend(islice(_read_places(file, skipped), PLACES_AT_MOST))
    except InputError as error:
        is_template = file.kind == "yaml" and _TEMPLATE.search(file.text)
        because = "a template that is not rendered" if is_template else _shorten_problem(error, file.path)
        skipped.append(SkippedFile(file.path, because))
    if len(places) == PLACES_AT_MOST:
        skipped.append(SkippedFile(file.path, f"what follows its first {PLACES_AT_MOST} commands"))
    long = [place for place in places if len(place.words) > WORDS_AT_MOST]
    skipped.extend(SkippedFile(file.path, f"line {place.line}: more than {WORDS_AT_MOST} words") for place in long)
    return [place for place in places if len(place.words) <= WORDS_AT_MOST]


def _shorten_problem(error: InputError, path: str) -> str:
    return error.problems[0].removeprefix(path).removeprefix("--command-file").lstrip(": ")


def _read_places(file: TreeFile, skipped: list[SkippedFile]) -> Iterator[CommandPlace]:
    match file.kind:
        case "yaml":
            yield from list_yaml(file.text, file.path)
        case "shell":
            yield from list_script(file.text, file.path, 1, "shell")
        case "dockerfile":
            yield from list_dockerfile(file.text, file.path)
        case "unit":
            yield from list_unit(file.text, file.path)
        case "markdown":
            yield from _list_page(file, skipped)


def _list_page(file: TreeFile, skipped: list[SkippedFile]) -> Iterator[CommandPlace]:
    """Yield the commands of a page's blocks; a block that cannot be read does not hide the others."""
    for block in list_blocks(file.text):
        if "vllm" not in block.text.lower():
            continue
        try:
            if block.language in YAML_LANGUAGES:
                yield from list_yaml(block.text, file.path, block.line)
            elif block.language in SHELL_LANGUAGES:
                yield from list_script(block.text, file.path, block.line, "markdown")
        except InputError as error:
            because = f"the block of line {block.line}: {_shorten_problem(error, file.path)}"
            skipped.append(SkippedFile(file.path, because))
