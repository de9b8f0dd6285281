"""Stand-ins for what cannot be had: a variant's committed Dockerfile is built for real, its contexts replaced.

The base is a small Debian root, made from packages without a registry, with what the Dockerfile asks of the vendor's:
the interpreter's path, the setup scripts, and vLLM where it comes with the base. Wheels, source trees and vendors'
files are stubs. stub_vllm.py, the vLLM of all of them, prints what it is started with.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drydock.build.build_job import DEFAULTS, BuildOptions, Job, prepare_job
from drydock.config.project_choice import DRYDOCK
from drydock.core.console import log
from drydock.core.errors import InputError
from drydock.core.files import compute_checksum
from drydock.core.project import Project
from drydock.inputs import fetch
from drydock.inputs.store import default_store, whole_folder
from drydock.model.variant import Build, Supplied, Variant
from drydock.oci import image_layout

Files = dict[str, bytes]
"""Path in a context → content."""

ROOT_OF = "cpu"
"""The target whose base, made from Debian's packages, is every stand-in's root."""
SERVED = "STUB_VLLM"
"""Variable that lets the stub start: stub_vllm.py."""
SHOWS = (
    "stand-in: there is no vLLM in it and nothing of the vendor's. It shows that the Dockerfile builds, what drydock"
    " finds, decides and starts on a host, and how the server is reached; every answer is the same text"
)
DIST_PACKAGES = "usr/lib/python3/dist-packages"

BACKEND = """
import json, os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    stub = json.load(open("stub.json"))
    version = os.environ["SETUPTOOLS_SCM_PRETEND_VERSION"]
    name = stub["distribution"].replace("-", "_")
    info = f"{name}-{version}.dist-info"
    files = dict(stub["modules"])
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in [*files, f"{info}/RECORD"])
    wheel = f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel
"""
"""A build backend that needs nothing."""


def stand_in(project: Project, target: str, options: BuildOptions = DEFAULTS) -> Job:
    """Return the job that builds a target's Dockerfile on stand-ins; contexts that the user replaced stay.

    It is for the platform of the root, which is fetched. No lock records its digest: its inputs are others. Raises
    InputError for another platform.
    """
    job = prepare_job(project, target, options._replace(platform=None))
    below = prepare_job(DRYDOCK, ROOT_OF, BuildOptions(offline=options.offline))
    if options.platform not in {None, below.platform}:
        raise InputError(f"--platform {options.platform}: stand-ins are for {below.platform}", hint="leave it out")
    log(SHOWS)
    lock = job.lock.model_copy(update={"platforms": {below.platform: below.pins}})  # of which only the tools are used
    contexts = {**make_stubs(job.variant), "base": make_stand_in_base(job.variant, below), **job.context_overrides}
    return dataclasses.replace(job, lock=lock, platform=below.platform, context_overrides=contexts)


def make_stubs(variant: Variant) -> dict[str, str]:
    """Return the contexts of a variant that are stubs: its wheels, sources and supplied files."""
    files_by_context = {
        "wheels": _make_stub_wheels(variant),
        **{source.name: _make_source_tree(variant, source.name) for source in variant.sources},
        **{item.name: _make_supplied_files(variant, item) for item in variant.supplied},
    }
    return {name: str(default_store().folder({}, files)) for name, files in files_by_context.items()}


def find_vllm_carrier(variant: Variant) -> str:
    """Return what brings vLLM into the image: build, layers, wheels, run or base."""
    if variant.vllm.distribution in {item.distribution for item in variant.builds}:
        return "build"
    if variant.vllm.distribution in {canonicalize_name(Requirement(text).name) for text in variant.requirements}:
        return "layers"
    kinds = {item.install for item in variant.supplied}
    return next((kind for kind in ("wheels", "run") if kind in kinds), "base")


def stub_vllm(module: str) -> dict[str, str]:
    """Return a package whose server module is the stub."""
    parts = module.split(".")
    packages = {"/".join(parts[:count]) + "/__init__.py": "" for count in range(1, len(parts))}
    return packages | {"/".join(parts) + ".py": Path(__file__).with_name("stub_vllm.py").read_text()}


def _make_stub_modules(variant: Variant, brought_by: str) -> dict[str, str]:
    """Return the stub's modules, if this brings them."""
    return stub_vllm(variant.module) if find_vllm_carrier(variant) == brought_by else {}


