"""Measures the cost of text and binary, from the server to columns: `python -m benchmarks.formats`.

For every server version and kind of table, the same backlog is read from copies of one slot, alternating between text
and binary. A row of the table has the CPU time of the walsender, of our read loop and of `decode`. The first round also
checks that both formats decode to the same rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import psycopg2
import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks.processes import stat_fields
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.capture import create_slot, drop_slot, plugin_options
from pgoutput_fast.demo.servers import Server, find_installations
from pgoutput_fast.postgres.walsender import Walsender

__all__ = ["TABLES", "Cost", "main", "measure", "section"]

BEGIN, END = "<!-- format figures -->", "<!-- end of format figures -->"
FULL_ROWS = 200_000
BATCH_BYTES = 1 << 22
FIRST_WITH_BINARY = 14
TICKS = os.sysconf("SC_CLK_TCK")

# {kind of table: (its columns, their values for row g)}
TABLES = {
    "wide": (
        "id bigint, a int, b int, c smallint, price numeric(12,2), rate float8, yes bool, day date, at timestamptz, "
        "name text, note text, code varchar(20), key uuid, data bytea, more jsonb, big bigint",
        "g, g % 1000, -g, g % 100, g * 0.37, g * 1.7, g % 3 = 0, date '2020-01-01' + g % 2000, "
        "timestamptz '2024-01-01 00:00:00Z' + g * interval '1 second', 'customer number ' || g, "
        "repeat(md5(g::text), 4), 'code-' || g % 5000, md5(g::text)::uuid, "
        "decode(md5(g::text), 'hex'), json_build_object('k', g, 'v', g % 7), "
        "g * 77777::bigint",
    ),
    "integers": (
        "id bigint, " + ", ".join(f"i{k} int, b{k} bigint" for k in range(4)),
        "g, " + ", ".join(f"g * {k + 1} % 100000, g * 77777::bigint * {k + 1}" for k in range(4)),
    ),
    "floats and numerics": (
        "id bigint, " + ", ".join(f"f{k} float8, n{k} numeric(14,4)" for k in range(4)),
        "g, " + ", ".join(f"sqrt(g * {k + 2}), g * 0.3711 * {k + 1}" for k in range(4)),
    ),
    "times": (
        "id bigint, " + ", ".join(f"t{k} timestamptz, d{k} date" for k in range(4)),
        "g, "
        + ", ".join(f"timestamptz '2024-01-01 00:00:00.123Z' + g * interval '{k + 1} s', date '2020-01-01' + g % 900"
                    for k in range(4)),
    ),
    "texts": (
        "id bigint, " + ", ".join(f"s{k} text" for k in range(8)),
        "g, " + ", ".join(f"'word ' || g * {k + 1}" for k in range(8)),
    ),
    "arrays": (
        "id bigint, i int[], t text[], f float8[]",
        "g, array[g, g + 1, g + 2, -g], array['a' || g, 'b', 'c d'], array[g * 0.5, sqrt(g)]",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """The cost of a backlog per row: microseconds of CPU time, and bytes.

    Attributes:
        server: of the walsender.
        read: of our read loop.
        decode: of `decode`.
        nbytes: of the messages.
    """

    server: float
    read: float
    decode: float
    nbytes: float


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.formats", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help=f"share of {FULL_ROWS:,} rows")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions")
    parser.add_argument(
        "--versions", type=int, nargs="*", help="server versions; by default the oldest and the newest"
    )
    given = parser.parse_args(arguments)
    installations = {each.version: each for each in find_installations() if each.version >= FIRST_WITH_BINARY}
    versions = given.versions or sorted({min(installations), max(installations)})
    sections = [
        section(version, measure(installations[version], round(FULL_ROWS * given.scale), given.rounds))
        for version in versions
    ]
    text = "\n\n".join(
        [f"{machine()}; median of {given.rounds} interleaved rounds; CPU time.", *map(str, sections)]
    )
    print(text)
    if given.scale == 1 and not given.versions:
        rewrite(README, text, BEGIN, END)


def measure(installation: Any, rows: int, rounds: int) -> dict[str, dict[str, list[Cost]]]:
    """{kind of table: {format: cost of each round}}.

    Raises:
        AssertionError: if text and binary decode to different rows.
    """
    figures: dict[str, dict[str, list[Cost]]] = {}
    with Server(installation, {"logical_decoding_work_mem": "64MB"}) as server:
        for kind, (columns, values) in TABLES.items():
            end = _fill(server.dsn, columns, values, rows)
            costs: dict[str, list[Cost]] = {"text": [], "binary": []}
            for number in range(rounds):
                seen = {}
                for format, found in costs.items():
                    cost, seen[format] = _read(server.dsn, format, end, rows)
                    found.append(cost)
                if number == 0:
                    assert seen["text"].equals(seen["binary"]), f"{kind}: text and binary are different"
            figures[kind] = costs
            drop_slot(server.dsn, "backlog")
    return figures


def _fill(dsn: str, columns: str, values: str, rows: int) -> int:
    """Makes a table and a slot with its rows. Returns the end LSN."""
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS filled; DROP PUBLICATION IF EXISTS backlog")
        cursor.execute(f"CREATE TABLE filled ({columns}); CREATE PUBLICATION backlog FOR TABLE filled")
    create_slot(dsn, "backlog")
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        for first in range(0, rows, 1000):
            cursor.execute(
                f"INSERT INTO filled SELECT {values} FROM generate_series({first}, {min(first + 1000, rows) - 1}) g"
            )
            connection.commit()
        cursor.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")
        end: int = cursor.fetchone()[0]
    return end


def _read(dsn: str, format: str, end: int, rows: int) -> tuple[Cost, pa.Table]:
    """Reads a copy of the slot, and decodes the messages."""
    with _copied_slot(dsn) as slot, psycopg2.connect(dsn) as connection:
        options = plugin_options(
            connection.server_version,
            ["backlog"],
            overrides={"binary": "true" if format == "binary" else None},
        )
        batches = []
        with Walsender(dsn, slot, options) as sender:
            began, served = time.process_time(), _cpu_of_walsender(connection, slot)
            while sender.wal_end < end:
                batches.append(sender.read(BATCH_BYTES, 1, ask=True).payloads)
            read, served = time.process_time() - began, _cpu_of_walsender(connection, slot) - served
    payloads = pa.chunked_array(batches)
    pgo.decode(payloads)
    began = time.process_time()
    decoded = pgo.decode(payloads)
    took = time.process_time() - began
    table = decoded.table("public.filled")
    table = table.select([name for name in table.column_names if not name.startswith("_")])
    micros = 1e6 / rows
    return Cost(served * micros, read * micros, took * micros, payloads.nbytes / rows), table


@contextmanager
def _copied_slot(dsn: str) -> Iterator[str]:
    slot = f"copy{time.monotonic_ns()}"
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_copy_logical_replication_slot('backlog', %s)", (slot,))
    yield slot
    for _ in range(4800):
        try:
            drop_slot(dsn, slot)
            return
        except psycopg2.errors.ObjectInUse:
            time.sleep(0.05)


def _cpu_of_walsender(connection: Any, slot: str) -> float:
    """CPU seconds of the process that serves a slot."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", (slot,))
        fields = stat_fields(cursor.fetchone()[0])
    connection.rollback()
    return (int(fields[11]) + int(fields[12])) / TICKS


def section(version: int, figures: dict[str, dict[str, list[Cost]]]) -> Section:
    """The figures as a table. Ratios are medians over the rounds."""
    table = Section(
        f"text and binary from PostgreSQL {version}",
        [
            "",
            "bytes/row",
            "walsender us/row",
            "read us/row",
            "decode us/row",
            "binary beside text: walsender",
            "all",
        ],
    )
    for kind, costs in figures.items():
        text, binary = costs["text"], costs["binary"]

        def shown(what: str, text: list[Cost] = text, binary: list[Cost] = binary) -> str:
            both = (statistics.median(getattr(each, what) for each in found) for found in (text, binary))
            return ", ".join(f"{each:.0f}" if what == "nbytes" else f"{each:.2f}" for each in both)

        pairs = list(zip(text, binary, strict=True))
        # A short run may take the server less than the resolution of its CPU time.
        servers = [b.server / t.server for t, b in pairs if t.server] or [0.0]
        sums = [sum(astuple(b)[:3]) / sum(astuple(t)[:3]) for t, b in pairs]
        table.rows.append(
            [kind, shown("nbytes"), shown("server"), shown("read"), shown("decode"),
             f"{statistics.median(servers):.2f}", f"{statistics.median(sums):.2f}"]
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
