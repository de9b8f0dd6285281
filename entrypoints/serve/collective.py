"""`fabric`: an all-reduce over the devices of one or several hosts, timed: by the vendor's test, or by PyTorch. IO.

The vendor's test runs where the image has it. Otherwise `torchrun` starts one rank for each device, which runs
drydock_plugin.collective on the backend that vLLM uses in this image. The bandwidth is nccl-tests' bus bandwidth: the
bytes of an all-reduce per second, times 2 (n - 1) / n for n ranks, so that it does not depend on n. Source:
NVIDIA/nccl-tests, doc/PERFORMANCE.md.

Each host runs the same command. The first of --peers is where the ranks meet.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from entrypoints.core.errors import HOST, USAGE, EntrypointError
from entrypoints.core.parse import parse_untrusted_json
from entrypoints.host.host import Result

SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
"""Bytes per rank; the smallest shows the latency, the largest the bandwidth."""
LARGE = 1 << 28
"""In addition, of devices: the size of which Intel publishes figures."""
PORT = 29501
"""Where the ranks meet: vLLM's own default of --master-port."""
MEASURING = 240.0
"""Seconds for starting the ranks and measuring, in addition to waiting for the other hosts."""
MARK = "drydock-collective "
"""As drydock_plugin.collective.MARK."""
_LINES_TOLD = 3
_AGAIN = 0.3
"""Seconds between two questions for an address."""


class Place(NamedTuple):
    """Where this host is among those that measure together."""

    rank: int = 0
    hosts: int = 1
    address: str = "127.0.0.1"
    """Of the first host."""
    port: int = PORT
    other: str = ""
    """Of another host: the second one on the first host, else the first."""


class Available(NamedTuple):
    """How an image measures: data of its accelerator and stack."""

    backend: str = ""
    """Of torch.distributed; empty if PyTorch reaches no collectives of this accelerator."""
    device: str = "cpu"
    """PyTorch's name of the device."""
    imports: tuple[str, ...] = ()
    """Modules that register the device and the backend."""
    programs: Mapping[str, str] = {}
    """Vendors' tests by their format (_VENDORS) → the program."""


class Figure(NamedTuple):
    """The time of one size."""

    bytes: int
    seconds: float
    bus: float
    """GB/s."""


class Measured(NamedTuple):
    """What was measured, and by what."""

    program: str
    ranks: int
    figures: tuple[Figure, ...] = ()
    failure: str = ""
    """Why there are no figures, or not all."""
    elsewhere: bool = False
    """Whether the program prints its figures on the first host only."""


class Job(NamedTuple):
    """One measurement on this host."""

    tests: Available
    place: Place
    local: int
    """Ranks on this host: its devices."""
    python: str
    plugin: str
    """The folder of drydock_plugin."""
    env: Mapping[str, str]
    wait: float
    """Seconds for the other hosts to begin."""

    @property
    def ranks(self) -> int:
        """The ranks of all hosts, if all are like this one."""
        return self.local * self.place.hosts


def read_tests(table: Mapping[str, Mapping[str, Any]]) -> Available:
    """Return how the image measures, from the profile's thresholds."""

    def value(name: str, default: Any) -> Any:
        return table[name]["value"] if name in table else default

    programs = dict(str(words).split("=", 1) for words in value("fabric_tests", ()))
    device, imports = str(value("fabric_device", "cpu")), tuple(map(str, value("fabric_imports", ())))
    return Available(str(value("fabric_backend", "")), device, imports, programs)


def find_place(names: tuple[str, ...], rank: int | None, port: int) -> Place:
    """Return this host's place among `names`, all hosts in the same order everywhere. Raises USAGE.

    It is the one whose address this host can bind to, unless `rank` says it.
    """
    if not names and rank is None:
        return Place(port=port)
    peers = f"--peers {','.join(names)}" if names else f"--node-rank {rank} without --peers"
    if len(names) < 2:  # noqa: PLR2004 - this host and another
        hint = "name all hosts, this one too, in the same order on every host"
        raise EntrypointError(USAGE, f"{peers}: expected 2 or more names or addresses, separated by commas", hint)
    last = len(names) - 1
    if rank is not None and rank > last:
        raise EntrypointError(USAGE, f"--node-rank {rank}: expected 0 to {last}, the place of this host in --peers")
    own_places = [place for place, name in enumerate(names) if _is_own(name)] if rank is None else [rank]
    if len(own_places) != 1:
        problem = "none of them is" if not own_places else f"{len(own_places)} of them are"
        hint = f"name this host too, in the same place on every host, or give its place: --node-rank 0 to {last}"
        raise EntrypointError(USAGE, f"{peers}: {problem} this host", hint)
    return Place(own_places[0], len(names), names[0], port, names[0 if own_places[0] else 1])


