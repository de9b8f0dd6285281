"""`./inv doctor` asks every server that a target needs, at once, and says what came and what to do."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from drydock.build import build_preview, doctor_questions
from drydock.config.matrix import find_variant, read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import FetchError, NetworkSettingsError, RegistryError
from drydock.core.paths import ROOT
from drydock.core.project import Project
from drydock.engine import daemon
from drydock.verbs import doctor_verb

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

BASE = "/v2/hub/vllm/vllm-openai-rocm/manifests/"


class Machine:
    """A machine whose index, registry, Debian archive and hub are on the loopback address."""

    def __init__(self, server: Loopback, folder: Path) -> None:
        self.server, self.mirrors = server, folder / "mirrors.yaml"
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "HF_", "DRYDOCK_"))}
        self.env = {
            **env, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{server.url}/simple", "HF_ENDPOINT": server.url,
            "DRYDOCK_DEBIAN_MIRROR": f"{server.url}/debian", "DRYDOCK_MIRRORS": str(self.mirrors),
            "DRYDOCK_CACHE": str(folder / "cache"),
        }  # fmt: skip
        self.mirror(server.url.removeprefix("http://"))
        server.files = {"/simple/uv/": b"", "/simple/pip/": b"", "/debian/dists/bookworm/InRelease": b""}
        server.files |= {"/api/models?limit=1": b"[]"}
        self.target = find_variant(read_matrix(DRYDOCK), "mi300x")
        platform = doctor_questions.read_pins(DRYDOCK, self.target)
        server.files[f"{BASE}{platform.base.digest}"] = b"{}"

    def mirror(self, host: str) -> None:
        """Name a mirror of Docker Hub."""
        self.mirrors.write_text(f'registries: {{"docker.io": "{host}/hub"}}\n')

    def examine(self, *, target: bool = True) -> dict[str, doctor_questions.Diagnosis]:
        answers = doctor_verb.ask_machine(DRYDOCK, self.target if target else None, self.env)
        return {answer.name: answer for answer in answers}


@pytest.fixture
def machine(server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    engine = daemon.Engine(version="28.0", buildx="0.29", buildkit="v0.23", started=False)
    monkeypatch.setattr(daemon, "find_engine", lambda: engine)
    monkeypatch.setattr(doctor_questions, "PATIENCE", 60.0)  # a loaded machine answers late
    monkeypatch.setattr(doctor_questions, "LONGEST", 60.0)
    monkeypatch.setattr(build_preview, "ROOM", 0)
    monkeypatch.setattr(build_preview, "LEAST_NEEDED", 1)
    return Machine(server, tmp_path)


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_target_asks_its_own_servers_only(machine: Machine) -> None:
    answers = machine.examine()
    assert {name: answer.state for name, answer in answers.items()} == dict.fromkeys(
        ("engine", "disk", "mirrors", "proxy", "certificates", "index", "registry", "hub", "clock"), doctor_questions.OK
    )
    assert doctor_questions.choose_exit_code(answers.values()) == 0
    assert not any(path.startswith("/debian") for path, *_ in machine.server.requests)
    assert machine.examine(target=False)["debian"].state == doctor_questions.OK


def test_what_refuses_hangs_or_lacks_is_named_with_what_to_write(
    machine: Machine, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_questions, "PATIENCE", 0.5)
    machine.env |= {"PIP_INDEX_URL": f"http://{silent}/simple", "HF_ENDPOINT": "http://127.0.0.1:9"}
    machine.server.files = {}
    begin = time.monotonic()
    answers = machine.examine()
    assert time.monotonic() - begin < 60  # a server that never answers would take forever; a loaded machine takes 14 s
    assert answers["index"].found == f"http://{silent}/simple/uv/: no answer in time"
    assert f'{machine.mirrors}: indexes: {{"default": "https://MIRROR/simple"}}' in answers["index"].remedy
    assert "404" in answers["registry"].found
    assert 'registries: {"docker.io": "HOST/PATH"}' in answers["registry"].remedy
    assert (answers["hub"].state, answers["hub"].found.rpartition(": ")[2]) == (
        doctor_questions.WARN,
        "the connection was refused",
    )
    assert doctor_questions.choose_exit_code(answers.values()) == FetchError.code
    report_text = doctor_questions.format_diagnoses([*answers.values()])
    assert f"FAIL  index         http://{silent}/simple/uv/: no answer in time\n" in report_text


def test_the_token_of_the_hub_is_not_sent_without_tls(machine: Machine) -> None:
    machine.env |= {"HF_ENDPOINT": "http://192.0.2.1", "HF_TOKEN": "secret"}
    hub_answer = machine.examine()["hub"]
    assert hub_answer.found == "http://192.0.2.1: without TLS, others on the network can read HF_TOKEN"
    assert (hub_answer.state, hub_answer.remedy.partition(",")[0]) == (doctor_questions.WARN, "use https")


def test_a_registry_that_refuses_connections_gives_its_exit_code(machine: Machine) -> None:
    machine.mirror("127.0.0.1:9")
    answers = machine.examine()
    assert answers["registry"].found.endswith("the connection was refused")
    assert doctor_questions.choose_exit_code(answers.values()) == RegistryError.code


def test_one_of_several_indexes_may_lack_a_package(machine: Machine) -> None:
    machine.env["PIP_EXTRA_INDEX_URL"] = f"{machine.server.url}/nothing"
    extra = machine.examine()["index"]
    assert extra.state == doctor_questions.WARN
    assert extra.found.endswith("/nothing/uv/: the server answered 404: the lock takes uv from it")


def test_a_public_index_is_not_needed_where_the_machines_own_has_its_wheels(machine: Machine, tmp_path: Path) -> None:
    machine.target = find_variant(read_matrix(DRYDOCK), "cpu")
    pins = doctor_questions.read_pins(DRYDOCK, machine.target)
    (public,) = machine.target.indexes
    first, *others = (wheel for layer in pins.layers.values() for wheel in layer if wheel.name in public.packages)
    with machine.mirrors.open("a") as mirrors:
        mirrors.write(f"indexes: {{{public.url}: http://127.0.0.1:9}}\n")
    machine.env["PIP_FIND_LINKS"] = str(tmp_path)
    page = "".join(f'<a href="{wheel.filename}">{wheel.filename}</a>' for wheel in others)
    machine.server.files |= {f"/simple/{wheel.name}/": page.encode() for wheel in others}

    def ask() -> list[tuple[str, str]]:
        answers = doctor_verb.ask_machine(DRYDOCK, machine.target, machine.env)
        return [(answer.state, answer.found) for answer in answers if "127.0.0.1:9/" in answer.found]

    assert [state for state, _ in ask()] == [doctor_questions.FAIL]
    (tmp_path / first.filename).touch()
    ((state, found),) = ask()
    assert state == doctor_questions.OK
    assert found.endswith(f": not needed, this machine's own indexes have {first.filename}")


def test_an_index_without_the_probe_is_asked_for_itself(machine: Machine) -> None:
    del machine.server.files["/simple/pip/"]
    lacking = machine.examine(target=False)["index"]
    machine.server.files["/simple/"] = b""
    alone = machine.examine(target=False)["index"]
    assert (lacking.state, alone.state) == (doctor_questions.FAIL, doctor_questions.OK)
    assert alone.found == f"{machine.server.url}/simple/, which has no pip"


def test_an_index_without_what_the_lock_takes_from_it_says_what_to_add(machine: Machine) -> None:
    del machine.server.files["/simple/uv/"]
    answer = machine.examine()["index"]
    assert answer.state == doctor_questions.FAIL
    assert answer.remedy.startswith("add uv to the index, or an index that has it (PIP_EXTRA_INDEX_URL)")


def test_a_folder_of_wheels_that_is_not_there_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.env["PIP_FIND_LINKS"] = str(tmp_path / "wheels")
    answer = machine.examine()["find-links"]
    assert (answer.state, answer.found) == (doctor_questions.WARN, f"file://{tmp_path}/wheels: no such file or folder")


def test_a_base_image_needs_room_of_unknown_size(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_preview, "LEAST_NEEDED", 1 << 60)
    assert machine.examine()["disk"].state == doctor_questions.FAIL


def test_a_check_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    monkeypatch.setattr(doctor_questions, "LONGEST", 1.0)
    monkeypatch.setattr(daemon, "find_engine", lambda: time.sleep(60))
    assert machine.examine()["engine"].found == "no answer within 1 s"


def test_bad_mirrors_and_certificates_are_answers_too(machine: Machine, tmp_path: Path) -> None:
    machine.env["PIP_CERT"] = str(tmp_path / "none.pem")
    assert machine.examine()["certificates"].state == doctor_questions.FAIL
    machine.mirrors.write_text("registry: {}\n")
    assert "registry" in machine.examine()["configuration"].found


def test_a_project_whose_ci_installs_a_stranger_is_warned(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("drydock==0.1.0\n")
    answers = doctor_verb.ask_machine(Project(tmp_path, (ROOT,)), None, machine.env)
    [diagnosis] = [answer for answer in answers if answer.name == "project"]
    assert (diagnosis.state, diagnosis.found.partition(": ")[0]) == ("warn", "requirements.txt:1")
    assert "upgrade --write" in diagnosis.remedy
    assert "project" not in machine.examine()


def test_certificates_and_proxies_that_cannot_be_used_are_named_once(machine: Machine, tmp_path: Path) -> None:
    proxy = "socks5h://127.0.0.1:9"
    machine.env |= {"PIP_CERT": f"{tmp_path}/none", "SSL_CERT_FILE": f"{tmp_path}/none", "ALL_PROXY": proxy}
    answers = machine.examine()
    missing = f"PIP_CERT and SSL_CERT_FILE={tmp_path}/none: No such file or directory"
    assert answers["certificates"].found.startswith(missing)
    assert answers["certificates"].state == answers["proxy"].state == doctor_questions.FAIL
    assert answers["proxy"].found.startswith(f"ALL_PROXY={proxy}: a SOCKS proxy needs the package PySocks")
    again = answers["certificates"]._replace(name="index")
    assert doctor_questions.format_diagnoses([answers["certificates"], again]).count("→") == 1
    assert doctor_questions.choose_exit_code(answers.values()) == NetworkSettingsError.code


def test_certificates_of_pips_own_configuration_are_checked_too(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\ncert = {tmp_path}/none\nproxy = socks5://127.0.0.1:9\n")
    machine.env["PIP_CONFIG_FILE"] = str(tmp_path / "pip.conf")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        machine.env.pop(name, None)
    answers = machine.examine()
    assert answers["certificates"].found.startswith(f"{tmp_path}/none: No such file")
    assert answers["proxy"].found.startswith("socks5://127.0.0.1:9: a SOCKS proxy")
