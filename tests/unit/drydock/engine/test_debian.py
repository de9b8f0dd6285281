"""apt's configuration while packages of Debian testing are installed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from drydock.core.errors import EngineError
from drydock.engine import daemon, debian

MIRROR = "Debian main deb.example.com http://deb.example.com/debian/"
EARLIER_PIN = "Package: earlier\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """Stub programs of a release whose engine is too old; the source, its pin and the engine's configuration."""
    source, pin, config = tmp_path / "etc/testing.sources", tmp_path / "etc/testing", tmp_path / "etc/daemon.json"
    for program, text in {
        "apt-get": f"""if [ "$1" = indextargets ]; then echo '{MIRROR}'; exit 0; fi
            copies=$(printf '%s\\n' "$@" | sed -n 's/^Dir::Etc::[A-Za-z]*=//p')
            [ "$copies" ] && cat $(printf '%s/* ' $copies) {config} > {tmp_path}/during
            [ -e {source} ] && touch {tmp_path}/source-during
            case "$2" in "$FAILS") [ -z "$copies" ] || {{ echo "E: no network" >&2; exit 100; }};; esac""",
        "apt-cache": "echo '  Candidate: 20.10.24'",
    }.items():
        path = tmp_path / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(debian, "TESTING_SOURCE", source)
    monkeypatch.setattr(debian, "TESTING_PIN", pin)
    monkeypatch.setattr(debian, "is_debian", lambda: True)
    monkeypatch.setattr(daemon, "DAEMON_CONFIG", config)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    pin.parent.mkdir()
    pin.write_text(EARLIER_PIN)
    (source.parent / "third.sources").write_text("URIs: https://third.example\n")
    return source, pin, config


@pytest.mark.parametrize("step", ["update", "install"])
def test_an_installation_that_fails_leaves_the_machine_as_it_was(
    step: str, files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pin, config = files
    monkeypatch.setenv("FAILS", step)
    with pytest.raises(EngineError, match=f"apt-get {step}: exit 100: E: no network") as caught:
        daemon._install_engine()
    assert all(text in caught.value.hint for text in ("backports", "docs.docker.com", "DOCKER_HOST"))
    during = (tmp_path / "during").read_text()
    assert "Pin-Priority: 100" in during
    assert "Suites: testing" in during
    assert "URIs: https://third.example" in during  # this machine's other sources stay
    assert not (tmp_path / "source-during").exists()  # nothing is left by a process that is killed meanwhile
    assert "containerd-snapshotter" in during
    assert (source.exists(), pin.read_text(), config.exists()) == (False, EARLIER_PIN, False)


def test_an_installed_engine_keeps_its_source_for_upgrades(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pin, config = files
    monkeypatch.setenv("FAILS", "nothing")
    daemon._install_engine()
    assert "URIs: http://deb.example.com/debian\n" in source.read_text()
    assert "release a=testing" in pin.read_text()
    assert config.exists()


def _hint(monkeypatch: pytest.MonkeyPatch, release: dict[str, str], uid: int, environment: Path) -> str:
    """Return the hint for a user without an engine on a system."""
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: release)
    monkeypatch.setattr(debian, "is_debian", lambda: release.get("ID") == "debian")
    monkeypatch.setattr("os.geteuid", lambda: uid)
    return debian.explain_engine_setup(environment)


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ({"ID": "debian"}, "as root: `./inv engine`, then `usermod --append --groups docker 54321`"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, "install docker.io and docker-buildx ("),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "install docker.io and docker-buildx ("),
        ({"ID": "fedora"}, "install moby-engine and docker-buildx ("),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "https://docs.docker.com/engine/install/"),
        ({}, "https://docs.docker.com/engine/install/"),
    ],
    ids=["debian", "ubuntu", "mint", "fedora", "rocky", "unknown"],
)
def test_a_user_without_an_engine_is_told_what_root_does(
    release: dict[str, str], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = _hint(monkeypatch, release, 54321, tmp_path / "absent")
    assert command in hint
    assert "usermod --append --groups docker 54321" in hint


def test_root_is_told_how_to_run_what_the_user_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: os.stat_result((0o40755, 0, 0, 1, 1000, 0, 0, 0, 0, 0)))
    assert "as root: `SUDO_UID=1000 ./inv engine`" in _hint(monkeypatch, {"ID": "debian"}, 1000, tmp_path)
    assert "as root: `./inv engine`" in _hint(monkeypatch, {"ID": "debian"}, 1001, tmp_path)


@pytest.mark.parametrize(("folder", "command"), [("", "`systemctl start docker`"), ("absent", "engine`")])
def test_an_engine_that_does_not_run_is_started_by_the_init_system_that_is_there(
    folder: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "SYSTEMD", tmp_path / folder)
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    assert command in debian.explain_engine_setup(tmp_path / "absent", is_installed=True)


def test_a_member_of_the_group_is_not_told_to_join_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = type("Group", (), {"gr_gid": 777})
    monkeypatch.setattr("grp.getgrnam", lambda _: group)
    monkeypatch.setattr("os.getgroups", lambda: [777])
    hint = _hint(monkeypatch, {"ID": "fedora"}, 54321, tmp_path)
    assert "install moby-engine" in hint
    assert "usermod" not in hint
