"""A chart of the demo's mirror as SVG: how far the server is, and how far the mirror."""

from __future__ import annotations

from collections.abc import Sequence

from pgoutput_fast.demo.report import Progress

__all__ = ["chart"]

_WIDTH, _HEIGHT = 760, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 40
# About how many lines an axis has.
_LINES = 5


def chart(progress: Sequence[Progress], events: Sequence[tuple[float, str]]) -> str:
    """The chart; an empty text if there is nothing to show.

    Args:
        progress: the moments, in order.
        events: (seconds, text). They have numbers at the top of the chart, from 1.
    """
    if not progress or progress[-1].seconds <= 0:
        return ""
    begin = progress[0].server
    scale = _Scale(progress[-1].seconds, max(max(each.server for each in progress) - begin, 1) / 1e6)
    server = [(each.seconds, (each.server - begin) / 1e6) for each in progress]
    mirror = [
        (each.seconds, max(each.mirror - begin, 0) / 1e6) for each in progress if each.mirror is not None
    ]
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="WAL that the server wrote, and WAL '
        'that the mirror has, by seconds">',
        *scale.grid(),
        f'<polyline class="server" points="{scale.steps(server)}"/>',
    ]
    if mirror:
        parts.append(f'<polyline class="mirror" points="{scale.steps(mirror)}"/>')
    for number, (seconds, _) in enumerate(events, 1):
        x = scale.x(min(seconds, progress[-1].seconds))
        parts.append(
            f'<line class="event" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<circle class="event" cx="{x:.1f}" cy="{_TOP - 14}" r="10"/>'
            f'<text class="number" x="{x:.1f}" y="{_TOP - 10}">{number}</text>'
        )
    return "\n".join([*parts, "</svg>"])


class _Scale:
    """The axes: seconds, and megabytes of WAL."""

    def __init__(self, seconds: float, megabytes: float) -> None:
        self._seconds, self._megabytes = seconds, megabytes * 1.05

    def x(self, seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / self._seconds

    def y(self, megabytes: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * megabytes / self._megabytes

    def steps(self, points: Sequence[tuple[float, float]]) -> str:
        """The points of a line that keeps each value until the next one."""
        found, last = [], None
        for seconds, megabytes in points:
            if last is not None and megabytes != last:
                found.append((seconds, last))
            found.append((seconds, megabytes))
            last = megabytes
        return " ".join(f"{self.x(seconds):.1f},{self.y(megabytes):.1f}" for seconds, megabytes in found)

    def grid(self) -> list[str]:
        """Lines and numbers of both axes."""
        parts = []
        for value, text in _round_values(self._megabytes):
            y = self.y(value)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(f'<text class="left" x="{_LEFT - 8}" y="{y + 4:.1f}">{text} MB</text>')
        for value, text in _round_values(self._seconds):
            x = self.x(value)
            parts.append(f'<text class="below" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 20}">{text} s</text>')
        return parts


def _round_values(most: float) -> list[tuple[float, str]]:
    """(value, text) of round values from 0 to a value.

    >>> _round_values(0.9)
    [(0.0, '0'), (0.2, '0.2'), (0.4, '0.4'), (0.6, '0.6'), (0.8, '0.8')]
    >>> [text for _, text in _round_values(23)]
    ['0', '5', '10', '15', '20']
    """
    step = 1.0
    while step > most / _LINES:
        step /= 10
    step *= next((each for each in (1, 2, 5) if step * each * _LINES >= most), 10)
    return [(round(step * k, 9), f"{round(step * k, 9):g}") for k in range(int(most / step) + 1)]
