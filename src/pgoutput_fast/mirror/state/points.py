"""Points in time: which versions of the current tables belong together.

A point is recorded when all tables are at the same position. Readers who use the versions of one point never see part
of a transaction.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pgoutput_fast.base.documents import parsed_json
from pgoutput_fast.mirror.state.layout import OWN
from pgoutput_fast.protocol.lsn import Lsn, format_lsn, parse_lsn
from pgoutput_fast.storage.stores import Store, open_store

__all__ = [
    "MOST_POINTS",
    "Point",
    "Points",
    "at",
    "at_time",
    "end_of",
    "expect_until",
    "lsn_of",
    "microseconds_of",
    "point_before",
    "points",
]

# The number of points that are kept.
MOST_POINTS = 100

# About how many points of a period stay besides the last ones.
_THINNED = 1000

_FILE = f"{OWN}/points.json"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Point:
    """A moment at which the versions of all tables are known.

    Attributes:
        position: the tables have all commits up to this LSN, and no later ones.
        time: of the last of these commits, in microseconds since 1970; None if the mirror saw no commit yet.
        versions: {qualified name of a table: version of its current table}.
        through: no transaction committed between `position` and this LSN.
        through_time: no transaction committed between `time` and this time, in microseconds since 1970; None if
            unknown.
    """

    position: int
    time: int | None
    versions: Mapping[str, int]
    through: int
    through_time: int | None = None

    @property
    def lsn(self) -> str:
        """The position as PostgreSQL shows it."""
        return format_lsn(self.position)

    @property
    def committed(self) -> datetime | None:
        """`time` as a datetime in UTC."""
        return None if self.time is None else _EPOCH + timedelta(microseconds=self.time)


class Points:
    """The points of a target. Only the mirror adds any.

    Args:
        store: the target.
        most: how many points are kept.
        check: called before each change.
        keep_seconds: for how long older ones are kept; None for no longer.
    """

    def __init__(
        self,
        store: Store,
        most: int = MOST_POINTS,
        check: Callable[[], object] | None = None,
        *,
        keep_seconds: float | None = None,
    ) -> None:
        self._store, self._check = store, check
        self._most, self._keep_seconds = most, keep_seconds
        self._known: list[Point] | None = None

    def read(self) -> list[Point]:
        """All points, the oldest first.

        Raises:
            ValueError: if the file is damaged.
        """
        try:
            values = parsed_json(self._store.read(_FILE))
            return _unpacked(values["points"])
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._store}/{_FILE} is damaged: remove it. The mirror then records new points"
            ) from None

    def add(self, point: Point) -> None:
        """Records a point. It replaces the last one if position and versions are the same."""
        known = self.read() if self._known is None else self._known
        last = known[-1] if known else None
        if last is not None and (last.position, last.versions) == (point.position, point.versions):
            point = replace(
                point,
                through=max(last.through, point.through),
                through_time=max(last.through_time or 0, point.through_time or 0) or None,
            )
            if last == point:
                self._known = known
                return
        # After a load of all tables, or without the progress file, the mirror may pass a position again.
        known = [*(each for each in known if each.position < point.position), point]
        known = kept(known, self._most, self._keep_seconds, time.time())
        if self._check is not None:
            self._check()
        self._store.put(_FILE, json.dumps({"points": _packed(known)}).encode())
        self._known = known

    def oldest(self) -> Mapping[str, int]:
        """{qualified name of a table: the oldest version in a point}."""
        found: dict[str, int] = {}
        for point in self.read():
            for table, version in point.versions.items():
                found.setdefault(table, version)
        return found

    def oldest_snapshot(self) -> int | None:
        """If all tables share their versions: the oldest one that a point needs, which has the rows of that point."""
        return next((max(point.versions.values()) for point in self.read() if point.versions), None)

    def forget(self) -> None:
        """Removes all points."""
        self._store.remove(_FILE)
        self._known = None


def kept(known: list[Point], most: int, keep_seconds: float | None, now: float) -> list[Point]:
    """The points that stay: the last ones, and those by which the tables can be read as of any time in a period.

    Of the older ones, about a thousand stay: any time can be read by the point before it and the changes after that.

    Args:
        known: the points, the oldest first.
        most: how many of the last ones stay.
        keep_seconds: the length of the period; None for none.
        now: seconds since 1970.

    >>> known = [Point(lsn, lsn * 1_000_000, {}, lsn) for lsn in range(10_000)]
    >>> [each.position for each in kept(known, 2, None, 10_000)]
    [9998, 9999]
    >>> [each.position for each in kept(known, 2, 5_000, 10_000)][:3]
    [5000, 5005, 5010]
    """
    older, last = known[:-most], known[-most:]
    if keep_seconds is None or not older:
        return last
    begin = (now - keep_seconds) * 1e6
    # The newest point before the period shows its beginning.
    first = max((k for k, each in enumerate(older) if (each.time or 0) <= begin), default=0)
    step = keep_seconds * 1e6 / _THINNED
    steps = [int((each.time or 0) // step) for each in older]
    thinned = [
        each for k, each in enumerate(older) if k >= first and (k == first or steps[k] != steps[k - 1])
    ]
    return [*thinned, *last]


def points(target: str | os.PathLike[str]) -> list[Point]:
    """The points of a mirror's target, the oldest first. The mirror need not run.

    Args:
        target: of the mirror: a path or a URI.

    Returns:
        The points; none until the first load is complete.

    Raises:
        LookupError: if the target has no mirror.
        ValueError: if the file of the points is damaged.
    """
    store = open_store(target)
    known = Points(store).read()
    if not known and not store.names(OWN):
        raise LookupError(f"{store} has no recorded point: run the mirror until its first load is complete")
    return known


def at(
    target: str | os.PathLike[str], position: Lsn | datetime | Literal["latest"] = "latest"
) -> dict[str, int]:
    """The versions of the current tables at one position.

    Args:
        target: of the mirror: a path or a URI.
        position: `"latest"`; an LSN, as for `parse_lsn`; or a datetime with a time zone. The result is that of the
            newest point that is not later.

    Returns:
        {qualified name of a table: version of its current table}.

    Raises:
        LookupError: if the points are all newer or older than that; the message gives their range.
        ValueError, TypeError: if `position` is none of these.
    """
    place = open_store(target)
    known = Points(place).read()
    if position == "latest":
        if not known:
            raise LookupError(
                f"{place} has no recorded point: run the mirror until its first load is complete"
            )
        return dict(known[-1].versions)
    if isinstance(position, datetime):
        return dict(at_time(known, position, str(place)).versions)
    return dict(_at_lsn(known, lsn_of(position), str(place)).versions)


def lsn_of(position: Lsn) -> int:
    """Parses a position that is an LSN.

    Raises:
        ValueError, TypeError: if it is not one.
    """
    try:
        return parse_lsn(position)
    except ValueError as problem:
        raise ValueError(f"{problem}; or give 'latest' or a datetime") from None


def _at_lsn(known: list[Point], lsn: int, place: str) -> Point:
    index = bisect_right(known, lsn, key=lambda each: each.position) - 1
    if index < 0:
        raise LookupError(_too_old(known, format_lsn(lsn), place))
    if index == len(known) - 1 and lsn > known[-1].through:
        raise LookupError(
            f"{place} goes up to {format_lsn(known[-1].through)}, and not to {format_lsn(lsn)}: run the mirror, or "
            "use 'latest'"
        )
    return known[index]


def at_time(known: list[Point], time: datetime, place: str) -> Point:
    """The newest point that is not later than a time.

    Args:
        known: the points, the oldest first.
        time: with a time zone.
        place: names the target, for errors.

    Raises:
        LookupError: if the points are all newer or older than that; the message gives their range.
        ValueError: if `time` has no time zone.
    """
    found = point_before(known, time, place)
    expect_until(known, time, place)
    return found


def microseconds_of(time: datetime) -> int:
    """A time in microseconds since 1970.

    Raises:
        ValueError: if it has no time zone.
    """
    if time.tzinfo is None:
        raise ValueError("a datetime needs a time zone, such as datetime.now(timezone.utc)")
    return (time - _EPOCH) // timedelta(microseconds=1)


def point_before(known: list[Point], time: datetime, place: str) -> Point:
    """As `at_time`, but the time may be later than the end of the points."""
    dated = [each for each in known if each.time is not None]
    index = bisect_right(dated, microseconds_of(time), key=lambda each: each.time or 0) - 1
    if index < 0:
        raise LookupError(_too_old(dated, time.isoformat(), place))
    return dated[index]


def end_of(known: Sequence[Point]) -> int:
    """The time up to which the last of the points has all commits, in microseconds since 1970."""
    return max(known[-1].time or 0, known[-1].through_time or 0)


def expect_until(known: list[Point], time: datetime, place: str) -> None:
    """Checks that the points go up to a time.

    Raises:
        LookupError: if they do not.
    """
    if microseconds_of(time) > (end := end_of(known)):
        until = (_EPOCH + timedelta(microseconds=end)).isoformat()
        raise LookupError(
            f"{place} goes up to {until}, and not to {time.isoformat()}: run the mirror, or use 'latest'"
        )


def _too_old(known: list[Point], requested: str, place: str) -> str:
    if not known:
        return f"{place} has no recorded point for {requested}: run the mirror until it has applied a commit"
    oldest = known[0]
    return (
        f"{place} has no point as old as {requested}: the oldest is {oldest.lsn}"
        f"{'' if oldest.committed is None else f', committed at {oldest.committed.isoformat()}'}"
    )


def _packed(known: list[Point]) -> list[dict[str, Any]]:
    """Points as JSON values, with only the versions that differ from the point before."""
    packed, before = [], dict[str, int]()
    for each in known:
        changed = {name: version for name, version in each.versions.items() if before.get(name) != version}
        packed.append(
            {
                "position": each.position,
                "lsn": each.lsn,
                "time": each.time,
                "through": each.through,
                "through_time": each.through_time,
                "versions": changed,
                "gone": sorted(before.keys() - each.versions.keys()),
            }
        )
        before = dict(each.versions)
    return packed


def _unpacked(packed: list[dict[str, Any]]) -> list[Point]:
    known, versions = [], dict[str, int]()
    for each in packed:
        versions = {name: version for name, version in versions.items() if name not in each["gone"]} | each[
            "versions"
        ]
        known.append(
            Point(int(each["position"]), each["time"], versions, int(each["through"]), each["through_time"])
        )
    return known
