"""`model pull`: from a hub on loopback, in Hugging Face's and ModelScope's own APIs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from drydock.config.server_access import Access
from drydock.core.errors import DiskFullError, FetchError, InputError
from drydock.inputs import hub, models
from drydock.inputs.hub import HubAddress
from drydock.inputs.models import MANIFEST, check_folder, pull_model, read_folder

if TYPE_CHECKING:
    from tests.support.loopback import Loopback

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = bytes(range(256)) * (1 << 12)
FILES = {
    "config.json": b'{"architectures": []}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"the same",
    "original/consolidated.00.pth": b"again",
    "tokenizer/vocab.txt": b"a\nb\n",
}
SMALL = ("config.json", "tokenizer/vocab.txt")
LISTED = "/api/models/org/name/revision/main?blobs=true"


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def sibling(path: str, data: bytes) -> dict[str, Any]:
    entry = {"rfilename": path, "size": len(data), "blobId": blob_id(data)}
    if path in SMALL:
        return entry
    return entry | {"lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}


def list_files(server: Loopback, siblings: list[Any], path: str = LISTED) -> None:
    server.files[path] = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()


@pytest.fixture
def env(server: Loopback, tmp_path: Path) -> dict[str, str]:
    """Fill the hub; return the environment that names it."""
    list_files(server, [sibling(path, data) for path, data in FILES.items()])
    for path, data in FILES.items():
        server.files[f"/org/name/resolve/{COMMIT}/{path}"] = data
    return {"HF_ENDPOINT": server.url, "DRYDOCK_CACHE": str(tmp_path / "cache"), "HF_TOKEN": "secret"}


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_model_arrives_whole_with_the_hashes_of_its_commit(env: dict[str, str], tmp_path: Path) -> None:
    pulled = pull_model("org/name", tmp_path / "m", env=env)

    assert (pulled.hub, pulled.revision, pulled.files, pulled.new) == ("Hugging Face", COMMIT, 3, True)
    assert contents(tmp_path / "m") == {"config.json", "model.safetensors", "tokenizer/vocab.txt", MANIFEST}
    assert pulled.left_out == ("original/consolidated.00.pth", "pytorch_model.bin")
    model_folder = read_folder(tmp_path / "m")
    assert model_folder.files["model.safetensors"].sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "m"]


def test_everything_takes_the_other_formats_too(env: dict[str, str], tmp_path: Path) -> None:
    assert pull_model("org/name", tmp_path / "m", everything=True, env=env).files == len(FILES)


def test_the_token_goes_to_the_hub_and_not_to_what_it_redirects_to(
    env: dict[str, str], server: Loopback, other_server: Loopback, tmp_path: Path
) -> None:
    other_server.files["/bucket"] = WEIGHTS
    server.redirects[f"/org/name/resolve/{COMMIT}/model.safetensors"] = f"{other_server.url}/bucket"
    pull_model("org/name", tmp_path / "m", env=env)

    assert {authorization for *_, authorization in server.requests} == {"Bearer secret"}
    assert [authorization for *_, authorization in other_server.requests] == [None]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("url", "token", "refused"),
    [
        ("http://hub.example", "secret", "can read HF_TOKEN"),
        ("http://192.0.2.1:8080/", "secret", "can read HF_TOKEN"),
        ("HTTP://hub.example", "secret", "can read HF_TOKEN"),
        ("http://localhost@hub.example", "secret", "can read HF_TOKEN"),
        ("http://me:pass@hub.example", "", "can read its password"),
        ("http://hub.example", "", ""),
        ("https://hub.example", "secret", ""),
        ("hub.example", "secret", ""),
    ],
)
def test_a_secret_goes_to_another_machine_with_tls_only(
    hub_accesses: list[Access], tmp_path: Path, named: bool, url: str, token: str, refused: str
) -> None:
    env = {"DRYDOCK_CACHE": str(tmp_path / "cache"), "HF_TOKEN": token} | ({} if named else {"HF_ENDPOINT": url})
    where = HubAddress(url if named else "")
    with pytest.raises(InputError if refused else FetchError, match=refused or "it is not there") as error:
        pull_model("org/name", tmp_path / "m", where=where, env=env)
    assert len(hub_accesses) == (not refused)
    assert "pass" not in str(error.value).replace("password", "")

    with pytest.raises(FetchError, match="it is not there"):
        pull_model("org/name", tmp_path / "m", where=where._replace(insecure=True), env=env)
    assert [*hub_accesses[-1].tokens.values()] == ([token] if token else [])


@pytest.fixture
def hub_accesses(monkeypatch: pytest.MonkeyPatch) -> list[Access]:
    """Return how hubs were asked, none of which is there."""
    accesses = list[Access]()

    def read_small(_url: str, _what: str, reached: Access) -> bytes:
        accesses.append(reached)
        raise FetchError("it is not there")

    monkeypatch.setattr(hub, "read_small", read_small)
    return accesses


def test_modelscope_gets_no_token_so_that_plain_http_is_no_matter(hub_accesses: list[Access], tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="it is not there"):
        pull_model(
            "modelscope:org/name", tmp_path / "m", where=HubAddress("http://ms.example"), env={"HF_TOKEN": "secret"}
        )
    assert [reached.tokens for reached in hub_accesses] == [{}]


def test_a_hub_on_this_machine_gets_the_token_without_a_proxy(
    env: dict[str, str], other_server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", other_server.url)
    monkeypatch.setenv("no_proxy", "")
    assert pull_model("org/name", tmp_path / "m", env=env).new
    assert other_server.requests == []


@pytest.mark.parametrize("token", ["sec\nret", "secr\u00e9t", "a\x00b"])
def test_a_token_that_no_header_can_have_is_named(env: dict[str, str], tmp_path: Path, token: str) -> None:
    with pytest.raises(InputError, match="HF_TOKEN: expected printable ASCII"):
        pull_model("org/name", tmp_path / "m", env={**env, "HF_TOKEN": token})


def test_an_interrupted_download_resumes_and_no_partial_folder_looks_complete(
    env: dict[str, str], server: Loopback, tmp_path: Path
) -> None:
    weights = f"/org/name/resolve/{COMMIT}/model.safetensors"
    server.faults[weights] = ["cut", *["404"] * 9]
    with pytest.raises(FetchError):
        pull_model("org/name", tmp_path / "m", env=env)
    assert not (tmp_path / "m").exists()
    server.faults.clear()
    pull_model("org/name", tmp_path / "m", env=env)

    assert server.ranges(weights)[-1] == f"bytes={len(WEIGHTS) // 2}-"
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize("path", ["model.safetensors", "config.json"])
def test_other_content_than_the_hub_announced_is_refused(
    env: dict[str, str], server: Loopback, tmp_path: Path, path: str
) -> None:
    server.files[f"/org/name/resolve/{COMMIT}/{path}"] = bytes(len(FILES[path]))
    with pytest.raises(FetchError, match=f"{path}.*expected"):
        pull_model("org/name", tmp_path / "m", env=env)

    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "path", ["../up", "/etc/passwd", "a/../../b", "a//b", ".", "", "a\x1b[2J", "a\\b", "n" * 300, "a/./b", "a\n"]
)
def test_a_hostile_name_is_refused_before_anything_is_written(
    env: dict[str, str], server: Loopback, tmp_path: Path, path: str
) -> None:
    list_files(server, [sibling("config.json", b"{}"), sibling(path, b"x")])
    with pytest.raises(FetchError, match="not safe as a path"):
        pull_model("org/name", tmp_path / "m", env=env)

    assert not list(tmp_path.glob("*m*"))


@pytest.mark.parametrize(
    ("siblings", "message"),
    [
        ([], "lists no files"),
        ([sibling("a", b"x"), sibling("a", b"x")], "given twice"),
        ([sibling("a", b"x"), sibling("a/b", b"x")], "given as a file and as a folder"),
        ([{"rfilename": "a", "size": 1}], "no hash"),
        ([{"rfilename": "a", "size": -1, "blobId": "0" * 40}], "as its size"),
        (["a"], "no list 'siblings'"),
        ([sibling("a", b"x")] * 20_001, "at most 20000"),
    ],
)
def test_a_list_that_makes_no_folder_is_refused(
    env: dict[str, str], server: Loopback, tmp_path: Path, siblings: list[Any], message: str
) -> None:
    list_files(server, siblings)
    with pytest.raises(FetchError, match=message):
        pull_model("org/name", tmp_path / "m", env=env)


@pytest.mark.parametrize("name", ["name", "org/name/x", "../org/name", "modelscope:name", "/models/x", "org/na me"])
def test_a_model_is_an_organisation_and_a_name(env: dict[str, str], tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="expected ORG/NAME"):
        pull_model(name, tmp_path / "m", env=env)


def test_a_gated_model_says_which_token_was_sent(env: dict[str, str], server: Loopback, tmp_path: Path) -> None:
    server.faults[LISTED] = ["401"]
    with pytest.raises(FetchError, match="answered 401") as error:
        pull_model("org/name", tmp_path / "m", env=env)

    assert "HF_TOKEN has no access" in error.value.hint


def test_a_complete_folder_is_checked_and_left_alone(env: dict[str, str], server: Loopback, tmp_path: Path) -> None:
    pull_model("org/name", tmp_path / "m", env=env)
    server.requests.clear()
    assert not pull_model("org/name", tmp_path / "m", env=env).new
    assert [path for path, *_ in server.requests] == [LISTED]

    (tmp_path / "m" / "config.json").chmod(0o644)
    (tmp_path / "m" / "config.json").write_bytes(b'{"architectures": {}}')
    with pytest.raises(FetchError, match=r"config\.json: missing, or changed"):
        pull_model("org/name", tmp_path / "m", env=env)
    with pytest.raises(FetchError, match=r"config\.json"):
        check_folder(tmp_path / "m", read_folder(tmp_path / "m"))


def test_a_folder_with_other_files_is_not_touched(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine").write_text("x")
    with pytest.raises(InputError, match="is not empty"):
        pull_model("org/name", tmp_path / "m", env=env)

    assert contents(tmp_path / "m") == {"mine"}


def test_a_disk_without_room_is_an_error_before_the_download(
    env: dict[str, str], server: Loopback, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_SLACK", 1 << 60)
    with pytest.raises(DiskFullError, match="nothing was downloaded"):
        pull_model("org/name", tmp_path / "m", env=env)

    assert [path for path, *_ in server.requests] == [LISTED]


def test_modelscope_is_asked_in_its_own_way_and_gets_no_token(
    server: Loopback, env: dict[str, str], tmp_path: Path
) -> None:
    base = "/api/v1/models/org/name/repo"
    files = [{"Path": "tokenizer", "Type": "tree", "Size": 0, "Sha256": ""}]
    for path in ("config.json", "model.safetensors", "tokenizer/vocab.txt"):
        data = FILES[path]
        files.append({"Path": path, "Type": "blob", "Size": len(data), "Sha256": hashlib.sha256(data).hexdigest()})
        server.files[f"{base}?Revision=v1.0&FilePath={path.replace('/', '%2F')}"] = data
    listed = {"Code": 200, "Success": True, "Data": {"Files": files}}
    server.files[f"{base}/files?Revision=v1.0&Recursive=true"] = json.dumps(listed).encode()
    pulled = pull_model(
        "modelscope:org/name", tmp_path / "m", revision="v1.0", env={**env, "MODELSCOPE_DOMAIN": server.url}
    )

    assert (pulled.hub, pulled.revision, pulled.files) == ("ModelScope", "v1.0", 3)
    assert (tmp_path / "m" / "tokenizer" / "vocab.txt").read_bytes() == FILES["tokenizer/vocab.txt"]
    assert {authorization for *_, authorization in server.requests} == {None}
