"""Compares the HTTP routes of the vLLM that a build installs with those that the image's guard knows. Reads files.

The guard closes a route that its list does not know. So a new vLLM whose routes no one has sorted is found before it is
built, not by its users. The source code is read, because an import needs a device on some accelerators. A vLLM that is
a part of the base image is not read.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from drydock.core.errors import BuildError
from drydock.core.files import parse_any_json
from drydock.core.project import Project

LIST = "entrypoints/plugin/drydock_plugin/routes.json"
SERVERS = "vllm/entrypoints/"
"""Where vLLM registers its routes, in its wheel and in its repository."""
METHODS = {"get", "post", "put", "delete", "patch", "head", "options", "websocket", "route", "mount", "Mount"}
METHODS |= {"api_route", "websocket_route", "add_api_route", "add_api_websocket_route", "add_route"}
"""What FastAPI and Starlette call the registration of a route."""
STATIC = "/static"
"""Mounted files of the documentation page: the list has `/static/{file}`."""


def check_routes(project: Project, contexts: Mapping[str, str]) -> None:
    """Raise BuildError for a route in the wheels or sources of a build that the guard's list does not know."""
    known_routes = {path for paths in parse_any_json((project / LIST).read_bytes()).values() for path in paths}
    registered = {route for text in _read_server_modules(contexts) for route in find_routes(text)}
    new = sorted(registered - known_routes - {STATIC})
    if new:
        raise BuildError(
            f"vLLM registers routes that the guard does not know: {', '.join(new)}",
            hint=f"add each to {LIST}: to `serving`, or to `admin` if it administers the server",
        )


def find_routes(source: str) -> Iterator[str]:
    """Yield the literal paths that a module registers."""
    if "fastapi" not in source and "starlette" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            path = node.args[0].value
            if name in METHODS and isinstance(path, str) and path.startswith("/"):
                yield path


def _read_server_modules(contexts: Mapping[str, str]) -> Iterator[str]:
    """Yield the source code of vLLM's servers in the folders among a build's contexts."""
    folders = [Path(value) for value in contexts.values() if value.startswith("/")]
    for folder in folders:
        for path in sorted((folder / SERVERS).rglob("*.py")):
            yield path.read_text(errors="replace")
        for wheel in sorted(folder.glob("*/vllm*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.startswith(SERVERS) and name.endswith(".py")]
                yield from (archive.read(name).decode(errors="replace") for name in names)
