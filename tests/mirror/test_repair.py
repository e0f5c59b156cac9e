"""A slot that was lost: another one takes its place, and only what differs is written."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest

from pgoutput_fast.capture import Retention, create_slot, find_slot
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import MirrorError, SlotLostError, TableRepair, at, fresh, points
from pgoutput_fast.mirror.repair.compare.divisions import Ranges
from pgoutput_fast.mirror.state import mirror_state
from pgoutput_fast.protocol.lsn import parse_lsn
from pgoutput_fast.snapshot import LoadProgress
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.directories import directory_of
from reference.current import CurrentRows
from support import pg, transfers
from support.buckets import opened_bucket
from support.capturing import drop_when_free, wait_until
from support.current_tables import delta_table
from support.forms import and_exhaustive
from support.mirrors import (
    Place,
    comparable,
    current_of,
    expect_equal,
    expect_replayed,
    expect_same_total,
    history_of,
    lose_rows,
    opened,
    place,
)

__all__ = ["place"]

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "3"))
SOAK = pytest.mark.skipif(KILLS < 4, reason="make soak does this")


def _repaired(place: Place, **more: Any) -> dict[str, TableRepair]:
    """What a repair did, of which nothing is wrong; and all that comes behind it is mirrored, too."""
    with place.mirror(**more) as mirror:
        done = mirror.repair()
        place.expect_no_errors(mirror)
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    return {each.table: each for each in done}


def _divide(place: Place, table: str) -> None:
    """Writes a current table again as several files, without a word to the mirror."""
    found = delta_table(place.target / "current", directory_of(table), file_bytes=1)
    rows, schema, position = found.read(), found.schema(), found.position()
    assert schema is not None
    assert position is not None
    found.replace(rows.sort_by("id").to_batches(max_chunksize=50), schema, position)


def _files(place: Place, table: str) -> set[str]:
    return set(deltalake.DeltaTable(str(place.target / "current" / directory_of(table))).file_uris())


def _counts(done: TableRepair) -> tuple[str | None, int, int, int]:
    return done.loaded, done.inserted, done.updated, done.deleted


@pytest.mark.slow
def test_a_slot_that_was_dropped(place: Place) -> None:
    """While it was gone, rows were inserted, updated, deleted and truncated."""
    database = place.database
    tables = {
        "changed": ("id int PRIMARY KEY", ["id"]),
        "texts": ("id text PRIMARY KEY", ["id"]),
        "pairs": ("id int, other text, PRIMARY KEY (other, id)", ["id", "other"]),
        "same": ("id int PRIMARY KEY", ["id"]),
        "truncated": ("id int PRIMARY KEY", ["id"]),
        "keyless": ("id int", []),
    }
    for name, (columns, _) in tables.items():
        other = ", 'x'" if name == "pairs" else ""
        database.execute(
            f"CREATE TABLE {name} ({columns}, v text, n numeric(10, 2))",
            f"INSERT INTO {name} SELECT g{other}, 'v' || g, g FROM generate_series(1, 300) g",
        )
    database.execute(
        "ALTER TABLE keyless REPLICA IDENTITY FULL", "CREATE PUBLICATION mirrored FOR ALL TABLES"
    )
    place.run()
    database.execute("UPDATE changed SET v = 'seen' WHERE id < 10")
    place.run()
    _divide(place, "public.changed")
    drop_when_free(database.dsn, place.slot)
    for name in ("changed", "texts", "pairs"):
        database.execute(
            f"INSERT INTO {name} (id, v{', other' if name == 'pairs' else ''}) "
            f"SELECT g, 'new'{', 5' if name == 'pairs' else ''} FROM generate_series(2001, 2005) g",
            f"UPDATE {name} SET v = v || '!', n = NULL WHERE id::int % 100 = 7",
            f"DELETE FROM {name} WHERE id::int % 250 = 0",
        )
    database.execute(
        "TRUNCATE truncated",
        "INSERT INTO truncated VALUES (1, 'v1', 1), (7, 'other', 7)",
        "DELETE FROM keyless WHERE id = 5",
    )
    before, files = at(place.target), _files(place, "public.changed")
    with place.mirror() as mirror, pytest.raises(SlotLostError, match=r"slot \w+ is gone: .*--repair"):
        mirror.run(until_lsn="now")
    done = _repaired(place)
    # Files without a row that differs stay: those with the keys 7, 107, 207 and 250 go.
    assert len(files) == 6
    assert 0 < len(files - _files(place, "public.changed")) <= 3
    for name in ("changed", "texts", "pairs"):
        assert _counts(done[f"public.{name}"]) == (None, 5, 3, 1), name
    assert _counts(done["public.truncated"]) == (None, 0, 1, 298)
    assert _counts(done["public.same"]) == (None, 0, 0, 0)
    assert done["public.keyless"].loaded == "it has no key"
    # Ranges of keys that are the same were not looked at again, and a table that is the same was not written.
    assert done["public.changed"].different < done["public.changed"].ranges
    assert at(place.target)["public.same"] == before["public.same"]
    database.execute(
        "UPDATE changed SET v = 'behind' WHERE id < 30", "INSERT INTO same VALUES (0)", "DELETE FROM keyless"
    )
    place.run()
    for name, (_, key) in tables.items():
        expect_equal(place, f"public.{name}")
        expect_replayed(place, f"public.{name}", key)
    # Rows that were the same have the commit that they had.
    kept = {row["_commit_lsn"] for row in current_of(place.target, "public.same").to_pylist() if row["id"]}
    assert len(kept) == 1
    found = points(place.target)
    assert [each.position for each in found] == sorted(each.position for each in found)
    with place.mirror() as mirror:
        assert mirror.repair() == []


def _make(place: Place) -> None:
    """Three tables: one that is compared by ranges, one by hashes, and one that is loaded again."""
    place.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id text PRIMARY KEY, v text)",
        "CREATE TABLE c (id int, v text)",
        *(f"INSERT INTO {name} SELECT g, 'v' || g FROM generate_series(1, 200) g" for name in "abc"),
        "ALTER TABLE c REPLICA IDENTITY FULL",
        "CREATE PUBLICATION mirrored FOR TABLE a, b, c",
    )


def _prepare(place: Place) -> None:
    """The tables, mirrored."""
    _make(place)
    place.run()


def _change(place: Place, n: int) -> None:
    place.database.execute(
        *(
            statement
            for name in "abc"
            for statement in (
                f"UPDATE {name} SET v = v || '{n}' WHERE id::int % 50 = {n}",
                f"DELETE FROM {name} WHERE id::int = 100 + {n}",
                f"INSERT INTO {name} VALUES ({1000 + n}, 'new')",
            )
        )
    )


def _expect_all(place: Place) -> None:
    for name, key in (("a", ["id"]), ("b", ["id"]), ("c", [])):
        expect_equal(place, f"public.{name}")
        expect_replayed(place, f"public.{name}", key)


_STATE, _HISTORY = "pgoutput_fast.mirror.state.mirror_state", "pgoutput_fast.mirror.follow.history"
_CURRENT = "pgoutput_fast.merge.local"
# (module, function, call): at that call, or when it returns (a number below 0).
KILLED = [
    [_STATE, "MirrorState.set_beginning", 2],  # the slot, and nobody knows
    [_HISTORY, "AppendTable.commit", -1],  # a history without its current table
    [_CURRENT, "LocalMerge.apply", -1],  # one table
    [_STATE, "MirrorState.set_progress", -1],  # all tables, and the next stream is known
]
KILLED_TOO = [
    [_STATE, "MirrorState.set_beginning", -1],  # no slot yet
    [_STATE, "MirrorState.set_beginning", -2],
    [_HISTORY, "AppendTable.commit", 1],  # files of a history
    [_CURRENT, "LocalMerge.apply", 1],
    [_CURRENT, "LocalMerge.replace", -1],  # a current table without its history
    [_STATE, "MirrorState.set_progress", 1],
    [_STATE, "MirrorState.set_beginning", -3],
]


def _fresh_values(place: Place, table: str, position: Any = "latest") -> dict[Any, Any]:
    rows = fresh(place.target, table, ["id", "v"], position)
    return dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))


@pytest.mark.slow
def test_the_fresh_view_of_repaired_tables(place: Place) -> None:
    """It is exact before the slot was lost and behind the repair, and says that nobody knows what was in between."""
    _prepare(place)
    before = {name: _fresh_values(place, f"public.{name}") for name in "ab"}
    known = points(place.target)[-1].position
    drop_when_free(place.database.dsn, place.slot)
    _change(place, 1)
    place.killed([_HISTORY, "AppendTable.commit", -1], "--repair")
    # The history has what the repair found, and the current table has not.
    assert {name: _fresh_values(place, f"public.{name}") for name in "ab"} == before
    _repaired(place)
    for name in "ab":
        expected = dict(place.database.execute(f"SELECT id, v FROM {name}"))
        assert _fresh_values(place, f"public.{name}") == expected != before[name]
        assert _fresh_values(place, f"public.{name}", known) == before[name]
        latest = fresh(place.target, f"public.{name}").schema.metadata[b"position"].decode()
        gap = mirror_state.MirrorState(open_store(place.target)).table(directory_of(f"public.{name}"))
        assert gap is not None
        begin, end, _ = gap.gaps[-1]
        assert known <= begin < end <= parse_lsn(latest)
        with pytest.raises(LookupError, match=r"was loaded or repaired at .* are unknown"):
            fresh(place.target, f"public.{name}", position=begin + 1)
        assert _fresh_values(place, f"public.{name}", end) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kills", [KILLED, pytest.param(KILLED_TOO, marks=SOAK)], ids=["some", "others"])
def test_a_repair_that_is_killed(place: Place, kills: list[list[Any]]) -> None:
    """At each of its steps. The next one, or the next run, begins it again."""
    _prepare(place)
    # Changes that are in segments, and in no table.
    _change(place, 40)
    place.killed([_HISTORY, "AppendTable.commit", 1])
    drop_when_free(place.database.dsn, place.slot)
    for n, kill in enumerate(kills):
        _change(place, n)
        place.killed(kill, *(["--repair"] if n % 2 == 0 else []))
    _change(place, 41)
    place.run()
    _expect_all(place)
    found = points(place.target)
    assert [each.position for each in found] == sorted(each.position for each in found)
    (left,) = place.database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
    )
    assert left == (1,)


@pytest.mark.slow
def test_a_slot_that_the_server_invalidated(tmp_path: Path) -> None:
    """With values that the stream does not send, and values without an Arrow form."""
    versions = pg.installations()
    if max(versions, default=0) < 13:
        pytest.skip("slots are invalidated since 13")
    settings = {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with Server(versions[max(versions)], settings) as server, opened(server, tmp_path) as place:
        database = place.database
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, k int, big text, n numeric(12, 3), at timestamptz, f float8, r real, j jsonb, "
            "u uuid, iv interval, a text[], d date, t time, b bytea, o oid)",
            "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
            """INSERT INTO t SELECT g, 0, repeat(g::text, 2000), CASE WHEN g % 2 = 0 THEN 'NaN'::numeric ELSE g / 7.0 END,
               CASE WHEN g % 3 = 0 THEN 'infinity' ELSE '2026-01-01 00:00:00.123456+00'::timestamptz END,
               CASE WHEN g % 5 = 0 THEN 'NaN' ELSE g / 3.0 END, g / 3.0, '{"a": [1, null]}',
               'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '1 mon 2 days 03:00:00', '{a,NULL,"b c"}', '0001-01-01',
               '12:30:00.5', '\\x00ff', 4294967295 FROM generate_series(1, 200) g""",
            "CREATE PUBLICATION mirrored FOR TABLE t",
        )
        place.run()
        database.execute("UPDATE t SET k = 1 WHERE id < 20")  # the stream does not have the large values
        place.run()
        database.execute(
            "UPDATE t SET k = 2 WHERE id = 100",
            "UPDATE t SET big = repeat('y', 3000), n = 'NaN' WHERE id = 101",
            "UPDATE t SET at = '-infinity' WHERE id = 102",  # both values have no Arrow form
            "UPDATE t SET f = '-0', at = 'infinity' WHERE id = 103",
        )
        for _ in range(4):
            database.execute(
                "SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()", "CHECKPOINT"
            )
        found = find_slot(database.dsn, place.slot)
        assert found is not None
        assert found.invalidated is not None
        with (
            place.mirror() as mirror,
            pytest.raises(SlotLostError, match=r"the server invalidated slot .*--repair"),
        ):
            mirror.run(until_lsn="now")
        done = _repaired(place)["public.t"]
        # A value without an Arrow form is null, and named. So two of them are the same here.
        assert _counts(done) == (None, 0, 3, 0)
        names = ["id", "k", "big", "f", "d", "b", "o"]
        rows = {row["id"]: row for row in current_of(place.target, "public.t").to_pylist()}
        for row in database.execute(f"SELECT {', '.join(names)} FROM t"):
            assert repr([comparable(each) for each in row]) == repr(
                [comparable(rows[row[0]][name]) for name in names]
            )
        assert rows[101]["_unrepresentable"] == ["n"]
        assert rows[102]["_unrepresentable"] == ["n", "at"]
        assert rows[103]["_unrepresentable"] == ["at"]
        database.execute("UPDATE t SET k = 3 WHERE id = 101", "DELETE FROM t WHERE id = 102")
        place.run()
        changed = {row["id"]: row for row in current_of(place.target, "public.t").to_pylist()}
        assert changed[101]["big"] == "y" * 3000
        assert 102 not in changed
        replayed, there = (
            CurrentRows(["id"], _own(current_of(place.target, "public.t").schema)) for _ in "ab"
        )
        replayed.apply_changes(history_of(place.target, "public.t").to_pylist())
        there.rows = list(changed.values())
        assert replayed.sorted() == there.sorted()


def _own(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if not field.name.startswith("_")])


@pytest.mark.slow
@pytest.mark.parametrize("format", ["iceberg", "duckdb"])
def test_other_formats(place: Place, format: str, tmp_path: Path) -> None:
    """With segments in another directory."""
    more = {"format": format, "segments": tmp_path / "sent"}
    database = place.database
    database.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text, at timestamp)",
        "INSERT INTO t SELECT g * 1000003, 'v' || g, now() FROM generate_series(-100, 100) g",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run(**more)
    drop_when_free(database.dsn, place.slot)
    database.execute(
        "UPDATE t SET v = 'other' WHERE id = -100000300",
        "DELETE FROM t WHERE id = 0",
        "INSERT INTO t VALUES (5)",
    )
    assert _counts(_repaired(place, **more)["public.t"]) == (None, 1, 1, 1)
    expect_equal(place, "public.t", format=format)
    expect_replayed(place, "public.t", ["id"])


@SOAK
def test_a_target_in_a_store(place: Place) -> None:
    """The repair is killed between the history and the current table."""
    _prepare(place)
    drop_when_free(place.database.dsn, place.slot)
    with opened_bucket("lakes") as bucket:
        place.target = bucket.uri % "mine"
        place.run()
        drop_when_free(place.database.dsn, place.slot)
        _change(place, 1)
        place.killed(["pgoutput_fast.mirror.follow.history", "AppendTable.commit", -1], "--repair")
        _change(place, 2)
        done = _repaired(place)
        assert _counts(done["public.a"]) == (None, 1, 3, 1)
        assert _counts(done["public.b"]) == (None, 2, 6, 2)
        _change(place, 3)
        place.run()
        expect_equal(place, "public.a", "public.b", "public.c")


@pytest.mark.slow
def test_tables_that_cannot_be_compared(place: Place) -> None:
    """Columns that changed, a table of the same name, one that is stopped, and ones that are published or not any more."""
    database = place.database
    for name in ("altered", "again", "stopped", "gone"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int, v text)",
            f"ALTER TABLE {name} ALTER v SET STORAGE EXTERNAL",
            f"INSERT INTO {name} SELECT g, 0, repeat('x', 5000) FROM generate_series(1, 5) g",
        )
    database.execute("CREATE PUBLICATION mirrored FOR TABLE altered, again, stopped, gone")
    database.execute(
        "CREATE TABLE odd (at timestamptz PRIMARY KEY)",
        "INSERT INTO odd VALUES ('infinity')",
        "ALTER PUBLICATION mirrored ADD TABLE odd",
    )
    place.run()
    lose_rows(place, "public.stopped")
    database.execute("UPDATE stopped SET n = 1", "CREATE TABLE later (id int PRIMARY KEY)")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        assert {each.table for each in mirror.status() if each.state == "stopped"} == {"public.stopped"}
    drop_when_free(database.dsn, place.slot)
    database.execute(
        "ALTER TABLE altered ADD w int DEFAULT 7",
        "DROP TABLE again",
        "CREATE TABLE again (id int PRIMARY KEY, v text)",
        "ALTER PUBLICATION mirrored SET TABLE altered, again, stopped, later, odd",
        "INSERT INTO later VALUES (1)",
    )
    with place.mirror() as mirror:
        done = {each.table: each.loaded for each in mirror.repair()}
        mirror.run(until_lsn="now")
        assert [(each.table, each.state) for each in mirror.status() if each.state != "follow"] == [
            ("public.gone", "unpublished")
        ]
    assert done == {
        "public.again": "the server has another table of this name now",
        "public.altered": "its columns have changed",
        "public.later": "it is new",
        "public.odd": "a row has a key that has no Arrow form",
        "public.stopped": done["public.stopped"],
    }
    for name in ("altered", "again", "stopped", "later"):
        expect_equal(place, f"public.{name}")
        expect_replayed(place, f"public.{name}", ["id"])
    assert "public.gone" not in at(place.target)


@pytest.mark.slow
def test_a_table_that_is_truncated_during_its_repair(place: Place) -> None:
    """The snapshot cannot read it any more. It gets a load of its own."""
    _prepare(place)
    drop_when_free(place.database.dsn, place.slot)
    _change(place, 1)
    truncated = threading.Event()

    def progress(now: LoadProgress) -> None:
        if now.table == "public.a" and not truncated.is_set():
            truncated.set()
            place.database.execute("TRUNCATE a")

    with place.mirror(progress=progress) as mirror:
        done = {each.table: each for each in mirror.repair()}
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    assert truncated.is_set()
    assert "was rewritten, truncated or replaced" in str(done["public.a"].loaded)
    assert done["public.b"].loaded is None
    _expect_all(place)


@pytest.mark.slow
def test_told_to_stop_during_a_repair(place: Place) -> None:
    _prepare(place)
    drop_when_free(place.database.dsn, place.slot)
    _change(place, 1)
    stop = threading.Event()
    with place.mirror(progress=lambda now: stop.set()) as mirror:
        assert mirror.repair(stop=stop) == []
        mirror.run(stop=stop)
        assert [each.table for each in mirror.repair()] == ["public.a", "public.b", "public.c"]
        mirror.run(until_lsn="now")
        place.expect_no_errors(mirror)
    _expect_all(place)


@pytest.mark.slow
def test_told_to_stop_while_a_repair_waits(place: Place) -> None:
    """For a transaction that is open while the slot is made."""
    _prepare(place)
    drop_when_free(place.database.dsn, place.slot)
    connection, stop, done = place.database.connect(), threading.Event(), []
    connection.autocommit = False
    try:
        connection.cursor().execute("INSERT INTO a VALUES (5000, 'open')")
        with place.mirror() as mirror:
            thread = threading.Thread(target=lambda: done.append(mirror.repair(stop=stop)))
            thread.start()
            slot = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{place.slot}' AND active"
            wait_until(lambda: place.database.execute(slot) == [(1,)])
            stop.set()
            thread.join(240)
            assert done == [[]]
            connection.commit()
            assert len(mirror.repair()) == 3
            mirror.run(until_lsn="now")
    finally:
        stop.set()
        connection.close()
    _expect_all(place)


@pytest.mark.parametrize("kind", ["smallint", "int", "bigint", "counted"])
def test_the_server_finds_ranges_by_the_index(place: Place, kind: str) -> None:
    place.database.execute("CREATE DOMAIN counted AS int", f'CREATE TABLE t ("i d" {kind} PRIMARY KEY)')
    condition = Ranges("i d", np.array([-10, 10, 20, 30])).condition(np.array([0, 2, 4]))
    with place.database.session() as connection, connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(f"EXPLAIN SELECT * FROM ONLY t WHERE ({condition})")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert plan.count("Index Cond") == 3, plan


def test_a_server_that_is_older_than_the_tables(place: Place) -> None:
    """Somebody restored it. Its changes would come in positions that the tables have already."""
    _prepare(place)
    path = place.target / "_mirror" / "progress.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "lsn": 1 << 60}))
    with place.mirror() as mirror:
        for task in (lambda: mirror.run(until_lsn="now"), mirror.repair):
            with pytest.raises(
                MirrorError, match=r"restored the server from an older copy.*into another target"
            ):
                task()
        assert find_slot(place.database.dsn, place.slot) is not None
        drop_when_free(place.database.dsn, place.slot)
        with pytest.raises(MirrorError, match=r"restored the server from an older copy.*into another target"):
            mirror.repair()
    assert find_slot(place.database.dsn, place.slot) is None


def test_a_publication_that_was_made_again(place: Place) -> None:
    """The slot cannot give what was changed meanwhile. A run says so, the next ones at once; a repair drops that slot."""
    place.database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
    )
    place.run()
    place.database.execute(
        "DROP PUBLICATION mirrored",
        "INSERT INTO t VALUES (2)",
        "CREATE PUBLICATION mirrored FOR TABLE t",
        "INSERT INTO t VALUES (3)",
    )
    for _ in range(2):
        with place.mirror() as mirror:
            with pytest.raises(SlotLostError) as problem:
                mirror.run(until_lsn="now")
            (status,) = mirror.status()
        said = str(problem.value)
        assert "Create the publication if it does not exist, and repair the mirror" in said
        assert "another directory" not in said
        assert "drop_slot" not in said
        assert (status.state, status.error) == ("stopped", said)
    assert _repaired(place).keys() == {"public.t"}
    expect_equal(place, "public.t")
    with place.mirror() as mirror:
        assert mirror.repair() == []


@pytest.mark.slow
def test_a_file_of_a_current_table_that_is_gone(place: Place) -> None:
    """Its table is loaded instead of being compared."""
    _prepare(place)
    for path in (place.target / "current" / "public.a").glob("*.parquet"):
        path.unlink()
    drop_when_free(place.database.dsn, place.slot)
    _change(place, 1)
    done = _repaired(place)
    assert (done["public.a"].loaded, done["public.b"].loaded) == ("a file of its current table is gone", None)
    _expect_all(place)


@pytest.mark.slow
def test_a_slot_that_somebody_made_again(place: Place) -> None:
    """The mirror does not drop it. Segments that nobody needs are removed, if the mirror removes segments."""
    _prepare(place)
    for n in (0, 1):
        _change(place, n)
        place.run()
    drop_when_free(place.database.dsn, place.slot)
    _change(place, 2)
    create_slot(place.database.dsn, place.slot)
    with place.mirror() as mirror:
        for task in (lambda: mirror.run(until_lsn="now"), mirror.repair):
            with pytest.raises(SlotLostError, match=r"made another one with this name: .*drop it .*--repair"):
                task()
    drop_when_free(place.database.dsn, place.slot)
    before = _segments(place)
    _repaired(place, retention=Retention(consumed=True))
    assert 1 == len(_segments(place)) < len(before)
    _expect_all(place)


@pytest.mark.slow
@pytest.mark.parametrize("behind", and_exhaustive(["repair"], ["first load"]))
def test_a_slot_that_somebody_made_again_before_its_first_segment(place: Place, behind: str) -> None:
    _make(place)
    if behind == "first load":
        place.killed(["pgoutput_fast.mirror.follow.follow", "Follower.mark", 1])
    else:
        place.run()
        drop_when_free(place.database.dsn, place.slot)
        with place.mirror() as mirror:
            assert mirror.repair() != []
    drop_when_free(place.database.dsn, place.slot)
    _change(place, 1)
    create_slot(place.database.dsn, place.slot)
    _change(place, 2)
    with place.mirror() as mirror, pytest.raises(SlotLostError, match="made another one with this name"):
        mirror.run(until_lsn="now")
    drop_when_free(place.database.dsn, place.slot)
    _repaired(place)
    _expect_all(place)


def _segments(place: Place) -> list[Path]:
    return list((place.target / "_segments").glob("*.parquet"))


@SOAK
def test_transfers_while_slots_are_lost(place: Place) -> None:
    """Others write all the time. The total is the same at each point, and each transfer is there once."""
    tables = ["public.left_accounts", "public.right_accounts"]
    place.database.execute(*transfers.SCHEMA, f"CREATE PUBLICATION mirrored FOR TABLE {', '.join(tables)}")
    place.run()
    with transfers.writing(place.database, 2):
        for _ in range(2):
            place.run()
            drop_when_free(place.database.dsn, place.slot)
            done = _repaired(place)
            assert [done[table].loaded for table in tables] == [None, None]
            assert any(each.updated for each in done.values())
    place.run()
    found = points(place.target)
    assert len(found) > 4
    expect_same_total(place, found)
    for table in tables:
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])
    assert {each.name for each in (place.target / "_segments").glob("stream-*")} == {"stream-1", "stream-2"}


@SOAK
def test_repairs_that_are_killed_at_random_moments(place: Place) -> None:
    """While others write. Slots are lost again and again."""
    _prepare(place)
    dice, stop = random.Random(KILLS), threading.Event()

    def write() -> None:
        for n in itertools.count(2):
            _change(place, n)
            if stop.wait(0.05):
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for n in range(KILLS):
            if n % 3 == 0:
                drop_when_free(place.database.dsn, place.slot)
            process = place.start("--repair")
            time.sleep(0.8 + 3 * dice.random())
            process.kill()
            _, said = process.communicate(timeout=240)
            assert process.returncode == -signal.SIGKILL, said
    finally:
        stop.set()
        writer.join()
    _repaired(place)
    _expect_all(place)
