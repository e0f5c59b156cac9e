"""Points in time: what is found for an LSN or a time, and what is said if there is nothing."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from pgoutput_fast.mirror.state import points as state_points
from pgoutput_fast.mirror.state.points import Point, Points, at, points
from pgoutput_fast.storage.stores import open_store

DAY = datetime(2026, 3, 1, tzinfo=UTC)


def _micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _point(position: int, versions: dict[str, int], through: int = 0) -> Point:
    return Point(position, _micros(DAY + timedelta(seconds=position)), versions, max(position, through))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    kept = Points(open_store(tmp_path))
    kept.add(_point(100, {"public.a": 0}))
    kept.add(_point(200, {"public.a": 1, "public.b": 0}))
    kept.add(_point(300, {"public.b": 1}, 350))
    return tmp_path


def test_a_point_is_the_newest_that_is_not_later(target: Path) -> None:
    assert at(target) == at(target, 300) == at(target, 350) == {"public.b": 1}
    assert at(target, 299) == at(target, Decimal(200)) == at(target, "0/C8") == {"public.a": 1, "public.b": 0}
    assert at(target, 199) == at(target, 100) == {"public.a": 0}
    assert at(target, DAY + timedelta(seconds=299.999)) == at(target, 200)
    assert at(target, DAY + timedelta(seconds=300)) == at(target)
    local = (DAY + timedelta(seconds=150)).astimezone(datetime.now().astimezone().tzinfo)
    assert at(target, local) == at(target, 100)
    assert [each.lsn for each in points(target)] == ["0/64", "0/C8", "0/12C"]
    assert points(target)[0].committed == DAY + timedelta(seconds=100)


def test_what_is_not_recorded(target: Path, tmp_path: Path) -> None:
    for wanted, message in (
        (99, r"has no point as old as 0/63: the oldest is 0/64, committed at 2026-03-01T00:01:40\+00:00"),
        (351, "goes up to 0/15E, and not to 0/15F: run the mirror, or use 'latest'"),
        (DAY, r"has no point as old as 2026-03-01T00:00:00\+00:00"),
        (
            DAY + timedelta(seconds=301),
            r"goes up to 2026-03-01T00:05:00\+00:00, and not to 2026-03-01T00:05:01",
        ),
    ):
        with pytest.raises(LookupError, match=message):
            at(target, wanted)
    with pytest.raises(LookupError, match="has no recorded point"):
        at(tmp_path / "nothing")
    with pytest.raises(LookupError, match="has no recorded point: run the mirror"):
        points(tmp_path / "nothing")
    with pytest.raises(LookupError, match="has no recorded point for 0/7"):
        at(tmp_path / "nothing", 7)
    with pytest.raises(ValueError, match="needs a time zone"):
        at(target, datetime(2026, 3, 1))
    with pytest.raises(ValueError, match="or give 'latest' or a datetime"):
        at(target, "yesterday")
    with pytest.raises(TypeError):
        at(target, 1.5)  # type: ignore[arg-type]


def test_a_point_that_is_passed_again(tmp_path: Path) -> None:
    """By a mirror whose progress is older than its points."""
    kept = Points(open_store(tmp_path))
    kept.add(_point(100, {"t": 0}))
    kept.add(_point(200, {"t": 1}, 250))
    Points(open_store(tmp_path)).add(_point(200, {"t": 1}, 200))
    assert points(tmp_path)[-1].through == 250
    Points(open_store(tmp_path)).add(_point(150, {"t": 2}))
    assert [each.position for each in points(tmp_path)] == [100, 150]
    Points(open_store(tmp_path)).forget()
    assert Points(open_store(tmp_path)).read() == []


def test_their_number_is_bounded(tmp_path: Path) -> None:
    one = Points(open_store(tmp_path / "one"), most=1)
    for n in range(3):
        one.add(_point(n, {"t": n}))
    assert [each.position for each in one.read()] == [2]
    kept = Points(open_store(tmp_path), most=3)
    for n in range(10):
        kept.add(_point(n, {"t": n, "calm": 5}))
    assert [each.versions for each in points(tmp_path)] == [{"t": n, "calm": 5} for n in (7, 8, 9)]


def test_points_of_a_period_stay(tmp_path: Path) -> None:
    """Any time in the period has a point before it, and there are not many."""
    now, store = int(time.time()), open_store(tmp_path)
    kept = Points(store, 3, keep_seconds=1000)
    for second in range(-3000, 1, 10):
        before = time.time() - now - 1000  # the beginning of the period
        kept.add(
            Point(10_000 + second, (now + second) * 1_000_000, {"public.a": second + 5000}, 10_000 + second)
        )
    known = kept.read()
    times = [(each.time or 0) // 1_000_000 - now for each in known]
    assert times[0] <= time.time() - now - 1000
    assert times[1] > before
    assert times[1:] == list(range(times[0] + 10, 1, 10))
    few = Points(store, 3)
    few.add(Point(20_000, now * 1_000_000, {"public.a": 9000}, 20_000))
    assert len(few.read()) == 3
    # A long period with many points has about a thousand.
    points_ = [Point(k, k * 1_000_000, {}, k) for k in range(100_000)]
    thinned = state_points.kept(points_, 100, 90_000, 100_000)
    assert 1000 <= len(thinned) <= 1102
    assert thinned[0].position <= 10_000
    again = state_points.kept(thinned, 100, 90_000, 100_000)
    assert again == thinned
