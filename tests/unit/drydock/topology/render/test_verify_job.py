"""The Job that asks for the known answer in a cluster, and the README of each format."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

from drydock.config.project_choice import DRYDOCK
from drydock.lock.image_record import read_record
from drydock.topology import planned_file
from drydock.topology.answer_program import make_answer_program
from drydock.topology.plan_model import TopologyPlan
from drydock.topology.render import readme, render_plan
from tests.support import topologies

SCHEMAS = "1.36"
LOCAL = "drydock/cpu-vllm0.32:0123456789ab"


def rendered(plan: TopologyPlan, kind: str = "kubernetes") -> dict[str, str]:
    return render_plan(plan, topologies.variant(plan.variant), kind, {})


def container(plan: TopologyPlan, kind: str = "kubernetes") -> dict[str, Any]:
    job = yaml.safe_load(rendered(plan, kind)["verify/job.yaml"])
    validate(job, SCHEMAS, strict=True)
    (verify_container,) = job["spec"]["template"]["spec"]["containers"]
    return dict(verify_container)


@pytest.mark.parametrize("kind", ["kubernetes", "disaggregatedset"])
def test_it_asks_each_ready_pod_of_both_roles_and_the_router(kind: str) -> None:
    plan = topologies.disaggregated()
    files, verify_container = rendered(plan, kind), container(plan, kind)
    services = {
        name: yaml.safe_load(files[f"service-{name}.yaml"]) for name in ("prefills-api", "decodes-api", "router")
    }

    assert json.loads(verify_container["args"][1]) == {
        "router": "http://router:30000",
        "servers": [
            {"role": "decode", "name": "decodes", "host": "decodes-api", "port": 20000, "count": 1},
            {"role": "prefill", "name": "prefills", "host": "prefills-api", "port": 20000, "count": 2},
        ],
    }
    assert services["prefills-api"]["spec"]["clusterIP"] == services["decodes-api"]["spec"]["clusterIP"] == "None"
    assert services["router"]["spec"]["ports"][0]["port"] == 30000
    assert verify_container["image"] == topologies.ROUTER_IMAGE
    assert [variable["name"] for variable in verify_container["env"]] == ["VLLM_API_KEY"]


def test_without_a_router_it_asks_the_service_which_chooses() -> None:
    (server,) = json.loads(container(topologies.two_nodes())["args"][1])["servers"]
    assert server == {"role": "serve", "name": "big", "host": "big-api", "port": 20000, "count": 0}


def test_it_runs_the_verb_of_the_image_and_the_objects_of_the_topology_do_not_name_it() -> None:
    files, verify_container = rendered(topologies.disaggregated()), container(topologies.disaggregated())
    assert verify_container["command"][-2:] == ["/opt/drydock/entrypoints", "health"]
    assert verify_container["args"][0] == "--topology"
    assert yaml.safe_load(files["verify/kustomization.yaml"])["resources"] == ["job.yaml"]
    assert "verify/known_answer.py" not in files
    assert not any("verify" in name for name in yaml.safe_load(files["kustomization.yaml"])["resources"])


def test_an_image_of_another_checkout_may_lack_the_verb_so_the_program_goes_along() -> None:
    plan = topologies.disaggregated()
    files = render_plan(plan, topologies.variant(plan.variant), "kubernetes", {}, has_verb=False)
    job = yaml.safe_load(files["verify/job.yaml"])
    validate(job, SCHEMAS, strict=True)
    (verify_container,) = job["spec"]["template"]["spec"]["containers"]

    assert verify_container["command"] == ["/usr/bin/python3", "-I", "-S", "/verify/known_answer.py"]
    assert verify_container["args"] == container(plan)["args"]
    assert files["verify/known_answer.py"] == make_answer_program()
    assert yaml.safe_load(files["verify/kustomization.yaml"])["configMapGenerator"][0]["files"] == ["known_answer.py"]


def test_only_images_that_this_checkout_builds_are_known_to_have_the_verb() -> None:
    platforms = read_record(DRYDOCK, topologies.variant("router").id).platforms.values()
    digest = next(platform.verified.digest for platform in platforms if platform.verified)
    assert planned_file.is_own_image(DRYDOCK, LOCAL)
    assert planned_file.is_own_image(DRYDOCK, f"registry.example/router@{digest}")
    assert not planned_file.is_own_image(DRYDOCK, f"registry.example/router@{topologies.DIGEST}")
    assert not planned_file.is_own_image(DRYDOCK, "mine:latest")


@pytest.mark.parametrize(
    ("image", "local"),
    [
        (LOCAL, True),
        ("drydock-stand-in/cpu:1", True),
        ("mine:latest", True),
        ("me/vllm:1", True),
        (f"me/vllm@{topologies.DIGEST}", False),
        ("registry.example/vllm:1", False),
        ("localhost/vllm:1", False),
        ("host:5000/vllm:1", False),
        (topologies.IMAGE, False),
    ],
)
def test_an_image_that_no_registry_has_is_pulled_by_no_format(image: str, local: bool) -> None:
    plan = topologies.disaggregated(1, 1)
    assert plan.router
    plan = plan.model_copy(update={"image": image, "router": plan.router.model_copy(update={"image": image})})
    pods = [text for path, text in rendered(plan).items() if "image:" in text and path.endswith(".yaml")]
    services = yaml.safe_load(rendered(plan, "compose")["compose.yaml"])["services"].values()
    variables = rendered(plan, "ansible")["host_vars/n0.yml"]

    assert len(pods) == 4
    assert [text.count("imagePullPolicy: Never") for text in pods] == [int(local)] * 4
    assert {service.get("pull_policy") for service in services} == {"never" if local else None}
    assert ("topology_images: !unsafe []" in variables) is local
    assert ("topology_local_images: !unsafe []" in variables) is not local


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("compose", ("docker compose up --wait", "docker compose logs", "docker compose down")),
        ("ansible", ("--tags ranktable,run", "--tags stop", "--tags logs", "--tags check")),
        ("kubernetes", ("kubectl apply -k .", "kubectl apply -k verify", "job/verify", "kubectl rollout undo")),
        ("disaggregatedset", ("kubectl apply -k .", "leaderworkerset --selector")),
    ],
)
def test_the_readme_has_the_engines_own_commands(kind: str, commands: tuple[str, ...]) -> None:
    text = readme.format_readme(topologies.disaggregated(), kind)
    assert [command for command in commands if command not in text] == []
    assert max(map(len, text.splitlines())) <= 160


def test_a_readme_names_only_what_the_folder_has() -> None:
    apart = topologies.with_rank(topologies.disaggregated(), address="192.168.7.7")
    assert "$ docker compose up" not in readme.format_readme(apart, "compose")
    assert "$ docker compose --file nodes/NODE/compose.yaml up --wait" in readme.format_readme(apart, "compose")

    whole, pairs = (
        readme.format_readme(plan, "kubernetes") for plan in (topologies.two_nodes(), topologies.disaggregated())
    )
    assert ("deployment" in whole, "leaderworkerset --selector" in whole) == (False, True)
    assert ("deployment --selector" in pairs, "leaderworkerset --selector" in pairs) == (True, False)


def test_a_secret_is_made_by_a_command_without_its_value() -> None:
    assert readme.format_secret_command(("VLLM_API_KEY",)) == (
        "printf 'VLLM_API_KEY=%s\\n' \"$(openssl rand -hex 32)\" | "
        "kubectl create secret generic vllm-api-key --from-env-file=/dev/stdin"
    )
