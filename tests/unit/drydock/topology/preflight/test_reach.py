"""How machines are asked, and what the task does with their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.core.errors import EngineError, InputError, PreflightError
from drydock.model.shared_options import SshOptions
from drydock.topology.preflight import reach
from drydock.topology.preflight.node_request import NodeRequest
from drydock.topology.preflight.node_response import NodeResponse
from drydock.verbs.topology_check_verb import TopologyCheckOptions, report_findings
from entrypoints.core.records import Finding

NOTHING = NodeRequest("n0", "127.0.0.1", (), "", (), (), (), (), (), (), ())


def test_this_machine_is_asked_if_it_is_a_node() -> None:
    answers = reach.ask_here([NOTHING, NOTHING._replace(node="n1", address="203.0.113.7")])
    assert [*answers] == ["n0"]
    assert isinstance(answers["n0"], NodeResponse)


def test_a_machine_that_is_no_node_cannot_answer_for_one() -> None:
    with pytest.raises(InputError, match="0 nodes have an address of this machine, expected one"):
        reach.ask_here([NOTHING._replace(address="203.0.113.7"), NOTHING._replace(address="")])


def kept(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, object]) -> dict[str, object]:
    """Let a playbook keep what modules returned, by node; return how it was called."""
    playbook_call: dict[str, object] = {}

    def play(folder: Path, tags: tuple[str, ...], **more: Any) -> None:
        playbook_call.update(more, tags=tags, files=sorted(path.name for path in folder.iterdir()))
        for node, value in answers.items():
            path = Path(more["variables"]["preflight_folder"], f"{node}.json")
            path.write_text(value if isinstance(value, str) else json.dumps(value))
        more["on_line"]("fatal: [n1]: UNREACHABLE!")
        raise EngineError("ansible-playbook: exit 4")

    monkeypatch.setattr(reach, "run_playbook", play)
    return playbook_call


UNREACHABLE = {"unreachable": True, "msg": "Failed to connect: Host key verification failed."}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"rc": 0, "stdout": "{}"}, "an answer that cannot be read: "),
        (UNREACHABLE, "Failed to connect: Host key verification failed."),
        (
            {"rc": 1, "stderr": "Traceback\x1b[31m", "msg": "non-zero return code"},
            "non-zero return code Traceback\\u001b",
        ),
        ({"rc": 1}, "failed and said nothing"),
        ("[]", "an answer that cannot be read: "),
        ("{", "an answer that cannot be read: "),
    ],
)
def test_answers_over_ssh_are_the_commands_output_or_why_there_is_none(
    monkeypatch: pytest.MonkeyPatch, result: object, text: str
) -> None:
    playbook_call = kept(monkeypatch, {"n0": result})
    answers = reach.ask_by_ansible([NOTHING, NOTHING._replace(node="n1")], {"playbook.yml": "---\n"}, SshOptions())
    assert str(answers["n0"]).startswith(text)
    assert answers["n1"] == "did not answer"
    assert (playbook_call["tags"], playbook_call["files"]) == (("preflight",), ["playbook.yml"])


def test_a_playbook_that_asks_no_machine_is_an_error_with_ansibles_words(monkeypatch: pytest.MonkeyPatch) -> None:
    kept(monkeypatch, {})
    with pytest.raises(EngineError, match=r"asked no machine: fatal: \[n1\]: UNREACHABLE!"):
        reach.ask_by_ansible([NOTHING], {"playbook.yml": "---\n"}, SshOptions())


def test_only_what_holds_a_nodes_network_is_started_and_it_publishes_no_port() -> None:
    services = {"node.n0": {"image": "a", "ports": ["127.0.0.1:1:1"]}, "router": {"image": "b"}}
    assert reach.list_holders({"services": services}) == {"node.n0": {"image": "a"}}


def test_a_node_on_one_engine_gets_the_network_that_its_container_holds() -> None:
    words = ("docker", "run", "--network", "host", "image")
    inside = reach._join_holder_network(NOTHING._replace(container=words), "abc\n")
    assert inside.container == ("docker", "run", "--network", "container:abc", "image")


def test_a_command_of_the_engine_that_fails_says_what_it_said() -> None:
    with pytest.raises(EngineError, match="exit 3: Pool overlaps"):
        reach._run_engine_command(("sh", "-c", "echo Pool overlaps >&2; exit 3"))


def finding(severity: str) -> Finding:
    return Finding("TOPO-026", severity, "the ports of node n0 are free", "n0: found", "free", "stop it", "host", "s")


def test_a_failure_ends_the_task_with_its_code_after_everything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PreflightError, match="not ready to start: TOPO-026") as failure:
        report_findings(
            (finding("PASS"), finding("FAIL")), TopologyCheckOptions(file="x", junit=str(tmp_path / "junit.xml"))
        )
    text = capsys.readouterr().out
    assert failure.value.code == 20
    assert "n0: found; expected free" in text
    assert text.endswith("1 FAIL, 1 PASS\n")
    assert 'failures="1"' in (tmp_path / "junit.xml").read_text()


def test_what_is_only_a_warning_does_not_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    report_findings((finding("PASS"), finding("WARN")), TopologyCheckOptions(file="x", json=True))
    assert [json_finding["severity"] for json_finding in json.loads(capsys.readouterr().out)] == ["PASS", "WARN"]
