"""A foundation from a registry counts only if a lock or a signature names it; no registry ends or changes a build."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drydock.build import build, foundation
from drydock.build.build_job import Job
from drydock.core.errors import InputError
from drydock.engine import daemon
from drydock.inputs import indexes
from drydock.model.shared_options import TrustOptions
from drydock.oci import image_layout, strict
from drydock.publish import foundations
from tests.support.fake_registry import Answer
from tests.support.foundations import Change, Shared, left, record, row_without_foundation, unchanged, write
from tests.support.local_registry import PLATFORMS

PLATFORM = PLATFORMS[0]
OTHER = f"sha256:{'0' * 64}"
NO_INDEXES = indexes.parse_config("")
KEY = TrustOptions(verify_key="cosign.pub")
NO_SIGNER = TrustOptions()


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return row_without_foundation(tmp_path_factory.mktemp("row"))


@pytest.fixture
def job(row: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A row whose foundation is not kept, on a machine that waits for nobody."""
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(indexes, "read_indexes", lambda *_: NO_INDEXES)
    for name, seconds in {"TIMEOUT": 0.3, "PATIENCE": 0.4, "PAUSE": 0.0001, "GRACE": 0.5}.items():
        monkeypatch.setattr(foundations, name, seconds)
    monkeypatch.setattr(foundations, "SLOWEST", 1 << 30)
    return row


@pytest.fixture
def foundation_layout(tmp_path: Path) -> Path:
    """The foundation, made on another machine."""
    write(tmp_path / "made")
    return tmp_path / "made"


@pytest.fixture
def committed(job: Job, foundation_layout: Path) -> Job:
    """The row with a lock that has the digest."""
    return record(job, image_layout.read_digest(foundation_layout))


@pytest.fixture
def registry(committed: Job, foundation_layout: Path) -> Iterator[Shared]:
    with Shared(foundation_layout, committed.foundation_key) as shared_registry:
        yield shared_registry


def pulled(job: Job, registry: Shared, trust: TrustOptions = NO_SIGNER) -> bool:
    pull = foundations.make_registry_pull(registry.where, trust)
    assert pull
    return pull(job)


def content(layout: Path) -> dict[str, bytes]:
    return {str(path.relative_to(layout)): path.read_bytes() for path in layout.rglob("*") if path.is_file()}


def test_the_committed_one_is_pulled_by_its_digest(committed: Job, registry: Shared, foundation_layout: Path) -> None:
    assert pulled(committed, registry)
    assert content(committed.foundation) == content(foundation_layout)
    assert left(committed) == [committed.foundation_key]
    assert registry.seen[0].path.endswith(f"/manifests/{image_layout.read_digest(foundation_layout)}")


# --- a registry that is wrong ---------------------------------------------------------------------------------------


def drip(_: Answer) -> Answer:
    """Send a byte now and then, for longer than anybody waits."""

    def pieces() -> Iterator[bytes]:
        for _ in range(2400):  # two minutes
            threading.Event().wait(0.05)
            yield b"x"

    return Answer(200, {"Content-Type": strict.MANIFEST}, pieces())


def sends(data: Callable[[bytes], bytes]) -> Callable[[Answer], Answer]:
    return lambda answer: answer._replace(body=data(answer.body))  # type: ignore[arg-type] - bytes here


