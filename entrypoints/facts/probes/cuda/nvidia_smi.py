"""Parses the output of nvidia-smi: table, CSV, topology, list. Pure. Tested with drivers 418 to 610.

Rows are recognised by their contents, since widths, rules and labels differ between drivers: 550 has wider bus numbers,
580 other rules, 610 prints `KMD Version` and `CUDA UMD Version`. Each parse_* raises ValueError that quotes the line it
cannot parse. Memory is in bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from entrypoints.core.parse import parse_id_list, parse_number
from entrypoints.core.records import Link
from entrypoints.facts.probes.common.printed import is_unknown
from entrypoints.facts.probes.common.tools import parse_error, strip_terminal_escapes

_DRIVER = re.compile(r"\b(?:Driver|KMD) Version:\s*([^\s|]+)")
_CUDA = re.compile(r"\bCUDA(?: \w+)? Version:\s*([^\s|]+)")
_BUS = re.compile(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b")
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]i?B|B)?$")
_USE = re.compile(r"(\d{1,15}\s*[KMGT]?i?B)\s*/\s*(\d{1,15}\s*[KMGT]?i?B)")
_FIRST = re.compile(r"(\d{1,4})\s+(\S.*)$")
_MODE = re.compile(r"(?:%|N/A)\s+([A-Z]\S{0,60}(?: \S{1,60}){0,9})$")
_SLICE = re.compile(r"(\d{1,4})\s+\S+\s+\S+\s+(\d{1,4})$")
_NOTE = re.compile(r"WARNING:|Unable to determine the device handle|.*\bhas fallen off the bus")
"""Warnings in the output that are not part of the data."""
_NO_HANDLE = re.compile(r"Unable to determine the device handle for .*|.*\bhas fallen off the bus.*")
_PAIR = re.compile(r"X|[A-Z]{2,5}\d{0,3}$")
_GPU = re.compile(r"GPU(\d{1,4})$")
_LISTED = re.compile(r"GPU (\d{1,4}): .*\(UUID: (\S+)\)$")
_LISTED_SLICE = re.compile(r"MIG (\S+)\s+Device\s+(\d{1,4}): \(UUID: (\S+)\)$")

_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LAST_WORDS = frozenset(("On", "Off", "N/A", "ERR!", "WDDM", "TCC", "MCDM"))
"""Last word of the first cell in the table: persistence mode, or on Windows the driver model."""
_COMPUTE = frozenset(("C", "M+C"))
"""Process types that compute. G is graphics only; C+G is a desktop's browser, or on Windows any process."""
_GRAPHICS = frozenset(("G", "C+G"))
_LOST = frozenset(("GPU requires reset", "Unknown Error", "GPU is lost", "ERR!"))
"""Cell contents for a GPU that no longer works."""


class Gpu(NamedTuple):
    """One GPU as the tool prints it. Unknown values are empty or None."""

    number: int
    """Its index in the tool."""
    name: str
    bus: str = ""
    """0000:8d:00.0, with a domain of four digits."""
    uuid: str = ""
    memory_total: int | None = None
    memory_used: int | None = None
    capability: str = ""
    """Compute capability: 9.0."""
    driver: str = ""
    persistence: str = ""
    """On or Off."""
    compute_mode: str = ""
    mig: bool | None = None
    health: str = ""
    """`ok`, or the error."""
    display: bool = False
    """Whether it drives a screen."""


class Slice(NamedTuple):
    """One MIG instance."""

    gpu: int
    number: int
    """Number among the instances of the GPU."""
    memory_total: int | None
    memory_used: int | None


class NvidiaSmiTable(NamedTuple):
    """The output of `nvidia-smi` without arguments."""

    driver: str
    cuda: str
    """The newest CUDA that the driver supports."""
    gpus: tuple[Gpu, ...]
    slices: tuple[Slice, ...]
    computing: frozenset[int]
    """GPUs with a computing process, of those processes that this container can see."""
    drawing: Mapping[int, int] = MappingProxyType({})
    """GPU with a process of a desktop → bytes of these processes; 0 if the tool may not read them."""


class NvidiaSmiTopology(NamedTuple):
    """The GPUs in the output of `nvidia-smi topo -m`."""

    links: tuple[Link, ...]
    cpus: Mapping[int, tuple[int, ...]]
    nodes: Mapping[int, int]


class Listed(NamedTuple):
    """One MIG instance of `nvidia-smi -L`."""

    gpu: int
    number: int
    profile: str
    uuid: str


