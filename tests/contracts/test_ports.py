"""Pages list what code has: docs/security.md each port and who is answered, variables.md each variable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.paths import ROOT
from drydock.pages.reference_pages import FOLDER
from drydock.run.container import API_PORT, STATUS_PORT
from drydock.topology.ports import RAY_WORKERS
from entrypoints.plan.ranks import MASTER_DEFAULT, RAY_PORT, RPC_DEFAULT
from entrypoints.request.access import ADMIN, ALLOWED_HOSTS, MOST
from entrypoints.serve import collective, peers, status
from entrypoints.serve.phases import State
from entrypoints.serve.ports import CLIENTS_AT_MOST

pytestmark = pytest.mark.checkout

PAGE = (ROOT / "docs/security.md").read_text()
ROUTES = json.loads((ROOT / "entrypoints/plugin/drydock_plugin/routes.json").read_text())


def rows(heading: str) -> dict[str, list[str]]:
    """Return first cell → the other cells of the table whose heading begins so."""
    lines = PAGE[PAGE.index(f"| {heading}") :].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


PORTS = rows("port |")


def row(begin: str) -> list[str]:
    (cells,) = (cells for first, cells in PORTS.items() if first.startswith(begin))
    return cells


def paths(cell: str) -> set[str]:
    return set(re.findall(r"`(/\w+)`", cell))


def test_the_api_answers_the_public_routes_of_the_guard() -> None:
    _, without, keyless, limits = row(f"{API_PORT} (`--port`)")
    assert paths(without) == set(ROUTES["public"])
    assert {ALLOWED_HOSTS, ADMIN} <= set(re.findall(r"`([\w-]+)`", keyless))
    assert f"`{MOST}`" in limits


def test_the_status_port_answers_what_it_has_and_drops_the_oldest_of_its_clients() -> None:
    listed = status.answer_path("/other", State(), {}, 0).body.rpartition("expected")[2]
    _, without, keyless, limits = row(f"{STATUS_PORT} (`--status-port`)")
    assert paths(without) == set(re.findall(r"/\w+", listed))
    answered = {path for path in paths(without) if status.answer_path(path, State(), {}, 0).status != 404}
    assert paths(without) - answered == {status.GROUP}
    assert keyless == "the same"
    numbers = [*map(int, re.findall(r"\d+", limits))]
    assert numbers == [CLIENTS_AT_MOST, status.HEAD_AT_MOST, int(status.CLIENT_SECONDS)]


def test_the_ports_between_hosts_are_those_of_the_code() -> None:
    (row_title,) = (first for first in PORTS if "--master-port" in first)
    assert {MASTER_DEFAULT} == {collective.PORT, peers.PeerCheck(()).ports[1]}
    numbers = [*map(int, re.findall(r"\b\d{4,5}\b", row_title))]
    assert numbers == [MASTER_DEFAULT, RPC_DEFAULT, RAY_PORT, RAY_WORKERS.start, RAY_WORKERS.stop - 1]


def test_the_ports_of_connectors_are_those_of_the_templates() -> None:
    row_title = next(first for first in PORTS if first.startswith("side-channel"))
    transfers = [variant.kv_transfer for variant in read_matrix(DRYDOCK) if variant.kv_transfer]
    purposes = {name for transfer in transfers for name in transfer.ports}
    assert set(row_title.partition(" (")[0].split(", ")) == purposes


VARIABLES_PAGE = (ROOT / FOLDER / "variables.md").read_text()
NAMED_VARIABLES = set(re.findall(r"`([A-Za-z_][A-Za-z0-9_]*)`", VARIABLES_PAGE))
OWN = re.compile(r"\bDRYDOCK_[A-Z0-9_]*[A-Z0-9]\b")
READ = re.compile(r"""(?:environ|env|environment|whole)(?:\.get\(|\[)["']([A-Za-z_][A-Za-z0-9_]*)["']""")
STEMS = {"DRYDOCK_RUNNER", "DRYDOCK_RELEASE_RUNNER"}
"""CI files add the architecture."""


def read_by_code() -> Iterator[str]:
    for folder in ("bench", "drydock", "entrypoints", "templates"):
        for path in (path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".j2", ".yml")):
            text = path.read_text()
            yield from OWN.findall(text)
            if folder in ("drydock", "entrypoints"):
                yield from READ.findall(text)


def test_the_page_has_each_variable_that_code_reads_and_no_other_of_drydock() -> None:
    code_variables = set(read_by_code()) - STEMS
    assert {"DRYDOCK_CACHE", "DRYDOCK_OFFLINE", "HF_TOKEN", "TMPDIR"} <= code_variables
    assert code_variables - NAMED_VARIABLES == set()
    assert set(OWN.findall(VARIABLES_PAGE)) - code_variables == set()


def test_each_place_of_a_table_is_filled() -> None:
    assert re.findall(r"^\{.*\}$", VARIABLES_PAGE, re.MULTILINE) == []
