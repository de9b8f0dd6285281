"""DeepSeek-R1 on the recorded eight-card Gaudi2E: its image, its container, its plan, its warm-up and its probes.

The Gaudi2E manuals of 1.21 and 1.22, chapter 3.1, do the same by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.run.container import Container, RunRequest, make_container
from drydock.run.kubernetes_manifest import make_objects
from entrypoints.core.records import ServePlan
from entrypoints.plan.plan_text import worth_reading
from tests.support.containers import recorded
from tests.support.machines import machine
from tests.support.planned import models, plan

TARGET, HOST = "habana1.21-deepseek-r1", "habana-gaudi2e-8x"
VARIANT = find_variant(read_matrix(DRYDOCK), TARGET)
NAME = "/models/DeepSeek-R1-0528-G2"
NIC = ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
SCRIPTS = "/opt/drydock/conversions/vllm-fork/scripts"
CONFIG = f"{SCRIPTS}/quant_configs/inc_quant_per_channel_with_fp8kv_config.json"
FLAGS = ("--max-model-len", "16384", "--max-num-seqs", "128")


@pytest.fixture
def served(tmp_path: Path) -> Container:
    """Return the container on the recorded host, with the network cards that the manual's host has."""
    request = RunRequest(model="org/DeepSeek-R1-0528-G2", arguments=FLAGS)
    return make_container(VARIANT, request, recorded(HOST, tmp_path, NIC))


def planned(**env: str) -> ServePlan:
    """Plan start_vllm.sh -b 128 -l 16384 with weights converted for Gaudi2."""
    model = models()["deepseek-ai/DeepSeek-R1"]._replace(name=NAME, converted=True)
    return plan(machine("gaudi2e", 8, TARGET), model, FLAGS, env=env)


def test_the_image_has_what_the_manual_installs() -> None:
    pins = {
        source.name: source.pin for source in read_lock(path_of_lock(DRYDOCK, TARGET)).platforms["linux/amd64"].sources
    }
    dockerfile = (ROOT / "images" / TARGET / "Dockerfile").read_text()

    assert {"libfabric", "hccl-ofi-wrapper", "hccl-demo", "vllm-hpu-extension", "vllm-fork"} <= pins.keys()
    assert all(pins.values())
    assert "ENV LIBFABRIC_ROOT=/opt/libfabric" in dockerfile
    assert "/opt/hccl_demo" in dockerfile
    assert [item.kind for item in VARIANT.conversions] == ["float8", "calibrate"]
    assert {source.ref for source in VARIANT.sources if source.name.startswith("vllm-")} == {"deepseek_r1"}


def test_the_measurements_are_named_where_they_are_not_used() -> None:
    """`plan` prints INFO of decisions, which the manuals' steps point to, and no INFO of checks."""
    findings = worth_reading(machine("gaudi2e", 8, TARGET).profile, planned().findings)
    informing = {finding.id: finding for finding in findings if finding.severity == "INFO"}

    assert informing.keys() == {"HPU-047", "PLAN-100"}
    finding = informing["HPU-047"]
    assert "`model pull Yi30/ds-r1-0528-default-pile-g2-0529" in finding.remediation
    assert f"{SCRIPTS}/nc_workspace_measure_kvcache" in finding.remediation
    assert "HPU-047" not in {finding.id for finding in planned(QUANT_CONFIG=CONFIG).findings}


def test_the_warm_up_is_estimated_and_fits_the_health_check() -> None:
    serve_plan = planned(QUANT_CONFIG=CONFIG)
    (because,) = (reason.because for reason in serve_plan.reasons if reason.setting == "VLLM_SKIP_WARMUP")

    assert "graphs are compiled before the first request: about 23 min, or about 96 s with cached recipes" in because
    assert "HPU-050" not in {finding.id for finding in serve_plan.findings}  # the health check waits for 120 minutes
    assert "HPU-043" not in {finding.id for finding in serve_plan.findings}  # the image has the libraries for host NICs


def test_what_the_recorded_container_lacks_for_host_nics_is_found() -> None:
    """The host was recorded without network cards, in a container with SYS_NICE only."""
    findings = planned(VLLM_API_KEY="sk-1").findings
    problems = [(finding.id, finding.expected) for finding in findings if finding.severity in ("WARN", "FAIL")]

    assert problems == [
        ("HPU-012", "any"),
        ("RUN-003", "IPC_LOCK"),
        ("RUN-003", "SYS_PTRACE"),
        ("HPU-053", "a device file for each network card"),
    ]


def test_the_probes_wait_for_the_first_warm_up(served: Container) -> None:
    (pod,) = (item["spec"]["template"]["spec"] for item in make_objects(served) if item["kind"] == "Deployment")
    (server,) = pod["containers"]

    assert server["startupProbe"]["failureThreshold"] * server["startupProbe"]["periodSeconds"] == 120 * 60
    assert server["startupProbe"]["httpGet"]["path"] == "/startupz"
    assert server["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert server["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert server["resources"]["limits"]["habana.ai/gaudi"] == 8
    assert pod["hostNetwork"] is True