def parse_lost(text: str) -> tuple[str, ...]:
    """Return the lines that report a lost GPU. The tool then lists only the other GPUs."""
    return tuple(line for line in map(str.strip, strip_terminal_escapes(text).splitlines()) if _NO_HANDLE.match(line))


# --- CSV ------------------------------------------------------------------------------------------------------------


def parse_query(text: str) -> tuple[Gpu, ...]:
    """Parse `--query-gpu=… --format=csv`, with or without units: a header with the columns, then one line per GPU."""
    lines = [line for line in text.splitlines() if line.strip() and not _NOTE.match(line.strip())]
    heads = ([cell.partition("[")[0].strip() for cell in line.split(",")] for line in lines)
    start, header = next((head for head in enumerate(heads) if {"index", "name"} <= set(head[1])), (0, []))
    if not header:
        raise parse_error(lines[0] if lines else text, "a header line with index and name")
    lines = lines[start:]
    if not lines[1:]:
        raise parse_error(text.strip().rpartition("\n")[2], "a line for each GPU below the header")
    return tuple(
        _parse_gpu_line(dict(zip(header, _split_csv_line(line, header), strict=True)), line) for line in lines[1:]
    )


def _split_csv_line(line: str, header: list[str]) -> list[str]:
    cells = [cell.strip().strip("[]") for cell in line.split(",")]
    if len(cells) != len(header):
        raise parse_error(line, f"{len(header)} values: {', '.join(header)}")
    return cells


def _parse_gpu_line(cells: Mapping[str, str], line: str) -> Gpu:
    """Return the GPU of one line. A value in brackets is a note of the tool; `_split_csv_line` removed the brackets."""
    values = {name: "" if is_unknown(value) or value in _LOST else value for name, value in cells.items()}
    try:
        errors = parse_number(values.get("ecc.errors.uncorrected.volatile.total") or "0")
        return Gpu(
            number=parse_number(cells["index"]),
            name=values["name"],
            bus=_shorten_domain(values.get("pci.bus_id", "")),
            uuid=values.get("uuid", ""),
            memory_total=_parse_mib(values.get("memory.total", "")),
            memory_used=_parse_mib(values.get("memory.used", "")),
            capability=values.get("compute_cap", ""),
            driver=values.get("driver_version", ""),
            persistence={"Enabled": "On", "Disabled": "Off"}.get(values.get("persistence_mode", ""), ""),
            compute_mode=values.get("compute_mode", ""),
            mig={"Enabled": True, "Disabled": False}.get(values.get("mig.mode.current", "")),
            health=_describe_gpu_health(_lost_states(cells), errors),
        )
    except ValueError as error:
        raise parse_error(line, f"{error} in the columns {', '.join(cells)}") from error


def _lost_states(cells: Mapping[str, str]) -> set[str]:
    """Return the states that say that a GPU no longer works. A single value can have an unknown error by itself."""
    states = set(cells.values()) & _LOST
    return states if cells.get("memory.total", "") in _LOST else states - {"Unknown Error", "ERR!"}


def _describe_gpu_health(lost_states: set[str] | frozenset[str], errors: int) -> str:
    if lost_states:
        return min(lost_states)
    return f"{errors} uncorrected ECC errors" if errors else "ok"


def _parse_mib(text: str) -> int | None:
    """Parse `81559 MiB`, or `81559`, which is also in MiB; None if the text is empty."""
    if not text:
        return None
    match = _SIZE.match(text)
    if not match:
        raise ValueError("a memory size in MiB")
    return int(match[1]) * _UNITS[(match[2] or "MiB")[0]]


def _shorten_domain(text: str) -> str:
    """Return a PCI address as the kernel writes it: a domain of four digits, in lower case."""
    domain, colon, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if colon else ""


# --- table ----------------------------------------------------------------------------------------------------------


def parse_nvidia_table(text: str) -> NvidiaSmiTable:
    """Parse the table that `nvidia-smi` prints without arguments."""
    driver, cuda = _DRIVER.search(text), _CUDA.search(text)
    if not driver:
        raise parse_error(text.strip().partition("\n")[0], "a line with `Driver Version:` or `KMD Version:`")
    parts = _split_table_parts(text)
    gpus = tuple(_parse_gpu_rows(rows) for rows in _group_gpu_rows(parts["GPU"]))
    if not gpus:
        raise parse_error(text.strip().rpartition("\n")[2], "a row for each GPU")
    newest = "" if cuda is None or is_unknown(cuda[1]) else cuda[1]
    processes = parts["Processes"]
    return NvidiaSmiTable(
        driver[1],
        newest,
        gpus,
        _parse_mig_slices(parts["MIG"]),
        _find_computing_gpus(processes),
        _sum_desktop_memory(processes),
    )


