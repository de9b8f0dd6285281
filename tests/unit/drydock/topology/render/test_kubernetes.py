"""Manifests of a plan: what they say, that their parts fit together, and, with its package, the API's schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from drydock.core.errors import InputError
from drydock.topology.plan_model import Replica, TopologyPlan
from drydock.topology.render import render_plan
from drydock.topology.render.pods import make_port_name
from tests.support import topologies

SCHEMAS = "1.36"
PROBES = ("startup", "readiness", "liveness")
PLANS = pytest.mark.parametrize("make", topologies.PLANS.values(), ids=list(topologies.PLANS))


def manifests(plan: TopologyPlan, kind: str = "kubernetes") -> dict[str, dict[str, Any]]:
    """Return kind/name → object."""
    files = render_plan(plan, topologies.variant(plan.variant), kind, {})
    parsed = {path: yaml.safe_load(text) for path, text in files.items() if "/" not in path}
    assert parsed.pop("kustomization.yaml")["resources"] == sorted(parsed)
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in parsed.values()}


def templates(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the pod templates of an object."""
    sets = [role["spec"] for role in item["spec"]["roles"]] if item["kind"] == "DisaggregatedSet" else [item["spec"]]
    for spec in sets:
        parts = spec.get("leaderWorkerTemplate", {})
        yield from (parts[key] for key in ("leaderTemplate", "workerTemplate") if key in parts)
        if "template" in spec:
            yield spec["template"]


def pods(items: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    listed = [template for item in items.values() if "spec" in item for template in templates(item)]
    assert listed
    return listed


@PLANS
@pytest.mark.parametrize("kind", ["kubernetes", "disaggregatedset"])
def test_every_object_follows_the_schema_of_its_kind(make: Any, kind: str) -> None:
    plan = make()
    if kind == "disaggregatedset" and len(plan.replicas) == 1:
        return
    items = manifests(plan, kind)
    for item in items.values():
        if not item["apiVersion"].split("/")[0].endswith(".x-k8s.io"):
            validate(item, SCHEMAS, strict=True)
    for template in pods(items):
        selector = {"matchLabels": template["metadata"]["labels"]}
        wrapped = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "pod"}}
        validate(wrapped | {"spec": {"selector": selector, "template": template}}, SCHEMAS, strict=True)


