"""A layer depends on its own wheels alone: else the variants of one accelerator would share nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.small_project import locked
from drydock.build import bake_plan, build, buildx, render
from drydock.build.build_job import Job
from drydock.inputs import fetch
from drydock.inputs.store import default_store
from drydock.model.distributions import Layer
from drydock.oci import image_layout
from tests.support.small_image import stub_vllm


def blobs(job: Job, contexts: Mapping[str, str], layers: Sequence[Layer], folder: Path) -> list[str]:
    """Build the variant with its layers in this order, from nothing; return their digests, the base's first."""
    variant = job.variant.model_copy(update={"layers": tuple(layers), "trim": ()})
    files = folder / "images" / variant.id
    files.mkdir(parents=True)
    (files / render.DOCKERFILE).write_text(render.render_dockerfile(job.project, variant))
    for name, content in render.image_files(job.project, variant).items():
        (files / name).write_bytes(content)
    output = folder / "layout"
    output.mkdir()
    buildx.run_bake(bake_plan.make_bake_plan(variant, job.lock, job.platform, contexts, files, output), no_cache=True)
    return [layer["digest"] for layer in image_layout.read_manifest(output)["layers"]]


def test_a_layer_is_the_same_blob_whatever_lies_below_it(job: Job, tmp_path: Path) -> None:
    """Also where wheels of several layers put files into one folder, and beside a layer that has none."""
    names = ("one", "two", "none")
    wheels = {name: (locked(f"tiny-{name}", "1.0", {f"tiny/{name}.py": "A = 'a'\n"}),) for name in ("one", "two")}
    stub = locked(job.variant.vllm.distribution, job.variant.vllm.version, stub_vllm())
    folder = fetch.wheel_folder({**wheels, "none": (), "vllm": (stub,)}, default_store())
    contexts = {**build.fetch_contexts(job), "wheels": str(folder)}
    layers = [Layer(name=name) for name in (*names, "vllm")]

    first = blobs(job, contexts, layers, tmp_path / "first")
    second = blobs(job, contexts, [layers[number] for number in (3, 2, 1, 0)], tmp_path / "second")

    below, above = 2, 2 + len(layers)  # the base, and the step that makes the virtual environment
    assert len({*first[below:above]}) == len(layers)
    assert second[below:above] == first[below:above][::-1]
    assert second[:below] == first[:below]
    assert second[above:] == first[above:], "what is made of all of them is the same, too"
