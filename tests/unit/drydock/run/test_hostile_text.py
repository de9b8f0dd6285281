"""Whatever text a user, a model or a recipe brings, each format's own reader gets that text back. Property tests."""

from __future__ import annotations

import html
import os
import shlex
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drydock.core.errors import InputError
from drydock.model.running import Run
from drydock.run import kubernetes_manifest, podman
from drydock.run.container import Container
from drydock.run.docker_command import compose_text, shell_text
from drydock.run.user_options import parse_variables
from drydock.topology.topology_plan_text import _list_rank_lines
from entrypoints.core.records import Reason
from entrypoints.pages.page_frame import render_command
from entrypoints.plan.plan_text import _command_text
from tests.support import hostile, topologies
from tests.support.containers import machine, made
from tests.support.systemd import unquoted
from tests.unit.drydock.run.test_apptainer import in_a_shell
from tests.unit.drydock.topology.render import test_formats

TEXT = st.one_of(
    hostile.texts(),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12),
    st.text("'\"\\$`{}%#\n\t \r!&*~=:-@\x1b\u2028\u202e", min_size=1, max_size=12),
).filter(lambda text: "\0" not in text)
property_test = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)


def run_in_shell(text: str, *functions: str) -> list[str]:
    """Run a text in bash, in which some programs print their words; return all words."""
    program = 'f() { printf "%s\\0" "$@"; }; ' + "".join(f'{name}() {{ f "$@"; }}; ' for name in functions) + text
    result = subprocess.run(["bash", "-c", program], capture_output=True, check=True, env={"PATH": os.environ["PATH"]})
    return result.stdout.decode().split("\0")[:-1]


def read_docker(container: Container, _folder: Path) -> tuple[str, str]:
    words = run_in_shell(shell_text(container), "docker")
    (value,) = (word.removeprefix("VLLM_X=") for word in words if word.startswith("VLLM_X="))
    return words[-1], value


def read_compose(container: Container, _folder: Path) -> tuple[str, str]:
    (service,) = yaml.safe_load(compose_text(container))["services"].values()
    word, value = service["command"][-1], service["environment"]["VLLM_X"]
    assert "$" not in (word + value).replace("$$", "")
    return word.replace("$$", "$"), value.replace("$$", "$")


def read_kubernetes(container: Container, _folder: Path) -> tuple[str, str]:
    documents = [*yaml.safe_load_all(kubernetes_manifest.kubernetes_text(container))]
    pod = next(item for item in documents if item["kind"] in ("Deployment", "Job"))["spec"]["template"]["spec"]
    variables = {item["name"]: item.get("value") for item in pod["containers"][0]["env"]}
    # The kubelet reads $(NAME) as a variable, and $$ as $
    return pod["containers"][0]["args"][-1].replace("$$", "$"), variables["VLLM_X"].replace("$$", "$")


def read_quadlet(container: Container, _folder: Path) -> tuple[str, str]:
    lines = podman.quadlet_text(container).split("\n")
    (command,) = (line.removeprefix("Exec=") for line in lines if line.startswith("Exec="))
    values = [word for line in lines if line.startswith("Environment=") for word in unquoted(line.partition("=")[2])]
    (value,) = (word.removeprefix("VLLM_X=") for word in values if word.startswith("VLLM_X="))
    return unquoted(command)[-1], value


def read_apptainer(container: Container, folder: Path) -> tuple[str, str]:
    words, variables = in_a_shell(container, folder)
    return words[-1], variables["VLLM_X"]


READERS: dict[str, Callable[[Container, Path], tuple[str, str]]] = {
    "docker": read_docker,
    "compose": read_compose,
    "kubernetes": read_kubernetes,
    "quadlet": read_quadlet,
    "apptainer": read_apptainer,
}


@pytest.mark.parametrize("form", READERS)
@property_test
@given(word=TEXT, value=TEXT)
def test_a_word_and_a_value_are_read_as_they_were_given(form: str, word: str, value: str, tmp_path: Path) -> None:
    container = made(Run(), machine(tmp_path), arguments=("--x", word), env=(f"VLLM_X={value}",))

    assert READERS[form](container, tmp_path) == (word, value)


@pytest.mark.parametrize("reader", test_formats.READERS.values(), ids=list(test_formats.READERS))
@property_test
@given(text=TEXT)
def test_a_text_of_a_topology_is_read_as_it_was_planned(reader: Callable[..., Any], text: str) -> None:
    plan = test_formats.hostile(text)

    assert reader(plan) == test_formats.planned(plan)


@given(name=TEXT)
def test_a_name_is_that_of_a_variable_or_an_error(name: str) -> None:
    try:
        variables = parse_variables([f"{name}=1"])
    except InputError:
        return
    assert all(shlex.quote(variable) == variable for variable in variables.user_env)


@property_test
@given(words=st.lists(TEXT, min_size=1, max_size=3), values=st.lists(TEXT, max_size=3))
def test_a_printed_command_runs_what_was_planned(words: list[str], values: list[str]) -> None:
    env = {f"VLLM_X{place}": value for place, value in enumerate(values)}
    (rank,) = topologies.disaggregated().replicas[0].ranks[:1]
    rank = rank.model_copy(update={"env": env, "argv": ("f", *words), "before": ()})

    assert run_in_shell(_command_text(env, ("f", *words))) == words
    assert {f"{name}={value}" for name, value in env.items()} <= {*run_in_shell(_command_text(env, ("env", "-0")))}
    assert run_in_shell("\n".join([*_list_rank_lines(rank)][1:])) == words


@given(name=TEXT)
def test_no_name_is_a_command_of_a_printed_text(name: str) -> None:
    head, *_ = shlex.split(_command_text({name: "1"}, ("true",)))

    assert head == f"{name}=1"


class TagReader(HTMLParser):
    """Reads the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(text=TEXT)
def test_a_page_shows_a_text_and_obeys_none(text: str) -> None:
    def render(part: str) -> TagReader:
        reason = Reason("VLLM_X", part, "recipe", f"recipe {part}", (part,))
        return TagReader(render_command({"VLLM_X": part}, ("vllm", "--model", f"m{part}"), [reason]))

    page = render(text)

    assert page.tags == render("harmless").tags
    assert shlex.quote(f"m{text}") in page.text or html.unescape(html.escape(text)) in page.text
