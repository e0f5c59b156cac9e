"""The second task: the changes of some keys of one table -> their net effect, in files for the last tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.net_effect import effect_of
from pgoutput_fast.mirror.follow.apply_order import in_order
from pgoutput_fast.spark.tasks.current.scratch import Piece, read_piece, write_piece
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.columns import in_schema, joined
from pgoutput_fast.tables.current_formats import open_current
from pgoutput_fast.tables.file_table import in_key_order

__all__ = ["NetEffect", "Place", "ReduceChanges", "effect_files"]

# Rows per batch, the smallest unit of reading.
_BATCH_ROWS = 1 << 13
# Number of keys sent to the driver as a sample of their distribution.
_SAMPLES = 64


@dataclass(frozen=True)
class Place:
    """The location of a current table.

    Attributes:
        format: its format.
        target: path or URI of the target.
        table: its qualified name.
        storage_options: options of delta-rs for it.
    """

    format: str
    target: str
    table: str
    storage_options: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class NetEffect:
    """The net effect on some keys of a table. The columns are those of the table.

    Attributes:
        table: the table's qualified name.
        truncated: whether all existing rows are removed.
        gone: the rows to remove.
        rows: the rows to add, in the order of the first column of the key.
        sample: some values of the first column of `rows`, ascending, at equal distances.
    """

    table: str
    truncated: bool
    gone: Piece
    rows: Piece
    sample: pa.Array


@dataclass(frozen=True)
class ReduceChanges:
    """Some buckets of a table -> their net effect.

    Attributes:
        scratch: the directory of the files.
        place: the current table.
        key: the columns of its key.
        identity: the columns that identify a row: the key, or without one all columns of the changes.
        schema: its columns after the effect.
        pieces: files of changes, and the numbers of the relevant batches.
        begins: whether the table does not exist yet. Then the changes begin with an empty table.
    """

    scratch: str
    place: Place
    key: tuple[str, ...]
    identity: tuple[str, ...]
    schema: pa.Schema
    pieces: tuple[tuple[Piece, tuple[int, ...]], ...]
    begins: bool

    def __call__(self) -> NetEffect:
        """Returns the files of the effect.

        Raises:
            ValueError: if the changes contradict each other, or the table.
        """
        effect = self._filled(effect_of(self._changes(), self.key))
        return effect_files(self.scratch, self.place.table, effect, self.identity, self.schema)

    def _changes(self) -> pa.Table:
        """The changes in the order of application."""
        parts = [pa.Table.from_batches(read_piece(piece, batches=numbers)) for piece, numbers in self.pieces]
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
        table = open_current(place.format, open_store(place.target), place.table, place.storage_options)
        return effect.filled_by(table.find)


def effect_files(
    scratch: str, table: str, effect: Effect, identity: tuple[str, ...], schema: pa.Schema
) -> NetEffect:
    """Writes an effect into files.

    Args:
        scratch: the directory of the files.
        table: the table's qualified name.
        effect: the effect, without unfilled values.
        identity: the columns that identify a row.
        schema: the columns of the table.
    """
    key_schema = pa.schema([schema.field(name) for name in identity])
    rows = in_key_order(in_schema(effect.rows, schema), effect.key)
    gone = in_key_order(in_schema(effect.gone, key_schema), effect.key)
    step = max(1, rows.num_rows // _SAMPLES)
    return NetEffect(
        table,
        effect.truncated,
        write_piece(scratch, _batches(gone), key_schema, identity[0]),
        write_piece(scratch, _batches(rows), schema, identity[0]),
        rows.column(identity[0]).take(pa.array(np.arange(0, rows.num_rows, step))).combine_chunks(),
    )


def _batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)
