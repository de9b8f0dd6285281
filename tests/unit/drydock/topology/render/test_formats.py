"""Every format says the same ranks, twice the same bytes, and quotes what a plan says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from pydantic import ValidationError

from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError
from drydock.model.record import dump_record
from drydock.run.container import name_of
from drydock.run.monitoring import make_dashboard
from drydock.topology.plan_model import Rank, Replica, TopologyPlan
from drydock.topology.render import FORMATS, MONITORING, render_plan, slurm, write_plan
from drydock.topology.render.parts import make_placed_ranks
from entrypoints.serve.phases import State
from entrypoints.serve.status import format_metrics
from tests.support import topologies
from tests.support.called_verbs import render_topology
from tests.support.topologies import load_unsafe

PLANS = pytest.mark.parametrize("make", topologies.PLANS.values(), ids=list(topologies.PLANS))
FILLED = re.compile(r"\$\(([A-Z_]+)\)")


class Seen(NamedTuple):
    """A rank as a format tells it."""

    node: str
    words: tuple[str, ...]
    env: dict[str, str]
    """Only what the plan sets."""
    status: int


def files_of(plan: TopologyPlan, kind: str) -> dict[str, str]:
    texts = render_plan(plan, topologies.variant(plan.variant), kind, {})
    assert texts
    return texts


def named(replica: Replica, rank: Rank) -> str:
    return name_of(f"{replica.group}-{replica.number}-{rank.rank}")


def planned(plan: TopologyPlan) -> dict[str, Seen]:
    return {
        named(replica, rank): Seen(rank.node, rank.words, rank.env, rank.ports["status"])
        for replica in plan.replicas
        for rank in replica.ranks
    }


def kept(env: dict[str, Any], plan: TopologyPlan, name: str) -> dict[str, str]:
    """Return the variables that the plan sets; the others are the accelerator's, which every format has too."""
    rank = next(item for item in make_placed_ranks(plan, topologies.variant(plan.variant)) if item.name == name)
    assert {**rank.container.env}.items() <= env.items()
    return {key: value for key, value in env.items() if key in rank.rank.env}


@pytest.mark.parametrize(("kind", "file", "mounts"), [
    ("compose", "nodes/gpu0/compose.yaml", ["type: image", "target: /models/tiny"]),
    ("kubernetes", "", ["reference: ", "mountPath: /models/tiny"]),
    ("slurm", "topology.sbatch", ["podman pull --quiet registry.example/m/tiny@", "target=/models/tiny "]),
    ("ansible", "host_vars/gpu0.yml", ["type: image", "target: /models/tiny", "- registry.example/m/tiny@"]),
])  # fmt: skip
def test_a_model_that_is_an_image_is_mounted_by_every_format(kind: str, file: str, mounts: list[str]) -> None:
    image = f"registry.example/m/tiny@sha256:{'1' * 64}"
    plan = topologies.two_nodes().model_copy(update={"model": f"oci://{image}"})
    texts = [text.replace('"', "") for name, text in files_of(plan, kind).items() if not file or name == file]
    assert [mount_text for mount_text in (*mounts, image) if not any(mount_text in text for text in texts)] == []
    assert not any("HF_TOKEN" in text for text in texts)


@pytest.mark.parametrize("kind", ["compose", "kubernetes", "slurm", "ansible"])
@pytest.mark.parametrize(("model", "name"), [("s3://models/tiny", "AWS_REGION"), ("org/tiny", "HF_TOKEN")])
def test_every_format_passes_what_a_download_requires(kind: str, model: str, name: str) -> None:
    plan = topologies.two_nodes().model_copy(update={"model": model})
    assert any(name in text for text in files_of(plan, kind).values())


def test_a_plan_with_a_model_by_tag_is_refused_without_asking_its_registry() -> None:
    plan = topologies.two_nodes().model_copy(update={"model": "oci://registry.invalid/m/tiny:v1"})
    with pytest.raises(InputError, match="expected an image by digest"):
        files_of(plan, "compose")


