"""The components of an image: those in its lock, those found in its layers, and mismatches between the two. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from packageurl import PackageURL
from packaging.utils import canonicalize_name, canonicalize_version

from drydock.attest.contents import ENVIRONMENT, ImageContents, Package
from drydock.attest.licences import Inventory
from drydock.model.additions import Additions
from drydock.model.locked import LockedDebianBase, LockedPlatform
from drydock.model.published_recipes import RecipesLock
from drydock.model.variant import Variant

CERTIFICATES = ("usr/local/share/ca-certificates/", "etc/ssl/certs/", "etc/pki/ca-trust/")
"""Folders of the system's certificates, to which those of a project are added."""


class Component(NamedTuple):
    """A package, source tree, file or base image that is part of an image."""

    kind: str
    """deb, pypi, git, file or oci."""
    name: str
    version: str
    architecture: str = ""
    sha256: str = ""
    """Hash of the package's file, if the lock pins one."""
    source: str = ""
    """Repository of a git commit, or address of an archive."""
    licence: str = ""
    within: str = ""
    """Name of the Python distribution whose wheel contains this package."""
    remark: str = ""
    """What else a reader must know of it."""

    @property
    def purl(self) -> str:
        """Return the package URL (https://github.com/package-url/purl-spec)."""
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
        """Return the fields that identify the package when lock and image are compared. 1.0 is 1.0.0 (PEP 440)."""
        version = canonicalize_version(self.version) if self.kind == "pypi" else self.version
        return self.kind, self.name, version, self.architecture


def list_locked_components(variant: Variant, pins: LockedPlatform) -> tuple[Component, ...]:
    """Return the packages that the lock expects in the image: Debian packages, wheels, and what the build adds."""
    return tuple(
        sorted(
            {
                *_list_deb_components(pins),
                *_list_wheel_components(pins),
                *_list_built_components(variant),
                *_list_vllm_alias(variant),
            }
        )
    )


def list_build_inputs(pins: LockedPlatform) -> tuple[Component, ...]:
    """Return the build inputs that are not installed packages: base image, source trees, vendor files."""
    inputs = [Component("git", item.name, item.commit, source=item.repository) for item in pins.sources if item.commit]
    inputs += [Component("file", x.filename, "", sha256=x.sha256, source=x.url) for x in pins.sources if x.sha256]
    inputs += [
        Component("pypi", item.sdist.name, item.sdist.version, sha256=item.sdist.sha256)
        for item in pins.sources
        if item.sdist
    ]
    inputs += [
        Component("file", file.filename, "", sha256=file.sha256) for files in pins.supplied.values() for file in files
    ]
    if not isinstance(pins.base, LockedDebianBase) and pins.base.digest:
        inputs.append(Component("oci", pins.base.reference.rpartition(":")[0] or pins.base.reference, pins.base.digest))
    return tuple(inputs)


def make_base_component(pins: LockedPlatform, licence: str) -> Component:
    """Return the base of an adopted image: named by its digest, and nothing in it is vouched for."""
    base = pins.base
    name = "" if isinstance(base, LockedDebianBase) else base.reference.rpartition(":")[0] or base.reference
    remark = "the base image of an adopted image: its publisher vouches for it, and drydock only names its digest"
    return Component("oci", name, base.digest or "", licence=licence, remark=remark)


def make_layer_component(digest: str) -> Component:
    """Return a layer that drydock added to an adopted image."""
    sha256 = digest.removeprefix("sha256:")
    return Component(
        "file", f"layer-{sha256[:12]}.tar", "", sha256=sha256, licence="Apache-2.0", remark="added by drydock"
    )


def published_recipes(lock: RecipesLock | None) -> tuple[Component, ...]:
    """Return the recipes whose facts are in the image, as a part with a licence of its own."""
    if lock is None:
        return ()
    if lock.commit:
        return (Component("git", "recipes", lock.commit, source=lock.repository, licence=lock.licence),)
    return (Component("file", "recipes.json", "", sha256=lock.facts_sha256, licence=lock.licence),)


def list_installed_components(
    contents: ImageContents, expected: Iterable[Component], inventory: Inventory
) -> tuple[Component, ...]:
    """Return the packages found in the image, with their licences and, if the lock pins them, their hashes."""
    hashes = {part.key: part.sha256 for part in expected}
    licences = {(item.kind, item.name, item.version): item.licence for item in inventory.packages}
    parts = (make_component(package) for package in contents.packages)
    return tuple(
        part._replace(
            sha256="" if part.within else hashes.get(part.key, ""),
            licence=licences.get(part.key[:3], ""),
        )
        for part in parts
    )


