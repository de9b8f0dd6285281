"""Which network interfaces are up: what servers on several hosts are bound to."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrypoints.facts.probes.common.kernel_settings import list_running_interfaces
from entrypoints.host.host import Host


@pytest.mark.parametrize(
    ("links", "interfaces"),
    [
        ({"lo": "unknown", "enp23s0f3": "up", "docker0": "up", "enp23s0f2": "down"}, ("enp23s0f3",)),
        ({"lo": "up", "eth0": "up"}, ("eth0",)),
        ({}, ()),
    ],
)
def test_devices_of_their_own_come_before_bridges_and_loopback_never(
    tmp_path: Path, links: dict[str, str], interfaces: tuple[str, ...]
) -> None:
    for name, state in links.items():
        folder = tmp_path / "sys/class/net" / name
        (folder / "device" if name.startswith("enp") else folder).mkdir(parents=True)
        (folder / "operstate").write_text(f"{state}\n")

    assert list_running_interfaces(Host(str(tmp_path))) == interfaces
