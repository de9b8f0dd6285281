from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import DiskFullError, FetchError
from drydock.core.http import Session, TransientRequestError, parse_origin, send_no_password
from drydock.core.paths import ROOT
from drydock.inputs import downloads
from drydock.inputs.downloads import (
    ATTEMPTS,
    UnansweredError,
    Wanted,
    _choose_auth,
    ask_patiently,
    ask_sizes,
    ask_status,
    download_files,
    read_answer,
    run_patiently,
)
from drydock.inputs.indexes import make_index_access, parse_config
from drydock.inputs.store import Store
from tests.support.fake_registry import Answer, Fake, Seen
from tests.support.hashes import sha256
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

DATA = bytes(range(256)) * (1 << 12)
QUICK = Access(pause=0.001, timeout=5)


@pytest.fixture
def wanted_file(server: Loopback) -> Wanted:
    server.files["/a.whl"] = DATA
    return Wanted("a.whl", sha256(DATA), len(DATA), (f"{server.url}/a.whl",))


def test_a_file_is_fetched_once(server: Loopback, store: Store, wanted_file: Wanted) -> None:
    download_files(store, [wanted_file, wanted_file], QUICK)
    download_files(store, [wanted_file], QUICK)
    assert store.path(wanted_file.sha256).read_bytes() == DATA
    assert server.ranges("/a.whl") == [None]


HALF, REST = f"bytes={len(DATA) // 2}-", f"bytes={len(DATA) * 3 // 4}-"


@pytest.mark.parametrize(
    ("faults", "ranges"),
    [
        (["cut", "cut"], [None, HALF, REST]),
        (["cut", "no range"], [None, HALF]),
        (["500", "500"], [None, None, None]),
        (["503", "503"], [None, None, None]),
        (["429", "429"], [None, None, None]),
        (["509", "509"], [None, None, None]),
    ],
)
def test_a_file_arrives_through_faults_and_is_resumed(
    server: Loopback, store: Store, wanted_file: Wanted, faults: list[str], ranges: list[str | None]
) -> None:
    server.faults["/a.whl"] = faults
    download_files(store, [wanted_file], QUICK)
    assert store.path(wanted_file.sha256).read_bytes() == DATA
    assert server.ranges("/a.whl") == ranges


def limited(request: Seen) -> Answer:
    """Refuse the first request for each path, and ask to come back after 7 seconds."""
    first = request.path not in SEEN
    SEEN.add(request.path)
    return Answer(429, {"Retry-After": "7"}) if first else Answer(200, body=DATA)


SEEN: set[str] = set()


