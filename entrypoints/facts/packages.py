"""The packages that the manuals' check steps list (`pip list | grep …`, `apt list | grep …`), read from files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from glob import glob
from os.path import basename, dirname, exists, join

CHECKED = re.compile(
    r"(vllm|torch|xformers|tops|habana|neural|omni|neuronx|transformers|libneuronxla|triton|flash_attn|intel_extension|"
    r"openvino|jax|jaxlib|libtpu|tpu_inference)[a-z0-9_.]*"
)
"""Names, with _ for -, of packages that hold an accelerator's software. Sources: the installation manuals of vLLM,
vLLM-GCU, omni-infer and the Gaudi2E manuals, each where it verifies an installation."""

_INFO = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-]+)(-py[0-9.]+)?\.(dist|egg)-info")
_DEBS = "var/lib/dpkg/info/habanalabs-*.list"
"""Packages that only Gaudi's manual lists with apt."""


def list_packages(python: str, root: str = "/") -> dict[str, str]:
    """Return name → version of the checked packages that this interpreter can import; none if it is not there.

    A virtual environment also imports those of the interpreter that it was made of, as the vendors' images have it.
    """
    if not exists(join(root, python.lstrip("/"))):
        return {}
    packages = {"-".join(name.split("_")): version for name, version in _find_packages(python, root)}
    debs = (basename(path).removesuffix(".list") for path in glob(join(root, _DEBS)))
    return dict(sorted((packages | dict.fromkeys(debs, "installed")).items()))


def _find_packages(python: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield the name and version of each checked package; of two, the one that is imported comes last."""
    for pattern in (
        *_list_package_folders(root),
        join(root, dirname(dirname(python)).lstrip("/"), "lib/python3*/site-packages"),
    ):
        for path in glob(join(pattern, "*-info")):
            parts = _INFO.fullmatch(basename(path))
            if parts and CHECKED.fullmatch(parts["name"].lower()):
                yield parts["name"].lower(), parts["version"]


def _list_package_folders(root: str) -> tuple[str, ...]:
    """Return the folders of the base images' own packages."""
    usual = ("usr/lib/python3*/dist-packages", "usr/local/lib/python3*/dist-packages")
    return tuple(join(root, place) for place in (*usual, "opt/conda/lib/python3*/site-packages"))