# --- readers --------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Undo what Compose and Kubernetes do with dollar signs."""
    return value.replace("$$", "$") if isinstance(value, str) else value


def from_service(plan: TopologyPlan, node: str, name: str, service: dict[str, Any]) -> Seen:
    env = {key: plain(value) for key, value in service["environment"].items() if value is not None}
    words = tuple(plain(word) for word in service["command"])
    return Seen(node, words, kept(env, plan, name), int(service["healthcheck"]["test"][-1]))


def read_machines(plan: TopologyPlan) -> dict[str, Seen]:
    containers = {}
    for path, text in files_of(plan, "compose").items():
        if path.startswith("nodes/") and path.endswith("/compose.yaml"):
            services = yaml.safe_load(text)["services"]
            servers = {name: item for name, item in services.items() if name != "router"}
            containers |= {name: from_service(plan, path.split("/")[1], name, item) for name, item in servers.items()}
    return containers


def read_engine(plan: TopologyPlan) -> dict[str, Seen]:
    """Read the file of one engine; a container's node is the host name of its network."""
    services = yaml.safe_load(files_of(plan, "compose")["compose.yaml"])["services"]
    containers = {}
    for name, item in services.items():
        if name != "router" and not name.startswith("node."):
            holder = item.get("network_mode", "").removeprefix("service:") or name
            containers[name] = from_service(plan, services[holder]["hostname"], name, item)
    return containers


def read_ansible(plan: TopologyPlan) -> dict[str, Seen]:
    containers = {}
    for path, text in files_of(plan, "ansible").items():
        if path.startswith("host_vars/"):
            node = path.removeprefix("host_vars/").removesuffix(".yml")
            for item in load_unsafe(text)["topology_ranks"]:
                env = kept(item["env"], plan, item["name"])
                status = int(item["healthcheck"]["test"][-1])
                containers[item["name"]] = Seen(node, tuple(item["command"]), env, status)
    return containers


def read_pods(plan: TopologyPlan, kind: str = "kubernetes") -> dict[str, Seen]:
    """Read the templates as Kubernetes and LeaderWorkerSet fill them in for each pod, on the plan's nodes."""
    texts = [yaml.safe_load(text) for path, text in files_of(plan, kind).items() if "/" not in path]
    containers: dict[str, Seen] = {}
    for spec in (spec for item in texts for spec in specifications(item)):
        leader, worker = templates(spec)
        replicas = [r for r in plan.replicas if name_of(r.group) == leader["metadata"]["labels"][PART]]
        assert spec["replicas"] == len(replicas)
        for replica in replicas:
            assert spec.get("leaderWorkerTemplate", {}).get("size", 1) == len(replica.ranks)
            for rank in replica.ranks:
                template = worker if rank.rank else leader
                containers[named(replica, rank)] = filled(plan, replica, rank, template)
    return containers


PART = "app.kubernetes.io/part-of"


