"""Which machines serve a model, and how: the entrypoint's plan on each recorded host, in a row. IO.

It answers what is asked before hardware is bought or borrowed. Each plan is what the image would decide there if the
machine were idle and whole (`plan --idle`): another process that ran when it was recorded says nothing of its kind.
"""

from __future__ import annotations

import functools
import io
import math
import os
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table

from drydock.config.matrix import find_variant, read_matrix
from drydock.config.strict_yaml import read_yaml
from drydock.core.errors import HostError, InputError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.core.user_language import translate_lines
from drydock.inputs import model_images
from drydock.model.checks import Findings, list_findings_about
from drydock.model.variant import Variant
from drydock.run import auto, entrypoint
from drydock.topology.init import find_hosts
from drydock.topology.topology_arguments import describe_split, read_flag_number
from entrypoints.checks.findings import ASKER_FACTS
from entrypoints.core.parse import format_id_list
from entrypoints.core.text import format_count

HOSTS = ROOT / "tests" / "hosts"
"""Recorded hosts that come with drydock, each in a folder ACCELERATOR-MACHINE."""
ROWS_OF_HOSTS = "rows.yaml"
"""File there with the rows of hosts that the accelerator's default does not serve, and with those that are odd."""
COUNTS = (1, 2, 4, 8, 16)
"""Equal machines that are tried for one server."""
_ADDRESS = "192.0.2.1"
"""Of the first of several machines, which are imagined: from the range for documentation, RFC 5737."""
_ENGINES, _SEQUENCES, _LENGTH = "--data-parallel-size", "--max-num-seqs", "--max-model-len"
MEMORY, SPLIT, RULE = "memory", "split", "rule"
"""What limits a length or a number of requests: the devices' memory; devices that no split uses; a number that the
model's own length does not give, such as --max-num-seqs."""
_OWN_LENGTH = "the model's own length"
"""How a reason begins that sets the length which vLLM would take anyway."""
_SEVERITIES = ("FAIL", "UNKNOWN", "WARN", "INFO")

Ask = Callable[[Sequence[str]], Any]
"""Words after `plan` → what `plan --json` prints. Raises DoesNotFitError, HostError and InputError."""


class Recorded(NamedTuple):
    """A recorded host, and the image that serves there."""

    name: str
    path: Path
    variant: Variant


class Capacity(NamedTuple):
    """How a machine, or several equal ones, serve a model."""

    machine: str
    devices: str
    variant: str
    hosts: int = 0
    """Machines for one server; 0 if it is not served."""
    split: str = ""
    """Parallelism: tp4 tensor, pp2 pipeline, dp2 data parallel, ep experts whole on each rank."""
    why: str = ""
    """Why this split, in a line."""
    length: int = 0
    """Tokens of the longest sequence, prompt and answer; 0 if only vLLM knows."""
    length_limit: str = ""
    """MEMORY or RULE; empty for the model's own length."""
    requests: int = 0
    """Sequences of that length at a time; 0 if only vLLM knows."""
    requests_limit: str = ""
    """MEMORY, SPLIT or RULE; empty if only vLLM knows."""
    tokens: int = 0
    """Tokens that the KV cache holds; 0 if only vLLM knows."""
    finding: str = ""
    """The worst finding: severity and id; empty if there is none."""
    because: str = ""
    """Why it is not served."""
    is_too_small: bool = False
    """Whether it is not served because the model does not fit the memory."""
    device_count: int = 0
    """Devices of one machine; 0 if it has none."""
    memory: int = 0
    """Bytes of memory of one machine's devices, or of the machine if it has none."""
    servers: int = 1
    """Such servers that the machine's devices are enough for."""
    larger: str = ""
    """The next larger choice: more servers on the machine, or more machines, with the requests; empty for none."""
    asked: int = 0
    """Requests at a time that are needed; 0 without --requests."""
    needed_servers: int = 0
    """Such servers that answer these; 0 without --requests, or if only vLLM knows."""
    needed_machines: int = 0
    """Machines of these servers."""
    in_use: tuple[int, ...] = ()
    """Devices that were not healthy or free when the machine was recorded; it is planned as if they were."""


def list_recorded_machines(project: Project, folder: str = "") -> list[Recorded]:
    """Return the recorded hosts of a folder, each with the variant of `--target auto`; without one those of drydock.

    Of drydock's own those are left out that are for tests only. Raises InputError and HostError.
    """
    if folder:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            hosts = sorted(find_hosts(Path(folder)).items())
            variants = pool.map(lambda host: auto.resolve_target(project, auto.AUTO, str(host[1])), hosts)
            return [Recorded(name, path, variant) for (name, path), variant in zip(hosts, variants, strict=True)]
    variants_of = read_matrix(project)
    machines = []
    for path in sorted(HOSTS.glob("*/host.json")):
        row = read_rows_of_hosts().get(path.parent.name, {})
        if "odd" not in row:
            target = row.get("served", path.parent.name.partition("-")[0])
            machines.append(Recorded(path.parent.name, path, find_variant(variants_of, target)))
    return machines