def find_lock_mismatches(variant: Variant, pins: LockedPlatform, contents: ImageContents) -> tuple[str, ...]:
    """Return a line for each difference between lock and image, and for each file of unknown origin.

    A base image from a registry is identified by its digest: only what was added to it is compared. Files that a
    vendor's installer writes outside the environment are not listed anywhere, and not compared either.
    """
    expected = {part.key: part for part in list_locked_components(variant, pins)}
    pinned = [package for package in contents.packages if _must_be_locked(package, pins, contents)]
    present = {part.key: part for part in map(make_component, pinned)}
    missing = [
        f"{_format_component(expected[key])}: in the lock but not in the image"
        for key in sorted(expected.keys() - present)
    ]
    extra = [
        f"{_format_component(present[key])}: in the image but not in the lock"
        for key in sorted(present.keys() - expected)
    ]
    free = variant.additions.dockerfile or any(item.install in ("run", "debs") for item in variant.supplied)
    everywhere = _base_is_locked(pins) and not free
    unlisted = (path for path in contents.unaccounted() if not _is_added(variant.additions, path))
    strays = [path for path in unlisted if everywhere or path.startswith(("opt/drydock/", ENVIRONMENT))]
    return (
        *missing,
        *extra,
        *_find_misplaced(variant, pinned),
        *(f"/{path}: belongs to no package and no build step" for path in strays),
    )


def _is_added(additions: Additions, path: str) -> bool:
    """Return whether a project puts a file there: one of its files, or a certificate with its links."""
    return f"/{path}" in additions.files or bool(additions.certificates and path.startswith(CERTIFICATES))


def _find_misplaced(variant: Variant, pinned: Iterable[Package]) -> Iterator[str]:
    """Yield a line for each distribution that is not where wheels are installed, or there twice."""
    site, names = f"{ENVIRONMENT}lib/python{variant.python}/site-packages", set[str]()
    for package in pinned:
        if package.kind == "pypi" and (posixpath.dirname(package.place) != site or package.name in names):
            yield f"/{package.place}: is not where {package.name} is installed, or a second {package.name}"
        names.add(package.name)


def _must_be_locked(package: Package, pins: LockedPlatform, contents: ImageContents) -> bool:
    """Return whether the lock must contain an entry for this package."""
    if package.within:
        return False
    if package.kind == "deb":
        return _base_is_locked(pins)
    from_debian = contents.owners.get(f"{package.place}/METADATA", "").startswith("deb:")
    return not from_debian and (_base_is_locked(pins) or package.place.startswith(ENVIRONMENT))


def _base_is_locked(pins: LockedPlatform) -> bool:
    """Return whether the lock contains every package of the base."""
    return isinstance(pins.base, LockedDebianBase)


def base_layers(pins: LockedPlatform) -> int:
    """Return the number of layers of the base; 0 if the lock does not tell."""
    return 1 if _base_is_locked(pins) else 0


def _list_deb_components(pins: LockedPlatform) -> Iterator[Component]:
    if isinstance(pins.base, LockedDebianBase):
        for deb in pins.base.packages:
            yield Component("deb", deb.name, deb.version, deb.architecture, deb.sha256)


def _list_wheel_components(pins: LockedPlatform) -> Iterator[Component]:
    for wheels in pins.layers.values():
        yield from (Component("pypi", wheel.name, wheel.version, sha256=wheel.sha256) for wheel in wheels)
    for files in pins.supplied.values():
        for file in files:
            if file.filename.endswith(".whl"):
                name, version = file.filename.split("-")[:2]
                yield Component("pypi", str(canonicalize_name(name)), version, sha256=file.sha256)


def _list_built_components(variant: Variant) -> Iterator[Component]:
    yield from (Component("pypi", build.distribution, build.version) for build in variant.builds)


def _list_vllm_alias(variant: Variant) -> Iterator[Component]:
    """Yield the second name of vLLM's distribution, which templates/tools/alias.py registers."""
    if variant.vllm_alias:
        yield Component("pypi", "vllm", variant.vllm_alias)


def make_component(package: Package) -> Component:
    """Return an installed package as a component."""
    return Component(package.kind, package.name, package.version, package.architecture, within=package.within)


def _format_component(part: Component) -> str:
    return f"{part.kind} {part.name} {part.version}{f' ({part.architecture})' if part.architecture else ''}"
