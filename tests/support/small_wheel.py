"""A wheel of one module, which says what it requires."""

from __future__ import annotations

import io
import zipfile


def make_small_wheel(
    name: str, version: str, *requires: str, tag: str = "py3-none-any", content: str = "", python: str = ""
) -> tuple[str, bytes]:
    """Return a wheel's file name and bytes; a name has `_` where an index has `-`."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    needs += f"Requires-Python: {python}\n" if python else ""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(f"{name}.py", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{name}-{version}-{tag}.whl", buffer.getvalue()