@functools.cache
def read_rows_of_hosts() -> Mapping[str, Mapping[str, str]]:
    """Return host → planned, served or odd, as the file's comment explains them."""
    rows: Mapping[str, Mapping[str, str]] = read_yaml(HOSTS / ROWS_OF_HOSTS, ROWS_OF_HOSTS).data
    return rows


def size_machines(
    project: Project, model: str, machines: Iterable[Recorded], words: Sequence[str] = (), requests: int = 0
) -> list[Capacity]:
    """Return how each machine serves a model; `words` are more flags of `plan`, `requests` are needed at a time.

    Raises InputError and HostError.
    """
    plan_words = model_images.replace_model_address(("--model", model, *words))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = [*pool.map(lambda machine: _size_machine(project, machine, plan_words), machines)]
    reasons = Counter(row.because for row in rows if not (row.hosts or row.is_too_small))
    for because, count in reasons.most_common(1):
        if not any(row.hosts for row in rows) and count > len(rows) // 2:
            raise InputError(because, hint="name the folder with the model's config.json instead of its hub id")
    return sorted((count_servers(row, requests) for row in rows), key=_order_by_cost)


def count_servers(row: Capacity, requests: int) -> Capacity:
    """Return a row with the servers, and their machines, that answer so many requests of its length at a time."""
    row = row._replace(asked=requests)
    if not (requests and row.hosts and row.requests):
        return row
    servers = math.ceil(requests / row.requests)
    return row._replace(needed_servers=servers, needed_machines=math.ceil(servers / row.servers) * row.hosts)


def _order_by_cost(row: Capacity) -> tuple[Any, ...]:
    """Return the order in which a buyer looks: what one server answers, the fewest machines and devices, most requests.

    A machine without devices computes on its processors, which is slower: it comes after the others.
    """
    is_enough = not row.asked or row.needed_servers == 1
    machines = row.needed_machines or row.hosts
    return (
        *(not row.hosts, not is_enough, bool(row.asked) and not row.needed_servers, machines),
        *(not row.device_count, row.device_count, -row.requests, row.machine),
    )


def _size_machine(project: Project, machine: Recorded, words: Sequence[str]) -> Capacity:
    root = ("--root", str(machine.path))

    def ask(more: Sequence[str]) -> Any:
        plan = ("plan", "--json", "--idle", *root, *words, *more)
        return entrypoint.answer_for_container(project, machine.variant, plan, {})

    facts = entrypoint.ask_entrypoint(project, machine.variant, "facts", str(machine.path))
    memory = sum(device["memory_total"] or 0 for device in facts["devices"]) or facts["memory"]["total"]
    empty = Capacity(machine.name, describe_devices(facts), machine.variant.id)
    empty = empty._replace(
        device_count=len(facts["devices"]), memory=memory, in_use=find_devices_in_use(facts["devices"])
    )
    asides = list_asides(machine.variant)
    fewest = find_fewest_hosts(empty, ask, machine.variant.findings, asides)
    return fewest._replace(larger=_find_larger(fewest, ask, asides)) if fewest.hosts else fewest


def list_asides(variant: Variant) -> frozenset[str]:
    """Return the ids of findings that say nothing of a kind of machine: of clients, and of the container that asks."""
    findings = variant.findings
    of_start = {check.id for check in variant.checks if check.fact.startswith(ASKER_FACTS)}
    return list_findings_about(findings, "clients") | list_findings_about(findings, "asker") | of_start


