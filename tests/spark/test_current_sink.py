"""`current_sink`: after each batch, current tables have what the server had, whatever fails in between.

`PGOUTPUT_FAST_KILLS` says how often the test of random moments kills; `make soak` does so many times.
"""

from __future__ import annotations

import os
import random
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

import pgoutput_fast as pgo
from pgoutput_fast import encode
from pgoutput_fast import spark as pgspark
from pgoutput_fast.capture import Capture
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.merge import plan
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.net_effect import net_effect
from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror import MirrorBusyError, at, points
from pgoutput_fast.segments import Source, list_segments, write_segment
from pgoutput_fast.spark import merge as spark_merge
from pgoutput_fast.spark.current.notes import read_notes
from pgoutput_fast.spark.tasks.current.merge_units import RunUnit
from pgoutput_fast.storage.lease import WriterLease
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import Merge, TableOptions
from support import pg
from support.buckets import opened_bucket
from support.current_queries import Query
from support.current_streams import Sent, assert_as_reference, batch_of, rows_of
from support.current_tables import KINDS, delta_table
from support.current_work import Moment, readable, work
from support.forms import and_exhaustive, and_slow
from support.lakes import running, settled
from support.mirrors import Place, expect_equal, place
from support.paths import DOCS
from support.segment_streams import MadeSegments
from support.spark_features import AVAILABLE_NOW

__all__ = ["place", "work"]

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "1"))


@pytest.mark.parametrize(
    ("format", "merge"),
    and_exhaustive(
        and_slow([("delta", "on_write")], [("delta", "on_read")]),
        [("iceberg", "on_write"), ("iceberg", "on_read")],
    ),
    ids=str,
)
def test_tables_are_those_of_the_server(
    spark: Any,
    work: tuple[Sent, Moment],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    merge: Merge,
) -> None:
    """Keys that change, values that were not sent, truncates, moves between partitions, tables without a key."""
    monkeypatch.setattr(CurrentFileTable, "most_marked", 0.3)  # the tables are small
    sent, moment = work
    sink = pgspark.current_sink(tmp_path, format=format, file_bytes=4_000, bucket_bytes=4_000, merge=merge)
    for number, (first, last) in enumerate(sent.batches()):
        sink(batch_of(spark, sent.directory, first, last), number)
        assert_as_reference(sent, tmp_path, format)
    for table in sent.keys:
        version = at(tmp_path)[f"public.{table}"]
        rows = open_current(format, open_store(tmp_path), f"public.{table}", TableOptions()).read(version)
        names = [name for name in rows.column_names if name != "_commit_lsn"]
        found = [list(row.values()) for row in rows.select(names).to_pylist()]
        assert readable(names, found) == moment.rows[table]
    assert not any((tmp_path / "_mirror" / "scratch").iterdir())
    assert len(points(tmp_path)) == 3
    tables = [
        open_current(format, open_store(tmp_path), f"public.{name}", TableOptions()) for name in sent.keys
    ]
    assert any(file.deleted for table in tables for file in table.now().files) == (merge == "on_read")


def _versions(sent: Sent, target: Path, format: str) -> dict[str, int | None]:
    return {
        table: open_current(format, open_store(target), f"public.{table}", TableOptions()).version()
        for table in sent.keys
    }