def specifications(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if item["kind"] == "DisaggregatedSet":
        yield from (role["spec"] for role in item["spec"]["roles"])
    elif item["kind"] == "LeaderWorkerSet" or (item["kind"] == "Deployment" and item["metadata"]["name"] != "router"):
        yield item["spec"]


def templates(spec: dict[str, Any]) -> tuple[Any, Any]:
    parts = spec.get("leaderWorkerTemplate")
    if not parts:
        return spec["template"], None
    return parts.get("leaderTemplate", parts["workerTemplate"]), parts["workerTemplate"]


def filled(plan: TopologyPlan, replica: Replica, rank: Rank, template: dict[str, Any]) -> Seen:
    (container,) = template["spec"]["containers"]
    pod = {
        "POD_IP": rank.address,
        "LWS_LEADER_ADDRESS": replica.ranks[0].address,
        "LWS_GROUP_SIZE": str(len(replica.ranks)),
        "LWS_WORKER_INDEX": str(rank.rank),
    }
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    env = {}
    for item in container["env"]:
        if item.get("valueFrom", {}).get("fieldRef"):
            env[item["name"]] = rank.address
        elif "value" in item:
            env[item["name"]] = expanded(item["value"], pod)
    rank_env = kept(env, plan, named(replica, rank))
    if rank_env.get("GLOO_SOCKET_IFNAME") == "eth0":  # the pod's, whatever the node calls its interface
        rank_env["GLOO_SOCKET_IFNAME"] = rank.env["GLOO_SOCKET_IFNAME"]
    nodes = affinity(template)
    assert rank.node in nodes
    return Seen(rank.node, tuple(expanded(word, pod) for word in container["args"]), rank_env, ports["status"])


def expanded(text: str, values: dict[str, str]) -> str:
    """Expand $(NAME) as the kubelet does; $$ is a dollar sign."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)",
        lambda variable_match: "$" if variable_match[0] == "$$" else values.get(variable_match[1], variable_match[0]),
        text,
    )


def affinity(template: dict[str, Any]) -> list[str]:
    rule = template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = rule["nodeSelectorTerms"]
    (expression,) = term["matchExpressions"]
    values: list[str] = expression["values"]
    return values


def read_slurm(plan: TopologyPlan) -> dict[str, Seen]:
    """Let bash run the script as each node."""
    script = files_of(plan, "slurm")[slurm.SCRIPT]
    (nodes,) = re.findall(r"--nodelist=(.*)", script)
    containers = {}
    for node in nodes.split(","):
        for name, argv in topologies.slurm_containers(script, node).items():
            image = argv.index(plan.image) if name != "router" else 0
            env = dict(argv[n + 1].split("=", 1) for n in range(image) if argv[n] == "--env" and "=" in argv[n + 1])
            words = tuple(argv[image + 1 :])
            if image:
                status = int(words[words.index("--status-port") + 1])
                containers[name] = Seen(node, words, kept(env, plan, name), status)
    return containers


READERS: dict[str, Callable[[TopologyPlan], dict[str, Seen]]] = {
    "machines": read_machines,
    "engine": read_engine,
    "ansible": read_ansible,
    "kubernetes": read_pods,
    "slurm": read_slurm,
}


@PLANS
@pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))
def test_every_format_says_the_ranks_of_the_plan(make: Any, reader: Any) -> None:
    plan = make()
    assert reader(plan) == planned(plan)


def test_a_disaggregated_set_says_the_ranks_of_the_plan() -> None:
    plan = topologies.disaggregated()
    assert read_pods(plan, "disaggregatedset") == planned(plan)


@PLANS
@pytest.mark.parametrize("kind", ["compose", "kubernetes", "ansible", "slurm"])
def test_two_runs_are_the_same_bytes_on_any_machine(
    make: Any, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = files_of(make(), kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VLLM_API_KEY", "a-secret")
    monkeypatch.setenv("HF_TOKEN", "a-token")
    second = files_of(make(), kind)

    assert first == second
    assert list(first) == sorted(first) or kind == "kubernetes"
    assert not any(word in text for text in first.values() for word in ("a-secret", "a-token", str(tmp_path)))


# --- hostile plans --------------------------------------------------------------------------------------------------

HOSTILE = {
    "shell": "$(touch /tmp/pwned) `id` ; reboot",
    "variable": "${HOME:?x} $HOME $$ $(LWS_LEADER_ADDRESS)",
    "template": "{{ lookup('pipe', 'id') }} {% raw %} {# x #}",
    "quotes": "a\" b' c: d\n- e: [f]\n# g\n---\n!unsafe x",
    "words": "no",
    "number": "1e3",
    "key": "x: !!python/object/apply:os.system ['id']",
    "unseen": "\u2028\u0085\x1b]0;x\x07 \u202e",
}


def hostile(text: str) -> TopologyPlan:
    """Return 2P1D whose words, variables and model say something else than they should."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e]", " ", text)
    plan = topologies.disaggregated()
    plan = plan.model_copy(update={"model": f"/srv/{line.replace('/', '_')}"})
    replicas = []
    for replica in plan.replicas:
        rank = replica.ranks[0]
        words = (*rank.words, "--hostile", line, f"--hostile={line}")
        changed = dump_record(rank) | {"words": words, "env": {**rank.env, "HOSTILE": text}}
        replicas.append(replica.model_copy(update={"ranks": (Rank.model_validate(changed),)}))
    assert plan.router
    router = plan.router.model_copy(update={"argv": (*plan.router.argv, "--hostile", line)})
    return plan.model_copy(update={"replicas": tuple(replicas), "router": router})


