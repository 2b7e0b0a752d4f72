"""The rewards of a run as a picture: an SVG of our own, and a PNG where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

Point = tuple[float, float]

_WIDTH: Final = 720
_HEIGHT: Final = 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 44, 48
_COLOURS: Final = ("#8a94a6", "#1f6feb")


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one kind, by rounds done."""

    name: str
    points: Sequence[Point]


def read_lines(metrics: Path) -> list[Line]:
    """The mean rewards in a metrics file: of training rollouts, and of validations where there were any."""
    points: dict[str, list[Point]] = {"round": [], "validation": []}
    for text in metrics.read_text().splitlines():
        row = json.loads(text)
        reward = row.get("reward/mean")
        if row["kind"] in points and reward is not None:
            points[row["kind"]].append((row["rounds_done"], reward))
    named = (Line("training rollouts", points["round"]), Line("held-out tasks", points["validation"]))
    return [line for line in named if line.points]


def draw(metrics: Path, title: str) -> list[Path]:
    """Draw the curve beside the metrics file; the files that were written. None where there is no point yet."""
    lines = read_lines(metrics)
    if not lines:
        return []
    svg = metrics.with_name("curve.svg")
    svg.write_text(to_svg(lines, title))
    if importlib.util.find_spec("matplotlib") is None:
        return [svg]
    png = metrics.with_name("curve.png")
    _with_matplotlib(lines, title, png)
    return [svg, png]


def to_svg(lines: Sequence[Line], title: str) -> str:
    """A picture of lines over rounds."""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    left, right = min(xs), max(xs)
    ticks = _ticks(min(0.0, *ys), max(1.0, *ys))
    low, high = ticks[0], ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left) if right > left else 0.5
        up = (y - low) / (high - low)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for tick in ticks:
        _, y = place(left, tick)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        )
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{tick:g}</text>')
    for x in sorted({left, (left + right) // 2, right}):
        across, _ = place(x, low)
        parts.append(
            f'<text x="{across:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle" fill="#444">{x:g}</text>'
        )
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle" fill="#444">rounds</text>')
    for place_in_legend, (line, colour) in enumerate(zip(lines, _COLOURS, strict=False)):
        parts += _drawn([place(x, y) for x, y in line.points], colour)
        across = _LEFT + 160 * place_in_legend
        parts.append(f'<rect x="{across}" y="29" width="18" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{across + 24}" y="35" fill="#444">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _drawn(points: Sequence[Point], colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from below `low` to above `high`."""
    step = 10 ** math.floor(math.log10(high - low))
    while (high - low) / step > 8:
        step *= 2
    while (high - low) / step < 4:
        step /= 2
    first, last = math.floor(low / step), math.ceil(high / step)
    return [each * step for each in range(first, last + 1)]


def _with_matplotlib(lines: Sequence[Line], title: str, target: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for line, colour in zip(lines, _COLOURS, strict=False):
        axes.plot(
            [x for x, _ in line.points], [y for _, y in line.points], ".-", color=colour, label=line.name
        )
    axes.set(title=title, xlabel="rounds", ylabel="mean reward")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target, dpi=120)
