"""The fresh view is what the server has, while current tables are behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror import MirrorError, Point, at, fresh, fresh_batches, points
from pgoutput_fast.mirror.state.mirror_state import MirrorState
from pgoutput_fast.mirror.state.points import Points
from pgoutput_fast.protocol.lsn import format_lsn
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.options import TableOptions
from support import transfers
from support.forms import and_exhaustive
from support.fresh import (
    ahead,
    expect_fresh,
    fresh_at,
    fresh_total,
    make_target,
    position_now,
    settled,
)
from support.mirrors import Place, expect_equal, lose_rows, place, rows_of
from support.workload import Workload

__all__ = ["place"]


@pytest.mark.slow
@pytest.mark.parametrize("format", and_exhaustive(["delta"], ["duckdb", "iceberg"]))
def test_a_workload(place: Place, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of changes is read by itself. With keys that change, values that are not sent, truncates, columns that come and go, tables without a key."""
    monkeypatch.setattr("pgoutput_fast.mirror.view.changes._PART_ROWS", 1)
    database = place.database
    work = Workload("w", f"fresh {format}", database.version)
    tables = [f"public.{name}" for name in work.tables]
    database.execute(work.schema, "CREATE PUBLICATION mirrored FOR ALL TABLES")
    database.execute(*work.transactions(5))
    with ahead(place, format=format) as mirror:
        for _ in range(4 if format == "delta" else 2):
            database.execute(*work.transactions(4))
            lsn = position_now(place)
            for table in tables:
                at_once = settled(table, place, lsn)
                expect_fresh(place, table, at_once)
                _, expected = rows_of(place.database, table)
                few = fresh(place.target, table, ["_commit_lsn"], at_once)
                assert few.num_rows == expected.total()
        assert sum(each.waiting_rows for each in mirror.status()) > 10
    expect_equal(place, *tables, format=format)


