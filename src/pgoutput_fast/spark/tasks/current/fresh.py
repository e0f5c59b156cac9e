"""The last task: the rows of effects that are not yet in files of the table -> new files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.spark.tasks.current.reduce import NetEffect
from pgoutput_fast.spark.tasks.current.rewrite import batches_between
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.columns import in_schema
from pgoutput_fast.tables.data_files import NewFiles
from pgoutput_fast.tables.file_table import in_key_order
from pgoutput_fast.tables.files import WrittenFile

__all__ = ["WriteFresh"]


@dataclass(frozen=True)
class WriteFresh:
    """Rows of effects -> new files of a table.

    Attributes:
        table: the table's qualified name.
        target: the store with all tables.
        directory: the directory of the table's files in it.
        file_bytes: approximate maximum size of a file.
        key: the columns of the table's key.
        identity: the columns that identify a row.
        schema: its columns.
        effects: the effects.
        placed: for each effect the rows already in files: their numbers as int64, in bytes.
        low, high: only rows whose first column of `identity` is between these values, `high` excluded; None for no
            limit.
    """

    table: str
    target: str
    directory: str
    file_bytes: int
    key: tuple[str, ...]
    identity: tuple[str, ...]
    schema: pa.Schema
    effects: tuple[NetEffect, ...]
    placed: tuple[bytes, ...] = field(repr=False)
    low: pa.Scalar | None = None
    high: pa.Scalar | None = None

    def __call__(self) -> tuple[str, list[WrittenFile]]:
        """Returns the table's qualified name, and the files."""
        parts = list(self._parts())
        with NewFiles(open_store(self.target), self.directory, self.file_bytes) as files:
            if parts:
                rows = in_key_order(pa.concat_tables(parts), self.key).combine_chunks()
                files.write([in_schema(rows, self.schema)])
            return self.table, files.written

    def _parts(self) -> Iterator[pa.Table]:
        column = self.identity[0]
        for effect, placed in zip(self.effects, self.placed, strict=True):
            there = np.frombuffer(placed, np.int64)
            for begin, rows in batches_between(effect.rows, self.schema.names, column, self.low, self.high):
                fresh = ~np.isin(rows[""].to_numpy() + begin, there)
                if self.high is not None:
                    fresh &= pc.less(rows[column], self.high).to_numpy()
                rows = rows.filter(pa.array(fresh))
                if rows.num_rows:
                    yield rows.drop_columns([""])
