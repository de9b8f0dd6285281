"""The CPU image on a volume that is warm, poisoned, foreign, read-only or full: a served answer, and one clear line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drydock.build import build
from drydock.prove import demo
from tests.support.caches import copied, run

pytestmark = pytest.mark.proves("cpu-vllm0.32", "hardware")

TMP = {"/tmp": "mode=1777"}


class Served(NamedTuple):
    answer: str
    said: tuple[str, ...]
    """Lines of drydock's own."""

    @property
    def warnings(self) -> list[str]:
        """Those that say what is wrong with the volume."""
        return [line for line in self.said if "WARN" in line and "/cache" in line]


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def serve(built: build.Built, model: Path) -> Serve:
    """Serve the model over a cache folder, ask, and return the answer with what was said."""

    def _serve(cache: Path | None, mode: str = "rw", **options: Any) -> Served:
        volumes = {str(model): {"bind": "/models/smollm2", "mode": "ro"}}
        if cache:
            volumes[str(cache)] = {"bind": "/cache", "mode": mode}
        with demo.run_model_server(built.image, model, volumes=volumes, **options) as container:
            demo.wait_until_ready(container)
            answer = demo.ask_chat_question(container, demo.QUESTION)
            container.stop(timeout=30)
            output = container.logs(stdout=False).decode(errors="replace")
        lines = (line.removeprefix("drydock: ") for line in output.splitlines() if line.startswith("drydock: "))
        return Served(answer, tuple(lines))

    return _serve


@pytest.fixture
def volume(warm: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return copied(warm, tmp_path / "cache")


def entries(cache: Path) -> list[Path]:
    return sorted((cache / "compiled").iterdir())


def test_a_poisoned_volume(serve: Serve, volume: Path) -> None:
    poisoned = entries(volume)[-1]
    for path in poisoned.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\x80garbage\xff" * 64)
    served = serve(volume)
    assert demo.EXPECTED in served.answer
    (line,) = served.warnings
    assert f"{poisoned.name}: its entry.json cannot be read; moved to /cache/quarantine/" in line


def test_poisoned_files_of_an_entry_that_looks_whole(serve: Serve, volume: Path) -> None:
    """What vLLM remembers of the model is well-formed and untrue: vLLM refuses to generate, and ends."""
    poisoned = entries(volume)[-1]
    (remembered,) = poisoned.rglob("modelinfos/*LlamaForCausalLM.json")
    text = remembered.read_text()
    untrue = text.replace('"is_text_generation_model": true', '"is_text_generation_model": false')
    assert untrue != text
    remembered.write_text(untrue)
    served = serve(volume)
    assert demo.EXPECTED in served.answer
    (line,) = served.warnings
    assert line.startswith(("WARN vLLM exited with 1 in phase ", "WARN vLLM 0.32.0 refuses this command: "))
    assert "; an earlier start became ready with these caches: starting again" in line
    assert line.endswith(f"and {poisoned.name} of /cache/compiled are moved to /cache/quarantine")
    assert poisoned.name in [path.name.rpartition(".")[0] for path in (volume / "quarantine").iterdir()]


def test_an_entry_names_the_image_and_the_model_that_it_was_made_for(volume: Path) -> None:
    """A server uses no entry with other factors: unit tests of the cache."""
    factors = json.loads((entries(volume)[-1] / "entry.json").read_text())["factors"]
    assert factors["variant"] == "cpu-vllm0.32"
    assert factors["revision"]


def test_an_entry_of_another_user(serve: Serve, volume: Path) -> None:
    theirs = entries(volume)[-1]
    shutil.chown(theirs, 4242, 4242)
    theirs.chmod(0o700)
    served = serve(volume)
    assert demo.EXPECTED in served.answer
    (line,) = (line for line in served.said if "compiles for itself" in line)
    assert f"uid 4242 owns /cache/compiled/{theirs.name}" in line
    assert [line for line in served.said if line.startswith("WARN    PLAN-062")]


@pytest.mark.parametrize("mode", ["mount", pytest.param("permissions", marks=pytest.mark.slow)])
def test_a_read_only_volume(serve: Serve, volume: Path, mode: str) -> None:
    if mode == "permissions":
        volume.chmod(0o555)
        shutil.chown(volume, 0, 0)
    served = serve(volume, "ro" if mode == "mount" else "rw", read_only=True, tmpfs=TMP)
    assert demo.EXPECTED in served.answer
    (line,) = served.warnings
    assert line.startswith("WARN /cache cannot be written: using /tmp/drydock-10001")
    assert [line for line in served.said if line.startswith("cache: copied ")]
    assert [line for line in served.said if line.startswith("cache hit")]


def test_a_full_volume(serve: Serve) -> None:
    served = serve(None, tmpfs={**TMP, "/cache": "size=1m,mode=1777"})
    assert demo.EXPECTED in served.answer
    (line,) = served.warnings
    assert line.startswith("WARN /cache is full: ")


def test_a_cache_that_warm_filled_is_a_hit_on_a_volume_that_imports_it(
    built: build.Built, serve: Serve, volume: Path, tmp_path: Path
) -> None:
    run(built, volume, "cache", "export", "/cache/cache.tar")  # a container's log is text, and would spoil the archive
    shutil.move(volume / "cache.tar", tmp_path / "cache.tar")
    (tmp_path / "other").mkdir()
    shutil.chown(tmp_path / "other", 10001, 0)
    run(built, tmp_path / "other", "cache", "import", "/in.tar", **{"/in.tar": str(tmp_path / "cache.tar")})
    served = serve(tmp_path / "other")
    assert demo.EXPECTED in served.answer
    assert [line for line in served.said if line.startswith("cache hit: compiled for this plan")]
    assert served.warnings == []
