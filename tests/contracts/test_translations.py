"""Every text that a check, a finding or a reason shows has its translation, and no translation is left over."""

from __future__ import annotations

import ast
import contextlib
import errno
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from drydock.build.render import make_profile
from drydock.cli.cli import Verbs, format_overview, help_of
from drydock.cli.verb_table import COMMANDS
from drydock.config.failures import read_failures
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.topology_finding_file import read_topology_findings
from drydock.core import errors
from drydock.core.paths import ROOT
from drydock.core.user_language import measure_columns, translate_lines, wrap_lines
from drydock.model.record import dump_record
from drydock.topology.findings import format_topology_finding, read_words, translate_line
from drydock.topology.topology_file import read_topology
from entrypoints.checks.findings import COMPARISONS
from entrypoints.checks.symptoms import add_failures
from entrypoints.core.errors import CHECK_FAILED, DOES_NOT_FIT, EXIT_CODES, OK, USAGE, EntrypointError
from entrypoints.core.language import HOLE, Translations, translate_error, translate_profile, translate_text
from entrypoints.verbs.dispatch import main
from tests.support.cases import for_each
from tests.support.code_texts import CodeText, list_call_texts, list_code_texts
from tests.support.hosts import expect
from tests.support.hosts.trees import HOSTS
from tests.support.sample import write_model

PROFILES = [
    add_failures(dump_record(make_profile(variant)), dump_record(read_failures(DRYDOCK, variant.accelerator)))
    for variant in read_matrix(DRYDOCK)
]
COMMAND = re.compile(r"(docker run|sysctl|echo|cpupower|timedatectl|amd-smi|nvidia-smi) [^,;]*|\{use\}")
"""What needs no translation: a command without another word."""
FIXED = re.compile(r"`[^`]+`|--[a-z-]+|/[A-Za-z][\w/.*-]+\w|\b[A-Z]+_[A-Z_]+\b|(?<![A-Za-z])\d+(?:\.\d+)*")
"""What a translation repeats: options, paths, variables, numbers, and what is between backticks."""


def translations(language: str) -> dict[str, str]:
    return {
        text: translation
        for image_profile in PROFILES
        for text, translation in image_profile["translations"][language].items()
    }


LANGUAGES = {language for image_profile in PROFILES for language in image_profile["translations"]}
PAIRS = [(text, translation) for language in sorted(LANGUAGES) for text, translation in translations(language).items()]


class Seen(dict[str, str]):
    """Translations that note which texts are looked up."""

    def __init__(self, texts: dict[str, str]) -> None:
        super().__init__(texts)
        self.asked: set[str] = set()

    def get(self, text: str, _default: Any = None) -> str:  # type: ignore[override]
        self.asked.add(text)
        return super().get(text, text)