# --- base -----------------------------------------------------------------------------------------------------------


def make_stand_in_base(variant: Variant, below: Job) -> str:
    """Return the context of the stand-in for a variant's base: the base of another job, with a layer of stubs on it."""
    without = {"wheels", "tools"}
    pins = (below.project, below.variant, below.lock, below.platform)
    root = fetch.fetch_inputs(*pins, offline=below.offline, without=without)["base"]
    layout = Path(root.removeprefix("oci-layout://").partition("@")[0])
    descriptors = image_layout.read_manifest(layout)["layers"]
    layers = [image_layout.path_of_blob(layout, descriptor["digest"]) for descriptor in descriptors]
    stub = _make_tar(*_base_files(variant, layers[0]))
    final = default_store().home / "bases" / compute_checksum([root, hashlib.sha256(stub).hexdigest()])
    if not image_layout.is_intact_layout(final):
        with whole_folder(final, replace_unless=image_layout.is_intact_layout) as folder:
            (folder / "layer.tar").write_bytes(stub)
            what = f"a stand-in for the base of {variant.id}"
            epoch = below.lock.source_date_epoch
            image_layout.write_layout(folder, folder / "layer.tar", below.platform, epoch, what, layers)
    return f"oci-layout://{final}@{image_layout.read_digest(final)}"


def _base_files(variant: Variant, root: Path) -> tuple[Files, dict[str, str]]:
    """Return the files and links that a variant's Dockerfile needs and the root, a tar file, lacks."""
    files = {f"{DIST_PACKAGES}/{path}": text.encode() for path, text in _make_stub_modules(variant, "base").items()}
    for script in variant.setup:
        files[script[1:]] = f'export STUB_SETUP="${{STUB_SETUP:+$STUB_SETUP }}{script}"\n'.encode()
    with tarfile.open(root) as tar:
        has_interpreter = f".{variant.interpreter}" in tar.getnames()
    return files, {} if has_interpreter else {variant.interpreter[1:]: "/usr/bin/python3"}


def _make_tar(files: Mapping[str, bytes], links: Mapping[str, str] = {}) -> bytes:
    """Return a tar file that depends on its content alone."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return stream.getvalue()


# --- wheels and sources ---------------------------------------------------------------------------------------------


def make_stub_wheel(
    name: str, version: str, modules: Mapping[str, str], requires: Iterable[str] = ()
) -> tuple[str, bytes]:
    """Return the file name and bytes of a pure Python wheel."""
    normal = name.replace("-", "_")
    info = f"{normal}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: drydock\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_hash_for_record(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""])
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{normal}-{version}-py3-none-any.whl", stream.getvalue()


def _hash_for_record(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def _make_stub_wheels(variant: Variant) -> Files:
    """Return a tiny wheel for each layer, vLLM's among them if one of the requirements is vLLM."""
    wheels_by_layer: dict[str, dict[str, dict[str, str]]] = {}
    for layer in variant.layers:
        wheels_by_layer[layer.name] = {f"tiny-{layer.name}": {f"tiny_{layer.name.replace('-', '_')}.py": "A = 1\n"}}
    if modules := _make_stub_modules(variant, "layers"):
        name = variant.vllm.distribution
        homes = [layer for layer in variant.layers if name in layer.distributions or not layer.distributions]
        wheels_by_layer[min(homes, key=lambda layer: not layer.distributions).name][name] = modules
    if variant.builds:
        wheels_by_layer["build"] = {"tiny-build": {"tiny_build.py": "A = 1\n"}}
    return {
        path: data
        for layer, wheels in wheels_by_layer.items()
        for path, data in _make_wheel_layer(layer, wheels).items()
    }


def _make_wheel_layer(layer: str, wheels: Mapping[str, Mapping[str, str]]) -> Files:
    built = {name: make_stub_wheel(name, "1.0", modules) for name, modules in wheels.items()}
    lines = (f"{name}==1.0 --hash=sha256:{hashlib.sha256(data).hexdigest()}\n" for name, (_, data) in built.items())
    return {
        f"{layer}/requirements.txt": "".join(lines).encode(),
        **{f"{layer}/{at}": data for at, data in built.values()},
    }


