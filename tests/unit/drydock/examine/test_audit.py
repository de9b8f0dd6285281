"""Violations of the hardening policy, planted into images of a few kilobytes: each is found, and nothing else."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from drydock.build import render
from drydock.build.build_job import Job, prepare_job
from drydock.config.hardening_policy import POLICY_FILE, find_secrets, read_policy
from drydock.config.matrix import read_matrix
from drydock.config.project_choice import DRYDOCK
from drydock.core.errors import HardeningError, InputError
from drydock.core.paths import ROOT
from drydock.examine import audit, hardening
from drydock.examine.audit import Audited
from drydock.examine.hardening import ACCOUNT
from drydock.model.record import dump_record
from drydock.model.variant import Variant
from tests.support import layouts
from tests.support.cases import for_each

SITE = "opt/venv/lib/python3.11/site-packages"
PASSWD = f"root:*:0:0:root:/root:/bin/bash\n{ACCOUNT}\n"
GROUP = "root:*:0:\nshadow:*:42:\n"
STATUS = "Package: gcc-12-base\nStatus: install ok installed\nArchitecture: amd64\nVersion: 12\n\n"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{'A' * 64}\n-----END RSA PRIVATE KEY-----\n"


class Put(NamedTuple):
    """A file or folder in a layer."""

    path: str
    text: str = ""
    mode: int = 0o644
    owner: tuple[int, int] = (0, 0)
    kind: bytes = tarfile.REGTYPE
    attributes: Mapping[str, str] = {}


BASE = [
    Put("", mode=0o755, kind=tarfile.DIRTYPE),
    Put("tmp", mode=0o1777, kind=tarfile.DIRTYPE),
    Put("etc/passwd", PASSWD),
    Put("etc/group", GROUP),
    Put("var/lib/dpkg/status", STATUS),
    Put("usr/bin/su", "su", mode=0o755),
    Put(f"{SITE}/ninja-1.13.0.dist-info/METADATA", "Name: ninja"),
    Put("usr/bin/sh", kind=tarfile.SYMTYPE, mode=0o777),
    Put("usr/lib/libcrypto.so", "-----BEGIN PRIVATE KEY-----\0-----END PRIVATE KEY-----"),
    Put(f"{SITE}/tokens.py", "KEY = 'hf_xxx'; URL = 'http://user:password@example.com'"),
    Put("cache", mode=0o775, kind=tarfile.DIRTYPE),
]
CONFIG = {"config": {"User": "10001:0", "Env": ["PATH=/usr/bin", "HOME=/cache/home"]}, "history": []}


@pytest.fixture(scope="session")
def job() -> Job:
    return prepare_job(DRYDOCK, "cpu")


def image(folder: Path, *layers: list[Put], config: Mapping[str, Any] = CONFIG) -> Path:
    return layouts.write(folder, *map(tar, layers), config=config, suffix="+gzip")


def tar(entries: list[Put]) -> bytes:
    return layouts.tar((f"./{file.path}", file.text.encode(), fields(file)) for file in entries)


def fields(file: Put) -> dict[str, Any]:
    uid, gid = file.owner
    return {"mode": file.mode, "type": file.kind, "uid": uid, "gid": gid, "pax_headers": dict(file.attributes)}


def look(job: Job, folder: Path, *planted: Put, **changes: Any) -> Audited:
    return audit.audit_layout(job, image(folder / "layout", BASE, list(planted), **changes))


def test_an_image_without_violations_passes(job: Job, tmp_path: Path) -> None:
    report = look(job, tmp_path)
    assert report.findings == ()
    assert [(item.path, bool(item.because)) for item in report.allowed] == [(f"{SITE}/ninja-1.13.0.dist-info", True)]
    audit.enforce_hardening(report)
    assert "no findings" in audit.format_audit(report)


PLANTED = {
    "a private key": (Put("opt/app/key", KEY), "secrets: opt/app/key: private key (layer 1)"),
    "a key in JSON": (Put("opt/a.json", json.dumps({"k": KEY})), "secrets: opt/a.json: private key (layer 1)"),
    "pip's configuration": (
        Put("etc/pip.conf", "[global]"), "secrets: etc/pip.conf: package indexes with passwords (layer 1)",
    ),
    "netrc": (Put("root/.netrc"), "secrets: root/.netrc: passwords (layer 1)"),
    "a token": (Put("opt/t", f"x = hf_{'b' * 34} "), "secrets: opt/t: Hugging Face token (layer 1)"),
    "a password in a URL": (
        Put("etc/apt/sources.list", "deb https://me:hidden@mirror.example/debian x"),
        "secrets: etc/apt/sources.list: password in a URL (layer 1)",
    ),
    "a compiler": (
        Put("var/lib/dpkg/status", STATUS.replace("gcc-12-base", "gcc-12")), "tools: deb gcc-12: compiler",
    ),
    "headers": (
        Put("var/lib/dpkg/status", STATUS.replace("gcc-12-base", "libc6-dev")), "tools: deb libc6-dev: compiler",
    ),
    "a linker": (Put("usr/local/bin/ld", mode=0o755), "tools: usr/local/bin/ld: compiler (layer 1)"),
    "pip": (
        Put(f"{SITE}/pip-24.dist-info/METADATA"), f"tools: {SITE}/pip-24.dist-info: package manager (layer 1)",
    ),
    "lists of packages": (
        Put("var/lib/apt/lists/a"), "tools: var/lib/apt/lists/a: package manager leftovers (layer 1)",
    ),
    "setuid": (
        Put("opt/x", "x", mode=0o4755), "rights: opt/x: runs as its owner 0:0: mode 4755 (layer 1)",
    ),
    "a capability": (
        Put("opt/x", attributes={hardening.CAPABILITY: "x"}), "rights: opt/x: has capabilities (layer 1)",
    ),
    "a device": (Put("opt/null", kind=tarfile.CHRTYPE), "rights: opt/null: is a device (layer 1)"),
    "a path writable by everyone": (
        Put("opt/x", mode=0o666), "writable: opt/x: writable by everyone: 0:0, mode 0666 (layer 1)",
    ),
    "tmp without its sticky bit": (
        Put("tmp", mode=0o777, kind=tarfile.DIRTYPE),
        "writable: tmp: writable by everyone: 0:0, mode 0777 (layer 1)",
    ),
    "a path writable by the image's user": (
        Put("opt/x", mode=0o664), "writable: opt/x: writable by the image's user 10001:0: 0:0, mode 0664 (layer 1)",
    ),
    "an unknown owner": (
        Put("opt/x", owner=(1234, 0)),
        "user: opt/x: its owner 1234:0 is not in passwd or group (layer 1)",
    ),
    "an account without a password": (
        Put("etc/passwd", PASSWD.replace("root:*", "root:")), "user: etc/passwd: root has an empty password",
    ),
    "a password": (Put("etc/shadow", "root:$y$hash:1::::::\n"), "user: etc/shadow: root has a password"),
    "another user": (
        Put("etc/passwd", PASSWD.replace("nologin", "bash")),
        f"user: etc/passwd: {ACCOUNT.replace('nologin', 'bash')}, expected {ACCOUNT}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_each_violation_is_reported(case: str, job: Job, tmp_path: Path) -> None:
    planted, problem = PLANTED[case]
    with pytest.raises(HardeningError) as caught:
        audit.enforce_hardening(look(job, tmp_path, planted))
    assert caught.value.problems == (problem,)
    assert (caught.value.code, POLICY_FILE in caught.value.hint) == (17, True)


def test_a_secret_that_a_later_layer_removes_is_reported(job: Job, tmp_path: Path) -> None:
    layout = image(tmp_path, BASE, [Put("opt/key", KEY)], [Put("opt/.wh.key")])
    assert [(item.path, item.layer) for item in audit.audit_layout(job, layout).findings] == [("opt/key", 1)]


def test_a_tool_that_a_later_layer_removes_is_not_reported(job: Job, tmp_path: Path) -> None:
    layout = image(tmp_path, BASE, [Put("usr/bin/gcc")], [Put("usr/bin/.wh.gcc")])
    assert audit.audit_layout(job, layout).findings == ()


def test_a_secret_across_two_pieces_is_found(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "READ", 4096)
    report = look(job, tmp_path, Put("opt/x", f"{'.' * 4060}{KEY}"))
    assert [item.found for item in report.findings] == ["private key"]


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"User": ""}, "user: USER: root, expected 10001:0"),
        ({"Env": ["HTTPS_PROXY=http://proxy:3128"]}, "secrets: ENV HTTPS_PROXY: is set in the image"),
        ({"Env": ["HF_TOKEN=x"]}, "secrets: ENV HF_TOKEN: is set in the image"),
        ({"Labels": {"a": "https://me:hidden@host"}}, "secrets: LABEL: password in a URL"),
    ],
)  # fmt: skip
def test_the_configuration_is_audited(job: Job, tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    changed = {**CONFIG, "config": {**CONFIG["config"], **config}}  # type: ignore[dict-item] - a JSON value
    with pytest.raises(HardeningError) as caught:
        audit.enforce_hardening(look(job, tmp_path, config=changed))
    assert caught.value.problems == (problem,)


def test_a_build_argument_in_the_history_is_found(job: Job, tmp_path: Path) -> None:
    history = [{"created_by": f"ARG TOKEN=ghp_{'a' * 36}"}]
    report = look(job, tmp_path, config={**CONFIG, "history": history})
    assert [(item.path, item.found) for item in report.findings] == [("history", "GitHub token")]


def test_an_address_of_this_machine_is_reported(job: Job, tmp_path: Path) -> None:
    env = {"https_proxy": "http://me:hidden@proxy.corp.example:3128", "PIP_CONFIG_FILE": "/dev/null"}
    patterns = audit.machine_patterns(env)
    layout = image(tmp_path / "layout", BASE, [Put("opt/log", "by way of me:hidden@proxy.corp.example:3128/")])
    report = audit.audit_layout(job, layout, patterns)
    assert [(item.path, item.found) for item in report.findings] == [("opt/log", "an address of the build machine")]
    assert "hidden" not in json.dumps(dump_record(report))
    assert audit.machine_patterns({"PIP_CONFIG_FILE": "/dev/null"}) == ()


def test_an_image_that_is_not_built(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRYDOCK_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="no image was built"):
        audit.audit_job(job)


# --- base images ----------------------------------------------------------------------------------------------------


def of(accelerator: str, kind: str) -> Job:
    variants = read_matrix(DRYDOCK)
    matching_rows = [item for item in variants if item.accelerator == accelerator and item.base.kind == kind]
    return prepare_job(DRYDOCK, matching_rows[0].id)


def test_a_variant_that_compiles_at_run_time_may_contain_a_compiler(tmp_path: Path) -> None:
    gcc = Put("var/lib/dpkg/status", STATUS.replace("gcc-12-base", "g++-12"))
    assert look(of("cuda", "debian"), tmp_path, gcc).findings == ()


def test_findings_in_a_vendors_base_do_not_fail_the_audit(tmp_path: Path) -> None:
    job = of("habana", "image")
    dockerfile = (ROOT / "images" / job.variant.id / "Dockerfile").read_text()
    added: list[list[Put]] = [[] for _ in range(hardening.own_layers(dockerfile))]
    added[0] = [Put("opt/mine", mode=0o666)]
    vendors = [*BASE, Put("usr/bin/sudo", mode=0o4755), Put("usr/bin/gcc", mode=0o755)]
    report = audit.audit_layout(job, image(tmp_path, vendors, [Put("etc/pip.conf")], *added))
    assert [item.path for item in report.findings] == ["opt/mine"]
    assert {"usr/bin/sudo", "usr/bin/gcc", "etc/pip.conf"} <= {item.path for item in report.of_base}
    assert "in the base: " in audit.format_audit(report)


@for_each(read_matrix(DRYDOCK), lambda variant: variant.id)
def test_no_file_that_every_image_gets_looks_like_a_secret(variant: Variant) -> None:
    files = {f"opt/drydock/{name}": data for name, data in render.image_files(DRYDOCK, variant).items()}
    assert "opt/drydock/failures.json" in files
    policy = read_policy(DRYDOCK)
    kinds = {path: [*find_secrets(path, data, policy.patterns)] for path, data in files.items()}
    assert kinds == {path: [] for path in files}


# --- Dockerfiles ----------------------------------------------------------------------------------------------------


@pytest.mark.golden
@for_each(read_matrix(DRYDOCK), lambda variant: variant.id)
def test_no_step_of_a_committed_dockerfile_uses_the_network(variant: Variant) -> None:
    text = (ROOT / "images" / variant.id / "Dockerfile").read_text()
    assert [step for step in hardening.split_instructions(text) if step.startswith("RUN ")]
    assert list(hardening.find_network_steps(text)) == []


def test_a_step_that_could_use_the_network_is_reported() -> None:
    text = "FROM base\n# RUN curl\nRUN --network=none a; \\\n  b\nRUN pip install \\\n  x\nADD https://a.example/b /b\n"
    assert [item.found for item in hardening.find_network_steps(text)] == [
        "RUN pip install    x",
        "ADD https://a.example/b /b",
    ]


def test_own_layers_are_counted_in_the_stages_below_the_last_one() -> None:
    text = "FROM base AS runtime\nRUN a\nRUN b\nFROM runtime AS compile\nRUN c\nFROM runtime\nRUN d\nLABEL x=y\n"
    assert hardening.own_layers(text) == 3
