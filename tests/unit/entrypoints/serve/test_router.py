"""With a key, vllm-router runs as a child that asks this process about its clients' keys."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from drydock.core.paths import ROOT
from entrypoints.core.errors import USAGE

KEY = "sk-of-the-test"
ROUTER = """\
#!{python}
import json, os, signal, sys, urllib.error, urllib.request
def asked(headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(sys.argv[4], headers=headers), timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
given = ("", "Bearer ", "Bearer wrong", "Bearer {key}x", "bearer {key}", "Bearer {key}", "Bearer {key}-2")
said = {{each: asked({{"Authorization": each}} if each else {{}}) for each in given}}
print(json.dumps([said, sys.argv[5:], os.environ["OPENAI_API_KEY"]]), flush=True)
signal.pause()
"""
"""Stands for the router's interpreter: it prints what its parent says of keys, its words and its key."""


def start(tmp_path: Path, keys: str) -> subprocess.Popen[str]:
    python, profile = tmp_path / "python", tmp_path / "profile.json"
    python.write_text(ROUTER.format(python=sys.executable, key=KEY))
    python.chmod(0o755)
    profile.write_text(json.dumps({"python": str(python)}))
    env = {**os.environ, "DRYDOCK_PROFILE": str(profile), "VLLM_API_KEY": keys, "no_proxy": "*"}
    command = [sys.executable, "-I", "-S", str(ROOT / "entrypoints"), "vllm-router", "--port", "1"]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("keys", ["", " \n"])
def test_a_variable_without_a_key_starts_no_open_router(tmp_path: Path, keys: str) -> None:
    with start(tmp_path, keys) as router:
        out, err = router.communicate()
    assert (router.returncode, out) == (USAGE, "")
    assert "VLLM_API_KEY: found no key" in err


@pytest.mark.parametrize(("keys", "right"), [(KEY, {KEY}), (f"{KEY}\r\n{KEY}-2\n", {KEY, f"{KEY}-2"})])
def test_only_a_key_is_right_and_the_servers_get_the_first(tmp_path: Path, keys: str, right: set[str]) -> None:
    with start(tmp_path, keys) as router:
        assert router.stdout
        statuses, words, key = json.loads(router.stdout.readline())
        arguments = Path(f"/proc/{router.pid}/task/{router.pid}/children").read_text().split()
        command_lines = [Path(f"/proc/{child}/cmdline").read_text() for child in arguments]
        router.send_signal(signal.SIGTERM)

    assert {header for header, status in statuses.items() if status == 200} == {f"Bearer {key}" for key in right}
    assert {*statuses.values()} == {200, 401}
    assert (words, key) == (["--port", "1"], KEY)
    assert command_lines
    assert KEY not in "".join(command_lines)
    assert router.returncode == 128 + signal.SIGTERM
