"""What an image is made of by its lock, what is in it by its layers, and where the two disagree. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from packageurl import PackageURL
from packaging.utils import canonicalize_name

from drydock.attest.contents import ImageContents, Package
from drydock.attest.licences import Inventory
from drydock.model.locked import LockedDebianBase, LockedPlatform
from drydock.model.variant import Variant

ENVIRONMENT = "opt/venv/"
"""Where everything is installed that drydock adds to a base."""


class Component(NamedTuple):
    """One thing that an image is made of."""

    kind: str
    """deb, pypi, git, file or oci."""
    name: str
    version: str
    architecture: str = ""
    sha256: str = ""
    """Of the package's file, where the lock pins one."""
    source: str = ""
    """The repository of a git commit."""
    licence: str = ""
    within: str = ""
    """The distribution that carries it in its own wheel."""

    @property
    def purl(self) -> str:
        """Return its package URL (https://github.com/package-url/purl-spec)."""
        if self.kind == "git":
            return str(
                PackageURL(
                    "generic",
                    name=self.name,
                    version=self.version,
                    qualifiers={"vcs_url": f"git+{self.source}@{self.version}"},
                )
            )
        if self.kind == "file":
            return str(PackageURL("generic", name=self.name, qualifiers={"checksum": f"sha256:{self.sha256}"}))
        if self.kind == "oci":
            return str(
                PackageURL(
                    "oci",
                    name=self.name.rpartition("/")[2],
                    version=self.version,
                    qualifiers={"repository_url": self.name},
                )
            )
        namespace = "debian" if self.kind == "deb" else None
        arch = {"arch": self.architecture} if self.architecture else None
        return str(PackageURL(self.kind, namespace, self.name, self.version, arch))

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what it is compared by."""
        return self.kind, self.name, self.version, self.architecture


def locked(variant: Variant, pins: LockedPlatform) -> tuple[Component, ...]:
    """Return what the lock says is installed: its base's packages, wheels, and what is compiled."""
    return tuple(sorted({*_debs(pins), *_wheels(pins), *_compiled(variant)}))


def ingredients(pins: LockedPlatform) -> tuple[Component, ...]:
    """Return what goes in without being a package: a base image, source trees, vendors' files."""
    found = [Component("git", item.name, item.commit, source=item.repository) for item in pins.sources if item.commit]
    found += [
        Component("pypi", item.sdist.name, item.sdist.version, sha256=item.sdist.sha256)
        for item in pins.sources
        if item.sdist
    ]
    found += [
        Component("file", file.filename, "", sha256=file.sha256) for files in pins.supplied.values() for file in files
    ]
    if not isinstance(pins.base, LockedDebianBase) and pins.base.digest:
        found.append(Component("oci", pins.base.reference.rpartition(":")[0] or pins.base.reference, pins.base.digest))
    return tuple(found)


def installed(contents: ImageContents, bill: Iterable[Component], inventory: Inventory) -> tuple[Component, ...]:
    """Return what is in the image, each with the hash of its file where the lock pins it, and its licence."""
    hashes = {part.key: part.sha256 for part in bill}
    licences = {(item.kind, item.name, item.version): item.licence for item in inventory.packages}
    parts = (component(package) for package in contents.packages)
    return tuple(
        part._replace(
            sha256="" if part.within else hashes.get(part.key, ""),
            licence=licences.get(part.key[:3], ""),
        )
        for part in parts
    )


def disagreements(variant: Variant, pins: LockedPlatform, contents: ImageContents) -> tuple[str, ...]:
    """Say where lock and image disagree, and which files nothing accounts for.

    What a base image holds is for its digest to say: only what was added to it is compared.
    """
    bill = {part.key for part in locked(variant, pins)}
    found = {component(package).key for package in contents.packages if _judged(package, pins, contents)}
    missing = (f"{_named(key)}: in the lock and not in the image" for key in sorted(bill - found))
    extra = (f"{_named(key)}: in the image and not in the lock" for key in sorted(found - bill))
    strays = (path for path in contents.unaccounted() if _whole(pins) or path.startswith(ENVIRONMENT))
    return (*missing, *extra, *(f"/{path}: no package and no step of the build accounts for it" for path in strays))


def _judged(package: Package, pins: LockedPlatform, contents: ImageContents) -> bool:
    """Tell whether a package must stand in the lock by itself."""
    if package.within:
        return False
    if package.kind == "deb":
        return _whole(pins)
    debians = contents.owners.get(f"{package.place}/METADATA", "").startswith("deb:")
    return not debians and (_whole(pins) or package.place.startswith(ENVIRONMENT))


def _whole(pins: LockedPlatform) -> bool:
    """Tell whether the lock names every package of the base."""
    return isinstance(pins.base, LockedDebianBase)


def _debs(pins: LockedPlatform) -> Iterator[Component]:
    if isinstance(pins.base, LockedDebianBase):
        for deb in pins.base.packages:
            yield Component("deb", deb.name, deb.version, deb.architecture, deb.sha256)


def _wheels(pins: LockedPlatform) -> Iterator[Component]:
    for wheels in pins.layers.values():
        yield from (Component("pypi", wheel.name, wheel.version, sha256=wheel.sha256) for wheel in wheels)
    for files in pins.supplied.values():
        for file in files:
            if file.filename.endswith(".whl"):
                name, version = file.filename.split("-")[:2]
                yield Component("pypi", str(canonicalize_name(name)), version, sha256=file.sha256)


def _compiled(variant: Variant) -> Iterator[Component]:
    yield from (Component("pypi", build.distribution, build.version) for build in variant.builds)


def component(package: Package) -> Component:
    """Return an installed package as a component."""
    return Component(package.kind, package.name, package.version, package.architecture, within=package.within)


def _named(key: tuple[str, str, str, str]) -> str:
    kind, name, version, architecture = key
    return f"{kind} {name} {version}{f' ({architecture})' if architecture else ''}"