def test_every_way_to_ask_waits_as_long_as_the_server_says(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    SEEN.clear()
    pauses: list[float] = []
    monkeypatch.setattr("drydock.core.http.time.sleep", pauses.append)
    monkeypatch.setattr(threading.Event, "wait", lambda _, seconds=None: pauses.append(seconds) or False)
    with Fake(limited) as fake:
        url = f"http://{fake.host}"
        assert read_answer(f"{url}/page", "page", QUICK, len(DATA)).body == DATA
        assert read_answer(f"{url}/query", "query", QUICK, len(DATA), query={"a": 1}).body == DATA
        assert ask_sizes([("a", f"{url}/size")], QUICK) == {"a": len(DATA)}
        assert ask_status(f"{url}/status", QUICK) == 200
        download_files(store, [Wanted("a.whl", sha256(DATA), len(DATA), (f"{url}/a.whl",))], QUICK)
    assert [pause for pause in pauses if pause == 7.0] == [7.0] * 5


def test_what_refuses_to_the_end_says_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drydock.core.http.time.sleep", lambda _: None)
    with Fake(lambda _: Answer(503)) as fake:
        expected = rf"list: http://{fake.host}/a: the server answered 503 .*\(asked {ATTEMPTS} times\)"
        with pytest.raises(UnansweredError, match=expected):
            read_answer(f"http://{fake.host}/a", "list", QUICK, 10)
    with pytest.raises(UnansweredError, match="the connection was refused"):
        ask_status("http://127.0.0.1:9/", QUICK)


@pytest.mark.parametrize(("failures", "count"), [(["absent"], 1), (["busy", "absent"], 3)])
def test_nothing_that_listens_here_is_asked_once_unless_it_has_answered(failures: list[str], count: int) -> None:
    """A server that starts again refuses connections for a moment; a port where nothing is does so for ever."""
    questions: list[str] = []

    def ask_once() -> str:
        questions.append("")
        if len(questions) <= len(failures):
            raise TransientRequestError("failed", is_refused_here=failures[len(questions) - 1] == "absent")
        return "answer"

    if count == 1:
        with pytest.raises(UnansweredError, match=r"list: http://127\.0\.0\.1:9/: failed$"):
            ask_patiently(ask_once, "list", "http://127.0.0.1:9/", QUICK)
    else:
        assert ask_patiently(ask_once, "list", "http://127.0.0.1:9/", QUICK) == "answer"
    assert len(questions) == count


REFUSED = re.compile(r"(?P<url>http\S+) (?P<status>\d{3})")


@pytest.mark.parametrize(("status", "runs"), [(429, 2), (503, 2), (509, 2), (404, 1)])
def test_a_program_runs_again_once_its_server_lets_it(status: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("drydock.core.http.time.sleep", pauses.append)
    with Fake(lambda _: Answer(status, {"Retry-After": "7"}) if len(fake.seen) < 3 else Answer(200)) as fake:
        results = iter([(1, f"error: http://{fake.host}/a {status}"), (0, "")])
        exit_codes: list[int] = []

        def run() -> subprocess.CompletedProcess[str]:
            code, text = next(results)
            exit_codes.append(code)
            return subprocess.CompletedProcess(["uv"], code, "", text)

        run_patiently(run, REFUSED, "uv", QUICK)
    assert len(exit_codes) == runs
    assert pauses.count(7.0) == (2 if runs > 1 else 0)


def test_persistent_failures_are_an_error(server: Loopback, store: Store, wanted_file: Wanted) -> None:
    server.faults["/a.whl"] = ["500"] * 99
    with pytest.raises(FetchError, match=r"a\.whl from http://127\.0\.0\.1:\d+/a\.whl: the server answered 500"):
        download_files(store, [wanted_file], QUICK)
    assert len(server.ranges("/a.whl")) == ATTEMPTS


def test_a_wrong_hash_is_an_error_and_nothing_is_kept(server: Loopback, store: Store, wanted_file: Wanted) -> None:
    server.faults["/a.whl"] = ["wrong"]
    with pytest.raises(FetchError, match=f"sha256 is {sha256(bytes(len(DATA)))}, expected {wanted_file.sha256}"):
        download_files(store, [wanted_file], QUICK)
    assert not store.has(wanted_file.sha256)
    assert list((store.home / "store" / "partial").iterdir()) == []


@pytest.mark.parametrize(
    ("length", "size", "ranges"),
    [
        (1000, len(DATA), ["bytes=1000-", None]),
        (len(DATA) + 1, len(DATA), [None]),
        (len(DATA), None, [f"bytes={len(DATA)}-", None]),
    ],
    ids=["other content", "too long", "longer than the file is now"],
)
def test_a_partial_file_that_is_no_part_is_fetched_from_the_start(
    server: Loopback, store: Store, wanted_file: Wanted, length: int, size: int | None, ranges: list[str | None]
) -> None:
    with store.receiving(wanted_file.sha256) as file:
        assert file is not None
        file.write(bytes(length))
    download_files(store, [wanted_file._replace(size=size)], QUICK)
    assert store.path(wanted_file.sha256).read_bytes() == DATA
    assert server.ranges("/a.whl") == ranges


def test_a_body_that_is_too_long_is_refused(server: Loopback, store: Store, wanted_file: Wanted) -> None:
    server.faults["/a.whl"] = ["endless"]
    with pytest.raises(FetchError, match=f"longer than the {len(DATA)} bytes expected"):
        download_files(store, [wanted_file], QUICK)
    assert not store.has(wanted_file.sha256)


def test_the_next_url_is_tried_if_a_server_lacks_the_file(server: Loopback, store: Store, wanted_file: Wanted) -> None:
    download_files(store, [wanted_file._replace(urls=(f"{server.url}/gone", *wanted_file.urls))], QUICK)
    assert store.has(wanted_file.sha256, len(DATA))


def test_all_failed_files_are_in_one_error(server: Loopback, store: Store, wanted_file: Wanted) -> None:
    missing_files = [Wanted(name, name * 64, 1, (f"{server.url}/{name}",)) for name in "bc"]
    with pytest.raises(FetchError) as caught:
        download_files(store, [missing_files[0], wanted_file, missing_files[1]], QUICK)
    assert [problem.partition(" from ")[0] for problem in caught.value.problems] == ["b", "c"]
    assert store.has(wanted_file.sha256, len(DATA))


def test_an_error_message_contains_no_password(store: Store, wanted_file: Wanted) -> None:
    with pytest.raises(FetchError) as caught:
        download_files(
            store, [wanted_file._replace(urls=("http://user:secret@127.0.0.1:1/a.whl?token=secret",))], QUICK
        )
    assert "secret" not in str(caught.value)
    assert "127.0.0.1:1/a.whl" in str(caught.value)


def test_a_redirect_to_what_is_no_address_is_an_error(store: Store, wanted_file: Wanted) -> None:
    with (
        Fake(lambda _: Answer(302, {"Location": "http://["})) as fake,
        pytest.raises(FetchError, match=f"{fake.host}/a.whl: an address is invalid"),
    ):
        download_files(store, [wanted_file._replace(urls=(f"http://{fake.host}/a.whl",))], QUICK)


def test_a_size_that_no_file_has_is_an_error() -> None:
    with (
        Fake(lambda _: Answer(200, {"Content-Length": str(10**18)})) as fake,
        pytest.raises(FetchError, match=rf"{fake.host}/a\.whl: Content-Length is 10{{18}}, expected at most"),
    ):
        ask_sizes([("a", f"http://{fake.host}/a.whl")], QUICK)


@pytest.mark.parametrize(
    ("configured", "sent"),
    [
        ("{server}", "Basic dXNlcjpzZWNyZXQ="),
        ("http://elsewhere:80", None),
        ("http://127.0.0.1:1/simple", None),
        ("https://127.0.0.1/simple", None),
    ],
)
def test_a_password_is_sent_only_to_its_own_host_port_and_scheme(
    server: Loopback, store: Store, wanted_file: Wanted, configured: str, sent: str | None
) -> None:
    where = parse_origin(configured.format(server=server.url))
    download_files(store, [wanted_file], QUICK._replace(credentials={where: ("user", "secret")}))
    assert server.requests == [("/a.whl", None, sent)]


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a ~/.netrc with a password for localhost."""
    (tmp_path / "netrc").write_text("machine localhost login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.usefixtures("netrc")
def test_the_password_of_netrc_is_sent_to_its_own_host_and_kept_by_its_redirects(
    server: Loopback, store: Store, wanted_file: Wanted
) -> None:
    server.redirects["/moved"] = "/a.whl"
    there = server.url.replace("127.0.0.1", "localhost")
    download_files(store, [wanted_file._replace(urls=(f"{there}/moved",))], QUICK)
    assert [password for _, _, password in server.requests] == ["Basic dXNlcjpzZWNyZXQ="] * 2


@pytest.mark.usefixtures("netrc")
def test_the_password_of_netrc_is_not_sent_without_tls_to_another_machine(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine index.example login user password secret\n")
    assert _choose_auth(QUICK, "https://index.example/a.whl") == ("user", "secret")
    assert _choose_auth(QUICK, "http://index.example/a.whl") is send_no_password


@pytest.mark.usefixtures("netrc")
@pytest.mark.parametrize(("address", "password"), [("user@", "secret"), ("other@", ""), ("user:own@", "own")])
def test_an_address_with_a_user_alone_gets_the_password_of_netrc(address: str, password: str) -> None:
    url = f"https://{address}localhost/simple"
    origin_access = make_index_access(parse_config(f"global.index-url='{url}'"), {})
    for access, page in ((QUICK, f"{url}/a.whl"), (origin_access, "https://localhost/files/a.whl")):
        assert _choose_auth(access, page) == (address.partition("@")[0].partition(":")[0], password)


def test_a_file_url_is_copied(tmp_path: Path, store: Store) -> None:
    source = tmp_path / "torch 2.0+cpu.whl"
    source.write_bytes(DATA)
    download_files(store, [Wanted("torch", sha256(DATA), None, (source.as_uri(),))], QUICK)
    assert store.path(sha256(DATA)).read_bytes() == DATA
    assert not store.path(sha256(DATA)).samefile(source)


def test_a_missing_file_of_a_file_url_is_named(tmp_path: Path, store: Store) -> None:
    with pytest.raises(FetchError, match=r"torch: /.*/gone: no such file"):
        download_files(store, [Wanted("torch", "0" * 64, None, ((tmp_path / "gone").as_uri(),))], QUICK)


def test_a_full_disk_stops_the_download(store: Store, wanted_file: Wanted) -> None:
    partial = store.home / "store" / "partial" / wanted_file.sha256
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")
    with pytest.raises(DiskFullError, match="no space left"):
        download_files(store, [wanted_file], QUICK)


FETCH = """
import sys
from pathlib import Path
from drydock.inputs.store import Store
from drydock.config.server_access import Access
from drydock.inputs.downloads import Wanted, download_files
home, *rest = sys.argv[1:]
files = [Wanted(u[-5:], s, int(n), (u,)) for s, n, u in zip(*[iter(rest)] * 3)]
download_files(Store(Path(home)), files, Access(pause=0.01))
"""


@pytest.fixture
def fetch_process(server: Loopback, store: Store) -> Callable[[], subprocess.Popen[bytes]]:
    """Start a real process that fetches eight files of a slow server."""
    arguments = []
    for number in range(8):
        data = bytes([number]) * (1 << 20)
        server.files[f"/{number}.whl"] = data
        arguments += [sha256(data), str(len(data)), f"{server.url}/{number}.whl"]

    def start() -> subprocess.Popen[bytes]:
        for number in range(8):
            server.faults[f"/{number}.whl"] = ["slow"] * 3
        command = [sys.executable, "-c", FETCH, str(store.home), *arguments]
        return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env={**os.environ, "NO_PROXY": "*"})

    return start


def _whole(store: Store) -> int:
    """Count the files in the store; each must match its hash."""
    stored_files = [path for path in (store.home / "store" / "sha256").rglob("*") if path.is_file()]
    assert all(sha256(path.read_bytes()) == path.name for path in stored_files)
    return len(stored_files)


def test_a_killed_fetch_leaves_no_half_written_file_and_is_resumed(
    fetch_process: Callable[[], subprocess.Popen[bytes]], server: Loopback, store: Store
) -> None:
    for count in (1, 4, 6):
        begun = len(server.requests) + count
        with fetch_process() as process:
            wait_until(lambda: len(server.requests) >= begun, "requests")  # noqa: B023 - called in this turn only
            time.sleep(0.1)
            process.kill()
        _whole(store)
    with fetch_process() as process:
        process.communicate()
    assert process.returncode == 0
    assert _whole(store) == 8
    assert any(byte_range for _, byte_range, _ in server.requests), "nothing was resumed"


def test_two_concurrent_fetches_share_the_work(
    fetch_process: Callable[[], subprocess.Popen[bytes]], server: Loopback, store: Store
) -> None:
    with fetch_process() as one, fetch_process() as two:
        errors = one.communicate()[1] + two.communicate()[1]
    assert (one.returncode, two.returncode) == (0, 0), errors
    assert _whole(store) == 8
    assert len(server.requests) == 8


def test_ctrl_c_stops_a_fetch_before_it_has_all_files(
    fetch_process: Callable[[], subprocess.Popen[bytes]], server: Loopback, store: Store
) -> None:
    with fetch_process() as process:
        wait_until(lambda: len(server.requests) >= 6, "six requests")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode != 0
    assert _whole(store) < 8


def test_a_file_of_unknown_size_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "LARGEST_FILE", 1 << 20)
    store, access = Store(tmp_path / "store"), Access(pause=0.001, timeout=5)
    with Fake(lambda _: Answer(200, {}, itertools.repeat(bytes(1 << 16)))) as fake:
        endless_file = Wanted("endless.whl", "0" * 64, None, (f"http://{fake.host}/endless.whl",))
        with pytest.raises(FetchError, match="longer than the 1048576 bytes expected"):
            download_files(store, [endless_file], access)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FetchError, match="not a regular file"):
        download_files(store, [Wanted("pipe.whl", "0" * 64, None, ((tmp_path / "pipe").as_uri(),))], access)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 100 Continue\r\n\r\n", b"x" * 65536])
def test_an_endless_header_or_redirect_is_given_up(
    store: Store, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "longest_wait", 0.3)
    redirect = b"HTTP/1.1 302 Found\r\nLocation: /gone\r\nContent-Length: 999999999999\r\n\r\n"
    byte_count = [0]

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if b"/gone" in connection.recv(65536):
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return
            connection.sendall(redirect if answer.startswith(b"x") else b"")
            for _ in range(1000):
                connection.sendall(answer)
                byte_count[0] += len(answer)
                threading.Event().wait(0.01)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.whl"
        with pytest.raises(FetchError, match=r"no answer in time|answered 404"):
            download_files(store, [Wanted("a.whl", sha256(b"a"), 1, (url,))], QUICK)
    assert byte_count[0] < 32 << 20
