"""How often current tables change: often enough, but only a part of the time, and at once if very much waits."""

from __future__ import annotations

import pytest

from pgoutput_fast.mirror.follow.follow import Pace

_MIB = 1 << 20


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> Pace:
    """Every ten seconds, a third of the time; a half if more than 32 MiB wait; at once at 1,000 rows or 256 MiB."""
    return Pace(10.0, 1 / 3, 1000, 256 * _MIB, 32 * _MIB, 1 / 2, clock)


def _apply(pace: Pace, clock: Clock, seconds: float) -> None:
    began = clock()
    clock.now += seconds
    pace.done(began)


def _due_after(pace: Pace, clock: Clock, is_due: str = "is_due", *waiting: int) -> float:
    """After how many seconds it is time."""
    began = clock()
    while not getattr(pace, is_due)(*waiting):
        clock.now += 0.5
    return clock() - began


def test_the_first_time_is_at_once(pace: Pace) -> None:
    assert pace.is_due()


@pytest.mark.parametrize(("took", "after"), [(0.0, 10.0), (1.0, 9.0), (3.0, 7.0), (5.0, 10.0), (60.0, 120.0)])
def test_quick_changes_come_every_ten_seconds_and_slow_ones_take_a_third_of_the_time(
    pace: Pace, clock: Clock, took: float, after: float
) -> None:
    for _ in range(3):
        _apply(pace, clock, took)
        assert _due_after(pace, clock) == pytest.approx(after, abs=0.5)


@pytest.mark.parametrize(("took", "after"), [(0.0, 0.0), (1.0, 1.0), (20.0, 20.0)])
def test_if_much_waits_half_of_the_time(pace: Pace, clock: Clock, took: float, after: float) -> None:
    _apply(pace, clock, took)
    assert not pace.is_full(999, 32 * _MIB - 1)
    assert _due_after(pace, clock, "is_full", 1, 32 * _MIB) == after


@pytest.mark.parametrize("waiting", [(1000, 1), (1, 256 * _MIB)])
def test_if_very_much_waits_at_once(pace: Pace, clock: Clock, waiting: tuple[int, int]) -> None:
    _apply(pace, clock, 3600.0)
    assert pace.is_full(*waiting)
    assert not pace.is_due()


def test_what_must_go_into_a_file(pace: Pace) -> None:
    """Half as much again as may wait: one transaction is that large, and it is not divided."""
    assert not pace.is_too_full(1499, 383 * _MIB)
    assert pace.is_too_full(1500, 1)
    assert pace.is_too_full(1, 384 * _MIB)
