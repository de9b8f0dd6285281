from __future__ import annotations

import json
from pathlib import Path

import pytest

from drydock.core.errors import InputError
from drydock.topology.topology_file import HOST_AT_MOST, read_super_pod, read_topology
from tests.support.topology_files import TRIO, write


def _refused(folder: Path, text: str) -> InputError:
    with pytest.raises(InputError) as raised:
        read_topology(write(folder, text))
    return raised.value


def test_a_topology_is_read(tmp_path: Path) -> None:
    read = read_topology(write(tmp_path, TRIO))
    assert [group.role for group in read.topology.groups] == ["prefill", "decode"]
    assert read.hosts["p0"] == tmp_path / "host.json"


@pytest.mark.parametrize(
    ("old", "new", "problem", "hint"),
    [
        ("router:", "routr:", "topology.yaml: unknown key 'routr' (line 15, column 1)", "did you mean 'router'?"),
        ("target: cpu", "target: cpu\ntarget: cpu", "topology.yaml: duplicate key 'target', first", ""),
        ("target: cpu\n", "", "found neither target nor image, expected one of them", "target names a variant"),
        ("target: cpu", "image: a/b:1", "image: found 'a/b:1', expected an image by digest", "a tag may name another"),
        ("api_key: required\n", "", "found no api_key: everyone who reaches", "`api_key: none` says that no key"),
        ("api_key: required", "api_key: a", "api_key: found \"a\", expected 'required' or 'none'", ""),
        ("model: /models/m", "model: /", "model: found '/', expected the path of a folder without ..", ""),
        ("model: /models/m", "model: /m/../x", "model: found '/m/../x', expected the path of a folder", ""),
        ("[16, 512]", "[16]", "goals.input: found [16], expected more values", ""),
        ("[16, 512]", "[1, 2, 3]", "goals.input: found [1, 2, 3], expected at most 2 values", ""),
        ("{node: p0}", "{node: p0, image: a/r}", "router.image: found 'a/r', expected an image by digest", "a tag may"),
        (
            "target: cpu",
            f"target: cpu\nimage: a/b@sha256:{'0' * 64}",
            "found both target and image, expected one of them",
            "target names a variant",
        ),
        ("name: p1", "name: p0", "nodes[1].name: duplicate name 'p0' (line 6", "each node has its own"),
        ("10.0.0.2", "10.0.0.1", "nodes[1].address: duplicate address '10.0.0.1'", "each node has its own"),
        (
            "10.0.0.1, host: host.json}",
            "n.lan, host: host.json}\n  - {name: p2, address: N.lan, host: host.json}",
            "nodes[1].address: duplicate address 'N.lan'",
            "each node has its own",
        ),
        ("address: 10.0.0.1", "address: -o", "nodes[0].address: found '-o', expected a host name", "ports belong"),
        ("10.0.0.1", "10.0.0.1:22", "found '10.0.0.1:22', expected a host name or an IP address", "ports belong"),
        ("10.0.0.1", "10.0.0.999", "found '10.0.0.999', expected a host name or an IP address", ""),
        ("10.0.0.1", "0x7f.0x1", "found '0x7f.0x1', expected a host name or an IP address", ""),
        ("10.0.0.1", "127.0.0.1", "found '127.0.0.1', expected an address at which other nodes reach it", ""),
        ("10.0.0.1", "0.0.0.0", "found '0.0.0.0', expected an address at which other nodes reach it", ""),
        ("10.0.0.1", "255.255.255.255", "found '255.255.255.255', expected an address at which other nodes", ""),
        ("10.0.0.1", "a.Localhost", "found 'a.Localhost', expected an address at which other nodes", ""),
        ("10.0.0.1", "'fd00::1'", "'fd00::1', expected an IPv4 address: IPv6 addresses are not supp", "not only IPv6"),
        ("name: decode", "name: prefill", "groups[1].name: duplicate name 'prefill'", "each group has its own"),
        ("[p0, p1]", "[p0, p11]", "groups[0].among[1]: unknown node 'p11'", "did you mean 'p1'?"),
        ("[p0, p1]", "[p0, p0]", "groups[0].among[1]: duplicate node 'p0'", ""),
        ("role: decode", "role: prefill", "a group with role prefill, but none with role decode", "add a decode group"),
        ("role: prefill", "role: decode", "a group with role decode, but none with role prefill", "add a prefill"),
        ("role: prefill", "role: serve", "a group with role decode, but none with role prefill", ""),
        ("router: {node: p0}\n", "", "prefill and decode groups without a router", "add router: {node: NAME}"),
        ("{node: p0}", "{node: p9}", "router.node: unknown node 'p9'", ""),
        ("[16, 512]", "[512, 16]", "goals.input: found [512, 16], expected the shortest first", "write [16, 512]"),
        ("model: /models/m", "model: s3://u:p@m/m", "model: s3://<redacted>@m/m: expected s3://BUCKET", "AWS_ENDPOINT"),
        ("model: /models/m", "model: --help", "model: found '--help', expected a folder or a hub id", ""),
        ("model: /models/m", "model: ./m", "model: found './m', expected a hub id, or the absolute path", "--model"),
        ("role: decode", "role: decode\n    flags: [x]", "flags[0]: found 'x', expected a flag", "write"),
        ("role: decode", "role: decode\n    flags: [-n, '2']", "flags[0]: -n differs between nodes", "remove it"),
        ("role: decode", "role: decode\n    env: {--port: 1}", "env.--port: not an environment variable", "in flags"),
        ("role: decode", "role: decode\n    env: {HF_TOKEN: x}", "groups[1]: HF_TOKEN is a secret", "kept in files"),
        ("role: decode", "role: decode\n    flags: [--api-key=x]", "groups[1]: --api-key is a secret", "kept in files"),
        ("role: decode", "role: decode\n    flags: [--ssl, 'http://a:b@c']", "--ssl has a secret", "kept in files"),
        ("role: decode", "role: decode\n    env: {https_proxy: 'http://a:b@c'}", "https_proxy has a secret", "kept in"),
        ("role: decode", "role: decode\n    env: {DRYDOCK_PROFILE: /x}", "E: the image has its own profile", "remove"),
        ("role: decode", "role: decode\n    env: {E: 1.50}", "found 1.50, which YAML reads as 1.5", 'quote it: "1.50"'),
        ("role: decode", "role: decode\n    flags: [--html=x]", "flags[0]: --html=x is a flag of drydock's plan", ""),
        ("role: decode", "role: decode\n    flags: [--root, x]", "flags[0]: --root is a flag of drydock's plan", ""),
        ("role: decode", "role: decode\n    flags: [--host=127.0.0.1]", "--host 127.0.0.1: neither the rout", "remove"),
        ("role: decode", "role: decode\n    flags: [--host, localhost]", "--host localhost: neither the router", ""),
        ("replicas: 2", "replicas: 0", "groups[0].replicas: found 0, expected", ""),
        ("host: host.json}", "host: none.json}", "nodes[0].host: none.json: cannot be read: No such", "facts --rec"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(tmp_path: Path, old: str, new: str, problem: str, hint: str) -> None:
    error = str(_refused(tmp_path, TRIO.replace(old, new, 1)))
    assert problem in error
    assert hint in error


def test_what_looks_like_a_mistake_and_is_none_is_read(tmp_path: Path) -> None:
    fixed = 'flags: [--host, 0.0.0.0, --hf-overrides, \'{"stop_token": "x"}\']\n    env: {A: 1.5, LD_PRELOAD: /x.so}'
    text = TRIO.replace("role: decode", f"role: decode\n    {fixed}").replace("10.0.0.1", "10.0.0.1.nodes.example")
    assert read_topology(write(tmp_path, text)).topology.groups[1].env == {"A": 1.5, "LD_PRELOAD": "/x.so"}


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = TRIO.replace("10.0.0.2", "10.0.0.1").replace("[p0, p1]", "[p0, q]").replace("{node: p0}", "{node: x}")
    assert len(_refused(tmp_path, text).problems) == 3


@pytest.mark.parametrize(
    ("content", "problem"),
    [("[]", "expected a JSON object"), ("{}", "not a recorded host"), ("{", "invalid JSON"), ("[" * 100, "JSON")],
)
def test_a_file_that_is_no_recorded_host_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = write(tmp_path, TRIO)
    (tmp_path / "host.json").write_text(content)
    with pytest.raises(InputError, match=problem):
        read_topology(path)


def test_a_recorded_host_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = write(tmp_path, TRIO)
    with (tmp_path / "host.json").open("w") as file:
        file.truncate(HOST_AT_MOST + 1)
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read_topology(path)


def test_the_super_pod_is_read_from_what_npu_smi_printed(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    text = "\tSDID                           : 4194304\n\tSuper Pod Size : 384\n\tSuper Pod ID                   : 3\n"
    path.write_text(json.dumps({"commands": {"npu-smi info -t spod-info -i 0 -c 0": {"rc": 0, "stdout": text}}}))
    assert read_super_pod(path) == "3"
    path.write_text(json.dumps({"commands": {"npu-smi info": {"rc": 0, "stdout": text}}}))
    assert read_super_pod(path) == ""
