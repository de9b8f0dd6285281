"""Hub ids: from the local cache, from a hub on loopback, and from nowhere."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from drydock.run.standin_run import CONFIG
from entrypoints.core.errors import MODEL, USAGE, EntrypointError
from entrypoints.model.hub import Hub, NotAnswered, fetch_hub_file, find_snapshot, parse_hub
from entrypoints.model.read import Instead, ModelFacts, read_model
from entrypoints.model.weights import Weights
from tests.support.loopback import ThreadedServer
from tests.support.sample import write_model, write_safetensors

FULL = {**CONFIG, "vocab_size": 1000, "intermediate_size": 1024, "tie_word_embeddings": False}
ESTIMATE = 2 * 1000 * 512 + 4 * (2 * 512 * 64 * (8 + 4) + 3 * 512 * 1024)


class Site:
    """A hub on loopback: answers by path, and what was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append((self.path, dict(self.headers)))
                status, body = site.answer(self.path)
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", body.decode())
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadedServer(Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.status: dict[str, int] = {}

    def answer(self, path: str) -> tuple[int, bytes]:
        if path in self.status:
            return self.status[path], self.files.get(path, b"")
        return (200, self.files[path]) if path in self.files else (404, b"")

    def add(self, file: str, value: Any) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.files[f"/owner/model/resolve/main/{file}"] = body


@pytest.fixture
def site() -> Iterator[Site]:
    fake_site = Site()
    with fake_site.server:
        yield fake_site


def read(env: dict[str, str], **kwargs: Any) -> ModelFacts:
    return read_model("owner/model", hub=parse_hub(env, **kwargs))


def refused(env: dict[str, str]) -> EntrypointError:
    with pytest.raises(EntrypointError) as error:
        read(env)
    assert error.value.code == MODEL
    assert error.value.hint
    return error.value


# --- the local cache ------------------------------------------------------------------------------------------------


def cached(home: Path, config: dict[str, Any] = FULL) -> Path:
    """Write a snapshot as huggingface_hub lays it out."""
    repository = home / "hub" / "models--owner--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    return write_model(repository / "snapshots" / "abc", config)


def test_a_cached_model_is_read_without_asking(tmp_path: Path, site: Site) -> None:
    cached(tmp_path)
    model = read({"HF_HOME": str(tmp_path), "HF_ENDPOINT": site.url})

    assert model.weights is not None
    assert (model.weights.elements, model.local, model.name) == (1024, False, "owner/model")
    assert not model.elsewhere
    assert site.asked == []


def test_a_commit_is_its_own_revision(tmp_path: Path) -> None:
    folder = cached(tmp_path)
    env = {"HF_HUB_CACHE": str(tmp_path / "hub")}

    assert find_snapshot(parse_hub(env, revision="abc"), "owner/model") == str(folder)
    assert find_snapshot(parse_hub(env, revision="v2"), "owner/model") == ""
    assert find_snapshot(parse_hub({}, download=str(tmp_path / "hub")), "owner/model") == str(folder)


def test_weights_still_to_come_are_told_by_the_index(tmp_path: Path) -> None:
    folder = cached(tmp_path)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 2000}, "weight_map": {"a": "x.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    model = read({"HF_HOME": str(tmp_path)})

    assert (model.weights, model.elsewhere) == (Weights(2000, 1000, 0), True)
    assert not model.estimated


def test_weights_still_to_come_are_counted_without_an_index(tmp_path: Path) -> None:
    (cached(tmp_path) / "model.safetensors").unlink()
    model = read({"HF_HOME": str(tmp_path)})

    assert (model.weights, model.estimated) == (Weights(0, ESTIMATE, 0), True)
    assert "has no weights yet" in model.unknown


def test_modelscope_writes_dots_as_underscores(tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "Qwen" / "Qwen2___5-7B")
    hub = parse_hub({"VLLM_USE_MODELSCOPE": "True", "MODELSCOPE_CACHE": str(tmp_path)})

    assert read_model("Qwen/Qwen2.5-7B", hub=hub).weights is not None


# --- the hub itself -------------------------------------------------------------------------------------------------


def test_a_mirror_tells_configuration_and_size(site: Site) -> None:
    site.add("config.json", FULL)
    site.add("model.safetensors.index.json", {"metadata": {"total_size": 4000}, "weight_map": {}})
    model = read({"HF_ENDPOINT": site.url + "/", "HF_TOKEN": "secret", "HOME": "/nowhere"})

    assert model.geometry is not None
    assert (model.weights, model.elsewhere) == (Weights(4000, 2000, 0), True)
    assert site.asked[0][1]["Authorization"] == "Bearer secret"


def test_one_file_of_weights_tells_by_its_header(tmp_path: Path, site: Site) -> None:
    write_safetensors(tmp_path / "w", {"a": ("BF16", 60), "b": ("U8", 5)})
    site.add("config.json", FULL)
    site.add("model.safetensors", (tmp_path / "w").read_bytes())
    model = read({"HF_ENDPOINT": site.url})

    assert model.weights is not None
    assert (model.weights.elements, model.weights.other) == (30, 5)
    assert any(headers.get("Range", "").startswith("bytes=0-") for _, headers in site.asked)


@pytest.mark.parametrize("beginning", [b"", b"\x01", struct.pack("<Q", 1 << 40), struct.pack("<Q", 2) + b"[]"])
def test_a_beginning_that_tells_nothing_leaves_an_estimate(site: Site, beginning: bytes) -> None:
    site.add("config.json", FULL)
    site.add("model.safetensors", beginning)
    model = read({"HF_ENDPOINT": site.url})

    assert (model.weights, model.estimated) == (Weights(0, ESTIMATE, 0), True)


def test_the_chat_template_is_asked_for_too(site: Site) -> None:
    site.add("config.json", {**FULL, "architectures": ["LlamaForCausalLM"]})
    site.add("tokenizer_config.json", {"chat_template": "[TOOL_CALLS]"})
    model = read({"HF_ENDPOINT": site.url})

    assert (model.template, model.pooling, model.elsewhere) == ("[TOOL_CALLS]", False, True)


def test_modelscope_is_asked_its_own_way(site: Site) -> None:
    site.files["/api/v1/models/owner/model/repo?Revision=master&FilePath=config.json"] = json.dumps(FULL).encode()
    env = {"VLLM_USE_MODELSCOPE": "true", "MODELSCOPE_DOMAIN": site.url, "HF_TOKEN": "secret"}
    model = read(env)

    assert model.geometry is not None
    assert "Authorization" not in site.asked[0][1]


def test_a_number_does_not_choose_modelscope_as_in_vllm() -> None:
    assert not parse_hub({"VLLM_USE_MODELSCOPE": "1"}).modelscope


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_nobody_and_says_why(site: Site, switch: str) -> None:
    site.add("config.json", FULL)
    model = read({"HF_ENDPOINT": site.url, switch: "1"})

    assert (model.geometry, site.asked) == (None, [])
    assert switch in model.unknown


def test_drydocks_own_switch_is_named_even_without_a_volume(site: Site) -> None:
    model = read({"HF_ENDPOINT": site.url, "DRYDOCK_OFFLINE": "1", "HF_HUB_OFFLINE": "1"})

    assert (model.remedy, site.asked) == ("unset DRYDOCK_OFFLINE", [])
    assert "DRYDOCK_OFFLINE forbids" in model.unknown


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_known_model_needs_no_access(tmp_path: Path, site: Site, code: int) -> None:
    site.status["/owner/model/resolve/main/config.json"] = code
    known_file = tmp_path / "known.json"
    record = {"config": FULL, "parameters": 1000, "source": "a page", "template": "<tool_call>"}
    known_file.write_text(json.dumps({"owner/model": record}))
    hub = parse_hub({"HF_ENDPOINT": site.url})
    model = read_model("owner/model", hub=hub, instead=Instead(known=str(known_file)))

    assert (model.weights, model.known_from, model.elsewhere) == (Weights(2000, 1000, 0), "a page", True)
    assert model.template == "<tool_call>"
    del record["template"]
    known_file.write_text(json.dumps({"owner/model": record}))
    assert read_model("owner/model", hub=hub, instead=Instead(known=str(known_file))).template is None
    assert site.url in model.unanswered
    assert model.remedy.startswith("correct the id")
    with pytest.raises(EntrypointError):
        read_model("owner/other", hub=hub, instead=Instead(known=str(known_file)))


@pytest.mark.parametrize(
    ("name", "local", "elsewhere"),
    [
        ("owner/model", False, False),
        ("owner/other", False, True),
        ("/models/m", True, False),
        ("./m", True, False),
        ("s3://bucket/a/b", False, False),
    ],
)
def test_a_described_model_is_where_its_name_says(tmp_path: Path, name: str, *, local: bool, elsewhere: bool) -> None:
    folder = cached(tmp_path)
    hub, described = parse_hub({"HF_HUB_CACHE": str(tmp_path / "hub")}), Instead(str(folder / "config.json"))
    model = read_model(name, hub=hub, instead=described)
    decided = read_model(name, "gguf", hub, instead=described)

    assert (model.local, model.elsewhere, decided.weights) == (local, elsewhere, None)
    assert model.weights is not None
    assert "--load-format gguf decides" in decided.unknown


@pytest.mark.parametrize("code", [401, 403])
def test_a_gated_model_needs_a_token(site: Site, code: int) -> None:
    site.status["/owner/model/resolve/main/config.json"] = code

    assert str(code) in refused({"HF_ENDPOINT": site.url}).message


def test_a_model_that_is_not_there_is_an_error(site: Site) -> None:
    assert "revision main" in refused({"HF_ENDPOINT": site.url}).message


def test_mistrals_own_params_are_asked_for_too(site: Site) -> None:
    site.add("params.json", {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2})

    assert read({"HF_ENDPOINT": site.url}).geometry is not None


@pytest.mark.parametrize("name", ["owner/model-GGUF:Q4_K_M", "s3://bucket/folder/model"])
def test_what_only_vllm_reads_is_not_asked_for(site: Site, name: str) -> None:
    model = read_model(name, hub=parse_hub({"HF_ENDPOINT": site.url}))

    assert (model.weights, site.asked) == (None, [])
    assert "only vLLM reads" in model.unknown


def test_a_load_format_of_its_own_needs_no_configuration(site: Site) -> None:
    model = read_model("owner/model", "gguf", parse_hub({"HF_ENDPOINT": site.url}))

    assert "--load-format gguf" in model.unknown


def test_a_configuration_that_is_no_json_is_an_error(site: Site) -> None:
    site.add("config.json", b"<html>")

    assert "invalid JSON" in refused({"HF_ENDPOINT": site.url}).message


def test_a_hub_that_fails_leaves_the_model_unknown(site: Site) -> None:
    site.status["/owner/model/resolve/main/config.json"] = 500

    assert "returned 500" in read({"HF_ENDPOINT": site.url}).unknown


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_a_hub_out_of_reach_leaves_the_model_unknown(endpoint: str) -> None:
    model = read({"HF_ENDPOINT": endpoint})

    assert model.weights is None
    assert endpoint in model.unknown


def test_an_endpoint_of_another_kind_is_refused() -> None:
    assert "expected an http" in refused({"HF_ENDPOINT": "file:///etc"}).message


@pytest.mark.parametrize("port", [":9", ""])
def test_a_password_in_the_endpoint_is_not_shown(port: str) -> None:
    unknown = read({"HF_ENDPOINT": f"http://me:hunter2@127.0.0.1{port}"}).unknown
    assert "127.0.0.1" in unknown
    assert "hunter2" not in unknown


def test_the_token_does_not_follow_a_redirect(site: Site) -> None:
    other_site = Site()
    other_site.add("config.json", FULL)
    path = "/owner/model/resolve/main/config.json"
    site.status[path], site.files[path] = 302, f"{other_site.url}{path}".encode()
    with other_site.server:
        model = read({"HF_ENDPOINT": site.url, "HF_TOKEN": "secret"})

    assert model.geometry is not None
    assert "Authorization" not in other_site.asked[0][1]


@pytest.mark.parametrize(
    ("endpoint", "env", "sent"),
    [
        ("http://192.0.2.1:1", {"HF_TOKEN": "secret"}, False),
        ("http://hub.example", {"HUGGING_FACE_HUB_TOKEN": "secret"}, False),
        ("HTTP://hub.example", {"HF_TOKEN": "secret"}, False),
        ("http://localhost.hub.example", {"HF_TOKEN": "secret"}, False),
        ("http://127.0.0.1@hub.example", {"HF_TOKEN": "secret"}, False),
        ("http://[::ffff:192.0.2.1]", {"HF_TOKEN": "secret"}, False),
        ("http://hub.example", {"HF_TOKEN": "secret", "DRYDOCK_INSECURE_HUB": "1"}, True),
        ("http://hub.example", {"HF_TOKEN": "secret", "HF_HUB_OFFLINE": "1"}, True),
        ("http://hub.example", {"HF_TOKEN": " \n"}, True),
        ("http://hub.example", {}, True),
        ("https://hub.example", {"HF_TOKEN": "secret"}, True),
        ("http://localhost:1", {"HF_TOKEN": "secret"}, True),
        ("http://hub.localhost:1", {"HF_TOKEN": "secret"}, True),
        ("http://[::1]:1", {"HF_TOKEN": "secret"}, True),
    ],
)
def test_a_token_goes_to_another_machine_with_tls_only(
    endpoint: str, env: dict[str, str], sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints = list[str]()

    def fetch(hub: Hub, *_: Any, **_more: Any) -> None:
        endpoints.append(hub.endpoint)
        raise NotAnswered("it is not there")

    monkeypatch.setattr("entrypoints.model.read.fetch_hub_file", fetch)
    env = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), **env}
    if sent:
        assert read(env).unanswered
    else:
        with pytest.raises(EntrypointError, match="without TLS, others on the network can read the token") as error:
            read(env)
        assert error.value.code == USAGE
        assert all(way in error.value.hint for way in ("https://", "unset HF_TOKEN", "DRYDOCK_INSECURE_HUB=1"))
        assert "secret" not in str(error.value)
    assert bool(endpoints) == (sent and "HF_HUB_OFFLINE" not in env)