def shape(value: Any) -> Any:
    """Return a document's keys and lists, without its texts."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value).__mro__[-2].__name__


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_a_text_of_the_plan_stays_that_text(text: str) -> None:
    plan, harmless = hostile(text), hostile("harmless")
    for reader in READERS.values():
        assert reader(plan) == planned(plan)
    for kind in ("compose", "kubernetes", "ansible", "slurm"):
        files, expected = files_of(plan, kind), files_of(harmless, kind)
        assert list(files) == list(expected)
        for path, content in files.items():
            if path.endswith((".yml", ".yaml")) and not path.startswith("roles/"):
                assert content.count("\n---") == 0
                assert shape(load_unsafe(content)) == shape(load_unsafe(expected[path]))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_nothing_of_the_plan_is_expanded(text: str) -> None:
    plan = hostile(text)
    for content in files_of(plan, "compose").values():
        assert "$" not in content.replace("$$", "")
    for content in files_of(plan, "kubernetes").values():
        names = set(FILLED.findall(content.replace("$$", "")))
        assert names <= {"POD_IP", "POD_NAMESPACE", "LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"}


@pytest.mark.parametrize("name", ["$(id)", "a b", "a'b", 'a"b', "a\nb", "{{ x }}", "../x", "-x", "A", "", "a" * 64])
def test_a_node_or_group_has_a_plain_name(name: str) -> None:
    fine = dump_record(topologies.disaggregated())
    for place in ("node", "group"):
        plan = json.loads(json.dumps(fine))
        (plan["replicas"][0]["ranks"][0] if place == "node" else plan["replicas"][0])[place] = name
        with pytest.raises(ValidationError):
            TopologyPlan.model_validate(plan)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"address": "$(id)"}, "expected a host name or an IP address"),
        ({"address": "{{ x }}"}, "expected a host name or an IP address"),
        ({"address": "-oProxyCommand=id"}, "expected a host name or an IP address"),
        ({"env": {"A=B; C": "1"}}, "expected the name of a variable"),
        ({"env": {"{{ x }}": "1"}}, "expected the name of a variable"),
        ({"env": {"A": "\0"}}, "NUL"),
        ({"ports": {"api": 20000}}, "ports.status is missing"),
        ({"ports": {"status": 20001}}, "ports.api is missing"),
        ({"ports": {"api": 20001, "status": 20001}}, "node n0: port 20001 is given 2 times"),
        ({"rank": 1}, "found ranks"),
        ({"node": "n1"}, "node n1: found the addresses"),
    ],
)
def test_a_rank_that_cannot_run_is_an_error_in_every_format(change: dict[str, Any], problem: str) -> None:
    changed_plan = topologies.with_rank(topologies.disaggregated(), **change)
    for kind in ("compose", "kubernetes", "ansible", "slurm"):
        with pytest.raises(InputError, match=re.escape(problem)):
            files_of(changed_plan, kind)


def test_names_of_containers_are_whole_in_every_format() -> None:
    for kind in ("compose", "kubernetes", "ansible", "slurm"):
        for length, fits in ((54, True), (55, False)):
            changed_plan = topologies.with_replica(topologies.disaggregated(), group="1" * length)
            if fits:
                assert any(f"vllm-{'1' * length}" in text for text in files_of(changed_plan, kind).values())
            else:
                with pytest.raises(InputError, match="59 characters, expected 58 at most"):
                    files_of(changed_plan, kind)


@pytest.mark.parametrize("name", ["prefills-0-0", "node.n0"])
@pytest.mark.parametrize("kind", ["compose", "kubernetes", "ansible", "slurm"])
def test_a_router_takes_no_other_containers_name(kind: str, name: str) -> None:
    plan = topologies.disaggregated()
    assert plan.router
    changed_plan = plan.model_copy(update={"router": plan.router.model_copy(update={"name": name})})
    with pytest.raises(InputError, match=r"2 containers are called prefills-0-0|router\.name: found 'node\.n0'"):
        files_of(changed_plan, kind)


@pytest.mark.parametrize("image", ["evil${HOME}/x:${SECRET}", "$(id)", "-x", ""])
@pytest.mark.parametrize("kind", ["compose", "kubernetes", "ansible", "slurm"])
def test_an_image_that_a_format_could_expand_is_an_error(kind: str, image: str) -> None:
    plan = topologies.disaggregated()
    assert plan.router
    router = plan.router.model_copy(update={"image": image})
    for where, change in (("image", {"image": image}), (r"router\.image", {"router": router})):
        with pytest.raises(InputError, match=f"^{where}: found {re.escape(repr(image))}, expected a reference"):
            files_of(plan.model_copy(update=change), kind)


# --- files ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_read_and_written_once(tmp_path: Path) -> None:
    plan, hosts = topologies.ascend(devices=2)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(dump_record(plan)))
    for node, commands in hosts.items():
        folder = tmp_path / "hosts" / node
        folder.mkdir(parents=True)
        (folder / "host.json").write_text(json.dumps({"commands": commands}))
    for kind in ("compose", "ansible", "ranktable"):
        written_files = render_topology(file, kind, tmp_path / kind, str(tmp_path / "hosts"))
        folder_files = {path for path in (tmp_path / kind).rglob("*") if path.is_file()}
        assert folder_files - {*written_files} == ({*(tmp_path / kind).glob("*.env")} if kind == "compose" else set())
        assert render_topology(file, kind, tmp_path / kind, str(tmp_path / "hosts")) == ()


@pytest.mark.parametrize(
    ("kind", "hosts", "problem"),
    [
        ("ranktable", "", "ranktables are made of recorded hosts"),
        ("ranktable", "absent", "node d0: found neither"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, kind: str, hosts: str, problem: str) -> None:
    plan, _ = topologies.ascend(devices=2)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(dump_record(plan)))
    with pytest.raises(InputError, match=re.escape(problem)):
        render_topology(file, kind, tmp_path / "out", hosts)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rooter": None}, "unknown key 'rooter'"),
        (
            {"replicas": [{"group": "g", "role": "serve", "number": 0, "ranks": []}]},
            r"replicas\[0\]\.ranks: .* at least 1",
        ),
    ],
)
def test_a_plan_that_is_none_is_an_error_with_its_key(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(dump_record(topologies.trio()) | change))
    with pytest.raises(InputError, match=problem):
        render_topology(file, FORMATS[0], tmp_path / "out")


def test_the_rules_and_the_dashboard_name_metrics_that_the_status_port_has(tmp_path: Path) -> None:
    plan = topologies.disaggregated(1, 1)
    write_plan(DRYDOCK, plan, MONITORING, tmp_path, {})
    texts = {path.name: path.read_text() for path in tmp_path.glob("[!.]*")}
    info = dict.fromkeys(("variant", "vllm", "plan"), "x")
    exported = set(re.findall(r"^(drydock_\w+)", format_metrics(State(), info, 3.0), re.MULTILINE))

    assert sorted(texts) == ["drydock-dashboard.json", "drydock-rules.yaml", "prometheus.yaml"]
    assert set(re.findall(r"\bdrydock_\w+", "".join(texts.values()))) <= exported
    ranks = [rank for replica in plan.replicas for rank in replica.ranks]
    targets = yaml.safe_load(texts["prometheus.yaml"])["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"{rank.address}:{rank.ports[name]}" for rank in ranks for name in ("api", "status")]


def test_a_dashboard_places_each_panel_once() -> None:
    panels = make_dashboard()["panels"]
    places = [panel["gridPos"] for panel in panels]
    columns = [(place["x"] + x, place["y"]) for place in places for x in range(place["w"])]
    assert len(columns) == len(set(columns))
    assert max(x for x, _ in columns) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
