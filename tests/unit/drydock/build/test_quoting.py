"""Data in a Dockerfile stays one word, whatever it is."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from drydock.build import quoting, render
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.strict_yaml import parse_yaml
from drydock.config.validation import validate_document
from drydock.core.errors import InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.model.record import dump_record
from drydock.model.variant import Stack, Supplied, Variant
from tests.support.damage import fuzz, repeat
from tests.support.hostile import CANARY, places, planted, texts


@pytest.fixture(scope="module")
def variant() -> Variant:
    """Return a variant with all that a Dockerfile can contain."""
    variants_by_id = {variant.id: variant for variant in read_matrix(DRYDOCK)}
    cpu, habana = variants_by_id["cpu-vllm0.32"], variants_by_id["habana1.22-fork0.9"]
    item = {"patterns": ("a_*.x",), "arguments": ("--eula",), "how": "", "source": ""}
    supplied = tuple(
        Supplied.model_validate({**item, "name": kind, "install": kind}) for kind in ("run", "wheels", "debs")
    )
    changes: dict[str, Any] = {"layers": cpu.layers, "trim": cpu.trim, "supplied": supplied, "setup": ("/opt/set.sh",)}
    return habana.model_copy(update={**changes, "accelerator": "cpu", "conversions": habana.conversions[:1]})


# --- one word ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a b", "`id`", "$(id)", "it's", 'a"b', "a\\", ";", "", "-x", "<<EOF", "ä…"])
def test_a_word_is_read_by_a_shell_as_it_was(text: str) -> None:
    script = f"printf %s {quoting.sh(text)}"
    assert subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode() == text


def test_a_pattern_is_expanded_by_a_shell_and_nothing_else_in_it_is(tmp_path: Path) -> None:
    for name in ("a 1.run", "a 2.run", "$b.run"):
        (tmp_path / name).touch()
    words = " ".join(map(quoting.glob, ("a ?.run", "$b.r*", "`id`*")))
    result = subprocess.run(
        ["sh", "-c", f"printf '%s|' {words}"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout == "a 1.run|a 2.run|$b.run|`id`*|"


@pytest.mark.parametrize("quote", [quoting.sh, quoting.glob, quoting.dockerfile, quoting.comment])
@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a\x00b", "a\x1b[31mb", "a\u2028b", "a\u202eb"])
def test_no_text_of_several_lines_or_with_control_characters_is_quoted(quote: Any, text: str) -> None:
    with pytest.raises(ValueError, match="is not text on one line"):
        quote(text)


def test_a_template_cannot_print_data_without_quoting_it(variant: Variant, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "templates", tmp_path / "templates")
    added = "{% block system %}\nRUN echo {{ variant.summary }}{% endblock %}\n"
    with (tmp_path / "templates" / "cpu" / "Dockerfile.j2").open("a") as file:
        file.write(added)
    with pytest.raises(InputError, match=r"templates/cpu/Dockerfile\.j2:4: ValueError: .* must be quoted: use `\| sh`"):
        render.render_dockerfile(Project(tmp_path), variant)


# --- attacks ----------------------------------------------------------------------------------------------------------


def test_the_environment_of_a_build_is_no_command(variant: Variant, tmp_path: Path) -> None:
    text = "`touch ran` $(touch ran); touch ran; 'touch ran' \"touch ran\" \\"
    stack = validate_document(
        Stack, parse_yaml(BUILD.replace("VALUE", shlex.quote(text).replace("'\"'\"'", "''")), "s.yaml")
    )
    dockerfile = render.render_dockerfile(DRYDOCK, variant.model_copy(update={"builds": stack.builds}))
    (line,) = (line for line in dockerfile.splitlines() if "export OPTIONS" in line)
    script = f'{line.removesuffix(chr(92))} printf %s "$OPTIONS"'
    result = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == text
    assert not (tmp_path / "ran").exists()


BUILD = """
builds:
- distribution: a
  source: b
  version: "1"
  env: {OPTIONS: {value: VALUE, because: a test, source: a test}}