def test_a_model_of_the_cache_is_checked_too_because_vllm_asks_the_hub(tmp_path: Path) -> None:
    write_model(tmp_path / "hub/models--owner--model/snapshots/main", FULL)
    env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://hub.example"}
    assert read(env).geometry is not None
    with pytest.raises(EntrypointError, match="without TLS"):
        read({**env, "HF_TOKEN": "secret"})
    assert read({**env, "HF_TOKEN": "secret", "HF_HUB_OFFLINE": "1"}).geometry is not None


def test_a_tokens_line_ends_are_left_out_as_the_library_does(site: Site) -> None:
    site.add("config.json", FULL)
    read({"HF_ENDPOINT": site.url, "HF_TOKEN": " sec\r\nret\n"})
    assert site.asked[0][1]["Authorization"] == "Bearer secret"


def test_a_stored_token_is_sent_unless_forbidden(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("stored\n")

    assert parse_hub({"HF_HOME": str(tmp_path)}).token == "stored"  # noqa: S105
    assert parse_hub({"HF_HOME": str(tmp_path), "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}).token == ""
    assert parse_hub({"HF_HOME": str(tmp_path), "HF_TOKEN": "own"}).token == "own"  # noqa: S105


# --- certificates ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        ("", "is empty"),
        ("garbage", "holds no certificate"),
        ("-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n", "holds no certificate"),
    ],
)
def test_a_file_without_certificates_is_named_with_its_variable(
    tmp_path: Path, name: str, content: str | None, problem: str
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(EntrypointError) as error:
        read({"HF_ENDPOINT": "https://127.0.0.1:9", name: str(path)})

    assert error.value.code == USAGE
    assert str(error.value).startswith(f"{name}={path}: {problem}; expected a file of CA certificates (PEM)")
    assert error.value.hint.endswith(f"correct or unset {name}")


def test_certificates_count_only_where_they_are_used(tmp_path: Path, site: Site) -> None:
    """Of two variables the first is read, a folder is as good as a file, and plain http and a cache need neither."""
    site.add("config.json", FULL)
    missing = {"SSL_CERT_FILE": f"{tmp_path}/none"}
    assert read({"HF_ENDPOINT": site.url, **missing}).name == "owner/model"
    there = {"HF_ENDPOINT": "https://127.0.0.1:9", **missing}
    with pytest.raises(NotAnswered):
        fetch_hub_file(parse_hub({"REQUESTS_CA_BUNDLE": str(tmp_path), **there}), "owner/model", "config.json")
    cached(tmp_path)
    assert read({"HF_HOME": str(tmp_path), **there}).name == "owner/model"
