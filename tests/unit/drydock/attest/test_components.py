"""A lock compared with what its image contains."""

from __future__ import annotations

from drydock.attest.components import Component, find_lock_mismatches, list_locked_components
from drydock.attest.contents import ImageContents, Package
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.lock import lockfile

CPU = find_variant(read_matrix(DRYDOCK), "cpu")
PINS = lockfile.read_lock(lockfile.path_of_lock(DRYDOCK, CPU.id)).platforms["linux/amd64"]
SITE = f"opt/venv/lib/python{CPU.python}/site-packages"


def image(**versions: str) -> ImageContents:
    """Return an image with what the lock pins, and other versions of some distributions."""
    packages = (
        Package(
            part.kind, part.name, versions.get(part.name, part.version), part.architecture, f"{SITE}/{part.name}", {}
        )
        for part in list_locked_components(CPU, PINS)
    )
    return ImageContents({}, tuple(packages), {}, {})


def test_versions_of_lock_and_image_are_compared_as_pep_440_says() -> None:
    assert find_lock_mismatches(CPU, PINS, image()) == ()
    version = next(wheel.version for layer in PINS.layers.values() for wheel in layer if wheel.name == "anyio")
    assert find_lock_mismatches(CPU, PINS, image(anyio=f"{version}.0")) == ()
    assert find_lock_mismatches(CPU, PINS, image(anyio=f"{version}+cu130")) == (
        f"pypi anyio {version}: in the lock but not in the image",
        f"pypi anyio {version}+cu130: in the image but not in the lock",
    )


def test_the_version_of_a_debian_package_is_taken_as_it_is() -> None:
    assert Component("deb", "a", "1.0").key != Component("deb", "a", "1.0.0").key
