"""The chart of a run: transfers per second of every case, on a logarithmic scale, as SVG."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from bench.cases import CASES

WIDTH, ROW, TOP, LEFT, RIGHT = 920, 20, 60, 190, 110
COLOURS = {
    "literal": "#9aa5b1",
    "fastapi": "#9aa5b1",
    "tidegate": "#0b7285",
    "http": "#3bc9db",
    "ceiling": "#e8590c",
}
OTHER = "#c2b280"
SVG, FONT = "http://www.w3.org/2000/svg", 'font-family="sans-serif" font-size="12"'
TITLE = "Transfers per second, medians; the line is the range of all rounds"


def svg(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """A bar per case, with a line from the slowest round to the fastest."""
    shown = [case for case in CASES if case.name in cases]
    fastest = max((cases[case.name]["per_s"]["max"] for case in shown), default=10.0)
    decades = max(math.ceil(math.log10(max(fastest, 10.0))), 1)
    height = TOP + ROW * len(shown) + 20
    parts = [
        f'<svg xmlns="{SVG}" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="15">{TITLE}</text>',
        *_axis(decades, height),
    ]
    for row, case in enumerate(shown):
        parts += _bar(case.name, cases[case.name]["per_s"], TOP + ROW * row, decades)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(value: float, decades: int) -> float:
    share = math.log10(max(value, 1.0)) / decades
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _axis(decades: int, height: int) -> list[str]:
    parts = []
    for power in range(decades + 1):
        x = _x(10**power, decades)
        parts.append(f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{height - 16}" stroke="#ddd"/>')
        label = f'<text x="{x}" y="{TOP - 14}" text-anchor="middle" fill="#666">'
        parts.append(f"{label}{10**power:,}</text>")
    return parts


def _bar(name: str, speed: Mapping[str, float], y: int, decades: int) -> list[str]:
    end, low, high = (_x(speed[key], decades) for key in ("median", "min", "max"))
    colour, middle = COLOURS.get(name.split("-", 1)[0], OTHER), y + ROW / 2 - 2
    width = round(max(end - LEFT, 1), 1)
    return [
        f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{width}" height="{ROW - 5}" fill="{colour}"/>',
        f'<line x1="{low}" y1="{middle}" x2="{high}" y2="{middle}" stroke="black"/>',
        f'<text x="{high + 6}" y="{y + 12}">{speed["median"]:,.0f}</text>',
    ]
