"""A backlog of untagged payloads of a real server, of any length. Compares its tables on Spark with the server's.

Three sessions work at the same time, each on its own table. They run large transactions that are streamed before they
end, with savepoints and DDL, rolled back or not; prepared transactions; truncates; changes of keys; values out of line.
A walsender sends the result in consecutive ranges of messages.
"""

from __future__ import annotations

import contextlib
import io
import random
import select
import time
from collections.abc import Iterator
from typing import Any

import psycopg2.extras
import pyarrow as pa
import pyarrow.csv

from pgoutput_fast import spark as pgspark
from support import pg

TABLES = ("first", "second", "third")
# These columns are never dropped; `n` changes its type. Timestamps are compared as microseconds.
COLUMNS = {
    "id": pa.int64(),
    "n": pa.int64(),
    "price": pa.decimal128(12, 2),
    "note": pa.string(),
    "at": pa.int64(),
    "ok": pa.bool_(),
    "big": pa.string(),
}
SCHEMA = """
    CREATE TABLE {0} (id int8 PRIMARY KEY, n int, price numeric(12,2), note varchar, at timestamptz, ok bool, big text);
    ALTER TABLE {0} ALTER big SET STORAGE EXTERNAL
"""
_SEGMENT_MESSAGES = 50_000
_END = "the end"


