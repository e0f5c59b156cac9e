"""Files with messages, in the formats that the commands accept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import pgoutput_fast as pgo
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import Source, write_segment

__all__ = ["CUSTOMERS", "ORDERS", "lines", "stream", "write_all", "write_segments"]

ORDERS = RelationSpec(16401, "public", "orders", (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25)))
CUSTOMERS = RelationSpec(
    16402, "public", "customers", (ColumnSpec("id", 23, key=True), ColumnSpec("name", 25))
)


def stream() -> list[bytes]:
    """Two transactions. The first one has a value with a newline, the second one an update and a delete."""
    server = Writer()
    wal = server.begin(7, 100, 0) + server.change(ORDERS, "insert", new=["1", "two\nlines"])
    wal += server.change(CUSTOMERS, "insert", new=["1", "Ann"]) + server.commit(100, 108, 0)
    wal += server.begin(8, 200, 0) + server.change(ORDERS, "update", new=["1", "paid"])
    return wal + server.change(ORDERS, "delete", key=["1", None]) + server.commit(200, 208, 0)


def lines(wal: list[bytes]) -> bytes:
    """A file as written by pg_recvlogical."""
    return b"".join(message + b"\n" for message in wal)


def write_all(directory: Path) -> dict[str, Path]:
    """The messages of `stream` in each kind of file: {kind: path}."""
    wal = stream()
    places = {kind: directory / kind for kind in ("recvlogical", "raw", "psql", "hex", "parquet", "arrow")}
    places["recvlogical"].write_bytes(lines(wal))
    places["raw"].write_bytes(b"".join(wal))
    rows = "".join(f" 0/{n + 1:X} | 7 | \\x{message.hex()}\n" for n, message in enumerate(wal))
    places["psql"].write_text(f" lsn | xid | data\n-----+-----+------\n{rows}({len(wal)} rows)\n\n")
    places["hex"].write_text("".join(f"{message.hex()}\n" for message in wal))
    table = pa.table({"n": range(len(wal)), "bytes": pa.array(wal, pa.binary())})
    pq.write_table(table, places["parquet"])
    with pa.OSFile(str(places["arrow"]), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return places


def write_segments(directory: Path, count: int = 4) -> Path:
    """A directory with segments of one transaction each; the last one empties both tables."""
    directory.mkdir(exist_ok=True)
    server, state = Writer(4), None
    for n in range(count):
        wal = server.begin(7 + n, 100 * n + 100, 0) + server.change(ORDERS, "insert", new=[str(n), "x" * 50])
        wal += server.change(CUSTOMERS, "insert", new=[str(n), "Ann"])
        if n == count - 1:
            wal += server.truncate([ORDERS, CUSTOMERS])
        wal += server.commit(100 * n + 100, 100 * n + 108, 0)
        tagged, state = pgo.tag(wal, state, lsn=[100 * n + 50 + k for k in range(len(wal))])
        source = Source("7300", "shop", "slot", ("all",))
        write_segment(directory, tagged, state, source=source, start_lsn=100 * n, end_lsn=100 * n + 108)
    return directory
