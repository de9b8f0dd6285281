from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, UnresolvedError
from drydock.core.project import Project
from drydock.inputs import fetch
from drydock.inputs.store import Store, default_store
from drydock.model.locked import Lock, LockedImageBase, LockedPlatform, LockedWheel
from drydock.model.variant import Variant
from tests.support.hashes import sha256

DIGEST = f"sha256:{'1' * 64}"


@pytest.fixture
def tool() -> bytes:
    """Return a wheel of uv."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("uv-1.0.data/scripts/uv", b"\x7fELF")
        archive.writestr("uv-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 1.0\n")
        archive.writestr("uv-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    return buffer.getvalue()


def _wheel(name: str, data: bytes, version: str = "1.0") -> LockedWheel:
    file = f"{name}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, filename=file, size=len(data), sha256=sha256(data))


def test_the_wheels_folder_has_one_folder_per_layer_with_requirements(store: Store) -> None:
    torch, numpy, vllm = (_wheel(name, name.encode()) for name in ("torch", "numpy", "vllm"))
    for wheel in (torch, numpy, vllm):
        store.add([wheel.name.encode()], wheel.sha256, wheel.name)
    trims = {"torch": [{"distribution": "torch", "drop": ["torch/test/*"], "strip": []}]}
    folder = fetch.wheel_folder({"torch": (torch, numpy), "vllm": (vllm,), "empty": ()}, store, trims)
    wheel_files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert wheel_files == [
        "empty/requirements.txt",
        "torch/numpy-1.0-py3-none-any.whl",
        "torch/requirements.txt",
        "torch/torch-1.0-py3-none-any.whl",
        "torch/trims.json",
        "vllm/requirements.txt",
        "vllm/vllm-1.0-py3-none-any.whl",
    ]
    assert (folder / "torch" / "requirements.txt").read_text() == (
        f"numpy==1.0 --hash=sha256:{numpy.sha256}\ntorch==1.0 --hash=sha256:{torch.sha256}\n"
    )
    assert json.loads((folder / "torch" / "trims.json").read_text()) == trims["torch"]


def test_the_tools_folder_has_executables_from_wheels_and_scripts(store: Store, tool: bytes, tmp_path: Path) -> None:
    (tmp_path / "templates" / "tools").mkdir(parents=True)
    (tmp_path / "templates" / "tools" / "compile.py").write_text("pass\n")
    store.add([tool], sha256(tool), "uv")
    folder = fetch.tool_folder((_wheel("uv", tool),), Project(tmp_path), store)
    assert (folder / "uv").read_bytes() == b"\x7fELF"
    assert stat.S_IMODE((folder / "uv").stat().st_mode) == 0o755
    assert (folder / "compile.py").read_text() == "pass\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which pip uses only one folder of wheels."""
    (tmp_path / "wheels").mkdir()
    clean_env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    folder = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    return {**clean_env, **folder, "DRYDOCK_CACHE": str(tmp_path / "cache"), "UV_CACHE_DIR": str(tmp_path / "uv")}


@pytest.fixture
def variant() -> Variant:
    return next(variant for variant in read_matrix(DRYDOCK) if variant.id == "cpu-vllm0.32")


@pytest.fixture
def lock(env: dict[str, str], make_wheel: Callable[..., tuple[str, bytes]], tool: bytes) -> Lock:
    """Return a lock of an image base, and of a wheel and a tool that are in pip's folder."""
    folder = Path(env["PIP_FIND_LINKS"])
    name, data = make_wheel("app", "1.0")
    (folder / name).write_bytes(data)
    (folder / "uv-1.0-py3-none-any.whl").write_bytes(tool)
    base = LockedImageBase(kind="image", reference="debian:12", digest=DIGEST, verified=False, source="a test")
    platform = LockedPlatform(base=base, layers={"all": (_wheel("app", data),)}, tools=(_wheel("uv", tool),))
    return Lock(
        schema_=1,
        variant="cpu-vllm0.32",
        inputs_sha256="0" * 64,
        source_date_epoch=1,
        compatibility_version=20,
        platforms={"linux/amd64": platform},
        content_sha256="0" * 64,
    )