@pytest.mark.parametrize(
    ("format", "kill"),
    [
        pytest.param(  # files, and one commit
            *("delta", ("pgoutput_fast.tables.file_table", "CurrentFileTable.commit", 2)),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            *("iceberg", ("pgoutput_fast.tables.file_table", "CurrentFileTable.commit", -9)),
            marks=pytest.mark.exhaustive,
        ),
        ("delta", ("pgoutput_fast.spark.current.sink", "write_notes", 4)),  # between commits and notes
    ],
    ids=str,
)
@pytest.mark.classic("a driver of its own shares the JVM")
def test_a_driver_killed_at_a_step(
    spark: Any, work: tuple[Sent, Moment], tmp_path: Path, format: str, kill: Any
) -> None:
    """Spark runs the batch again, and earlier batches change nothing."""
    sent, _ = work
    target, arguments = tmp_path / "lake", {"format": format, "file_bytes": 4_000}
    job = {
        **{"source": str(sent.directory), "target": str(target), "batches": list(sent.batches())},
        **{"sink": "current_sink", "arguments": arguments, "kill": kill},
    }
    with running(job, spark) as driver:
        assert driver.ended() == -9, driver.errors()
    settled(spark)
    sink = pgspark.current_sink(target, **arguments)
    for number, (first, last) in enumerate(sent.batches()):
        sink(batch_of(spark, sent.directory, first, last), number)
    assert_as_reference(sent, target, format)
    before = _versions(sent, target, format)
    (target / "_mirror" / "spark.json").unlink()
    again = pgspark.current_sink(target, **arguments)  # removes what the killed one left
    for number, (first, last) in enumerate(sent.batches()):
        again(batch_of(spark, sent.directory, first, last), number)
    assert _versions(sent, target, format) == before
    assert_as_reference(sent, target, format)


@pytest.mark.parametrize("kind", ["sink", *KINDS])
def test_an_insert_of_a_key_that_another_row_has(spark: Any, tmp_path: Path, kind: str) -> None:
    """No server sends that. The sink does what the tables of a mirror do, of each format."""
    directory = tmp_path / "segments"
    directory.mkdir()
    made, target = MadeSegments(directory), tmp_path / "target"
    target.mkdir()
    name, begin = "public.orders", 0
    sink = pgspark.current_sink(target)
    table = open_current_table("delta" if kind == "sink" else kind, open_store(target), name, TableOptions())

    decoder = pgo.Decoder(pgo.Options(transactions="committed"))

    def ids_now() -> list[int]:
        return sorted(number for rows in table.scan(["id"]) for number in rows["id"].to_pylist())

    def take(*ids: int) -> list[int]:
        nonlocal begin
        wal = made.commit(*ids)
        if kind == "sink":
            made.cut(wal)
            assert made.state is not None
            sink(batch_of(spark, directory, begin, made.state.next_seq - 1), 0)
            begin = made.state.next_seq
        else:
            changes = decoder.decode(wal).table(name)
            table.apply(net_effect(changes, ["id"]), made.lsn)
        return ids_now()

    assert take(1, 2) == [1, 2]
    assert take(2, 3) == [1, 2, 3]  # the row of an earlier batch is replaced
    with pytest.raises(
        Exception, match=r"its new row has the key of another row\. Earlier changes are missing"
    ):
        take(4, 5, 5)
    assert ids_now() == [1, 2, 3]


@pytest.mark.skipif(KILLS < 2, reason="make soak does this")
@pytest.mark.classic("a driver of its own shares the JVM")
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_driver_killed_at_random_moments(
    spark: Any, work: tuple[Sent, Moment], tmp_path: Path, format: str
) -> None:
    sent, _ = work
    dice, target = random.Random(KILLS), tmp_path / "lake"
    batches, arguments = list(sent.batches()), {"format": format, "file_bytes": 4_000}
    job = {
        **{"source": str(sent.directory), "target": str(target), "batches": batches},
        **{"sink": "current_sink", "arguments": arguments},
    }
    for _ in range(KILLS):
        with running(job, spark) as driver:
            driver.until("ready")
            time.sleep(dice.random() * 4)
            driver.kill()
            driver.ended()
        settled(spark)
        assert_as_reference(sent, target, format, killed=True)
    sink = pgspark.current_sink(target, **arguments)
    for number, (first, last) in enumerate(batches):
        sink(batch_of(spark, sent.directory, first, last), number)
    assert_as_reference(sent, target, format)


