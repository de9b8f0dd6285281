"""What the vLLM in an image of others says of itself is read from its layers, while they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from drydock.adopt import layer_facts, vllm_sources
from drydock.adopt.base_facts import BaseFacts
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import InputError, RegistryError, StaleError
from drydock.core.project import Project
from drydock.examine import image
from drydock.lock import base_lists, code_lists, lockfile, vllm_lists
from drydock.review.named_images import ImageFinder
from drydock.review.place_findings import Level, review_place
from drydock.review.written_commands import CommandPlace
from drydock.verbs import adopt_verb
from tests.registry.test_adopt import adopted_name, fetch, make_project, options, project, read_layer, upstream
from tests.support.upstream_image import FILES, SITE, Layer, Upstream, make_layer
from tests.unit.drydock.lock.test_code_lists import make_fatbin, make_library

__all__ = ["project", "upstream"]  # fixtures

REGISTRY = "model_executor/models/registry.py"
VLLM: Mapping[str, bytes] = {
    "engine/arg_utils.py": b"class EngineArgs:\n    @staticmethod\n    def add_cli_args(parser):\n"
    b"        parser.add_argument('--ours', type=int)\nclass AsyncEngineArgs(EngineArgs):\n"
    b"    @staticmethod\n    def add_cli_args(parser):\n        return parser\n",
    REGISTRY: b"_VLLM_MODELS = {'OursForCausalLM': ('ours', 'OursForCausalLM')}\n",
    "model_executor/models/ours.py": b"import timm\n",
    "envs.py": b"environment_variables = {'VLLM_OURS': None}\n",
    "csrc/big.py": b"not read",
}
PACKAGES = (f"{SITE}/timm-1.0.dist-info/METADATA", "opt/other/lib/python3.12/site-packages/av-15.0.dist-info/METADATA")
IMAGE = {**FILES, **{f"{SITE}/vllm/{name}": text for name, text in VLLM.items()}, **dict.fromkeys(PACKAGES, b"")}
PLUGIN = {f"{SITE}/vllm_x-1.0.dist-info/entry_points.txt": b"[vllm.general_plugins]\nx = vllm_x:register\n"}
OWN_PLUGIN = {f"{SITE}/vllm-0.33.0.dist-info/entry_points.txt": b"[vllm.general_plugins]\nl = vllm.plugins.l:run\n"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))


def adopt(project: Project, upstream: Upstream, *layers: Layer, **more: Any) -> Any:
    if layers:
        upstream.push("v0.33.0", layers)
    return adopt_verb.adopt_base(project, options(upstream, **{"stated": BaseFacts(), "read_layers": True, **more}))


def lists_in_image(upstream: Upstream, digest: str) -> dict[str, Any]:
    manifest = fetch(upstream.host, adopted_name(upstream), f"manifests/{digest}").json()
    row = read_layer(upstream, manifest["layers"][-1]["digest"])
    lists: dict[str, Any] = json.loads(row["opt/drydock/vllm.json"])
    return lists


def test_the_lists_of_its_own_vllm_stand_in_the_image_and_in_the_row(project: Project, upstream: Upstream) -> None:
    adopted = adopt(project, upstream, make_layer(IMAGE), make_layer(OWN_PLUGIN))
    lists = lists_in_image(upstream, adopted.digest)
    assert lists["assumed"] == ""
    assert (lists["architectures"], lists["variables"]) == (["OursForCausalLM"], ["VLLM_OURS"])
    assert lists["flags"] == {"--ours": "int"}
    assert (lists["packages"], lists["required_packages"]) == (["timm"], {"OursForCausalLM": ["timm"]})
    assert "images/vllm-openai-v0.33.0/vllm.json" in adopted.written
    assert adopted.lists["architectures"] == 1
    variant = find_variant(read_matrix(project), adopted.row)
    known_lists = vllm_lists.find_lists(project, variant, None, "linux/amd64")
    assert known_lists
    assert {**known_lists.lists, "assumed": known_lists.assumed} == lists


def test_which_cards_its_libraries_have_code_for_stands_in_the_row_alone(project: Project, upstream: Upstream) -> None:
    torch = {
        f"{SITE}/torch-9.0.dist-info/METADATA": b"",
        f"{SITE}/torch/lib/libtorch_cuda.so": make_library(make_fatbin((2, 80, 0))),
        f"{SITE}/torch/lib/libold.so": make_library(make_fatbin((2, 70, 0))),
        f"{SITE}/vllm/_C.abi3.so": make_library(make_fatbin((1, 80, 0))),
        f"{SITE}/numpy/core.so": make_library(make_fatbin((2, 70, 0))),
    }
    changed = {f"{SITE}/torch/lib/.wh.libold.so": b"", f"{SITE}/vllm/_C.abi3.so": make_library(make_fatbin((2, 90, 0)))}
    adopted = adopt(project, upstream, make_layer({**IMAGE, **torch}), make_layer(changed))
    variant = find_variant(read_matrix(project), adopted.row)
    lock = lockfile.read_lock(lockfile.path_of_lock(project, adopted.row))
    libraries = code_lists.find_libraries(project, variant, lock, "linux/amd64")
    assert code_lists.choose_loaded(libraries) == {
        "torch 9.0": {"torch/lib/libtorch_cuda.so": ["sm_80"]},
        "vllm 0.33.0": {"vllm/_C.abi3.so": ["sm_90"]},
    }
    assert {*libraries["torch 9.0"]} == {"torch/lib/libtorch_cuda.so"}
    assert "code" not in lists_in_image(upstream, adopted.digest)
    printed = image.format_inspected(image.inspect_image(project, adopted.image))
    assert "  code     torch 9.0 libtorch_cuda.so: sm_80\n  code     vllm 0.33.0 _C.abi3.so: sm_90\n" in printed
    assert adopt(project, upstream, read_layers=False).digest == adopted.digest
    assert code_lists.find_libraries(project, variant, lock, "linux/amd64") == libraries


def test_a_second_run_and_facts_of_a_file_keep_them_and_another_digest_does_not(
    tmp_path: Path, upstream: Upstream
) -> None:
    project = make_project(tmp_path / "one")
    read = adopt(project, upstream, make_layer(IMAGE))
    assert adopt(project, upstream, read_layers=False).digest == read.digest
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({"facts": read.model_dump(mode="json")["facts"]}))
    other = make_project(tmp_path / "two")
    assert adopt(other, upstream, read_layers=False, facts=str(file)).digest == read.digest
    without = adopt(make_project(tmp_path / "three"), upstream, read_layers=False, stated=BaseFacts(*read_facts(read)))
    assert without.digest != read.digest
    moved = adopt(project, upstream, make_layer({**IMAGE, "new": b""}), read_layers=False, stated=read_facts(read))
    assert not (project.root / base_lists.name_file(moved.row)).exists()
    assert lists_in_image(upstream, moved.digest)["assumed"]


def read_facts(adopted: Any) -> BaseFacts:
    facts = adopted.facts
    return BaseFacts(facts["vllm"], facts["python_version"], facts["python"], facts["release"], facts["accelerator"])


def test_whiteouts_hard_links_and_a_vllm_that_is_installed_as_editable_are_followed(
    tmp_path: Path, upstream: Upstream
) -> None:
    hidden = adopt(
        make_project(tmp_path / "one"), upstream, make_layer(IMAGE), make_layer({f"{SITE}/vllm/.wh.envs.py": b""})
    )
    assert "variables" not in lists_in_image(upstream, hidden.digest)
    editable = {name.replace(f"{SITE}/vllm/", "work/vllm/vllm/"): data for name, data in IMAGE.items()}
    adopted = adopt(make_project(tmp_path / "two"), upstream, make_layer(editable))
    assert lists_in_image(upstream, adopted.digest)["variables"] == ["VLLM_OURS"]


def test_a_plugin_makes_the_lists_assumed(project: Project, upstream: Upstream) -> None:
    adopted = adopt(project, upstream, make_layer({**IMAGE, **PLUGIN}))
    lists = lists_in_image(upstream, adopted.digest)
    assert lists["assumed"] == "of its vLLM alone: vllm_x may add to them"
    assert (lists["flags_of_release"], "flags" in lists) == ({"--ours": "int"}, False)


BAD: Mapping[str, bytes] = {
    "no Python": b"def (",
    "zero bytes": b"\0",
    "deep": b"(" * 5000,
    "an escape": b"_VLLM_MODELS = {'\\x1b[31mX': ('a', 'b')}\n",
    "another form": b"_VLLM_MODELS = {'X': 'y'}\n_MODELS = {1: (), **x}\n",
}


@pytest.mark.parametrize("name", [*BAD][:4])
def test_files_that_are_no_vllm_have_their_sentence(project: Project, upstream: Upstream, name: str) -> None:
    with pytest.raises(InputError) as caught:
        adopt(project, upstream, make_layer({**IMAGE, f"{SITE}/vllm/{REGISTRY}": BAD[name]}))
    assert "\x1b" not in str(caught.value)
    assert not (project.root / "matrix.yaml").exists()


def test_what_is_not_literal_is_not_known(project: Project, upstream: Upstream) -> None:
    adopted = adopt(project, upstream, make_layer({**IMAGE, f"{SITE}/vllm/{REGISTRY}": BAD["another form"]}))
    assert adopted.lists["variables"] == 1


def test_more_source_code_than_any_vllm_has_is_refused(
    project: Project, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_sources, "LARGEST_PACKAGE", {"vllm": 100, "transformers": 100})
    with pytest.raises(RegistryError, match="more than 100 bytes of Python files of vllm"):
        adopt(project, upstream, make_layer(IMAGE))


@pytest.mark.parametrize(
    "lists",
    [
        {"flags": ["--x"]},
        {"architectures": {"X": 1}},
        {"architectures": [1]},
        {"required_packages": []},
        {"x": ["\x1b"]},
        {"x": ["y" * 9999]},
    ],
)
def test_a_record_of_another_form_is_refused(
    project: Project, upstream: Upstream, tmp_path: Path, lists: dict[str, Any]
) -> None:
    adopted = adopt(project, upstream, make_layer(IMAGE))
    digest = adopted.facts["digest"]
    record = project.root / base_lists.name_file(adopted.row)
    record.write_text(json.dumps({"digest": digest, "lists": lists, "assumed": ""}))
    with pytest.raises(StaleError, match="invalid lists of vLLM"):
        adopt(project, upstream, read_layers=False)
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({"vllm_lists": {"digest": digest, "lists": lists}}))
    with pytest.raises(InputError, match="vllm_lists"):
        adopt(project, upstream, read_layers=False, facts=str(file))


def test_review_reads_an_image_once_and_says_what_its_version_and_entrypoint_lack(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    unversioned = {name.replace("vllm-0.33.0", "vllm-0.1.dev1+g51f799c1a"): text for name, text in IMAGE.items()}
    upstream.push("v0.33.0", [make_layer(unversioned)], {"Entrypoint": ["/bin/bash"]})
    image = f"{upstream.host}/{upstream.name}:v0.33.0"
    known = ImageFinder(DRYDOCK, offline=False).find(image)
    assert (known.how, known.entrypoint) == ("by its layers", ("/bin/bash",))
    assert known.versions[0].lists["flags"] == {"--ours": "int"}
    assert "0.1.dev1, which is no release" in known.warning
    monkeypatch.setattr(layer_facts, "read_layer_facts", None)
    finder = ImageFinder(DRYDOCK, offline=False)
    place = CommandPlace("x", 1, "compose", image, ("--ours", "1", "--theirs", "1"), {}, is_entered=True)
    refused = [item.part for item in review_place(place, finder, None).findings if item.level is Level.REFUSED]
    assert refused == [image, "--theirs 1"]
    assert ImageFinder(DRYDOCK, offline=True).find(image).how == "as its tag seems to say"