def _split_table_parts(text: str) -> dict[str, list[str]]:
    """Return the rows of the three parts of the table, without frame and rules."""
    parts: dict[str, list[str]] = {"GPU": [], "MIG": [], "Processes": []}
    part = "GPU"
    for line in text.splitlines():
        row = line.strip()
        if not row.startswith("|") or not set(row) - set("|-+= "):
            continue
        if "MIG devices:" in row or "Processes:" in row:
            part = "MIG" if "MIG devices:" in row else "Processes"
            continue
        parts[part].append(row.strip("|"))
    return parts


def _group_gpu_rows(rows: list[str]) -> Iterator[list[str]]:
    """Yield the rows of each GPU: the row that begins with its number, and those below it."""
    group: list[str] = []
    for row in rows:
        if _FIRST.match(row.partition("|")[0].strip()):
            if group:
                yield group
            group = [row]
        elif group:
            group.append(row)
    if group:
        yield group


def _parse_gpu_rows(rows: list[str]) -> Gpu:
    """Return the GPU of these rows."""
    cells = [cell.strip() for row in rows for cell in row.split("|")]
    first, bus = _FIRST.match(cells[0]), _BUS.search(rows[0])
    words = first[2].split() if first else []
    if not first or not words:
        raise parse_error(rows[0], "a GPU's number and name")
    uses = [match for cell in cells if (match := _USE.search(cell))]
    if len(rows) < 2:  # noqa: PLR2004 - the memory is in the second row, or the tool may not read it
        raise parse_error(rows[0], "a row below it with the cell `used / total` memory")
    modes = [match[1] for cell in cells if (match := _MODE.search(cell))]
    errors = next((int(cell) for cell in cells[1:] if cell.isdecimal() and len(cell) < 10), 0)  # noqa: PLR2004
    return Gpu(
        number=int(first[1]),
        name=" ".join(words[:-1] if words[-1] in _LAST_WORDS and len(words) > 1 else words),
        bus=_shorten_domain(bus[0]) if bus else "",
        memory_total=_parse_mib(uses[0][2]) if uses else None,
        memory_used=_parse_mib(uses[0][1]) if uses else None,
        persistence=words[-1] if words[-1] in ("On", "Off") else "",
        compute_mode=modes[-1] if modes else "",
        mig={"Enabled": True, "Disabled": False}.get(cells[-1]),
        health=_describe_gpu_health({"ERR!"} if "ERR!" in cells[1:] else frozenset(), errors),
        display=bus is not None and rows[0][bus.end() :].split()[:1] == ["On"],
    )


def _parse_mig_slices(rows: list[str]) -> tuple[Slice, ...]:
    """Return the MIG instances: a row of GPU, GI, CI and device numbers, and of memory that may be N/A."""
    slices = []
    for row in rows:
        numbers, use = _SLICE.match(row.partition("|")[0].strip()), _USE.search(row)
        if numbers:
            sizes = (_parse_mib(use[2]), _parse_mib(use[1])) if use else (None, None)
            slices.append(Slice(int(numbers[1]), int(numbers[2]), *sizes))
    return tuple(slices)


def _find_computing_gpus(rows: list[str]) -> frozenset[int]:
    """Return the GPUs with a process of a computing type. The server of MPS only passes on what others compute."""
    words = (row.split() for row in rows if "nvidia-cuda-mps-server" not in row)
    return frozenset(
        parse_number(row[0])
        for row in words
        if row and len(row[0]) < 5 and row[0].isdecimal() and _COMPUTE & set(row)  # noqa: PLR2004
    )


def _sum_desktop_memory(rows: list[str]) -> dict[int, int]:
    """Return the bytes that processes of a desktop use on each GPU; N/A counts as none."""
    sizes: dict[int, int] = {}
    for words in map(str.split, rows):
        if words and len(words[0]) < 5 and words[0].isdecimal() and _GRAPHICS & set(words):  # noqa: PLR2004
            size = 0 if is_unknown(words[-1]) else _parse_mib(words[-1]) or 0
            sizes[int(words[0])] = sizes.get(int(words[0]), 0) + size
    return sizes


# --- topology -------------------------------------------------------------------------------------------------------


