"""A `LocalRepository` whose store contains everything that its lock pins, in a few kilobytes, as a bundle needs it."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

from drydock.inputs.store import Store
from drydock.model.locked import Lock, LockedDeb, LockedDebianBase, LockedWheel
from tests.support.local_registry import PLATFORMS, LocalRepository


class StockedRepository(LocalRepository):
    """The repository, its cache folder, its images and its store."""

    def __init__(self, folder: Path, *, platforms: tuple[str, ...] = PLATFORMS[:1], salt: str = "") -> None:
        os.environ["DRYDOCK_CACHE"] = str(folder / "cache")
        self.store = Store(folder / "cache")
        super().__init__(folder, platforms=platforms, salt=salt)
        for filename, data in self.wheels.values():
            self._keep(data, filename)

    def _keep(self, data: bytes, name: str) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.store.add([data], sha256, name)
        return sha256

    def _locked(self) -> Lock:
        lock = super()._locked()
        platforms = {}
        for platform, pins in lock.platforms.items():
            assert isinstance(pins.base, LockedDebianBase)
            update = {name: tuple(map(self._deb, getattr(pins.base, name)[:9])) for name in ("packages", "bootstrap")}
            base = pins.base.model_copy(update=update)
            tools = tuple(map(self._tool, pins.tools))
            platforms[platform] = pins.model_copy(update={"base": base, "tools": tools})
        return lock.model_copy(update={"platforms": platforms})

    def _deb(self, pin: LockedDeb) -> LockedDeb:
        data = f"{pin.name} {pin.version}".encode() * 100
        return pin.model_copy(update={"sha256": self._keep(data, pin.name), "size": len(data)})

    def _tool(self, pin: LockedWheel) -> LockedWheel:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"{pin.name}-{pin.version}.data/scripts/{pin.name}"), b"#!/bin/sh\n")
        data = buffer.getvalue()
        return pin.model_copy(update={"sha256": self._keep(data, pin.filename), "size": len(data)})
