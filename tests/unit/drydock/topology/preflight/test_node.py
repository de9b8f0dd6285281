"""What is sent to a machine, run here."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.topology.preflight import node
from drydock.topology.preflight.node_request import PROGRAM, NodeRequest, make_node_requests
from drydock.topology.preflight.node_response import NodeResponse, read_answer
from tests.support import topologies

NOTHING = NodeRequest("n0", "127.0.0.1", (), "", (), (), (), (), (), (), ())


def ask(question: NodeRequest, path: str = "") -> NodeResponse:
    env = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run([sys.executable, *question.words], capture_output=True, text=True, check=True, env=env)
    return read_answer(result.stdout)


def test_it_runs_on_python_3_8_and_has_nothing_that_ansible_reads_as_a_template() -> None:
    text = PROGRAM.read_text()
    ast.parse(text, feature_version=(3, 8))
    assert not re.search(r"\{[{%#]|[}%#]\}\}", text)
    assert "match " not in re.sub(r'""".*?"""', "", text, flags=re.DOTALL)


def test_files_are_told_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "folder").mkdir()
    first = ask(NOTHING._replace(model=str(tmp_path))).model
    (tmp_path / "config.json").write_text("[]")
    second = ask(NOTHING._replace(model=str(tmp_path))).model
    assert first
    assert second
    assert [*first.files] == ["config.json"]
    assert first.files != second.files
    assert first.free > 0


@pytest.mark.parametrize(("place", "changes_hash"), [(0, True), (-1, True), (3 << 20, False)])
def test_of_a_long_file_both_ends_are_read(
    place: int, changes_hash: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "WHOLE", 1 << 20)
    data = bytearray(8 << 20)
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    before = node.hash_model_file(str(path), len(data))
    data[place] = 1
    path.write_bytes(data)
    assert (node.hash_model_file(str(path), len(data)) != before) is changes_hash


def test_a_folder_that_is_not_there_is_told_with_the_room_above_it(tmp_path: Path) -> None:
    model = ask(NOTHING._replace(model=str(tmp_path / "a" / "b"))).model
    assert model
    assert "No such file or directory" in model.failure
    assert model.free > 0


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        used_port = server.getsockname()[1]
        answer = ask(NOTHING._replace(ports=(used_port,)))
    assert answer.ports == {str(used_port): "Address already in use"}
    assert ask(NOTHING._replace(ports=(used_port,))).ports == {str(used_port): ""}


def docker(folder: Path, script: str) -> str:
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(folder)


def test_images_and_the_images_own_check_come_from_docker(tmp_path: Path) -> None:
    image = [{"Id": f"sha256:{'1' * 64}", "RepoDigests": [f"a/b@sha256:{'2' * 64}"]}]
    script = f"""case "$*" in *inspect*) echo '{json.dumps(image)}';; *) echo "$@";; esac"""
    question = NOTHING._replace(
        images=("a/b",), container=("docker", "run", "b"), groups=("root", "x"), check=("check",)
    )
    answer = ask(question, docker(tmp_path, script))
    assert answer.images["a/b"].digests == (f"sha256:{'2' * 64}",)
    assert answer.check.stdout == "run --group-add 0 b check\n"
    assert answer.facts.stdout == "run --group-add 0 b facts --json\n"


@pytest.mark.parametrize(
    "script", ["exit 1", "echo '{'", "echo []", "echo '[7]'", "echo '[{}]'", "yes | head -c 9000000"]
)
def test_whatever_docker_says_there_is_an_answer(script: str, tmp_path: Path) -> None:
    question = NOTHING._replace(images=("a/b",), container=("docker", "run", "b"), check=("check",))
    answer = ask(question, docker(tmp_path, script))
    assert not answer.images["a/b"].digests
    assert len(answer.check.stdout) <= node.OUTPUT


def test_every_node_is_asked_with_the_others_as_peers() -> None:
    plan = topologies.disaggregated()
    questions = make_node_requests(plan, topologies.variant(plan.variant), {})
    assert [question.node for question in questions] == ["n0", "n1", "n2"]
    for question in questions:
        words = [*question.check]
        peers = words[words.index("--peers") + 1].split(",")
        assert sorted([*peers, question.address]) == ["10.2.0.10", "10.2.0.11", "10.2.0.12"]
        assert words[words.index("--peer-ports") + 1] == "20000,20005"
        assert words[words.index("--status-port") + 1] == "20001"
        assert question.container[-1] == plan.image
        assert question.container[question.container.index("--network") + 1] == "host"
        assert "VLLM_API_KEY" not in question.container
    assert 30000 in questions[2].ports
    assert plan.router
    assert plan.router.image in questions[2].images
