"""The runs of a benchmark as one self-contained HTML page: a table, and a plot for each figure. Pure.

It uses the page of `plan --html`, loads nothing and runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from entrypoints.cli.benchresults import METRICS, Metric, Result, shown, table, value

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 420, 240, 64, 36, 14
_STEPS = 4
_PLOTTED = ("output_throughput", "median_ttft_ms", "median_itl_ms", "avg_latency")


def bench_page(variant: str, what: str, titles: Sequence[str], results: Sequence[Result]) -> str:
    """Return the page; `what` is the server or the model, `titles` name the runs."""
    plots = "".join(_plot(metric, titles, results) for metric in METRICS if metric.key in _PLOTTED)
    sections = f"<section><h2>Figures</h2>\n<pre>{escape(table(titles, results))}</pre></section>\n"
    if plots:
        sections += f"<section><h2>Plots</h2>\n{plots}</section>\n"
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    title = escape(f"Benchmark of {what}")
    return template.substitute(title=title, variant=escape(variant), host="vLLM's own benchmark", sections=sections)


def _plot(metric: Metric, titles: Sequence[str], results: Sequence[Result]) -> str:
    """Draw one figure of all runs as a line; empty if a run lacks it, or there is one run only."""
    values = [value(result, metric) for result in results]
    numbers = [number for number in values if number is not None]
    if len(numbers) < 2 or len(numbers) < len(values):  # noqa: PLR2004 - a line has two ends
        return ""
    top = max(numbers) or 1.0
    spots = [(_x(place, len(numbers)), _y(number, top)) for place, number in enumerate(numbers)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--blue)"/>' for x, y in spots)
    words = "".join(_text(x, _HEIGHT - 12, title, "middle") for (x, _), title in zip(spots, titles, strict=True))
    figure = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(metric.label)}">{_grid(top)}'
        f'<polyline points="{line}" fill="none" stroke="var(--blue)" stroke-width="2"/>{dots}{words}</svg>'
    )
    return f"<figure>{figure}<figcaption>{escape(metric.label)}</figcaption></figure>\n"


def _grid(top: float) -> str:
    levels = [top * step / _STEPS for step in range(_STEPS + 1)]
    return "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{_y(level, top):.1f}" y2="{_y(level, top):.1f}" '
        f'stroke="var(--line)"/>{_text(_LEFT - 6, _y(level, top) + 4, shown(level), "end")}'
        for level in levels
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    style = f"text-anchor:{anchor};dominant-baseline:auto;fill:var(--text);font-size:12px;font-weight:normal"
    return f'<text x="{x:.1f}" y="{y:.1f}" style="{style}">{escape(words)}</text>'


def _x(place: int, count: int) -> float:
    """Return the place of a run: all at the same distance, since concurrencies double."""
    return _LEFT + 20 + (_WIDTH - _LEFT - 60) * place / (count - 1)


def _y(number: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * number / top