@pytest.mark.skipif(KILLS < 2, reason="make soak does this")
def test_a_stream_whose_workers_and_driver_are_killed(work: tuple[Sent, Moment], tmp_path: Path) -> None:
    """Workers between their work and its result, and the driver between the commit and the checkpoint."""
    sent, _ = work
    target = tmp_path / "lake"
    job: dict[str, Any] = {
        **{"source": str(sent.directory), "target": str(target), "checkpoint": str(tmp_path / "checkpoint")},
        **{"sink": "current_sink", "arguments": {"file_bytes": 4_000}, "dying": 7},
        "conf": {"spark.master": "local[2,4]"},
    }
    with running({**job, "batch": 2}) as driver:
        assert driver.ended() == -9, driver.errors()
    assert len(list(tmp_path.glob("lake.died*"))) == 7
    with running(job) as driver:
        driver.until("done")
    assert_as_reference(sent, target, "delta")
    assert sum(position is not None for position in _versions(sent, target, "delta").values()) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("what", ["optimize", "vacuum", "column", "batch"])
def test_a_table_that_is_changed_meanwhile(
    spark: Any, work: tuple[Sent, Moment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """While its files are rewritten, or between the files and the commit. The merge is done again, unless the table has
    the changes now."""
    sent, _ = work
    sink = pgspark.current_sink(tmp_path, ["public.by_default"], file_bytes=4_000)
    place, commit, run, rewrites = tmp_path / "current", CurrentFileTable.commit, spark_merge.run_jobs, [0]

    def change(position: int) -> None:
        table = DeltaTable(place / "public.by_default")
        if what == "column":
            table.alter.add_columns([Field("more", PrimitiveType("string"))])
        elif what == "batch":
            nothing = pa.table({"id": pa.array([], pa.int32())})
            other = delta_table(place, "public.by_default")
            other.apply(Effect(("id",), False, nothing, other.read().slice(0, 0)), position)
        else:
            table.optimize.z_order(["n"])

    def changed(
        self: CurrentFileTable, before: Any, schema: Any, position: int, *more: Any, **named: Any
    ) -> None:
        rewrites[0] += 1
        if rewrites[0] == 3 and what != "vacuum":
            change(position)
        commit(self, before, schema, position, *more, **named)

    def vacuumed(spark: Any, jobs: Any) -> Any:
        if rewrites[0] == 2 and what == "vacuum" and any(isinstance(job, RunUnit) for job in jobs):
            rewrites[0] += 1
            change(0)
            table = DeltaTable(place / "public.by_default")
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            results = run(spark, jobs)
            assert any(isinstance(result, FileNotFoundError) for result in results)
            return results
        return run(spark, jobs)

    monkeypatch.setattr(CurrentFileTable, "commit", changed)
    monkeypatch.setattr(spark_merge, "run_jobs", vacuumed)
    batches = list(sent.batches())
    for number, (first, last) in enumerate(batches):
        if what == "batch" and rewrites[0] == 2:
            before = open_current("delta", open_store(tmp_path), "public.by_default", TableOptions()).read()
            sink(batch_of(spark, sent.directory, first, last), number)
            current = open_current("delta", open_store(tmp_path), "public.by_default", TableOptions())
            assert rows_of(current.read(), ["id"]) == rows_of(before, ["id"])
            assert current.position() == points(tmp_path)[-1].position
            return
        sink(batch_of(spark, sent.directory, first, last), number)
    assert rewrites[0] == 4
    current = open_current("delta", open_store(tmp_path), "public.by_default", TableOptions())
    rows = current.read()
    if what == "column":
        assert rows["more"].null_count == rows.num_rows
        rows = rows.drop_columns(["more"])
    assert rows_of(rows, ["id"]) == sent.reference("by_default", current.position() or 0)


@pytest.mark.slow
def test_a_target_that_another_process_takes(
    spark: Any, work: tuple[Sent, Moment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the commit of a table. Then the notes and the points are those of the other process."""
    sent, _ = work
    sink = pgspark.current_sink(tmp_path, ["public.by_default"])
    first, second, *_ = sent.batches()
    sink(batch_of(spark, sent.directory, *first), 0)
    notes, before, commit, commits = (
        read_notes(open_store(tmp_path)),
        points(tmp_path),
        CurrentFileTable.commit,
        [],
    )

    def committed(self: CurrentFileTable, *arguments: Any, **named: Any) -> None:
        commit(self, *arguments, **named)
        commits.append(self.version())

    def check(self: WriterLease) -> None:
        if commits:
            raise MirrorBusyError("another process mirrors into it")

    with monkeypatch.context() as patch:
        patch.setattr(CurrentFileTable, "commit", committed)
        patch.setattr(WriterLease, "check", check)
        with pytest.raises(MirrorBusyError):
            sink(batch_of(spark, sent.directory, *second), 1)
    assert len(commits) == 1
    assert (read_notes(open_store(tmp_path)).seq, points(tmp_path)) == (notes.seq, before)
    sink(batch_of(spark, sent.directory, *second), 1)
    current = open_current("delta", open_store(tmp_path), "public.by_default", TableOptions())
    assert rows_of(current.read(), ["id"]) == sent.reference("by_default", current.position() or 0)
    assert current.version() == commits[0]
    assert len(points(tmp_path)) == 2


def _many(directory: Path) -> dict[int, str]:
    """Two segments: 30,000 new rows, and then changes of a few. Returns what the table has then."""
    table = RelationSpec(16401, "public", "many", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    writer, dice, rows = Writer(), random.Random(3), {n: f"first {n}" for n in range(30_000)}
    order = dice.sample(sorted(rows), len(rows))
    parts = [writer.begin(7, 100, 0)]
    parts[0] += [each for n in order for each in writer.change(table, "insert", new=[str(n), rows[n]])]
    parts[0] += writer.commit(100, 108, 0)
    changes = writer.begin(8, 200, 0)
    for n in [*range(29_000, 29_300), *dice.sample(range(1000), 50)]:
        rows[n] = f"second {n}"
        changes += writer.change(table, "update", new=[str(n), rows[n]])
    for n in range(28_000, 28_100):
        new = n + 2_500
        rows[new] = rows.pop(n)
        changes += writer.change(table, "update", key=[str(n), None], new=[str(new), encode.UNCHANGED])
    for n in range(5):
        del rows[n]
        changes += writer.change(table, "delete", key=[str(n), None])
    parts.append(changes + writer.commit(200, 208, 0))
    directory.mkdir()
    state = None
    for part in parts:
        tagged, state = pgo.tag(part, state)
        write_segment(directory, tagged, state, source=Source("1", "shop", "slot"))
    return rows


@pytest.mark.slow
def test_many_files_and_ranges(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks write new rows, each a range of keys; and only files with changed keys are rewritten."""
    monkeypatch.setattr(plan, "_NEW_ROWS_BYTES", 200_000)
    expected = _many(tmp_path / "segments")
    listed = list_segments(tmp_path / "segments")
    lake = tmp_path / "lake"
    sink = pgspark.current_sink(lake, file_bytes=10_000, bucket_bytes=30_000)
    seen = []
    for number, each in enumerate(listed):
        sink(batch_of(spark, tmp_path / "segments", each.first_seq, each.last_seq), number)
        files = pa.table(DeltaTable(lake / "current" / "public.many").get_add_actions(flatten=True))
        seen.append(dict(zip(files["path"].to_pylist(), files.to_pylist(), strict=True)))
    rows = open_current("delta", open_store(lake), "public.many", TableOptions()).read()
    assert dict(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True)) == expected
    assert rows.num_rows == len(expected)
    ranges = sorted((each["min.id"], each["max.id"]) for each in seen[0].values())
    assert len(ranges) == 5
    assert all(last < first for (_, last), (first, _) in pairwise(ranges))
    kept = [each for name, each in seen[0].items() if name in seen[1]]
    assert len(kept) > len(seen[0]) / 2
    assert all(each["min.id"] >= 1_000 and each["max.id"] < 29_000 for each in kept)


@pytest.mark.slow
def test_a_target_in_a_store(spark: Any, work: tuple[Sent, Moment]) -> None:
    sent, _ = work
    tables = ["by_default", "whole"]
    with opened_bucket("lakes") as bucket:
        target = bucket.uri % "lake"
        sink = pgspark.current_sink(target, [f"public.{name}" for name in tables])
        for number, (first, last) in enumerate(sent.batches()):
            sink(batch_of(spark, sent.directory, first, last), number)
        store = open_store(target)
        for name in tables:
            current = open_current("delta", store, f"public.{name}", TableOptions())
            expected = sent.reference(name, current.position() or 0)
            assert rows_of(current.read(at(target)[f"public.{name}"]), sent.keys[name]) == expected
        assert store.names("_mirror/scratch") == []


def test_wrong_arguments_and_streams(spark: Any, work: tuple[Sent, Moment], tmp_path: Path) -> None:
    sent, _ = work
    with pytest.raises(ValueError, match=r"format must be one of 'delta', 'iceberg', not 'duckdb'"):
        pgspark.current_sink(tmp_path, format="duckdb")
    with pytest.raises(TypeError, match=r"tables must be a list"):
        pgspark.current_sink(tmp_path, "public.t0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"it cannot leave changes out"):
        pgspark.current_sink(tmp_path, options=pgo.Options(on_error="quarantine"))
    sink = pgspark.current_sink(tmp_path, ["public.whole"])
    with pytest.raises(ValueError, match=r"current_sink needs the columns directory, path, first, last"):
        sink(spark.range(1), 0)
    (first, last), *_, (later, end) = sent.batches()
    sink(batch_of(spark, sent.directory, first, last), 0)
    with pytest.raises(ValueError, match=rf"up to {last}, but the batch begins at message {later}"):
        sink(batch_of(spark, sent.directory, later, end), 1)
    assert [each.name for each in (tmp_path / "current").iterdir()] == ["public.whole"]


def test_a_segment_is_gone_in_which_a_transaction_began(spark: Any, tmp_path: Path) -> None:
    orders = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
    writer, state, directory = Writer(4, streaming="on"), None, tmp_path / "segments"
    directory.mkdir()
    begun = writer.stream_start(900) + writer.change(orders, "insert", new=["1", "a"], xid=900)
    begun += writer.stream_stop()
    short = writer.begin(7, 5, 5) + writer.change(orders, "insert", new=["9", "c"]) + writer.commit(5, 13, 5)
    for wal in (begun + short, writer.stream_commit(900, 10**6, 10**6 + 8, 5)):
        tagged, state = pgo.tag(wal, state)
        write_segment(directory, tagged, state, source=Source("7300000000000000001", "shop", "slot"))
    first, second = list_segments(directory)
    sink = pgspark.current_sink(tmp_path / "lake")
    sink(batch_of(spark, directory, first.first_seq, first.last_seq), 0)
    away = tmp_path / "away"
    Path(first.path).rename(away)
    lost = pgspark.current_sink(tmp_path / "lake")
    with pytest.raises(
        ValueError, match=rf"began at message 0 .* no segment has messages 0 to {first.last_seq}"
    ):
        lost(batch_of(spark, directory, second.first_seq, second.last_seq), 1)
    new = pgspark.current_sink(tmp_path / "new")
    with pytest.raises(ValueError, match=r"began at message 0 .* no segment has messages"):
        new(batch_of(spark, directory, second.first_seq, second.last_seq), 0)
    assert not (tmp_path / "new/current").exists()
    away.rename(first.path)
    sink(batch_of(spark, directory, second.first_seq, second.last_seq), 1)
    table = open_current("delta", open_store(tmp_path / "lake"), "public.orders", TableOptions())
    assert sorted(table.read()["id"].to_pylist()) == [1, 9]


@pytest.mark.slow
@pytest.mark.skipif(not AVAILABLE_NOW, reason="before Spark 4.2 the query does not wait for its capture")
def test_the_page(spark: Any, place: Place, tmp_path: Path) -> None:
    """docs/streaming.md: a mirror loads, and a query goes on."""
    section = (DOCS / "streaming.md").read_text().split("## Current tables\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    database = place.database
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders SELECT n, repeat('x', 3000) FROM generate_series(1, 3) n",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )
    place.run()
    database.execute(
        "UPDATE orders SET id = 4 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (5)",
    )
    pgspark.register(spark)
    checkpoint = str(tmp_path / "checkpoint")
    names: dict[str, Any] = {
        "spark": spark,
        "dsn": database.dsn,
        "lake": str(place.target),
        "checkpoint": checkpoint,
    }
    code = code.replace('"to_lake"', repr(place.slot)).replace('"shop"', '"mirrored"')
    exec(compile(code, "streaming.md", "exec"), names)
    assert set(names["orders"]["id"].to_pylist()) == {3, 4, 5}
    expect_equal(place, "public.orders")
    database.execute("ALTER TABLE orders RENAME note TO words", "UPDATE orders SET words = 'w'")
    query = code[code.index("segments = (") :]
    with pytest.raises(
        Exception, match=r"its column 'words' was renamed, .* Otherwise start the query with a new checkpoint"
    ):
        exec(compile(query, "streaming.md", "exec"), names)
    exec(compile(code, "streaming.md", "exec"), names)  # the mirror loads the table again
    expect_equal(place, "public.orders")


# ---- columns that become wider --------------------------------------------------------------------------------------

# What a column is, what it becomes, a value of both types, and one of the wider type.
_WIDER = {
    "short": ("smallint", "int", "7", str(1 << 20)),
    "whole": ("int", "bigint", "7", str(1 << 40)),
    "float": ("real", "double precision", "0.1", "1e300"),
    "digits": ("numeric(10,2)", "numeric(14,2)", "7.25", "1234567890.25"),
    "lists": ("int[]", "bigint[]", "'{1,NULL}'", f"'{{{1 << 40}}}'"),
}


def _make_narrow(database: pg.Database, table: str) -> None:
    columns = ", ".join(f"{name} {narrow}" for name, (narrow, *_) in _WIDER.items())
    database.execute(
        f"CREATE TABLE {table} (id int{'' if 'keyless' in table else ' PRIMARY KEY'}, {columns}, note text)",
        f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",
        *([f"ALTER TABLE {table} REPLICA IDENTITY FULL"] if "keyless" in table else []),
    )
    values = ", ".join(value for *_, value, _ in _WIDER.values())
    database.execute(
        f"INSERT INTO {table} SELECT g, {values}, repeat(md5(g::text), 100) FROM generate_series(1, 50) g"
    )


def _widen(database: pg.Database, table: str) -> None:
    """Rows before and after: some are updated and deleted, and a large value stays as it was."""
    types = ", ".join(f"ALTER {name} TYPE {wide}" for name, (_, wide, *_) in _WIDER.items())
    values = ", ".join(value for *_, value in _WIDER.values())
    database.execute(
        f"UPDATE {table} SET short = 8 WHERE id = 1",
        f"ALTER TABLE {table} ALTER id TYPE bigint, {types}",
        f"INSERT INTO {table} VALUES ({1 << 40}, {values}, 'y')",
        f"UPDATE {table} SET whole = {1 << 41} WHERE id <= 2",
        f"DELETE FROM {table} WHERE id = 3",
    )


@pytest.mark.slow
@pytest.mark.parametrize("format", and_slow(["delta"], ["iceberg"]))
def test_columns_that_become_wider_within_a_batch(spark: Any, place: Place, format: str) -> None:
    """Tables that have rows before the batch, and tables that begin with it, with and without a key."""
    database, tables = place.database, ["old", "old_keyless", "new", "new_keyless"]
    database.execute("CREATE PUBLICATION mirrored FOR ALL TABLES")
    query = Query(spark, place, format=format, file_bytes=20_000, bucket_bytes=4_000)
    Capture(database.dsn, place.slot, ["mirrored"], str(place.target / "_segments")).run(until_lsn="now")
    for table in tables[:2]:
        _make_narrow(database, table)
    query.follow()
    for table in tables[2:]:
        _make_narrow(database, table)
    for table in tables:
        _widen(database, table)
    query.follow()
    expect_equal(place, *(f"public.{table}" for table in tables), format=format)
    if format == "delta":  # which readers ask, and not this package alone
        found = DeltaTable(place.target / "current" / "public.old").to_pyarrow_table()
        assert found.schema.field("whole").type == pa.int64()
        assert found.num_rows == 50
