"""The figures as an SVG: bars on a logarithmic axis, one panel per corpus. Legible on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

__all__ = ["Bar", "chart"]

_WIDTH = 860
_LEFT = 270
_RIGHT = 660
_ROW = 22
_TITLE = 34
_AXIS = 42
_LEGEND = 54
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f }
.page { fill: #ffffff }
.title { font-weight: 600 }
.small { font-size: 12px; fill: #57606a; stroke: #ffffff; stroke-width: 4; paint-order: stroke }
.grid { stroke: #d0d7de; stroke-width: 1 }
.ours { fill: #0b63c5 }
.reference { fill: #8c959f }
.peer { fill: #c4682b }
.quoted { fill: none; stroke: #c4682b; stroke-width: 1.5; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .page { fill: #0d1117 }
  .small { fill: #9198a1; stroke: #0d1117 }
  .grid { stroke: #30363d }
  .ours { fill: #58a6ff }
  .reference { fill: #6e7681 }
  .peer { fill: #e08b4f }
  .quoted { stroke: #e08b4f }
}
"""


@dataclass(frozen=True)
class Bar:
    """One bar, or the reason why there is none.

    Attributes:
        name: text before the bar.
        kind: "ours", "reference", "peer" or "quoted"; gives the look of the bar.
        value: length of the bar, above 0; None if there is only a label.
        label: text after the bar.
    """

    name: str
    kind: str
    value: float | None
    label: str


def chart(panels: Mapping[str, Sequence[Bar]], axis: str, legend: Mapping[str, str]) -> str:
    """The chart as SVG. All panels have the same axis, from one power of ten to another.

    Args:
        panels: {title: bars from top to bottom}.
        axis: title of the axis.
        legend: {kind: its meaning}.
    """
    values = [bar.value for bars in panels.values() for bar in bars if bar.value is not None]
    # A bar that is slightly longer than the last power of ten may extend a little beyond the axis.
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 0.1)
    high = max(high, low + 1)

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (math.log10(value) - low) / (high - low)

    parts: list[str] = []
    top = 24
    for title, bars in panels.items():
        parts.append(f'<text class="title" x="16" y="{top + 10}">{escape(title)}</text>')
        top += _TITLE - 10
        bottom = top + _ROW * len(bars)
        for power in range(low, high + 1):
            at = x(10.0**power)
            parts.append(f'<path class="grid" d="M{at:.1f} {top - 4}V{bottom}"/>')
            parts.append(
                f'<text class="small" x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{10.0**power:g}</text>'
            )
        for number, bar in enumerate(bars):
            y = top + _ROW * number
            parts.append(f'<text x="{_LEFT - 10}" y="{y + 13}" text-anchor="end">{escape(bar.name)}</text>')
            end = _LEFT
            if bar.value is not None:
                end = x(bar.value)
                # A value at the beginning of the axis must still have a visible bar.
                width = max(end - _LEFT, 1.5)
                parts.append(
                    f'<rect class="{bar.kind}" x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 7}"/>'
                )
            parts.append(f'<text class="small" x="{end + 7:.1f}" y="{y + 13}">{escape(bar.label)}</text>')
        top = bottom + _AXIS
    parts.append(f'<text class="small" x="16" y="{top - 8}">{escape(axis)}</text>')
    at = 16.0
    for kind, text in legend.items():
        parts.append(f'<rect class="{kind}" x="{at:.0f}" y="{top + 8}" width="22" height="12"/>')
        parts.append(f'<text class="small" x="{at + 28:.0f}" y="{top + 18}">{escape(text)}</text>')
        at += 60 + 6.4 * len(text)
    height = top + _LEGEND - 20
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    return "\n".join(
        [
            head,
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )
