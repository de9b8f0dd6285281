"""apt's configuration while packages of Debian testing are installed."""

from __future__ import annotations

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
            [ -e {source} ] && cat {pin} {config} > {tmp_path}/during
            case "$2" in "$FAILS") [ ! -e {source} ] || {{ echo "E: no network" >&2; exit 100; }};; esac""",
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
    return source, pin, config


@pytest.mark.parametrize("step", ["update", "install"])
def test_an_installation_that_fails_leaves_the_machine_as_it_was(
    step: str, files: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, pin, config = files
    monkeypatch.setenv("FAILS", step)
    with pytest.raises(EngineError, match=f"apt-get {step}.*E: no network"):
        daemon._install_engine()
    during = (tmp_path / "during").read_text()
    assert "Pin-Priority: 100" in during
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