def test_a_second_fetch_needs_no_network(variant: Variant, lock: Lock, env: dict[str, str]) -> None:
    contexts = fetch.fetch_inputs(DRYDOCK, variant, lock, "linux/amd64", env=env)
    assert contexts["base"] == f"docker-image://debian:12@{DIGEST}"
    assert Path(contexts["wheels"], "all", "requirements.txt").read_text().startswith("app==1.0 --hash=sha256:")
    assert os.access(Path(contexts["tools"], "uv"), os.X_OK)
    nowhere = {**env, "PIP_FIND_LINKS": "/nothing", "PATH": "/nothing"}
    assert fetch.fetch_inputs(DRYDOCK, variant, lock, "linux/amd64", offline=True, env=nowhere) == contexts


def test_without_programs_the_tools_are_scripts(variant: Variant, lock: Lock, env: dict[str, str]) -> None:
    without = {"wheels"}
    contexts = fetch.fetch_inputs(
        DRYDOCK, variant, lock, "linux/amd64", offline=True, without=without, with_programs=False, env=env
    )
    scripts = {path.name for path in DRYDOCK.glob("templates/tools/*.py")}
    assert {path.name for path in Path(contexts["tools"]).iterdir()} == scripts


def test_offline_names_the_missing_files_with_sizes(variant: Variant, lock: Lock, env: dict[str, str]) -> None:
    with pytest.raises(FetchError) as caught:
        fetch.fetch_inputs(DRYDOCK, variant, lock, "linux/amd64", offline=True, env=env)
    assert caught.value.problems[0].startswith("not in the store: 2 pinned inputs (")
    assert "--offline" not in str(caught.value)  # `bake` does not have the option
    assert {problem.split()[0] for problem in caught.value.problems[1:]} == {
        "app-1.0-py3-none-any.whl",
        "uv-1.0-py3-none-any.whl",
    }
    assert f"./inv fetch --target {variant.id}`" in caught.value.hint


def test_an_empty_store_is_an_error_of_a_few_lines(lock: Lock, variant: Variant, env: dict[str, str]) -> None:
    pins = lock.platforms["linux/amd64"]
    wheels = tuple(
        LockedWheel(name=f"a{n}", version="1", filename=f"a{n}.whl", size=n + 1, sha256=f"{n:064x}") for n in range(117)
    )
    many = lock.model_copy(update={"platforms": {"linux/amd64": pins.model_copy(update={"layers": {"all": wheels}})}})
    with pytest.raises(FetchError) as caught:
        fetch.fetch_inputs(DRYDOCK, variant, many, "linux/amd64", offline=True, env=env)
    assert "118 pinned inputs" in caught.value.problems[0]
    assert caught.value.problems[-1] == "  and 113 more"
    assert len(str(caught.value).splitlines()) <= 10


def test_an_unresolved_context_is_named_with_a_hint(variant: Variant, lock: Lock, env: dict[str, str]) -> None:
    pins = lock.platforms["linux/amd64"].model_copy(update={"unresolved": {"base": "needs a login"}})
    bare = lock.model_copy(update={"platforms": {"linux/amd64": pins}})
    with pytest.raises(UnresolvedError, match="base is unresolved: needs a login") as caught:
        fetch.fetch_inputs(DRYDOCK, variant, bare, "linux/amd64", env=env)

    assert "`./inv lock --target cpu-vllm0.32`" in caught.value.hint
    assert "--context base=VALUE" in caught.value.hint
    assert "base" not in fetch.fetch_inputs(DRYDOCK, variant, bare, "linux/amd64", without={"base"}, env=env)


def test_wheels_for_this_machines_python_are_fetched_by_hash(lock: Lock, env: dict[str, str]) -> None:
    wheels = lock.platforms["linux/amd64"].layers["all"]
    with pytest.raises(FetchError, match="not in the store: 1 pinned input "):
        fetch.fetch_native_wheels(wheels, offline=True, env=env)
    fetch.fetch_native_wheels(wheels, env=env)
    fetch.fetch_native_wheels(wheels, offline=True, env=env)
    assert default_store(env).has(wheels[0].sha256, wheels[0].size)
