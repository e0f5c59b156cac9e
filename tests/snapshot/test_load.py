"""Snapshot and stream together have every change once; files are whole or not there, whatever ends the load."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, LoadProgress, Snapshot, SnapshotError, create_slot
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog, segment_outcomes
from pgoutput_fast.storage.table_directories import table_directory
from support import pg
from support.background import Background
from support.capturing import drop_when_free, now
from support.snapshots import tables_of

pytestmark = pytest.mark.few_servers


@pytest.fixture
def slot(database: pg.Database) -> Iterator[str]:
    """The name of a slot; and an empty schema l."""
    database.execute("CREATE SCHEMA l")
    name = f"{database.name}_l"
    yield name
    drop_when_free(database.dsn, name)
    database.execute("DROP PUBLICATION IF EXISTS p", "DROP SCHEMA l CASCADE")


def _changes(directory: Path, table: str) -> pa.Table:
    """What the segments say was committed, in order."""
    rows = pa.concat_tables([read_segment(segment.path) for segment in list_segments(directory)])
    (batch,) = rows.combine_chunks().to_batches()
    out = pgo.decode_tagged(
        batch,
        segment_catalog(directory),
        pgo.Options(transactions="committed"),
        outcomes=segment_outcomes(directory),
    )
    return out.table(table)


def test_every_type_goes_into_files(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Times and intervals as strings, also within others; all else as it is."""
    database.execute(
        "CREATE TYPE l.pair AS (i interval, t time)",
        "CREATE TABLE l.t (id int PRIMARY KEY, i interval, t time, is_ interval[], p l.pair, u uuid, n numeric(9,2), r tsrange)",
        "INSERT INTO l.t VALUES (1, '1 day 2 hours', '12:30', '{1 mon}', ROW('1 year', '01:02:03.5'),"
        " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 1.25, '[2020-01-01,2020-01-02)')",
        "INSERT INTO l.t (id) VALUES (2)",
        "CREATE PUBLICATION p FOR TABLE l.t",
    )  # fmt: skip
    for strings, uuid in (("string", "string"), ("string_view", "fixed_size_binary")):
        options = pgo.Options(strings=strings, uuid=uuid)
        with Snapshot(database.dsn, ["p"], options=options) as snapshot:
            loaded = snapshot.load_to(tmp_path / uuid)
        first, second = pq.read_table(loaded.tables["l.t"].path).sort_by("id").to_pylist()
        assert (first["i"], first["t"], first["is_"]) == ("P1DT2H", "12:30:00.000000", ["P1M"])
        assert first["p"] == {"i": "P1Y", "t": "01:02:03.500000"}
        assert (str(first["n"]), first["r"]["lower"].year) == ("1.25", 2020)
        assert {second[name] for name in ("i", "t", "is_", "p", "u", "n", "r")} == {None}


class Writer(Background):
    """A session that never rests: it inserts, changes, moves and deletes rows of some tables, and rolls back."""

    def __init__(self, database: pg.Database, tables: list[str]) -> None:
        super().__init__()
        self._database, self._tables = database, tables
        self._failed: list[BaseException] = []
        self.commits = 0

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        assert not self._failed

    def wait_for(self, commits: int) -> None:
        deadline = time.monotonic() + 120
        wanted = self.commits + commits
        while self.commits < wanted and time.monotonic() < deadline and not self._failed:
            time.sleep(0.01)

    def _run(self) -> None:
        dice, next_id = random.Random(5), 1_000_000
        try:
            with self._database.session() as connection, connection.cursor() as cursor:
                connection.autocommit = False
                while not self._stop.is_set():
                    for _ in range(dice.choice([1, 3])):
                        table = dice.choice(self._tables)
                        count = dice.choice([1, 20])
                        cursor.execute(
                            f"INSERT INTO {table} SELECT g, 1, repeat('n', 200) FROM generate_series(%s, %s) g",
                            (next_id, next_id + count),
                        )
                        next_id += count + 1
                        low = dice.randrange(2000)
                        cursor.execute(
                            f"UPDATE {table} SET n = n + 1 WHERE id BETWEEN %s AND %s", (low, low + 15)
                        )
                        cursor.execute(f"DELETE FROM {table} WHERE id = %s", (dice.randrange(2000),))
                        # Out of its page, and by its key.
                        cursor.execute(
                            f"UPDATE {table} SET id = %s, v = v || 'm' WHERE id = %s",
                            (next_id, dice.randrange(2000)),
                        )
                        next_id += 1
                    if dice.random() < 0.2:
                        connection.rollback()
                    else:
                        connection.commit()
                        self.commits += 1
                    self._stop.wait(0.001)
        except BaseException as problem:
            self._failed.append(problem)


