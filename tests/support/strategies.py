"""Hypothesis strategies for streams. Hypothesis makes every choice, so that it can shrink a stream."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from support.streams import Stream, damage, make_stream

MODES = st.sampled_from(["as_sent", "committed"])


class DrawnChoices:
    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        return int(self._draw(st.integers(0, n - 1)))


@st.composite
def streams(draw: Any, malformed: bool = False) -> Stream:
    """A stream that a server could send. With `malformed`, some values are ones that no server sends."""
    return make_stream(DrawnChoices(draw), draw(st.integers(1, 10)), malformed)


@st.composite
def damaged_streams(draw: Any) -> Stream:
    """A stream that was damaged in transit."""
    choices = DrawnChoices(draw)
    return damage(choices, make_stream(choices, draw(st.integers(1, 8)), True), draw(st.integers(1, 4)))


@st.composite
def cuts(draw: Any) -> list[int]:
    """The ends of calls."""
    return sorted(draw(st.sets(st.integers(0, 60), max_size=8)))