@PLANS
def test_every_pod_is_probed_contained_and_complete(make: Any) -> None:
    for template in pods(manifests(make())):
        pod, (container,) = template["spec"], template["spec"]["containers"]
        ports = [port["name"] for port in container["ports"]]
        volumes = [volume["name"] for volume in pod.get("volumes", [])]
        mounts = [mount["name"] for mount in container.get("volumeMounts", [])]

        assert pod["enableServiceLinks"] is False
        assert len(set(ports)) == len(ports)
        assert all(re.fullmatch(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*", name) and len(name) <= 15 for name in ports)
        probes = [container[f"{kind}Probe"] for kind in PROBES]
        assert {probe["httpGet"]["port"] for probe in probes if "exec" not in probe} <= {*ports}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert len(set(volumes)) == len(volumes)
        assert set(mounts) - set(volumes) <= {"cache"}  # a LeaderWorkerSet adds it, of its volumeClaimTemplates


@PLANS
def test_selectors_find_pods(make: Any) -> None:
    items = manifests(make())
    labelled = [template["metadata"]["labels"] for template in pods(items)]
    for name, item in items.items():
        selector = item.get("spec", {}).get("selector")
        if selector:
            match_labels = selector.get("matchLabels", selector)
            assert any(match_labels.items() <= labels.items() for labels in labelled), name
    ranks = {key.partition("/")[2] for key in items if key.startswith("PodDisruptionBudget/")}
    assert ranks == {labels["app.kubernetes.io/instance"] for labels in labelled} - {"router"}


def test_a_server_of_several_nodes_is_a_leader_worker_set() -> None:
    items = manifests(topologies.two_nodes())
    spec = items["LeaderWorkerSet/big"]["spec"]
    leader, worker = templates(items["LeaderWorkerSet/big"])
    words = worker["spec"]["containers"][0]["args"]
    env = {item["name"]: item for item in worker["spec"]["containers"][0]["env"]}

    assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (1, 2)
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["leaderWorkerTemplate"]["volumeClaimTemplates"][0]["metadata"]["name"] == "cache"
    assert words[words.index("--nnodes") + 1] == "$(LWS_GROUP_SIZE)"
    assert words[words.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert words[words.index("--master-addr") + 1] == "$(LWS_LEADER_ADDRESS)"
    assert "--headless" in words
    assert "--headless" not in leader["spec"]["containers"][0]["args"]
    assert env["VLLM_HOST_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert leader["spec"]["containers"][0]["resources"]["limits"] == {
        "nvidia.com/gpu": 8,
        "rdma/hca_shared_devices_a": 1,
    }
    assert "IPC_LOCK" in leader["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]


def test_each_pod_of_a_server_has_a_node_of_its_own() -> None:
    parts = list(templates(manifests(topologies.trio())["LeaderWorkerSet/whole"]))
    assert parts
    for template in parts:
        affinity = template["spec"]["affinity"]
        apart = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert apart["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_a_model_of_the_hub_gets_token_and_mirror_from_a_secret_that_need_not_exist() -> None:
    of_the_hub = topologies.trio().model_copy(update={"model": "Qwen/Qwen3-8B"})
    for template in pods(manifests(of_the_hub)):
        env = {item["name"]: item.get("valueFrom") for item in template["spec"]["containers"][0]["env"]}
        for name in ("HF_TOKEN", "HF_ENDPOINT"):
            assert env[name] == {"secretKeyRef": {"name": "huggingface", "key": name, "optional": True}}


def test_a_pod_has_its_own_networks_interface() -> None:
    for template in pods(manifests(topologies.trio())):
        env = {item["name"]: item.get("value") for item in template["spec"]["containers"][0]["env"]}
        assert env["GLOO_SOCKET_IFNAME"] == "eth0"


def test_one_node_servers_of_a_group_are_one_deployment() -> None:
    items = manifests(topologies.disaggregated())
    spec = items["Deployment/prefills"]["spec"]
    weights = next(v for v in spec["template"]["spec"]["volumes"] if "hostPath" in v)
    mount = next(m for m in spec["template"]["spec"]["containers"][0]["volumeMounts"] if m["name"] == weights["name"])

    assert spec["replicas"] == 2
    assert weights["hostPath"] == {"path": topologies.MODEL, "type": "Directory"}
    assert mount == {"name": weights["name"], "mountPath": "/models/smollm2", "readOnly": True}
    assert items["PersistentVolumeClaim/prefills"]["spec"]["accessModes"] == ["ReadWriteMany"]
    assert items["PersistentVolumeClaim/decodes"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert items["Service/prefills-api"]["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize(
    ("make", "open_ports"), [(topologies.disaggregated, {20001}), (topologies.two_nodes, {20000, 20001})]
)
def test_only_the_router_and_peers_reach_more_than_the_status_port(make: Any, open_ports: set[int]) -> None:
    """Without a router, clients reach the API too."""
    spec = manifests(make())["NetworkPolicy/vllm"]["spec"]
    inside, everyone = spec["ingress"]

    assert [peer["podSelector"]["matchLabels"] for peer in inside["from"]] == [
        {"app.kubernetes.io/name": "vllm"},
        {"app.kubernetes.io/name": "vllm-router"},
        {"app.kubernetes.io/name": "vllm-verify"},
    ]
    assert ({port["port"] for port in everyone["ports"]}, set(everyone)) == (open_ports, {"ports"})


def test_secrets_are_those_of_the_cluster_and_needed_to_start() -> None:
    required_keys = {}
    for template in pods(manifests(topologies.disaggregated()) | manifests(topologies.two_nodes())):
        env = template["spec"]["containers"][0]["env"]
        refs = [item["valueFrom"]["secretKeyRef"] for item in env if "secretKeyRef" in item.get("valueFrom", {})]
        secret_keys = {ref["key"] for ref in refs if not ref["optional"] and ref["name"] == "vllm-api-key"}
        required_keys[template["metadata"]["labels"].get("app.kubernetes.io/component", "router")] = secret_keys

    key, secrets = {"VLLM_API_KEY"}, {"VLLM_API_KEY", "DRYDOCK_GROUP_SECRET"}
    assert required_keys == {"serve": secrets, "serve-worker": secrets, "prefill": key, "decode": key, "router": key}


def test_the_router_finds_servers_by_their_labels_and_may_read_pods_only() -> None:
    items = manifests(topologies.disaggregated())
    container = items["Deployment/router"]["spec"]["template"]["spec"]["containers"][0]
    words = container["args"]

    assert not any("10.2.0" in word for word in words)
    assert not {"--prefill", "--decode"} & {*words}
    for role in ("prefill", "decode"):
        place = words.index(f"--{role}-selector")
        selector_labels = dict(word.split("=") for word in words[place + 1 : place + 3])
        (role_pod,) = [item for item in pods(items) if selector_labels.items() <= item["metadata"]["labels"].items()]
        assert f"{role}s" == role_pod["metadata"]["labels"]["app.kubernetes.io/part-of"]
    assert words[words.index("--service-discovery-port") + 1] == "20000"
    assert items["Role/router"]["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    paths = ["/liveness", "/readiness", "/liveness"]  # asked by a program in the container, which has the key
    assert [container[f"{kind}Probe"]["exec"]["command"][-1] for kind in PROBES] == [
        f"http://127.0.0.1:30000{path}" for path in paths
    ]


def test_a_list_that_labels_cannot_carry_is_an_error() -> None:
    plan = topologies.disaggregated()
    assert plan.router
    argv = ("vllm-router", "--prefill", "http://10.2.0.10:20000", "8998", "--decode", "http://10.2.0.12:20000")
    plan = plan.model_copy(update={"router": plan.router.model_copy(update={"argv": argv})})
    with pytest.raises(InputError, match="found '8998' in a list of servers"):
        manifests(plan)


def test_prefill_and_decode_are_roles_of_one_disaggregated_set() -> None:
    items = manifests(topologies.disaggregated(), "disaggregatedset")
    roles = items["DisaggregatedSet/vllm"]["spec"]["roles"]

    assert [(role["name"], role["spec"]["replicas"]) for role in roles] == [("prefills", 2), ("decodes", 1)]
    assert all(role["spec"]["leaderWorkerTemplate"]["size"] == 1 for role in roles)
    assert all("partition" not in role["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"] for role in roles)
    assert not any(key.startswith("Deployment/") and key != "Deployment/router" for key in items)
    with pytest.raises(InputError, match="needs groups of both roles"):
        manifests(topologies.trio(), "disaggregatedset")


def test_replicas_with_other_words_are_another_workload() -> None:
    plan = topologies.disaggregated()
    own_config = '"kv_producer", "engine_id": "1"'
    words = tuple(word.replace('"kv_producer"', own_config) for word in plan.replicas[1].ranks[0].words)
    items = manifests(topologies.with_rank(plan, 1, words=words))

    assert items["Deployment/prefills"]["spec"]["replicas"] == items["Deployment/prefills-1"]["spec"]["replicas"] == 1
    assert items["PersistentVolumeClaim/prefills"]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_ports_that_differ_by_node_are_the_same_in_every_pod() -> None:
    """VLLM's key of compiled code has VLLM_NIXL_SIDE_CHANNEL_PORT in it."""
    plan = topologies.disaggregated()
    moved = plan.replicas[1].ranks[0]
    words = tuple({"20000": "21000", "20001": "21001"}.get(word, word) for word in moved.words)
    env = {**moved.env, "VLLM_NIXL_SIDE_CHANNEL_PORT": "21005"}
    ports = {"api": 21000, "status": 21001, "side-channel": 21005}

    assert manifests(topologies.with_rank(plan, 1, words=words, env=env, ports=ports)) == manifests(plan)


def test_workers_that_need_different_words_are_an_error() -> None:
    plan = topologies.trio()
    words = (*plan.replicas[0].ranks[2].words, "--data-parallel-start-rank", "2")
    with pytest.raises(InputError, match="ranks 1 and 2 differ in more than their number and address"):
        manifests(topologies.with_rank(plan, 0, 2, words=words))


def test_two_groups_of_the_same_name_in_kubernetes_are_an_error() -> None:
    with pytest.raises(InputError, match=r"two would be deployment-router\.yaml"):
        manifests(topologies.with_replica(topologies.disaggregated(), group="router"))


def test_a_server_of_several_nodes_has_a_service_of_its_own_name_so_it_cannot_be_called_as_the_router() -> None:
    plan = topologies.with_replica(topologies.trio(), group="router")
    with pytest.raises(InputError, match=r"two would be service-router\.yaml"):
        manifests(plan.model_copy(update={"router": topologies.disaggregated().router}))


@pytest.mark.parametrize("numbers", [range(1, 120), range(9990, 10020)])
def test_ports_of_many_engines_have_names_of_their_own(numbers: range) -> None:
    names = [make_port_name(f"side-channel-{number}") for number in numbers]
    assert len({*names}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,13}[a-z0-9])?", name) for name in names)


def test_a_rank_that_reads_a_ranktable_is_no_pod() -> None:
    plan, _ = topologies.ascend()
    with pytest.raises(InputError, match="a ranktable names chips"):
        manifests(topologies.with_rank(plan, env={"RANK_TABLE_FILE_PATH": "/ranktables/ranktable.json"}))


def two_tpu_hosts(env: dict[str, str], architecture: str = "") -> TopologyPlan:
    """Return a plan of one server on two hosts of four TPUs."""
    ranks = tuple(
        topologies.rank(f"t{n}", f"10.3.0.{n + 1}", number=n, leader="10.3.0.1", of=2, devices=4, env=env).model_copy(
            update={"architecture": architecture}
        )
        for n in range(2)
    )
    return topologies.plan("tpu", (Replica(group="whole", role="serve", number=0, ranks=ranks),))


def test_leader_worker_set_says_who_the_tpu_workers_are() -> None:
    env = {"TPU_WORKER_HOSTNAMES": "10.3.0.1,10.3.0.2", "TPU_WORKER_ID": "0"}
    for template in pods(manifests(two_tpu_hosts(env))):
        (container,) = template["spec"]["containers"]
        assert container["resources"]["limits"] == {"google.com/tpu": 4}
        assert not {item["name"] for item in container["env"]} & set(env)
        assert "nodeSelector" not in template["spec"]  # nothing tells the generation


@pytest.mark.parametrize(("slice_", "topology"), [(True, "2x2x2"), (False, "2x2x1")])
def test_pods_select_the_nodes_of_their_tpus(slice_: bool, topology: str) -> None:
    env = {"TPU_WORKER_HOSTNAMES": "10.3.0.1,10.3.0.2"} if slice_ else {}
    tpu_pods = pods(manifests(two_tpu_hosts(env, "v5p")))

    assert len(tpu_pods) == 2
    for template in tpu_pods:
        assert template["spec"]["nodeSelector"] == {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
            "cloud.google.com/gke-tpu-topology": topology,
        }


@pytest.mark.parametrize("text", ["10.2.0.11", "tcp://10.2.0.10:5", "a,10.2.0.12", "10.2.0.11."])
def test_an_address_that_no_pod_has_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="found the node's address"):
        manifests(topologies.with_rank(topologies.disaggregated(), env={"PEER": text}))


def test_a_longer_address_is_another() -> None:
    text = "10.2.0.110 110.2.0.11 10.2.0.11.7 x10.2.0.11"
    assert manifests(topologies.with_rank(topologies.disaggregated(), env={"PEER": text}))
