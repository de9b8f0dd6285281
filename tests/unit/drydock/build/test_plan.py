"""The plan is a bake file whose every outside input is a named context."""

from __future__ import annotations

from pathlib import Path

from drydock.build import plan
from drydock.build.job import prepare
from drydock.config.project import DRYDOCK

PLAN = {
    "target": {
        "t": {
            "context": "/repository/images/t",
            "contexts": {
                "base": "oci-layout:///cache/bases/1@sha256:0",
                "wheels": "/cache/wheels",
                "other": "docker-image://a@b",
            },
            "output": ["type=oci,tar=false,dest=/cache/out"],
        }
    }
}


def test_bake_may_touch_exactly_the_folders_of_the_plan() -> None:
    assert plan.folders(PLAN) == ("/cache/bases/1", "/cache/out", "/cache/wheels", "/repository/images/t")


def test_a_path_is_no_template() -> None:
    folder = "/home/${BAKE_LOCAL_PLATFORM}/%{if true}x"
    job = prepare(DRYDOCK, "cpu")
    bake = plan.plan(job.variant, job.lock, job.platform, {"base": folder}, Path("/x"), Path("/y"))
    written = bake["target"][plan.bake_name(job.variant.id)]["contexts"]["base"]
    assert written == "/home/$${BAKE_LOCAL_PLATFORM}/%%{if true}x"
    assert folder in plan.folders(bake)


def test_the_plan_of_the_committed_lock_has_no_network_and_no_attestation() -> None:
    job = prepare(DRYDOCK, "cpu")
    contexts = {"base": "oci-layout:///b@sha256:0"}
    target = plan.plan(job.variant, job.lock, job.platform, contexts, Path("/c"), Path("/o"))["target"]["cpu-vllm0_32"]

    assert target["network"] == "none"
    assert target["args"] == {"SOURCE_DATE_EPOCH": str(job.lock.source_date_epoch)}
    assert target["attest"] == ["type=provenance,disabled=true", "type=sbom,disabled=true"]
    assert target["output"][0].endswith("compression=zstd,compression-level=3,dest=/o")


def test_every_input_enters_the_checksum() -> None:
    job = prepare(DRYDOCK, "cpu")
    files = {"Dockerfile": "a"}
    pins = job.pins
    other_base = pins.base.model_copy(update={"digest": "sha256:" + "1" * 64})
    other_tools = pins.tools[0].model_copy(update={"sha256": "2" * 64})
    locks = [
        job.lock,
        job.lock.model_copy(update={"source_date_epoch": 0}),
        *(
            job.lock.model_copy(update={"platforms": {job.platform: pins.model_copy(update=change)}})
            for change in ({"base": other_base}, {"tools": (other_tools,)}, {"layers": {}})
        ),
    ]
    sums = [plan.inputs_sha256(job.variant, lock, job.platform, files) for lock in locks]
    sums.append(plan.inputs_sha256(job.variant, job.lock, job.platform, {"Dockerfile": "b"}))

    gzip = job.variant.compression.model_copy(update={"algorithm": "gzip"})
    other = job.variant.model_copy(update={"compression": gzip})
    sums.append(plan.inputs_sha256(other, job.lock, job.platform, files))

    assert len(set(sums)) == len(sums)
    reason = job.variant.compression.model_copy(update={"because": "another reason", "source": "another manual"})
    same = job.variant.model_copy(update={"compression": reason})
    assert plan.inputs_sha256(same, job.lock, job.platform, files) == sums[0]
