"""A server's messages, as segments and as a plain reference of its tables; and a sink of current tables over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import pgoutput_fast as pgo
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.segments import Source, write_segment
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions
from reference.current import CurrentRows

__all__ = ["Sent", "assert_as_reference", "batch_of", "rows_of"]

_SOURCE = Source("7300000000000000003", "shop", "slot", ("all",), {"proto_version": "4"})


class Sent:
    """A server's messages, in segments.

    Args:
        payloads: all messages.
        keys: {table: the columns of its key}.
        directory: of the segments.
        segments: number of segments.
    """

    def __init__(
        self, payloads: Sequence[bytes], keys: Mapping[str, list[str]], directory: Path, segments: int
    ) -> None:
        self.directory, self.keys = directory, keys
        self.ends: list[int] = []
        directory.mkdir(parents=True)
        state = None
        for k in range(segments):
            part = payloads[len(payloads) * k // segments : len(payloads) * (k + 1) // segments]
            tagged, state = pgo.tag(list(part), state)
            write_segment(
                directory, tagged, state, source=_SOURCE, relation_bytes=2_000, row_group_bytes=20_000
            )
            self.ends.append(state.next_seq - 1)
        decoded = pgo.decode(list(payloads), options=pgo.Options(transactions="committed"))
        self.changes = {}
        for table in keys:
            changes = decoded.table(f"public.{table}")
            self.changes[table] = to_types(changes, stored_schema(changes.schema, "parquet"))

    def batches(self) -> Iterator[tuple[int, int]]:
        """The first and the last message of each segment."""
        begin = 0
        for end in self.ends:
            yield begin, end
            begin = end + 1

    def reference(self, table: str, position: int) -> list[str]:
        """The rows that a table has at a position."""
        changes = self.changes[table]
        columns = pa.schema([field for field in changes.schema if not field.name.startswith("_")])
        rows = CurrentRows(self.keys[table], columns)
        rows.apply_changes(changes.filter(pc.less_equal(changes["_commit_lsn"], position)).to_pylist())
        return rows.sorted()


def batch_of(spark: Any, directory: Path, first: int, last: int) -> Any:
    """The rows of a stream of files."""
    rows = [{"directory": str(directory), "path": "one", "first": first, "last": last}]
    return spark.createDataFrame(rows).select("directory", "path", "first", "last")


def rows_of(rows: pa.Table, key: list[str]) -> list[str]:
    """The rows of a current table in the reference's form."""
    found = CurrentRows(key, pa.schema([]))
    found.rows = rows.to_pylist()
    return found.sorted()


def assert_as_reference(sent: Sent, target: Path, format: str, *, killed: bool = False) -> None:
    """Each table equals the reference at its position. After a kill, tables may be missing."""
    for table, key in sent.keys.items():
        current = open_current(format, open_store(target), f"public.{table}", TableOptions())
        position = current.position()
        if position is None:
            assert killed or not len(sent.changes[table])
        else:
            assert rows_of(current.read(), key) == sent.reference(table, position), table
