"""A collective over devices and hosts: what the programs print, which one runs, and this host's place."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.host.host import Result
from entrypoints.serve.collective import (
    MARK,
    Available,
    Job,
    Place,
    address_of,
    compute_bus_bandwidth,
    find_place,
    measure_collective,
    parse_hccl_demo,
    parse_nccl_tests,
    parse_nccom_test,
    parse_torch,
    read_tests,
)

NCCL = """
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    19.42    0.05    0.09      0    18.70    0.05    0.10      0
   268435456      67108864     float     sum      -1   1250.5  214.66  375.66      0   1251.0  214.58  375.51      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 187.838
"""
NCCOM = """
     size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)
    33554432        33554432    uint8         768          40.69          40.69
Avg bus bandwidth:      40.6901GB/s
"""
HCCL = """
[BENCHMARK] hcclAllReduce(src!=dst, data_size=33554432, count=8388608, dtype=float, iterations=1000)
[BENCHMARK]     NW Bandwidth   : 258.209121 GB/s
[BENCHMARK]     Algo Bandwidth : 147.548069 GB/s
"""


ALONE = Place()


def job(tests: Available, folder: Path, place: Place = ALONE, local: int = 8) -> Job:
    return Job(tests, place, local, sys.executable, "/plugin", {"PATH": str(folder), "PYTHONPATH": str(folder)}, 1)


def torchrun(folder: Path, *lines: str) -> None:
    """Write a stand-in for torch.distributed.run."""
    package = folder / "torch" / "distributed"
    package.mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "run.py").write_text("\n".join(("import json, os, sys", *lines)) + "\n")


def told(*figures: tuple[int, float, bool], ranks: int = 2) -> str:
    rows = [dict(zip(("bytes", "seconds", "right"), figure, strict=True)) for figure in figures]
    return f"[rank0] {MARK}{json.dumps({'ranks': ranks, 'figures': rows})}\n"


# --- what programs print --------------------------------------------------------------------------------------------


def test_the_vendors_tables_are_read() -> None:
    small, large = parse_nccl_tests(NCCL)
    assert (small.bytes, small.seconds, small.bus) == (1024, pytest.approx(19.42e-6), 0.09)
    assert large.bus == 375.66
    assert [figure.bus for figure in parse_nccom_test(NCCOM)] == [40.69]


def test_hccl_demos_network_bandwidth_is_the_bus_bandwidth() -> None:
    figure = parse_hccl_demo(HCCL, 33554432, 8)
    assert figure
    assert figure.bus == pytest.approx(258.209121)
    assert compute_bus_bandwidth(figure.bytes, figure.seconds, 8) == pytest.approx(258.209121)
    assert figure.bytes / figure.seconds / 1e9 == pytest.approx(147.548069)
    older = parse_hccl_demo("[BENCHMARK]     Bandwidth     : 258209.1 MB/s", 33554432, 8)
    assert older
    assert older.bus == pytest.approx(258.2091)
    assert parse_hccl_demo("[BENCHMARK]     Bandwidth     : 0 MB/s", 33554432, 8) is None


def test_pytorchs_figures_are_read_among_other_lines() -> None:
    measurement = parse_torch(Result(0, "noise\n" + told((1 << 20, 0.001, True)), ""), "p", 9)

    assert (measurement.ranks, measurement.failure) == (2, "")
    assert measurement.figures[0].bus == pytest.approx(1.048576)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Result(1, told((1024, 0.001, False)), ""), "the sum of 1024 bytes is wrong"),
        (Result(1, "", "Traceback\nRuntimeError: NCCL error\nnoise\n"), "exit code 1: RuntimeError: NCCL error"),
        (Result(0, "nothing\n", ""), "exit code 0: nothing"),
        (Result(124, "", "no answer within 5 s"), "no answer within 5 s"),
        (Result(0, f"{MARK}[]", ""), "figures cannot be read"),
        (Result(0, f"{MARK}{{", ""), "figures cannot be read"),
        (Result(0, told((1024, 0.0, True)), ""), "figures cannot be read"),
    ],
)
def test_a_program_that_fails_says_why(result: Result, reason: str) -> None:
    assert reason in parse_torch(result, "p", 2).failure


# --- which program runs ---------------------------------------------------------------------------------------------


def test_the_vendors_test_runs_where_the_image_has_it(tmp_path: Path) -> None:
    program = tmp_path / "all_reduce_perf"
    program.write_text(f"#!{sys.executable}\nimport sys\nassert sys.argv[-2:] == ['-g', '8']\nprint({NCCL!r})\n")
    program.chmod(0o755)
    tests = read_tests({"fabric_tests": {"value": ["nccl-tests=all_reduce_perf"]}, "fabric_backend": {"value": "nccl"}})

    assert [figure.bus for figure in measure_collective(job(tests, tmp_path)).figures] == [0.09, 375.66]
    torchrun(tmp_path, f"print({told((1024, 0.001, True))!r})")
    over = measure_collective(job(tests, tmp_path, Place(0, 2, "127.0.0.1")))
    assert over.program == "torch.distributed, nccl"


def test_hccl_demo_runs_each_size_and_only_the_first_host_tells(tmp_path: Path) -> None:
    program = tmp_path / "run_hccl_demo.py"
    program.write_text(
        "import os, sys\nwords = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "assert os.getcwd() == os.path.dirname(os.path.abspath(__file__)) and os.environ['HCCL_COMM_ID'] == 'a:29501'\n"
        "assert (words['--nranks'], words['--ranks_per_node']) == ('16', '8')\n"
        f"print({HCCL!r} if words['--node_id'] == '0' else '')\n"
    )
    tests = Available("hccl", "hpu", (), {"hccl_demo": str(program)})
    first = measure_collective(job(tests, tmp_path, Place(0, 2, "a")))
    second = measure_collective(job(tests, tmp_path, Place(1, 2, "a")))

    assert [figure.bytes for figure in first.figures] == [1 << 20, 1 << 25, 1 << 28]
    assert (second.figures, second.elsewhere, second.failure) == ((), True, "")


def test_pytorch_starts_a_rank_for_each_device_at_the_first_host(tmp_path: Path) -> None:
    torchrun(tmp_path, "sys.exit(' '.join(sys.argv[1:]))")
    tests = Available("xccl", "xpu", ("one", "two"))
    failure = measure_collective(job(tests, tmp_path, Place(1, 2, "10.0.0.1", 29600), local=4)).failure

    assert "--nproc-per-node 4 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29600" in failure
    assert "-m drydock_plugin.collective --backend xccl --device xpu --imports one,two --sizes 1024," in failure


def test_an_image_without_a_test_says_so(tmp_path: Path) -> None:
    with pytest.raises(EntrypointError, match="has no /none/nccom-test") as caught:
        measure_collective(job(Available(programs={"nccom-test": "/none/nccom-test"}), tmp_path))
    assert caught.value.code == HOST


# --- this host's place ----------------------------------------------------------------------------------------------


def test_the_own_address_tells_the_place() -> None:
    assert find_place(("198.51.100.1", "127.0.0.1"), None, 1) == Place(1, 2, "198.51.100.1", 1, "198.51.100.1")
    assert find_place(("127.0.0.1", "127.0.0.2"), 0, 1) == Place(0, 2, "127.0.0.1", 1, "127.0.0.2")
    assert find_place((), None, 29501) == Place()


@pytest.mark.parametrize(
    ("peers", "rank", "reason"),
    [
        (("198.51.100.1", "198.51.100.2"), None, "none of them is this host"),
        (("127.0.0.1", "127.0.0.2"), None, "2 of them are this host"),
        (("127.0.0.1", "127.0.0.2"), 2, "--node-rank 2: expected 0 to 1, the place of this host in --peers"),
        (("127.0.0.1",), None, "--peers 127.0.0.1: expected 2 or more names"),
        ((), 3, "--node-rank 3 without --peers: expected 2 or more names"),
    ],
)
def test_a_place_that_is_not_known_is_an_error(peers: tuple[str, ...], rank: int | None, reason: str) -> None:
    with pytest.raises(EntrypointError, match=reason) as caught:
        find_place(peers, rank, 29501)
    assert caught.value.code == USAGE


def test_a_host_without_an_address_is_waited_for_and_then_named() -> None:
    assert address_of("127.0.0.1", 1, 0) == "127.0.0.1"
    with pytest.raises(EntrypointError, match=r"no-such-host\.invalid: no address within 0 s"):
        address_of("no-such-host.invalid", 1, 0)
