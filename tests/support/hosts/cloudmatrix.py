"""The hosts of the examples with omni-infer, which `./inv generate` writes.

All are one recorded machine. Ranktables need the addresses of the chips' own ports, which differ by machine: these are
of the network for benchmarks (RFC 2544), in the form in which `hccn_tool -i N -ip -g` prints them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent.parent
sys.path.insert(0, str(ROOT))

from entrypoints.facts.record import dump_recorded_host  # noqa: E402 - after the path is set

RECORDED = ROOT / "tests" / "hosts" / "ascend-cloudmatrix384" / "host.json"
FOLDER = ROOT / "examples" / "topologies" / "hosts"
NODES = ("p0", "p1", "p2", "p3", "d0", "d1", "d2", "d3")
CHIPS = 16


def hosts() -> dict[Path, str]:
    """Return path → recorded host of each node."""
    return {FOLDER / f"{node}.json": _host(number) for number, node in enumerate(NODES, 1)}


def _host(number: int) -> str:
    host = json.loads(RECORDED.read_text())
    for chip in range(CHIPS):
        text = f"ipaddr:198.18.{number}.{chip + 1}\nnetmask:255.255.0.0\n"
        host["commands"][f"hccn_tool -i {chip} -ip -g"] = {"rc": 0, "stderr": "", "stdout": text}
    host["origin"] = f"{host['origin']}; addresses of the chips' ports: invented (198.18.0.0/15)"
    return dump_recorded_host(host)
