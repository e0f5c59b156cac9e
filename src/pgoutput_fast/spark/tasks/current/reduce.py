"""The second task: the changes of some keys of one table -> their net effect, in files for the last tasks."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.net_effect import effect_of
from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.merge.stored_effect import StoredEffect, store_effect
from pgoutput_fast.mirror.follow.apply_order import in_order
from pgoutput_fast.spark.tasks.current.batch_file import BatchFile, write_batches
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.columns import in_schema, joined
from pgoutput_fast.tables.options import TableOptions

__all__ = ["ReduceChanges", "TableLocation", "effect_files"]

# Rows per batch, the smallest unit of reading.
_BATCH_ROWS = 1 << 13


@dataclass(frozen=True)
class TableLocation:
    """The location of a current table.

    Attributes:
        format: its format.
        target: path or URI of the target.
        table: its qualified name.
        options: how to reach it.
    """

    format: str
    target: str
    table: str
    options: TableOptions


@dataclass(frozen=True)
class ReduceChanges:
    """Some buckets of a table -> their net effect.

    Attributes:
        scratch: the directory of the files.
        place: the current table.
        key: the columns of its key.
        identity: the columns that identify a row: the key, or without one all columns of the changes.
        schema: its columns after the effect.
        files: files of changes, and the numbers of the relevant batches.
        begins: whether the table does not exist yet. Then the changes begin with an empty table.
    """

    scratch: str
    place: TableLocation
    key: tuple[str, ...]
    identity: tuple[str, ...]
    schema: pa.Schema
    files: tuple[tuple[BatchFile, tuple[int, ...]], ...]
    begins: bool

    def __call__(self) -> tuple[str, StoredEffect]:
        """Returns the table's qualified name, and the files of the effect.

        Raises:
            ValueError: if the changes contradict each other, or the table.
        """
        effect = self._filled(effect_of(self._changes(), self.key))
        return self.place.table, effect_files(self.scratch, effect, self.identity, self.schema)

    def _changes(self) -> pa.Table:
        """The changes in the order of application."""
        parts = [pa.concat_tables(file.read(numbers=numbers)) for file, numbers in self.files]
        rows = in_order(joined(parts, self.place.table))
        if not self.begins:
            return rows
        before = {"_change_type": "truncate", "_seq": -1, "_commit_lsn": 0}
        fields = [rows.schema.field(name) for name in before]
        begin = in_schema(pa.Table.from_pylist([before], pa.schema(fields)), rows.schema)
        return pa.concat_tables([begin, rows])

    def _filled(self, effect: Effect) -> Effect:
        if not effect.unfilled:
            return effect
        place = self.place
        table = open_current_table(place.format, open_store(place.target), place.table, place.options)
        return effect.filled_by(table.find)


def effect_files(scratch: str, effect: Effect, identity: tuple[str, ...], schema: pa.Schema) -> StoredEffect:
    """Writes an effect into files.

    Args:
        scratch: the directory of the files.
        effect: the effect, without unfilled values.
        identity: the columns that identify a row.
        schema: the columns of the table.
    """

    def store(rows: pa.Table) -> BatchFile:
        batches = rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)
        return write_batches(scratch, batches, rows.schema, identity[0])

    return store_effect(effect, identity, schema, store)
