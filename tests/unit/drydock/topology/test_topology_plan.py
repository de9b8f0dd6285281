from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HostError, InputError
from drydock.core.paths import ROOT
from drydock.topology.entrypoint_client import Asked, Entrypoint
from drydock.topology.plan_model import Rank, TopologyPlan
from drydock.topology.topology_arguments import rewrite_folder
from drydock.topology.topology_file import read_topology
from drydock.topology.topology_plan import Images, plan_topology
from tests.support.loopback import Loopback
from tests.support.topology_files import EXAMPLES, HOSTS, SHARED, SMOLLM2, TRIO, planned, write, write_model

CPU, H100 = "cpu-xeon8380-2s", "cuda-h100-8x"


def _plan(folder: Path, text: str = TRIO, host: str = CPU) -> TopologyPlan:
    return planned(write(folder, text, host), folder)


def _with(role: str, group_line: str) -> str:
    """Return TRIO, whose group of a role has a line more."""
    return TRIO.replace(f"    role: {role}\n", f"    role: {role}\n    {group_line}\n")


def _ranks(new_plan: TopologyPlan) -> dict[str, Rank]:
    return {rank.node: rank for replica in new_plan.replicas for rank in replica.ranks}


def test_the_container_decides_as_the_plan_says(tmp_path: Path) -> None:
    """The words and the environment of a rank give its command again."""
    path = write(tmp_path, TRIO, CPU)
    rank = _ranks(planned(path, tmp_path))["d0"]
    ask = Entrypoint(DRYDOCK, find_variant(read_matrix(DRYDOCK), "cpu"))
    model = str(tmp_path / "model")
    again = ask.plan(Asked(tmp_path / "host.json", model, rank.words[2:], rank.env))
    assert [word.replace(model, "/models/m") for word in again["argv"]] == [*rank.argv]


def test_what_the_user_sets_wins(tmp_path: Path) -> None:
    flags, env = (
        "[--port, '8000', --max-model-len=512]",
        "{VLLM_NIXL_SIDE_CHANNEL_PORT: 5600, UCX_NET_DEVICES: mlx5_0:1}",
    )
    rank = _ranks(_plan(tmp_path, _with("decode", f"flags: {flags}\n    env: {env}")))["d0"]
    assert rank.ports["api"] == 8000
    assert rank.ports["side-channel"] == 5600
    assert rank.env["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert rank.words[-3:] == ("--port", "8000", "--max-model-len=512")
    assert rank.words.count("--port") == 1


def test_a_groups_environment_is_for_its_containers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Loopback()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_TOKEN", "t")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    loaded = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(tmp_path / "loaded")}
    env = {**loaded, "HF_ENDPOINT": hub.url, "HF_TOKEN_PATH": "/etc/passwd", "MODELSCOPE_DOMAIN": hub.url}
    new_plan = _plan(tmp_path, _with("decode", f"env: {json.dumps(env)}"))
    variant = find_variant(read_matrix(DRYDOCK), "cpu")
    for more in ({}, {"VLLM_USE_MODELSCOPE": "true"}):
        with contextlib.suppress(InputError, HostError):  # the hub of the shell refuses, and there is no modelscope
            Entrypoint(DRYDOCK, variant).plan(Asked(tmp_path / "host.json", "some/model", (), {**env, **more}))
    hub.shutdown()
    assert env.items() <= _ranks(new_plan)["d0"].env.items()
    assert not [*tmp_path.glob("loaded*")]
    assert hub.requests == []


def test_a_groups_environment_decides_as_in_the_container(tmp_path: Path) -> None:
    write(tmp_path, "", CPU)
    ask = Entrypoint(DRYDOCK, find_variant(read_matrix(DRYDOCK), "cpu"))
    model = str(write_model(tmp_path / "model", SMOLLM2))
    rank_plan = ask.plan(Asked(tmp_path / "host.json", model, (), {"LD_PRELOAD": "/x/evil.so"}))
    (preload_reason,) = [reason for reason in rank_plan["reasons"] if reason["setting"] == "LD_PRELOAD"]
    assert (preload_reason["value"], preload_reason["origin"]) == ("/x/evil.so", "environment")


@pytest.mark.parametrize("model", ["/m", "/m/"])
def test_files_of_the_model_are_named_as_in_the_container(model: str, tmp_path: Path) -> None:
    flags = "flags: [--chat-template, /m/t.jinja, --tokenizer=/m, --download-dir, /mnt/m]"
    text = _with("decode", flags).replace("/models/m", model)
    rank = _ranks(_plan(tmp_path, text))["d0"]
    expected = ["--chat-template", "/models/m/t.jinja", "--tokenizer=/models/m", "--download-dir", "/mnt/m"]
    assert rank.words[1] == "/models/m"
    assert list(rank.words[-5:]) == expected
    assert set(expected) <= set(rank.argv)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/m", "/n"),
        ("--a=/m/t", "--a=/n/t"),
        ('{"model": "/m/d"}', '{"model": "/n/d"}'),
        ("read from /m, and /m/a", "read from /n, and /n/a"),
        ("/mnt/m", "/mnt/m"),
        ("/models/m/t", "/models/m/t"),
        ("/m.old", "/m.old"),
    ],
)
def test_only_whole_paths_are_relocated(text: str, expected: str) -> None:
    assert rewrite_folder(text, "/m", "/n") == expected