def replayed(snapshot: pa.Table, changes: pa.Table | None, since: int = 0) -> dict[int, tuple[int, str]]:
    """A table as snapshot and changes say; a change that does not fit what is there fails."""
    rows = {row["id"]: (row["n"], row["v"]) for row in snapshot.select(["id", "n", "v"]).to_pylist()}
    assert len(rows) == snapshot.num_rows
    for row in changes.to_pylist() if changes is not None else ():
        if row["_commit_lsn"] < since:
            continue
        assert row["_commit_lsn"] >= snapshot["_commit_lsn"][0].as_py()
        kind = row["_change_type"]
        if kind == "insert":
            assert row["id"] not in rows
        if kind in ("delete", "update_preimage"):
            # Before the first change of its key: with replica identity full the old row comes as a whole.
            assert rows.pop(row["id"]) == (row["n"], row["v"])
            continue
        rows[row["id"]] = (row["n"], row["v"])
    return rows


@pytest.mark.newest_server
def test_gap_0_and_duplicates_0_under_a_live_writer(database: pg.Database, slot: str, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE l.a (id int PRIMARY KEY, n int, v text)",
        "CREATE TABLE l.b (id int PRIMARY KEY, n int, v text)",
        "ALTER TABLE l.a REPLICA IDENTITY FULL",
        "ALTER TABLE l.b REPLICA IDENTITY FULL",
        "INSERT INTO l.a SELECT g, 0, repeat('a', 200) FROM generate_series(0, 1999) g",
        "INSERT INTO l.b SELECT g, 0, repeat('b', 200) FROM generate_series(0, 1999) g",
        "CREATE PUBLICATION p FOR TABLE l.a, l.b",
    )
    with Writer(database, ["l.a", "l.b"]) as writer:
        writer.wait_for(20)
        with Snapshot(database.dsn, ["p"], slot, range_bytes=1 << 16) as snapshot:
            writer.wait_for(20)
            read = tables_of(snapshot.read(threads=2))
            writer.wait_for(10)
            loaded = snapshot.load_to(tmp_path / "loaded", threads=2)
        writer.wait_for(20)
    Capture(database.dsn, slot, ["p"], tmp_path / "changes").run(until_lsn=now(database))
    assert not loaded.lost
    for name in ("l.a", "l.b"):
        expected = {id_: (n, v) for id_, n, v in database.execute(f"SELECT id, n, v FROM {name}")}
        changes = _changes(tmp_path / "changes", name)
        assert replayed(read[name], changes) == expected
        files = pq.read_table(loaded.tables[name].path)
        assert sorted(files["id"].to_pylist()) == sorted(read[name]["id"].to_pylist())
        assert loaded.tables[name].rows == files.num_rows
        assert replayed(files, changes) == expected
        # The same columns, so that both go into one table.
        assert pa.concat_tables([files, changes.cast(files.schema)]).num_rows == len(files) + len(changes)