def _is_own(name: str) -> bool:
    """Return whether a name is an address of this host: one that a socket can be bound to."""
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_bind(family, str(address[0])) for family, _, _, _, address in addresses)


def _can_bind(family: int, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def address_of(name: str, port: int, wait: float) -> str:
    """Return the address of another host, whose name a container's network knows once it runs. Raises USAGE."""
    import time

    due = time.monotonic() + wait
    while True:
        try:
            return str(socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4][0])
        except (OSError, UnicodeError) as error:
            if time.monotonic() > due:
                reason = getattr(error, "strerror", None) or error
                message = f"--peers: {name}: no address within {wait:g} s: {reason}"
                raise EntrypointError(USAGE, message, "start the same command there, or give its address") from error
        time.sleep(_AGAIN)


def measure_collective(job: Job) -> Measured:
    """Measure with the vendor's test if the image has it, else with PyTorch. Raises HOST."""
    for form, program in job.tests.programs.items():
        path = _find_installed_program(program, job.env)
        if path and (job.place.hosts == 1 or form in _OVER_HOSTS):
            return _VENDORS[form](job, path)
    if not job.tests.backend:
        missing = ", ".join(job.tests.programs.values()) or "a collective test"
        message = f"fabric: this image has no {missing}, and PyTorch has no backend for this accelerator"
        raise EntrypointError(HOST, message, "docs/container.md, Measure the fabric, says which images have one")
    return _measure_with_torch(job)


def _find_installed_program(program: str, env: Mapping[str, str]) -> str:
    """Return the path of a program or of a script of Python; empty if the image has none."""
    from shutil import which

    return program if os.path.isfile(program) else which(program, path=env.get("PATH")) or ""


def _run_measuring(job: Job, argv: tuple[str, ...], env: Mapping[str, str] = {}, folder: str | None = None) -> Result:
    from entrypoints.host.commands import run_live

    return run_live(argv, job.wait + MEASURING, {**job.env, **env}, folder)


