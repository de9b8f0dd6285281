from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from drydock.config.accelerator_files import read_retired
from drydock.config.project_choice import DRYDOCK
from drydock.config.topology_finding_file import read_topology_findings
from drydock.core.errors import InputError
from drydock.core.files import format_json
from drydock.model.record import dump_record
from drydock.run.entrypoint import DoesNotFitError
from drydock.topology import init, planned_file, topology_plan_text
from drydock.topology.plan_model import PLAN_AT_MOST
from drydock.topology.topology_file import HOST_AT_MOST, read_topology
from tests.support.called_verbs import call_verb, render_topology
from tests.support.topology_files import HOSTS, SMOLLM2, TRIO, write, write_model


def init_topology(hosts: Path, output: Path, model: str, target: str, shape: str = "") -> None:
    """Write a topology.yaml for recorded hosts."""
    call_verb("topology init", root=str(hosts), output=str(output), model=model, target=target, shape=shape)


def _hosts(folder: Path, *names: str, host: str = "cpu-xeon8380-2s") -> Path:
    text = (HOSTS / host / "host.json").read_text()
    for name in names:
        path = folder / "hosts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "hosts"


def test_init_writes_a_topology_that_can_be_read(tmp_path: Path) -> None:
    hosts = _hosts(tmp_path, "Rack 1_a.json", "b/host.json")
    (hosts / "notes.json").write_text("{}")
    output = tmp_path / "topology.yaml"
    init_topology(hosts, output, "/models/m", "cpu")
    read = read_topology(output)
    assert [(node.name, node.host) for node in read.topology.nodes] == [
        ("b", "hosts/b/host.json"),
        ("rack-1-a", "hosts/Rack 1_a.json"),
    ]
    assert read.topology.target == "cpu-vllm0.32"
    assert read.topology.groups[0].replicas == 2


