"""`fabric`: the ranks of a host, the finding, the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoints.core import errors
from entrypoints.core.records import Device
from entrypoints.facts.image_files import PACKAGE
from entrypoints.serve.collective import MARK, Figure, Measured, Place
from entrypoints.verbs.fabric_verb import (
    count_local_ranks,
    find_published_bandwidth,
    judge_collective,
    parse_fabric_words,
)
from tests.support.sample import PROFILE, facts

TABLE = {"fabric_published": {"value": ["HL-225:8:258"]}, "fabric_share": {"value": 0.8}}
GAUDI = facts(devices=tuple(Device(number, "HL-225", 1, 0, 0) for number in range(8)))
CPU = {"fabric_backend": {"value": "gloo"}}


def fabric(folder: Path, lines: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the verb with a stand-in for torchrun."""
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True, exist_ok=True)
    for path in (folder / "torch" / "__init__.py", package / "__init__.py"):
        path.write_text("")
    (package / "run.py").write_text(lines)
    thresholds = {**PROFILE["thresholds"], **CPU}
    (folder / "profile.json").write_text(json.dumps({**PROFILE, "python": sys.executable, "thresholds": thresholds}))
    env = {"PATH": os.environ["PATH"], "DRYDOCK_PROFILE": str(folder / "profile.json"), "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-I", "-S", str(PACKAGE), "fabric", *words],
        capture_output=True, text=True, check=False, timeout=60, env=env,
    )  # fmt: skip


def told(*, right: bool) -> str:
    figures = {"ranks": 2, "figures": [{"bytes": 1 << 20, "seconds": 0.001, "right": right}]}
    return f"import os\nprint({MARK!r} + {json.dumps(json.dumps(figures))})\nprint(os.environ['GLOO_SOCKET_IFNAME'])\n"


PEERS = ("--peers", "127.0.0.1,,127.0.0.2", "--node-rank", "0")


def test_figures_are_printed_and_a_right_sum_passes(tmp_path: Path) -> None:
    ran = fabric(tmp_path, told(right=True), *PEERS)

    assert ran.returncode == errors.OK, ran.stderr
    assert "     1048576         1000.0        1.049" in ran.stdout.splitlines()
    assert "PASS    NET-011" in ran.stdout
    printed = json.loads(fabric(tmp_path, told(right=True), *PEERS, "--json").stdout)
    assert (printed["ranks"], printed["findings"][0]["severity"]) == (2, "PASS")


def test_a_wrong_sum_fails(tmp_path: Path) -> None:
    ran = fabric(tmp_path, told(right=False), *PEERS)

    assert ran.returncode == errors.CHECK_FAILED
    assert "found the sum of 1048576 bytes is wrong" in ran.stdout


def test_one_rank_has_nothing_to_exchange_and_other_words_are_refused(tmp_path: Path) -> None:
    refused = fabric(tmp_path, "", *PEERS, "--nnodes", "2")

    assert refused.returncode == errors.USAGE
    assert "invalid argument '--nnodes'" in refused.stderr
    assert parse_fabric_words(("--node-rank=3", "--master-port", "29600")) == {"--node-rank": 3, "--master-port": 29600}
    for port in ("0", "99999"):
        with pytest.raises(errors.EntrypointError, match=f"--master-port {port}: expected a port from 1 to 65535"):
            parse_fabric_words(("--master-port", port))


def test_a_host_has_a_rank_for_each_device_or_numa_node() -> None:
    assert count_local_ranks(facts(nodes=2)) == 2
    assert count_local_ranks(GAUDI) == 8


@pytest.mark.parametrize(("speed", "severities"), [(250.0, ["PASS", "PASS"]), (150.0, ["PASS", "WARN"])])
def test_a_figure_is_compared_with_the_vendors_where_there_is_one(speed: float, severities: list[str]) -> None:
    measured = Measured("hccl_demo", 8, (Figure(1024, 1e-5, 0.1), Figure(1 << 28, 1e-3, speed)))
    profile = {**PROFILE, "thresholds": TABLE}

    assert [finding.severity for finding in judge_collective(profile, GAUDI, Place(), measured)] == severities
    assert len(judge_collective(profile, facts(), Place(), measured)) == 1


def test_a_figure_is_of_this_number_of_this_device_in_one_host() -> None:
    assert find_published_bandwidth(TABLE, GAUDI, Place()) == 258
    assert find_published_bandwidth(TABLE, GAUDI, Place(0, 2)) is None
    assert find_published_bandwidth(TABLE, GAUDI._replace(devices=GAUDI.devices[:4]), Place()) is None
    assert find_published_bandwidth({}, GAUDI, Place()) is None
