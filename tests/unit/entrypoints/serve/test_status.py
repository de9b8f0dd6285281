"""The status server: its answers, and its limits for slow and broken clients."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from pathlib import Path

import pytest

from entrypoints.core.errors import HOST, EntrypointError
from entrypoints.serve.phases import IMPORT, READY, State
from entrypoints.serve.ports import CLIENTS_AT_MOST, listen_on_status_port
from entrypoints.serve.status import HEAD_AT_MOST, Response, StatusServer, answer_path, format_metrics
from tests.support.running_server import get

STARTING = State(entered=(("plan", 0.0), (IMPORT, 0.1)))
READY_STATE = State(entered=(("plan", 0.0), (IMPORT, 0.1), (READY, 9.0)), healthy=True, verified=True, notes=("right",))


def serving(patience: float) -> int:
    """Start a server that answers every path with its own name; return its port."""
    listener = listen_on_status_port(0)
    port = int(listener.getsockname()[1])
    server = StatusServer(listener, lambda path: Response(200, f'"{path}"'), patience)
    threading.Thread(target=server.run, daemon=True).start()
    return port


@pytest.fixture
def port() -> int:
    """A server that gives each client more time than any test needs."""
    return serving(60)


@pytest.fixture
def hasty_port() -> int:
    """A server that gives each client 0.2 s."""
    return serving(0.2)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def exchange(port: int, request: bytes) -> bytes:
    with connect(port) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("state", [State(), State(wrong="x"), State(stalled="x"), State(dead=True, stopping="x")])
def test_livez_is_200_as_long_as_a_restart_could_not_help(state: State) -> None:
    assert answer_path("/livez", state, {}, 1.0).status == 200


def test_livez_is_503_after_a_long_time_without_progress() -> None:
    response = answer_path("/livez", READY_STATE._replace(stalled="no token for 9 s", dead=True), {}, 1.0)
    assert response.status == 503
    assert json.loads(response.body) == {"alive": False, "reason": "no token for 9 s"}


def test_readyz_says_why_not() -> None:
    response = answer_path("/readyz", STARTING, {}, 1.0)
    assert response.status == 503
    assert json.loads(response.body) == {
        "ready": False,
        "phase": "import",
        "reason": "starting: import",
        "wrong": False,
        "known_answer": [],
    }


def test_readyz_says_what_was_compared() -> None:
    response = answer_path("/readyz", READY_STATE, {}, 10.0)
    assert (response.status, json.loads(response.body)["known_answer"]) == (200, ["right"])


def test_startupz_is_200_from_the_first_ready_on_even_while_stopping() -> None:
    assert answer_path("/startupz", STARTING, {}, 1.0).status == 503
    stopping = READY_STATE._replace(stopping="SIGTERM", healthy=False)
    assert answer_path("/startupz", stopping, {}, 10.0).status == 200
    assert answer_path("/readyz", stopping, {}, 10.0).status == 503


def test_startupz_gives_the_seconds_of_each_phase() -> None:
    assert json.loads(answer_path("/startupz", STARTING, {}, 2.0).body) == {
        "started": False,
        "phase": "import",
        "seconds": {"plan": 0.1, "import": 1.9},
    }


def test_an_unknown_path_lists_the_known_ones() -> None:
    response = answer_path("/health", STARTING, {}, 1.0)
    assert response.status == 404
    assert "/livez, /readyz, /startupz, /metrics or /group" in response.body


def test_metrics_are_prometheus_text() -> None:
    text = format_metrics(READY_STATE, {"variant": 'a"b\\c\nd', "digest": ""}, 10.0)
    assert 'drydock_startup_phase_seconds{phase="plan"} 0.100\n' in text
    assert 'drydock_startup_phase_seconds{phase="import"} 8.900\n' in text
    assert "drydock_startup_seconds 9.000\n" in text
    assert "drydock_ready 1\n" in text
    assert 'drydock_info{variant="a\\"b\\\\c\\nd",digest=""} 1\n' in text
    assert text.count("# TYPE ") == 8


def test_a_request_is_answered_over_ipv4_and_ipv6(port: int) -> None:
    assert get(port, "/x?probe=1") == (200, "/x")
    if Path("/proc/net/if_inet6").exists():
        with socket.create_connection(("::1", port), timeout=5) as client:
            client.sendall(b"GET /y HTTP/1.1\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 OK\r\n")


def test_head_gets_the_head_alone(port: int) -> None:
    assert exchange(port, b"HEAD /x HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"GET /x\r\n\r\n", 400),
        (b"GET /x SPDY/3\r\n\r\n", 400),
        (b"\xff\xfe\x00\n\n", 400),
        (b"POST /x HTTP/1.1\r\n\r\n", 405),
        (b"A" * HEAD_AT_MOST, 400),
    ],
)
def test_an_invalid_request_gets_an_error(port: int, sent: bytes, status: int) -> None:
    assert exchange(port, sent).startswith(f"HTTP/1.1 {status} ".encode())


def test_a_query_that_no_one_expected_gets_400(caplog: pytest.LogCaptureFixture) -> None:
    listener = listen_on_status_port(0)
    server = StatusServer(listener, lambda _: Response(200, ""), take=lambda query, _: Response(int(query), ""))
    threading.Thread(target=server.run, daemon=True).start()
    answer = exchange(int(listener.getsockname()[1]), b"POST /group?x HTTP/1.1\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"/group: ValueError: invalid literal" in answer
    assert not caplog.records


def test_a_request_in_pieces_is_answered(port: int) -> None:
    with connect(port) as client:
        for piece in (b"GET /x HT", b"TP/1.1\r\nA: b\r", b"\n\r\n"):
            client.sendall(piece)
            time.sleep(0.01)
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_silent_client_is_dropped_in_time(hasty_port: int) -> None:
    with connect(hasty_port) as client:
        client.sendall(b"GET /x HTTP/1.1\r\n")
        began = time.monotonic()
        assert client.recv(100) == b""
        assert 0.1 < time.monotonic() - began < 20


def test_many_silent_clients_do_not_block_a_probe(port: int) -> None:
    silent = [connect(port) for _ in range(2 * CLIENTS_AT_MOST)]
    began = time.monotonic()
    assert get(port, "/x")[0] == 200
    assert time.monotonic() - began < 20
    for client in silent:
        client.close()


def test_clients_that_send_a_byte_at_a_time_are_dropped_in_time(hasty_port: int) -> None:
    """Each byte comes before a timeout of one read would end; only the total time counts."""
    with connect(hasty_port) as client:
        began = time.monotonic()
        client.settimeout(0.05)
        client.sendall(b"GET /x HTTP/1.1\r\n")
        while True:
            try:
                client.sendall(b"A")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                assert time.monotonic() - began < 20
            except OSError:
                break
    connect(hasty_port).close()


def test_a_server_that_is_stopped_answers_those_who_are_connected(caplog: pytest.LogCaptureFixture) -> None:
    listener = listen_on_status_port(0)
    port = int(listener.getsockname()[1])
    server = StatusServer(listener, lambda path: Response(200, f'"{path}"'))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with connect(port) as client:
        client.sendall(b"GET /live")
        exchange(port, b"GET / HTTP/1.1\r\n\r\n")  # the first client is connected when the second has its answer
        server.stop()
        client.sendall(b"z HTTP/1.1\r\n\r\n")
        assert client.recv(65536).endswith(b'"/livez"')
    thread.join(10)

    assert (thread.is_alive(), caplog.text) == (False, "")
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_random_bytes_do_no_harm(port: int) -> None:
    chance = random.Random(7)  # noqa: S311 -- the same garbage every time
    for _ in range(60):
        with connect(port) as client:
            client.sendall(chance.randbytes(chance.randrange(1, 300)))
            if chance.random() < 0.5:
                client.shutdown(socket.SHUT_WR)
    assert get(port, "/x") == (200, "/x")


def test_a_client_that_resets_does_no_harm(port: int) -> None:
    for _ in range(20):
        client = connect(port)
        client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
    assert get(port, "/x") == (200, "/x")


def test_a_taken_port_names_the_flag() -> None:
    listener = listen_on_status_port(0)
    with pytest.raises(EntrypointError, match="cannot listen: Address already in use") as raised:
        listen_on_status_port(listener.getsockname()[1])
    assert (raised.value.code, raised.value.hint) == (HOST, "choose another port with --status-port N")
    listener.close()