SIDE_CHANNEL = "env: {VLLM_NIXL_SIDE_CHANNEL_PORT: %s}"
NO_PORT = "SIDE_CHANNEL_PORT: found '%s', expected a port from 1 to 65535"


@pytest.mark.parametrize(
    ("role", "group_line", "problem"),
    [
        ("prefill", "flags: [--port, '30000']", "node p0: port 30000 is for the router and for api of prefill"),
        ("prefill", SIDE_CHANNEL % 65535, "group prefill: side-channel from 65535: 2 ports in a row end above 65535"),
        ("decode", "flags: [--port, '9', --status-port, '9']", "node d0: port 9 is for api of decode and for status"),
        ("decode", "flags: [--port, '0']", "group decode: --port: found '0', expected a port from 1 to 65535"),
        ("decode", SIDE_CHANNEL % "x", NO_PORT % "x"),
        ("decode", SIDE_CHANNEL % 70000, NO_PORT % 70000),
        ("decode", SIDE_CHANNEL % "''", NO_PORT % ""),
        ("decode", "flags: [--devices, '0']", "group decode: --devices 0: its nodes have no devices"),
        ("decode", "flags: [--max-model-len, x]", "host.json: --max-model-len"),
    ],
)
def test_what_a_group_cannot_have_is_refused(tmp_path: Path, role: str, group_line: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        _plan(tmp_path, _with(role, group_line))
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("router:", "network: {interface: eth7}\nrouter:", "node p0: no interface eth7 is up, found eth0"),
        (
            "target: cpu",
            "target: cpu-s390x-vllm0.27",
            "none published for cpu-s390x-vllm0.27 (vLLM 0.27.1): NIXL has no",
        ),
        ("model: /models/m", "model: s3://models/m", "cpu-vllm0.32 reads no model from there"),
        ("target: cpu", "target: cuda", "node p0: no device of NVIDIA CUDA in host.json"),
        ("    replicas: 2\n", "    replicas: 3\n", "group prefill, replica 2: found 0 free nodes (none), expected 1"),
    ],
)
def test_what_cannot_run_is_refused(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        _plan(tmp_path, TRIO.replace(old, new))
    assert problem in str(raised.value)


def test_servers_that_exchange_kv_caches_need_an_ip_address(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"node d0: address: found 'd0\.example', expected an IPv4 address"):
        _plan(tmp_path, TRIO.replace("10.0.0.3", "d0.example"))


def test_a_name_as_address_leaves_the_ip_to_who_knows_it(tmp_path: Path) -> None:
    nodes, _, _ = TRIO.partition("groups:")
    new_plan = _plan(tmp_path, f"{nodes}groups: [{{name: whole, replicas: 3}}]\n".replace("10.0.0.3", "d0.example"))
    assert "VLLM_HOST_IP" not in _ranks(new_plan)["d0"].env
    assert any(line.startswith("TOPO-008: node d0: d0.example is a name") for line in new_plan.findings)


def test_several_interfaces_are_a_finding_until_the_file_names_one(tmp_path: Path) -> None:
    path = write(tmp_path, TRIO, CPU)
    host = tmp_path / "host.json"
    host.write_text(
        host.read_text().replace(
            '"/sys/class/net/eth0/operstate"',
            '"/sys/class/net/eth1/operstate": "up\\n",\n "/sys/class/net/eth0/operstate"',
        )
    )
    new_plan = planned(path, tmp_path)
    assert any(
        line.startswith("TOPO-002: node p0 has the interfaces eth0, eth1; the first") for line in new_plan.findings
    )
    path.write_text(f"{TRIO}network: {{interface: eth1}}\n")
    new_plan = planned(path, tmp_path)
    assert _ranks(new_plan)["p0"].env["GLOO_SOCKET_IFNAME"] == "eth1"
    assert not any(line.startswith("TOPO-002") for line in new_plan.findings)


def test_goals_are_shared_by_the_servers_of_a_role(tmp_path: Path) -> None:
    new_plan = _plan(tmp_path, TRIO.replace("goals:\n", "goals:\n  concurrency: 9\n  optimize: latency\n"))
    words = {node: rank.words for node, rank in _ranks(new_plan).items()}
    assert words["p0"][words["p0"].index("--concurrency") + 1] == "5"
    assert words["d0"][words["d0"].index("--concurrency") + 1] == "9"
    assert words["d0"][words["d0"].index("--optimize") + 1] == "latency"
    assert words["d0"][words["d0"].index("--input-range") + 1] == "16,512"


def test_a_ratio_far_from_the_goals_is_a_finding(tmp_path: Path) -> None:
    new_plan = _plan(tmp_path, TRIO.replace("[16, 512]", "[16, 512]\n  output: [512, 1024]"))
    (text,) = [line for line in new_plan.findings if line.startswith("TOPO-003")]
    assert text.startswith("TOPO-003: 2 nodes for prefill and 1 for decode; goals suggest 1 and 2;")
    assert not any(line.startswith("TOPO-003") for line in _plan(tmp_path).findings)


def test_servers_on_several_nodes_and_no_connector_get_a_plain_router(tmp_path: Path) -> None:
    text = (EXAMPLES / "deepseek-h100-2nodes.yaml").read_text().replace("../../tests/hosts/cuda-h100-8x/", "")
    new_plan = _plan(tmp_path, f"{text}router: {{node: n1, port: 8080}}\n", H100)
    assert new_plan.router is not None
    assert new_plan.router.argv[7:11] == ("--worker-urls", "http://10.0.0.1:20000", "--policy", "cache_aware")
    assert new_plan.router.address == "10.0.0.2"


def test_a_bucket_is_planned_from_a_configuration_here(tmp_path: Path) -> None:
    text = (EXAMPLES / "deepseek-h100-2nodes.yaml").read_text().replace("../../tests/hosts/cuda-h100-8x/", "")
    new_plan = _plan(tmp_path, text.replace("deepseek-ai/DeepSeek-V3", "s3://models/tiny"), H100)
    assert {rank.words[1:4] for rank in _ranks(new_plan).values()} == {
        ("s3://models/tiny", "--served-model-name", "tiny")
    }


def test_a_model_that_nobody_knows_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    variant = find_variant(read_matrix(DRYDOCK), "h100")
    text = (EXAMPLES / "deepseek-h100-2nodes.yaml").read_text().replace("../../tests/hosts/", f"{ROOT}/tests/hosts/")
    (tmp_path / "topology.yaml").write_text(text.replace("deepseek-ai/DeepSeek-V3", "some/model"))
    read = read_topology(tmp_path / "topology.yaml")
    with pytest.raises(HostError, match="some/model is a hub id, and not on this machine") as raised:
        plan_topology(read, variant, Images(variant.id, "router0.1"), Entrypoint(DRYDOCK, variant))
    assert raised.value.hint.endswith("plan with a config.json that you have: --model FOLDER")


def test_a_model_that_drydock_knows_needs_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    variant = find_variant(read_matrix(DRYDOCK), "h100")
    read = read_topology(EXAMPLES / "deepseek-h100-2nodes.yaml")
    new_plan = plan_topology(read, variant, Images(variant.id, "router0.1"), Entrypoint(DRYDOCK, variant))
    assert new_plan.replicas[0].ranks[0].argv


def test_a_group_may_use_some_of_a_nodes_devices(tmp_path: Path) -> None:
    text = (EXAMPLES / "deepseek-h100-2nodes.yaml").read_text().replace("../../tests/hosts/cuda-h100-8x/", "")
    small = text.replace("deepseek-ai/DeepSeek-V3", "Qwen/Qwen2.5-7B-Instruct")
    some = small.replace("nodes: 2}", "flags: [--devices=4-5]}")
    rank = _ranks(_plan(tmp_path, some, H100))["n0"]
    assert rank.devices == (4, 5)
    assert not any(word.startswith("--devices") for word in rank.words), "its container has no others"
    with pytest.raises(InputError, match=r"host\.json: --devices 7-8: no device 8"):
        _plan(tmp_path, some.replace("4-5", "7-8"), H100)


def test_servers_on_one_machine_have_devices_and_ports_of_their_own(tmp_path: Path) -> None:
    plan = _plan(tmp_path, SHARED, "ascend-a3-8x2")
    ranks = [rank for replica in plan.replicas for rank in replica.ranks]
    assert [(rank.node, rank.devices) for rank in ranks] == [
        ("m0", (0, 1, 2, 3)),
        ("m0", (4, 5, 6, 7)),
        ("m0", (8, 9, 10, 11)),
        ("m1", (8, 9, 10, 11)),
    ]
    ports = [port for rank in ranks if rank.node == "m0" for port in rank.ports.values()]
    assert len({*ports, 7000}) == len(ports) + 1
    for rank in ranks:
        assert rank.words[rank.words.index("--port") + 1] == str(rank.ports["api"])
        assert "--devices" not in rank.words
        config = json.loads(rank.words[rank.words.index("--kv-transfer-config") + 1])
        assert config["kv_port"] == rank.ports["kv"]
    chosen = [
        next(reason.value for reason in replica.reasons if reason.setting == "ASCEND_RT_VISIBLE_DEVICES")
        for replica in plan.replicas
    ]
    assert chosen == ["0,1,2,3", "4,5,6,7", "8,9,10,11", "8,9,10,11"]
    idle = [text for text in plan.findings if text.startswith("TOPO-001")]
    assert [text.partition(" runs")[0] for text in idle] == [
        "TOPO-001: a part of node m0 (devices 12-15)",
        "TOPO-001: a part of node m1 (devices 0-7,12-15)",
    ]
    assert plan.router
    assert [word for word in plan.router.argv if word.startswith("http")] == [
        f"http://{rank.address}:{rank.ports['api']}" for rank in ranks
    ]


def test_devices_are_given_once(tmp_path: Path) -> None:
    text = SHARED.replace("devices: 4,", "devices: [1, 1], flags: [--devices, '1'],")
    with pytest.raises(InputError) as raised:
        _plan(tmp_path, text, "ascend-a3-8x2")
    assert [problem.partition(": found ")[2].partition(" (line")[0] for problem in raised.value.problems] == [
        "a number twice, expected each once",
        "devices, and --devices in flags, expected one of them",
    ]


def test_engines_of_several_nodes_have_ports_by_their_number_in_the_server(tmp_path: Path) -> None:
    node = "  - {{name: {0}, address: 10.0.0.{1}, host: host.json}}\n"
    nodes = "".join(node.format(name, number) for number, name in enumerate(("p0", "p1", "d0", "d1"), 1))
    groups = (
        "  - {name: prefill, role: prefill, nodes: 2}\n"
        "  - {name: decode, role: decode, nodes: 2, flags: [--data-parallel-size, '16', --tensor-parallel-size, '1']}\n"
    )
    head = "model: deepseek-ai/DeepSeek-V3\ntarget: h100\napi_key: required\n"
    head += "goals: {input: [100, 4000], output: [100, 900]}\n"
    new_plan = _plan(tmp_path, f"{head}nodes:\n{nodes}groups:\n{groups}router: {{node: p0}}\n", H100)
    ports = {node: [name for name in rank.ports if name.startswith("side")] for node, rank in _ranks(new_plan).items()}
    assert ports["p0"] == ports["p1"] == ["side-channel"]
    assert ports["d0"] == ["side-channel", *(f"side-channel-{number}" for number in range(1, 8))]
    assert ports["d1"] == [f"side-channel-{number}" for number in range(8, 16)]
    first = _ranks(new_plan)["d0"].ports["side-channel"]
    assert _ranks(new_plan)["d1"].ports["side-channel-8"] == first + 8
    assert _ranks(new_plan)["d1"].env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == str(first)


TRAYS = """\
model: deepseek-ai/DeepSeek-V4-Pro
target: cuda-arm64
api_key: none
nodes:
  - {name: t0, address: 10.0.0.1, host: t0.json}
  - {name: t1, address: 10.0.0.2, host: t1.json}
groups:
  - {name: serve, nodes: 2}
"""
CLUSTER = "11111111-2222-3333-4444-555555555555"


def _tray(clique: int) -> str:
    """Return the recorded host of a tray whose GPUs are in a clique of a rack."""
    tray = json.loads((HOSTS / "cuda-gb200-4x" / "host.json").read_text())
    fabric = (
        f"State : Completed\n        Status : Success\n        CliqueId : {clique}\n        ClusterUUID : {CLUSTER}"
    )
    gpus = "".join(f"GPU 0000{number}:01:00.0\n    Fabric\n        {fabric}\n" for number in range(4))
    tray["commands"]["nvidia-smi -q"] = {"rc": 0, "stdout": gpus}
    return json.dumps(tray)


@pytest.mark.parametrize(("cliques", "tensor", "env", "warned"), [((7, 7), "8", None, False), ((7, 8), "4", "0", True)])
def test_trays_of_one_clique_are_one_link(
    tmp_path: Path, cliques: tuple[int, int], tensor: str, env: str | None, warned: bool
) -> None:
    for number, clique in enumerate(cliques):
        (tmp_path / f"t{number}.json").write_text(_tray(clique))
    plan = planned(write(tmp_path, TRAYS), tmp_path)

    for rank in plan.replicas[0].ranks:
        assert rank.argv[rank.argv.index("--tensor-parallel-size") + 1] == tensor
        assert rank.env.get("NCCL_MNNVL_ENABLE") == env
    assert any(line.startswith("TOPO-035") for line in plan.findings) == warned
