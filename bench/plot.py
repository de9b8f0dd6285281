"""Figures → bar charts as SVG. Pure.

Written without a plotting library: a bar chart takes thirty lines, and the same figures must give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from bench.bench_records import Figure, Measurement

WIDTH, LABEL, LINE, BAR = 860, 390, 44, 14
OURS, THEIRS, INK, GOAL = "#2563a8", "#b9b4a8", "#1b1b1b", "#c2410c"


def draw_bars(title: str, rows: Sequence[Measurement]) -> str:
    """Return a bar chart of rows: ours above theirs. Each row has its own scale."""
    body = [_draw_row(row, 40 + number * LINE) for number, row in enumerate(rows)]
    legend = (
        f'<rect x="{LABEL}" y="10" width="10" height="10" fill="{OURS}"/><text x="{LABEL + 14}" y="19">drydock</text>'
        f'<rect x="{LABEL + 60}" y="10" width="10" height="10" fill="{THEIRS}"/>'
        f'<text x="{LABEL + 74}" y="19">other</text>'
        f'<rect x="{LABEL + 128}" y="8" width="2" height="14" fill="{GOAL}"/><text x="{LABEL + 136}" y="19">goal</text>'
    )
    return draw_svg(title, 50 + len(rows) * LINE, legend + "".join(body))


def _draw_row(row: Measurement, top: int) -> str:
    figures = [row.ours, *([row.theirs] if row.theirs else [])]
    limit = _scale_limit(row)
    scale = (WIDTH - LABEL - 90) / (max(limit, *(max(figure.values) for figure in figures)) or 1)
    mark = LABEL + limit * scale
    drawn = [
        _draw_bar(figure, top + place * (BAR + 2), scale, colour)
        for place, (figure, colour) in enumerate(zip(figures, (OURS, THEIRS), strict=False))
    ]
    line = f'<rect x="{mark:.1f}" y="{top - 2}" width="2" height="{2 * BAR + 6}" fill="{GOAL}"/>'
    return "".join([*_draw_label(row, top), *drawn, line])


def _scale_limit(row: Measurement) -> float:
    """Return the goal on the scale of the row's figures."""
    return row.goal.limit * (row.theirs.median if row.theirs and row.goal.compares == "ratio" else 1)


def _draw_label(row: Measurement, top: int) -> Iterator[str]:
    for place, text in enumerate((row.what, row.against)):
        short = text if len(text) <= 62 else f"{text[:61]}…"  # noqa: PLR2004 - what fits
        yield f'<text x="{LABEL - 8}" y="{top + 11 + place * 16}" text-anchor="end">{escape(short)}</text>'


def _draw_bar(figure: Figure, top: int, scale: float, colour: str) -> str:
    width, low, high = (value * scale for value in (figure.median, min(figure.values), max(figure.values)))
    unit = "MB" if figure.unit == "B" else figure.unit
    value = figure.median / 1e6 if figure.unit == "B" else figure.median
    middle = top + BAR / 2
    whisker = f'<path d="M{LABEL + low:.1f} {middle}H{LABEL + high:.1f}" stroke="{INK}"/>' if low != high else ""
    return (
        f'<rect x="{LABEL}" y="{top}" width="{max(width, 1):.1f}" height="{BAR}" fill="{colour}"/>{whisker}'
        f'<text x="{LABEL + max(width, high) + 6:.1f}" y="{top + 11}">{value:.3g} {unit}</text>'
    )


def draw_svg(title: str, height: int, body: str) -> str:
    """Return a picture with a title."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11" fill="{INK}"><rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="8" y="19" font-size="14" font-weight="bold">{escape(title)}</text>{body}</svg>\n'
    )