def _make_source_tree(variant: Variant, source: str) -> Files:
    """Return a source tree in which every build from it finds a backend that needs nothing."""
    files: Files = {}
    for item in variant.builds:
        if item.source == source:
            files |= {str(Path(item.folder, name)): text for name, text in _make_stub_project(variant, item).items()}
    scripts = (name for item in variant.conversions if item.context == source for name in item.files)
    return files | dict.fromkeys(scripts, b"a script of the vendor's\n")


def _make_stub_project(variant: Variant, item: Build) -> Files:
    modules = _make_stub_modules(variant, "build") if item.distribution == variant.vllm.distribution else {}
    lines = ("[build-system]", "requires = []", 'build-backend = "stub_backend"', 'backend-path = ["."]', "")
    return {
        "stub.json": json.dumps({"distribution": item.distribution, "modules": modules}).encode(),
        "stub_backend.py": BACKEND.encode(),
        "use_existing_torch.py": b"open('used_existing_torch', 'w')\n",
        "pyproject.toml": "\n".join(lines).encode(),
    }


# --- vendors' files -------------------------------------------------------------------------------------------------


def _make_supplied_files(variant: Variant, item: Supplied) -> Files:
    return dict(_MAKERS[item.install](variant, pattern, number) for number, pattern in enumerate(item.patterns))


def _make_installer(variant: Variant, pattern: str, _: int) -> tuple[str, bytes]:
    """Make a self-extracting installer that notes its arguments, and brings vLLM where nothing else does."""
    lines = ['mkdir -p /opt/installed; echo "$@" > /opt/installed/arguments']
    for path, text in _make_stub_modules(variant, "run").items():
        target = f"/{DIST_PACKAGES}/{path}"
        lines.append(f"mkdir -p $(dirname {target}); cat > {target} <<'END'\n{text}\nEND")
    return _make_stub_file(variant, pattern, 0)[0], "\n".join([*lines, ""]).encode()


def _make_supplied_wheel(variant: Variant, pattern: str, number: int) -> tuple[str, bytes]:
    modules = _make_stub_modules(variant, "wheels") if _is_vllm_wheel(pattern, variant, number) else {}
    stem = pattern.removesuffix(".whl").rstrip("*").rstrip("-.")
    name, _, version = (f"{stem}stub" if stem.endswith("+") else stem).partition("-")
    return make_stub_wheel(name or f"tiny_{number}", version.partition("-")[0] or "1.0", modules)


def _is_vllm_wheel(pattern: str, variant: Variant, number: int) -> bool:
    """Tell whether a supplied wheel is vLLM's: by name, else the first."""
    patterns = [pattern for item in variant.supplied if item.install == "wheels" for pattern in item.patterns]
    vllm_patterns = [p for p in patterns if canonicalize_name(p.partition("-")[0]) == variant.vllm.distribution]
    return pattern in vllm_patterns if vllm_patterns else number == 0


def _make_empty_deb(variant: Variant, pattern: str, number: int) -> tuple[str, bytes]:
    """Make an empty Debian package: an ar archive of three members."""
    control = f"Package: stub-{number}\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: stub\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar": _make_tar({"control": control.encode()}),
        "data.tar": _make_tar({}),
    }
    parts = (f"{name:16}{0:<12}{0:<6}{0:<6}{'100644':8}{len(data):<10}`\n".encode() + data
             for name, data in members.items())  # fmt: skip
    return _make_stub_file(variant, pattern, number)[0], b"!<arch>\n" + b"".join(parts)


def _make_stub_file(_variant: Variant, pattern: str, _: int) -> tuple[str, bytes]:
    return pattern.replace("*", "1"), b"stub\n"


_MAKERS: Mapping[str, Callable[[Variant, str, int], tuple[str, bytes]]] = {
    "run": _make_installer,
    "wheels": _make_supplied_wheel,
    "debs": _make_empty_deb,
    "": _make_stub_file,
}
"""How supplied files are installed → what makes one of them."""