def _describe_failure(result: Result) -> str:
    """Return why a program failed: its exit code and its last lines."""
    lines = [line.strip() for line in (result.stderr or result.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b", line)]
    return f"exit code {result.rc}: {' / '.join((errors or lines)[-_LINES_TOLD:])[:1000] or 'no output'}"


def compute_bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """Return nccl-tests' bus bandwidth of an all-reduce in GB/s."""
    return size / seconds * 2 * (ranks - 1) / ranks / 1e9


# --- PyTorch --------------------------------------------------------------------------------------------------------


def _measure_with_torch(job: Job) -> Measured:
    place, tests = job.place, job.tests
    sizes = (*SIZES, LARGE) if tests.device != "cpu" else SIZES
    meeting = (
        ("--nnodes", str(place.hosts), "--node-rank", str(place.rank), "--master-addr", place.address)
        if place.hosts > 1
        else ("--nnodes", "1", "--master-addr", "127.0.0.1")
    )
    argv = (
        *(job.python, "-m", "torch.distributed.run", "--nproc-per-node", str(job.local), *meeting),
        *("--master-port", str(place.port), "--rdzv-conf", f"timeout={max(1, int(job.wait))}"),
        *("-m", "drydock_plugin.collective", "--backend", tests.backend, "--device", tests.device),
        *("--imports", ",".join(tests.imports), "--sizes", ",".join(map(str, sizes))),
    )
    path = f"{job.plugin}:{job.env['PYTHONPATH']}" if job.env.get("PYTHONPATH") else job.plugin
    result = _run_measuring(job, argv, {"PYTHONPATH": path, "OMP_NUM_THREADS": job.env.get("OMP_NUM_THREADS", "1")})
    program = f"torch.distributed, {tests.backend}"
    return parse_torch(result, program, job.ranks)


def parse_torch(result: Result, program: str, ranks: int) -> Measured:
    """Read what drydock_plugin.collective printed."""
    lines = [line.partition(MARK)[2] for line in result.stdout.splitlines() if MARK in line]
    try:
        report = parse_untrusted_json(lines[-1]) if lines else {}
        ranks = int(report.get("ranks", ranks))
        figures = tuple(_make_figure(figure, ranks) for figure in report.get("figures", ()))
        wrong = [figure["bytes"] for figure in report.get("figures", ()) if not figure["right"]]
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError) as error:
        return Measured(program, ranks, failure=f"figures cannot be read: {error!r}")
    if wrong:
        return Measured(program, ranks, figures, f"the sum of {wrong[0]} bytes is wrong")
    if result.rc or not figures:
        return Measured(program, ranks, figures, _describe_failure(result))
    return Measured(program, ranks, figures)


def _make_figure(fields: Mapping[str, Any], ranks: int) -> Figure:
    size, seconds = int(fields["bytes"]), float(fields["seconds"])
    return Figure(size, seconds, compute_bus_bandwidth(size, seconds, ranks))


# --- vendors' tests -------------------------------------------------------------------------------------------------


def _nccl_tests(job: Job, path: str) -> Measured:
    """nccl-tests, and rccl-tests: one process drives all devices of the host."""
    argv = (path, "-b", str(SIZES[0]), "-e", str(LARGE), "-f", "16", "-g", str(job.local))
    result = _run_measuring(job, argv)
    figures = tuple(parse_nccl_tests(result.stdout))
    failure = _describe_failure(result) if result.rc or not figures else ""
    return Measured(os.path.basename(path), job.local, figures, failure)


def parse_nccl_tests(text: str) -> Iterator[Figure]:
    """Read the out-of-place columns: size, count, type, operation, root, time in microseconds, algbw, busbw."""
    row = re.compile(r"\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)\s")
    for match in filter(None, map(row.match, text.splitlines())):
        yield Figure(int(match[1]), float(match[2]) / 1e6, float(match[3]))


def _nccom_test(job: Job, path: str) -> Measured:
    """nccom-test of Neuron: `allr` over the logical cores."""
    result = _run_measuring(
        job, (path, "-r", str(job.local), "-b", str(SIZES[0]), "-e", str(LARGE), "-f", "16", "allr")
    )
    figures = tuple(parse_nccom_test(result.stdout))
    failure = _describe_failure(result) if result.rc or not figures else ""
    return Measured(os.path.basename(path), job.local, figures, failure)


def parse_nccom_test(text: str) -> Iterator[Figure]:
    """Read its columns: size, count, type, time in microseconds, algbw, busbw."""
    row = re.compile(r"\s*(\d+)\s+\d+\s+[a-z]+\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)\s*$")
    for match in filter(None, map(row.match, text.splitlines())):
        yield Figure(int(match[1]), float(match[2]) / 1e6, float(match[3]))


HCCL_DEMO_SIZES = (1 << 20, 1 << 25, 1 << 28)
"""Its readme measures 32 MB, Intel's documentation 256 MB."""


def _hccl_demo(job: Job, path: str) -> Measured:
    """hccl_demo of Gaudi: it runs one size, and prints the bandwidth on the first host."""
    figures: list[Figure] = []
    for size in HCCL_DEMO_SIZES:
        argv = (
            *(job.python, path, "--test", "all_reduce", "--size", str(size), "--loop", "100"),
            *("--nranks", str(job.ranks), "--ranks_per_node", str(job.local), "--node_id", str(job.place.rank)),
        )
        meeting = {"HCCL_COMM_ID": f"{job.place.address}:{job.place.port}"}
        result = _run_measuring(job, argv, meeting, os.path.dirname(path))
        figure = parse_hccl_demo(result.stdout, size, job.ranks)
        if result.rc or not (figure or job.place.rank):
            return Measured("hccl_demo", job.ranks, tuple(figures), _describe_failure(result))
        figures += [figure] if figure else []
    return Measured("hccl_demo", job.ranks, tuple(figures), elsewhere=not figures)


def parse_hccl_demo(text: str, size: int, ranks: int) -> Figure | None:
    """Read the network bandwidth, which is nccl-tests' bus bandwidth: algorithm bandwidth times 2 (n - 1) / n."""
    match = re.search(r"\[BENCHMARK\]\s+(?:NW )?Bandwidth\s*:\s*([\d.]+)\s*([KMG]?)B/s", text)
    if not match or not float(match[1]):
        return None
    speed = float(match[1]) * {"": 1e-9, "K": 1e-6, "M": 1e-3, "G": 1}[match[2]]
    return Figure(size, size * 2 * (ranks - 1) / ranks / (speed * 1e9), speed)


_VENDORS = {"nccl-tests": _nccl_tests, "nccom-test": _nccom_test, "hccl_demo": _hccl_demo}
_OVER_HOSTS = ("hccl_demo",)
"""The others need MPI, or agents on every host."""
