"""Compares a snapshot with ADBC's driver for PostgreSQL: rows per CPU second of the client, with the same Arrow types.

    python -m benchmarks.snapshot [rows]

Both read one table of 16 columns from an embedded server, in turns, with the same connection settings. Before the
timing, this compares their values. It needs `adbc-driver-postgresql`.

It also splits the time of a snapshot between the server, the connection (libpq and the system), and the decoder. For
the connection it receives the same bytes without decoding them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import Any

import pyarrow as pa

from benchmarks.processes import descendants, stat_fields
from benchmarks.timing import Measured, interleaved
from pgoutput_fast.capture import Snapshot
from pgoutput_fast.demo.servers import Server, find_installations
from pgoutput_fast.postgres.copy_stream import CopyLink
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.postgres.tables import text_columns
from pgoutput_fast.snapshot.read import SnapshotReader, copy_query, in_snapshot

TABLE = """
CREATE TABLE orders (
    id int8 PRIMARY KEY, customer int4, product int4, quantity int2, price float8, discount float4, total numeric,
    paid bool, created timestamp, updated timestamptz, day date, code text, name text, note text, raw bytea,
    weight float8)
"""
ROWS = """
INSERT INTO orders SELECT g, g %% 7919, g %% 104729, g %% 97, (g %% 100000) / 7.0, CASE WHEN g %% 10 < 3 THEN 0.25 END,
    ((g %% 1000000) / 100.0)::numeric(12, 2), g %% 2 = 0, timestamp '2024-01-01' + g * interval '1.000123 second',
    timestamptz '2024-01-01 00:00+00' + g * interval '2.5 second', date '2020-01-01' + (g %% 2000),
    'K-' || lpad((g %% 99991)::text, 8, '0'), 'customer number ' || (g %% 7919),
    CASE WHEN g %% 4 = 0 THEN 'a note of some length about order ' || g END, decode(md5(g::text), 'hex'), g / 3.0
FROM generate_series(1, %s) g
"""
COLUMNS = (
    "id", "customer", "product", "quantity", "price", "discount", "total", "paid", "created", "updated", "day", "code",
    "name", "note", "raw", "weight",
)  # fmt: skip


OURS, RECEIVED, ADBC, SERVER = "snapshot", "received only", "ADBC", "server"


def read_ours(reader: SnapshotReader, snapshot: Snapshot) -> pa.Table:
    """The whole table, with metadata columns."""
    batches: list[pa.RecordBatch] = []
    for each in snapshot.ranges("public.orders"):
        reader.read(snapshot.tables["public.orders"], each, batches.append)
    return pa.Table.from_batches(batches)


def receive(connection: Any, snapshot: Snapshot) -> None:
    """Receives the bytes that `read_ours` decodes, and drops them."""
    table, major = snapshot.tables["public.orders"], connection.server_version // 10000
    as_text = text_columns(table, snapshot.catalog, snapshot.options, major)
    for each in snapshot.ranges("public.orders"):
        with connection.cursor() as cursor, in_snapshot(cursor, snapshot.name):
            link = CopyLink(connection)
            link.begin(copy_query(table, each, as_text, None), lambda: True)
            while link.take(1 << 20, 0.2, 0.02) is not None:
                pass


def server_seconds(server: Server) -> float:
    """The CPU time of the processes of a server, in steps of a hundredth of a second."""
    postmaster = int((server.data_directory / "postmaster.pid").read_text().split()[0])
    ticks = sum(sum(map(int, stat_fields(pid)[11:13])) for pid in descendants(postmaster))
    return ticks / os.sysconf("SC_CLK_TCK")


def read_adbc(connection: Any) -> pa.Table:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM public.orders")
        return cursor.fetch_arrow_table()


def same(ours: pa.Table, theirs: pa.Table) -> None:
    """Asserts that values and types are equal, except for ADBC's name for strings of numeric values."""
    ours, theirs = ours.select(COLUMNS).sort_by("id"), theirs.sort_by("id")
    for name in COLUMNS:
        kind = theirs.schema.field(name).type
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        assert kind == ours.schema.field(name).type, (name, kind, ours.schema.field(name).type)
        column = theirs[name].combine_chunks()
        column = column.storage if isinstance(column, pa.ExtensionArray) else column
        assert ours[name].combine_chunks().equals(column), name


def measure(rows: int, rounds: int) -> dict[str, Measured]:
    """CPU seconds to read `rows` rows: of this process with each of the two readers, and if it only receives the bytes;
    and of the server while it sends them.

    Raises:
        LookupError: if this machine has no PostgreSQL server.
        ModuleNotFoundError: without ADBC's driver.
    """
    import adbc_driver_postgresql.dbapi as adbc

    installations = find_installations()
    if not installations:
        raise LookupError("no PostgreSQL found")
    server = Server(max(installations, key=lambda each: each.version))
    try:
        server.start()
        connection = server.connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(TABLE)
            cursor.execute(ROWS, (rows,))
            cursor.execute("CREATE PUBLICATION p FOR TABLE orders")
            cursor.execute("VACUUM ANALYZE orders")
        connection.close()
        words = dict(word.split("=", 1) for word in server.dsn.split())
        uri = (
            f"postgresql://{words['user']}@{words['host']}:{words['port']}/{words['dbname']}?sslmode=disable"
        )
        with (
            Snapshot(server.dsn, ["p"]) as snapshot,
            adbc.connect(uri) as other,
            contextlib.closing(
                SnapshotReader(server.dsn, snapshot.name, snapshot.catalog, snapshot.options)
            ) as reader,
            contextlib.closing(connect(server.dsn)) as receiving,
        ):
            same(read_ours(reader, snapshot), read_adbc(other))

            def serve() -> dict[str, float]:
                before = server_seconds(server)
                receive(receiving, snapshot)
                return {SERVER: server_seconds(server) - before}

            return interleaved(
                {
                    OURS: lambda: read_ours(reader, snapshot),
                    RECEIVED: lambda: receive(receiving, snapshot),
                    ADBC: lambda: read_adbc(other),
                },
                {SERVER: serve},
                rounds,
            )
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="?", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    spent = measure(arguments.rows, arguments.rounds)
    for name in (OURS, ADBC):
        rate = arguments.rows / spent[name].seconds / 1e6
        print(f"{name:9} {rate:6.2f} million rows per CPU second")
    print(f"speed of the snapshot, relative to ADBC: {spent[OURS].speed_beside(spent[ADBC]):.2f}")
    server, received, ours = (spent[name].seconds / arguments.rows * 1e6 for name in (SERVER, RECEIVED, OURS))
    print("CPU seconds per million rows:")
    for what, seconds in (
        ("the server", server),
        ("connection: libpq and system", received),
        ("decoder", ours - received),
    ):
        print(f"  {what:28} {seconds:6.3f}  {seconds / (server + ours):4.0%}")


if __name__ == "__main__":
    main()