def test_prepared_transactions(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """What is prepared when the slot begins is waited for; what is prepared then is all the stream's."""
    if database.version < 15:
        pytest.skip("pgoutput sends prepared transactions since 15")
    database.execute(
        "CREATE TABLE l.a (id int PRIMARY KEY, n int, v text)",
        "ALTER TABLE l.a REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE l.a",
        "BEGIN", "INSERT INTO l.a VALUES (1, 0, 'prepared before')", "PREPARE TRANSACTION 'before'",
    )  # fmt: skip
    later = threading.Timer(0.5, database.execute, ["COMMIT PREPARED 'before'"])
    later.start()
    with Snapshot(database.dsn, ["p"], slot, two_phase=True) as snapshot:
        later.join()
        database.execute(
            "BEGIN", "INSERT INTO l.a VALUES (2, 0, 'prepared')", "PREPARE TRANSACTION 'kept'",
            "BEGIN", "INSERT INTO l.a VALUES (3, 0, 'prepared')", "PREPARE TRANSACTION 'dropped'",
        )  # fmt: skip
        read = tables_of(snapshot.read())["l.a"]
    database.execute("COMMIT PREPARED 'kept'", "ROLLBACK PREPARED 'dropped'")
    assert read["id"].to_pylist() == [1]
    Capture(database.dsn, slot, ["p"], tmp_path).run(until_lsn=now(database))
    assert sorted(replayed(read, _changes(tmp_path, "l.a"))) == [1, 2]


def test_a_table_that_is_published_later(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Its snapshot has a point of its own; what the slot sent of it before that is in the snapshot already."""
    database.execute(
        "CREATE TABLE l.a (id int PRIMARY KEY, n int, v text)",
        "CREATE TABLE l.late (id int PRIMARY KEY, n int, v text)",
        "ALTER TABLE l.late REPLICA IDENTITY FULL",
        "INSERT INTO l.late SELECT g, 0, repeat('a', 200) FROM generate_series(0, 1999) g",
        "CREATE PUBLICATION p FOR TABLE l.a",
    )
    create_slot(database.dsn, slot)
    with Writer(database, ["l.late"]) as writer:
        writer.wait_for(10)
        # With a lock: before 13.21, 14.18, ... a server may overlook it for as long as a session decodes, where a
        # transaction that changes the table is open meanwhile.
        database.execute(
            "BEGIN",
            "LOCK TABLE l.late IN SHARE ROW EXCLUSIVE MODE",
            "ALTER PUBLICATION p ADD TABLE l.late",
            "COMMIT",
        )
        writer.wait_for(20)
        with Snapshot(database.dsn, ["p"], tables=["l.late"]) as snapshot:
            writer.wait_for(10)
            loaded = snapshot.load_to(tmp_path / "loaded")
        writer.wait_for(10)
    Capture(database.dsn, slot, ["p"], tmp_path / "changes").run(until_lsn=now(database))
    changes = _changes(tmp_path / "changes", "l.late")
    since = loaded.tables["l.late"].consistent_lsn
    assert since == snapshot.consistent_lsn
    assert min(changes["_commit_lsn"].to_pylist()) < since
    expected = {id_: (n, v) for id_, n, v in database.execute("SELECT id, n, v FROM l.late")}
    assert replayed(pq.read_table(loaded.tables["l.late"].path), changes, since) == expected


def _fill(database: pg.Database) -> None:
    database.execute(
        "CREATE TABLE l.a (id int PRIMARY KEY, n int, v text)",
        "CREATE TABLE l.b (id int PRIMARY KEY, d date)",
        "CREATE TABLE l.nil (id int PRIMARY KEY)",
        "INSERT INTO l.a SELECT g, 0, repeat('a', 700) FROM generate_series(1, 1500) g",
        "INSERT INTO l.b VALUES (1, 'infinity'), (2, '2024-01-01')",
        "CREATE PUBLICATION p FOR TABLE l.a, l.b, l.nil",
    )


def test_files(database: pg.Database, slot: str, tmp_path: Path) -> None:
    _fill(database)
    with Snapshot(database.dsn, ["p"], slot, range_bytes=1 << 18) as snapshot:
        loaded = snapshot.load_to(tmp_path, threads=2)
        names = [each.name for each in snapshot.ranges("l.a")]
        assert sorted(path.name for path in tmp_path.iterdir()) == [".load.lock", "l.a", "l.b", "l.nil"]
        for name, rows in (("l.a", 1500), ("l.b", 2), ("l.nil", 0)):
            one = loaded.tables[name]
            read = pq.read_table(one.path)
            assert read.schema.names == snapshot.schema(name).names
            assert read.schema.metadata[b"pg.version"].decode() == str(snapshot.tables[name].relation.version)
            assert (read.num_rows, one.rows, one.path) == (rows, rows, tmp_path / name)
            about = json.loads((one.path / "_snapshot.json").read_text())
            assert about["consistent_lsn"] == one.consistent_lsn == snapshot.consistent_lsn
            assert pgo.Relation.from_dict(about["relation"]) == snapshot.tables[name].relation
            assert about["slot"] == slot
        assert sorted(path.stem for path in (tmp_path / "l.a").glob("*.parquet")) == sorted(names)
        assert loaded.tables["l.b"].rejects == 1
        (rejects,) = (tmp_path / "l.b").glob("_rejects-*.parquet")
        assert pq.read_table(rejects)["reason"].to_pylist() == ["an infinite value has no date32[day] form"]
        # All of it is there already.
        told: list[LoadProgress] = []
        assert snapshot.load_to(tmp_path, progress=told.append) == loaded
        assert told == []
    with (
        Snapshot(database.dsn, ["p"]) as other,
        pytest.raises(
            SnapshotError, match=r"has another snapshot of l.* \(consistent at [0-9A-F]+/[0-9A-F]+\)"
        ),
    ):
        other.load_to(tmp_path)
    assert pq.read_table(tmp_path / "l.a").num_rows == 1500


def test_names_as_long_as_names_may_be(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """Percent-encoded they are longer than a file system allows. One function says where they lie."""
    schema, names = "é" * 31, ["ü" * 31, "ü" * 30 + "ö"]
    database.execute(
        f'CREATE SCHEMA "{schema}"',
        *(
            f'CREATE TABLE "{schema}"."{name}" AS SELECT {k} AS id FROM generate_series(1, 3)'
            for k, name in enumerate(names)
        ),
        "CREATE PUBLICATION p FOR TABLE " + ", ".join(f'"{schema}"."{name}"' for name in names),
    )
    try:
        with Snapshot(database.dsn, ["p"], slot) as snapshot:
            snapshot.load_to(tmp_path)
        for k, name in enumerate(names):
            directory = tmp_path / table_directory(schema, name)
            assert pq.read_table(directory)["id"].to_pylist() == [k] * 3
    finally:
        database.execute(f'DROP SCHEMA "{schema}" CASCADE')


def test_what_is_durable_is_not_read_again(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """A load that fails in the middle goes on where it was, as long as the snapshot lives."""
    if database.version < 14:
        pytest.skip("a table is read in one range before 14")
    _fill(database)

    class FullError(OSError):
        pass

    def fail_at_the_third(now: LoadProgress) -> None:
        if now.ranges == 3:
            raise FullError

    with Snapshot(database.dsn, ["p"], slot, range_bytes=1 << 17) as snapshot:
        with pytest.raises(FullError):
            snapshot.load_to(tmp_path, progress=fail_at_the_third)
        # Nothing that is not whole is seen by those who read the directory.
        assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} <= {
            "l.b",
            "l.nil",
        }
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".l.a.*.partial/*.parquet")}
        assert len(before) == 3
        # A killed load leaves unfinished files.
        (next(iter(before)).parent / ".0.parquet.0123456789abcdef").touch()
        told: list[LoadProgress] = []
        loaded = snapshot.load_to(tmp_path, progress=told.append)
        assert told[-1].all_ranges == sum(len(snapshot.ranges(name)) for name in snapshot.tables) - 3
        for path, changed in before.items():
            assert (tmp_path / "l.a" / path.name).stat().st_mtime_ns == changed
        assert not list((tmp_path / "l.a").glob(".*"))
    assert sorted(pq.read_table(loaded.tables["l.a"].path)["id"].to_pylist()) == list(range(1, 1501))
    assert [path.name for path in tmp_path.glob(".*")] == [".load.lock"]


def test_a_load_that_ended_before_a_table_appeared(database: pg.Database, slot: str, tmp_path: Path) -> None:
    _fill(database)
    with Snapshot(database.dsn, ["p"], slot) as snapshot:
        path = snapshot.load_to(tmp_path).tables["l.a"].path
        path.rename(tmp_path / f".l.a.{urllib.parse.quote(snapshot.name, safe='')}.partial")
        assert snapshot.load_to(tmp_path).tables["l.a"].path == path
    assert pq.read_table(path).num_rows == 1500


def test_somebody_removes_files_during_a_load(database: pg.Database, slot: str, tmp_path: Path) -> None:
    if database.version < 14:
        pytest.skip("a table is read in one range before 14")
    _fill(database)
    removed: list[Path] = []

    def remove(now: LoadProgress) -> None:
        if now.table == "l.a" and not removed:
            (partial,) = tmp_path.glob(".l.a.*.partial")
            removed.append(partial)
            shutil.rmtree(partial)

    with Snapshot(database.dsn, ["p"], slot, range_bytes=1 << 17) as snapshot:
        with pytest.raises(SnapshotError, match=r"somebody removed files from .*: load again"):
            snapshot.load_to(tmp_path, progress=remove)
        assert pq.read_table(snapshot.load_to(tmp_path).tables["l.a"].path).num_rows == 1500


def test_two_loads_into_one_directory(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """The second one is refused while the first one runs, whichever snapshot it is of."""
    _fill(database)
    with (
        Snapshot(database.dsn, ["p"], slot, range_bytes=1 << 17) as first,
        Snapshot(database.dsn, ["p"]) as second,
    ):
        refused: list[str] = []

        def load_the_second(now: LoadProgress) -> None:
            for other in (first, second):
                with pytest.raises(SnapshotError, match="another process loads into") as problem:
                    other.load_to(tmp_path)
                refused.append(str(problem.value))

        loaded = first.load_to(tmp_path, progress=load_the_second)
        assert len(refused) >= 2 * len(loaded.tables)
        assert pq.read_table(loaded.tables["l.a"].path).num_rows == loaded.tables["l.a"].rows == 1500


def test_what_another_snapshot_left(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """What one left unfinished is not the other's, and goes."""
    if database.version < 14:
        pytest.skip("a table is read in one range before 14")
    _fill(database)

    class LeftError(Exception):
        pass

    with (
        Snapshot(database.dsn, ["p"], slot, range_bytes=1 << 17) as first,
        Snapshot(database.dsn, ["p"]) as second,
    ):

        def leave(now: LoadProgress) -> None:
            raise LeftError

        with pytest.raises(LeftError):
            first.load_to(tmp_path, progress=leave)
        (left,) = tmp_path.glob(".l.a.*.partial")
        assert second.load_to(tmp_path).tables["l.a"].rows == 1500
        assert not left.exists()
        with pytest.raises(SnapshotError, match="has another snapshot"):
            first.load_to(tmp_path)


def test_the_connection_that_holds_the_snapshot_is_cut(
    database: pg.Database, slot: str, tmp_path: Path
) -> None:
    _fill(database)
    with Snapshot(database.dsn, ["p"], slot) as snapshot:
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE datname = '{database.name}' AND application_name = 'pgoutput_fast' AND pid <> pg_backend_pid()"
        )

        def load_until_it_fails() -> None:
            deadline = time.monotonic() + 240
            for k in range(100_000):  # the server may need a moment to notice
                assert time.monotonic() < deadline
                snapshot.load_to(tmp_path / str(k))
                time.sleep(0.1)

        with pytest.raises(SnapshotError, match="is gone"):
            load_until_it_fails()