class Session:
    """Endless work on one table, one transaction after another."""

    def __init__(self, table: str, seed: str, rows: int) -> None:
        self.rng = random.Random(f"{seed} {table}")
        self.table, self.rows, self.most = table, rows, rows
        self.next_id, self.next_column, self.number = 1, 1, 0
        self.added: list[str] = []

    def transaction(self) -> Iterator[str]:
        self.number += 1
        self.most = self.rng.choice([12, 12, self.rows])
        before = list(self.added)
        end, gid = self.rng.randrange(10), f"{self.table} {self.number}"
        yield "BEGIN"
        for _ in range(self.rng.choice([1, 1, 3, 6])):
            if self.rng.random() < 0.3:
                kept = list(self.added)
                yield "SAVEPOINT s"
                yield from self.work()
                if self.rng.random() < 0.5:
                    yield "ROLLBACK TO s"
                    self.added = kept
                yield "RELEASE s"
            else:
                yield from self.work()
        # A statement that rewrites the table comes last. A server that decodes the transaction before it ends can fail
        # ("could not map filenumber") if changes follow, or if the transaction is rolled back.
        if end < 6 and self.rng.random() < 0.05:
            yield f"TRUNCATE {self.table}"
        elif end < 6 and self.next_id < 5000 and self.rng.random() < 0.5:
            yield f"ALTER TABLE {self.table} ALTER n TYPE {self.rng.choice(['int8', 'int4'])}"
        if end >= 8:
            yield f"PREPARE TRANSACTION '{gid}'"
        ends = ["COMMIT"] * 6 + ["ROLLBACK"] * 2 + [f"COMMIT PREPARED '{gid}'", f"ROLLBACK PREPARED '{gid}'"]
        yield ends[end]
        if end in (6, 7, 9):
            self.added = before

    def work(self) -> Iterator[str]:
        rng, table = self.rng, self.table
        count = rng.choice([3, self.most // 4, self.most])
        first = rng.randrange(self.next_id)
        some = f"id BETWEEN {first} AND {first + 2 * count}"
        choice = rng.randrange(24)
        if choice < 10:
            columns = "id, n, price, note, at, ok, big"
            values = (
                "g, g % 1000, g % 999983 / 100.0, repeat(md5(g::text), 1 + g % 3), 'epoch'::timestamptz"
                " + g * interval '1.000001 seconds', g % 2 = 0, CASE WHEN g % 40 = 0 THEN repeat(md5(g::text), 70) END"
            )
            yield (
                f"INSERT INTO {table} ({columns}) SELECT {values}"
                f" FROM generate_series({self.next_id}, {self.next_id + count - 1}) AS g"
            )
            self.next_id += count
        elif choice < 15:
            yield f"UPDATE {table} SET n = n + 1, note = nullif(substr(note, 2), '') WHERE {some} AND id % 2 = 0"
        elif choice < 16:
            yield f"UPDATE {table} SET big = repeat(note, {rng.choice([1, 80])}) WHERE {some} AND id % 20 = 0"
        elif choice < 18:
            yield f"UPDATE {table} SET id = -id, ok = NULL WHERE {some} AND id % 5 = 0"
        elif choice < 21:
            yield f"DELETE FROM {table} WHERE {some} AND id % 3 = 0"
        else:
            yield from self.alter()

    def alter(self) -> Iterator[str]:
        if self.next_column < 6 + self.number // 60 and (not self.added or self.rng.random() < 0.6):
            self.next_column += 1
            self.added.append(f"c{self.next_column}")
            yield f"ALTER TABLE {self.table} ADD COLUMN {self.added[-1]} int"
            yield f"UPDATE {self.table} SET {self.added[-1]} = id WHERE id BETWEEN {self.next_id - 9} AND {self.next_id}"
        elif self.added:
            yield f"ALTER TABLE {self.table} DROP COLUMN {self.added.pop(0)}"


def backlog(
    database: pg.Database, seed: str, messages: int, rows: int
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yields ranges of messages as (LSNs, payloads), together at least `messages` messages.

    At the end, the server's tables have all of these changes. A statement changes at most `rows` rows.
    """
    database.execute(*(SCHEMA.format(table) for table in TABLES))
    with contextlib.ExitStack() as stack:
        slot = stack.enter_context(
            database.slot(options=pg.all_options(database.version), two_phase=database.version >= 15)
        )
        cursors = [stack.enter_context(database.session()).cursor() for _ in TABLES]
        stack.callback(_until_free, slot)
        sender = stack.enter_context(
            contextlib.closing(
                database.server.connect(
                    dbname=database.name,
                    connection_factory=psycopg2.extras.LogicalReplicationConnection,
                    options="-c wal_sender_timeout=0",
                )
            )
        )
        received = _Received(sender.cursor(), slot)
        work = [Session(table, seed, rows) for table in TABLES]
        open_now = [session.transaction() for session in work]
        while any(each is not None for each in open_now):
            for k, cursor in enumerate(cursors):
                statement = next(open_now[k], None) if open_now[k] is not None else None
                if statement is not None:
                    cursor.execute(statement)
                    yield from received.more()
                else:
                    open_now[k] = work[k].transaction() if received.count < messages else None
        # The second statement makes the server flush the log.
        database.execute(
            f"SELECT pg_logical_emit_message(false, '{_END}', '')", "CREATE TABLE flushed (i int)"
        )
        yield from received.more(until_end=True)


def _until_free(slot: pg.Slot) -> None:
    """Waits for the slot: a walsender keeps it until it notices that its client has disconnected."""
    deadline = time.monotonic() + 120
    while slot.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot.name}'")[0][0]:
        if time.monotonic() > deadline:
            raise TimeoutError("the walsender does not go")
        time.sleep(0.01)


class _Received:
    """Messages that a walsender has sent and that were not taken yet."""

    def __init__(self, cursor: Any, slot: pg.Slot) -> None:
        cursor.start_replication(slot_name=slot.name, options=slot.options, decode=False)
        self.cursor, self.count = cursor, 0
        self.lsns: list[int] = []
        self.payloads: list[bytes] = []

    def more(self, *, until_end: bool = False) -> Iterator[tuple[list[int], list[bytes]]]:
        while (message := self.cursor.read_message()) is not None or until_end:
            if message is None:
                if not select.select([self.cursor], [], [], 120)[0]:
                    raise TimeoutError("the walsender sends nothing")
                continue
            self.lsns.append(message.data_start)
            self.payloads.append(message.payload)
            self.count += 1
            ended = until_end and message.payload[:1] == b"M" and _END.encode() in message.payload
            if len(self.payloads) == _SEGMENT_MESSAGES or ended:
                self.cursor.send_feedback(flush_lsn=message.data_start)  # the server may remove older WAL
                yield self.lsns, self.payloads
                self.lsns, self.payloads = [], []
            if ended:
                return


# ---- the tables ----------------------------------------------------------------------------------------------------


def server_table(database: pg.Database, table: str) -> pa.Table:
    """The rows of the server's table, ordered by `id`."""
    columns = COLUMNS | {
        name: pa.int64()
        for (name,) in database.execute(
            f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
            " AND NOT attisdropped ORDER BY attnum"
        )
        if name not in COLUMNS
    }
    said = ", ".join(f"(extract(epoch FROM {n}) * 1000000)::int8" if n == "at" else n for n in columns)
    text = io.BytesIO()
    with database.session() as connection, connection.cursor() as cursor:
        cursor.copy_expert(
            f"COPY (SELECT {said} FROM {table} ORDER BY id) TO STDOUT (FORMAT csv, FORCE_QUOTE (note, big))",
            text,
        )
    if not text.tell():
        return pa.schema(list(columns.items())).empty_table()
    text.seek(0)
    return pa.csv.read_csv(
        text,
        pa.csv.ReadOptions(column_names=list(columns)),
        convert_options=pa.csv.ConvertOptions(
            column_types=columns,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=["t"],
            false_values=["f"],
        ),
    )


def spark_table(wal: Any, table: str, wanted: pa.Schema) -> pa.Table:
    """The same rows, computed from the changes of committed transactions. The `amount` of an id never changes."""
    from pyspark.sql import functions as F  # noqa: N812

    changes = pgspark.changes(wal, f"public.{table}", transactions="committed").withColumn(
        "at", F.unix_micros("at")
    )
    # The later of two rows has the larger value. The postimage follows the preimage.
    place = F.struct("_commit_lsn", "_seq", F.col("_change_type") != "update_preimage")
    changes = changes.withColumn("place", place)
    emptied = changes.where("_change_type = 'truncate'").agg(F.max("place").alias("emptied"))
    rows = changes.where("_change_type <> 'truncate'").join(emptied, how="cross")
    rows = rows.where("emptied IS NULL OR place > emptied")
    unchanged = F.coalesce("_unchanged", F.array().cast("array<string>"))
    new = F.col("_change_type").isin("insert", "update_postimage")
    last = rows.groupBy(F.abs("id").alias("row")).agg(
        F.max_by("_change_type", "place").alias("last"),
        *[
            F.max_by(name, F.when(new & ~F.array_contains(unchanged, name), F.col("place"))).alias(name)
            for name in wanted.names
        ],
    )
    there = last.where("last IN ('insert', 'update_postimage')").select(*wanted.names).orderBy("id")
    return there.toArrow().cast(wanted)


def same_tables(found: pa.Table, expected: pa.Table, what: str) -> None:
    """Compares two tables, cell by cell.

    Raises:
        AssertionError: naming the first column and row that differ.
    """
    assert found.num_rows == expected.num_rows, f"{what}: {found.num_rows} rows, not {expected.num_rows}"
    for name in expected.column_names:
        one, other = found[name].combine_chunks(), expected[name].combine_chunks()
        if not one.equals(other):
            k = next(k for k in range(len(one)) if one[k] != other[k])
            cells = f"{str(one[k])[:80]}, not {str(other[k])[:80]}"
            raise AssertionError(f"{what}.{name} where id = {expected['id'][k]}: {cells}")