def parse_nvidia_topology(text: str) -> NvidiaSmiTopology:
    """Parse `topo -m`: a matrix with columns of GPUs and network cards, then CPU and NUMA affinity.

    The tool underlines the header with escape sequences, also when it prints to a pipe.
    """
    lines = [line for line in strip_terminal_escapes(text).splitlines() if line.strip()]
    start = next((number for number, line in enumerate(lines) if _GPU.match(line.split()[0])), None)
    if start is None:
        raise parse_error(lines[0] if lines else text, "a header GPU0 GPU1 …")
    columns = lines[start].partition("CPU Affinity")[0].split()
    gpus = [name for name in columns if _GPU.match(name)]
    rows = {line.split()[0]: line for line in lines[start + 1 :] if line.split()[0] in gpus}
    missing = [name for name in gpus if name not in rows]
    if missing:
        raise parse_error(lines[start], f"a row for {missing[0]}")
    cells = {name: _split_topology_row(rows[name], columns) for name in gpus}
    numbers = {name: parse_number(name.removeprefix("GPU")) for name in gpus}
    positions = {name: number for number, name in enumerate(columns)}
    links = (
        Link(numbers[one], numbers[peer], cells[one][positions[peer]])
        for one in gpus
        for peer in gpus
        if numbers[one] < numbers[peer]
    )
    affinities = {numbers[name]: cells[name][len(columns) :] for name in gpus}
    near = {
        number: parse_id_list(words[0]) for number, words in affinities.items() if words and words[0][0].isdecimal()
    }
    nodes = {number: int(words[1]) for number, words in affinities.items() if len(words) > 1 and _is_small(words[1])}
    return NvidiaSmiTopology(tuple(links), near, nodes)


def _split_topology_row(line: str, columns: list[str]) -> list[str]:
    """Return the words of a GPU's row after its name: one per column, X for itself, then affinities."""
    name, *cells = line.split()
    position = columns.index(name)
    pairs = cells[: len(columns)]
    if len(pairs) < len(columns) or pairs[position] != "X" or not all(map(_PAIR.match, pairs)):
        raise parse_error(line, f"a kind of link for each of {', '.join(columns)}, and X for itself")
    return cells


def _is_small(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) < 5  # noqa: PLR2004 - a NUMA node's number


# --- list -----------------------------------------------------------------------------------------------------------


def parse_list(text: str) -> tuple[Listed, ...]:
    """Parse the MIG instances in the output of `nvidia-smi -L`, which lists them below their GPU."""
    devices: list[Listed] = []
    gpu: int | None = None
    for line in (line for line in text.splitlines() if line.strip() and not _NOTE.match(line.strip())):
        card, part = _LISTED.match(line.strip()), _LISTED_SLICE.match(line.strip())
        if card:
            gpu = int(card[1])
        elif part and gpu is not None:
            devices.append(Listed(gpu, int(part[2]), part[1], part[3]))
        elif gpu is not None or "GPU" in line:
            raise parse_error(line, "`GPU 0: … (UUID: …)`, and `MIG … Device 0: (UUID: …)` below it")
    return tuple(devices)


_NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
"""The cluster of GPUs that NVLink joins inside one host only, such as an HGX H100."""


def parse_fabric(text: str) -> str:
    """Parse the fabric in the output of `nvidia-smi -q`: its cluster and clique, if all GPUs are ready in the same one.

    GPUs of one cluster and clique reach each other over NVLink, also those of other hosts. Empty if they are in none,
    or not ready. Source: NVIDIA, IMEX service guide for NVLink networks (State, Status, CliqueId, ClusterUUID).
    """
    fields: list[dict[str, str]] = []
    depth = -1
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        indent = len(line) - len(line.lstrip())
        if name == "Fabric" and not value:
            fields.append({})
            depth = indent
        elif depth >= 0 and name and indent <= depth:
            depth = -1
        elif depth >= 0 and value:
            fields[-1].setdefault(name.lower(), value)
    places = {_read_fabric_place(gpu_fields) for gpu_fields in fields}
    return places.pop() if len(places) == 1 else ""


def _read_fabric_place(fabric: Mapping[str, str]) -> str:
    """Return one GPU's cluster and clique; empty if it is in none, or not ready."""
    cluster, clique = fabric.get("clusteruuid", ""), fabric.get("cliqueid", "")
    is_ready = fabric.get("state") == "Completed" and fabric.get("status", "Success") == "Success"
    is_named = re.fullmatch(r"[0-9a-fA-F-]{36}", cluster) and clique.isdecimal() and cluster != _NO_CLUSTER
    return f"{cluster}/{clique}" if is_ready and is_named else ""
