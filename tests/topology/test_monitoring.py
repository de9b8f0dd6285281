"""Alert rules and the dashboard, read by a real Prometheus that asks a status port and a server."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from drydock.run.monitoring import ALERTS, CONFIGURATION, make_dashboard, render_monitoring_files
from entrypoints.serve.phases import PLAN, READY, State
from entrypoints.serve.ports import listen_on_status_port
from entrypoints.serve.status import StatusServer, answer_path
from tests.support.ports import free_port
from tests.support.waiting import wait_until

INFO = {"variant": "cpu-test", "vllm": "0.0", "plan": "0123456789abcdef"}
STALLED = State(((PLAN, 0.0), (READY, 1.0)), healthy=True, verified=True, stalled="no token", expired=2.0)
METRIC = re.compile(r"\bvllm:\w+")
SERVER = "127.0.0.1"


def list_expressions() -> list[str]:
    """Return every expression of the rules and the dashboard."""
    panels = make_dashboard()["panels"]
    of_panels = [target["expr"] for panel in panels for target in panel["targets"]]
    return [*(alert.expression for alert in ALERTS), *(text.replace("$server", ".*") for text in of_panels)]


def expose_vllm() -> str:
    """Return one sample of each of vLLM's metrics that the rules and the dashboard name."""
    names = {name for text in list_expressions() for name in METRIC.findall(text)}
    labels = 'engine="0",finished_reason="stop",le="+Inf"'
    return "".join(f"{name}{{{labels}}} 1\n" for name in sorted(names))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with prometheus and promtool: those that are installed, or of Debian's package, unpacked."""
    if shutil.which("prometheus") and (path := shutil.which("promtool")):
        return Path(path).parent
    folder = tmp_path_factory.mktemp("prometheus")
    for command in (("apt-get", "download", "prometheus"), ("sh", "-c", "dpkg-deb --extract prometheus_*.deb .")):
        if not shutil.which(command[0]) or subprocess.run(command, cwd=folder, check=False).returncode:
            pytest.skip(f"no prometheus: `{' '.join(command)}` failed")
    return folder / "usr" / "bin"


@pytest.fixture
def targets() -> Iterator[tuple[str, str]]:
    """Return the addresses of a status port whose server is stalled, and of a server with vLLM's metrics."""
    listeners = [listen_on_status_port(0) for _ in range(2)]
    own = answer_path("/metrics", STALLED, INFO, 3.0)
    status = StatusServer(listeners[0], lambda _: own)
    server = StatusServer(listeners[1], lambda _: own._replace(body=expose_vllm()))
    threads = [threading.Thread(target=one.run) for one in (status, server)]
    for thread in threads:
        thread.start()
    yield tuple(f"{SERVER}:{listener.getsockname()[1]}" for listener in listeners)  # type: ignore[misc]
    for one, thread in zip((status, server), threads, strict=True):
        one.stop()
        thread.join()


def test_prometheus_loads_the_rules_fires_them_and_answers_each_query(
    programs: Path, targets: tuple[str, str], tmp_path: Path
) -> None:
    files = render_monitoring_files(targets)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    fast = files[CONFIGURATION] + "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
    (tmp_path / CONFIGURATION).write_text(fast)
    check = [programs / "promtool", "check", "config", CONFIGURATION]
    checked = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, ""), checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout
    port = free_port()
    address = f"--web.listen-address={SERVER}:{port}"
    argv = [programs / "prometheus", f"--config.file={CONFIGURATION}", address, "--storage.tsdb.path=data"]
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: "DrydockStalled" in list_firing(port), "an alert that fires")
            assert list_firing(port) <= {"DrydockStalled"}
            wait_until(lambda: ask(port, "count(up == 1)") == [2.0], "both targets")
            unanswered = [text for text in list_expressions()[len(ALERTS) :] if not ask(port, text)]
        finally:
            process.terminate()
    rates = [text for text in unanswered if "rate(" not in text]
    assert rates == [], rates


def list_firing(port: int) -> set[str]:
    """Return the names of the alerts that fire; none while Prometheus starts."""
    try:
        groups = fetch(port, "/api/v1/rules")["groups"]
    except (OSError, ValueError):
        return set()
    return {rule["name"] for group in groups for rule in group["rules"] if rule["state"] == "firing"}


def ask(port: int, expression: str) -> list[float]:
    """Return the values of an expression. Raises AssertionError if Prometheus refuses it."""
    return [float(sample["value"][1]) for sample in fetch(port, f"/api/v1/query?query={quote(expression)}")["result"]]


def fetch(port: int, path: str) -> Any:
    connection = http.client.HTTPConnection(SERVER, port, timeout=10)
    try:
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    assert answer["status"] == "success", answer
    return answer["data"]
