"""What `version` lists: the packages that the manuals' check steps look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoints.facts.packages import list_packages

VENV = "opt/venv/lib/python3.10/site-packages"
BASE = "usr/local/lib/python3.10/dist-packages"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    (tmp_path / "opt/venv/bin").mkdir(parents=True)
    (tmp_path / "opt/venv/bin/python3").touch()
    return tmp_path


def install(root: Path, *folders: str) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True)


def test_the_gcu_manuals_seven_packages_are_listed(image: Path) -> None:
    names = ["vllm-0.8.0", "vllm_gcu-0.8.0+1", "torch-2.6.0+cpu", "torch_gcu-2.6.0+1", "torchvision-0.21.0+cpu"]
    names += ["xformers-0.0.29", "tops_extension-3.2", "requests-2.32.3"]
    install(image, *(f"{VENV}/{name}.dist-info" for name in names))
    assert list_packages("/opt/venv/bin/python3", str(image)) == {
        "tops-extension": "3.2",
        "torch": "2.6.0+cpu",
        "torch-gcu": "2.6.0+1",
        "torchvision": "0.21.0+cpu",
        "vllm": "0.8.0",
        "vllm-gcu": "0.8.0+1",
        "xformers": "0.0.29",
    }


def test_gaudis_packages_are_those_of_the_base_and_of_apt(image: Path) -> None:
    install(image, f"{BASE}/habana_torch_plugin-1.22.0.740.dist-info", f"{BASE}/neural_compressor_pt-3.5.egg-info")
    install(image, f"{BASE}/vllm-0.1.dist-info", f"{VENV}/vllm-0.9.0.1.dist-info", "var/lib/dpkg/info")
    (image / "var/lib/dpkg/info/habanalabs-graph.list").touch()
    assert list_packages("/opt/venv/bin/python3", str(image)) == {
        "habana-torch-plugin": "1.22.0.740",
        "habanalabs-graph": "installed",
        "neural-compressor-pt": "3.5",
        "vllm": "0.9.0.1",
    }


def test_another_machine_than_the_image_lists_nothing(tmp_path: Path) -> None:
    install(tmp_path, f"{BASE}/torch-2.6.0.dist-info")
    assert list_packages("/opt/venv/bin/python3", str(tmp_path)) == {}