def phrases() -> Iterator[str]:
    """Yield what the code of checks says itself: the second argument of `phrase`."""
    yield from set(COMPARISONS.values()) - {"{}"}
    yield from (f"fix ({scope}): {{}}" for scope in ("host", "container"))
    for path in sorted((ROOT / "entrypoints").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            argument = node.args[1] if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "phrase" else None
            if isinstance(argument, ast.Constant):
                yield str(argument.value)


def test_every_text_has_its_translation_and_each_translation_a_text() -> None:
    assert "zh" in LANGUAGES
    for language in LANGUAGES:
        used_texts: set[str] = {*phrases()}
        for profile in PROFILES:
            recorder = Seen(profile["translations"][language])
            translate_profile({**profile, "translations": {language: recorder}}, language, {})
            used_texts |= recorder.asked
        known = translations(language)
        assert sorted(text for text in used_texts if text and text not in known and not COMMAND.fullmatch(text)) == []
        unused = sorted(text for text in known if text not in used_texts and not is_of_code(text))
        assert unused == [], "left over in a file *.zh.yaml"


SYSTEM_MESSAGES = ("Name or service not known", "timed out", "Expecting property name enclosed in double quotes: line")
"""What the name service, sockets and Python's json say in errors of ours."""


@cache
def strings_of_code() -> str:
    """Return every string of the entrypoint but its docstrings, with {} for each value in it, one a line."""
    strings: list[str] = []
    for path in sorted((ROOT / "entrypoints").rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                strings.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                strings.append(node.value)
    strings += (code_text.text for code_text in list_code_texts())
    strings += (*map(os.strerror, errno.errorcode), *SYSTEM_MESSAGES)
    strings += (json.dumps(profile | {"translations": {}}, ensure_ascii=False) for profile in PROFILES)
    return "\n".join(strings)


def is_of_code(text: str) -> bool:
    """Tell whether code or a profile makes such a text: each part between values, of one or two pieces, is there."""
    parts = [part.strip() for part in re.split(r"\{\}|[;:,()] ?|\d+", text)]
    return all(_is_made(part) for part in parts if " " in part)


def _is_made(part: str) -> bool:
    """Tell whether a string has a part, or two strings are joined to it: one of them is a value in the other."""
    words, text = part.split(), joined_strings_of_code()
    if part in strings_of_code():
        return True
    for end in range(1, len(words)):
        first, second = " ".join(words[:end]), " ".join(words[end:])
        ends_string, begins_string = f"{first}\n" in text, f"\n{second}" in text
        if ends_string and (begins_string or f"{{}}{second}" in text):
            return True
        if f"{first}{{}}" in text and begins_string:
            return True
    return False


@cache
def joined_strings_of_code() -> str:
    """Return every string, one a line, without spaces around the values."""
    stripped = (re.sub(r" *\{\} *", "{}", string.strip()) for string in strings_of_code().split("\n"))
    return "\n".join(("", *stripped, ""))


def test_a_translation_of_a_text_that_the_code_no_longer_makes_is_left_over() -> None:
    assert is_of_code("{}: {} devices would stay idle")
    assert not is_of_code("{}: {} devices would get bored")
    assert not is_of_code("{} names the variables {} and {}")  # both halves are in texts that are not joined


CHINESE = re.compile("[\u4e00-\u9fff]")


def recorded_texts() -> Iterator[tuple[str, str]]:
    """Yield accelerator and text of each reason, rejected value and error of the recorded hosts' plans."""
    for path in sorted((ROOT / "tests" / "hosts").glob("*/plan.json")):
        for plan in json.loads(path.read_text()).values():
            texts = [text for reason in plan.get("reasons", ()) for text in (reason["because"], *reason["instead"])]
            yield from (
                (path.parent.name.partition("-")[0], text) for text in (*texts, *map(str, plan.get("error", ())))
            )


def test_reasons_and_errors_of_recorded_hosts_are_chinese() -> None:
    texts = {(name, text) for name, text in recorded_texts() if re.search("[a-z]{3} ", text)}
    english = {
        (name, text): translation
        for name, text in texts
        if not CHINESE.search(translation := translate_text(WORDS_OF[name], text)) or find_english(translation)
    }

    assert len(texts) > 500
    assert {name for name, _ in english}.isdisjoint(("ascend", "enflame", "habana"))
    assert english == {}


def test_each_text_of_a_finding_of_topologies_is_chinese() -> None:
    words = read_words({"LANG": "zh_CN.UTF-8"})
    texts = [
        text for known in read_topology_findings().values() for text in (known.text, known.passed, known.remediation)
    ]
    assert [
        text for text in texts if text.strip("{}") and text not in words and f"{text}; the first" not in words
    ] == []

    line = format_topology_finding("TOPO-007", "decode differ: replica 2 has 4 ranks")
    assert translate_line(words, line) == (
        "TOPO-007: decode 的各副本不同：副本 2 为 4 个 rank；路由给每个副本相同的份额；为每种节点各写一个组"
    )
    assert translate_line({}, line) == line
    assert read_words({"LANG": "C.UTF-8"}) == read_words({"LANG": "../x"}) == {}


def test_a_fatal_error_is_chinese_even_if_its_message_has_no_translation() -> None:
    words = Translations(next(profile["translations"]["zh"] for profile in PROFILES))

    assert all(CHINESE.search(words[meaning]) for meaning in EXIT_CODES.values())
    refused = translate_error(words, EntrypointError(USAGE, "--frob 3: refused by frobnication", "leave the flag out"))
    assert refused == f"{words[EXIT_CODES[USAGE]]}：--frob 3: refused by frobnication\n\n提示：去掉该参数"
    memory = (
        "m: with -tp 2, of 43.2 GiB usable per device, weights take 219.0 GiB and runtime and activations take 3.5 GiB"
    )
    assert translate_error(words, EntrypointError(DOES_NOT_FIT, memory)) == (
        "m：-tp 2 时，每个设备可用 43.2 GiB，权重占 219.0 GiB，运行时和激活占 3.5 GiB"
    )
    assert translate_error({}, EntrypointError(OK, "as it is", "do it")) == "as it is\n\nhint: do it"


KEPT = re.compile(
    r"`[^`]+`|\{\w*\}|(?<!\w)--?[A-Za-z][\w.-]*(?:[= ][A-Z]{2,}\b|=\S+)?|[\w.-]*/[\w./*<>…-]+|\w+[._=:]\w[\w.:=,*-]*"
    r"|\b\w*[A-Z0-9_]\w*[A-Z0-9_]\w*\b|\b[a-z]+-[\w-]+"
)
"""What is no word of a language: between backticks, options, paths, names with points, digits or capitals."""
LATIN = re.compile("[A-Za-z][a-z]+")
NEVER_KEPT = frozenset(
    LATIN.findall(
        "all an and any are as at be been but by can cannot each every for from given has have if in is it its less "
        "more need needs no none not of on one only or other over set so such than that the their them these this to "
        "too two until use was which will with without would"
    )
)
"""English words that no name has, though a command or a quoted message in a Chinese text may."""


def list_latin_words(text: str) -> list[str]:
    return LATIN.findall(KEPT.sub("~", text))


NAMED_LISTS = ("quantisations", "config_types", "connectors", "executors")
"""Lists of a vLLM whose names stand in texts."""


@cache
def list_names() -> frozenset[str]:
    """Return the Latin words that Chinese texts have on purpose, such as token and kernel, and names of methods."""
    lists = [json.loads(path.read_text()) for path in sorted((ROOT / "templates" / "vllm").glob("vllm-*.json"))]
    methods = " ".join(
        name for vllm_lists in lists for kind in NAMED_LISTS for name in vllm_lists["lists"].get(kind, ())
    )
    chinese = {word for _, translation in PAIRS for word in list_latin_words(translation)}
    libraries = (library for image_profile in PROFILES for library in image_profile.get("libraries") or ())
    return frozenset({*chinese - NEVER_KEPT, *LATIN.findall(methods), *libraries, *WORDS_OF})


def find_english(text: str) -> list[str]:
    """Return the words of a Chinese text that are left over from English."""
    return [word for word in list_latin_words(text) if word not in list_names()]


WORDS_OF = {
    image_profile["accelerator"]: Translations(image_profile["translations"]["zh"]) for image_profile in PROFILES
}


def insert_values(text: str) -> str:
    """Return a text of the code with a value for each brace; one that continues a word, such as a plural, is empty."""
    numbers = itertools.count(2)
    return re.sub(r"\{\}", lambda _: str(next(numbers)), re.sub(r"(?<=[a-z])\{\}", "", text))


PROSE = [
    text
    for text in list_code_texts()
    if re.search("[a-z]{2} [a-z]{2}", KEPT.sub("~", text.text))
    and not COMMAND.fullmatch(text.text)
    and "  " not in text.text  # without the name that is always there
]


@for_each(PROSE, lambda code_text: code_text.place)
def test_errors_reasons_and_values_of_the_code_are_chinese(code_text: CodeText) -> None:
    named = re.match(r"entrypoints/decide/(\w+)", code_text.place)
    names = [named[1]] if named and named[1] in WORDS_OF else list(WORDS_OF)
    text = insert_values(code_text.text)
    translations = [translate_text(WORDS_OF[name], text) for name in names]
    assert any(CHINESE.search(translation) and not find_english(translation) for translation in translations), text


SHOWN_HOSTS = ("ascend-a3-8x2", "enflame-s60-8x", "habana-gaudi2e-untuned")
ACCEPTED = ("--vllm-accepts", "HPU-010")  # the driver of the last one is too old
COMMAND_LINE = re.compile(r"\w+=\S* \\|.*-m vllm\..*|[\w.-]+: (?:\d+ [A-Z]+(?:, )?)+")
"""Lines of a plan that are a command, and the sum of a check: `ascend9.1-a3: 1 WARN, 17 PASS`."""
UNTRANSLATED = re.compile(r"；依据：.*|\[[a-z ]+\]|^\S+ = \S+|\S*/test_\S+")
"""A source, which is the title of a document; the layer of a setting; a setting; paths of the test."""


def run_in_chinese(profile: Path, *words: str) -> tuple[int, list[str]]:
    """Run the command line in a Chinese locale; return the exit code and what both streams say."""
    streams = io.StringIO()
    with contextlib.redirect_stdout(streams), contextlib.redirect_stderr(streams):
        code = main(words, {"LANG": "zh_CN.UTF-8", "DRYDOCK_PROFILE": str(profile)})
    return code, [line for line in streams.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize("host", SHOWN_HOSTS)
def test_a_plan_a_check_and_an_error_are_chinese_in_every_line(host: str, tmp_path: Path) -> None:
    profile, model = tmp_path / "profile.json", str(write_model(tmp_path / "model"))
    profile.write_text(json.dumps(expect.profile_of(host)))
    expected_values = json.dumps([image_check["expected"] for image_check in expect.profile_of(host)["checks"]])
    facts = {*LATIN.findall((HOSTS / host / "facts.json").read_text() + expected_values)}  # such as powersave
    recording = ("--root", str(HOSTS / host))
    plan, check, error = (
        run_in_chinese(profile, *words, *recording)
        for words in (("plan", model, *ACCEPTED), ("check",), ("plan", model, "--tensor-parallel-size", "64"))
    )

    old_driver = host == "habana-gaudi2e-untuned"
    assert (plan[0], check[0], error[0]) == (OK, CHECK_FAILED if old_driver else OK, USAGE)
    assert len(plan[1]) > 50
    assert len(error[1]) == 2  # the message and its hint
    for line in (*plan[1], *check[1], *error[1]):
        if COMMAND_LINE.fullmatch(line):
            continue
        assert CHINESE.search(line), line
        assert {*find_english(UNTRANSLATED.sub("~", line))} <= facts, line


def test_a_text_that_is_english_in_part_is_found() -> None:
    assert find_english("应为 the first of 5 names") == ["the", "first", "of", "names"]
    assert find_english("请减小 --max-model-len，或给出 MODEL 的 token 数（`serve`）") == []


@for_each(PAIRS, lambda pair: str(pair[0]))
def test_a_translation_takes_every_value(text: str, translation: str) -> None:
    values = [f"<{number}>" for number in range(len(HOLE.findall(text)))]
    if values:
        shown = translation.format(*values)
        assert all(value in shown for value in values)


@for_each(PAIRS, lambda pair: str(pair[0]))
def test_a_translation_repeats_options_paths_variables_and_numbers(text: str, translation: str) -> None:
    translation = re.sub(r"\{\d\}", "{}", translation)  # values in another order
    assert set(FIXED.findall(text)) == set(FIXED.findall(translation))


# --- what drydock's own verbs say -----------------------------------------------------------------------------------

VERB_WORDS: dict[str, str] = yaml.safe_load((ROOT / "drydock/core/user_language.zh.yaml").read_text())
OPERATORS = ("run", "plan", "check", "size", "explain", "doctor", "compare", "demo", "entrypoint", "topology")
"""Verbs that operators use, and a group of such verbs."""
ERRORS = {name for name, value in vars(errors).items() if name.endswith("Error") and isinstance(value, type)}
MODULES = (
    *sorted((ROOT / "drydock/run").glob("*.py")),
    *(ROOT / f"drydock/verbs/{name}_verb.py" for name in ("run", "plan", "size", "doctor")),
    *(
        ROOT / f"drydock/topology/{name}.py"
        for name in ("size", "init", "up", "planned_file", "topology_file", "verify")
    ),
    *(ROOT / f"drydock/{name}.py" for name in ("build/doctor_questions", "cli/cli", "cli/task_helpers")),
    *(ROOT / f"drydock/config/{name}.py" for name in ("matrix", "target_hints", "project_choice")),
)
"""Modules with the errors and notes that operators meet."""
ENGLISH_LINE = re.compile(r"(?<![\w/.-])[A-Za-z][a-z]+(?:[ ,;:]+[a-z][a-z'-]+){2,}")
"""Three words of prose in a row: no command, no list of names, no row of a table."""


def list_english_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not CHINESE.search(line) and ENGLISH_LINE.search(line)]


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")


@pytest.mark.usefixtures("chinese")
def test_the_overview_and_the_help_of_operators_verbs_have_no_english_line() -> None:
    verbs = Verbs(COMMANDS)
    names = [name for name in verbs if name.partition(" ")[0] in OPERATORS]
    assert len(names) > len(OPERATORS)
    texts = [format_overview(verbs), *(help_of(verbs, verbs.contexts[name.replace(" ", ".")]) for name in names)]
    assert [line for text in texts for line in list_english_lines(text)] == []


VERB_TEXTS = sorted(
    {
        code_text
        for path in MODULES
        for code_text in list_call_texts(path, {*ERRORS, "log", "Diagnosis"})
        if re.search("[a-z]{2} [a-z]{2}", KEPT.sub("~", code_text.text))
    }
)


@pytest.mark.usefixtures("chinese")
@for_each(VERB_TEXTS, lambda code_text: code_text.place)
def test_errors_and_notes_of_operators_verbs_are_chinese(code_text: CodeText) -> None:
    translated = translate_lines(insert_values(code_text.text))
    assert CHINESE.search(translated), code_text.text
    assert NEVER_KEPT.isdisjoint(list_latin_words(translated)), translated


@pytest.mark.usefixtures("chinese")
def test_what_a_dry_run_of_a_build_says_is_chinese() -> None:
    sources = "".join((ROOT / "drydock" / "build" / name).read_text() for name in ("build_preview.py", "rebuild.py"))
    texts = re.findall(r'"((?:would|expected digest|disk:) [^"]*)"', sources)
    lines = [re.sub(r"\{[^{}]*\}", "from nothing", text) for text in texts]
    assert len(lines) > 10
    assert [line for line in lines if not CHINESE.search(translate_lines(line))] == []


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize("part", ["; known: ", "--a: "])
def test_a_text_of_others_with_many_parts_is_translated(part: str) -> None:
    assert translate_lines(f"unknown key {part * 2000}x").endswith("x")


WRONG_TOPOLOGIES = (
    *("", "- a\n", "nodes: 3\n", "model: x\nimage_: 1\n", "model: a\nmodel: b\n", "model: 012\n", "model: off\n"),
    *("1.0: x\n", "? [a]\n: b\n", "model: &a x\n", "model: !b x\n", "model: x\n\tnodes: 1\n", "a: [\n", "a: {b\n"),
    *("a: 'b'c\n", "a: \x07\n", 'a: "b\n', "a: b: c\n", "a\nb: 1\n", "a: 1\n---\nb: 1\n", "<<: {a: 1}\n"),
    *("model: 1\nnodes: []\ngroups: {}\n", f"a: {'[' * 40}\n"),
)
"""Files that are no topology, or no YAML."""


@pytest.mark.usefixtures("chinese")
def test_what_is_wrong_with_a_file_is_chinese(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, left = Path("topology.yaml"), {}
    for text in WRONG_TOPOLOGIES:
        path.write_text(text)
        with pytest.raises(errors.InputError) as raised:
            read_topology(path)
        lines = [line for line in translate_lines(f"error: {raised.value}").splitlines() if line]
        english = [line for line in lines if not CHINESE.search(line) or NEVER_KEPT & {*LATIN.findall(line)}]
        left |= {text: english} if english else {}
    assert left == {}
    assert translate_lines("x: unknown key 'i'; known: image, run") == "x：未知的键 'i'；已知：image, run"


@for_each([*VERB_WORDS.items()], lambda pair: str(pair[0]))
def test_a_translation_of_the_verbs_repeats_values_options_and_numbers(text: str, translation: str) -> None:
    assert len(HOLE.findall(text)) == len(HOLE.findall(translation))
    assert set(FIXED.findall(text)) == set(FIXED.findall(translation))


def test_outputs_of_verbs_have_no_english_line(tmp_path: Path) -> None:
    host, topology = str(HOSTS / "cuda-h100-8x/host.json"), tmp_path / "topology.yaml"
    for name in ("n1", "n2"):
        shutil.copy(host, tmp_path / f"{name}.json")
    nodes = "".join(f"  - {{name: n{n}, address: 10.0.0.{n}, host: n{n}.json}}\n" for n in (1, 2))
    groups = "groups:\n  - {name: serve, role: serve, replicas: 2, nodes: 1}\nrouter: {node: n1, port: 30000}\n"
    topology.write_text(f"model: Qwen/Qwen3-32B\ntarget: cuda\napi_key: required\nnodes:\n{nodes}{groups}")
    commands = (
        ("plan", "--target", "auto", "--root", host, "--", "--model", "Qwen/Qwen3-32B"),
        ("check", "--target", "auto", "--root", host),
        ("run", "--target", "cuda", "--print", "--model", "Qwen/Qwen3-32B"),
        ("run", "--target", "cuda", "--model", "Qwen/Qwen3-32B", "--port", "x"),
        ("size", "Qwen/Qwen3-32B", "--root", str(tmp_path)),
        ("size",),
        ("topology", "plan", str(topology)),
        ("topology", "up", str(topology)),
    )
    for words in commands:
        env = {**os.environ, "LC_ALL": "zh_CN.UTF-8", "PYTHONUTF8": "1"}
        program = [sys.executable, str(ROOT / "tasks.py"), *words]
        ended = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
        text = ended.stderr + ended.stdout
        assert CHINESE.search(text), words
        assert list_english_lines(text) == [], words


def test_a_chinese_line_is_wrapped_by_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    text = wrap_lines("print the result, warnings and errors only", 16, "  --quiet  ", " " * 11)
    assert text.splitlines()[0] == "  --quiet  只输"
    assert max(map(measure_columns, text.splitlines())) <= 17  # a mark stays with its word
    monkeypatch.setenv("LC_ALL", "C")
    assert wrap_lines("print the result", 80, "  ", "") == "  print the result"