@pytest.mark.slow
def test_columns_and_positions(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 0, repeat('x', 5000) FROM generate_series(1, 9) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    counted = []
    with ahead(place):
        for n in range(1, 4):
            database.execute(
                f"UPDATE t SET n = {n}, id = id + 10 WHERE id % 3 = {n % 3}", f"DELETE FROM t WHERE id = {n}"
            )
            lsn = position_now(place)
            rows = fresh_at(place, "public.t", lsn)
            assert set(rows["big"].to_pylist()) == {"x" * 5000}
            counted.append((lsn, sorted(rows["n"].to_pylist())))
        before = at(place.target)["public.t"]
        # Earlier positions stay readable, also those at which no point was recorded.
        for lsn, values in counted:
            rows = fresh(place.target, "public.t", ["n"], lsn)
            assert rows.schema.names == ["n"]
            assert rows.schema.metadata == {b"position": format_lsn(lsn).encode()}
            assert sorted(rows["n"].to_pylist()) == values
        assert at(place.target)["public.t"] == before
    place.run()
    for lsn, values in counted:
        assert sorted(fresh(place.target, "public.t", ["n"], format_lsn(lsn))["n"].to_pylist()) == values
    last = points(place.target)[-1]
    assert last.committed is not None
    assert fresh(place.target, "public.t", position=last.committed).num_rows == len(counted[-1][1])
    with fresh_batches(place.target, "public.t", ["id", "_unrepresentable"]) as reader:
        assert {row["_unrepresentable"] for row in reader.read_all().to_pylist()} == {None}
    with pytest.raises(LookupError, match=r"goes up to .*, and not to FFFF/0: run the mirror"):
        fresh(place.target, "public.t", position="FFFF/0")
    with pytest.raises(LookupError, match=r"public\.t was loaded or repaired at .* are unknown"):
        fresh(place.target, "public.t", position=5)
    with pytest.raises(KeyError, match=r"public\.u is not mirrored; mirrored: public\.markers, public\.t"):
        fresh(place.target, "public.u")
    with pytest.raises(KeyError, match="has no column 'm'; it has id, n, big, _commit_lsn"):
        fresh(place.target, "public.t", ["m"])
    with pytest.raises(ValueError, match="or give 'latest' or a datetime"):
        fresh(place.target, "public.t", position="x")
    with pytest.raises(LookupError, match="is not the target of a mirror"):
        fresh(place.target / "other", "public.t")


@pytest.mark.slow
def test_in_polars(place: Place) -> None:
    """Every form that columns of a mirror have: polars has the same values, and takes a reader of batches, too."""
    database = place.database
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TYPE spot AS (x int, tag text)",
        """CREATE TABLE t (id int PRIMARY KEY, flag bool, big int8, real float4, precise float8, price numeric(10, 2),
            wide numeric, note text, raw bytea, key uuid, day date, clock time, changed timestamptz, lasted interval,
            list int[], words text[], doc jsonb, span int4range, mood mood, place spot)""",
        """INSERT INTO t VALUES (1, true, 1099511627776, 1.5, 0.1, 12.34, 1e50, 'ä', '\\x00ff',
            'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2026-01-02', '03:04:05.000006', '2026-01-02 03:04:05+02', '1 day',
            '{1,NULL,3}', '{a,"b,c"}', '{"a": [1]}', '[1,5)', 'glad', '(1,here)')""",
        "INSERT INTO t VALUES (2)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with ahead(place):
        database.execute(
            "UPDATE t SET note = 'changed' WHERE id = 1",
            "INSERT INTO t SELECT 3, flag, -big, 'NaN', '-Infinity', -price, wide, '', '', key, '1950-12-31' FROM t "
            "WHERE id = 1",
        )
        lsn = position_now(place)
        expected = fresh_at(place, "public.t", lsn)
        frame = pl.from_arrow(fresh(place.target, "public.t", position=lsn))
        assert isinstance(frame, pl.DataFrame)
        assert frame.height == 3
        assert repr(frame.sort("id").rows(named=True)) == repr(expected.sort_by("id").to_pylist())
        with fresh_batches(place.target, "public.t", ["id", "note"], lsn) as reader:
            batches = pl.from_arrow(reader)
        assert isinstance(batches, pl.DataFrame)
        assert batches.sort("id").rows() == [(1, "changed"), (2, None), (3, "")]


@pytest.mark.slow
def test_a_key_that_changes(place: Place) -> None:
    """Changes under several keys wait. Then the key is altered together with rows: the table must be loaded."""
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL UNIQUE, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, g, repeat('x', 5000) FROM generate_series(1, 5) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with ahead(place) as mirror:
        for identity in ("DEFAULT", "USING INDEX t_code_key", "FULL", "DEFAULT"):
            database.execute(
                f"ALTER TABLE t REPLICA IDENTITY {identity}",
                "UPDATE t SET id = id + 100, code = code + 100 WHERE id % 2 = 1",
                "DELETE FROM t WHERE id = 2",
                "INSERT INTO t VALUES ((SELECT max(id) + 1 FROM t), (SELECT max(code) + 1 FROM t), 'new')",
            )
            lsn = position_now(place)
            expect_fresh(place, "public.t", lsn)
        assert mirror.status()[-1].waiting_rows > 10
    state = MirrorState(open_store(place.target))
    known = state.table("public.t")
    assert known is not None
    assert (len(known.gaps), len(known.keys)) == (1, 4)
    database.execute("DELETE FROM t WHERE id = 4")
    place.run(keep_points=1)
    state.set_run("killed")  # so the next one cleans up
    place.run(keep_points=1)
    expect_fresh(place, "public.t", points(place.target)[-1].position)
    cleaned = state.table("public.t")
    assert cleaned is not None
    assert (cleaned.gaps, cleaned.keys) == ((), known.keys[-1:])


def test_a_period_can_be_read(place: Place) -> None:
    """With keep_seconds, files of points stay that keep_points alone removes."""
    place.database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR TABLE t")
    more: dict[str, Any] = {"keep_points": 1, "keep_seconds": 3600}
    known: list[Point] = []
    for k in range(3):
        place.database.execute(f"DELETE FROM t WHERE id = {k - 1}", f"INSERT INTO t VALUES ({k})")
        place.run(**more)
        known.append(points(place.target)[-1])
    state = MirrorState(open_store(place.target))
    state.set_run("killed")  # so the next one cleans up
    place.run(**more)
    ids = [fresh(place.target, "public.t", ["id"], each.position)["id"].to_pylist() for each in known]
    assert ids == [[0], [1], [2]]
    assert known[-1].committed is not None
    then = fresh(place.target, "public.t", ["id"], known[-1].committed)
    assert then["id"].to_pylist() == [2]
    state.set_run("killed")
    place.run(keep_points=1)
    with pytest.raises(LookupError, match="no point of public"):
        fresh(place.target, "public.t", ["id"], known[0].position)


@pytest.mark.slow
def test_columns_that_go_without_a_key(place: Place) -> None:
    """Whole rows are compared by the columns of their time, in the view and in the merge."""
    database = place.database
    database.execute(
        "CREATE TABLE t (a int, b int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 10), (2, 20), (2, 20)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )

    def pairs(position: Any) -> list[tuple[int, int | None]]:
        rows = fresh(place.target, "public.t", ["a", "b"], position).to_pylist()
        return sorted(((row["a"], row["b"]) for row in rows), key=str)

    with ahead(place):
        database.execute("INSERT INTO t VALUES (1, 11)", "DELETE FROM t WHERE b = 10")
        lsn, there = position_now(place), [(1, 11), (2, 20), (2, 20)]
        assert pairs(lsn) == there
        database.execute(
            "ALTER TABLE t DROP COLUMN b", "DELETE FROM t WHERE a = 2", "INSERT INTO t VALUES (5)"
        )
        later, now = position_now(place), [(1, 11), (5, None)]
        assert (pairs(lsn), pairs(later), pairs("latest")) == (there, now, now)
        database.execute(
            "BEGIN; INSERT INTO t VALUES (6); ALTER TABLE t ADD c int; INSERT INTO t VALUES (7, 7); COMMIT"
        )
        expect_fresh(place, "public.t", position_now(place))
    assert (pairs(lsn), pairs(later)) == (there, now)
    expect_equal(place, "public.t")
    assert pairs("latest") == [*now, (6, None), (7, None)]


@pytest.mark.slow
def test_tables_that_cannot_be_read(place: Place) -> None:
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    database.execute("ALTER TABLE t ALTER n TYPE text", "UPDATE t SET n = 'x'")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
    with pytest.raises(
        MirrorError, match=r"the history of public\.t does not go on: .* Read its current table"
    ):
        fresh(place.target, "public.t")
    with place.mirror() as mirror:
        mirror.reload("public.t")
    expect_fresh(place, "public.t", "latest")
    database.execute("ALTER PUBLICATION mirrored DROP TABLE t")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
    with pytest.raises(MirrorError, match=r"public\.t is not published any more, .* read its current table"):
        fresh(place.target, "public.t")


def test_current_tables_that_something_else_moves(tmp_path: Path) -> None:
    """As a sink of Spark does. It writes no history, so a position in between is an error, not an old state."""
    make_target(tmp_path)
    store = open_store(tmp_path)
    current = open_current_table("delta", store, "public.t", TableOptions())
    version = current.version()
    assert version is not None
    Points(store).add(Point(100, None, {"public.t": version}, 100))
    new = pa.Table.from_pylist([{"id": 4, "big": "y", "_commit_lsn": 300}], current.schema())
    current.apply(Effect(("id",), False, new.select(["id"]).slice(0, 0), new), 400)

    def ids(position: int) -> list[int]:
        return sorted(fresh(tmp_path, "public.t", ["id"], position)["id"].to_pylist())

    assert [ids(lsn) for lsn in (100, 200, 400)] == [[1], [2, 3], [1, 4]]
    with pytest.raises(
        LookupError, match=r"history of public\.t goes up to 0/C8, .* 'latest', 0/190 or 0/64"
    ):
        fresh(tmp_path, "public.t", position=300)


@pytest.mark.slow
def test_a_table_that_lacks_rows(place: Place) -> None:
    """A row is gone from the current table, and a change needs it."""
    database = place.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, 1, repeat('x', 5000))",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    with ahead(place, sound=False):
        database.execute("UPDATE t SET n = 2")
        position_now(place)
        lose_rows(place, "public.t")
        with pytest.raises(ValueError, match="the table lacks 1 row that changes refer to"):
            fresh(place.target, "public.t")


def test_while_the_mirror_works(place: Place) -> None:
    """Merges, loads and commits of histories happen between any two steps of a reader. The total is always the same."""
    tables = ["public.left_accounts", "public.right_accounts"]
    place.database.execute(*transfers.SCHEMA, f"CREATE PUBLICATION mirrored FOR TABLE {', '.join(tables)}")
    done = 0
    with ahead(place, seconds=0.1, merge_seconds=0.1), transfers.writing(place.database):
        while done < 20:
            if done == 10:
                place.database.execute("ALTER TABLE left_accounts ADD COLUMN c float8 DEFAULT random()")
            try:
                total = fresh_total(place)
            except (MirrorError, LookupError):
                continue  # it is loaded; or the left one was, and the right one has not come so far
            assert total == transfers.TOTAL
            done += 1
    expect_equal(place, *tables)
