"""A position that is a time is exact: what committed until then, and nothing else; or an error."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.mirror import fresh
from pgoutput_fast.mirror.follow.history import AppendTable, HistoryFiles
from pgoutput_fast.mirror.state.points import Point
from pgoutput_fast.mirror.state.table_record import Gap, TableRecord
from pgoutput_fast.mirror.view.changes import read_changes
from pgoutput_fast.mirror.view.times import position_at
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_history
from pgoutput_fast.tables.options import TableOptions
from support.fresh import ahead, position_now
from support.mirrors import Place, place

__all__ = ["place"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _clock(place: Place) -> datetime:
    ((now,),) = place.database.execute("SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now


def _ids(place: Place, table: str, time: datetime) -> list[int]:
    return sorted(fresh(place.target, f"public.{table}", ["id"], time)["id"].to_pylist())


@pytest.mark.slow
def test_a_time_has_all_that_committed_until_then(place: Place) -> None:
    """Between points, behind the last one, in a table that is quiet, and around a reload."""
    database = place.database
    database.execute(
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (0)"
            for name in ("t", "quiet")
        ),
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    times = []
    with ahead(place):
        for n in range(1, 6):
            database.execute(f"INSERT INTO t VALUES ({n})")
            times.append((_clock(place), list(range(n + 1))))
        position_now(place)
        # No point has these changes yet. What may still come until the newest time, nobody knows.
        for time, expected in times[:-1]:
            assert _ids(place, "t", time) == expected
        with pytest.raises(LookupError, match=r"goes up to .* run the mirror, or use 'latest'"):
            _ids(place, "t", times[-1][0])
    place.run()
    before = _clock(place)
    database.execute("INSERT INTO t VALUES (6)")
    with place.mirror() as mirror:
        mirror.reload("public.t")
        place.run_in(mirror)
    after = _clock(place)
    database.execute("INSERT INTO t VALUES (7)")
    place.run()
    for time, expected in times:
        assert _ids(place, "t", time) == expected
        assert _ids(place, "quiet", time) == [0]
    assert _ids(place, "t", after) == list(range(7))
    for time in (before, after):
        assert _ids(place, "quiet", time) == [0]
    # The history goes up to the reload, or a little less far: exact, or an error that says so.
    with suppress(LookupError):
        assert _ids(place, "t", before) == list(range(6))
    with pytest.raises(LookupError, match="has no point as old as"):
        _ids(place, "t", times[0][0] - timedelta(days=1))
    with pytest.raises(LookupError, match="goes up to"):
        _ids(place, "t", _clock(place) + timedelta(days=1))
    with pytest.raises(ValueError, match="needs a time zone"):
        _ids(place, "t", datetime(2026, 1, 1))


def _position_at(directory: Path, seconds: float, commits: dict[int, float], **more: Any) -> int:
    """The position of a table whose history has commits: {LSN: seconds}."""
    store, relation = open_store(directory), RelationSpec(1, "public", "t", (ColumnSpec("id", 20, key=True),))
    if not (directory / "history").exists():
        writer, sent = Writer(), []
        for lsn, time in commits.items():
            micros = int(time * 1e6) - 946_684_800_000_000  # since 2000
            sent += writer.begin(lsn, lsn, micros) + writer.change(relation, "insert", new=[str(lsn)])
            sent += writer.commit(lsn, lsn + 8, micros)
        rows = pgo.decode(sent, options=pgo.Options(transactions="committed")).table("public.t")
        history = AppendTable(store, "history/public.t", TableOptions())
        with HistoryFiles(store, "made") as files:
            files.add(history, rows)
            written, schema = files.of(history)
            assert schema is not None
            history.commit(written, max(commits), schema)
    given = {"gaps": (), "points": [Point(100, 1_000_000, {}, 100)], **more}
    return position_at(
        _EPOCH + timedelta(seconds=seconds),
        TableRecord("public.t", gaps=given["gaps"]),
        given["points"],
        lambda after: read_changes(open_history(store, "history/public.t", TableOptions()), after, 1 << 40),
        str(store),
    )


def test_commits_in_another_order_than_their_times(tmp_path: Path) -> None:
    commits = {200: 2.0, 300: 4.0, 400: 3.0, 500: 9.0}
    found = {time: _position_at(tmp_path, time, commits) for time in (1, 2, 2.9, 4, 8.9)}
    assert found == {1: 100, 2: 200, 2.9: 200, 4: 400, 8.9: 400}
    with pytest.raises(LookupError, match=r"another order than their times say, .* such as 0/190"):
        _position_at(tmp_path, 3.5, commits)


def test_loads_of_about_that_time(tmp_path: Path) -> None:
    """Between the last commit before a load and the load, nobody knows what committed."""
    commits = {200: 2.0, 450: 6.0, 500: 9.0}

    def found(seconds: float, *gaps: Gap, through: float = 1) -> int:
        known = [Point(100, 1_000_000, {}, 100, int(through * 1e6)), Point(400, 5_000_000, {}, 400)]
        return _position_at(tmp_path, seconds, commits, gaps=gaps, points=known)

    assert found(4.5, Gap(200, 300, 4_000_000)) == 300
    assert found(7, Gap(200, 300)) == 450
    assert found(1.5, Gap(100, 150, 5_500_000), through=1.6) == 100
    assert found(1.5, Gap(200, 300, 4_000_000)) == 100
    for gap in (Gap(200, 300, 4_000_000), Gap(200, 300)):
        with pytest.raises(
            LookupError, match=r"repaired at 0/12C, and its rows are unknown .* take 0/12C or a later"
        ):
            found(3, gap)