def says(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Callable[[Answer], Answer]:
    return lambda _: Answer(status, headers or {}, body)


def promised(answer: Answer) -> Answer:
    """Promise the whole body, and hang up before its end."""
    assert isinstance(answer.body, bytes)
    return Answer(200, {**answer.headers, "Content-Length": str(len(answer.body))}, iter([answer.body[:20]]))


FAULTS: dict[str, Callable[[Answer], Answer]] = {
    "gone": says(404),
    "forbidden": says(403),
    "wants credentials": says(401, {"WWW-Authenticate": "Basic"}),
    "wants odd credentials": says(401, {"WWW-Authenticate": 'Bearer realm="ftp://x"'}),
    "broken": says(500),
    "busy": says(503, {"Retry-After": "0"}),
    "a page of a proxy": says(200, {"Content-Type": "text/html"}, b"<html>Log in</html>"),
    "empty": sends(lambda _: b""),
    "truncated": sends(lambda data: data[: len(data) // 2]),
    "hangs up": promised,
    "longer": sends(lambda data: data + b"x"),
    "one bit": sends(lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "last bit": sends(lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "zeros": sends(lambda data: bytes(len(data))),
    "endless": lambda _: Answer(200, {}, itertools.repeat(bytes(1 << 20))),
    "slow": drip,
    "redirect to itself": says(307, {"Location": "/v2/acme/foundations/manifests/x"}),
    "redirect to nothing": says(307, {"Location": "http://127.0.0.1:9/x"}),
    "redirect to nonsense": says(307, {"Location": "http://[::1/"}),
}
ATTACKS = [(part, fault) for part in ("manifest", "config", "layer") for fault in FAULTS]


@pytest.mark.parametrize(("part", "fault"), ATTACKS, ids=[f"{part} {fault}" for part, fault in ATTACKS])
def test_a_fault_is_one_line_and_leaves_nothing(
    part: str, fault: str, committed: Job, registry: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.faults[part] = FAULTS[fault]
    since = time.monotonic()
    assert not pulled(committed, registry)
    assert time.monotonic() - since < 60
    assert left(committed) == []
    messages = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("pull")]
    assert len(messages) == 1
    assert messages[0].startswith("cpu-vllm0.32: no foundation is pulled, so it is built here: ")


def test_a_registry_that_does_not_answer_costs_seconds(committed: Job, capsys: pytest.CaptureFixture[str]) -> None:
    pull = foundations.make_registry_pull("127.0.0.1:9/acme/foundations", NO_SIGNER)
    assert pull
    assert not pull(committed)
    assert "so it is built here: 127.0.0.1:9: GET" in capsys.readouterr().err
    assert left(committed) == []


def test_an_interrupted_pull_leaves_nothing(committed: Job, registry: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundations, "_receive_blobs", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pulled(committed, registry)
    assert left(committed) == []


# --- who vouches ----------------------------------------------------------------------------------------------------


def test_without_digest_and_key_nothing_is_asked_for(
    job: Job, foundation_layout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Shared(foundation_layout, job.foundation_key) as registry:
        assert not pulled(job, registry)
        assert registry.seen == []
    assert (
        "cpu-vllm0.32/record.json has no digest for it, and no --verify-key says who may sign it"
        in capsys.readouterr().err
    )


def test_a_digest_counts_for_its_own_key_only(job: Job, foundation_layout: Path) -> None:
    digest = image_layout.read_digest(foundation_layout)
    assert record(job, digest, key="1" * 64).committed_foundation is None
    assert record(job, digest).committed_foundation == digest
    newer = job.lock.model_copy(update={"source_date_epoch": job.lock.source_date_epoch + 1})
    assert replace(record(job, digest), lock=newer).committed_foundation is None


def test_a_tag_that_names_another_one_changes_nothing(
    committed: Job, registry: Shared, foundation_layout: Path, tmp_path: Path
) -> None:
    write(tmp_path / "evil", config=lambda config: config.update(config={"Env": ["LD_PRELOAD=/evil.so"]}))
    registry.serve(tmp_path / "evil", committed.foundation_key)
    assert pulled(committed, registry)
    assert content(committed.foundation) == content(foundation_layout)


def test_a_job_with_replaced_contexts_takes_none(committed: Job, registry: Shared, tmp_path: Path) -> None:
    assert not pulled(replace(committed, context_overrides={"wheels": str(tmp_path)}), registry)
    assert registry.seen == []


def cosign(folder: Path, script: str, patch: pytest.MonkeyPatch) -> Path:
    """Put a cosign on PATH that notes its words."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "cosign"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/words\n{script}\n')
    program.chmod(0o755)
    patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return folder / "words"


def test_a_signed_one_counts_if_the_signature_is_for_its_key(
    job: Job, foundation_layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = cosign(tmp_path, f"echo {image_layout.read_digest(foundation_layout)}", monkeypatch)
    with Shared(foundation_layout, job.foundation_key) as registry:
        assert pulled(job, registry, KEY)
    assert content(job.foundation) == content(foundation_layout)
    assert f"--annotations=io.drydock.foundation={job.foundation_key} " in words.read_text()
    assert "--key cosign.pub " in words.read_text()


def test_an_unsigned_one_is_not_even_parsed(
    job: Job,
    foundation_layout: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cosign(tmp_path, "echo 'Error: no signatures found' >&2; exit 1", monkeypatch)
    with Shared(foundation_layout, job.foundation_key) as registry:
        registry.faults["manifest"] = sends(lambda _: b"[" * 100_000)
        assert not pulled(job, registry, KEY)
    assert "no valid signature: no signatures found" in capsys.readouterr().err


def test_without_cosign_it_is_built_here(
    job: Job, foundation_layout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with Shared(foundation_layout, job.foundation_key) as registry:
        assert not pulled(job, registry, KEY)
    assert "so it is built here: cosign: not found on PATH" in capsys.readouterr().err


WRONG: dict[str, tuple[Change, Change]] = {
    "another platform": (lambda config: config.update(architecture="arm64"), unchanged),
    "another system": (lambda config: config.pop("os"), unchanged),
    "no history": (lambda config: config.pop("history"), unchanged),
    "no layers in the config": (lambda config: config.pop("rootfs"), unchanged),
    "fewer layers in the config": (lambda config: config["rootfs"]["diff_ids"].pop(), unchanged),
    "a config that is a list": (lambda config: config.update(rootfs=[]), unchanged),
    "no layers": (unchanged, lambda manifest: manifest["layers"].clear()),
    "many layers": (unchanged, lambda manifest: manifest.update(layers=manifest["layers"] * 64)),
    "a layer of another kind": (unchanged, lambda manifest: manifest["layers"][0].update(mediaType="\x1b]0;x\x07")),
    "a huge layer": (unchanged, lambda manifest: manifest["layers"][0].update(size=1 << 50)),
    "a huge config": (unchanged, lambda manifest: manifest["config"].update(size=1 << 30)),
    "a smaller size": (unchanged, lambda manifest: manifest["layers"][0].update(size=1)),
    "a larger size": (unchanged, lambda manifest: manifest["layers"][0].update(size=5000)),
    "a negative size": (unchanged, lambda manifest: manifest["layers"][0].update(size=-1)),
    "a path as digest": (unchanged, lambda manifest: manifest["config"].update(digest="sha256:../../x")),
    "an index at once": (unchanged, lambda manifest: manifest.update(manifests=[])),
    "Docker's manifest": (unchanged, lambda manifest: manifest.update(mediaType=strict.DOCKER_MANIFEST)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_foundation_is_refused_although_its_digest_is_committed(
    name: str, job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, manifest = WRONG[name]
    digest = write(tmp_path / "wrong", config=config, manifest=manifest)
    data = image_layout.path_of_blob(tmp_path / "wrong", digest).read_bytes()
    write(tmp_path / "right")
    with Shared(tmp_path / "right") as registry:
        for path in (tmp_path / "wrong" / "blobs" / "sha256").iterdir():
            registry.served[f"blobs/sha256:{path.name}"] = "blob", Answer(200, {}, path.read_bytes())
        registry.served[f"manifests/{digest}"] = "manifest", Answer(200, {"Content-Type": strict.MANIFEST}, data)
        assert not pulled(record(job, digest), registry)
    stderr = capsys.readouterr().err
    assert "so it is built here: " in stderr
    assert "\x1b" not in stderr
    assert left(job) == []


# --- the build ------------------------------------------------------------------------------------------------------


@pytest.fixture
def builds(foundation_layout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect what BuildKit is asked for; no image is kept."""
    write(tmp_path / "image")
    built_parts: list[str] = []

    def make(_: object, layout: Path, *__: object) -> None:
        built_parts.append("foundation")
        shutil.copytree(foundation_layout, layout, dirs_exist_ok=True)

    def complete(_: object, layout: Path, below: Path, *__: object) -> None:
        built_parts.append(f"image on {image_layout.read_digest(below)}")
        shutil.copytree(tmp_path / "image", layout, dirs_exist_ok=True)

    monkeypatch.setattr(daemon, "ensure_engine", lambda **_: None)
    monkeypatch.setattr(build, "fetch_contexts", lambda *_, **__: {"entrypoints": ""})
    monkeypatch.setattr(build, "bake_file", lambda *_: {})
    monkeypatch.setattr(foundation, "build_foundation", make)
    monkeypatch.setattr(foundation, "complete_image", complete)
    return built_parts


def built(job: Job, registry: Shared, **how: bool) -> build.Built:
    pull = foundations.make_registry_pull(registry.where, NO_SIGNER)
    return build.build_image(job, into_engine=False, pull=pull, **how)


def test_a_build_stands_on_a_pulled_foundation(
    committed: Job, registry: Shared, foundation_layout: Path, builds: list[str]
) -> None:
    assert "pull" in built(committed, registry).phases
    assert builds == [f"image on {image_layout.read_digest(foundation_layout)}"]


@pytest.mark.parametrize("fault", ["gone", "one bit", "truncated"])
def test_a_wrong_registry_does_not_change_a_build(
    fault: str, committed: Job, registry: Shared, foundation_layout: Path, builds: list[str]
) -> None:
    registry.faults["layer"] = FAULTS[fault]
    built(committed, registry)
    assert builds == ["foundation", f"image on {image_layout.read_digest(foundation_layout)}"]


@pytest.mark.parametrize("how", [{"no_cache": True}, {"may_use_network": False}])
def test_a_build_without_cache_or_network_asks_no_registry(
    how: dict[str, bool], committed: Job, registry: Shared, builds: list[str]
) -> None:
    built(committed, registry, **how)
    assert builds[0] == "foundation"
    assert registry.seen == []


def test_a_kept_foundation_is_not_pulled_again(
    committed: Job, registry: Shared, foundation_layout: Path, builds: list[str]
) -> None:
    shutil.copytree(foundation_layout, committed.foundation)
    built(committed, registry)
    assert registry.seen == []
    assert builds == [f"image on {image_layout.read_digest(foundation_layout)}"]


# --- what the user names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registry", "trust", "problem"),
    [
        ("", KEY, "--verify-key, --identity and --insecure are for foundations"),
        ("acme.example/a:tag", NO_SIGNER, "expected host and repository"),
        (f"acme.example/a@{OTHER}", NO_SIGNER, "expected host and repository"),
        ("acme.example/A b", NO_SIGNER, "invalid repository"),
        ("acme.example/a", TrustOptions(identity="me"), "--identity and --issuer require each other"),
        (
            "acme.example/a",
            TrustOptions(verify_key="k", identity="me", issuer="https://issuer.example"),
            "exclude each other",
        ),
    ],
)
def test_wrong_options_are_errors_before_anything_is_built(registry: str, trust: TrustOptions, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        foundations.make_registry_pull(registry, trust)


def test_without_a_registry_nothing_is_pulled() -> None:
    assert foundations.make_registry_pull("", NO_SIGNER) is None