def known_as(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let this machine know every name by some addresses."""
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answer)


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [(["10.1.2.3"], "10.1.2.3"), (["127.0.1.1"], "p0"), (["10.1.2.3", "10.1.2.4"], "p0"), ([], "p0")],
    ids=["one", "loopback", "several", "none"],
)
def test_init_writes_the_address_by_which_this_machine_knows_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str], expected: str
) -> None:
    known_as(monkeypatch, *addresses)
    init_topology(_hosts(tmp_path, "p0.json"), tmp_path / "topology.yaml", "m", "cpu")
    (node,) = read_topology(tmp_path / "topology.yaml").topology.nodes
    assert node.address == expected


def test_init_writes_groups_of_a_shape(tmp_path: Path) -> None:
    hosts = _hosts(tmp_path, "a.json", "b.json", "c.json")
    init_topology(hosts, tmp_path / "topology.yaml", "m", "cpu", "2p1d")
    groups = read_topology(tmp_path / "topology.yaml").topology.groups
    assert [(group.role, group.replicas) for group in groups] == [("prefill", 2), ("decode", 1)]
    with pytest.raises(InputError, match="--shape 3p1d: unknown"):
        init_topology(hosts, tmp_path / "other.yaml", "m", "cpu", "3p1d")
    with pytest.raises(InputError, match="--shape 2p1d: found 1 recorded hosts, expected 3"):
        init_topology(_hosts(tmp_path / "few", "a.json"), tmp_path / "other.yaml", "m", "cpu", "2p1d")


@pytest.mark.parametrize(
    ("model", "shape", "replicas_and_nodes", "remarks"),
    [
        ("deepseek-ai/DeepSeek-V3", "", [(2, 2)], ["too small: serve {replicas: 4, nodes: 1}", "fits: ", "fits too: "]),
        ("Qwen/Qwen3-8B", "", [(4, 1)], ["fits: serve {replicas: 4, nodes: 1} (dp8)", "fits too: ", "fits too: "]),
        ("deepseek-ai/DeepSeek-V3", "1p1d", [(1, 2), (1, 2)], ["too small: prefill", "fits: prefill"]),
    ],
    ids=["large", "small", "prefill-and-decode"],
)
def test_init_writes_servers_of_as_many_machines_as_the_model_needs(
    tmp_path: Path, model: str, shape: str, replicas_and_nodes: list[tuple[int, int]], remarks: list[str]
) -> None:
    output = tmp_path / "topology.yaml"
    hosts = _hosts(tmp_path, "a.json", "b.json", "c.json", "d.json", host="cuda-h100-8x")
    init_topology(hosts, output, model, "cuda", shape)
    groups = read_topology(output).topology.groups
    assert [(group.replicas, group.nodes) for group in groups] == replicas_and_nodes
    written = [line.strip(" #") for line in output.read_text().splitlines() if line.startswith("  # ")]
    assert [line.startswith(remark) for line, remark in zip(written, remarks, strict=True)] == [True] * len(remarks)


def test_init_names_a_length_that_is_less_than_the_models_own(tmp_path: Path) -> None:
    output = tmp_path / "topology.yaml"
    hosts = _hosts(tmp_path, "a.json", "b.json", host="ascend-a3-8x2")
    init_topology(hosts, output, "vllm-ascend/DeepSeek-V3.2-W8A8", "ascend-a3")
    one, both = (line for line in output.read_text().splitlines() if "fits" in line)
    assert "(tp16 ep, no more than " in one
    assert both.endswith("fits too: serve {replicas: 1, nodes: 2} (tp16 dp2 ep)")


def test_init_writes_nothing_for_a_model_that_fits_no_number_of_the_machines(tmp_path: Path) -> None:
    output = tmp_path / "topology.yaml"
    hosts = _hosts(tmp_path, "a.json", host="cuda-h100-8x")
    with pytest.raises(DoesNotFitError) as caught:
        init_topology(hosts, output, "deepseek-ai/DeepSeek-V3", "cuda")
    assert caught.value.hint.startswith("`nodes: 2` in the group fits: -tp 8 -pp 2")
    assert "--nnodes" not in caught.value.hint
    assert not output.exists()


def test_init_says_that_a_model_was_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "topology.yaml"
    init_topology(_hosts(tmp_path, "a.json", "b.json"), output, "/models/m", "cpu")
    text = "whether the model fits was not asked: model /models/m: no such folder on this machine"
    assert text in output.read_text()
    assert text in capsys.readouterr().err


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    output = tmp_path / "topology.yaml"
    output.write_text("mine")
    with pytest.raises(InputError, match="exists, and is not overwritten"):
        init_topology(_hosts(tmp_path, "a.json"), output, "m", "cpu")
    assert output.read_text() == "mine"


def test_init_chooses_what_fits_the_hosts(tmp_path: Path) -> None:
    output = tmp_path / "topology.yaml"
    init_topology(_hosts(tmp_path, "a.json", "b.json"), output, "m", "")
    assert read_topology(output).topology.target == "cpu-vllm0.32"


def test_init_refuses_hosts_of_several_images(tmp_path: Path) -> None:
    hosts = _hosts(tmp_path, "a.json")
    _hosts(tmp_path, "b.json", host="cuda-h100-8x")
    with pytest.raises(InputError, match=r"different images: cpu-vllm0\.32, cuda13\.0-vllm0\.33"):
        init_topology(hosts, tmp_path / "topology.yaml", "m", "")


@pytest.mark.parametrize("options", [("model", ""), ("", "cpu")])
def test_a_plan_is_not_planned_again(tmp_path: Path, options: tuple[str, str]) -> None:
    with pytest.raises(InputError, match="a plan has its model and its variant"):
        planned_file.plan_topology_file(DRYDOCK, tmp_path / "plan.json", *options)


def test_init_names_nodes_as_plans_take_them(tmp_path: Path) -> None:
    hosts = _hosts(tmp_path, f"{'a' * 62}-b.json")
    init_topology(hosts, tmp_path / "topology.yaml", "m", "cpu")
    (node,) = read_topology(tmp_path / "topology.yaml").topology.nodes
    assert node.name == "a" * 62


def test_a_folder_of_hosts_with_a_long_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found no recorded host"):
        init_topology(tmp_path / ("x" * 300), tmp_path / "topology.yaml", "m", "cpu")


def test_init_needs_hosts_with_names_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found no recorded host, expected NAME\.json or NAME/host\.json"):
        init_topology(tmp_path, tmp_path / "topology.yaml", "m", "cpu")
    with pytest.raises(InputError, match="a second host with the name a"):
        init_topology(_hosts(tmp_path, "a.json", "A.json"), tmp_path / "topology.yaml", "m", "cpu")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"commands": {', "invalid JSON"),
        (b"\xff{}", "invalid JSON"),
        (" " * (HOST_AT_MOST + 1), "larger than 16 MiB"),
        (None, "No such file"),
    ],
    ids=["cut off", "no text", "too large", "a link to nothing"],
)
@pytest.mark.parametrize("name", ["b.json", "b/host.json"])
def test_init_leaves_out_no_host_that_it_cannot_read(
    tmp_path: Path, name: str, content: str | bytes | None, problem: str
) -> None:
    hosts = _hosts(tmp_path, "a.json")
    path = hosts / name
    path.parent.mkdir(exist_ok=True)
    if content is None:
        path.symlink_to("absent")
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=rf"{re.escape(str(path))}: .*{problem}"):
        init_topology(hosts, tmp_path / "topology.yaml", "m", "cpu")


@pytest.mark.parametrize("content", ["{}", "[]", '{"model": "m"}'])
def test_init_names_what_is_no_host(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = _hosts(tmp_path, "a.json")
    (hosts / "plan.json").write_text(content)
    assert [*init.find_hosts(hosts)] == ["a"]
    assert re.search(r"plan\.json: not a recorded host.*; it is left out", capsys.readouterr().err)


def test_init_writes_nothing_that_is_no_topology(tmp_path: Path) -> None:
    output = tmp_path / "topology.yaml"
    with pytest.raises(InputError, match=r"model: found .*, expected text on one line"):
        init_topology(_hosts(tmp_path, "a.json"), output, "x\ny", "cpu")
    with pytest.raises(InputError, match=r"nodes\[1\]\.host: found .*, expected text on one line"):
        init_topology(_hosts(tmp_path, "b\nc.json"), output, "x", "cpu")
    with pytest.raises(InputError, match="without credentials"):
        init_topology(_hosts(tmp_path, "a.json"), output, "s3://key:hunter2@models/m", "cuda")
    assert not output.exists()


def test_a_plan_is_read_back_and_compared(tmp_path: Path) -> None:
    path = write(tmp_path, TRIO, "cpu-xeon8380-2s")
    model = str(write_model(tmp_path / "model", SMOLLM2))
    plan = planned_file.plan_topology_file(DRYDOCK, path, model)
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(plan.model_dump_json())
    assert planned_file.plan_topology_file(DRYDOCK, plan_file) == plan
    assert (
        planned_file.plan_two_files(DRYDOCK, plan_file, path, model)
        == planned_file.plan_two_files(DRYDOCK, path, plan_file, model)
        == (plan, plan)
    )
    with pytest.raises(InputError, match="a plan has its model and its variant"):
        planned_file.plan_two_files(DRYDOCK, plan_file, plan_file, model)
    text = topology_plan_text.format_topology_plan(plan)
    assert "\ngroup decode, replica 0 (decode)\n  rank 0 on d0 (10.0.0.3), ports: api 20000, status 20001," in text
    assert "\nrouter on p0 (10.0.0.1)\n  vllm-router --host" in text
    assert "TOPO-004" not in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{}", "missing key 'replicas'"),
        ("[]", "expected a JSON object"),
        ("x", "invalid JSON"),
        ('{"model": 1}', "model: found 1, .* expected text"),
        (" " * (PLAN_AT_MOST + 1), "larger than 64 MiB"),
    ],
    ids=["nothing", "a list", "no JSON", "a number", "too large"],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    for read in (
        lambda path: planned_file.plan_topology_file(DRYDOCK, path),
        lambda path: render_topology(path, "compose", tmp_path / "out"),
    ):
        with pytest.raises(InputError, match=rf"plan\.json: .*{problem}"):
            read(path)


def test_an_image_by_digest_means_the_variant_whose_record_has_it(tmp_path: Path) -> None:
    record = json.loads((DRYDOCK / "images/cpu-vllm0.32/record.json").read_text())
    digest = record["platforms"]["linux/amd64"]["verified"]["digest"]
    model = str(write_model(tmp_path / "model", SMOLLM2))
    text = TRIO.replace("target: cpu", f"image: registry.example/cpu@{digest}")
    plan = planned_file.plan_topology_file(DRYDOCK, write(tmp_path, text, "cpu-xeon8380-2s"), model)
    assert (plan.variant, plan.image) == ("cpu-vllm0.32", f"registry.example/cpu@{digest}")
    unknown = write(tmp_path, text.replace(digest, f"sha256:{'0' * 64}"), "cpu-xeon8380-2s")
    with pytest.raises(InputError, match="no variant of this checkout has this digest"):
        planned_file.plan_topology_file(DRYDOCK, unknown, model)
    assert planned_file.plan_topology_file(DRYDOCK, unknown, model, "cpu").variant == "cpu-vllm0.32"


def test_a_router_from_a_registry_is_planned_and_a_local_one_is_named_for_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, image = str(write_model(tmp_path / "model", SMOLLM2)), f"registry.example/router@sha256:{'0' * 64}"
    for text, name in ((TRIO, "drydock/router0.1:"), (TRIO.replace("{node: p0", f"{{node: p0, image: {image}"), image)):
        plan = planned_file.plan_topology_file(DRYDOCK, write(tmp_path, text, "cpu-xeon8380-2s"), model)
        assert plan.router
        assert plan.router.image.startswith(name)
        (tmp_path / "plan.json").write_text(format_json(dump_record(plan)))
        render_topology(tmp_path / "plan.json", "kubernetes", tmp_path / "out")
        stderr = capsys.readouterr().err
        assert ("name it by digest as router.image" in stderr) == (name != image)


def test_a_folder_of_the_nodes_that_this_machine_lacks_is_told_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model /models/m: no such folder on this machine") as caught:
        planned_file.plan_topology_file(DRYDOCK, write(tmp_path, TRIO, "cpu-xeon8380-2s"))
    assert "--model FOLDER" in caught.value.hint


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--model .*: found no config\.json"):
        planned_file.plan_topology_file(DRYDOCK, write(tmp_path, TRIO), str(tmp_path))


@pytest.mark.parametrize("name", ["a" * 300, "a/" + "b" * 300])
def test_a_too_long_name_is_refused(name: str, tmp_path: Path) -> None:
    path, folder = write(tmp_path, TRIO.replace("/models/m", name)), str(write_model(tmp_path / "model", SMOLLM2))
    with pytest.raises(InputError, match=r"model: found 'a.*', expected a hub id such as .*: File name too long"):
        planned_file.plan_topology_file(DRYDOCK, path, folder)
    with pytest.raises(InputError, match=r"found no config\.json"):
        planned_file.plan_topology_file(DRYDOCK, path, name)


def test_findings_have_the_prefix_of_topologies() -> None:
    assert [*read_topology_findings()] == sorted(read_topology_findings())
    assert all(re.fullmatch(r"TOPO-\d{3}", name) for name in read_topology_findings())
    assert not {item.id for item in read_retired(DRYDOCK)} & {*read_topology_findings()}


@pytest.mark.parametrize(
    ("names", "shape", "ordered"),
    [
        (["decode-1", "prefill-1", "prefill-2"], "2p1d", ["prefill-1", "prefill-2", "decode-1"]),
        (["gpu-d0", "gpu-p0", "gpu-p1"], "2p1d", ["gpu-p0", "gpu-p1", "gpu-d0"]),
        (["node10", "node2", "node1"], "2p1d", ["node1", "node2", "node10"]),
        (["decode-1", "prefill-1"], "", ["decode-1", "prefill-1"]),
        (["a1", "a", "a01b"], "", ["a", "a1", "a01b"]),
        (["dgx1", "pod2", "decode"], "2p1d", ["dgx1", "pod2", "decode"]),
    ],
)
def test_hosts_get_their_roles_by_name_or_number(names: list[str], shape: str, ordered: list[str]) -> None:
    assert init.order_hosts(names, shape) == ordered


def test_what_plan_will_refuse_is_said_when_the_file_is_written() -> None:
    nodes = [{"name": "a", "address": "192.0.2.1"}, {"name": "b", "address": "b"}]
    assert (init.find_named_addresses(nodes, "1p1d"), init.find_named_addresses(nodes, "")) == (["b"], [])
