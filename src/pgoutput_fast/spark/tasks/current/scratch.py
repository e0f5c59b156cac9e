"""Files between two jobs: rows in batches that can be read separately."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.storage.paths import open_file
from pgoutput_fast.storage.stores import open_store

__all__ = ["Piece", "ordered", "read_piece", "write_piece"]


@dataclass(frozen=True)
class Piece:
    """A file of rows.

    Attributes:
        path: its path or URI.
        rows: the number of rows of each batch.
        nbytes: size of the rows in memory, in bytes.
        bounds: for each batch the minimum and the maximum of the first column; null if that has no order.
    """

    path: str
    rows: tuple[int, ...]
    nbytes: int
    bounds: tuple[pa.Array, pa.Array]


def ordered(kind: pa.DataType) -> bool:
    """Whether values of a type can be compared with bounds."""
    tests = pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_decimal128
    return any(test(kind) for test in (*tests, pa.types.is_date32, pa.types.is_timestamp))


def write_piece(
    directory: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, column: str | None
) -> Piece:
    """Writes batches into a new file.

    Args:
        directory: a path or a URI. Each attempt of a task writes files with different names.
        batches: the rows.
        schema: their columns.
        column: record the bounds of this column; None for none.
    """
    name, rows, nbytes = f"{secrets.token_hex(8)}.arrow", [], 0
    kind = None if column is None else schema.field(column).type
    lows: list[pa.Scalar] = []
    highs: list[pa.Scalar] = []
    store = open_store(directory)
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with store.write(name) as file, pa.ipc.new_file(file, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows.append(batch.num_rows)
            nbytes += batch.nbytes
            if kind is not None and ordered(kind):
                found = pc.min_max(batch.column(column))
                lows.append(found["min"].as_py())
                highs.append(found["max"].as_py())
    none = pa.nulls(len(rows))
    bounds = (pa.array(lows, kind), pa.array(highs, kind)) if lows else (none, none)
    return Piece(str(store.at(name)), tuple(rows), nbytes, bounds)


def read_piece(
    piece: Piece, columns: Sequence[str] | None = None, batches: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields batches of a file.

    Args:
        piece: the file.
        columns: the columns to read; None for all.
        batches: the numbers of the batches; None for all.
    """
    place = open_file(piece.path)
    with pa.OSFile(place) if isinstance(place, str) else place as file:
        chosen = None
        if columns is not None:
            with pa.ipc.open_file(file) as reader:
                chosen = [reader.schema.get_field_index(name) for name in columns]
            file.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=chosen)
        with pa.ipc.open_file(file, options=options) as reader:
            for number in range(len(piece.rows)) if batches is None else batches:
                batch = reader.get_batch(number)
                yield batch if columns is None else batch.select(list(columns))
