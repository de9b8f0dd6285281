"""Facts of no particular host, for tests that need only a part of them."""

from __future__ import annotations

from collections.abc import Mapping

from entrypoints.core.records import Cgroup, Facts, Limits, Memory, Mount, Processor


def facts(mounts: Mapping[str, Mount]) -> Facts:
    return Facts(
        accelerator="cpu",
        processor=Processor("x86_64", "", "", ()),
        cpus=(),
        nodes=(),
        memory=Memory(0, 0, 0, 0),
        cgroup=Cgroup(2, None, 0, None, None),
        limits=Limits(None, None, None),
        mounts=mounts,
        kernel={},
        devices=(),
        user=(0, 0),
        failures=(),
    )
