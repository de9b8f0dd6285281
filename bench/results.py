"""`./inv bench.plot FOLDER`: the JSON files that an image's `bench --output` wrote, as one picture. IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from bench.plot import OURS, WIDTH, draw_svg
from drydock.core.errors import InputError

METRICS = {
    "output_throughput": "output tokens/s",
    "median_ttft_ms": "TTFT, median, ms",
    "median_itl_ms": "ITL, median, ms",
    "avg_latency": "latency, mean, s",
}
"""Name of a figure in vLLM's results, of a server and of `latency` → its label."""
HINT = "write them with `docker run … IMG bench … --output /out/NAME.json`"
HEIGHT, LEFT, RIGHT = 150, 60, WIDTH - 60


def plot_results(folder: Path) -> str:
    """Return one plot for each figure that all files have. Raises InputError for a folder without such a figure."""
    results = {path.stem: _read_result(path) for path in sorted(folder.glob("*.json"))}
    names = sorted(results, key=lambda name: (results[name].get("max_concurrency") or 0, name))
    keys = [key for key in METRICS if names and all(isinstance(results[name].get(key), int | float) for name in names)]
    if not keys:
        raise InputError(f"{folder}: no figure of vLLM's benchmarks that all *.json files have", hint=HINT)
    plots = [
        _draw_line(METRICS[key], 40 + place * HEIGHT, {name: float(results[name][key]) for name in names})
        for place, key in enumerate(keys)
    ]
    return draw_svg(folder.name, 40 + len(keys) * HEIGHT, "".join(plots))


def _read_result(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}, expected a result of vLLM's benchmark", hint=HINT) from error
    return value if isinstance(value, dict) else {}


def _draw_line(label: str, top: int, values: Mapping[str, float]) -> str:
    """Draw the values of a figure, by file from left to right, on a scale from zero."""
    step, scale = (RIGHT - LEFT) / max(1, len(values) - 1), (HEIGHT - 50) / (max(values.values()) or 1)
    spots = [(LEFT + place * step, top + HEIGHT - 30 - value * scale) for place, value in enumerate(values.values())]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{OURS}"/>'
        f'<text x="{x:.1f}" y="{y - 6:.1f}" text-anchor="middle">{value:.4g}</text>'
        f'<text x="{x:.1f}" y="{top + HEIGHT - 14}" text-anchor="middle">{escape(name)}</text>'
        for (x, y), (name, value) in zip(spots, values.items(), strict=True)
    )
    head = f'<text x="8" y="{top + 4}" font-weight="bold">{escape(label)}</text>'
    return f'{head}<polyline points="{line}" fill="none" stroke="{OURS}"/>{marks}'