"""


@pytest.mark.parametrize("field", ["summary", "ref"])
def test_no_text_becomes_an_instruction(variant: Variant, field: str) -> None:
    hostile = "a\nRUN touch /ran"
    source = variant.sources[0].model_copy(update={"ref": hostile})
    changes = {"summary": {"summary": hostile}, "ref": {"sources": (source,)}}
    with pytest.raises(InputError, match="is not text on one line"):
        render.render_dockerfile(DRYDOCK, variant.model_copy(update=changes[field]))
    yaml = {"summary": 'summary: "a\\nRUN touch /ran"', "ref": 'sources: [{name: a, ref: "v1\\nRUN x", source: x}]'}
    with pytest.raises(InputError, match=rf's\.yaml: .*{field}: found "[av1]+\\nRUN .*", expected '):
        validate_document(Stack, parse_yaml(yaml[field], "s.yaml"))


@pytest.mark.parametrize(
    ("yaml", "key", "expected"),
    [
        ('builds: [{distribution: a, source: b, version: "1", folder: "x; id"}]', "builds[0].folder", "a folder below"),
        ('builds: [{distribution: a, source: b, version: "1", folder: ../x}]', "builds[0].folder", "a folder below"),
        ('builds: [{distribution: a, source: b, version: "1`id`"}]', "builds[0].version", "a version"),
        ('builds: [{distribution: a, source: b, version: "1", env: {"A;id": VALUE}}]', "builds[0].env.A;id", "name"),
        ('setup: ["/opt/x.sh; id"]', "setup[0]", "an absolute path"),
        ('supplied: [{name: a, patterns: ["$(id)*"], how: x, source: x}]', "supplied[0].patterns[0]", "a file name"),
        ('supplied: [{name: a, patterns: ["../*"], how: x, source: x}]', "supplied[0].patterns[0]", "a file name"),
        ('requirements: ["--index-url=http://x"]', "requirements[0]", "a requirement"),
        ('requirements: ["a @ file:///x"]', "requirements[0]", "a requirement"),
        ('requirements: ["a\\n-r /etc/passwd"]', "requirements[0]", "a requirement"),
        ("sources: [{name: a, ref: --upload-pack=id, source: x}]", "sources[0].ref", "a tag or branch"),
        ('sources: [{name: a, repository: "ext::sh -c id", source: x}]', "sources[0].repository", "the URL of"),
        ("sources: [{name: a, repository: ssh://-oProxyCommand=id/x, source: x}]", "sources[0].repository", "the URL"),
        ('base: {kind: image, reference: "--help", release: x}', "base.reference", "an image by name and tag"),
        ('base: {kind: debian, suite: trixie, packages: ["-oDPkg::x"]}', "base.packages[0]", "the name of a Debian"),
        ("inherits: ../../x", "inherits", "a name, or that of a layer and a name"),
        ("module: 'a; id'", "module", "the name of a Python module"),
    ],
)  # fmt: skip
def test_a_stack_holds_no_command(yaml: str, key: str, expected: str) -> None:
    yaml = yaml.replace("VALUE", "{value: x, because: x, source: x}")
    with pytest.raises(InputError) as caught:
        validate_document(Stack, parse_yaml(yaml, "s.yaml"))
    assert any(
        problem.startswith(f"s.yaml: {key}: found ") and expected in problem for problem in caught.value.problems
    )


# --- any text in any field -----------------------------------------------------------------------------------------


@fuzz
def test_a_record_refuses_what_a_dockerfile_could_not_hold_as_one_word(variant: Variant) -> None:
    data = variant.model_dump(mode="json", by_alias=True, exclude_computed_fields=True)
    calm, accepted = render.render_dockerfile(DRYDOCK, variant), Counter[bool]()

    def _try(place: tuple[str | int, ...], text: str) -> None:
        try:
            planted_variant = Variant.model_validate(planted(data, place, text))
        except ValueError:
            accepted[False] += 1
            return
        accepted[True] += 1
        holds(render.render_dockerfile(DRYDOCK, planted_variant), text, calm)

    repeat(_try, st.sampled_from(sorted(places(data), key=str)), texts())
    assert min(accepted[True], accepted[False]) > sum(accepted.values()) // 10  # a fifth is usual


@fuzz
def test_a_dockerfile_holds_as_one_word_what_no_record_has_checked(variant: Variant) -> None:
    calm = render.render_dockerfile(DRYDOCK, variant)
    shown_places = [place for place in places(dump_record(variant)) if place[0] in SHOWN]

    def _try(place: tuple[str | int, ...], text: str) -> None:
        try:
            dockerfile = render.render_dockerfile(DRYDOCK, planted(variant, place, text))
        except (InputError, ValueError):
            return
        holds(dockerfile, text, calm)

    repeat(_try, st.sampled_from(sorted(shown_places, key=str)), texts())


SHOWN = {"id", "title", "summary", "vllm", "python", "base", "module", "accelerator", "stack", "layers", "trim",
         "sources", "builds", "supplied", "setup", "conversions", "run"}  # fmt: skip


def holds(dockerfile: str, text: str, calm: str) -> None:
    """See that a text stands in a Dockerfile only as a part of one word, of one value or of one comment."""
    if CANARY not in dockerfile:
        return
    assert steps(dockerfile).keys() <= INSTRUCTIONS
    for line in instructions(dockerfile):
        if CANARY in line:
            hit = [line] if line.startswith("#") else [word for word in words(line) if CANARY in word]
            assert all(text in word for word in hit), (text, line)
            assert not any(word.startswith("--mount") and not quoting.PLAIN.fullmatch(text) for word in hit)
    assert live(dockerfile) == live(calm), text


def instructions(dockerfile: str) -> list[str]:
    """Return comments and instructions, each on one line; a comment is never continued."""
    lines = dockerfile.split("\n")
    comments = [line for line in lines if line.startswith("#")]
    return comments + "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ").split("\n")


def words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=line.startswith("RUN"))
    lexer.whitespace_split, lexer.commenters = True, ""
    return [word if line.startswith("RUN") else word.replace("\\$", "$") for word in lexer]


def steps(dockerfile: str) -> Counter[str]:
    lines = (line for line in instructions(dockerfile) if line and not line.startswith("#"))
    return Counter(line.split()[0] for line in lines)


INSTRUCTIONS = {"FROM", "USER", "ARG", "RUN", "COPY", "LABEL", "ENV", "WORKDIR", "VOLUME", "EXPOSE", "HEALTHCHECK",
                "ENTRYPOINT", "CMD"}  # fmt: skip


def live(dockerfile: str) -> Counter[str]:
    """Count what a shell would obey in RUN steps, outside single quotes."""
    runs = "".join(line for line in instructions(dockerfile) if line.startswith("RUN"))
    outside = re.sub(r"""'[^']*'|"'\"""", "", runs)  # shlex.quote writes a quote in double quotes
    return Counter(character for character in outside if character in '`$;|&<>(){}\\"#')
