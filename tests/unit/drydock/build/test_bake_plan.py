"""The plan is a bake file whose every outside input is a named context."""

from __future__ import annotations

from pathlib import Path

import pytest

from drydock.build import bake_plan
from drydock.build.build_job import prepare_job
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.files import format_json

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
    assert bake_plan.list_plan_folders(PLAN) == (
        "/cache/bases/1",
        "/cache/out",
        "/cache/wheels",
        "/repository/images/t",
    )


def test_a_path_is_no_template() -> None:
    folder = "/home/${BAKE_LOCAL_PLATFORM}/%{if true}x"
    job = prepare_job(DRYDOCK, "cpu")
    bake = bake_plan.make_bake_plan(job.variant, job.lock, job.platform, {"base": folder}, Path("/x"), Path("/y"))
    base_context = bake["target"][bake_plan.bake_name(job.variant.id)]["contexts"]["base"]
    assert base_context == "/home/$${BAKE_LOCAL_PLATFORM}/%%{if true}x"
    assert folder in bake_plan.list_plan_folders(bake)


def test_the_plan_of_the_committed_lock_has_no_network_and_no_attestation() -> None:
    job = prepare_job(DRYDOCK, "cpu")
    contexts = {"base": "oci-layout:///b@sha256:0"}
    target = bake_plan.make_bake_plan(job.variant, job.lock, job.platform, contexts, Path("/c"), Path("/o"))["target"][
        "cpu-vllm0_32"
    ]

    assert target["network"] == "none"
    assert target["args"] == {"SOURCE_DATE_EPOCH": str(job.lock.source_date_epoch)}
    assert target["attest"] == ["type=provenance,disabled=true", "type=sbom,disabled=true"]
    assert target["output"][0].endswith("compression=zstd,compression-level=3,dest=/o")


def test_every_input_enters_the_checksum() -> None:
    job = prepare_job(DRYDOCK, "cpu")
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
    inputs = [bake_plan.collect_inputs(job.variant, lock, job.platform, files) for lock in locks]
    inputs.append(bake_plan.collect_inputs(job.variant, job.lock, job.platform, {"Dockerfile": "b"}))

    gzip = job.variant.compression.model_copy(update={"algorithm": "gzip"})
    recompressed = job.variant.model_copy(update={"compression": gzip})
    inputs.append(bake_plan.collect_inputs(recompressed, job.lock, job.platform, files))

    trimmed = job.variant.model_copy(update={"trim": job.variant.trim[1:]})
    inputs.append(bake_plan.collect_inputs(trimmed, job.lock, job.platform, files))
    inputs.append(bake_plan.collect_inputs(job.variant, job.lock, job.platform, files, bake_plan.REWRITING))

    assert len(set(map(format_json, inputs))) == len(inputs)
    reason = job.variant.compression.model_copy(update={"because": "another reason", "source": "another manual"})
    same = job.variant.model_copy(update={"compression": reason})
    assert bake_plan.collect_inputs(same, job.lock, job.platform, files) == inputs[0]


SETTLED = """# RUN in a comment
FROM base
WORKDIR /
RUN --mount=type=bind,from=tools,target=/tools \\
    set -eux; \\
    touch /a; \\
    python3 -BS /tools/layer.py settle
RUN python3 -BS /tools/layer.py install /built/*.whl
COPY --link --from=entrypoint /row/1795219200 /
"""


def test_an_image_is_exported_as_written_if_each_of_its_steps_sets_the_times() -> None:
    assert bake_plan.choose_export(SETTLED) == bake_plan.EXPORT
    assert {
        bake_plan.choose_export(prepare_job(DRYDOCK, row.id).sources["Dockerfile"].decode())
        for row in read_matrix(DRYDOCK)
    } == {bake_plan.EXPORT}


@pytest.mark.parametrize(
    "step",
    [
        "RUN touch /a",
        "run touch /a",
        "  RUN touch /a",
        "RUN python3 /tools/layer.py settle; touch /a",
        "RUN python3 /tools/layer.py settle \\\n    && touch /a",
        "RUN python3 /tools/layer.py settle || true",
        "RUN <<EOF\npython3 /tools/layer.py settle\nEOF",
        'RUN ["touch", "/a"]',
        "COPY a /b",
        "COPY --link --from=entrypoint /row/1795219200 /opt/x/",
        "ADD a.tar /",
        "WORKDIR /srv/new",
    ],
)
def test_one_step_that_may_leave_a_present_time_makes_the_export_set_them(step: str) -> None:
    assert bake_plan.choose_export(f"{SETTLED}{step}\nUSER 1\n") == bake_plan.REWRITING