def find_devices_in_use(devices: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """Return the numbers of the devices that another process holds, or that are not healthy."""
    return tuple(device["number"] for device in devices if device["busy"] or device["health"].lower() not in ("", "ok"))


def find_fewest_hosts(empty: Capacity, ask: Ask, findings: Findings, asides: Collection[str] = ()) -> Capacity:
    """Return how the fewest of equal machines serve a model; `empty` names them. Raises InputError.

    `findings`: the variant's; `asides` are ids of those that are no machine's worst. A plan that no list confirms does
    not do: who buys hardware for it needs more than that. One that nearly does not fit does only if no more machines
    help.
    """
    because, is_too_small, tight = "", False, None
    unconfirmed, tight_ids = list_findings_about(findings, "unconfirmed"), list_findings_about(findings, "tight")
    for count in COUNTS:
        try:
            plan = ask(_name_hosts(count))
        except entrypoint.DoesNotFitError as error:
            because, is_too_small = error.problems[0], True
        except (HostError, InputError) as error:
            if count == 1 and isinstance(error, InputError):
                raise
            because = because or error.problems[0]
            break  # another number of machines does not help
        else:
            doubt = next((finding for finding in plan["findings"] if finding["id"] in unconfirmed), None)
            if doubt:
                return empty._replace(because=f"{doubt['found']}: {doubt['text']}")
            capacity = _make_capacity(empty, plan, count, asides)
            if tight_ids.isdisjoint(finding["id"] for finding in plan["findings"]):
                return capacity
            tight = tight or capacity
    return tight or empty._replace(because=because, is_too_small=is_too_small)


def _name_hosts(count: int) -> tuple[str, ...]:
    return ("--nnodes", str(count), "--node-rank", "0", "--master-addr", _ADDRESS) if count > 1 else ()


def _find_larger(fewest: Capacity, ask: Ask, asides: Collection[str]) -> str:
    """Return the next larger choice: further servers on devices that no split uses, else twice the machines."""
    if fewest.requests_limit == SPLIT and fewest.servers > 1:
        return f"{fewest.servers} servers, {fewest.servers * fewest.requests:,}"
    count = 2 * fewest.hosts
    if count > COUNTS[-1]:
        return ""
    try:
        plan = ask(_name_hosts(count))
    except (HostError, InputError):  # the image serves on one host only: another server, behind a router
        return f"{count} servers, {2 * fewest.requests:,}" if fewest.requests else ""
    larger = _make_capacity(fewest, plan, count, asides)
    return f"{count} x {larger.split}, {larger.requests or '?':,}"


def _make_capacity(empty: Capacity, plan: Mapping[str, Any], hosts: int, asides: Collection[str]) -> Capacity:
    """Return how `hosts` machines serve by this plan; of its findings, `asides` say nothing of a machine."""
    argv, uses = plan["argv"], plan["uses"]
    engines = read_flag_number(argv, _ENGINES)
    length, tokens = (uses[0]["length"], uses[0]["tokens"]) if uses else (0, 0)
    requests = tokens // length if length else 0
    most = read_flag_number(argv, _SEQUENCES) if _SEQUENCES in argv else requests
    serving = len({use["number"] for use in uses})
    servers = empty.device_count // serving if hosts == 1 and 0 < serving < empty.device_count else 1
    wrong = [
        finding for finding in plan["findings"] if finding["severity"] in _SEVERITIES and finding["id"] not in asides
    ]
    worst = min(wrong, key=lambda finding: _SEVERITIES.index(finding["severity"]), default=None)
    reasons = {reason["setting"]: reason["because"] for reason in plan["reasons"]}
    return empty._replace(
        hosts=hosts,
        split=describe_split(argv),
        why=_explain_split(reasons, hosts),
        length=length,
        length_limit=_find_length_limit(reasons, requests) if length else "",
        requests=min(requests, most) * engines,  # a request lives in one engine
        requests_limit=(RULE if most < requests else SPLIT if servers > 1 else MEMORY) if requests else "",
        tokens=tokens * engines,
        finding=f"{worst['severity']} {worst['id']}" if worst else "",
        servers=servers,
    )


def _explain_split(reasons: Mapping[str, str], hosts: int) -> str:
    """Return why a plan has its split, in a line: the first part of the reason for the ranks."""
    because = reasons.get("--tensor-parallel-size", "one rank has the whole machine").partition("; ")[0]
    if hosts > 1:
        return f"fewer machines are too small; tensor parallelism: {re.split('[,:]', because)[0]}"
    return re.sub("^--optimize [a-z]+: ", "", because).partition(": ")[0]


def _find_length_limit(reasons: Mapping[str, str], requests: int) -> str:
    """Return what limits the length: memory, if one request fills the KV cache; empty if it is the model's own."""
    because = reasons.get(_LENGTH, _OWN_LENGTH)
    if because.startswith(_OWN_LENGTH):
        return ""
    return MEMORY if requests == 1 else RULE


def describe_devices(facts: Mapping[str, Any]) -> str:
    """Return the devices of a machine in words, such as 8 x NVIDIA H100 80GB HBM3; the processor if there is none."""
    kinds: dict[str, int] = {}
    for device in facts["devices"]:
        name = str(device["name"] or device["architecture"])
        kinds[name] = kinds.get(name, 0) + 1
    processor = facts["processor"]["model"] or facts["processor"]["architecture"]
    return ", ".join(f"{count} x {name}" for name, count in kinds.items()) or f"{len(facts['nodes'])} x {processor}"


# --- what is printed ------------------------------------------------------------------------------------------------

_LARGER = "next larger"
COLUMNS = ("machine", "hosts", "split", "longest", "requests", "KV tokens", _LARGER, "worst finding")
_RIGHT = ("hosts", "longest", "requests", "KV tokens")
_MORE = "*"
"""Marks a row whose one server does not answer what is asked for."""


def list_columns(capacities: Sequence[Capacity]) -> tuple[str, ...]:
    """Return the names of the columns: for requests that are needed, what answers them instead of what is larger."""
    asked = capacities[0].asked if capacities else 0
    return tuple(f"for {asked:,}" if asked and name == _LARGER else name for name in COLUMNS)


def format_capacities(model: str, capacities: Sequence[Capacity], columns: int) -> str:
    """Format rows as a table, then why each has its split, and why the other machines do not serve the model."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in list_columns(capacities):
        justify: Literal["left", "right"] = "right" if name in _RIGHT else "left"
        table.add_column(translate_lines(name), justify=justify, no_wrap=name in COLUMNS[:6])
    for size in capacities:
        if size.hosts:
            table.add_row(*format_capacity_cells(size))
    console = Console(width=columns, color_system=None, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
    asked = capacities[0].asked if capacities else 0
    purpose = f", and how many servers answer {format_count(asked, 'request')} at a time" if asked else ""
    lines = [f"{model}: the fewest machines of each kind for one server{purpose}", ""]
    lines += [line.rstrip() for line in capture.get().splitlines()] if table.row_count else []
    lines += [*_explain_table(capacities, columns)] if table.row_count else []
    small = [size.machine for size in capacities if size.is_too_small]
    lines += ["", f"too small, also {COUNTS[-1]} of them: {', '.join(small)}"] if small else []
    if small and not table.row_count:
        nearest = max((size for size in capacities if size.is_too_small), key=lambda size: size.memory)
        lines += ["", f"nearest: {nearest.machine} ({nearest.devices}): {nearest.because}"]
    unsuitable = [size for size in capacities if not size.hosts and not size.is_too_small]
    reasons = (f"not {size.machine}: {size.because.removeprefix(f'{model}: ')}" for size in unsuitable)
    lines += ["", *(textwrap.shorten(reason, columns, placeholder=" …") for reason in reasons)] if unsuitable else []
    return "".join(f"{line}\n" for line in lines)


def _explain_table(capacities: Sequence[Capacity], columns: int) -> Iterator[str]:
    """Yield what the words of the table mean, why there is each split, and which machines were in use."""
    yield ""
    text = f"planned as idle and whole. Limited by {MEMORY}; by {SPLIT}: devices stay free; by a {RULE}: the plan's own"
    yield from textwrap.wrap(f"{text} --max-model-len or --max-num-seqs. Without a word: the model's length", columns)
    if any(size.hosts and size.asked and size.needed_servers != 1 for size in capacities):
        text = "one server answers fewer requests of this length at a time: so many behind a router; ? is not known"
        yield from textwrap.wrap(f"{_MORE} {text}", columns)
    in_use = [f"{size.machine} {format_id_list(size.in_use)}" for size in capacities if size.in_use and size.hosts]
    yield from textwrap.wrap(f"in use or not healthy when recorded: {'; '.join(in_use)}", columns) if in_use else ()
    yield ""
    machines: dict[str, list[str]] = {}
    for size in capacities:
        if size.hosts:
            machines.setdefault(size.why, []).append(size.machine)
    for why, names in machines.items():
        yield from textwrap.wrap(f"{why}: {', '.join(names)}", columns, subsequent_indent="  ")


def format_capacity_cells(size: Capacity) -> tuple[str, ...]:
    """Return a row's texts, in the order of the columns. What only vLLM knows is `?`."""
    limited = ((size.length, size.length_limit), (size.requests, size.requests_limit), (size.tokens, ""))
    longest, requests, tokens = (f"{number:,} {limit}".rstrip() if number else "?" for number, limit in limited)
    larger = _format_needed(size) if size.asked else size.larger
    return (size.machine, str(size.hosts), size.split, longest, requests, tokens, larger, size.finding)


def _format_needed(size: Capacity) -> str:
    """Return how many servers, and machines, answer the requests that are needed; with a mark unless one does."""
    if size.needed_servers == 1:
        return "1 server"
    if not size.needed_servers:
        return f"? {_MORE}"
    share = size.needed_machines < size.needed_servers
    return f"{size.needed_servers} servers{f' on {size.needed_machines}' if share else ''} {_MORE}"
